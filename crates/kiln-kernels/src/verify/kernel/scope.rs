//! What instructions may refer to: values, and symbols of sizes and axes.

use super::Rule;
use crate::kernel::{Axis, Kernel, KernelBody, MatmulBody, Reduction, ReductionKind, ValueId};
use kiln_ir::{DType, Dim, Symbol};

/// A defined value.
#[derive(Clone, Copy)]
struct Value {
    dtype: DType,
    /// The row stage that it ends with.
    row: Option<usize>,
}

/// Symbols and values in scope.
pub(super) struct Scope<'a> {
    sizes: &'a [Symbol],
    vars: Vec<Symbol>,
    values: Vec<Option<Value>>,
    last: Option<ValueId>,
    /// All numbers of values are below this.
    limit: usize,
    stage: usize,
    is_row: bool,
}

impl<'a> Scope<'a> {
    /// No values; checks the kernel's sizes and axes.
    pub fn new(kernel: &'a Kernel, axes: &[&[Axis]]) -> Result<Scope<'a>, Rule> {
        let (sizes, vars) = (&kernel.sizes, Vec::new());
        let reductions = |body: &KernelBody| match body {
            KernelBody::Loop(body) | KernelBody::Matmul(MatmulBody { before: Some(body), .. }) => {
                body.stages.iter().map(|stage| stage.reductions.len()).sum()
            }
            _ => 0,
        };
        let reductions: usize = kernel.bodies().iter().map(reductions).sum();
        let limit = kernel.insts().count() + reductions;
        let scope = Scope { sizes, vars, values: Vec::new(), last: None, limit, stage: 0, is_row: false };
        let mut known: Vec<Symbol> = Vec::new();
        for &symbol in sizes.iter().chain(axes.iter().copied().flatten().map(|axis| &axis.var)) {
            if known.contains(&symbol) {
                return Err(Rule::DuplicateSymbol { symbol });
            }
            known.push(symbol);
        }
        for axis in axes.iter().copied().flatten() {
            scope.dim(&axis.size)?;
            if axis.size.is_one() {
                return Err(Rule::UnitAxis { var: axis.var });
            }
        }
        Ok(scope)
    }

    /// Enters a stage over some axes.
    pub fn open(&mut self, stage: usize, is_row: bool, axes: &[&[Axis]]) {
        (self.stage, self.is_row) = (stage, is_row);
        self.vars = axes.iter().copied().flatten().map(|axis| axis.var).collect();
    }

    /// Enters a part that numbers its values from zero.
    pub fn open_apart(&mut self, axes: &[&[Axis]]) {
        self.open(0, false, axes);
        (self.values, self.last) = (Vec::new(), None);
    }

    /// Leaves a stage: results of reductions are visible from here on.
    pub fn close(&mut self, reductions: &[Reduction]) -> Result<(), Rule> {
        self.is_row = false;
        reductions.iter().try_for_each(|reduction| {
            let dtype = if matches!(reduction.kind, ReductionKind::Arg(_)) { DType::I64 } else { reduction.dtype };
            self.define(reduction.result, dtype)
        })
    }

    /// Defines a value, which is numbered above all before it.
    pub fn define(&mut self, id: ValueId, dtype: DType) -> Result<(), Rule> {
        if dtype.compute_type() != dtype {
            return Err(Rule::NotCompute { dtype });
        }
        let at = id.0 as usize;
        if self.values.get(at).is_some_and(Option::is_some) {
            return Err(Rule::Redefined { value: id });
        }
        if let Some(last) = self.last.filter(|last| *last > id) {
            return Err(Rule::Numbering { value: id, last });
        }
        // Tables are made by number: no number is beyond the definitions and stores that there are.
        if at >= self.limit {
            return Err(Rule::OutOfRange { what: "the number of a value", value: Dim::from(i64::from(id.0)) });
        }
        self.values.resize(at + 1, None);
        self.values[at] = Some(Value { dtype, row: self.is_row.then_some(self.stage) });
        self.last = Some(id);
        Ok(())
    }

    /// The type of a value that may be used here.
    pub fn value(&self, id: ValueId) -> Result<DType, Rule> {
        let value = self.values.get(id.0 as usize).copied().flatten().ok_or(Rule::Undefined { value: id })?;
        match value.row {
            Some(stage) if !(self.is_row && stage == self.stage) => Err(Rule::NotVisible { value: id, stage }),
            _ => Ok(value.dtype),
        }
    }

    /// Checks that an expression is one over sizes and open axes.
    pub fn dim(&self, dim: &Dim) -> Result<(), Rule> {
        if dim.as_const().is_some() {
            return Ok(());
        }
        if dim.is_undefined() {
            return Err(Rule::UndefinedDim);
        }
        let mut unknown = None;
        dim.visit_symbols(&mut |symbol| {
            if !self.vars.contains(&symbol) && !self.sizes.contains(&symbol) {
                unknown = Some(symbol);
            }
        });
        unknown.map_or(Ok(()), |symbol| Err(Rule::UnknownSymbol { symbol, dim: dim.clone() }))
    }
}
