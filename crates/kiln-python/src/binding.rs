//! Where the values of size symbols are found among the arguments of a call.

use kiln_aten::{AtenGraph, Imported};
use kiln_ir::{Dim, Symbol};
use kiln_runtime::Program;

/// A parameter of a program.
pub(crate) enum Parameter {
    /// A tensor: an input of the ATen graph, by number.
    Tensor(usize),
    /// A size.
    Size(Dim),
}

/// A number among the arguments of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// The argument itself.
    Argument(usize),
    /// The size of an axis of a tensor.
    Axis(usize, usize),
    /// A stride of a tensor.
    Stride(usize, usize),
}

/// A symbol whose value is (number − `rest`) / `factor`.
struct Bound {
    symbol: Symbol,
    place: Place,
    factor: i64,
    rest: i64,
}

/// The symbols of a program and of its outputs.
pub(crate) struct Binding {
    bounds: Vec<Bound>,
    /// For each symbol of the program, its number in `bounds`.
    order: Vec<usize>,
}

impl Binding {
    pub(crate) fn new(
        aten: &AtenGraph,
        parameters: &[Parameter],
        imported: &Imported,
        program: &Program,
    ) -> Result<Binding, String> {
        let mut bounds: Vec<Bound> = Vec::new();
        let mut bind = |dim: &Dim, place: Place| {
            let symbols = dim.symbols();
            let [symbol] = symbols.as_slice() else { return };
            let Some((factor, rest)) = dim.linear_in(*symbol) else { return };
            let (Some(factor), Some(rest)) = (factor.as_const(), rest.as_const()) else { return };
            if factor != 0 && !bounds.iter().any(|known| known.symbol == *symbol) {
                bounds.push(Bound { symbol: *symbol, place, factor, rest });
            }
        };
        for (at, parameter) in parameters.iter().enumerate() {
            if let Parameter::Size(dim) = parameter {
                bind(dim, Place::Argument(at));
            }
        }
        for (at, parameter) in parameters.iter().enumerate() {
            if let Parameter::Tensor(input) = parameter {
                let meta = aten.meta(aten.inputs[*input]);
                meta.shape.iter().enumerate().for_each(|(axis, dim)| bind(dim, Place::Axis(at, axis)));
            }
        }
        for (at, parameter) in parameters.iter().enumerate() {
            if let Parameter::Tensor(input) = parameter {
                let meta = aten.meta(aten.inputs[*input]);
                meta.strides.iter().enumerate().for_each(|(axis, dim)| bind(dim, Place::Stride(at, axis)));
            }
        }
        let mut needed: Vec<Symbol> = program.symbols().collect();
        let count = needed.len();
        for (id, from) in aten.outputs.iter().zip(&imported.outputs) {
            if !matches!(from, kiln_aten::OutputFrom::Input(_)) {
                let meta = aten.meta(*id);
                meta.shape.iter().chain(&meta.strides).for_each(|dim| needed.extend(dim.symbols()));
            }
        }
        // Arguments that tell nothing that is needed are not read: PyTorch's numbers for ragged sizes are no integers.
        bounds.retain(|bound| needed.contains(&bound.symbol));
        let mut order = Vec::with_capacity(needed.len());
        for symbol in needed {
            let found = bounds.iter().position(|bound| bound.symbol == symbol);
            order.push(found.ok_or_else(|| format!("no argument tells the size {symbol}"))?);
        }
        order.truncate(count);
        Ok(Binding { bounds, order })
    }

    /// The values of all symbols; `number` reads a place.
    pub(crate) fn values<E>(&self, number: impl Fn(Place) -> Result<i64, E>) -> Result<Vec<i64>, E> {
        let value = |bound: &Bound| Ok((number(bound.place)? - bound.rest) / bound.factor);
        self.bounds.iter().map(value).collect()
    }

    /// The values of the program's symbols, of all values.
    pub(crate) fn of_program<'a>(&'a self, values: &'a [i64]) -> impl Iterator<Item = i64> + 'a {
        self.order.iter().map(|&at| values[at])
    }

    /// A size.
    pub(crate) fn eval(&self, dim: &Dim, values: &[i64]) -> Option<i64> {
        dim.eval(&|symbol| self.bounds.iter().position(|bound| bound.symbol == symbol).map(|at| values[at]))
    }
}
