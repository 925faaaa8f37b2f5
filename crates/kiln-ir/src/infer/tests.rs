//! What the rules refuse and how they say it; what they accept is in the examples.

use super::infer;
use crate::{
    ArgKind, BinaryOp, CompareOp, ConvDims, DType, Dim, DotDims, Literal, Op, ReduceKind, Scalar, ScatterKind,
    TensorType, TypeError, UnaryOp, WindowDims,
};
use std::collections::BTreeSet;

fn dims(text: &str) -> Vec<Dim> {
    text.split(", ").filter(|s| !s.is_empty()).map(|s| Dim::parse(s).unwrap()).collect()
}

fn try_infer(op: &Op, operands: &[&str]) -> Result<TensorType, TypeError> {
    let types: Vec<TensorType> = operands.iter().map(|text| text.parse().unwrap()).collect();
    infer(op, &types.iter().collect::<Vec<_>>())
}

fn f32(value: f64) -> Scalar {
    Scalar::float(DType::F32, value)
}

fn sum(axes: &[usize]) -> Op {
    Op::Reduce { kind: ReduceKind::Sum, axes: axes.to_vec() }
}

fn slice(start: &str, size: &str, step: &[i64]) -> Op {
    Op::Slice { start: dims(start), size: dims(size), step: step.to_vec() }
}

fn pad(low: &str, high: &str, value: Scalar) -> Op {
    Op::Pad { low: dims(low), high: dims(high), value }
}

fn dot(lb: &[usize], rb: &[usize], lc: &[usize], rc: &[usize], out: DType) -> Op {
    let dims = DotDims {
        lhs_batch: lb.to_vec(),
        rhs_batch: rb.to_vec(),
        lhs_contract: lc.to_vec(),
        rhs_contract: rc.to_vec(),
    };
    Op::Dot { dims: dims.into(), out }
}

fn conv(stride: &[usize], padding: &[(i64, i64)], dilation: &[usize], input_dilation: &[usize], groups: usize) -> Op {
    Op::Conv(
        ConvDims {
            stride: stride.to_vec(),
            padding: padding.to_vec(),
            dilation: dilation.to_vec(),
            input_dilation: input_dilation.to_vec(),
            groups,
        }
        .into(),
    )
}

fn pool(size: &[usize], stride: &[usize], dilation: &[usize], padding: &[(usize, usize)]) -> Op {
    let dims = WindowDims {
        size: size.to_vec(),
        stride: stride.to_vec(),
        dilation: dilation.to_vec(),
        padding: padding.to_vec(),
    };
    Op::ReduceWindow { kind: ReduceKind::Max, dims: dims.into() }
}

fn attention(mask: bool) -> Op {
    Op::Attention { causal: false, scale: Scalar::float(DType::F64, 0.5), mask }
}

fn sort(axis: usize, count: &str) -> Op {
    Op::SortIndices { axis, descending: false, count: Dim::parse(count).unwrap() }
}

/// Op, operands, message.
type Case = (Op, &'static [&'static str], &'static str);

