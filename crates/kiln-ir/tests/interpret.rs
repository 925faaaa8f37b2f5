//! What each op means, spelled out on small tensors.

use kiln_ir::interpret::{self, Fault, InterpretError};
use kiln_ir::{
    ArgKind, BinaryOp, CompareOp, ConvDims, DType, Dim, DotDims, Graph, HostTensor, Op, ReduceKind, Scalar,
    ScatterKind, Source, TensorType, Tolerance, UnaryOp, WindowDims,
};

/// Runs one op on tensors of constant shape.
fn apply(op: Op, operands: &[&HostTensor]) -> Result<HostTensor, InterpretError> {
    let mut graph = Graph::new();
    let inputs: Vec<_> = operands
        .iter()
        .map(|t| graph.input(TensorType::fixed(t.dtype(), t.shape()), Source::default()).unwrap())
        .collect();
    let node = graph.add(op, &inputs, Source::default()).unwrap();
    graph.output(node);
    let owned: Vec<HostTensor> = operands.iter().map(|&t| t.clone()).collect();
    let result = interpret::run(&graph, &owned)?.remove(0);
    assert_eq!(TensorType::fixed(result.dtype(), result.shape()), *graph.ty(node));
    Ok(result)
}

fn floats(shape: &[usize], values: &[f64]) -> HostTensor {
    HostTensor::from_f64(DType::F64, shape, values).unwrap()
}

fn ints(dtype: DType, values: &[i64]) -> HostTensor {
    HostTensor::from_i64(dtype, &[values.len()], values).unwrap()
}

/// 0, 1, 2, … in a shape.
fn count(shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    floats(shape, &(0..n).map(|i| i as f64).collect::<Vec<_>>())
}

#[track_caller]
fn check_floats(op: Op, operands: &[&HostTensor], want: &[f64]) {
    let got = apply(op, operands).unwrap();
    let want = HostTensor::from_f64(got.dtype(), got.shape(), want).unwrap();
    got.compare(&want, Tolerance { absolute: 1e-14, relative: 1e-14 }).unwrap();
}

#[track_caller]
fn check_ints(op: Op, operands: &[&HostTensor], want: &[i64]) {
    assert_eq!(apply(op, operands).unwrap().to_i64(), want);
}

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

#[test]
fn unary_ops_on_floats() {
    use UnaryOp::*;
    for (op, x, want) in [
        (Neg, 0.5, -0.5),
        (Abs, -2.5, 2.5),
        (Sign, -3.0, -1.0),
        (Sign, NAN, NAN),
        (Floor, -1.5, -2.0),
        (Ceil, -1.5, -1.0),
        (Round, 2.5, 2.0),
        (Round, -3.5, -4.0),
        (Trunc, -1.5, -1.0),
        (Sqrt, 2.25, 1.5),
        (Sqrt, -1.0, NAN),
        (Rsqrt, 4.0, 0.5),
        (Rsqrt, 0.0, INF),
        (Recip, 4.0, 0.25),
        (Exp, 1.0, std::f64::consts::E),
        (Exp2, 3.0, 8.0),
        (Expm1, 1e-10, 1.00000000005e-10),
        (Log, -1.0, NAN),
        (Log, 0.0, -INF),
        (Log2, 8.0, 3.0),
        (Log1p, 1e-10, 9.9999999995e-11),
        (Sin, 1.0, 0.8414709848078965),
        (Cos, 1.0, 0.5403023058681398),
        (Tan, 1.0, 1.5574077246549023),
        (Asin, 1.0, std::f64::consts::FRAC_PI_2),
        (Acos, -1.0, std::f64::consts::PI),
        (Atan, INF, std::f64::consts::FRAC_PI_2),
        (Tanh, 0.5, 0.46211715726000973),
        (Erf, 0.5, 0.5204998778130465),
        (ErfInv, 0.5, 0.4769362762044699),
        (Lgamma, 0.5, 0.5723649429247001),
    ] {
        let got = apply(Op::Unary(op), &[&floats(&[1], &[x])]).unwrap();
        got.compare(&floats(&[1], &[want]), Tolerance { absolute: 0.0, relative: 1e-14 })
            .unwrap_or_else(|e| panic!("{}({x}): {e}", op.name()));
    }
    assert!(apply(Op::Unary(Sign), &[&floats(&[1], &[-0.0])]).unwrap().get_f64(0).is_sign_negative());
    check_ints(Op::Unary(IsNan), &[&floats(&[3], &[NAN, INF, 1.0])], &[1, 0, 0]);
}

