//! Type rules of products: dot and attention.

use super::{
    check_distinct, check_length, expect_computable, expect_dtype, expect_float, expect_number, expect_rank,
    expect_same_dtype, expect_same_size, take,
};
use crate::op::mask_columns;
use crate::{AttentionOperand, BlockFormat, DType, Dim, DotDims, Scalar, TensorType, TypeError};

pub(super) fn dot(dims: &DotDims, out: DType, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [lhs, rhs] = take(operands)?;
    expect_number(0, lhs)?;
    expect_number(1, rhs)?;
    expect_same_dtype(lhs, rhs)?;
    let wider = match lhs.dtype {
        DType::F16 | DType::Bf16 => DType::F32,
        DType::I8 | DType::U8 => DType::I32,
        other => other,
    };
    if out != lhs.dtype && out != wider {
        return Err(TypeError::BadAttribute {
            what: "a result dtype that is neither the operands' nor its accumulator's",
            ty: lhs.clone(),
        });
    }
    check_length("rhs_batch", dims.rhs_batch.len(), dims.lhs_batch.len())?;
    check_length("rhs_contract", dims.rhs_contract.len(), dims.lhs_contract.len())?;
    check_distinct(dims.lhs_batch.iter().chain(&dims.lhs_contract).copied(), lhs)?;
    check_distinct(dims.rhs_batch.iter().chain(&dims.rhs_contract).copied(), rhs)?;
    let lhs_axes = dims.lhs_batch.iter().chain(&dims.lhs_contract);
    let rhs_axes = dims.rhs_batch.iter().chain(&dims.rhs_contract);
    for (&l, &r) in lhs_axes.zip(rhs_axes) {
        expect_same_size(lhs, &lhs.shape[l], rhs, &rhs.shape[r])?;
    }
    let mut shape: Vec<Dim> = dims.lhs_batch.iter().map(|&axis| lhs.shape[axis].clone()).collect();
    shape.extend(free(lhs, &dims.lhs_batch, &dims.lhs_contract));
    shape.extend(free(rhs, &dims.rhs_batch, &dims.rhs_contract));
    Ok(TensorType::new(out, shape))
}

pub(super) fn dequantize(format: BlockFormat, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_dtype(0, x, x.dtype == DType::U8, "u8")?;
    let Some(last) = x.shape.last() else {
        return Err(TypeError::WrongRank { operand: 0, ty: x.clone(), expected: "1 or more".into() });
    };
    let block = format.bytes() as i64;
    let Some(blocks) = last.as_const().filter(|bytes| bytes % block == 0).map(|bytes| bytes / block) else {
        let what = "the last axis must hold whole blocks";
        return Err(TypeError::NotDivisible { what, size: last.clone(), by: Dim::from(block) });
    };
    let mut shape = x.shape.clone();
    shape.pop();
    // A tensor of bytes fits into memory; what it stands for need not.
    match blocks.checked_mul(format.elements() as i64) {
        Some(elements) => shape.push(Dim::from(elements)),
        None => return Err(TypeError::TooLarge { ty: x.clone() }),
    }
    Ok(TensorType::new(DType::F32, shape))
}

/// The sizes of the axes that are neither batch nor contracted, in order.
fn free(ty: &TensorType, batch: &[usize], contract: &[usize]) -> Vec<Dim> {
    let mut taken = vec![false; ty.rank()];
    batch.iter().chain(contract).for_each(|&axis| taken[axis] = true);
    ty.shape.iter().zip(taken).filter(|(_, taken)| !taken).map(|(size, _)| size.clone()).collect()
}

pub(super) fn attention(scale: Scalar, masked: bool, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let (q, k, v, mask) = if masked {
        let [q, k, v, mask] = take(operands)?;
        (q, k, v, Some((3, mask)))
    } else {
        let [q, k, v] = take(operands)?;
        (q, k, v, None)
    };
    values(q, k, v)?;
    scores(scale, q, k, mask)?;
    Ok(TensorType::new(q.dtype, [&q.shape[0], &q.shape[1], &q.shape[2], &v.shape[3]].map(Dim::clone)))
}

/// The logarithms of the sums of attention.
pub(super) fn attention_logsumexp(
    scale: Scalar,
    masked: bool,
    operands: &[&TensorType],
) -> Result<TensorType, TypeError> {
    let (q, k, mask) = if masked {
        let [q, k, mask] = take(operands)?;
        (q, k, Some((2, mask)))
    } else {
        let [q, k] = take(operands)?;
        (q, k, None)
    };
    scores(scale, q, k, mask)
}

