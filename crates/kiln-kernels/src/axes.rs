//! The axes of a finished kernel: neighbours merge where every position lets them, and variables get their final names
//! `i0`, `i1`, … in the kernel's order.

use crate::dag::{map_dims, visit_dims};
use crate::domain::{Domain, substitute_axes};
use crate::kernel::{Axis, Inst};
use kiln_ir::{Dim, Symbol};
use std::collections::HashSet;

/// Axes in named lists (grid and row; batch, m, n and k), and how old variables read over the new ones.
pub(crate) struct Renamed {
    /// The new axes, list by list.
    pub lists: Vec<Vec<Axis>>,
    with: Vec<Dim>,
    changed: bool,
}

/// Merges neighbours within each list of axis numbers of `domain`, given every index expression of the kernel.
pub(crate) fn merge(domain: &Domain, lists: &[Vec<usize>], dims: Vec<Dim>) -> Renamed {
    let mut dims = dims;
    let mut sizes = domain.shape.clone();
    let mut gone = vec![false; sizes.len()];
    for list in lists {
        for pair in (1..list.len()).rev() {
            let outer = list[pair - 1];
            let inner = list[pair];
            if composes(&dims, Symbol::axis(outer), Symbol::axis(inner), &sizes[inner]) {
                // The pair becomes the outer one's place, stepping as the inner one did.
                let whole = &sizes[outer] * &sizes[inner];
                sizes[outer] = whole;
                gone[inner] = true;
                let with = |s: Symbol| match () {
                    _ if s == Symbol::axis(outer) => Some(Dim::default()),
                    _ if s == Symbol::axis(inner) => Some(Dim::axis(outer)),
                    _ => None,
                };
                dims.iter_mut().for_each(|d| *d = d.substitute(&with));
            }
        }
    }
    finish(domain, lists, sizes, gone)
}

/// True if every expression steps over `outer` as it steps over `size` steps of `inner`.
fn composes(dims: &[Dim], outer: Symbol, inner: Symbol, size: &Dim) -> bool {
    dims.iter().all(|dim| {
        let (uses_outer, uses_inner) = (dim.contains(outer), dim.contains(inner));
        if !uses_outer && !uses_inner {
            return true;
        }
        match (dim.linear_in(outer), dim.linear_in(inner)) {
            (Some((a, _)), Some((b, _))) => a == b * size,
            _ => false,
        }
    })
}

fn finish(domain: &Domain, lists: &[Vec<usize>], sizes: Vec<Dim>, gone: Vec<bool>) -> Renamed {
    let mut with = vec![Dim::default(); sizes.len()];
    let mut out = Vec::with_capacity(lists.len());
    let (mut number, mut changed) = (0, gone.contains(&true));
    for list in lists {
        let mut axes: Vec<Axis> = Vec::new();
        for (at, &axis) in list.iter().enumerate() {
            if gone[axis] {
                continue;
            }
            // A merged run keeps its innermost variable's steps and drops the others.
            let last = list[at + 1..].iter().take_while(|&&next| gone[next]).last().copied().unwrap_or(axis);
            changed |= last != number;
            with[last] = Dim::axis(number);
            axes.push(Axis { var: Symbol::axis(number), size: sizes[axis].clone() });
            number += 1;
        }
        out.push(axes);
    }
    changed |= number != domain.shape.len();
    Renamed { lists: out, with, changed }
}

impl Renamed {
    /// Rewrites the index expressions of instructions.
    pub fn apply(&self, insts: &mut [Inst]) {
        if self.changed {
            for inst in insts {
                map_dims(&mut inst.kind, &|dim| substitute_axes(dim, &self.with));
            }
        }
    }
}

/// Every index expression of some instructions that moves along an axis.
pub(crate) fn moving_dims<'a>(insts: impl Iterator<Item = &'a Inst>) -> Vec<Dim> {
    let (mut dims, mut seen) = (Vec::new(), HashSet::new());
    for inst in insts {
        visit_dims(&inst.kind, &mut |dim| {
            if dim.as_const().is_none() && seen.insert(dim) {
                dims.push(dim.clone());
            }
        });
    }
    dims
}

/// The size symbols of a kernel: what is left when the axes are taken out, by name.
pub(crate) fn size_symbols<'a>(
    axes: impl Iterator<Item = &'a Axis>,
    insts: impl Iterator<Item = &'a Inst>,
) -> Vec<Symbol> {
    let (mut symbols, mut vars) = (Vec::new(), Vec::new());
    for axis in axes {
        vars.push(axis.var);
        axis.size.visit_symbols(&mut |s| symbols.push(s));
    }
    for inst in insts {
        visit_dims(&inst.kind, &mut |dim| dim.visit_symbols(&mut |s| symbols.push(s)));
    }
    symbols.sort_unstable();
    symbols.dedup();
    symbols.retain(|s| !vars.contains(s));
    symbols
}