#[test]
fn short_floats_round_after_each_op() {
    let x = HostTensor::from_f64(DType::Bf16, &[1], &[256.0]).unwrap();
    let one = HostTensor::from_f64(DType::Bf16, &[1], &[1.0]).unwrap();
    check_floats(Op::Binary(BinaryOp::Add), &[&x, &one], &[256.0]);
    let x = HostTensor::from_f64(DType::F16, &[1], &[60000.0]).unwrap();
    check_floats(Op::Binary(BinaryOp::Add), &[&x, &x], &[INF]);
}

#[test]
fn integers_wrap_at_their_width() {
    use BinaryOp::*;
    let bin = |op, dtype, x: i64, y: i64| {
        apply(Op::Binary(op), &[&ints(dtype, &[x]), &ints(dtype, &[y])]).unwrap().get_i64(0)
    };
    assert_eq!(bin(Add, DType::I8, 127, 1), -128);
    assert_eq!(bin(Sub, DType::U8, 0, 1), 255);
    assert_eq!(bin(Mul, DType::I32, i32::MAX as i64, 2), -2);
    assert_eq!(bin(Mul, DType::I64, i64::MAX, 2), -2);
    assert_eq!(bin(Add, DType::I64, i64::MAX - 1, 1), i64::MAX);
    assert_eq!(bin(Div, DType::I64, i64::MIN, -1), i64::MIN);
    assert_eq!(bin(Div, DType::I32, i32::MIN as i64, -1), i32::MIN as i64);
    assert_eq!(bin(Div, DType::I32, -7, 2), -3);
    assert_eq!(bin(Rem, DType::I32, -7, 2), -1);
    assert_eq!(bin(Div, DType::I32, 7, 0), 0);
    assert_eq!(bin(Rem, DType::I32, 7, 0), 0);
    assert_eq!(bin(Shl, DType::I8, 1, 7), -128);
    assert_eq!(bin(Shl, DType::I8, 1, 8), 0);
    assert_eq!(bin(Shl, DType::I8, 1, -1), 0);
    assert_eq!(bin(Shr, DType::I8, -128, 100), -1);
    assert_eq!(bin(Shr, DType::I8, -128, -1), -1);
    assert_eq!(bin(Shr, DType::U8, 200, 3), 25);
    assert_eq!(bin(Xor, DType::I16, 0b1100, 0b1010), 0b0110);
    assert_eq!(bin(Max, DType::U8, 200, 100), 200);
    assert_eq!(bin(Add, DType::Bool, 1, 1), 1);
    assert_eq!(bin(Mul, DType::Bool, 1, 0), 0);
    check_ints(Op::Unary(UnaryOp::Neg), &[&ints(DType::I8, &[-128, 5])], &[-128, -5]);
    check_ints(Op::Unary(UnaryOp::Abs), &[&ints(DType::I64, &[i64::MIN, -5])], &[i64::MIN, 5]);
    check_ints(Op::Unary(UnaryOp::Sign), &[&ints(DType::I32, &[-9, 0, 9])], &[-1, 0, 1]);
    check_ints(Op::Unary(UnaryOp::Not), &[&ints(DType::U8, &[0, 0b1010])], &[255, 0b1111_0101]);
    check_ints(Op::Unary(UnaryOp::Not), &[&ints(DType::Bool, &[0, 1])], &[1, 0]);
}

