//! PyTorch's promotion of dtypes.

use kiln_ir::DType;

/// The dtype, or f32 for one that is no float.
pub(crate) fn as_float(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

/// Sums of integers and bools are i64.
pub(crate) fn as_total(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// The dtype that holds what two of one class hold.
pub(crate) fn common(x: DType, y: DType) -> DType {
    const ORDER: [DType; 9] =
        [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64, DType::F16, DType::F32, DType::F64];
    match (x, y) {
        (DType::Bf16, DType::F16) | (DType::F16, DType::Bf16) => DType::F32,
        (DType::U8, DType::I8) | (DType::I8, DType::U8) => DType::I16,
        (DType::Bf16, other) | (other, DType::Bf16) if matches!(other, DType::F32 | DType::F64) => other,
        (DType::Bf16, _) | (_, DType::Bf16) => DType::Bf16,
        _ => {
            let place = |dtype| ORDER.iter().position(|&d| d == dtype);
            if place(x) >= place(y) { x } else { y }
        }
    }
}

/// The dtype of operands of three classes: tensors, tensors of rank 0 and numbers. A class decides over the ones after it unless
/// theirs is of another kind (bool, integer, float).
pub(crate) fn promote(tensors: Option<DType>, scalars: Option<DType>, numbers: Option<DType>) -> Option<DType> {
    let prefer = |higher: Option<DType>, lower: Option<DType>| match (higher, lower) {
        (Some(h), Some(l)) if h == DType::Bool || (l.is_float() && !h.is_float()) => Some(common(h, l)),
        (Some(h), _) => Some(h),
        (None, lower) => lower,
    };
    prefer(prefer(tensors, scalars), numbers)
}