fn pointwise_cases() -> Vec<Case> {
    let unary = |op| Op::Unary(op);
    let binary = |op| Op::Binary(op);
    vec![
        (Op::Input { index: 0 }, &[], "the type of an input is given, not inferred"),
        (unary(UnaryOp::Neg), &[], "takes one operand, not 0"),
        (binary(BinaryOp::Add), &["f32[2]"], "takes two operands, not 1"),
        (Op::Select, &["bool[2]"], "takes three operands, not 1"),
        (Op::Full { value: f32(1.0), shape: vec![] }, &["f32[2]"], "takes no operands, not 1"),
        (unary(UnaryOp::Neg), &["bool[2]"], "operand 0 is bool, expected a number"),
        (unary(UnaryOp::Exp), &["i32[2]"], "operand 0 is i32, expected a float"),
        (unary(UnaryOp::Floor), &["i32[2]"], "operand 0 is i32, expected a float"),
        (unary(UnaryOp::Not), &["f32[2]"], "operand 0 is f32, expected an integer or bool"),
        (unary(UnaryOp::IsNan), &["i32[2]"], "operand 0 is i32, expected a float"),
        (unary(UnaryOp::Abs), &["f8e4m3[2]"], "operand 0 is f8e4m3, which is for storage only: cast it first"),
        (binary(BinaryOp::Sub), &["bool[2]", "bool[2]"], "operand 0 is bool, expected a number"),
        (binary(BinaryOp::Pow), &["i64[2]", "i64[2]"], "operand 0 is i64, expected a float"),
        (binary(BinaryOp::Shl), &["bool[2]", "bool[2]"], "operand 0 is bool, expected an integer"),
        (binary(BinaryOp::And), &["i32[2]", "f32[2]"], "operand 1 is f32, expected an integer or bool"),
        (binary(BinaryOp::Add), &["f32[2]", "i4[2]"], "operand 1 is i4, which is for storage only: cast it first"),
        (binary(BinaryOp::Add), &["f32[2]", "i32[2]"], "f32[2] and i32[2] differ in dtype"),
        (binary(BinaryOp::Add), &["f32[2, 3]", "f32[2, 4]"], "f32[2, 3] and f32[2, 4] do not agree (3 ≠ 4)"),
        (binary(BinaryOp::Add), &["f32[b]", "f32[t]"], "f32[b] and f32[t] do not agree (b ≠ t)"),
        (binary(BinaryOp::Add), &["f32[1, 3]", "f32[2, 3]"], "f32[1, 3] and f32[2, 3] do not agree (1 ≠ 2)"),
        (binary(BinaryOp::Add), &["f32[3]", "f32[2, 3]"], "f32[3] and f32[2, 3] do not agree (rank 1 ≠ 2)"),
        (Op::Compare(CompareOp::Lt), &["i4[2]", "i4[2]"], "operand 0 is i4, which is for storage only: cast it first"),
        (Op::Select, &["i8[2]", "f32[2]", "f32[2]"], "operand 0 is i8, expected bool"),
        (Op::Select, &["bool[2]", "f32[3]", "f32[3]"], "bool[2] and f32[3] do not agree (2 ≠ 3)"),
        (Op::Bitcast(DType::I64), &["f32[2]"], "the bits of f32 are not i64s"),
        (Op::Bitcast(DType::Bool), &["u8[2]"], "the bits of u8 are not bools"),
    ]
}

fn source_cases() -> Vec<Case> {
    let literal = |dtype, shape: &[usize], bytes: &[u8]| {
        Op::Constant(Literal { dtype, shape: shape.to_vec(), bytes: bytes.into() })
    };
    let huge = 1 << 62;
    vec![
        (Op::Full { value: f32(1.0), shape: dims("2, -3") }, &[], "f32[2, -3] has a negative size"),
        (Op::Full { value: Scalar::Int(DType::I8, 300), shape: vec![] }, &[], "a value out of range for i8[]"),
        (Op::Full { value: Scalar::Float(DType::F16, 0.1), shape: vec![] }, &[], "a value out of range for f16[]"),
        (Op::Full { value: Scalar::Float(DType::I32, 1.0), shape: vec![] }, &[], "a value out of range for i32[]"),
        (
            Op::Full { value: f32(1.0), shape: dims("2147483648, 2147483648") },
            &[],
            "f32[2147483648, 2147483648] is too large to address",
        ),
        (
            Op::Full { value: f32(1.0), shape: dims("0, 2147483648, 2147483648") },
            &[],
            "f32[0, 2147483648, 2147483648] is too large to address",
        ),
        (
            Op::Full { value: f32(1.0), shape: dims("b*4611686018427387904, 4") },
            &[],
            "f32[b*4611686018427387904, 4] is too large to address",
        ),
        (literal(DType::F32, &[2], &[0; 4]), &[], "f32[2] takes 8 bytes, not 4"),
        (literal(DType::I4, &[3], &[0; 3]), &[], "i4[3] takes 2 bytes, not 3"),
        (literal(DType::Bool, &[1], &[2]), &[], "a byte that is neither 0 nor 1 for bool[1]"),
        (
            literal(DType::F64, &[huge, huge], &[]),
            &[],
            "f64[4611686018427387904, 4611686018427387904] is too large to address",
        ),
        (Op::Iota { dtype: DType::Bool, shape: dims("2"), axis: 0 }, &[], "an iota needs a number's dtype for bool[2]"),
        (Op::Iota { dtype: DType::I64, shape: dims("2"), axis: 1 }, &[], "axis 1 is out of range for i64[2]"),
        (Op::RandomBits { shape: dims("2"), stream: 0 }, &["i32[]"], "operand 0 is i32, expected i64"),
        (Op::RandomBits { shape: dims("2"), stream: 0 }, &["i64[1]"], "operand 0 is i64[1], expected rank 0"),
    ]
}