/// The gradient of attention in one of its operands.
pub(super) fn attention_gradient(
    of: AttentionOperand,
    scale: Scalar,
    masked: bool,
    operands: &[&TensorType],
) -> Result<TensorType, TypeError> {
    let ([q, k, v, gradient, logsumexp, delta], mask) = if masked {
        let [q, k, v, gradient, logsumexp, delta, mask] = take(operands)?;
        ([q, k, v, gradient, logsumexp, delta], Some((6, mask)))
    } else {
        (take(operands)?, None)
    };
    values(q, k, v)?;
    let row = scores(scale, q, k, mask)?;
    expect_same_dtype(q, gradient)?;
    expect_rank(3, gradient, 4)?;
    for axis in 0..3 {
        expect_same_size(q, &q.shape[axis], gradient, &gradient.shape[axis])?;
    }
    expect_same_size(v, &v.shape[3], gradient, &gradient.shape[3])?;
    for (operand, ty) in [(4, logsumexp), (5, delta)] {
        expect_same_dtype(&row, ty)?;
        expect_rank(operand, ty, 4)?;
        for (wanted, got) in row.shape.iter().zip(&ty.shape) {
            expect_same_size(&row, wanted, ty, got)?;
        }
    }
    Ok(match of {
        AttentionOperand::Queries => q.clone(),
        AttentionOperand::Keys => k.clone(),
        AttentionOperand::Values => v.clone(),
    })
}

/// Checks the values of attention against its queries and keys.
fn values(q: &TensorType, k: &TensorType, v: &TensorType) -> Result<(), TypeError> {
    for (operand, ty) in [q, k, v].into_iter().enumerate() {
        expect_float(operand, ty)?;
        expect_rank(operand, ty, 4)?;
        expect_same_dtype(q, ty)?;
    }
    (0..3).try_for_each(|axis| expect_same_size(k, &k.shape[axis], v, &v.shape[axis]))
}

/// Checks the operands of attention's scores, the mask with its position among the operands; gives the type of what there is
/// one of a row, `[b, h, t, 1]`.
fn scores(
    scale: Scalar,
    q: &TensorType,
    k: &TensorType,
    mask: Option<(usize, &TensorType)>,
) -> Result<TensorType, TypeError> {
    for (operand, ty) in [q, k].into_iter().enumerate() {
        expect_float(operand, ty)?;
        expect_rank(operand, ty, 4)?;
        expect_same_dtype(q, ty)?;
    }
    if !matches!(scale, Scalar::Float(DType::F64, _)) {
        return Err(TypeError::BadAttribute { what: "a scale that is not f64", ty: q.clone() });
    }
    let (batch, heads, rows, depth) = (&q.shape[0], &q.shape[1], &q.shape[2], &q.shape[3]);
    let (groups, columns) = (&k.shape[1], &k.shape[2]);
    expect_same_size(q, batch, k, &k.shape[0])?;
    expect_same_size(q, depth, k, &k.shape[3])?;
    if heads != groups && heads.div_exact(groups).is_none() {
        let what = "query heads must be a multiple of key heads";
        return Err(TypeError::NotDivisible { what, size: heads.clone(), by: groups.clone() });
    }
    if let Some((operand, mask)) = mask {
        expect_computable(operand, mask)?;
        // Bounds are for attention alone, whose mask comes behind the values.
        let bounds = mask.dtype == DType::I64 && operand == 3;
        let ok = matches!(mask.dtype, DType::Bool | DType::F32) || mask.dtype == q.dtype || bounds;
        expect_dtype(operand, mask, ok, "bool, f32 or the queries' dtype; i64 for bounds of attention")?;
        expect_rank(operand, mask, 4)?;
        let columns = mask_columns(mask.dtype, columns);
        let scores = TensorType::new(q.dtype, [batch, heads, rows, &columns].map(Dim::clone));
        for (wanted, got) in scores.shape.iter().zip(&mask.shape) {
            expect_same_size(&scores, wanted, mask, got)?;
        }
    }
    Ok(TensorType::new(q.dtype.compute_type(), [batch, heads, rows, &Dim::from(1)].map(Dim::clone)))
}