#[test]
fn binary_ops_on_floats() {
    use BinaryOp::*;
    let (x, y) = (floats(&[4], &[-7.5, 2.0, NAN, 0.0]), floats(&[4], &[2.0, -3.0, 1.0, -0.0]));
    check_floats(Op::Binary(Div), &[&x, &y], &[-3.75, 2.0 / -3.0, NAN, NAN]);
    check_floats(Op::Binary(Rem), &[&x, &y], &[-1.5, 2.0, NAN, NAN]);
    check_floats(Op::Binary(Max), &[&x, &y], &[2.0, 2.0, NAN, 0.0]);
    check_floats(Op::Binary(Min), &[&y, &x], &[-7.5, -3.0, NAN, 0.0]);
    check_floats(Op::Binary(Pow), &[&y, &x], &[2f64.powf(-7.5), 9.0, 1.0, 1.0]);
    check_floats(Op::Binary(Atan2), &[&y, &x], &[2f64.atan2(-7.5), (-3f64).atan2(2.0), NAN, -0.0]);
}

#[test]
fn comparisons_with_nan_are_false_but_ne() {
    let (x, y) = (floats(&[4], &[1.0, 2.0, NAN, -0.0]), floats(&[4], &[2.0, 2.0, NAN, 0.0]));
    for (op, want) in [
        (CompareOp::Eq, [0, 1, 0, 1]),
        (CompareOp::Ne, [1, 0, 1, 0]),
        (CompareOp::Lt, [1, 0, 0, 0]),
        (CompareOp::Le, [1, 1, 0, 1]),
        (CompareOp::Gt, [0, 0, 0, 0]),
        (CompareOp::Ge, [0, 1, 0, 1]),
    ] {
        check_ints(Op::Compare(op), &[&x, &y], &want);
    }
    let (x, y) = (ints(DType::I64, &[i64::MAX]), ints(DType::I64, &[i64::MAX - 1]));
    check_ints(Op::Compare(CompareOp::Gt), &[&x, &y], &[1]);
}

#[test]
fn select_cast_and_bitcast() {
    let condition = ints(DType::Bool, &[1, 0, 1]);
    check_floats(Op::Select, &[&condition, &floats(&[3], &[1., 2., 3.]), &floats(&[3], &[4., 5., NAN])], &[1., 5., 3.]);
    check_ints(Op::Cast(DType::I8), &[&floats(&[4], &[-1.9, 300.0, NAN, 1e10])], &[-1, 44, 0, -1]);
    check_ints(Op::Cast(DType::Bool), &[&floats(&[3], &[0.0, 0.1, NAN])], &[0, 1, 1]);
    check_ints(Op::Cast(DType::U8), &[&ints(DType::I32, &[-1, 256])], &[255, 0]);
    check_floats(Op::Cast(DType::F8E4M3), &[&floats(&[2], &[1.0625, 500.0])], &[1.0, NAN]);
    check_ints(Op::Cast(DType::I32), &[&HostTensor::from_i64(DType::I4, &[3], &[-8, 7, -1]).unwrap()], &[-8, 7, -1]);
    // A signalling NaN keeps its bits.
    let bits = ints(DType::I32, &[0x3f80_0000, 0x7f80_0001]);
    let float = apply(Op::Bitcast(DType::F32), &[&bits]).unwrap();
    assert_eq!(float.get_f64(0), 1.0);
    check_ints(Op::Bitcast(DType::I32), &[&float], &[0x3f80_0000, 0x7f80_0001]);
}

#[test]
fn sources() {
    let shape = vec![Dim::from(2), Dim::from(3)];
    check_floats(Op::Full { value: Scalar::float(DType::F32, 0.1), shape: shape.clone() }, &[], &[0.1f32 as f64; 6]);
    check_ints(Op::Iota { dtype: DType::I32, shape: shape.clone(), axis: 1 }, &[], &[0, 1, 2, 0, 1, 2]);
    check_floats(Op::Iota { dtype: DType::F16, shape, axis: 0 }, &[], &[0., 0., 0., 1., 1., 1.]);
    let x = count(&[2, 2]);
    check_floats(Op::Constant(x.to_literal()), &[], &x.to_f64());
}