fn view_cases() -> Vec<Case> {
    vec![
        (Op::Reshape { shape: dims("7") }, &["f32[2, 3]"], "f32[2, 3] has 6 elements, f32[7] has 7"),
        (Op::Reshape { shape: dims("b*2") }, &["f32[b, 3]"], "f32[b, 3] has b*3 elements, f32[b*2] has b*2"),
        (Op::Reshape { shape: dims("-2, -3") }, &["f32[2, 3]"], "f32[-2, -3] has a negative size"),
        (Op::Permute { order: vec![0, 0] }, &["f32[2, 3]"], "[0, 0] is not a permutation of the axes of f32[2, 3]"),
        (Op::Permute { order: vec![0] }, &["f32[2, 3]"], "[0] is not a permutation of the axes of f32[2, 3]"),
        (Op::Permute { order: vec![0, 2] }, &["f32[2, 3]"], "[0, 2] is not a permutation of the axes of f32[2, 3]"),
        (Op::Expand { shape: dims("4, 3") }, &["f32[2, 3]"], "f32[2, 3] and f32[4, 3] do not agree (2 ≠ 4)"),
        (Op::Expand { shape: dims("4, 3") }, &["f32[3]"], "f32[3] and f32[4, 3] do not agree (rank 1 ≠ 2)"),
        (Op::Expand { shape: dims("-1") }, &["f32[1]"], "f32[-1] has a negative size"),
        (slice("0", "2, 3", &[1, 1]), &["f32[2, 3]"], "start has 1 entries, expected 2"),
        (slice("0, 0", "2", &[1, 1]), &["f32[2, 3]"], "size has 1 entries, expected 2"),
        (slice("0, 0", "2, 3", &[1]), &["f32[2, 3]"], "step has 1 entries, expected 2"),
        (slice("0", "2", &[0]), &["f32[4]"], "step must be positive, axis 0 has 0"),
        (slice("0", "2", &[-1]), &["f32[4]"], "step must be positive, axis 0 has -1"),
        (slice("-1", "2", &[1]), &["f32[4]"], "start must not be negative, axis 0 has -1"),
        (slice("0", "-2", &[1]), &["f32[4]"], "size must not be negative, axis 0 has -2"),
        (slice("1", "4", &[1]), &["f32[4]"], "4 elements from 1 by 1 do not fit axis 0 of f32[4]"),
        (slice("0", "3", &[2]), &["f32[4]"], "3 elements from 0 by 2 do not fit axis 0 of f32[4]"),
        (slice("5", "0", &[1]), &["f32[4]"], "0 elements from 5 by 1 do not fit axis 0 of f32[4]"),
        (slice("t", "1", &[1]), &["f32[t]"], "1 elements from t by 1 do not fit axis 0 of f32[t]"),
        (
            slice("1", "2", &[i64::MAX]),
            &["f32[4]"],
            "2 elements from 1 by 9223372036854775807 do not fit axis 0 of f32[4]",
        ),
        (pad("1", "1, 1", f32(0.0)), &["f32[2, 3]"], "low has 1 entries, expected 2"),
        (pad("1", "1, 1", f32(0.0)), &["f32[2]"], "high has 2 entries, expected 1"),
        (pad("-1", "0", f32(0.0)), &["f32[2]"], "low must not be negative, axis 0 has -1"),
        (pad("0", "-1", f32(0.0)), &["f32[2]"], "high must not be negative, axis 0 has -1"),
        (pad("0", "1", f32(0.0)), &["i32[2]"], "a value of another dtype for i32[2]"),
        (pad("0", "1", f32(0.0)), &["i4[2]"], "operand 0 is i4, which is for storage only: cast it first"),
        (pad("0", "9223372036854775807", f32(0.0)), &["f32[2]"], "f32[undefined] is too large to address"),
        (Op::Flip { axes: vec![2] }, &["f32[2, 3]"], "axis 2 is out of range for f32[2, 3]"),
        (Op::Flip { axes: vec![1, 0] }, &["f32[2, 3]"], "axes [1, 0] are not ascending"),
        (Op::Flip { axes: vec![1, 1] }, &["f32[2, 3]"], "axis 1 of f32[2, 3] is named twice"),
        (Op::Concat { axis: 0 }, &[], "takes at least one operand, not 0"),
        (Op::Concat { axis: 1 }, &["f32[2]"], "axis 1 is out of range for f32[2]"),
        (Op::Concat { axis: 0 }, &["f32[2]", "f64[2]"], "f32[2] and f64[2] differ in dtype"),
        (Op::Concat { axis: 0 }, &["f32[2, 3]", "f32[2, 4]"], "f32[2, 3] and f32[2, 4] do not agree (3 ≠ 4)"),
    ]
}

