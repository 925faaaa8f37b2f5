//! The iteration space of a group of nodes before it becomes a kernel, and the nodes whose values are wanted at its points.

use crate::index::{Division, product, reshape_index};
use kiln_ir::{Dim, NodeId, Ranges, Symbol};

/// Loop axes in the order of some tensor's axes, without axes of size one. Axis `d` has the variable `Symbol::axis(d)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Sizes.
    pub shape: Vec<Dim>,
    /// True for the axes that are combined over or that uniform values do not depend on; the others are the grid.
    pub row: Vec<bool>,
}

/// A node whose value is computed at each point of a domain (or of its grid).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    /// The node.
    pub node: NodeId,
    /// Its index over the domain's variables; for a reduction the index of its operand.
    pub index: Vec<Dim>,
}

impl Domain {
    /// The domain of all elements of a shape with `row` axes, and the index of those elements.
    pub fn of_shape(shape: &[Dim], row: &[usize]) -> (Domain, Vec<Dim>) {
        let mut domain = Domain { shape: Vec::new(), row: Vec::new() };
        let mut index = Vec::with_capacity(shape.len());
        for (axis, size) in shape.iter().enumerate() {
            if size.is_one() {
                index.push(Dim::default());
            } else {
                index.push(Dim::axis(domain.shape.len()));
                domain.shape.push(size.clone());
                domain.row.push(row.contains(&axis));
            }
        }
        (domain, index)
    }

    /// The variable of each axis.
    pub fn index(&self) -> Vec<Dim> {
        (0..self.shape.len()).map(Dim::axis).collect()
    }

    /// Number of points.
    pub fn total(&self) -> Dim {
        product(&self.shape)
    }

    /// True if some axis belongs to the row.
    pub fn has_row(&self) -> bool {
        self.row.contains(&true)
    }

    /// The axes of the grid (or of the row) as numbers.
    pub fn axes(&self, row: bool) -> impl Iterator<Item = usize> {
        (0..self.shape.len()).filter(move |&d| self.row[d] == row)
    }

    /// Sizes of the grid (or of the row).
    pub fn sizes(&self, row: bool) -> Vec<Dim> {
        self.axes(row).map(|d| self.shape[d].clone()).collect()
    }

    /// What is known at each point: variables are below their sizes, and sizes are not zero, or there were no point.
    pub fn ranges(&self, known: &Ranges) -> Ranges {
        let mut ranges = known.clone();
        for size in &self.shape {
            size.visit_symbols(&mut |symbol| {
                let (low, high) = known.get(symbol).unwrap_or((0, None));
                let vanishes = size.substitute(&|s| (s == symbol).then(Dim::default)).is_zero();
                ranges.set(symbol, if vanishes { low.max(1) } else { low }, high);
            });
        }
        for (d, size) in self.shape.iter().enumerate() {
            ranges.set_below(Symbol::axis(d), size.clone());
        }
        ranges
    }

    /// Expressions for the axes of `other` over this domain's variables, if both have the same points in the same
    /// row-major order, or if `other` has the points of this domain's grid.
    pub fn axes_of(&self, other: &Domain, known: &Ranges, open: &mut Vec<Division>) -> Option<Vec<Dim>> {
        if self.shape == other.shape {
            return Some(self.index());
        }
        let ranges = self.ranges(known);
        let total = other.total();
        if self.total() == total {
            return Some(reshape_index(&self.shape, &self.index(), &other.shape, &ranges, open));
        }
        let grid = self.sizes(false);
        if self.has_row() && product(&grid) == total {
            let index: Vec<Dim> = self.axes(false).map(Dim::axis).collect();
            return Some(reshape_index(&grid, &index, &other.shape, &ranges, open));
        }
        None
    }

    /// Splits axes so that the divisions in `open` become exact; `None` if there is nothing to split. Gives the new domain
    /// and the old variables over the new ones.
    pub fn split(&self, open: &[Division], known: &Ranges) -> Option<(Domain, Vec<Dim>)> {
        if open.is_empty() {
            return None;
        }
        let ranges = self.ranges(known);
        let mut cuts: Vec<Vec<Dim>> = vec![Vec::new(); self.shape.len()];
        for Division { value, divisor } in open {
            for (d, cuts) in cuts.iter_mut().enumerate() {
                let Some((coef, _)) = value.linear_in(Symbol::axis(d)) else { continue };
                if coef.is_zero() || coef.div_exact(divisor).is_some() {
                    continue;
                }
                let Some(mut cut) = divisor.div_exact(&coef) else { continue };
                if !cut.is_nonneg(&ranges) {
                    cut = -cut;
                    if !cut.is_nonneg(&ranges) {
                        continue;
                    }
                }
                let size = &self.shape[d];
                if cut.is_one() || cut == *size || size.div_exact(&cut).is_none() || cuts.contains(&cut) {
                    continue;
                }
                let at = cuts.iter().position(|c| cut.div_exact(c).is_some()).unwrap_or(cuts.len());
                if cuts[..at].iter().all(|larger| larger.div_exact(&cut).is_some())
                    && cuts[at..].iter().all(|smaller| cut.div_exact(smaller).is_some())
                {
                    cuts.insert(at, cut);
                }
            }
        }
        if cuts.iter().all(Vec::is_empty) {
            return None;
        }
        let mut domain = Domain { shape: Vec::new(), row: Vec::new() };
        let mut old = Vec::with_capacity(self.shape.len());
        for (d, cuts) in cuts.iter().enumerate() {
            let mut expr = Dim::default();
            let mut whole = &self.shape[d];
            for cut in cuts {
                expr += Dim::axis(domain.shape.len()) * cut;
                domain.shape.push(whole.div_exact(cut)?);
                domain.row.push(self.row[d]);
                whole = cut;
            }
            expr += Dim::axis(domain.shape.len());
            domain.shape.push(whole.clone());
            domain.row.push(self.row[d]);
            old.push(expr);
        }
        Some((domain, old))
    }
}

/// The axis number of a loop variable.
pub(crate) fn axis_number(symbol: Symbol) -> Option<usize> {
    symbol.as_str().strip_prefix('i').and_then(|digits| digits.parse().ok())
}

/// Replaces loop variables by expressions.
pub(crate) fn substitute_axes(dim: &Dim, with: &[Dim]) -> Dim {
    if dim.as_const().is_some() {
        return dim.clone();
    }
    dim.substitute(&|symbol| axis_number(symbol).and_then(|d| with.get(d).cloned()))
}

impl Root {
    /// The same root over the variables of another domain.
    pub fn rebased(&self, axes: &[Dim], ranges: &Ranges) -> Root {
        let index = self.index.iter().map(|at| substitute_axes(at, axes).simplify(ranges)).collect();
        Root { node: self.node, index }
    }
}