#[test]
fn reductions() {
    let x = count(&[2, 3, 2]);
    let reduce = |kind, axes: &[usize]| Op::Reduce { kind, axes: axes.to_vec() };
    check_floats(reduce(ReduceKind::Sum, &[1]), &[&x], &[6., 9., 24., 27.]);
    check_floats(reduce(ReduceKind::Sum, &[0, 2]), &[&x], &[14., 22., 30.]);
    check_floats(reduce(ReduceKind::Prod, &[0]), &[&x], &[0., 7., 16., 27., 40., 55.]);
    check_floats(reduce(ReduceKind::Max, &[0, 1, 2]), &[&x], &[11.]);
    check_floats(reduce(ReduceKind::Min, &[]), &[&x], &x.to_f64());
    check_floats(reduce(ReduceKind::Max, &[0]), &[&floats(&[3], &[1.0, NAN, 2.0])], &[NAN]);
    let empty = floats(&[0], &[]);
    for (kind, want) in
        [(ReduceKind::Sum, 0.0), (ReduceKind::Prod, 1.0), (ReduceKind::Max, -INF), (ReduceKind::Min, INF)]
    {
        check_floats(reduce(kind, &[0]), &[&empty], &[want]);
    }
    for (dtype, lowest, highest) in [(DType::I8, -128, 127), (DType::U8, 0, 255), (DType::I64, i64::MIN, i64::MAX)] {
        check_ints(reduce(ReduceKind::Max, &[0]), &[&ints(dtype, &[])], &[lowest]);
        check_ints(reduce(ReduceKind::Min, &[0]), &[&ints(dtype, &[])], &[highest]);
    }
    check_ints(reduce(ReduceKind::Sum, &[0]), &[&ints(DType::I8, &[100, 100])], &[-56]);
    check_ints(reduce(ReduceKind::Max, &[0]), &[&ints(DType::Bool, &[0, 1])], &[1]);
    check_ints(reduce(ReduceKind::Min, &[0]), &[&ints(DType::Bool, &[0, 1])], &[0]);
}

#[test]
fn arg_reductions_take_the_first_and_nan() {
    let x = floats(&[2, 3], &[1., 5., 5., NAN, 7., NAN]);
    check_ints(Op::ArgReduce { kind: ArgKind::Max, axis: 1 }, &[&x], &[1, 0]);
    check_ints(Op::ArgReduce { kind: ArgKind::Min, axis: 1 }, &[&x], &[0, 0]);
    check_ints(Op::ArgReduce { kind: ArgKind::Max, axis: 0 }, &[&x], &[1, 1, 1]);
    check_ints(Op::ArgReduce { kind: ArgKind::Min, axis: 0 }, &[&ints(DType::I64, &[i64::MAX, i64::MAX - 1])], &[1]);
}

#[test]
fn scans_run_both_ways() {
    let x = count(&[2, 3]);
    let scan = |kind, axis, reverse| Op::Scan { kind, axis, reverse };
    check_floats(scan(ReduceKind::Sum, 1, false), &[&x], &[0., 1., 3., 3., 7., 12.]);
    check_floats(scan(ReduceKind::Sum, 1, true), &[&x], &[3., 3., 2., 12., 9., 5.]);
    check_floats(scan(ReduceKind::Sum, 0, false), &[&x], &[0., 1., 2., 3., 5., 7.]);
    check_ints(scan(ReduceKind::Max, 0, false), &[&ints(DType::I32, &[3, 1, 4, 1])], &[3, 3, 4, 4]);
    check_ints(scan(ReduceKind::Prod, 0, false), &[&ints(DType::I8, &[100, 2, 3])], &[100, -56, 88]);
}