fn blocks() -> Op {
    Op::Dequantize { format: crate::BlockFormat::Q4_0 }
}

fn axis_cases() -> Vec<Case> {
    let unfold = |axis, size, stride, dilation| Op::Unfold { axis, size, stride, dilation };
    let scatter = |kind| Op::Scatter { axis: 0, kind };
    vec![
        (sum(&[2]), &["f32[2, 3]"], "axis 2 is out of range for f32[2, 3]"),
        (blocks(), &["i8[18]"], "operand 0 is i8, expected u8"),
        (blocks(), &["u8[]"], "operand 0 is u8[], expected rank 1 or more"),
        (blocks(), &["u8[2, 19]"], "the last axis must hold whole blocks: 19 is not a multiple of 18"),
        (blocks(), &["u8[2, t*18]"], "the last axis must hold whole blocks: t*18 is not a multiple of 18"),
        (sum(&[0, 0]), &["f32[2, 3]"], "axis 0 of f32[2, 3] is named twice"),
        (sum(&[1, 0]), &["f32[2, 3]"], "axes [1, 0] are not ascending"),
        (sum(&[0]), &["bool[2]"], "operand 0 is bool, expected a number"),
        (sum(&[0]), &["f8e5m2[2]"], "operand 0 is f8e5m2, which is for storage only: cast it first"),
        (
            Op::ArgReduce { kind: ArgKind::Max, axis: 0 },
            &["f32[0]"],
            "axis 0 of f32[0] is empty and has no extreme element",
        ),
        (Op::ArgReduce { kind: ArgKind::Min, axis: 1 }, &["f32[2]"], "axis 1 is out of range for f32[2]"),
        (Op::Scan { kind: ReduceKind::Sum, axis: 1, reverse: false }, &["f32[2]"], "axis 1 is out of range for f32[2]"),
        (
            Op::Scan { kind: ReduceKind::Prod, axis: 0, reverse: false },
            &["bool[2]"],
            "operand 0 is bool, expected a number",
        ),
        (sort(0, "4"), &["f32[3]"], "4 elements requested on axis 0 of f32[3]"),
        (sort(0, "t + 1"), &["f32[t]"], "t + 1 elements requested on axis 0 of f32[t]"),
        (sort(0, "-1"), &["f32[3]"], "count must not be negative, axis 0 has -1"),
        (sort(1, "1"), &["f32[3]"], "axis 1 is out of range for f32[3]"),
        (unfold(1, 2, 1, 1), &["f32[5]"], "axis 1 is out of range for f32[5]"),
        (unfold(0, 0, 1, 1), &["f32[5]"], "size must be positive, axis 0 has 0"),
        (unfold(0, 2, 0, 1), &["f32[5]"], "stride must be positive, axis 0 has 0"),
        (unfold(0, 2, 1, 0), &["f32[5]"], "dilation must be positive, axis 0 has 0"),
        (
            unfold(0, 3, 1, 3),
            &["f32[5]"],
            "a window of 7 does not fit the 5 elements of axis 0 of f32[5], padding included",
        ),
        (Op::Gather { axis: 0 }, &["f32[5]", "i8[2]"], "operand 1 is i8, expected i32 or i64"),
        (Op::Gather { axis: 1 }, &["f32[5]", "i64[2]"], "axis 1 is out of range for f32[5]"),
        (Op::Gather { axis: 0 }, &["f32[5, 2]", "i64[3, 4]"], "f32[5, 2] and i64[3, 4] do not agree (2 ≠ 4)"),
        (Op::Gather { axis: 0 }, &["f32[5, 2]", "i64[3]"], "f32[5, 2] and i64[3] do not agree (rank 2 ≠ 1)"),
        (scatter(ScatterKind::Set), &["f32[5]", "i64[2]", "f32[3]"], "i64[2] and f32[3] do not agree (2 ≠ 3)"),
        (scatter(ScatterKind::Set), &["f32[5]", "i64[2]", "f64[2]"], "f32[5] and f64[2] differ in dtype"),
        (scatter(ScatterKind::Add), &["bool[5]", "i64[2]", "bool[2]"], "operand 0 is bool, expected a number"),
        (scatter(ScatterKind::Set), &["f32[5]", "f32[2]", "f32[2]"], "operand 1 is f32, expected i32 or i64"),
    ]
}

