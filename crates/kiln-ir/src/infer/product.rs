//! Type rules of products: dot and attention.

use super::{
    check_distinct, check_length, expect_computable, expect_dtype, expect_float, expect_number, expect_rank,
    expect_same_dtype, expect_same_size, take,
};
use crate::{BlockFormat, DType, Dim, DotDims, Scalar, TensorType, TypeError};

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
        (q, k, v, Some(mask))
    } else {
        let [q, k, v] = take(operands)?;
        (q, k, v, None)
    };
    for (operand, ty) in [q, k, v].into_iter().enumerate() {
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
    for axis in 0..3 {
        expect_same_size(k, &k.shape[axis], v, &v.shape[axis])?;
    }
    if heads != groups && heads.div_exact(groups).is_none() {
        let what = "query heads must be a multiple of key heads";
        return Err(TypeError::NotDivisible { what, size: heads.clone(), by: groups.clone() });
    }
    if let Some(mask) = mask {
        expect_computable(3, mask)?;
        let ok = mask.dtype == DType::Bool || mask.dtype == q.dtype || mask.dtype == DType::F32;
        expect_dtype(3, mask, ok, "bool, f32 or the queries' dtype")?;
        expect_rank(3, mask, 4)?;
        let scores = TensorType::new(q.dtype, [batch, heads, rows, columns].map(Dim::clone));
        for (wanted, got) in scores.shape.iter().zip(&mask.shape) {
            expect_same_size(&scores, wanted, mask, got)?;
        }
    }
    Ok(TensorType::new(q.dtype, [batch, heads, rows, &v.shape[3]].map(Dim::clone)))
}