#[test]
fn sorting_is_stable_and_puts_nan_last() {
    let x = floats(&[5], &[2., NAN, 1., 2., -INF]);
    let sort = |descending, count: i64, axis| Op::SortIndices { axis, descending, count: Dim::from(count) };
    check_ints(sort(false, 5, 0), &[&x], &[4, 2, 0, 3, 1]);
    check_ints(sort(true, 5, 0), &[&x], &[1, 0, 3, 2, 4]);
    check_ints(sort(true, 2, 0), &[&x], &[1, 0]);
    let x = floats(&[2, 3], &[1., 9., 5., 4., 2., 8.]);
    check_ints(sort(false, 2, 1), &[&x], &[0, 2, 1, 0]);
    check_ints(sort(true, 1, 0), &[&x], &[1, 0, 1]);
}

#[test]
fn views_move_elements() {
    let x = count(&[2, 3]);
    let dims = |sizes: &[i64]| sizes.iter().map(|&n| Dim::from(n)).collect::<Vec<_>>();
    check_floats(Op::Reshape { shape: dims(&[3, 2]) }, &[&x], &x.to_f64());
    check_floats(Op::Permute { order: vec![1, 0] }, &[&x], &[0., 3., 1., 4., 2., 5.]);
    check_floats(Op::Flip { axes: vec![1] }, &[&x], &[2., 1., 0., 5., 4., 3.]);
    check_floats(Op::Flip { axes: vec![0, 1] }, &[&x], &[5., 4., 3., 2., 1., 0.]);
    check_floats(Op::Expand { shape: dims(&[2, 2]) }, &[&count(&[2, 1])], &[0., 0., 1., 1.]);
    check_floats(Op::Slice { start: dims(&[1, 0]), size: dims(&[1, 2]), step: vec![1, 2] }, &[&x], &[3., 5.]);
    check_floats(
        Op::Pad { low: dims(&[1, 0]), high: dims(&[0, 2]), value: Scalar::float(DType::F64, 9.0) },
        &[&count(&[1, 2])],
        &[9., 9., 9., 9., 0., 1., 9., 9.],
    );
    check_floats(Op::Concat { axis: 1 }, &[&count(&[2, 1]), &count(&[2, 2])], &[0., 0., 1., 1., 2., 3.]);
    check_floats(Op::Unfold { axis: 0, size: 2, stride: 2, dilation: 3 }, &[&count(&[6])], &[0., 3., 2., 5.]);
    let unfolded = apply(Op::Unfold { axis: 0, size: 2, stride: 1, dilation: 1 }, &[&count(&[3, 2])]).unwrap();
    assert_eq!(unfolded.shape(), [2, 2, 2]);
    assert_eq!(unfolded.to_f64(), [0., 2., 1., 3., 2., 4., 3., 5.]);
}

#[test]
fn views_work_on_packed_and_empty_tensors() {
    let x = HostTensor::from_i64(DType::I4, &[3, 3], &[0, 1, 2, 3, 4, 5, 6, 7, -8]).unwrap();
    check_ints(Op::Permute { order: vec![1, 0] }, &[&x], &[0, 3, 6, 1, 4, 7, 2, 5, -8]);
    check_ints(Op::Concat { axis: 1 }, &[&x, &x], &[0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, -8, 6, 7, -8]);
    let empty = count(&[0, 3]);
    check_floats(Op::Permute { order: vec![1, 0] }, &[&empty], &[]);
    check_floats(Op::Flip { axes: vec![0, 1] }, &[&empty], &[]);
    check_floats(Op::Concat { axis: 0 }, &[&empty, &count(&[1, 3])], &[0., 1., 2.]);
    check_floats(Op::Reduce { kind: ReduceKind::Sum, axes: vec![0] }, &[&empty], &[0., 0., 0.]);
}

