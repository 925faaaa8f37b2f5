//! Three opinions on every op: the reference interpreter, eager tensors, and a compiled graph have to agree.

use kiln::ir::examples::{Example, examples};
use kiln::ir::{DType, HostTensor, OpKind, Tolerance, interpret};
use kiln::{CompileOptions, CompiledGraph, Device, Tensor, run_eagerly};

/// What one op may lose: sums are reordered, short floats are rounded once more or less.
fn tolerance(example: &Example, dtype: DType) -> Tolerance {
    let factor = match example.kind {
        OpKind::Unary(_) | OpKind::Binary(_) => 1.0,
        _ => 4.0,
    };
    Tolerance::of(dtype).times(factor)
}

fn check(
    got: kiln::Result<Vec<Tensor>>,
    want: &[HostTensor],
    tolerance: &dyn Fn(DType) -> Tolerance,
) -> Result<(), String> {
    let got = got.map_err(|e| e.to_string())?;
    if got.len() != want.len() {
        return Err(format!("{} outputs, not {}", got.len(), want.len()));
    }
    for (got, want) in got.iter().zip(want) {
        let host = got.to_host().map_err(|e| e.to_string())?;
        host.compare(want, tolerance(want.dtype())).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[test]
fn every_example_of_every_op() {
    let mut count = 0;
    let mut failures = Vec::new();
    for example in examples() {
        for (seed, binding) in example.bindings.iter().enumerate() {
            let Some(literals) = example.inputs(binding, seed as u64 + 1) else { continue };
            let hosts: Vec<HostTensor> = literals.iter().map(|l| HostTensor::from_literal(l).unwrap()).collect();
            let inputs: Vec<Tensor> = hosts.iter().map(|h| Tensor::from_host(h, Device::Cpu).unwrap()).collect();
            let Ok(want) = interpret::run(&example.graph, &hosts) else { continue };
            let tolerance = |dtype| tolerance(&example, dtype);

            let compiled = CompiledGraph::new(&example.graph, &[], &CompileOptions::default());
            if let Err(why) = check(compiled.and_then(|c| c.run(&inputs)), &want, &tolerance) {
                failures.push(format!("{}: compiled: {why}", example.name));
            }
            let eager = binding.is_empty().then(|| check(run_eagerly(&example.graph, &inputs), &want, &tolerance));
            if let Some(Err(why)) = eager {
                failures.push(format!("{}: eager: {why}", example.name));
            }
            count += 1;
        }
    }
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 500, "{count} examples");
}
