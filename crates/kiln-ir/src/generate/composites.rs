//! What programs are really made of: norms, softmax, activations, written over the primitives.

use super::{Class, Maker};
use crate::build::{self, GraphBuilder};
use crate::{BinaryOp, Dim, Error, NodeId};

impl Maker<'_> {
    /// One of the composites on a float node.
    pub(super) fn composite(&mut self) -> Option<NodeId> {
        let x = self.pick_ranked(Class::Float, 1)?;
        let ty = self.ty(x);
        let axis = if self.rng.chance(0.7) { ty.rank() - 1 } else { self.draw_axis(x) };
        let which = self.rng.below(9);
        // A weight and a bias along the axis, as norms have them.
        let mut along = || -> Option<NodeId> {
            let mut shape = vec![Dim::from(1); ty.rank()];
            shape[axis] = ty.shape[axis].clone();
            self.like(ty.dtype, &shape)
        };
        let (weight, bias) = (along()?, along()?);
        let source = self.source();
        let mut b = GraphBuilder::extend(std::mem::take(&mut self.graph));
        b.set_source(Some(source));
        let made = compose(&mut b, which, x, axis, weight, bias);
        self.graph = b.finish();
        made.ok()
    }
}

fn compose(
    b: &mut GraphBuilder,
    which: usize,
    x: NodeId,
    axis: usize,
    weight: NodeId,
    bias: NodeId,
) -> Result<NodeId, Error> {
    match which {
        0 => build::softmax(b, &x, axis),
        1 => build::log_softmax(b, &x, axis),
        2 => build::logsumexp(b, &x, &[axis], true),
        3 | 4 => {
            // Layer norm.
            let mean = build::mean(b, &x, &[axis], true)?;
            let centred = build::sub(b, &x, &mean)?;
            let variance = build::var(b, &x, &[axis], 0.0, true)?;
            let variance = build::add_scalar(b, &variance, 1e-5)?;
            let scale = build::rsqrt(b, &variance)?;
            let normal = build::mul(b, &centred, &scale)?;
            let scaled = build::mul(b, &normal, &weight)?;
            build::add(b, &scaled, &bias)
        }
        5 => {
            // Root-mean-square norm.
            let square = build::mul(b, &x, &x)?;
            let mean = build::mean(b, &square, &[axis], true)?;
            let mean = build::add_scalar(b, &mean, 1e-6)?;
            let scale = build::rsqrt(b, &mean)?;
            let normal = build::mul(b, &x, &scale)?;
            build::mul(b, &normal, &weight)
        }
        6 => {
            // Gelu with a weight and a bias.
            let inner = build::mul_scalar(b, &x, std::f64::consts::FRAC_1_SQRT_2)?;
            let erf = build::erf(b, &inner)?;
            let erf = build::add_scalar(b, &erf, 1.0)?;
            let half = build::mul_scalar(b, &x, 0.5)?;
            let gelu = build::mul(b, &half, &erf)?;
            let scaled = build::mul(b, &gelu, &weight)?;
            build::add(b, &scaled, &bias)
        }
        7 => {
            // Silu.
            let negative = build::neg(b, &x)?;
            let exp = build::exp(b, &negative)?;
            let below = build::add_scalar(b, &exp, 1.0)?;
            build::div(b, &x, &below)
        }
        _ => {
            // Clamped, then normalised by the largest magnitude.
            let clamped = build::clamp(b, &x, Some(-4.0), Some(4.0))?;
            let size = build::abs(b, &clamped)?;
            let largest = build::max_over(b, &size, &[axis], true)?;
            let largest = build::binary_scalar(b, BinaryOp::Max, &largest, 1e-3)?;
            build::div(b, &clamped, &largest)
        }
    }
}
