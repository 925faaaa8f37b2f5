//! Linear algebra of dense matrices: the last two axes are matrices, those before them a batch.
//!
//! The factorisations are plain Rust in f64 on the host, one matrix after another; the results have the operand's dtype and device. In a
//! compiled function they are a graph break, which `explain` and the events show.

mod dense;
mod host;
mod rules;

use super::function::{Function, apply_at};
use crate::tensor::tracer::HostWork;
use crate::tensor::{autocast, shape};
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use rules::turned;
use std::sync::Arc;

/// A norm of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixNorm {
    /// The root of the sum of squares.
    Frobenius,
    /// The sum of the singular values.
    Nuclear,
    /// The largest singular value.
    Spectral,
    /// The largest sum of sizes of a column.
    One,
    /// The largest sum of sizes of a row.
    Infinity,
}

fn applied(rule: impl Function, operands: &[&Tensor], at: &Source) -> Result<Vec<Tensor>> {
    let what = HostWork::Factorisation(rule.name());
    apply_at(Arc::new(rule), what, operands, at)
}

impl Tensor {
    fn expect_square(&self, op: &'static str, at: &Source) -> Result<()> {
        host::check(op, self, at)?;
        let rank = self.rank();
        match self.extent(rank - 2).equals(self.extent(rank - 1), at) {
            true => Ok(()),
            false => {
                let expected = "square matrices";
                Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at: at.clone() })
            }
        }
    }

    /// The lower triangular L with L·Lᵀ equal to this symmetric, positive definite matrix, of which the lower half is read.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let a = Tensor::new([[4f64, 2.], [2., 5.]], Device::Cpu)?;
    /// assert_eq!(a.cholesky()?.to_vec::<f64>()?, [2., 0., 1., 2.]);
    /// assert!(a.neg()?.cholesky().unwrap_err().to_string().contains("positive definite"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn cholesky(&self) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_square("cholesky", &at)?;
        Ok(applied(rules::Cholesky { at: at.clone() }, &[self], &at)?.swap_remove(0))
    }

    /// The batches of both, made equal.
    fn beside(&self, op: &'static str, other: &Tensor, at: &Source) -> Result<(Tensor, Tensor)> {
        host::check(op, other, at)?;
        self.same_dtype(op, other, at)?;
        let (mine, theirs) = (self.sizes(), other.sizes());
        let (batch, matrix) = mine.split_at(mine.len() - 2);
        let (other_batch, right) = theirs.split_at(theirs.len() - 2);
        if !matrix[0].equals(right[0], at) {
            let (lhs, rhs) = (self.hint().to_vec(), other.hint().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: None, at: at.clone() });
        }
        let common = shape::broadcast(op, batch, other_batch, at)?;
        let whole = |tail: &[crate::Dim]| -> Vec<crate::Dim> { common.iter().chain(tail).copied().collect() };
        Ok((self.broadcast_at(op, &whole(matrix), at)?, other.broadcast_at(op, &whole(right), at)?))
    }

    /// Lets `solve` work on columns: a right side of one axis less than this is vectors, but for triangles.
    fn solved(
        &self,
        op: &'static str,
        right: &Tensor,
        at: &Source,
        solve: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        // PyTorch's triangles take columns alone.
        let is_vector = op != "solve_triangular"
            && right.rank() + 1 == self.rank()
            && right.hint() == &self.hint()[..self.rank() - 1];
        let columns = if is_vector { right.unsqueeze(-1)? } else { right.clone() };
        let (matrix, columns) = self.beside(op, &columns, at)?;
        let x = solve(&matrix, &columns)?;
        if is_vector { x.squeeze(-1) } else { Ok(x) }
    }

    /// X with A·X = B, A being this matrix: `right` holds columns, or one vector for each matrix.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let a = Tensor::new([[2f64, 1.], [0., 4.]], Device::Cpu)?;
    /// assert_eq!(a.solve(&Tensor::new([5f64, 8.], Device::Cpu)?)?.to_vec::<f64>()?, [1.5, 2.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn solve(&self, right: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_square("solve", &at)?;
        let rule = rules::Solve { at: at.clone() };
        self.solved("solve", right, &at, |a, b| Ok(applied(rule, &[a, b], &at)?.swap_remove(0)))
    }

    /// X with T·X = B, T being the upper or lower triangle of this matrix, with ones on the diagonal if `unit`; B holds columns.
    #[track_caller]
    pub fn solve_triangular(&self, right: &Tensor, upper: bool, unit: bool) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_square("solve_triangular", &at)?;
        let rule = rules::SolveTriangular { upper, unit, at: at.clone() };
        self.solved("solve_triangular", right, &at, |a, b| Ok(applied(rule, &[a, b], &at)?.swap_remove(0)))
    }

    /// X with L·Lᵀ·X = B, L being this lower triangular matrix.
    #[track_caller]
    pub fn cholesky_solve(&self, right: &Tensor) -> Result<Tensor> {
        let half = self.solve_triangular(right, false, false)?;
        turned(self)?.solve_triangular(&half, true, false)
    }

    /// The inverse matrix.
    #[track_caller]
    pub fn inverse(&self) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_square("inverse", &at)?;
        Ok(applied(rules::Inverse { at: at.clone() }, &[self], &at)?.swap_remove(0))
    }

    /// The determinant. Its gradient is that of invertible matrices.
    #[track_caller]
    pub fn det(&self) -> Result<Tensor> {
        let (sign, log) = self.slogdet()?;
        log.exp()?.mul(&sign)
    }

    /// The sign of the determinant, and the logarithm of its size.
    #[track_caller]
    pub fn slogdet(&self) -> Result<(Tensor, Tensor)> {
        let at = Source::caller();
        self.expect_square("slogdet", &at)?;
        let mut results = applied(rules::LogDeterminant { at: at.clone() }, &[self], &at)?;
        let log = results.swap_remove(1);
        Ok((results.swap_remove(0).detach(), log))
    }

    /// The logarithm of the determinant; NaN where it is negative.
    #[track_caller]
    pub fn logdet(&self) -> Result<Tensor> {
        let (sign, log) = self.slogdet()?;
        sign.lt(0.0)?.where_(f64::NAN, &log)?.to_dtype(self.dtype())
    }

    /// P, L and U with A = P·L·U: a permutation, a lower triangle with ones on its diagonal, and an upper one. Gradients are those of square
    /// matrices.
    #[track_caller]
    pub fn lu(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let at = Source::caller();
        host::check("lu", self, &at)?;
        let mut results = applied(rules::Lu { at: at.clone() }, &[self], &at)?;
        let (u, l) = (results.swap_remove(2), results.swap_remove(1));
        Ok((results.swap_remove(0).detach(), l, u))
    }

    /// Q and R with A = Q·R: `[m, k]` with columns at right angles, and an upper triangle `[k, n]`, k being the smaller of both sizes.
    /// Gradients are those of m ≥ n and full rank.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let a = Tensor::randn([5, 3], DType::F64, Device::Cpu)?;
    /// let (q, r) = a.qr()?;
    /// assert!(q.matmul(&r)?.allclose(&a, 1e-12, 1e-12)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn qr(&self) -> Result<(Tensor, Tensor)> {
        let at = Source::caller();
        host::check("qr", self, &at)?;
        let mut results = applied(rules::Qr { at: at.clone() }, &[self], &at)?;
        let r = results.swap_remove(1);
        Ok((results.swap_remove(0), r))
    }

    /// The eigenvalues, ascending, and eigenvectors, as columns, of symmetric matrices, of which the lower half is read.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let a = Tensor::new([[2f64, 1.], [1., 2.]], Device::Cpu)?;
    /// let (values, vectors) = a.eigh()?;
    /// assert!(values.allclose(&Tensor::new([1f64, 3.], Device::Cpu)?, 1e-12, 0.0)?);
    /// assert!(a.matmul(&vectors)?.allclose(&vectors.mul(&values)?, 1e-12, 1e-12)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn eigh(&self) -> Result<(Tensor, Tensor)> {
        let at = Source::caller();
        self.expect_square("eigh", &at)?;
        let mut results = applied(rules::Eigh { at: at.clone() }, &[self], &at)?;
        let vectors = results.swap_remove(1);
        Ok((results.swap_remove(0), vectors))
    }

    /// The eigenvalues of symmetric matrices, ascending.
    #[track_caller]
    pub fn eigvalsh(&self) -> Result<Tensor> {
        Ok(self.eigh()?.0)
    }

    /// U `[m, k]`, the singular values `[k]`, descending, and Vᵀ `[k, n]` with A = U·diag·Vᵀ, k being the smaller of both sizes. Gradients by
    /// U and Vᵀ are those of distinct singular values above 0.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let a = Tensor::new([[3f64, 0.], [0., 4.], [0., 0.]], Device::Cpu)?;
    /// let (u, values, vt) = a.svd()?;
    /// assert_eq!(values.to_vec::<f64>()?, [4., 3.]);
    /// assert!(u.mul(&values)?.matmul(&vt)?.allclose(&a, 1e-12, 1e-12)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn svd(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let at = Source::caller();
        host::check("svd", self, &at)?;
        let mut results = applied(rules::Svd { at: at.clone() }, &[self], &at)?;
        let (vt, values) = (results.swap_remove(2), results.swap_remove(1));
        Ok((results.swap_remove(0), values, vt))
    }

    /// The singular values, descending.
    #[track_caller]
    pub fn svdvals(&self) -> Result<Tensor> {
        Ok(self.svd()?.1)
    }

    /// X for which A·X is nearest to B, A being this matrix of full rank with no fewer rows than columns.
    #[track_caller]
    pub fn lstsq(&self, right: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        host::check("lstsq", self, &at)?;
        if !self.extent(self.rank() - 1).at_most(self.extent(self.rank() - 2), &at) {
            let expected = "no fewer rows than columns";
            return Err(Error::WrongRank { op: "lstsq", shape: self.hint().to_vec(), expected, at });
        }
        self.solved("lstsq", right, &at, |a, b| {
            autocast::within(None, || {
                let (q, r) = a.qr()?;
                r.solve_triangular(&turned(&q)?.matmul(b)?, true, false)
            })
        })
    }

    /// Moore and Penrose's inverse; singular values below `tolerance` times the largest are zero (by default the larger size times the
    /// distance of 1 to the next number).
    #[track_caller]
    pub fn pinv(&self, tolerance: Option<f64>) -> Result<Tensor> {
        let at = Source::caller();
        host::check("pinv", self, &at)?;
        let rule = rules::PseudoInverse { tolerance: self.rank_tolerance(tolerance), at: at.clone() };
        Ok(applied(rule, &[self], &at)?.swap_remove(0))
    }

    fn rank_tolerance(&self, tolerance: Option<f64>) -> f64 {
        let epsilon = if self.dtype() == crate::DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let larger = self.hint().iter().rev().take(2).max().copied().unwrap_or(1);
        tolerance.unwrap_or(larger as f64 * epsilon)
    }

    /// How many singular values are above `tolerance` times the largest, as i64; the default is that of [`Tensor::pinv`].
    #[track_caller]
    pub fn matrix_rank(&self, tolerance: Option<f64>) -> Result<Tensor> {
        let values = self.detach().svdvals()?;
        values.gt(&values.amax_keepdim(-1)?.mul(self.rank_tolerance(tolerance))?)?.sum(-1)
    }

    /// A norm of matrices.
    #[track_caller]
    pub fn matrix_norm(&self, norm: MatrixNorm) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() < 2 {
            let expected = "matrices: two axes or more";
            return Err(Error::WrongRank { op: "matrix_norm", shape: self.hint().to_vec(), expected, at });
        }
        match norm {
            MatrixNorm::Frobenius => self.norm(2.0, [-2, -1]),
            MatrixNorm::Nuclear => self.svdvals()?.sum(-1),
            MatrixNorm::Spectral => self.svdvals()?.amax(-1),
            MatrixNorm::One => self.abs()?.sum(-2)?.amax(-1),
            MatrixNorm::Infinity => self.abs()?.sum(-1)?.amax(-1),
        }
    }

    /// A whole power of square matrices; a negative one is that of the inverse.
    #[track_caller]
    pub fn matrix_power(&self, exponent: i64) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_square("matrix_power", &at)?;
        autocast::within(None, || self.multiplied(exponent, &at))
    }

    fn multiplied(&self, exponent: i64, at: &Source) -> Result<Tensor> {
        let base = if exponent < 0 { self.inverse()? } else { self.clone() };
        let (mut rest, mut power, mut result) = (exponent.unsigned_abs(), base.clone(), None::<Tensor>);
        while rest > 0 {
            if rest & 1 == 1 {
                result = Some(match result {
                    Some(result) => result.matmul(&power)?,
                    None => power.clone(),
                });
            }
            rest >>= 1;
            if rest > 0 {
                power = power.matmul(&power)?;
            }
        }
        match result {
            Some(result) => Ok(result),
            None => {
                let n = usize::try_from(self.extent(self.rank() - 1).number(at)).unwrap_or(0);
                Tensor::eye(n, self.dtype(), self.device())?.broadcast_at("matrix_power", &self.sizes(), at)
            }
        }
    }
}
