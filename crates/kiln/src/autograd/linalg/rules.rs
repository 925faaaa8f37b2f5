//! Factorisations with their gradients, as functions of the tape. Gradients are made of tensor operations, so that they have gradients too.

use super::dense::{self, Matrix};
use super::host::{Compute, Part, batched};
use crate::autograd::function::{Forward, Function};
use crate::tensor::autocast;
use crate::{Result, Tensor};
use kiln_ir::Source;
use std::sync::Arc;

/// The matrices of the last two axes, transposed.
pub(super) fn turned(x: &Tensor) -> Result<Tensor> {
    x.transpose(-2, -1)
}

/// A vector times columns: x·diag(v).
fn columns(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    x.mul(&v.unsqueeze(-2)?)
}

/// diag(v)·x.
fn rows(v: &Tensor, x: &Tensor) -> Result<Tensor> {
    v.unsqueeze(-1)?.mul(x)
}

/// 1 / (v[j] − v[i]), and 0 on the diagonal.
fn inverse_distances(v: &Tensor) -> Result<Tensor> {
    let distances = v.unsqueeze(-2)?.sub(&v.unsqueeze(-1)?)?;
    let n = v.shape().last().copied().unwrap_or(0);
    let diagonal = Tensor::eye(n, kiln_ir::DType::Bool, v.device())?;
    let safe = diagonal.where_(1.0, &distances)?;
    diagonal.logical_not()?.to_dtype(v.dtype())?.div(&safe)
}

fn present(cotangent: &Option<Tensor>, like: &Tensor) -> Result<Tensor> {
    cotangent.clone().map_or_else(|| like.zeros_like(), Ok)
}

