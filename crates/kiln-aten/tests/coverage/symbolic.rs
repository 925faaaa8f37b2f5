//! Calls whose sizes are symbols.

use crate::reference::{Call, Reference};
use kiln_ir::interpret::{self, InterpretError};
use kiln_ir::{Dim, Graph, HostTensor, Symbol};
use std::collections::BTreeSet;

/// Runs a graph whose symbols' names have their values.
pub fn run(graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, InterpretError> {
    let mut sizes: Vec<(Symbol, i64)> = Vec::new();
    for node in graph.nodes() {
        for dim in &node.ty.shape {
            dim.visit_symbols(&mut |symbol| sizes.push((symbol, symbol.as_str()[1..].parse().unwrap())));
        }
    }
    sizes.sort_by_key(|(symbol, _)| symbol.as_str().to_owned());
    sizes.dedup();
    interpret::run_at(graph, inputs, &sizes)
}

/// Arguments that are parameters of a model, whose sizes are always known.
const PARAMETERS: [&str; 4] = ["weight", "bias", "running_mean", "running_var"];

/// The sizes of a call's tensors as PyTorch counts them. Where they are `hidden`, each has a symbol, one for each number, so that
/// sizes that are equal here are equal to the graph. Known are 0 and 1, which emptiness and broadcasting depend on, and sizes that a
/// parameter has.
pub fn input_shapes(call: &Call, hidden: bool) -> Vec<Option<Vec<Dim>>> {
    let given = || call.tensors.iter().filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)));
    let parameters = given().filter(|(name, _)| PARAMETERS.contains(&&name[..]));
    let known: BTreeSet<usize> =
        [0, 1].into_iter().chain(parameters.flat_map(|(_, t)| t.data.shape().to_vec())).collect();
    let shape = |tensor: &Reference| {
        let axes = tensor.data.rank() - usize::from(tensor.complex);
        let size = |&n: &usize| match hidden && !known.contains(&n) {
            true => Dim::symbol(&format!("s{n}")).unwrap(),
            false => Dim::from(n),
        };
        tensor.data.shape()[..axes].iter().map(size).collect()
    };
    call.tensors.iter().map(|(_, tensor)| tensor.as_ref().map(shape)).collect()
}
