//! Attention and the rotary position embedding.

use super::{
    Built, Emit, add, broadcast_to, cast, chunk, concat, constant_f64, cos, fail, mul, neg, outer, reshape, sin,
    slice_axis, squeeze, sub, unsqueeze, widen,
};
use crate::op::mask_columns;
use crate::{DType, Dim, Op, Scalar, TensorType, TypeError};

/// Options of [`scaled_dot_product_attention`].
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionOptions<V> {
    /// Added to the scores, or, if bool, true where a score counts; broadcasts to `[batch, heads, rows, columns]`. Or, if i64, the
    /// bounds of the columns that a row sees, first ≤ j < end; broadcasts to `[batch, heads, rows, 2]`.
    pub mask: Option<V>,
    /// Causal mask: every column is visible to the last row, all but the last to the row before, and so on.
    pub causal: bool,
    /// Factor on the scores; 1/√depth if not given.
    pub scale: Option<f64>,
}

impl<V> Default for AttentionOptions<V> {
    fn default() -> Self {
        AttentionOptions { mask: None, causal: false, scale: None }
    }
}

/// softmax(q·kᵀ·scale + mask)·v over the last two axes, for `q: […, heads, rows, depth]`, `k: […, groups, columns, depth]`
/// and `v: […, groups, columns, width]` of one rank from 2 to 4. Heads may share keys: heads must be a multiple of groups.
#[track_caller]
pub fn scaled_dot_product_attention<E: Emit>(
    e: &mut E,
    q: &E::Value,
    k: &E::Value,
    v: &E::Value,
    options: &AttentionOptions<E::Value>,
) -> Built<E> {
    const NAME: &str = "scaled_dot_product_attention";
    let ty = e.ty(q);
    let missing = match ty.rank() {
        2..=4 => 4 - ty.rank(),
        _ => return fail::<_, E>(NAME, TypeError::WrongRank { operand: 0, ty, expected: "2 to 4".into() }),
    };
    let (mut q, mut k, mut v) = (q.clone(), k.clone(), v.clone());
    for _ in 0..missing {
        q = unsqueeze(e, &q, 0)?;
        k = unsqueeze(e, &k, 0)?;
        v = unsqueeze(e, &v, 0)?;
    }
    let (q_ty, k_ty) = (e.ty(&q), e.ty(&k));
    if k_ty.rank() != 4 {
        return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: q_ty, rhs: k_ty, sizes: None });
    }
    let scale = match (options.scale, q_ty.shape[3].as_const()) {
        (Some(scale), _) => scale,
        (None, Some(depth)) => 1.0 / (depth as f64).sqrt(),
        (None, None) => {
            let what = "the scale must be given when the depth is symbolic";
            return fail::<_, E>(NAME, TypeError::BadAttribute { what, ty: q_ty });
        }
    };
    let mut operands = vec![q, k, v];
    if let Some(mask) = &options.mask {
        let columns = mask_columns(e.ty(mask).dtype, &k_ty.shape[2]);
        let shape = [&q_ty.shape[0], &q_ty.shape[1], &q_ty.shape[2], &columns].map(Dim::clone);
        operands.push(broadcast_to(e, mask, &shape)?);
    }
    let scale = Scalar::float(DType::F64, scale);
    let y = e.emit(Op::Attention { causal: options.causal, scale, mask: options.mask.is_some() }, &operands)?;
    squeeze(e, &y, &(0..missing).collect::<Vec<_>>())
}

/// How the rotary embedding pairs up the elements of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element i with element i + depth/2 (Llama's checkpoints as Hugging Face stores them, GPT-NeoX).
    Half,
    /// Element 2i with element 2i + 1 (GPT-J, the original Llama).
    Interleaved,
}

/// The rotary embedding: pairs of elements of the last axis rotated by an angle, given as cosine and sine with half as many
/// elements on the last axis and otherwise broadcasting to x.
#[track_caller]
pub fn rope<E: Emit>(e: &mut E, x: &E::Value, cos: &E::Value, sin: &E::Value, style: RopeStyle) -> Built<E> {
    let ty = e.ty(x);
    let Some(last) = ty.rank().checked_sub(1) else {
        return fail::<_, E>("rope", TypeError::WrongRank { operand: 0, ty, expected: "1 or more".into() });
    };
    let (x, dtype) = widen(e, x)?;
    let wide = e.ty(&x).dtype;
    let (cos, sin) = (cast(e, cos, wide)?, cast(e, sin, wide)?);
    let (a, b) = match style {
        RopeStyle::Half => {
            let halves = chunk(e, &x, last, 2)?;
            (halves[0].clone(), halves[1].clone())
        }
        RopeStyle::Interleaved => {
            let Some(half) = ty.shape[last].div_exact(&Dim::from(2)) else {
                let size = ty.shape[last].clone();
                return fail::<_, E>("rope", TypeError::NotDivisible { what: "the last axis", size, by: Dim::from(2) });
            };
            let even = slice_axis(e, &x, last, &Dim::from(0), &half, 2)?;
            let odd = slice_axis(e, &x, last, &Dim::from(1), &half, 2)?;
            (even, odd)
        }
    };
    let (a_cos, b_sin) = (mul(e, &a, &cos)?, mul(e, &b, &sin)?);
    let first = sub(e, &a_cos, &b_sin)?;
    let (b_cos, a_sin) = (mul(e, &b, &cos)?, mul(e, &a, &sin)?);
    let second = add(e, &b_cos, &a_sin)?;
    let y = match style {
        RopeStyle::Half => concat(e, &[first, second], last)?,
        RopeStyle::Interleaved => interleave(e, &first, &second)?,
    };
    cast(e, &y, dtype)
}

/// (−second half, first half) of the last axis.
#[track_caller]
pub fn rotate_half<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let ty = e.ty(x);
    let Some(last) = ty.rank().checked_sub(1) else {
        return fail::<_, E>("rotate_half", TypeError::WrongRank { operand: 0, ty, expected: "1 or more".into() });
    };
    let halves = chunk(e, x, last, 2)?;
    let negative = neg(e, &halves[1])?;
    concat(e, &[negative, halves[0].clone()], last)
}

/// Cosine and sine of `position / base^(2i/depth)`, each f32 `[positions, depth/2]`, for a vector of positions.
#[track_caller]
pub fn rope_tables<E: Emit>(
    e: &mut E,
    positions: &E::Value,
    depth: usize,
    base: f64,
) -> Result<(E::Value, E::Value), E::Error> {
    let rates: Vec<f64> = (0..depth / 2).map(|i| base.powf(-2.0 * i as f64 / depth as f64)).collect();
    let rates = constant_f64(e, DType::F32, &[rates.len()], &rates)?;
    let positions = cast(e, positions, DType::F32)?;
    let angles = outer(e, &positions, &rates)?;
    Ok((cos(e, &angles)?, sin(e, &angles)?))
}

/// Interleaves two values of one shape along the last axis.
#[track_caller]
fn interleave<E: Emit>(e: &mut E, even: &E::Value, odd: &E::Value) -> Built<E> {
    let TensorType { mut shape, .. } = e.ty(even);
    let rank = shape.len();
    let even = unsqueeze(e, even, rank)?;
    let odd = unsqueeze(e, odd, rank)?;
    let pairs = concat(e, &[even, odd], rank)?;
    if let Some(size) = shape.last_mut() {
        *size = &*size * 2;
    }
    reshape(e, &pairs, &shape)
}