#[test]
fn gather_and_scatter() {
    let x = count(&[3, 2]);
    let index = HostTensor::from_i64(DType::I64, &[2, 2], &[2, 0, 1, 1]).unwrap();
    check_floats(Op::Gather { axis: 0 }, &[&x, &index], &[4., 1., 2., 3.]);
    let index = HostTensor::from_i64(DType::I32, &[3, 1], &[1, 0, 1]).unwrap();
    check_floats(Op::Gather { axis: 1 }, &[&x, &index], &[1., 2., 5.]);

    let index = HostTensor::from_i64(DType::I64, &[3, 2], &[0, 0, 0, 1, 2, 0]).unwrap();
    let updates = floats(&[3, 2], &[10., 20., 30., 40., 50., 60.]);
    let scatter = |kind| Op::Scatter { axis: 0, kind };
    check_floats(scatter(ScatterKind::Set), &[&x, &index, &updates], &[30., 60., 2., 40., 50., 5.]);
    check_floats(scatter(ScatterKind::Add), &[&x, &index, &updates], &[40., 81., 2., 43., 54., 5.]);
    check_floats(scatter(ScatterKind::Max), &[&x, &index, &updates], &[30., 60., 2., 40., 50., 5.]);
    check_floats(scatter(ScatterKind::Min), &[&x, &index, &updates], &[0., 1., 2., 3., 4., 5.]);
    check_floats(scatter(ScatterKind::Mul), &[&x, &index, &updates], &[0., 1200., 2., 120., 200., 5.]);
}

#[test]
fn an_index_out_of_range_names_index_size_node_and_line() {
    let mut graph = Graph::new();
    let x = graph.input(TensorType::fixed(DType::F32, &[3]), Source::default()).unwrap();
    let i = graph.input(TensorType::fixed(DType::I64, &[2]), Source::default()).unwrap();
    let line = line!() + 1;
    let y = graph.add(Op::Gather { axis: 0 }, &[x, i], Source::caller()).unwrap();
    graph.output(y);
    let x = HostTensor::zeros(DType::F32, &[3]).unwrap();
    for bad in [3, -1] {
        let error = interpret::run(&graph, &[x.clone(), ints(DType::I64, &[0, bad])]).unwrap_err();
        match &error {
            InterpretError::Node { node, cause: Fault::IndexOutOfRange { index, size: 3 }, at, .. } => {
                assert_eq!((*node, *index, at.line), (y, bad, line));
            }
            other => panic!("{other}"),
        }
        assert_eq!(
            error.to_string(),
            format!("%2 = gather: index {bad} is out of range for size 3, at {}:{line}", file!())
        );
    }
}

#[test]
fn dots_of_any_dimension_numbers() {
    let (x, y) = (count(&[2, 3]), count(&[3, 2]));
    let dims = DotDims { lhs_contract: vec![1], rhs_contract: vec![0], ..Default::default() };
    check_floats(Op::Dot { dims: dims.clone().into(), out: DType::F64 }, &[&x, &y], &[10., 13., 28., 40.]);
    let outer = Op::Dot { dims: DotDims::default().into(), out: DType::F64 };
    check_floats(outer, &[&count(&[2]), &count(&[3])], &[0., 0., 0., 0., 1., 2.]);
    // Batch axis last on one side and first on the other.
    let dims = DotDims { lhs_batch: vec![1], rhs_batch: vec![0], lhs_contract: vec![0], rhs_contract: vec![1] };
    check_floats(Op::Dot { dims: dims.into(), out: DType::F64 }, &[&count(&[2, 3]), &count(&[3, 2])], &[3., 14., 33.]);
    let bytes = HostTensor::from_i64(DType::I8, &[2], &[100, 100]).unwrap();
    let dims = DotDims { lhs_contract: vec![0], rhs_contract: vec![0], ..Default::default() };
    check_ints(Op::Dot { dims: dims.clone().into(), out: DType::I32 }, &[&bytes, &bytes], &[20000]);
    check_ints(Op::Dot { dims: dims.clone().into(), out: DType::I8 }, &[&bytes, &bytes], &[32]);
    let empty = HostTensor::zeros(DType::Bf16, &[0]).unwrap();
    check_floats(Op::Dot { dims: dims.into(), out: DType::F32 }, &[&empty, &empty], &[0.0]);
}

