//! Distances and likenesses of vectors, and products with sums: what is a few lines of other operations, as one graph.

use crate::tensor::shape::{self, resolve_axis};
use crate::tensor::{autocast, eager};
use crate::{DType, Dim, Error, Result, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{CompareOp, NodeId, ReduceKind, Source};

/// (Σ|d|ᵖ)^(1/p) over an axis, which is removed; with a gradient of zero where all of it is zero, as PyTorch has it.
fn p_norm(b: &mut GraphBuilder, d: &NodeId, p: f64, axis: usize) -> Result<NodeId, kiln_ir::Error> {
    let size = build::abs(b, d)?;
    if p == f64::INFINITY {
        return build::reduce(b, ReduceKind::Max, &size, &[axis], false);
    }
    if p == 0.0 {
        let dtype = b.ty(d).dtype;
        let counted = build::compare_scalar(b, CompareOp::Ne, d, 0.0)?;
        let counted = build::cast(b, &counted, dtype)?;
        return build::sum(b, &counted, &[axis], false);
    }
    if p == 1.0 {
        return build::sum(b, &size, &[axis], false);
    }
    let powers = if p == 2.0 { build::mul(b, d, d)? } else { build::pow_scalar(b, &size, p)? };
    let sum = build::sum(b, &powers, &[axis], false)?;
    // The root is not taken at 0, where its slope is infinite.
    let nothing = build::compare_scalar(b, CompareOp::Eq, &sum, 0.0)?;
    let safe = build::masked_fill(b, &sum, &nothing, 1.0)?;
    let root = if p == 2.0 { build::sqrt(b, &safe)? } else { build::pow_scalar(b, &safe, 1.0 / p)? };
    build::masked_fill(b, &root, &nothing, 0.0)
}

impl Tensor {
    /// The p-norm of the difference of every row of `[…, n, width]` and every row of `other: […, m, width]`: `[…, n, m]`.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([[0f32, 0.], [3., 4.]], Device::Cpu)?;
    /// assert_eq!(x.cdist(&x, 2.0)?.to_vec::<f32>()?, [0., 5., 5., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn cdist(&self, other: &Tensor, p: f64) -> Result<Tensor> {
        let at = Source::caller();
        let (this, other) = (&self.autocast("cdist", &at)?, &other.autocast("cdist", &at)?);
        this.same_dtype("cdist", other, &at)?;
        for side in [this, other] {
            if side.rank() < 2 || !side.dtype().is_float() {
                let expected = "floats of two axes or more";
                return Err(Error::WrongRank { op: "cdist", shape: side.hint().to_vec(), expected, at });
            }
        }
        if p < 0.0 || p.is_nan() {
            let (name, expected) = ("p", "it has to be 0 or more");
            return Err(Error::BadArgument { op: "cdist", name, value: p.into(), expected, at });
        }
        let (width, others) = (this.extent(this.rank() - 1), other.extent(other.rank() - 1));
        if !width.equals(others, &at) {
            let (lhs, rhs) = (this.hint().to_vec(), other.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "cdist", lhs, rhs, sizes: None, at });
        }
        let (x, y) = (this.unsqueeze(this.rank() - 1)?, other.unsqueeze(other.rank() - 2)?);
        shape::broadcast("cdist", &x.sizes(), &y.sizes(), &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let difference = build::sub(b, &inputs[0], &inputs[1])?;
            let last = b.ty(&difference).rank() - 1;
            p_norm(b, &difference, p, last)
        };
        eager::composite("cdist", &[p.into()], &[&x, &y], write, &at)
    }

    /// The p-norms of the differences of all pairs of rows of a matrix, the upper triangle of [`Tensor::cdist`] with itself as a vector.
    #[track_caller]
    pub fn pdist(&self, p: f64) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() != 2 {
            let expected = "two axes";
            return Err(Error::WrongRank { op: "pdist", shape: self.hint().to_vec(), expected, at });
        }
        let n = self.length_of(0, &at) as i64;
        let pairs = || (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        let (first, second): (Vec<i64>, Vec<i64>) = pairs().unzip();
        let rows = |places: Vec<i64>| -> Result<Tensor> {
            let count = places.len();
            self.index_select(0, &Tensor::from_vec(places, count, self.device())?)
        };
        rows(first)?.pairwise_distance(&rows(second)?, p, 0.0)
    }

    /// The p-norm of the difference over the last axis, to which `epsilon` is added.
    #[track_caller]
    pub fn pairwise_distance(&self, other: &Tensor, p: f64, epsilon: f64) -> Result<Tensor> {
        let at = Source::caller();
        let [this, other] = autocast::met("pairwise_distance", [self, other], &at)?;
        this.same_dtype("pairwise_distance", &other, &at)?;
        shape::broadcast("pairwise_distance", &self.sizes(), &other.sizes(), &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let difference = build::sub(b, &inputs[0], &inputs[1])?;
            let moved = build::add_scalar(b, &difference, epsilon)?;
            let last = b.ty(&moved).rank() - 1;
            p_norm(b, &moved, p, last)
        };
        eager::composite("pairwise_distance", &[p.into(), epsilon.into()], &[&this, &other], write, &at)
    }

    /// The cosine of the angle between vectors along an axis; each length is `epsilon` at the least.
    #[track_caller]
    pub fn cosine_similarity(&self, other: &Tensor, axis: impl Size, epsilon: f64) -> Result<Tensor> {
        let at = Source::caller();
        let common = shape::broadcast("cosine_similarity", &self.sizes(), &other.sizes(), &at)?;
        let [this, other] = autocast::met("cosine_similarity", [self, other], &at)?;
        this.same_dtype("cosine_similarity", &other, &at)?;
        let hints = crate::tensor::dim::hints(&common);
        let axis = resolve_axis("cosine_similarity", axis, &hints, 0, &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let (x, y) = build::broadcast(b, &inputs[0], &inputs[1])?;
            let product = build::mul(b, &x, &y)?;
            let product = build::sum(b, &product, &[axis], false)?;
            let mut lengths = Vec::with_capacity(2);
            for side in [&x, &y] {
                let length = p_norm(b, side, 2.0, axis)?;
                lengths.push(build::binary_scalar(b, kiln_ir::BinaryOp::Max, &length, epsilon)?);
            }
            let lengths = build::mul(b, &lengths[0], &lengths[1])?;
            build::div(b, &product, &lengths)
        };
        eager::composite("cosine_similarity", &[axis.into(), epsilon.into()], &[&this, &other], write, &at)
    }

    /// Divides vectors along an axis by their p-norm, which is `epsilon` at the least.
    #[track_caller]
    pub fn normalize(&self, p: f64, axis: impl Size, epsilon: f64) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("normalize", axis, self.hint(), 0, &at)?;
        let write = |b: &mut GraphBuilder, x: &NodeId| {
            let length = p_norm(b, x, p, axis)?;
            let length = build::binary_scalar(b, kiln_ir::BinaryOp::Max, &length, epsilon)?;
            let length = build::unsqueeze(b, &length, axis)?;
            build::div(b, x, &length)
        };
        self.activation("normalize", &[p.into(), axis.into(), epsilon.into()], write, &at)
    }

    fn plus_product(
        &self,
        name: &'static str,
        [x, y]: [&Tensor; 2],
        ranks: [usize; 2],
        [beta, alpha]: [f64; 2],
        at: &Source,
    ) -> Result<Tensor> {
        for (side, rank) in [x, y].into_iter().zip(ranks) {
            if side.rank() != rank {
                let expected =
                    ["", "a vector: one axis", "a matrix: two axes", "a batch of matrices: three axes"][rank];
                return Err(Error::WrongRank { op: name, shape: side.hint().to_vec(), expected, at: at.clone() });
            }
        }
        let (this, x, y) = (&self.autocast(name, at)?, &x.autocast(name, at)?, &y.autocast(name, at)?);
        this.same_dtype(name, x, at)?;
        x.check_product(name, y, at)?;
        let sum_batches = name == "addbmm";
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let product = build::matmul(b, &inputs[1], &inputs[2])?;
            let product = if sum_batches { build::sum(b, &product, &[0], false)? } else { product };
            let scaled = if alpha == 1.0 { product } else { build::mul_scalar(b, &product, alpha)? };
            // Nothing of the first operand, not even its NaN, counts where its factor is 0.
            if beta == 0.0 {
                return Ok(scaled);
            }
            let first = if beta == 1.0 { inputs[0] } else { build::mul_scalar(b, &inputs[0], beta)? };
            build::add(b, &first, &scaled)
        };
        eager::composite(name, &[beta.into(), alpha.into()], &[this, x, y], write, at)
    }

    /// β·self + α·(x · y) of matrices, this tensor broadcasting.
    #[track_caller]
    pub fn addmm(&self, x: &Tensor, y: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.plus_product("addmm", [x, y], [2, 2], [beta, alpha], &Source::caller())
    }

    /// β·self + α·(matrix · vector).
    #[track_caller]
    pub fn addmv(&self, matrix: &Tensor, vector: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.plus_product("addmv", [matrix, vector], [2, 1], [beta, alpha], &Source::caller())
    }

    /// β·self + α·(x · y) of batches of matrices.
    #[track_caller]
    pub fn baddbmm(&self, x: &Tensor, y: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.plus_product("baddbmm", [x, y], [3, 3], [beta, alpha], &Source::caller())
    }

    /// β·self + α·Σ x·y over batches of matrices.
    #[track_caller]
    pub fn addbmm(&self, x: &Tensor, y: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.plus_product("addbmm", [x, y], [3, 3], [beta, alpha], &Source::caller())
    }

    /// The matrix product with a vector.
    #[track_caller]
    pub fn mv(&self, vector: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() != 2 || vector.rank() != 1 {
            let expected = "a matrix and a vector";
            return Err(Error::WrongRank { op: "mv", shape: vector.hint().to_vec(), expected, at });
        }
        self.matmul(vector)
    }

    /// Sums of products over the last `axes` axes of this tensor and the first of the other.
    #[track_caller]
    pub fn tensordot(&self, other: &Tensor, axes: usize) -> Result<Tensor> {
        let at = Source::caller();
        self.same_dtype("tensordot", other, &at)?;
        let (mine, theirs) = (self.sizes(), other.sizes());
        let fits = axes <= mine.len().min(theirs.len());
        let pairs = || mine[mine.len() - axes..].iter().zip(&theirs[..axes]);
        if !fits || !pairs().all(|(a, b)| a.equals(*b, &at)) {
            let (lhs, rhs) = (self.hint().to_vec(), other.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "tensordot", lhs, rhs, sizes: None, at });
        }
        let product = crate::tensor::dim::product;
        let (rows, inner) = mine.split_at(mine.len() - axes);
        let x = self.reshape_to(vec![product(rows), product(inner)], &at)?;
        let y = other.reshape_to(vec![product(inner), product(&theirs[axes..])], &at)?;
        let shape = rows.iter().chain(&theirs[axes..]).copied().collect();
        x.matmul(&y)?.reshape_to(shape, &at)
    }

    /// Kronecker's product: every element of this tensor times the whole other one, blocks beside each other.
    #[track_caller]
    pub fn kron(&self, other: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let rank = self.rank().max(other.rank());
        let one = Dim::plain(1);
        let filled = |t: &Tensor| -> Vec<Dim> { vec![one; rank - t.rank()].into_iter().chain(t.sizes()).collect() };
        let (mine, theirs) = (filled(self), filled(other));
        let outer = self.reshape_to(mine.iter().flat_map(|&n| [n, one]).collect(), &at)?;
        let inner = other.reshape_to(theirs.iter().flat_map(|&n| [one, n]).collect(), &at)?;
        outer.mul(&inner)?.reshape_to(mine.iter().zip(&theirs).map(|(&a, &b)| a * b).collect(), &at)
    }

    /// The vector product of vectors of three elements along an axis.
    #[track_caller]
    pub fn cross(&self, other: &Tensor, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("cross", axis, self.hint(), 0, &at)?;
        if self.hint()[axis] != 3 || other.rank() != self.rank() || other.hint()[axis] != 3 {
            let (lhs, rhs) = (self.hint().to_vec(), other.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "cross", lhs, rhs, sizes: None, at });
        }
        let (a, b) = (self.roll(-1, axis)?, other.roll(-1, axis)?);
        let turned = self.mul(&b)?.sub(a.mul(other)?)?;
        turned.roll(-1, axis)
    }

    /// The sum of a matrix's diagonal.
    #[track_caller]
    pub fn trace(&self) -> Result<Tensor> {
        self.diagonal(0)?.sum(-1)
    }

    /// A vector as the diagonal of matrices of zeros: `[…, n]` becomes `[…, n, n]`, larger by the offset.
    #[track_caller]
    pub fn diag_embed(&self, offset: i64) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() == 0 {
            let expected = "one axis or more";
            return Err(Error::WrongRank { op: "diag_embed", shape: vec![], expected, at });
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let ty = b.ty(&inputs[0]);
            let last = ty.rank() - 1;
            let size = &ty.shape[last] + offset.abs();
            let mut amounts = vec![(0, 0); ty.rank()];
            // Rows of an upper diagonal begin at 0, those of a lower one behind the offset.
            amounts[last] = if offset >= 0 { (0, offset) } else { (-offset, 0) };
            let row = build::pad_constant(b, &inputs[0], &amounts, 0.0)?;
            let column = build::unsqueeze(b, &row, last + 1)?;
            let mut shape = ty.shape.clone();
            shape[last] = size.clone();
            shape.push(size);
            let (i, j) = (build::iota(b, DType::I64, &shape, last)?, build::iota(b, DType::I64, &shape, last + 1)?);
            let distance = build::sub(b, &j, &i)?;
            let on = build::compare_scalar(b, CompareOp::Eq, &distance, offset as f64)?;
            let spread = build::broadcast_to(b, &column, &shape)?;
            let off = build::not(b, &on)?;
            build::masked_fill(b, &spread, &off, 0.0)
        };
        eager::composite("diag_embed", &[offset.into()], &[self], write, &at)
    }
}