fn product_cases() -> Vec<Case> {
    let matmul = |out| dot(&[], &[], &[1], &[0], out);
    let (q, k, v) = ("f32[1, 4, 3, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 6]");
    let cases: Vec<(Op, Vec<&'static str>, &'static str)> = vec![
        (matmul(DType::F32), vec!["f32[2, 3]", "f32[4, 5]"], "f32[2, 3] and f32[4, 5] do not agree (3 ≠ 4)"),
        (matmul(DType::F32), vec!["f32[2, t]", "f32[s, 5]"], "f32[2, t] and f32[s, 5] do not agree (t ≠ s)"),
        (matmul(DType::F32), vec!["f32[2, 3]", "bf16[3, 5]"], "f32[2, 3] and bf16[3, 5] differ in dtype"),
        (matmul(DType::Bool), vec!["bool[2, 3]", "bool[3, 5]"], "operand 0 is bool, expected a number"),
        (
            matmul(DType::F64),
            vec!["f32[2, 3]", "f32[3, 5]"],
            "a result dtype that is neither the operands' nor its accumulator's for f32[2, 3]",
        ),
        (dot(&[0], &[], &[1], &[0], DType::F32), vec!["f32[2, 3]", "f32[3, 5]"], "rhs_batch has 0 entries, expected 1"),
        (
            dot(&[], &[], &[1], &[], DType::F32),
            vec!["f32[2, 3]", "f32[3, 5]"],
            "rhs_contract has 0 entries, expected 1",
        ),
        (dot(&[1], &[0], &[1], &[1], DType::F32), vec!["f32[2, 3]", "f32[3, 3]"], "axis 1 of f32[2, 3] is named twice"),
        (dot(&[], &[], &[1], &[2], DType::F32), vec!["f32[2, 3]", "f32[3, 5]"], "axis 2 is out of range for f32[3, 5]"),
        (attention(false), vec![q, k], "takes three operands, not 2"),
        (attention(true), vec![q, k, v], "takes four operands, not 3"),
        (attention(false), vec!["i32[1, 4, 3, 8]", k, v], "operand 0 is i32, expected a float"),
        (attention(false), vec!["f32[4, 3, 8]", k, v], "operand 0 is f32[4, 3, 8], expected rank 4"),
        (attention(false), vec!["f64[1, 4, 3, 8]", k, v], "f64[1, 4, 3, 8] and f32[1, 2, 5, 8] differ in dtype"),
        (attention(false), vec!["f32[1, 4, 3, 7]", k, v], "f32[1, 4, 3, 7] and f32[1, 2, 5, 8] do not agree (7 ≠ 8)"),
        (
            attention(false),
            vec!["f32[1, 3, 3, 8]", k, v],
            "query heads must be a multiple of key heads: 3 is not a multiple of 2",
        ),
        (attention(false), vec![q, k, "f32[1, 2, 6, 6]"], "f32[1, 2, 5, 8] and f32[1, 2, 6, 6] do not agree (5 ≠ 6)"),
        (
            attention(true),
            vec![q, k, v, "bool[1, 1, 3, 5]"],
            "f32[1, 4, 3, 5] and bool[1, 1, 3, 5] do not agree (4 ≠ 1)",
        ),
        (
            attention(true),
            vec![q, k, v, "i32[1, 4, 3, 5]"],
            "operand 3 is i32, expected bool, f32 or the queries' dtype; i64 for bounds of attention",
        ),
        (
            Op::Attention { causal: true, scale: f32(1.0), mask: false },
            vec![q, k, v],
            "a scale that is not f64 for f32[1, 4, 3, 8]",
        ),
    ];
    cases.into_iter().map(|(op, operands, message)| (op, &*operands.leak(), message)).collect()
}

