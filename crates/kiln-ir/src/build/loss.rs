//! Losses.

use super::activation::log1p_exp_neg_abs;
use super::{
    Built, Emit, abs, add, cast, clamp, compare_scalar, div, fail, gather, index_select, log_softmax, mean, mul,
    mul_scalar, neg, relu, reshape, select, squeeze, sub, sum, unsqueeze, widen,
};
use crate::{CompareOp, DType, TypeError};

/// The reduction of the losses of single elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reduction {
    /// No reduction.
    None,
    /// The mean.
    #[default]
    Mean,
    /// The sum.
    Sum,
}

/// Options of [`cross_entropy`].
#[derive(Debug, Clone, PartialEq)]
pub struct CrossEntropyOptions<V> {
    /// A factor for each class.
    pub weight: Option<V>,
    /// Targets of this value are ignored.
    pub ignore_index: i64,
    /// The part of the target that is spread evenly over the classes.
    pub label_smoothing: f64,
    /// The reduction of the single losses; a mean is weighted.
    pub reduction: Reduction,
}

impl<V> Default for CrossEntropyOptions<V> {
    fn default() -> Self {
        CrossEntropyOptions { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean }
    }
}

#[track_caller]
fn reduce_all<E: Emit>(e: &mut E, x: &E::Value, reduction: Reduction) -> Built<E> {
    let axes: Vec<usize> = (0..e.ty(x).rank()).collect();
    match reduction {
        Reduction::None => Ok(x.clone()),
        Reduction::Mean => mean(e, x, &axes, false),
        Reduction::Sum => sum(e, x, &axes, false),
    }
}

/// −log softmax(logits) at the targets: logits `[n, classes, …]`, targets (class numbers) `[n, …]`.
#[track_caller]
pub fn cross_entropy<E: Emit>(
    e: &mut E,
    logits: &E::Value,
    targets: &E::Value,
    options: &CrossEntropyOptions<E::Value>,
) -> Built<E> {
    let ty = e.ty(logits);
    if ty.rank() < 2 {
        return fail::<_, E>("cross_entropy", TypeError::WrongRank { operand: 0, ty, expected: "2 or more".into() });
    }
    let classes = ty.shape[1].clone();
    let (logits, dtype) = widen(e, logits)?;
    let wide = e.ty(&logits).dtype;
    let logs = log_softmax(e, &logits, 1)?;
    let index_ty = e.ty(targets);
    let counted = compare_scalar(e, CompareOp::Ne, targets, options.ignore_index as f64)?;
    // An ignored target need not be a class.
    let zero = super::full_like(e, targets, 0.0)?;
    let index = select(e, &counted, targets, &zero)?;
    let column = unsqueeze(e, &index, 1)?;
    let picked = gather(e, &logs, 1, &column)?;
    let picked = squeeze(e, &picked, &[1])?;
    let mut loss = neg(e, &picked)?;
    let mut factor = cast(e, &counted, wide)?;
    let weight = match &options.weight {
        Some(weight) => Some(cast(e, weight, wide)?),
        None => None,
    };
    if let Some(weight) = &weight {
        let flat = reshape(e, &index, &[index_ty.elements()])?;
        let chosen = index_select(e, weight, 0, &flat)?;
        let chosen = reshape(e, &chosen, &index_ty.shape)?;
        factor = mul(e, &factor, &chosen)?;
    }
    loss = mul(e, &loss, &factor)?;
    if options.label_smoothing > 0.0 {
        let spread = match &weight {
            Some(weight) => {
                let weight = super::along_axis(e, weight, ty.rank(), 1)?;
                mul(e, &logs, &weight)?
            }
            None => logs,
        };
        let total = sum(e, &spread, &[1], false)?;
        let zero = super::full_like(e, &total, 0.0)?;
        let total = select(e, &counted, &total, &zero)?;
        let smooth = mul_scalar(e, &total, -options.label_smoothing)?;
        let classes = super::size_value(e, &classes, wide)?;
        let smooth = div(e, &smooth, &classes)?;
        let sharp = mul_scalar(e, &loss, 1.0 - options.label_smoothing)?;
        loss = add(e, &sharp, &smooth)?;
    }
    let axes: Vec<usize> = (0..index_ty.rank()).collect();
    let y = match options.reduction {
        Reduction::None => loss,
        Reduction::Sum => sum(e, &loss, &axes, false)?,
        Reduction::Mean => {
            let total = sum(e, &loss, &axes, false)?;
            let count = sum(e, &factor, &axes, false)?;
            div(e, &total, &count)?
        }
    };
    cast(e, &y, dtype)
}

/// (x − y)².
#[track_caller]
pub fn mse_loss<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value, reduction: Reduction) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let (y, _) = widen(e, y)?;
    let difference = sub(e, &x, &y)?;
    let square = mul(e, &difference, &difference)?;
    let loss = reduce_all(e, &square, reduction)?;
    cast(e, &loss, dtype)
}

/// |x − y|.
#[track_caller]
pub fn l1_loss<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value, reduction: Reduction) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let (y, _) = widen(e, y)?;
    let difference = sub(e, &x, &y)?;
    let distance = abs(e, &difference)?;
    let loss = reduce_all(e, &distance, reduction)?;
    cast(e, &loss, dtype)
}

/// (x − y)²/2·beta⁻¹ up to a distance of beta, |x − y| − beta/2 beyond.
#[track_caller]
pub fn smooth_l1_loss<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value, beta: f64, reduction: Reduction) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let (y, _) = widen(e, y)?;
    let difference = sub(e, &x, &y)?;
    let distance = abs(e, &difference)?;
    let loss = if beta == 0.0 {
        distance
    } else {
        // With c = min(d, beta): c·(d − c/2)/beta is both branches at once.
        let near = clamp(e, &distance, None, Some(beta))?;
        let half = mul_scalar(e, &near, 0.5)?;
        let rest = sub(e, &distance, &half)?;
        let product = mul(e, &near, &rest)?;
        mul_scalar(e, &product, 1.0 / beta)?
    };
    let loss = reduce_all(e, &loss, reduction)?;
    cast(e, &loss, dtype)
}

/// −(y·ln σ(x) + (1 − y)·ln(1 − σ(x))) without overflow: max(x, 0) − x·y + ln(1 + e^−|x|).
#[track_caller]
pub fn binary_cross_entropy_with_logits<E: Emit>(
    e: &mut E,
    x: &E::Value,
    y: &E::Value,
    reduction: Reduction,
) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let wide: DType = e.ty(&x).dtype;
    let y = cast(e, y, wide)?;
    let positive = relu(e, &x)?;
    let product = mul(e, &x, &y)?;
    let difference = sub(e, &positive, &product)?;
    let rest = log1p_exp_neg_abs(e, &x)?;
    let loss = add(e, &difference, &rest)?;
    let loss = reduce_all(e, &loss, reduction)?;
    cast(e, &loss, dtype)
}
