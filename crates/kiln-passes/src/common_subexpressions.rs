//! Computes equal things once: a node with the op and the operands of an earlier one becomes that one. The first keeps its
//! line. Every op is a function of its operands and attributes, random bits too, so nothing is exempt.

use crate::rewrite::set_outputs;
use crate::{Options, Rewritten};
use kiln_ir::{Error, Graph, Node, NodeId, Op};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Constants larger than this are compared by address alone: two copies of a weight are the caller's wish.
const COMPARED_BYTES: usize = 4096;

/// The pass.
pub(crate) fn run(graph: Graph, _: &Options) -> Result<Rewritten, Error> {
    let (nodes, outputs) = graph.into_parts();
    let mut first: HashMap<u64, NodeId, BuildHasherDefault<Identity>> = HashMap::default();
    first.reserve(nodes.len());
    let mut graph = Graph::with_capacity(nodes.len());
    let mut map: Vec<NodeId> = Vec::with_capacity(nodes.len());
    let mut changed = false;
    for mut node in nodes {
        for operand in &mut node.operands {
            *operand = map[operand.index()];
        }
        let mut key = key(&node);
        let id = loop {
            match first.entry(key) {
                Entry::Vacant(slot) => {
                    let id = graph.keep(node)?;
                    slot.insert(id);
                    break id;
                }
                Entry::Occupied(slot) if same(graph.node(*slot.get()), &node) => {
                    changed = true;
                    break *slot.get();
                }
                // Another node with the same key: try the next place.
                Entry::Occupied(_) => key = key.wrapping_add(1),
            }
        };
        map.push(id);
    }
    set_outputs(&mut graph, outputs, &map);
    Ok(Rewritten { graph, changed })
}

fn same(a: &Node, b: &Node) -> bool {
    if a.operands != b.operands {
        return false;
    }
    match (&a.op, &b.op) {
        (Op::Constant(a), Op::Constant(b)) if a.bytes.len() > COMPARED_BYTES => {
            a.dtype == b.dtype && a.shape == b.shape && std::sync::Arc::ptr_eq(&a.bytes, &b.bytes)
        }
        (a, b) => a == b,
    }
}

fn key(node: &Node) -> u64 {
    let mut hasher = Mix::default();
    node.operands.hash(&mut hasher);
    match &node.op {
        Op::Constant(literal) if literal.bytes.len() > COMPARED_BYTES => literal.shape.hash(&mut hasher),
        op => op.hash(&mut hasher),
    }
    hasher.finish()
}

/// A fast hash for keys that no adversary chooses; equality is checked anyway.
#[derive(Default)]
struct Mix(u64);

impl Mix {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.mix(n.into());
    }
    fn write_u32(&mut self, n: u32) {
        self.mix(n.into());
    }
    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }
}

/// The key is a hash already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}
