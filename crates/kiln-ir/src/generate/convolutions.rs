//! Graphs about convolutions: every attribute, channels first and last, odd and empty sizes, with what networks have around them.

use super::{Class, Maker, Options};
use crate::{BinaryOp, ConvDims, DType, Dim, Graph, NodeId, Op, OpKind, ReduceKind, UnaryOp};

/// Multiplications that one convolution may take: the interpreter does them one by one.
const MAX_WORK: usize = 1 << 17;
/// Elements that a node may have.
const MAX_ELEMENTS: usize = 1 << 14;

/// The graph of a seed, in which one to three convolutions follow each other or stand side by side.
pub fn convolutions(seed: u64, options: &Options) -> Graph {
    let options = Options { max_elements: MAX_ELEMENTS, symbolic: false, ..options.clone() };
    let mut maker = Maker::new(seed, &options);
    let dtypes = [DType::F32, DType::F32, DType::F32, DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I32];
    let dtype = *maker.rng.choose(&dtypes);
    let mut before = None;
    for _ in 0..1 + maker.rng.below(3) {
        let input = before.filter(|_| maker.rng.chance(0.8));
        let Some(y) = (0..12).find_map(|_| maker.convolve(dtype, input)) else { continue };
        before = Some(maker.follow(y).unwrap_or(y));
    }
    for _ in 0..maker.rng.below(3) {
        let kind = *maker.rng.choose(&[OpKind::Unary(UnaryOp::Abs), OpKind::Slice, OpKind::Pad, OpKind::Permute]);
        maker.grow(kind);
    }
    maker.finish()
}