#[test]
fn convolutions() {
    let dims = |stride, padding, dilation, input_dilation, groups| {
        Op::Conv(
            ConvDims {
                stride: vec![stride],
                padding: vec![padding],
                dilation: vec![dilation],
                input_dilation: vec![input_dilation],
                groups,
            }
            .into(),
        )
    };
    let x = floats(&[1, 1, 5], &[1., 2., 3., 4., 5.]);
    let w = floats(&[1, 1, 2], &[1., 10.]);
    check_floats(dims(1, (0, 0), 1, 1, 1), &[&x, &w], &[21., 32., 43., 54.]);
    check_floats(dims(2, (0, 0), 1, 1, 1), &[&x, &w], &[21., 43.]);
    check_floats(dims(1, (1, 1), 1, 1, 1), &[&x, &w], &[10., 21., 32., 43., 54., 5.]);
    check_floats(dims(1, (-1, -2), 1, 1, 1), &[&x, &w], &[32.]);
    check_floats(dims(1, (0, 0), 3, 1, 1), &[&x, &w], &[41., 52.]);
    check_floats(dims(1, (0, 0), 1, 2, 1), &[&x, &w], &[1., 20., 2., 30., 3., 40., 4., 50.]);
    let x = floats(&[1, 2, 2], &[1., 2., 3., 4.]);
    let w = floats(&[2, 1, 1], &[10., 100.]);
    check_floats(dims(1, (0, 0), 1, 1, 2), &[&x, &w], &[10., 20., 300., 400.]);
    let w = floats(&[1, 2, 1], &[10., 100.]);
    check_floats(dims(1, (0, 0), 1, 1, 1), &[&x, &w], &[310., 420.]);
}

#[test]
fn windows_ignore_their_padding() {
    let dims = WindowDims { size: vec![3], stride: vec![2], dilation: vec![1], padding: vec![(1, 1)] };
    let x = floats(&[4], &[-1., -2., -3., -4.]);
    check_floats(Op::ReduceWindow { kind: ReduceKind::Max, dims: dims.clone().into() }, &[&x], &[-1., -2.]);
    check_floats(Op::ReduceWindow { kind: ReduceKind::Sum, dims: dims.clone().into() }, &[&x], &[-3., -9.]);
    check_floats(Op::ReduceWindow { kind: ReduceKind::Prod, dims: dims.clone().into() }, &[&x], &[2., -24.]);
    check_floats(Op::ReduceWindow { kind: ReduceKind::Min, dims: dims.into() }, &[&x], &[-2., -4.]);
    let dims = WindowDims { size: vec![2, 2], stride: vec![1, 1], dilation: vec![1, 2], padding: vec![(0, 0), (0, 0)] };
    check_floats(Op::ReduceWindow { kind: ReduceKind::Sum, dims: dims.into() }, &[&count(&[2, 3])], &[10.]);
}

#[test]
fn attention_masks_and_groups() {
    let attention = |causal, mask| Op::Attention { causal, scale: Scalar::float(DType::F64, 1.0), mask };
    // Equal scores average the values that are seen.
    let q = floats(&[1, 2, 2, 1], &[0., 0., 0., 0.]);
    let k = floats(&[1, 1, 3, 1], &[1., 2., 3.]);
    let v = floats(&[1, 1, 3, 2], &[3., 30., 6., 60., 9., 90.]);
    check_floats(attention(false, false), &[&q, &k, &v], &[6., 60., 6., 60., 6., 60., 6., 60.]);
    check_floats(attention(true, false), &[&q, &k, &v], &[4.5, 45., 6., 60., 4.5, 45., 6., 60.]);
    let mask = HostTensor::from_i64(DType::Bool, &[1, 2, 2, 3], &[1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]).unwrap();
    check_floats(attention(false, true), &[&q, &k, &v, &mask], &[3., 30., 0., 0., 7.5, 75., 6., 60.]);
    let ln2 = 2f64.ln();
    let bias = floats(&[1, 2, 2, 3], &[ln2, 0., -INF, -INF, -INF, -INF, 0., 0., 0., 0., 0., 0.]);
    check_floats(attention(false, true), &[&q, &k, &v, &bias], &[4., 40., 0., 0., 6., 60., 6., 60.]);
    // More rows than columns: the first rows have no visible column.
    let q = floats(&[1, 1, 3, 1], &[0.; 3]);
    let (k, v) = (floats(&[1, 1, 1, 1], &[1.]), floats(&[1, 1, 1, 1], &[5.]));
    check_floats(attention(true, false), &[&q, &k, &v], &[0., 0., 5.]);
}

