//! Arithmetic on symbolic sizes: [`Dim`]s where a shape is meant, and numbers where they enter a computation.

use crate::context::{Context, Entry, Results, real};
use crate::reference::{Call, Reference};
use kiln_ir::interpret::{self, InterpretError};
use kiln_ir::{DType, Dim, Graph, HostTensor, Symbol, TensorType, build};
use std::collections::BTreeSet;

/// The sizes of the symbols `a` and `b` in each case: those that the reference has.
const NAMES: [&str; 2] = ["a", "b"];

pub const ENTRIES: &[Entry] = &[
    Entry { ops: &["py.mul"], text: "`Dim` product", build: |c| size(c, |d| &d[0] * &d[1]) },
    Entry { ops: &["py.add"], text: "`Dim` sum", build: |c| size(c, |d| &d[0] + &d[1]) },
    Entry { ops: &["py.neg"], text: "`Dim` negation", build: |c| size(c, |d| Dim::from(0) - &d[0]) },
    Entry { ops: &["torch.sym_max"], text: "`Dim::max`", build: |c| size(c, |d| Dim::max(&d[0], &d[1])) },
    Entry { ops: &["py.ceil"], text: "of a quotient, `Dim::ceil_div`", build: |c| size(c, |d| d[0].ceil_div(&d[1])) },
    Entry {
        ops: &["torch.sym_float"],
        text: "`size_value` as f64",
        build: |c| {
            let a = dims(c)[0].clone();
            Ok(vec![real(build::size_value(&mut c.b, &a, DType::F64)?)])
        },
    },
    Entry {
        ops: &["py.truediv"],
        text: "`div` of `size_value`s as f64; rounded, `Dim::floor_div` or `Dim::ceil_div`",
        build: |c| {
            let d = dims(c);
            let a = build::size_value(&mut c.b, &d[0], DType::F64)?;
            let b = build::size_value(&mut c.b, &d[1], DType::F64)?;
            Ok(vec![real(build::div(&mut c.b, &a, &b)?)])
        },
    },
];

fn dims(c: &Context) -> Vec<Dim> {
    NAMES
        .iter()
        .filter(|name| c.call.attribute(name).is_some())
        // The value is in the symbol's name, so that it is known when the graph is run.
        .map(|name| Dim::symbol(&format!("{name}{}", c.call.int(name))).unwrap())
        .collect()
}

/// A size as a number; a negative one by its distance from a larger size.
fn size(c: &mut Context, compute: fn(&[Dim]) -> Dim) -> Results {
    const ENOUGH: i64 = 100;
    let value = compute(&dims(c)) + ENOUGH;
    let value = build::size_value(&mut c.b, &value, DType::I64)?;
    Ok(vec![real(build::sub_scalar(&mut c.b, &value, ENOUGH as f64)?)])
}

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

/// The types of a call's tensors. Where sizes are `hidden`, each has a symbol, one for each number, so that sizes that are
/// equal here are equal to the graph. Known are 0 and 1, which emptiness and broadcasting depend on, sizes that a parameter
/// has, and the parts of complex numbers.
pub fn input_types(call: &Call, hidden: bool) -> Vec<Option<TensorType>> {
    let given = || call.tensors.iter().filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)));
    let parameters = given().filter(|(name, _)| PARAMETERS.contains(&&name[..]));
    let known: BTreeSet<usize> =
        [0, 1].into_iter().chain(parameters.flat_map(|(_, t)| t.data.shape().to_vec())).collect();
    let ty = |tensor: &Reference| {
        let mut ty = TensorType::fixed(tensor.data.dtype(), tensor.data.shape());
        let axes = if hidden { tensor.data.rank() - usize::from(tensor.complex) } else { 0 };
        for (size, n) in ty.shape.iter_mut().zip(tensor.data.shape()).take(axes).filter(|(_, n)| !known.contains(n)) {
            *size = Dim::symbol(&format!("s{n}")).unwrap();
        }
        ty
    };
    call.tensors.iter().map(|(_, tensor)| tensor.as_ref().map(ty)).collect()
}
