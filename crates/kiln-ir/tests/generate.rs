//! Generated graphs are valid, run without errors, print and parse back, and leave no op or dtype out.

use kiln_ir::generate::{self, Options};
use kiln_ir::{DType, Graph, NodeId, Op, OpKind, interpret};
use std::collections::HashMap;

const COUNT: u64 = 1500;

#[test]
fn generated_graphs_verify_print_and_run() {
    for seed in 0..COUNT {
        let options = Options { symbolic: seed % 3 == 0, ..Options::default() };
        let graph = generate::graph(seed, &options);
        graph.verify().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        let text = graph.to_string();
        let parsed = Graph::parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert_eq!(parsed.to_string(), text, "seed {seed}");
        let inputs = generate::inputs(&graph, seed);
        let outputs = interpret::run(&graph, &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        assert_eq!(outputs.len(), graph.outputs().len());
    }
}

#[test]
fn equal_seeds_give_equal_graphs() {
    for seed in 0..50 {
        let options = Options::default();
        assert_eq!(generate::graph(seed, &options), generate::graph(seed, &options));
    }
}

#[test]
fn every_op_and_dtype_occurs() {
    let mut ops: HashMap<OpKind, usize> = HashMap::new();
    let mut dtypes: HashMap<DType, usize> = HashMap::new();
    let mut ranks = [0usize; 7];
    let (mut empty, mut updates) = (0, 0);
    for seed in 0..2 * COUNT {
        let graph = generate::graph(seed, &Options::default());
        updates += graph.outputs().iter().filter(|o| o.updates.is_some()).count();
        for node in graph.nodes() {
            *ops.entry(node.op.kind()).or_default() += 1;
            *dtypes.entry(node.ty.dtype).or_default() += 1;
            ranks[node.ty.rank()] += 1;
            empty += usize::from(node.ty.elements() == 0);
        }
    }
    for kind in OpKind::all() {
        assert!(ops.get(&kind).copied().unwrap_or(0) >= 10, "{} occurs too rarely: {ops:?}", kind.name());
    }
    for dtype in DType::ALL {
        assert!(dtypes.get(&dtype).copied().unwrap_or(0) >= 50, "{dtype} occurs too rarely: {dtypes:?}");
    }
    assert!(ranks[..6].iter().all(|&n| n >= 100), "{ranks:?}");
    assert!(empty >= 50 && updates >= 50, "{empty} empty tensors, {updates} updates");
}

/// What a scheduler gets wrong is seldom one op: memory that several kernels share has to be common.
#[test]
fn memory_is_shared_often() {
    let (mut bases, mut old_reads, mut again, mut between) = (0, 0, 0, 0);
    for seed in 0..2 * COUNT {
        let graph = generate::graph(seed, &Options::default());
        let users = graph.users();
        let scatters = graph.iter().filter(|(_, node)| matches!(node.op, Op::Scatter { .. }));
        // Scatters whose base has other readers.
        bases += scatters.filter(|(_, node)| users[node.operands[0].index()].len() > 1).count();
        let updates = graph.outputs().iter().filter_map(|output| output.updates);
        // Updated inputs that two others read.
        old_reads += updates.filter(|&input| users[graph.inputs()[input].index()].len() > 1).count();
        let outputs: Vec<_> = graph.outputs().iter().map(|output| output.node).collect();
        again += outputs.iter().enumerate().filter(|(at, node)| outputs[..*at].contains(node)).count();
        // Scans that are read by something that reads another node too.
        let scans = graph.iter().filter(|(_, node)| matches!(node.op, Op::Scan { .. }));
        let joins = |id: NodeId| users[id.index()].iter().any(|user| graph.node(*user).operands.len() > 1);
        between += scans.filter(|(id, _)| joins(*id)).count();
    }
    let counts = [bases, old_reads, again, between];
    assert!(
        counts.iter().all(|&count| count >= 150),
        "shared bases, old reads, returned twice, read scans: {counts:?}"
    );
}