/// An input `[a, a + 1]` and one `[b]`, and an op on them.
fn symbolic() -> Graph {
    let (a, b) = (Dim::symbol("a").unwrap(), Dim::symbol("b").unwrap());
    let mut graph = Graph::new();
    let x = graph.input(TensorType::new(DType::F32, vec![a.clone(), &a + 1]), Source::default()).unwrap();
    graph.input(TensorType::new(DType::F32, vec![b.clone()]), Source::default()).unwrap();
    let y = graph.add(Op::Reshape { shape: vec![&a * (&a + 1)] }, &[x], Source::default()).unwrap();
    graph.output(y);
    let slice = Op::Slice { start: vec![b.clone()], size: vec![Dim::from(1)], step: vec![1] };
    let z = graph.add(slice, &[y], Source::default()).unwrap();
    graph.output(z);
    graph
}

#[test]
fn symbols_are_bound_and_checked() {
    let graph = symbolic();
    let x = count(&[2, 3]).cast(DType::F32).unwrap();
    let b = HostTensor::zeros(DType::F32, &[4]).unwrap();
    let outputs = interpret::run(&graph, &[x.clone(), b.clone()]).unwrap();
    assert_eq!((outputs[0].shape(), outputs[1].to_f64()), (&[6][..], vec![4.0]));

    let wrong = HostTensor::zeros(DType::F32, &[2, 4]).unwrap();
    let error = interpret::run(&graph, &[wrong, b.clone()]).unwrap_err();
    assert!(matches!(error, InterpretError::InputSize { input: 0, axis: 1, got: 4, bound: 3, .. }), "{error}");
    let late = HostTensor::zeros(DType::F32, &[6]).unwrap();
    let error = interpret::run(&graph, &[x.clone(), late]).unwrap_err();
    assert!(matches!(error, InterpretError::Node { cause: Fault::SizesDiffer { .. }, .. }), "{error}");
    let error = interpret::run(&graph, std::slice::from_ref(&x)).unwrap_err();
    assert_eq!(error, InterpretError::InputCount { expected: 2, got: 1 });
    let error = interpret::run(&graph, &[b.clone(), b]).unwrap_err();
    assert!(matches!(error, InterpretError::InputType { input: 0, .. }), "{error}");
}

#[test]
fn absurd_sizes_are_errors() {
    let n = Dim::symbol("n").unwrap();
    let mut graph = Graph::new();
    graph.input(TensorType::new(DType::F32, vec![n.clone()]), Source::default()).unwrap();
    let shape = vec![&n * (1i64 << 40)];
    let x = graph.add(Op::Full { value: Scalar::float(DType::F32, 0.0), shape }, &[], Source::default()).unwrap();
    graph.output(x);
    let run = |n: usize| interpret::run(&graph, &[HostTensor::zeros(DType::F32, &[n]).unwrap()]);
    assert!(matches!(run(1), Err(InterpretError::Node { cause: Fault::TooLarge { .. }, .. })));
    assert_eq!(run(0).unwrap()[0].elements(), 0);
}

#[test]
fn updates_come_out_in_order() {
    let mut graph = Graph::new();
    let x = graph.input(TensorType::fixed(DType::F32, &[2]), Source::default()).unwrap();
    let y = graph.add(Op::Unary(UnaryOp::Neg), &[x], Source::default()).unwrap();
    graph.update(y, 0);
    graph.output(x);
    let outputs = interpret::run(&graph, &[HostTensor::from_slice(&[2], &[1f32, 2.0]).unwrap()]).unwrap();
    assert_eq!((outputs[0].to_f64(), outputs[1].to_f64()), (vec![-1., -2.], vec![1., 2.]));
}