fn window_cases() -> Vec<Case> {
    let plain = |groups| conv(&[1], &[(0, 0)], &[1], &[1], groups);
    vec![
        (plain(1), &["f32[2, 3]", "f32[2, 3]"], "operand 0 is f32[2, 3], expected rank 3 or more"),
        (plain(1), &["f32[2, 3, 8]", "f32[4, 3]"], "f32[2, 3, 8] and f32[4, 3] do not agree (rank 3 ≠ 2)"),
        (plain(1), &["bool[2, 3, 8]", "bool[4, 3, 3]"], "operand 0 is bool, expected a number"),
        (plain(1), &["f32[2, 3, 8]", "f16[4, 3, 3]"], "f32[2, 3, 8] and f16[4, 3, 3] differ in dtype"),
        (conv(&[], &[(0, 0)], &[1], &[1], 1), &["f32[2, 3, 8]", "f32[4, 3, 3]"], "stride has 0 entries, expected 1"),
        (conv(&[1], &[], &[1], &[1], 1), &["f32[2, 3, 8]", "f32[4, 3, 3]"], "padding has 0 entries, expected 1"),
        (conv(&[1], &[(0, 0)], &[], &[1], 1), &["f32[2, 3, 8]", "f32[4, 3, 3]"], "dilation has 0 entries, expected 1"),
        (
            conv(&[1], &[(0, 0)], &[1], &[], 1),
            &["f32[2, 3, 8]", "f32[4, 3, 3]"],
            "input_dilation has 0 entries, expected 1",
        ),
        (
            conv(&[0], &[(0, 0)], &[1], &[1], 1),
            &["f32[2, 3, 8]", "f32[4, 3, 3]"],
            "stride must be positive, axis 0 has 0",
        ),
        (
            conv(&[1], &[(0, 0)], &[0], &[1], 1),
            &["f32[2, 3, 8]", "f32[4, 3, 3]"],
            "dilation must be positive, axis 0 has 0",
        ),
        (
            conv(&[1], &[(0, 0)], &[1], &[0], 1),
            &["f32[2, 3, 8]", "f32[4, 3, 3]"],
            "input_dilation must be positive, axis 0 has 0",
        ),
        (plain(0), &["f32[2, 3, 8]", "f32[4, 3, 3]"], "groups must be positive, axis 0 has 0"),
        (plain(2), &["f32[2, 3, 8]", "f32[4, 3, 3]"], "f32[2, 3, 8] and f32[4, 3, 3] do not agree (3 ≠ 6)"),
        (
            plain(2),
            &["f32[2, 4, 8]", "f32[5, 2, 3]"],
            "output channels must be a multiple of the groups: 5 is not a multiple of 2",
        ),
        (plain(1), &["f32[2, 3, 8]", "f32[4, 3, 0]"], "kernel size must be positive, axis 2 has 0"),
        (
            conv(&[1], &[(1, 1)], &[2], &[1], 1),
            &["f32[2, 3, 4]", "f32[4, 3, 4]"],
            "a window of 7 does not fit the 6 elements of axis 2 of f32[2, 3, 4], padding included",
        ),
        (
            conv(&[1], &[(-3, -2)], &[1], &[1], 1),
            &["f32[2, 3, 4]", "f32[4, 3, 1]"],
            "the padded size must not be negative, axis 2 has -1",
        ),
        (pool(&[2], &[1, 1], &[1, 1], &[(0, 0); 2]), &["f32[2, 8]"], "size has 1 entries, expected 2"),
        (pool(&[2, 2], &[1], &[1, 1], &[(0, 0); 2]), &["f32[2, 8]"], "stride has 1 entries, expected 2"),
        (pool(&[2, 2], &[1, 1], &[1], &[(0, 0); 2]), &["f32[2, 8]"], "dilation has 1 entries, expected 2"),
        (pool(&[2, 2], &[1, 1], &[1, 1], &[(0, 0)]), &["f32[2, 8]"], "padding has 1 entries, expected 2"),
        (pool(&[0], &[1], &[1], &[(0, 0)]), &["f32[8]"], "size must be positive, axis 0 has 0"),
        (pool(&[2], &[0], &[1], &[(0, 0)]), &["f32[8]"], "stride must be positive, axis 0 has 0"),
        (pool(&[2], &[1], &[0], &[(0, 0)]), &["f32[8]"], "dilation must be positive, axis 0 has 0"),
        (
            pool(&[4], &[1], &[1], &[(0, 1)]),
            &["f32[2]"],
            "a window of 4 does not fit the 3 elements of axis 0 of f32[2], padding included",
        ),
        (pool(&[1], &[1], &[1], &[(usize::MAX, 0)]), &["f32[2]"], "f32[undefined] is too large to address"),
    ]
}

