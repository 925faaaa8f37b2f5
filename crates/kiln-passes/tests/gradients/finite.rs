//! Gradients by central differences, and their comparison with those of a differentiated graph.

use kiln_ir::examples::Random;
use kiln_ir::{DType, Graph, HostTensor, Symbol, interpret};
use kiln_passes::{DifferentiateOptions, Seeds, differentiate};

/// How many elements were compared, and how many were left out because the function is not smooth around them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub compared: usize,
    pub skipped: usize,
}

/// The inputs or outputs among these types that are f64.
fn floats(types: impl Iterator<Item = DType>) -> Vec<usize> {
    types.enumerate().filter(|(_, dtype)| *dtype == DType::F64).map(|(i, _)| i).collect()
}

/// The f64 outputs and inputs of a graph.
fn sides(graph: &Graph) -> (Vec<usize>, Vec<usize>) {
    let of = floats(graph.outputs().iter().map(|o| graph.ty(o.node).dtype));
    let by = floats(graph.inputs().iter().map(|&i| graph.ty(i).dtype));
    (of, by)
}

/// A graph with the gradients of every f64 output by every f64 input, and random seeds for it.
pub fn joint(
    graph: &Graph,
    inputs: &[HostTensor],
    sizes: &[(Symbol, i64)],
    seed: u64,
) -> Result<(Graph, Vec<HostTensor>), String> {
    let (of, by) = sides(graph);
    let options = DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() };
    let joint = differentiate(graph, &of, &by, &options).map_err(|e| e.to_string())?;
    joint.verify().map_err(|e| e.to_string())?;
    let mut random = Random(seed);
    let outputs = interpret::run_at(graph, inputs, sizes).map_err(|e| format!("forward: {e}"))?;
    let mut weights = |&o: &usize| {
        let weights: Vec<f64> = (0..outputs[o].elements()).map(|_| random.unit() * 2.0 - 1.0).collect();
        HostTensor::from_f64(DType::F64, outputs[o].shape(), &weights).unwrap()
    };
    let seeds = of.iter().map(&mut weights).collect();
    Ok((joint, seeds))
}

/// Differentiates every f64 output, weighted at random, by every f64 input and compares with finite differences.
pub fn check(graph: &Graph, inputs: &[HostTensor], seed: u64) -> Result<Counts, String> {
    check_at(graph, inputs, &[], seed)
}

/// [`check`] with sizes for symbols that no input gives.
pub fn check_at(graph: &Graph, inputs: &[HostTensor], sizes: &[(Symbol, i64)], seed: u64) -> Result<Counts, String> {
    let (of, by) = sides(graph);
    let (joint, seeds) = joint(graph, inputs, sizes, seed)?;
    let outputs = graph.outputs().len();
    let all: Vec<HostTensor> = inputs.iter().chain(&seeds).cloned().collect();
    let results = interpret::run_at(&joint, &all, sizes).map_err(|e| format!("backward: {e}\n{joint}"))?;
    let loss = |inputs: &[HostTensor]| -> Result<f64, String> {
        let outputs = interpret::run_at(graph, inputs, sizes).map_err(|e| e.to_string())?;
        let weighted = |(&o, seed): (&usize, &HostTensor)| -> f64 {
            outputs[o].to_f64().iter().zip(seed.to_f64()).map(|(y, w)| y * w).sum()
        };
        Ok(of.iter().zip(&seeds).map(weighted).sum())
    };
    let mut counts = Counts::default();
    for (n, &input) in by.iter().enumerate() {
        let gradient = results[outputs + n].to_f64();
        if results[outputs + n].shape() != inputs[input].shape() {
            return Err(format!("the gradient of input {input} has another shape"));
        }
        let values = inputs[input].to_f64();
        for (i, &got) in gradient.iter().enumerate() {
            let slope = |h: f64| -> Result<f64, String> {
                let mut ends = [0.0; 2];
                for (end, step) in ends.iter_mut().zip([h, -h]) {
                    let mut moved = values.clone();
                    moved[i] += step;
                    let mut changed = inputs.to_vec();
                    changed[input] = HostTensor::from_f64(DType::F64, inputs[input].shape(), &moved).unwrap();
                    *end = loss(&changed)?;
                }
                Ok((ends[0] - ends[1]) / (2.0 * h))
            };
            let h = 1e-4 * values[i].abs().max(1.0);
            let (wide, narrow, narrowest) = (slope(2.0 * h)?, slope(h)?, slope(h / 16.0)?);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * (1.0 + b.abs());
            let smooth = near(wide, narrow) && near(narrowest, narrow);
            if !smooth || !narrow.is_finite() {
                counts.skipped += 1;
                continue;
            }
            // Both steps together cancel the error of second order.
            let want = (4.0 * narrow - wide) / 3.0;
            if (got - want).abs() > 2e-6 * (1.0 + want.abs()) || got.is_nan() {
                return Err(format!("input {input}, element {i}: {got} instead of {want} (or {narrow})\n{joint}"));
            }
            counts.compared += 1;
        }
    }
    Ok(counts)
}