impl Maker<'_> {
    /// A convolution with random attributes, of this image where there is one and it has the rank.
    fn convolve(&mut self, dtype: DType, image: Option<NodeId>) -> Option<NodeId> {
        let image = image.filter(|&image| (3..=5).contains(&self.graph.ty(image).rank()));
        let spatial = match image {
            Some(image) => self.graph.ty(image).rank() - 2,
            None => *self.rng.choose(&[1, 2, 2, 2, 2, 3]),
        };
        let x = match image {
            Some(image) => self.ty(image).shape,
            None => {
                let channels = *self.rng.choose(&[1usize, 2, 3, 4, 6, 8, 16, 24]);
                let batch = *self.rng.choose(&[1usize, 1, 1, 2, 2, 3, 0]);
                let batch = if batch == 0 && self.rng.chance(0.7) { 1 } else { batch };
                let sizes: &[usize] =
                    if spatial == 3 { &[1, 2, 3, 5, 8] } else { &[1, 3, 4, 5, 7, 8, 14, 15, 16, 17, 28, 33] };
                let lengths = (0..spatial).map(|_| *self.rng.choose(sizes)).collect::<Vec<usize>>();
                [batch, channels].into_iter().chain(lengths).map(Dim::from).collect()
            }
        };
        let channels = x[1].as_usize()?;
        let divisors: Vec<usize> = (1..=channels).filter(|n| channels.is_multiple_of(*n)).collect();
        let groups = match self.rng.below(3) {
            0 => *divisors.last()?,
            1 => *self.rng.choose(&divisors),
            _ => 1,
        };
        let outputs = groups * *self.rng.choose(&[1usize, 1, 2, 3, 4, 8, 12, 16, 17, 33]);
        let mut w = vec![Dim::from(outputs), Dim::from(channels / groups)];
        let mut dims = ConvDims { stride: vec![], padding: vec![], dilation: vec![], input_dilation: vec![], groups };
        let square = (self.taps(), *self.rng.choose(&[1, 1, 1, 2, 2, 3, 4]), *self.rng.choose(&[1, 1, 1, 2, 3]));
        for _ in 0..spatial {
            let (taps, stride, dilation) = if self.rng.chance(0.8) { square } else { (self.taps(), 1, 1) };
            w.push(Dim::from(taps));
            dims.stride.push(stride);
            dims.dilation.push(dilation);
            dims.input_dilation.push(*self.rng.choose(&[1, 1, 1, 1, 2, 3]));
            let same = ((taps - 1) * dilation / 2) as i64;
            dims.padding.push(match self.rng.below(4) {
                0 => (0, 0),
                1 => (self.rng.below(5) as i64 - 1, self.rng.below(5) as i64 - 1),
                _ => (same, same),
            });
        }
        let op = Op::Conv(dims.into());
        let types = [crate::TensorType::new(dtype, x.clone()), crate::TensorType::new(dtype, w.clone())];
        let result = crate::infer(&op, &[&types[0], &types[1]]).ok()?;
        let each = w[1..].iter().fold(1, |n: usize, size| n.saturating_mul(self.number(size)));
        if self.elements(&result.shape).saturating_mul(each) > MAX_WORK || !self.fits(&w) || !self.fits(&x) {
            return None;
        }
        let x = match image {
            Some(image) if self.graph.ty(image).dtype == dtype => image,
            Some(image) => self.add(Op::Cast(dtype), &[image])?,
            None => self.ordered(dtype, &x)?,
        };
        let w = self.ordered(dtype, &w)?;
        self.add(op, &[x, w])
    }

    fn taps(&mut self) -> usize {
        *self.rng.choose(&[1, 1, 2, 3, 3, 3, 3, 4, 5, 7])
    }

    /// An input of this type, with its channels first or last in memory.
    fn ordered(&mut self, dtype: DType, shape: &[Dim]) -> Option<NodeId> {
        if self.rng.chance(0.6) {
            let source = self.source();
            return self.graph.input(crate::TensorType::new(dtype, shape), source).ok();
        }
        let rank = shape.len();
        let last: Vec<Dim> = [&shape[..1], &shape[2..], &shape[1..2]].concat();
        let source = self.source();
        let x = self.graph.input(crate::TensorType::new(dtype, last), source).ok()?;
        let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        self.add(Op::Permute { order }, &[x])
    }

    /// What comes after a convolution in a network: a bias, an activation, a residual, pooling, another order of its axes.
    fn follow(&mut self, mut y: NodeId) -> Option<NodeId> {
        let ty = self.ty(y);
        let rank = ty.rank();
        if self.rng.chance(0.5) {
            let mut shape = vec![Dim::from(1); rank];
            shape[1] = ty.shape[1].clone();
            let source = self.source();
            let bias = self.graph.input(crate::TensorType::new(ty.dtype, shape), source).ok()?;
            let bias = self.add(Op::Expand { shape: ty.shape.clone() }, &[bias])?;
            let op = *self.rng.choose(&[BinaryOp::Add, BinaryOp::Mul]);
            y = self.add(Op::Binary(op), &[y, bias])?;
        }
        if self.rng.chance(0.5) {
            let zero = self.draw_scalar(ty.dtype);
            let zero = self.add(Op::Full { value: zero, shape: ty.shape.clone() }, &[])?;
            y = self.add(Op::Binary(BinaryOp::Max), &[y, zero])?;
        }
        if self.rng.chance(0.2) {
            let other = self.like(ty.dtype, &ty.shape)?;
            y = self.add(Op::Binary(BinaryOp::Add), &[y, other])?;
        }
        if self.rng.chance(0.2) && Class::Number.has(ty.dtype) {
            let kind = *self.rng.choose(&[ReduceKind::Max, ReduceKind::Sum]);
            self.grow(OpKind::ReduceWindow(kind));
        }
        if rank > 2 && self.rng.chance(0.25) {
            y = self.squeeze_excite(y).unwrap_or(y);
        }
        if self.rng.chance(0.2) {
            let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
            self.add(Op::Permute { order }, &[y])?;
        }
        Some(y)
    }
    /// An image times what its own pixels say of each channel, and a convolution of single pixels.
    fn squeeze_excite(&mut self, y: NodeId) -> Option<NodeId> {
        let ty = self.ty(y);
        let (spatial, outputs) = (ty.rank() - 2, *self.rng.choose(&[3usize, 16, 17, 24, 33]));
        let mut w = vec![Dim::from(outputs), ty.shape[1].clone()];
        w.extend(vec![Dim::from(1); spatial]);
        if outputs.saturating_mul(self.elements(&ty.shape)) > MAX_WORK {
            return None;
        }
        let kind = *self.rng.choose(&[ReduceKind::Max, ReduceKind::Sum]);
        let gate = self.add(Op::Reduce { kind, axes: (2..ty.rank()).collect() }, &[y])?;
        let gate = self.add(Op::Expand { shape: ty.shape.clone() }, &[gate])?;
        let sides = if self.rng.chance(0.5) { [y, gate] } else { [gate, y] };
        let scaled = self.add(Op::Binary(BinaryOp::Mul), &sides)?;
        let w = self.ordered(ty.dtype, &w)?;
        let dims = ConvDims {
            stride: vec![1; spatial],
            padding: vec![(0, 0); spatial],
            dilation: vec![1; spatial],
            input_dilation: vec![1; spatial],
            groups: 1,
        };
        self.add(Op::Conv(dims.into()), &[scaled, w])
    }
}