fn choice_cases() -> Vec<Case> {
    let cond = |then: &str, otherwise: &str, result| {
        let side = |text: &str| crate::Graph::parse(text).unwrap();
        let branches = crate::Branches::new(side(then), side(otherwise));
        Op::Cond { branches: std::sync::Arc::new(branches), result }
    };
    let (same, neg) = ("graph(%0: f32[n]) { return %0 }", "graph(%0: f32[n]) { %1: f32[n] = neg %0 return %1 }");
    let both = "graph(%0: f32[n]) { return %0, %0 }";
    let updates = "graph(%0: f32[n]) { %1: f32[n] = neg %0 return %1 -> input 0 }";
    let halves = "graph(%0: f32[n]) { %1: i4[2] = full {value=1} return %1 }";
    vec![
        (cond(same, neg, 0), &[], "there is no predicate"),
        (cond(same, neg, 0), &["f32[]", "f32[n]"], "the predicate is not a bool without axes"),
        (cond(same, neg, 0), &["bool[1]", "f32[n]"], "the predicate is not a bool without axes"),
        (cond(same, neg, 0), &["bool[]", "f64[n]"], "a side takes other operands than there are"),
        (cond(same, updates, 0), &["bool[]", "f32[n]"], "a side updates an input"),
        (cond(same, both, 0), &["bool[]", "f32[n]"], "its sides differ in the types of their results"),
        (cond(same, neg, 1), &["bool[]", "f32[n]"], "its sides have too few results"),
        (cond(halves, halves, 0), &["bool[]", "f32[n]"], "a result has elements of half a byte"),
    ]
}

fn loop_cases() -> Vec<Case> {
    let region = |body: &str, turns: &str, carried, scanned, result| {
        let body = crate::Graph::parse(body).unwrap();
        let region = crate::Region::new(body, Dim::parse(turns).unwrap(), carried, scanned, false);
        Op::Loop { region: std::sync::Arc::new(region), result }
    };
    let until = |body: &str| {
        let region = crate::Region::conditional(crate::Graph::parse(body).unwrap());
        Op::Loop { region: std::sync::Arc::new(region), result: 0 }
    };
    let sum = "graph(%0: f32[], %1: f32[]) { %2: f32[] = add %0, %1 return %2, %2 }";
    let wider = "graph(%0: f32[2], %1: f32[]) { %2: f32[1] = reshape %1 return %2 }";
    let updates = "graph(%0: f32[], %1: f32[]) { %2: f32[] = add %0, %1 return %2 -> input 0 }";
    vec![
        (region(sum, "n", 1, 1, 0), &["f32[]"], "its body has more or fewer inputs than it has operands"),
        (
            region(sum, "n", usize::MAX, 1, 0),
            &["f32[]", "f32[n]"],
            "its body has more or fewer inputs than it has operands",
        ),
        (region(sum, "n", 1, 1, 2), &["f32[]", "f32[n]"], "its body has too few outputs"),
        (region(sum, "n", 1, 1, 1), &["f32[]", "f32[4]"], "an operand is not of the type that its body takes"),
        (region(sum, "n", 1, 1, 1), &["f64[]", "f32[n]"], "an operand is not of the type that its body takes"),
        (region(sum, "-1", 2, 0, 1), &["f32[]", "f32[]"], "its number of turns is negative"),
        (
            until("graph(%0: f32[]) { %1: f32[] = neg %0 return %1 }"),
            &["f32[]"],
            "the last of what it carries is not a bool without axes",
        ),
        (region(updates, "n", 1, 1, 0), &["f32[]", "f32[n]"], "its body updates an input"),
        (
            region(wider, "n", 1, 1, 0),
            &["f32[2]", "f32[n]"],
            "what it carries on is of another type than what it began with",
        ),
    ]
}