macro_rules! rule {
    ($(#[$doc:meta])* $rule:ident $({ $($field:ident: $type:ty),* })?, $name:literal,
     |$this:ident, $m:ident| $compute:expr, saved: |$operands:ident, $results:ident| $saved:expr,
     |$self:ident, $s:ident, $g:ident| $backward:expr) => {
        $(#[$doc])*
        pub(super) struct $rule { $($(pub(super) $field: $type,)*)? pub(super) at: Source }

        impl Function for $rule {
            fn name(&self) -> &'static str {
                $name
            }

            fn forward(&self, $operands: &[Tensor]) -> Result<Forward> {
                #[allow(unused_variables)]
                let $this = ($($(self.$field),*)?);
                let compute: Compute = Arc::new(move |$m: &[Matrix]| $compute);
                let $results = batched($name, &$operands.iter().collect::<Vec<_>>(), compute, &self.at)?;
                let saved = $saved;
                Ok(Forward { results: $results, saved })
            }

            fn backward(&self, $s: &[Tensor], $g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
                #[allow(unused_variables)]
                let $self = self;
                // Products of a factorisation's gradient are as precise as the factorisation, also inside of a region.
                autocast::within(None, || $backward)
            }
        }
    };
}

rule! {
    /// L with L·Lᵀ = A.
    Cholesky, "cholesky",
    |_this, m| match dense::cholesky(&m[0]) {
        Ok(l) => Ok(vec![Part::Matrix(l)]),
        Err(_) => Err("it has to be positive definite"),
    },
    saved: |_operands, results| results.clone(),
    |rule, s, g| {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        let l = &s[0];
        // Φ keeps the lower triangle, half of the diagonal.
        let product = turned(l)?.matmul(&g.tril(0)?)?;
        let half = product.tril(0)?.add(&product.tril(-1)?)?.mul(0.5)?;
        let left = turned(l)?.solve_triangular(&half, true, false)?;
        let whole = turned(&turned(l)?.solve_triangular(&turned(&left)?, true, false)?)?;
        Ok(vec![Some(whole.add(&turned(&whole)?)?.mul(0.5)?)])
    }
}

rule! {
    /// X with A·X = B.
    Solve, "solve",
    |_this, m| {
        let lu = dense::lu(&m[0]);
        if lu.is_singular() { Err("it has to be invertible") } else { Ok(vec![Part::Matrix(lu.solve(&m[1]))]) }
    },
    saved: |operands, results| vec![operands[0].clone(), results[0].clone()],
    |rule, s, g| {
        let Some(g) = &g[0] else { return Ok(vec![None, None]) };
        let by_right = turned(&s[0])?.solve(g)?;
        let by_matrix = by_right.matmul(&turned(&s[1])?)?.neg()?;
        Ok(vec![Some(by_matrix), Some(by_right)])
    }
}

rule! {
    /// X with T·X = B for a triangle T of A.
    SolveTriangular { upper: bool, unit: bool }, "solve_triangular",
    |this, m| {
        let mut x = m[1].clone();
        dense::substitute(&m[0], &mut x, this.0, this.1);
        Ok(vec![Part::Matrix(x)])
    },
    saved: |operands, results| vec![operands[0].clone(), results[0].clone()],
    |rule, s, g| {
        let Some(g) = &g[0] else { return Ok(vec![None, None]) };
        let by_right = turned(&s[0])?.solve_triangular(g, !rule.upper, rule.unit)?;
        let whole = by_right.matmul(&turned(&s[1])?)?.neg()?;
        let inner = rule.unit as i64;
        let by_matrix = if rule.upper { whole.triu(inner)? } else { whole.tril(-inner)? };
        Ok(vec![Some(by_matrix), Some(by_right)])
    }
}

rule! {
    /// A⁻¹.
    Inverse, "inverse",
    |_this, m| {
        let lu = dense::lu(&m[0]);
        match lu.is_singular() {
            true => Err("it has to be invertible"),
            false => Ok(vec![Part::Matrix(lu.solve(&Matrix::identity(m[0].rows)))]),
        }
    },
    saved: |_operands, results| results.clone(),
    |rule, s, g| {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        let back = turned(&s[0])?;
        Ok(vec![Some(back.matmul(g)?.matmul(&back)?.neg()?)])
    }
}

rule! {
    /// The sign of the determinant, and the logarithm of its size.
    LogDeterminant, "slogdet",
    |_this, m| {
        let lu = dense::lu(&m[0]);
        let (mut sign, mut log) = (if lu.is_odd { -1.0 } else { 1.0 }, 0.0);
        for i in 0..m[0].rows {
            let pivot = lu.both.at(i, i);
            sign *= if pivot == 0.0 { 0.0 } else { pivot.signum() };
            log += pivot.abs().ln();
        }
        Ok(vec![Part::Number(sign), Part::Number(log)])
    },
    saved: |operands, _results| operands.to_vec(),
    |rule, s, g| {
        let Some(g) = &g[1] else { return Ok(vec![None]) };
        let inverse = turned(&s[0].inverse()?)?;
        Ok(vec![Some(inverse.mul(&g.unsqueeze(-1)?.unsqueeze(-1)?)?)])
    }
}

rule! {
    /// P, L and U with A = P·L·U.
    Lu, "lu",
    |_this, m| {
        let (rows, columns) = (m[0].rows, m[0].columns);
        let (lu, k) = (dense::lu(&m[0]), rows.min(columns));
        let mut p = Matrix::zeros(rows, rows);
        lu.order.iter().enumerate().for_each(|(to, &from)| p.data[from * rows + to] = 1.0);
        let (mut l, mut u) = (Matrix::zeros(rows, k), Matrix::zeros(k, columns));
        for i in 0..rows {
            for j in 0..columns {
                match i.cmp(&j) {
                    std::cmp::Ordering::Greater if j < k => l.data[i * k + j] = lu.both.at(i, j),
                    std::cmp::Ordering::Greater => {}
                    _ if i < k => u.data[i * columns + j] = lu.both.at(i, j),
                    _ => {}
                }
            }
        }
        (0..k).for_each(|i| l.data[i * k + i] = 1.0);
        Ok(vec![Part::Matrix(p), Part::Matrix(l), Part::Matrix(u)])
    },
    saved: |_operands, results| results.clone(),
    |rule, s, g| {
        let (p, l, u) = (&s[0], &s[1], &s[2]);
        let (by_l, by_u) = (present(&g[1], l)?, present(&g[2], u)?);
        let inner = turned(l)?.matmul(&by_l)?.tril(-1)?.add(&by_u.matmul(&turned(u)?)?.triu(0)?)?;
        // L⁻ᵀ·inner·U⁻ᵀ.
        let left = turned(l)?.solve_triangular(&inner, true, true)?;
        let whole = turned(&u.solve_triangular(&turned(&left)?, true, false)?)?;
        Ok(vec![Some(p.matmul(&whole)?)])
    }
}

rule! {
    /// Q and R with A = Q·R.
    Qr, "qr",
    |_this, m| {
        let (q, r) = dense::qr(&m[0]);
        Ok(vec![Part::Matrix(q), Part::Matrix(r)])
    },
    saved: |_operands, results| results.clone(),
    |rule, s, g| {
        let (q, r) = (&s[0], &s[1]);
        let (by_q, by_r) = (present(&g[0], q)?, present(&g[1], r)?);
        let mixed = r.matmul(&turned(&by_r)?)?.sub(&turned(&by_q)?.matmul(q)?)?;
        let lower = mixed.tril(-1)?;
        let even = mixed.tril(0)?.add(&turned(&lower)?)?;
        let whole = by_q.add(&q.matmul(&even)?)?;
        // whole·R⁻ᵀ.
        Ok(vec![Some(turned(&r.solve_triangular(&turned(&whole)?, true, false)?)?)])
    }
}

rule! {
    /// Eigenvalues and eigenvectors of symmetric matrices.
    Eigh, "eigh",
    |_this, m| match dense::eigh(&m[0]) {
        Some((values, vectors)) => Ok(vec![Part::Vector(values), Part::Matrix(vectors)]),
        None => Err("its elements have to be finite"),
    },
    saved: |_operands, results| results.clone(),
    |rule, s, g| {
        let (values, vectors) = (&s[0], &s[1]);
        let back = turned(vectors)?;
        let mut inner = match &g[1] {
            Some(g) => Some(back.matmul(g)?.mul(&inverse_distances(values)?)?),
            None => None,
        };
        if let Some(g) = &g[0] {
            let diagonal = g.diag_embed(0)?;
            inner = Some(match inner {
                Some(inner) => inner.add(&diagonal)?,
                None => diagonal,
            });
        }
        let Some(inner) = inner else { return Ok(vec![None]) };
        Ok(vec![Some(vectors.matmul(&inner)?.matmul(&back)?)])
    }
}

rule! {
    /// U, the singular values and Vᵀ.
    Svd, "svd",
    |_this, m| match dense::svd(&m[0]) {
        Some((u, values, vt)) => Ok(vec![Part::Matrix(u), Part::Vector(values), Part::Matrix(vt)]),
        None => Err("its elements have to be finite"),
    },
    saved: |_operands, results| results.clone(),
    |rule, s, g| {
        let (u, values, vt) = (&s[0], &s[1], &s[2]);
        let mut whole = match &g[1] {
            Some(g) => Some(columns(u, g)?.matmul(vt)?),
            None => None,
        };
        let mut add = |term: Tensor| -> Result<()> {
            whole = Some(match &whole {
                Some(sum) => sum.add(&term)?,
                None => term,
            });
            Ok(())
        };
        let between = inverse_distances(&values.square()?)?;
        let inverse = values.recip()?;
        if let Some(g) = &g[0] {
            let crossed = turned(u)?.matmul(g)?;
            let skew = crossed.sub(&turned(&crossed)?)?.mul(&between)?;
            add(u.matmul(&columns(&skew, values)?)?.matmul(vt)?)?;
            // What of the change is outside of the span of U.
            let outside = g.sub(&u.matmul(&crossed)?)?;
            add(columns(&outside, &inverse)?.matmul(vt)?)?;
        }
        if let Some(g) = &g[2] {
            let crossed = vt.matmul(&turned(g)?)?;
            let skew = crossed.sub(&turned(&crossed)?)?.mul(&between)?;
            add(u.matmul(&rows(values, &skew)?)?.matmul(vt)?)?;
            let outside = g.sub(&turned(&crossed)?.matmul(vt)?)?;
            add(u.matmul(&rows(&inverse, &outside)?)?)?;
        }
        Ok(vec![whole])
    }
}

/// I − x.
fn rest_of(x: &Tensor) -> Result<Tensor> {
    let n = x.shape().last().copied().unwrap_or(0);
    Tensor::eye(n, x.dtype(), x.device())?.sub(x)
}

rule! {
    /// V·diag⁻¹·Uᵀ of the singular values above a share of the largest. Its gradient is one of the inverse itself, not of the factors, and so a
    /// number also where singular values are equal or zero.
    PseudoInverse { tolerance: f64 }, "pinv",
    |this, m| match dense::svd(&m[0]) {
        Some((u, values, vt)) => Ok(vec![Part::Matrix(dense::pseudo_inverse(&u, &values, &vt, this))]),
        None => Err("its elements have to be finite"),
    },
    saved: |operands, results| vec![operands[0].clone(), results[0].clone()],
    |rule, s, g| {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        let (a, p) = (&s[0], &s[1]);
        let (pt, gt) = (turned(p)?, turned(g)?);
        let inner = pt.matmul(g)?.matmul(&pt)?;
        let left = rest_of(&a.matmul(p)?)?.matmul(&gt)?.matmul(p)?.matmul(&pt)?;
        let right = pt.matmul(p)?.matmul(&gt)?.matmul(&rest_of(&p.matmul(a)?)?)?;
        Ok(vec![Some(left.add(&right)?.sub(&inner)?)])
    }
}
