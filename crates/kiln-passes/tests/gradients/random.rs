//! Random graphs of the ops that have rules.

use crate::finite::{Counts, check, joint};
use kiln_ir::examples::Random;
use kiln_ir::generate::{self, Options};
use kiln_ir::{DType, Graph, HostTensor, OpKind, interpret, shrink};
use kiln_passes::{Derivative, derivative};

/// Random graphs of each of the two kinds (fixed and symbolic sizes); `KILN_TEST_GRAPHS` sets another number.
fn count() -> u64 {
    std::env::var("KILN_TEST_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

/// Ordinary numbers instead of the corners that random inputs usually have; indices and the like stay.
fn inputs(graph: &Graph, seed: u64) -> Vec<HostTensor> {
    let mut random = Random(seed ^ 0x6772_6164);
    let tame = |x: HostTensor| match x.dtype() {
        DType::F64 => {
            let values: Vec<f64> = (0..x.elements()).map(|_| random.unit() * 3.0 - 1.0).collect();
            HostTensor::from_f64(DType::F64, x.shape(), &values).unwrap()
        }
        _ => x,
    };
    generate::inputs(graph, seed).into_iter().map(tame).collect()
}

/// A graph on which finite differences say anything: everything on the way there, and on the way back, is of ordinary size.
fn tame(graph: &Graph, inputs: &[HostTensor]) -> bool {
    struct Watch(bool);
    impl interpret::Observer for Watch {
        fn value(&mut self, _: kiln_ir::NodeId, value: &mut HostTensor) {
            let ordinary = |v: f64| v.abs() < 1e3;
            self.0 &= value.dtype() != DType::F64 || value.to_f64().into_iter().all(ordinary);
        }
    }
    let mut watch = Watch(true);
    let runs = |graph: &Graph, inputs: &[HostTensor], watch: &mut Watch| {
        interpret::run_with(graph, inputs, watch).is_ok() && watch.0
    };
    if !runs(graph, inputs, &mut watch) {
        return false;
    }
    let Ok((joint, seeds)) = joint(graph, inputs, &[], 0) else { return true };
    let all: Vec<HostTensor> = inputs.iter().chain(&seeds).cloned().collect();
    runs(&joint, &all, &mut watch)
}

fn run(symbolic: bool) {
    let ops = OpKind::all().into_iter().filter(|&kind| derivative(kind) == Derivative::Rule).collect();
    let dtypes = vec![DType::F64];
    let options = Options { nodes: 8, max_elements: 40, symbolic, dtypes, ops, composites: 0.1, sharing: 0.0 };
    let mut total = Counts::default();
    for seed in 0..count() {
        let graph = generate::graph(seed, &options);
        let values = inputs(&graph, seed);
        if !tame(&graph, &values) {
            continue;
        }
        match check(&graph, &values, seed) {
            Ok(found) => {
                total.compared += found.compared;
                total.skipped += found.skipped;
            }
            Err(_) => {
                let mut fails = |g: &Graph| tame(g, &inputs(g, seed)) && check(g, &inputs(g, seed), seed).is_err();
                let small = shrink::shrink(graph, &mut fails);
                let fault = check(&small, &inputs(&small, seed), seed).err().unwrap_or_default();
                panic!("seed {seed}, symbolic: {symbolic}\n{small}\n{fault}");
            }
        }
    }
    let Counts { compared, skipped } = total;
    assert!(compared as u64 > 5 * count(), "only {compared} elements compared");
    assert!(skipped * 4 < compared, "{skipped} skipped, {compared} compared");
}

#[test]
fn random_graphs_of_fixed_sizes() {
    run(false);
}

#[test]
fn random_graphs_of_symbolic_sizes() {
    run(true);
}