fn cases() -> Vec<Case> {
    [
        pointwise_cases(),
        source_cases(),
        view_cases(),
        axis_cases(),
        product_cases(),
        window_cases(),
        loop_cases(),
        choice_cases(),
    ]
    .concat()
}

#[test]
fn every_refusal_says_what_is_wrong() {
    for (op, operands, message) in cases() {
        match try_infer(&op, operands) {
            Ok(ty) => panic!("{op:?} on {operands:?} gives {ty}, expected: {message}"),
            Err(error) => assert_eq!(error.to_string(), message, "{op:?} on {operands:?}"),
        }
    }
}

/// A number for each variant, so that a new one does not compile before it is counted.
fn number(error: &TypeError) -> usize {
    match error {
        TypeError::OperandCount { .. } => 0,
        TypeError::WrongDType { .. } => 1,
        TypeError::StorageOnly { .. } => 2,
        TypeError::DTypesDiffer { .. } => 3,
        TypeError::ShapesDiffer { .. } => 4,
        TypeError::AxisOutOfRange { .. } => 5,
        TypeError::RepeatedAxis { .. } => 6,
        TypeError::AxesNotAscending { .. } => 7,
        TypeError::NotAPermutation { .. } => 8,
        TypeError::WrongRank { .. } => 9,
        TypeError::AttributeLength { .. } => 10,
        TypeError::NotPositive { .. } => 11,
        TypeError::Negative { .. } => 12,
        TypeError::NegativeSize { .. } => 13,
        TypeError::ElementCounts { .. } => 14,
        TypeError::SliceOutOfRange { .. } => 15,
        TypeError::WindowTooLarge { .. } => 16,
        TypeError::NotDivisible { .. } => 17,
        TypeError::CountTooLarge { .. } => 18,
        TypeError::EmptyAxis { .. } => 19,
        TypeError::BadBitcast { .. } => 20,
        TypeError::LiteralLength { .. } => 21,
        TypeError::BadAttribute { .. } => 22,
        TypeError::TooLarge { .. } => 23,
        TypeError::InputType => 24,
        TypeError::BadLoop { .. } => 25,
        TypeError::BadCond { .. } => 26,
        // Of builders: no op is ever written with these.
        TypeError::PaddingTooLarge { .. } => 27,
        TypeError::BadEquation { .. } => 28,
    }
}

#[test]
fn every_error_has_a_case() {
    let errors = cases().into_iter().filter_map(|(op, operands, _)| try_infer(&op, operands).err());
    let seen: BTreeSet<usize> = errors.map(|error| number(&error)).collect();
    assert_eq!(seen, (0..=26).collect());
}

/// Symbolic sizes are computed, not only compared.
#[test]
fn results_of_symbolic_sizes() {
    let check = |op: &Op, operands: &[&str], result: &str| {
        assert_eq!(try_infer(op, operands).map(|ty| ty.to_string()), Ok(result.to_owned()), "{op:?}");
    };
    check(&Op::Concat { axis: 1 }, &["f32[b, t]", "f32[b, 1]", "f32[b, t]"], "f32[b, t*2 + 1]");
    check(&pad("1, t", "0, 2", f32(0.0)), &["f32[b, 3]"], "f32[b + 1, t + 5]");
    check(&Op::Unfold { axis: 0, size: 3, stride: 2, dilation: 1 }, &["f32[t]"], "f32[(t + 1) // 2 - 1, 3]");
    check(&conv(&[1], &[(1, 1)], &[1], &[1], 1), &["f32[b, c, t]", "f32[o, c, 3]"], "f32[b, o, t]");
    check(&conv(&[2], &[(0, 0)], &[1], &[1], 2), &["f32[b, c*2, t]", "f32[o*2, c, 2]"], "f32[b, o*2, t // 2]");
    check(&dot(&[0], &[0], &[2], &[1], DType::F32), &["bf16[b, t, 4]", "bf16[b, 4, s]"], "f32[b, t, s]");
    check(&sum(&[0, 1]), &["f32[b, t, 3]"], "f32[1, 1, 3]");
    check(&Op::Reshape { shape: dims("t, b*4") }, &["f32[b, t*4]"], "f32[t, b*4]");
}
