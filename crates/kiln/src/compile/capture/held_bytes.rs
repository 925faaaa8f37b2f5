//! What the programs of a function hold, counted in places of their trees and in bytes, and the bound on it
//! ([`super::Options::cache_bytes`]).

use super::compiled::Compiled;
use super::entry::Entry;
use super::segment::{InputSource, Segment};
use super::segment_compiler::SPARE;
use super::tree::{Node, TraceStep};
use kiln_runtime::HostMemory;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Places of trees, and the bytes that they hold; an estimate. What several places share counts once.
#[derive(Default)]
pub(super) struct Held {
    pub(super) nodes: usize,
    pub(super) breaks: usize,
    pub(super) bytes: usize,
    seen: HashSet<usize>,
}

/// Bytes of an input's or a slot's description, about.
const WIRE: usize = 64;
/// Bytes from which on memory that a function held goes back to the system with it.
const WORTH_RETURNING: usize = 4 << 20;

impl Held {
    fn add_tree<R>(&mut self, root: &Node<R>) {
        root.visit(&mut |node| {
            self.nodes += 1;
            self.bytes += size_of::<Node<R>>();
            match node {
                Node::Step { step: TraceStep::Segment(segment), .. } => self.add_segment(segment),
                Node::Step { step: TraceStep::Outside { .. }, .. } => self.breaks += 1,
                Node::Branch { guard, branches } => {
                    self.breaks += guard.reading().is_some() as usize;
                    let branches = branches.read().unwrap_or_else(PoisonError::into_inner);
                    self.bytes += branches.iter().map(|branch| branch.outcome.len() + WIRE).sum::<usize>();
                }
                _ => {}
            }
        });
    }

    fn add_segment(&mut self, segment: &Arc<Segment>) {
        if !self.seen.insert(Arc::as_ptr(segment) as usize) {
            return;
        }
        let recorded = &segment.recorded;
        let wires =
            recorded.from.len() + recorded.outputs + recorded.kept.len() + recorded.updates.len() + recorded.sets.len();
        self.bytes += size_of::<Segment>() + wires * WIRE;
        if self.seen.insert(Arc::as_ptr(&recorded.graph) as usize) {
            self.bytes += recorded.graph.bytes();
        }
        for from in &recorded.from {
            if let InputSource::Data(data) = from
                && self.seen.insert(data.buffer().ptr() as usize)
            {
                self.bytes += data.buffer().bytes_len();
            }
        }
        if let Some(code) = segment.code.ready()
            && self.seen.insert(std::ptr::from_ref(code) as usize)
        {
            self.bytes += code.bytes();
        }
    }
}

impl<R> Entry<R> {
    fn held(&self) -> Held {
        let mut held = Held::default();
        held.add_tree(&self.root);
        held
    }
}

impl<F, A, R, E> Compiled<F, A, R, E> {
    /// What all programs hold.
    pub(super) fn held(&self) -> Held {
        let mut held = Held::default();
        for entry in self.entries.read().unwrap_or_else(PoisonError::into_inner).iter() {
            held.add_tree(&entry.root);
        }
        held
    }

    /// Drops programs that were not used for longest until the others hold no more than they may; says whether that was enough without
    /// this one.
    pub(super) fn make_room(&self, own: &Entry<R>) -> bool {
        let most = self.options().cache_bytes - self.options().cache_bytes / SPARE;
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let mut bytes: Vec<usize> = entries.iter().map(|entry| entry.held().bytes).collect();
        self.memory.note(bytes.iter().sum());
        while bytes.iter().sum::<usize>() > most {
            let others = entries.iter().enumerate().filter(|(_, entry)| !std::ptr::eq(&***entry, own));
            let oldest = others.min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed)).map(|(at, _)| at);
            let Some(oldest) = oldest else { return false };
            entries.remove(oldest);
            bytes.remove(oldest);
        }
        true
    }

    /// Drops all programs and returns their memory to the system. Calls in progress finish with theirs.
    pub fn reset(&self) {
        let entries = std::mem::take(&mut *self.entries.write().unwrap_or_else(PoisonError::into_inner));
        drop(entries);
        self.segment_compiler.clear();
        self.limits.clear();
        crate::tensor::eager::sweep();
        HostMemory::trim();
    }
}

/// Gives memory back to the system when the function it belongs to goes, after all else of the function.
#[derive(Default)]
pub(super) struct Return {
    /// Bytes that the function held at the most.
    most: std::sync::atomic::AtomicUsize,
}

impl Return {
    /// Notes what the function holds.
    pub(super) fn note(&self, bytes: usize) {
        self.most.fetch_max(bytes, Ordering::Relaxed);
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        crate::tensor::eager::sweep();
        if *self.most.get_mut() >= WORTH_RETURNING {
            HostMemory::trim();
        }
    }
}
