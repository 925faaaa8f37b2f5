//! The examples themselves.

use super::Example;
use crate::{
    ArgKind, AttentionOperand, BinaryOp, BlockFormat, Branches, CompareOp, ConvDims, DType, Dim, DotDims, Graph,
    Literal, Op, OpKind, ReduceKind, Region, Scalar, ScatterKind, UnaryOp, WindowDims,
};
use std::sync::Arc;

/// One or more graphs of every [`OpKind`]: every dtype that the pointwise ops and reductions accept, fixed and symbolic
/// sizes, empty tensors, scalars.
pub fn examples() -> Vec<Example> {
    let mut all = Vec::new();
    for kind in OpKind::all() {
        match kind {
            OpKind::Input => input(&mut all),
            OpKind::Full => full(&mut all),
            OpKind::Constant => constant(&mut all),
            OpKind::Iota => iota(&mut all),
            OpKind::RandomBits => random_bits(&mut all),
            OpKind::Unary(op) => unary(op, &mut all),
            OpKind::Binary(op) => binary(op, &mut all),
            OpKind::Compare(op) => compare(op, &mut all),
            OpKind::Select => select(&mut all),
            OpKind::Cast => cast(&mut all),
            OpKind::Bitcast => bitcast(&mut all),
            OpKind::Reduce(kind) => reduce(kind, &mut all),
            OpKind::ArgReduce(kind) => arg_reduce(kind, &mut all),
            OpKind::Scan(kind) => scan(kind, &mut all),
            OpKind::SortIndices => sort_indices(&mut all),
            OpKind::Reshape => reshape(&mut all),
            OpKind::Permute => permute(&mut all),
            OpKind::Expand => expand(&mut all),
            OpKind::Slice => slice(&mut all),
            OpKind::Pad => pad(&mut all),
            OpKind::Flip => flip(&mut all),
            OpKind::Unfold => unfold(&mut all),
            OpKind::Concat => concat(&mut all),
            OpKind::Gather => gather(&mut all),
            OpKind::Scatter(kind) => scatter(kind, &mut all),
            OpKind::Dot => dot(&mut all),
            OpKind::Dequantize => dequantize(&mut all),
            OpKind::Conv => conv(&mut all),
            OpKind::ReduceWindow(kind) => reduce_window(kind, &mut all),
            OpKind::Attention => attention(&mut all),
            OpKind::AttentionLogsumexp => attention_logsumexp(&mut all),
            OpKind::AttentionGradient(of) => attention_gradient(of, &mut all),
            OpKind::Loop => loops(&mut all),
            OpKind::Cond => choices(&mut all),
        }
    }
    all
}

type List = Vec<Example>;

/// `[a, b, …]` as sizes.
fn dims(list: &[&str]) -> Vec<Dim> {
    list.iter().map(|text| Dim::parse(text).expect("a size of an example")).collect()
}

fn f32(value: f64) -> Scalar {
    Scalar::float(DType::F32, value)
}

/// The op on operands of one type, for every dtype that it accepts.
fn for_every_dtype(op: &Op, operands: usize, shape: &str, all: &mut List, adjust: impl Fn(Example) -> Example) {
    for dtype in DType::ALL {
        let ty = format!("{dtype}{shape}");
        all.extend(Example::try_new(op.clone(), &vec![ty.as_str(); operands]).map(&adjust));
    }
}

fn input(all: &mut List) {
    use crate::{Graph, Source};
    for text in ["f32[2, 3]", "i4[5]", "f32[b, t]", "bool[]", "f32[0, 4]"] {
        // Any op will do to build from; its node is then left out.
        let mut example =
            Example::new(Op::Reshape { shape: text.parse::<crate::TensorType>().expect("a type").shape }, &[text]);
        let mut graph = Graph::new();
        let ty = example.graph.ty(example.graph.inputs()[0]).clone();
        let node = graph.input(ty, Source::default()).expect("a type that was accepted before");
        graph.output(node);
        (example.kind, example.graph, example.name) = (OpKind::Input, graph, format!("input({text})"));
        all.push(example);
    }
}

fn full(all: &mut List) {
    let floats = [0.5, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40];
    all.extend(floats.map(|v| Example::new(Op::Full { value: f32(v), shape: dims(&["2", "3"]) }, &[])));
    for dtype in DType::ALL {
        all.push(Example::new(Op::Full { value: Scalar::int(dtype, 1), shape: dims(&["7"]) }, &[]));
    }
    all.push(Example::new(Op::Full { value: Scalar::int(DType::I64, i64::MIN), shape: vec![] }, &[]));
    all.push(Example::new(Op::Full { value: Scalar::float(DType::F64, 0.1), shape: dims(&["b", "0"]) }, &[]));
    all.push(Example::new(Op::Full { value: f32(2.0), shape: dims(&["b", "t + 1"]) }, &[]));
}

fn constant(all: &mut List) {
    for dtype in DType::ALL {
        for shape in [&[][..], &[2, 3], &[0, 4], &[3, 3, 5]] {
            let count: usize = shape.iter().product();
            let values = (0..count).map(|i| Scalar::int(dtype, i as i64 % 7 - 3));
            let literal = Literal::from_elements(dtype, shape, values).expect("as many elements as the shape has");
            all.push(Example::new(Op::Constant(literal), &[]));
        }
    }
}

fn iota(all: &mut List) {
    for dtype in [DType::I64, DType::I32, DType::U8, DType::F32, DType::Bf16] {
        all.push(Example::new(Op::Iota { dtype, shape: dims(&["2", "5"]), axis: 1 }, &[]));
    }
    all.push(Example::new(Op::Iota { dtype: DType::I64, shape: dims(&["t", "3"]), axis: 0 }, &[]));
}

fn random_bits(all: &mut List) {
    all.push(Example::new(Op::RandomBits { shape: dims(&["3", "5"]), stream: 0 }, &["i64[]"]));
    all.push(Example::new(Op::RandomBits { shape: dims(&["b", "8"]), stream: 7 }, &["i64[]"]));
}

fn unary(op: UnaryOp, all: &mut List) {
    let within = |example: Example| match op.row().domain {
        Some((low, high)) => example.between(0, low, high),
        None => example,
    };
    for_every_dtype(&Op::Unary(op), 1, "[2, 5]", all, within);
    for_every_dtype(&Op::Unary(op), 1, "[b, 3]", all, within);
    let scalar = format!("{}[]", op.row().accepts.example());
    all.push(within(Example::new(Op::Unary(op), &[&scalar])));
}

fn binary(op: BinaryOp, all: &mut List) {
    let within = |example: Example| match op.row().domain {
        Some((operand, low, high)) => example.between(operand, low, high),
        None => example,
    };
    for_every_dtype(&Op::Binary(op), 2, "[2, 5]", all, within);
    for_every_dtype(&Op::Binary(op), 2, "[b, 3, t]", all, within);
    for_every_dtype(&Op::Binary(op), 2, "[0, 3]", all, within);
}

fn compare(op: CompareOp, all: &mut List) {
    for_every_dtype(&Op::Compare(op), 2, "[2, 5]", all, |example| example);
    for_every_dtype(&Op::Compare(op), 2, "[b]", all, |example| example);
}

fn select(all: &mut List) {
    for dtype in ["f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "bool"] {
        let ty = format!("{dtype}[3, 4]");
        all.push(Example::new(Op::Select, &["bool[3, 4]", &ty, &ty]));
    }
    all.push(Example::new(Op::Select, &["bool[b, t]", "f32[b, t]", "f32[b, t]"]));
}

fn cast(all: &mut List) {
    for from in DType::ALL {
        for to in DType::ALL {
            all.push(Example::new(Op::Cast(to), &[&format!("{from}[2, 5]")]));
        }
    }
    all.push(Example::new(Op::Cast(DType::Bf16), &["f32[b, 4]"]));
}

fn bitcast(all: &mut List) {
    for from in DType::ALL {
        for to in DType::ALL {
            all.extend(Example::try_new(Op::Bitcast(to), &[&format!("{from}[6]")]));
        }
    }
    all.push(Example::new(Op::Bitcast(DType::I32), &["f32[b, 4]"]));
}

fn reduce(kind: ReduceKind, all: &mut List) {
    for_every_dtype(&Op::Reduce { kind, axes: vec![1] }, 1, "[3, 5]", all, |example| example);
    for (axes, ty) in [
        (vec![0], "f32[5, 3]"),
        (vec![0, 2], "f32[2, 3, 5]"),
        (vec![0, 1], "f32[4, 6]"),
        (vec![], "f32[4]"),
        (vec![1], "f32[3, 0]"),
        (vec![1], "f32[b, 7]"),
        (vec![1], "f32[2, t]"),
        (vec![0, 1], "f32[b, t, 3]"),
    ] {
        all.push(Example::new(Op::Reduce { kind, axes }, &[ty]));
    }
}

fn arg_reduce(kind: ArgKind, all: &mut List) {
    for_every_dtype(&Op::ArgReduce { kind, axis: 1 }, 1, "[3, 5]", all, |example| example);
    all.push(Example::new(Op::ArgReduce { kind, axis: 0 }, &["f32[4, 3]"]));
    all.push(Example::new(Op::ArgReduce { kind, axis: 1 }, &["f32[b, t]"]));
}

fn scan(kind: ReduceKind, all: &mut List) {
    for_every_dtype(&Op::Scan { kind, axis: 1, reverse: false }, 1, "[3, 5]", all, |example| example);
    all.push(Example::new(Op::Scan { kind, axis: 0, reverse: true }, &["f32[4, 3]"]));
    all.push(Example::new(Op::Scan { kind, axis: 1, reverse: false }, &["f32[b, t, 2]"]));
}

fn sort_indices(all: &mut List) {
    for descending in [false, true] {
        let sort = |axis, count: &str| Op::SortIndices { axis, descending, count: dims(&[count])[0].clone() };
        for_every_dtype(&sort(1, "5"), 1, "[3, 5]", all, |example| example);
        all.push(Example::new(sort(1, "2"), &["f32[3, 6]"]));
        all.push(Example::new(sort(0, "0"), &["f32[3, 6]"]));
        all.push(Example::new(sort(1, "t"), &["f32[b, t]"]));
        all.push(Example::new(sort(1, "2"), &["f32[b, t]"]).at(&[&[("b", 2), ("t", 5)], &[("b", 1), ("t", 2)]]));
    }
}

fn reshape(all: &mut List) {
    for (from, to) in [
        ("f32[2, 6]", &["3", "4"][..]),
        ("i4[2, 6]", &["12"]),
        ("f32[1]", &[]),
        ("f32[0, 4]", &["2", "0", "9"]),
        ("f32[b, 4, 2]", &["b", "8"]),
        ("f32[b, t, 6]", &["b*t", "2", "3"]),
        ("f32[b*t, 6]", &["b", "t*6"]),
    ] {
        all.push(Example::new(Op::Reshape { shape: dims(to) }, &[from]));
    }
}

fn permute(all: &mut List) {
    for (ty, order) in [
        ("f32[2, 3]", vec![1, 0]),
        ("bf16[2, 3, 4, 5]", vec![0, 2, 1, 3]),
        ("f32[2, 3, 4]", vec![2, 0, 1]),
        ("f8e4m3[2, 3]", vec![1, 0]),
        ("f32[b, t, 4]", vec![1, 0, 2]),
        ("f32[]", vec![]),
    ] {
        all.push(Example::new(Op::Permute { order }, &[ty]));
    }
}

fn expand(all: &mut List) {
    for (ty, shape) in [
        ("f32[1, 3]", &["4", "3"][..]),
        ("f32[3, 1]", &["3", "0"]),
        ("i8[1, 1]", &["2", "5"]),
        ("f32[1, 3]", &["b", "3"]),
        ("f32[b, 1, 3]", &["b", "t", "3"]),
    ] {
        all.push(Example::new(Op::Expand { shape: dims(shape) }, &[ty]));
    }
}

fn slice(all: &mut List) {
    let slice = |start: &[&str], size: &[&str], step: &[i64]| Op::Slice {
        start: dims(start),
        size: dims(size),
        step: step.to_vec(),
    };
    all.push(Example::new(slice(&["1", "0"], &["2", "3"], &[1, 1]), &["f32[4, 3]"]));
    all.push(Example::new(slice(&["0", "1"], &["4", "3"], &[1, 2]), &["f32[4, 6]"]));
    all.push(Example::new(slice(&["4"], &["0"], &[1]), &["i32[4]"]));
    all.push(Example::new(slice(&["0", "t - 1"], &["b", "1"], &[1, 1]), &["f32[b, t]"]));
    all.push(Example::new(slice(&["1", "0"], &["b - 1", "2"], &[1, 2]), &["f32[b, 4]"]));
    let halves = [slice(&["0", "0"], &["b", "t"], &[1, 1]), slice(&["0", "t"], &["b", "t"], &[1, 1])];
    all.extend(halves.map(|half| Example::new(half, &["f32[b, t*2]"])));
}

fn pad(all: &mut List) {
    let pad = |low: &[&str], high: &[&str], value| Op::Pad { low: dims(low), high: dims(high), value };
    all.push(Example::new(pad(&["1", "0"], &["2", "3"], f32(0.0)), &["f32[2, 3]"]));
    all.push(Example::new(pad(&["0"], &["4"], f32(f64::NEG_INFINITY)), &["f32[3]"]));
    all.push(Example::new(pad(&["2"], &["0"], Scalar::int(DType::I64, -1)), &["i64[0]"]));
    all.push(Example::new(pad(&["1", "1"], &["1", "0"], Scalar::bool(true)), &["bool[2, 2]"]));
    all.push(Example::new(pad(&["0", "2"], &["0", "t"], Scalar::float(DType::Bf16, 1.5)), &["bf16[b, t]"]));
}

fn flip(all: &mut List) {
    all.push(Example::new(Op::Flip { axes: vec![1] }, &["f32[2, 5]"]));
    all.push(Example::new(Op::Flip { axes: vec![0, 2] }, &["i16[2, 3, 4]"]));
    all.push(Example::new(Op::Flip { axes: vec![0] }, &["f32[b, 3]"]));
}

fn unfold(all: &mut List) {
    let unfold = |axis, size, stride, dilation| Op::Unfold { axis, size, stride, dilation };
    all.push(Example::new(unfold(0, 3, 1, 1), &["f32[7]"]));
    all.push(Example::new(unfold(1, 2, 2, 3), &["f32[2, 9]"]));
    all.push(Example::new(unfold(0, 2, 3, 1), &["f32[8, 2]"]));
    all.push(Example::new(unfold(1, 3, 2, 1), &["f32[b, t]"]).at(&[&[("b", 2), ("t", 8)], &[("b", 1), ("t", 3)]]));
}

fn concat(all: &mut List) {
    all.push(Example::new(Op::Concat { axis: 0 }, &["f32[2, 3]", "f32[1, 3]"]));
    all.push(Example::new(Op::Concat { axis: 1 }, &["i4[2, 2]", "i4[2, 4]", "i4[2, 0]"]));
    all.push(Example::new(Op::Concat { axis: 0 }, &["bf16[3]"]));
    all.push(Example::new(Op::Concat { axis: 1 }, &["f32[b, t]", "f32[b, 1]", "f32[b, t]"]));
}

fn gather(all: &mut List) {
    all.push(Example::new(Op::Gather { axis: 1 }, &["f32[2, 5]", "i64[2, 3]"]).index(1, 5));
    all.push(Example::new(Op::Gather { axis: 0 }, &["bf16[6, 2]", "i32[4, 2]"]).index(1, 6));
    all.push(Example::new(Op::Gather { axis: 0 }, &["f8e5m2[6]", "i64[9]"]).index(1, 6));
    let tokens = Dim::symbol("t").expect("a name");
    all.push(Example::new(Op::Gather { axis: 1 }, &["f32[b, t]", "i64[b, 2]"]).index(1, tokens));
    all.push(Example::new(Op::Gather { axis: 0 }, &["f32[10, 4]", "i64[t, 4]"]).index(1, 10));
}

fn scatter(kind: ScatterKind, all: &mut List) {
    let scatter = |axis| Op::Scatter { axis, kind };
    for dtype in DType::ALL {
        let (x, updates) = (format!("{dtype}[2, 5]"), format!("{dtype}[2, 3]"));
        all.extend(Example::try_new(scatter(1), &[&x, "i64[2, 3]", &updates]).map(|example| example.index(1, 5)));
    }
    all.push(Example::new(scatter(0), &["f32[4, 2]", "i32[7, 2]", "f32[7, 2]"]).index(1, 4));
    all.push(Example::new(scatter(0), &["f32[9, b]", "i64[t, b]", "f32[t, b]"]).index(1, 9));
}

fn dot(all: &mut List) {
    let dot = |lb: &[usize], rb: &[usize], lc: &[usize], rc: &[usize], out| Op::Dot {
        dims: DotDims {
            lhs_batch: lb.to_vec(),
            rhs_batch: rb.to_vec(),
            lhs_contract: lc.to_vec(),
            rhs_contract: rc.to_vec(),
        }
        .into(),
        out,
    };
    for dtype in DType::ALL {
        for out in DType::ALL {
            let (lhs, rhs) = (format!("{dtype}[3, 5]"), format!("{dtype}[5, 4]"));
            all.extend(Example::try_new(dot(&[], &[], &[1], &[0], out), &[&lhs, &rhs]));
        }
    }
    all.push(Example::new(dot(&[0], &[0], &[2], &[1], DType::F32), &["f32[2, 3, 5]", "f32[2, 5, 4]"]));
    all.push(Example::new(dot(&[0, 2], &[0, 1], &[3], &[3], DType::F32), &["f32[2, 3, 2, 4]", "f32[2, 2, 5, 4]"]));
    all.push(Example::new(dot(&[], &[], &[0, 1], &[1, 0], DType::F32), &["f32[3, 4]", "f32[4, 3]"]));
    all.push(Example::new(dot(&[], &[], &[], &[], DType::F32), &["f32[3]", "f32[4]"]));
    all.push(Example::new(dot(&[], &[], &[0], &[0], DType::F32), &["f32[7]", "f32[7]"]));
    all.push(Example::new(dot(&[], &[], &[1], &[0], DType::F32), &["f32[2, 0]", "f32[0, 3]"]));
    all.push(Example::new(dot(&[], &[], &[1], &[1], DType::F32), &["f32[b, 8]", "f32[6, 8]"]));
    all.push(Example::new(dot(&[0], &[0], &[1], &[2], DType::F32), &["f32[b, t, 4]", "f32[b, 3, t]"]));
}

fn dequantize(all: &mut List) {
    for format in BlockFormat::ALL {
        let op = Op::Dequantize { format };
        for (leading, blocks) in [("", 1), ("", 3), ("2, ", 2), ("3, 2, ", 1), ("0, ", 1), ("2, ", 0), ("b, ", 2)] {
            let ty = format!("u8[{leading}{}]", blocks * format.bytes());
            // Scales are halves: bytes up to 63 make numbers below 2 of them, as both their ends.
            all.push(Example::new(op.clone(), &[&ty]).between(0, 0.0, 63.0));
        }
    }
}

fn conv(all: &mut List) {
    let plain =
        ConvDims { stride: vec![1], padding: vec![(0, 0)], dilation: vec![1], input_dilation: vec![1], groups: 1 };
    let plane = ConvDims {
        stride: vec![2, 1],
        padding: vec![(1, 1), (0, 2)],
        dilation: vec![1, 2],
        input_dilation: vec![1, 1],
        groups: 1,
    };
    all.push(Example::new(Op::Conv(plain.clone().into()), &["f32[2, 3, 8]", "f32[4, 3, 3]"]));
    all.push(Example::new(Op::Conv(plane.clone().into()), &["f32[2, 3, 6, 7]", "f32[4, 3, 3, 2]"]));
    all.push(Example::new(
        Op::Conv(Box::new(ConvDims { groups: 2, ..plane.clone() })),
        &["f32[1, 4, 6, 7]", "f32[6, 2, 3, 2]"],
    ));
    let transposed = ConvDims { input_dilation: vec![2], padding: vec![(1, 1)], ..plain.clone() };
    all.push(Example::new(Op::Conv(transposed.clone().into()), &["f32[1, 2, 5]", "f32[3, 2, 2]"]));
    let cropped = ConvDims { padding: vec![(-1, 2)], ..plain.clone() };
    all.push(Example::new(Op::Conv(cropped.into()), &["bf16[1, 2, 6]", "bf16[3, 2, 2]"]));
    let sizes: &[&[(&str, i64)]] = &[&[("b", 2), ("t", 7)], &[("b", 1), ("t", 3)]];
    all.push(Example::new(Op::Conv(plain.into()), &["f32[b, 3, t]", "f32[4, 3, 3]"]).at(sizes));
    all.push(Example::new(Op::Conv(transposed.into()), &["f32[b, 3, t]", "f32[4, 3, 3]"]).at(sizes));
    all.push(Example::new(Op::Conv(plane.into()), &["f32[b, 3, t, 7]", "f32[4, 3, 3, 2]"]).at(sizes));
}

fn reduce_window(kind: ReduceKind, all: &mut List) {
    let flat = WindowDims { size: vec![1, 3], stride: vec![1, 2], dilation: vec![1, 1], padding: vec![(0, 0), (1, 1)] };
    for_every_dtype(&Op::ReduceWindow { kind, dims: flat.clone().into() }, 1, "[2, 7]", all, |example| example);
    let plane = WindowDims {
        size: vec![1, 1, 2, 3],
        stride: vec![1, 1, 2, 1],
        dilation: vec![1, 1, 1, 2],
        padding: vec![(0, 0), (0, 0), (0, 1), (2, 2)],
    };
    all.push(Example::new(Op::ReduceWindow { kind, dims: plane.into() }, &["f32[1, 2, 5, 6]"]));
    all.push(Example::new(Op::ReduceWindow { kind, dims: flat.into() }, &["f32[b, t]"]));
}

fn attention(all: &mut List) {
    let attention = |causal, mask| Op::Attention { causal, scale: Scalar::float(DType::F64, 0.35), mask };
    for causal in [false, true] {
        for dtype in ["f32", "f64", "f16", "bf16"] {
            let (q, k, v) =
                (format!("{dtype}[2, 4, 3, 8]"), format!("{dtype}[2, 4, 5, 8]"), format!("{dtype}[2, 4, 5, 8]"));
            all.push(Example::new(attention(causal, false), &[&q, &k, &v]));
        }
        all.push(Example::new(attention(causal, false), &["f32[1, 6, 4, 8]", "f32[1, 2, 4, 8]", "f32[1, 2, 4, 6]"]));
        all.push(Example::new(attention(causal, false), &["f32[b, 4, t, 8]", "f32[b, 2, t, 8]", "f32[b, 2, t, 8]"]));
        let (q, k) = ("f32[1, 2, 3, 4]", "f32[1, 2, 5, 4]");
        all.push(Example::new(attention(causal, true), &[q, k, k, "bool[1, 2, 3, 5]"]));
        all.push(Example::new(attention(causal, true), &[q, k, k, "f32[1, 2, 3, 5]"]));
    }
    let (q, k) = ("bf16[b, 4, 1, 8]", "bf16[b, 4, s, 8]");
    all.push(Example::new(attention(false, true), &[q, k, k, "bool[b, 4, 1, s]"]));
    // Several tiles of queries and of keys, the last of each incomplete; queries before the first key see nothing.
    for (dtype, [t, s]) in [("bf16", [70, 90]), ("f16", [70, 90]), ("bf16", [90, 70])] {
        let (q, k) = (format!("{dtype}[1, 4, {t}, 16]"), format!("{dtype}[1, 2, {s}, 16]"));
        all.push(Example::new(attention(true, false), &[&q, &k, &k]));
        all.push(Example::new(attention(true, true), &[&q, &k, &k, &format!("f32[1, 4, {t}, {s}]")]));
        all.push(Example::new(attention(false, true), &[&q, &k, &k, &format!("bool[1, 4, {t}, {s}]")]));
    }
    let (q, k) = ("bf16[b, 4, t, 32]", "bf16[b, 4, s, 32]");
    all.push(Example::new(attention(true, false), &[q, k, k]));
}

/// Types of q, k and v of attention, and the dtype that they are computed in.
const ATTENTIONS: &[([&str; 3], &str)] = &[
    (["f32[2, 4, 3, 8]", "f32[2, 4, 5, 8]", "f32[2, 4, 5, 8]"], "f32"),
    (["f64[2, 4, 3, 8]", "f64[2, 4, 5, 8]", "f64[2, 4, 5, 8]"], "f64"),
    (["f16[2, 4, 3, 8]", "f16[2, 4, 5, 8]", "f16[2, 4, 5, 8]"], "f32"),
    (["bf16[2, 4, 3, 8]", "bf16[2, 4, 5, 8]", "bf16[2, 4, 5, 8]"], "f32"),
    (["f32[1, 6, 4, 8]", "f32[1, 2, 4, 8]", "f32[1, 2, 4, 6]"], "f32"),
    (["f32[b, 4, t, 8]", "f32[b, 2, t, 8]", "f32[b, 2, t, 8]"], "f32"),
    // Several tiles of queries and of keys, the last of each incomplete; queries before the first key see nothing.
    (["bf16[1, 4, 70, 16]", "bf16[1, 2, 90, 16]", "bf16[1, 2, 90, 16]"], "f32"),
    (["f16[1, 2, 90, 16]", "f16[1, 2, 70, 16]", "f16[1, 2, 70, 16]"], "f32"),
    (["bf16[b, 2, t, 64]", "bf16[b, 2, t, 64]", "bf16[b, 2, t, 64]"], "f32"),
];

/// The type of what has `last` elements a row of queries.
fn rows(q: &str, dtype: &str, last: &str) -> String {
    let sizes = q.split_once('[').map_or("", |(_, sizes)| sizes.trim_end_matches(']'));
    let axes: Vec<&str> = sizes.split(", ").collect();
    format!("{dtype}[{}, {last}]", axes[..3].join(", "))
}

/// The size of an axis of a type.
fn axis(ty: &str, axis: usize) -> &str {
    ty.split_once('[').and_then(|(_, sizes)| sizes.trim_end_matches(']').split(", ").nth(axis)).unwrap_or("")
}

fn attention_logsumexp(all: &mut List) {
    let scale = Scalar::float(DType::F64, 0.35);
    for &([q, k, _], _) in ATTENTIONS {
        for causal in [false, true] {
            let op = |mask| Op::AttentionLogsumexp { causal, scale, mask };
            all.push(Example::new(op(false), &[q, k]));
            for mask in ["bool", "f32"] {
                all.push(Example::new(op(true), &[q, k, &rows(q, mask, axis(k, 2))]));
            }
        }
    }
}

fn attention_gradient(of: AttentionOperand, all: &mut List) {
    let scale = Scalar::float(DType::F64, 0.35);
    for &([q, k, v], wide) in ATTENTIONS {
        let dtype = q.split_once('[').map_or("", |(dtype, _)| dtype);
        let (gradient, row) = (rows(q, dtype, axis(v, 3)), rows(q, wide, "1"));
        for causal in [false, true] {
            let op = |mask| Op::AttentionGradient { of, causal, scale, mask };
            // Logarithms of sums of about as many scores.
            let example = Example::new(op(false), &[q, k, v, &gradient, &row, &row]);
            all.push(example.between(4, 5.0, 8.0));
            for mask in ["bool", "f32"] {
                let mask = rows(q, mask, axis(k, 2));
                let example = Example::new(op(true), &[q, k, v, &gradient, &row, &row, &mask]);
                all.push(example.between(4, 5.0, 8.0));
            }
        }
    }
}

fn loops(all: &mut List) {
    let region = |body: &str, turns: &str, carried: usize, scanned: usize, reverse: bool| {
        let body = Graph::parse(body).expect("a body of an example");
        Arc::new(Region::new(body, dims(&[turns])[0].clone(), carried, scanned, reverse))
    };
    let sum = "graph(%0: f32[4], %1: f32[4]) { %2: f32[4] = add %0, %1 return %2, %2 }";
    let recurrent = "graph(%0: f32[b, 4], %1: f32[b, 4], %2: f32[4, 4]) {
      %3: f32[b, 4] = dot %0, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
      %4: f32[b, 4] = add %3, %1
      %5: f32[b, 4] = tanh %4
      return %5, %5, %4
    }";
    // What is carried changes places, and is given back as it came.
    let exchange = "graph(%0: i64[], %1: f32[2], %2: f32[2]) {
      %3: i64[] = full {value=1}
      %4: i64[] = add %0, %3
      return %4, %2, %1, %1, %3
    }";
    let nested = "graph(%0: f32[], %1: f32[3]) {
      %2: f32[] = loop %0, %1 {turns=3, carried=1, scanned=1, result=0, body=graph(%0: f32[], %1: f32[]) {
        %2: f32[] = max %0, %1
        return %2
      }}
      return %2, %2
    }";
    let until = "graph(%0: i64[3], %1: i64[3], %2: bool[]) {
      %3: i64[3] = add %0, %1
      %4: i64[1] = reduce_max %3 {axes=[0]}
      %5: i64[] = reshape %4
      %6: i64[] = full {value=40}
      %7: bool[] = lt %5, %6
      %8: i64[3] = full {value=1}
      %9: i64[3] = max %1, %8
      return %3, %9, %7
    }";
    let until = Arc::new(Region::conditional(Graph::parse(until).expect("a body of an example")));
    for result in 0..3 {
        let op = Op::Loop { region: until.clone(), result };
        all.push(Example::new(op, &["i64[3]", "i64[3]", "bool[]"]));
    }
    for reverse in [false, true] {
        for result in 0..2 {
            let op = Op::Loop { region: region(sum, "t", 1, 1, reverse), result };
            all.push(Example::new(op, &["f32[4]", "f32[t, 4]"]).at(&[&[("t", 3)], &[("t", 0)], &[("t", 1)]]));
        }
        for result in 0..3 {
            let op = Op::Loop { region: region(recurrent, "5", 1, 1, reverse), result };
            all.push(Example::new(op, &["f32[b, 4]", "f32[5, b, 4]", "f32[4, 4]"]));
        }
    }
    for result in 0..5 {
        let op = Op::Loop { region: region(exchange, "3", 3, 0, false), result };
        all.push(Example::new(op, &["i64[]", "f32[2]", "f32[2]"]));
    }
    for result in 0..2 {
        let op = Op::Loop { region: region(nested, "4", 1, 1, false), result };
        all.push(Example::new(op, &["f32[]", "f32[4, 3]"]));
    }
}

fn choices(all: &mut List) {
    let branches = |then: &str, otherwise: &str| {
        let side = |text: &str| Graph::parse(text).expect("a side of an example");
        Arc::new(Branches::new(side(then), side(otherwise)))
    };
    // Results that are operands, that both sides share, and that are no function of any operand.
    let exchange = branches(
        "graph(%0: f32[n], %1: f32[n]) { %2: f32[n] = full {value=1.0} return %1, %0, %2 }",
        "graph(%0: f32[n], %1: f32[n]) { %2: f32[n] = mul %0, %1 return %2, %2, %1 }",
    );
    for result in 0..3 {
        let op = Op::Cond { branches: exchange.clone(), result };
        all.push(Example::new(op, &["bool[]", "f32[n]", "f32[n]"]).at(&[&[("n", 3)], &[("n", 1)], &[("n", 0)]]));
    }
    // Of different costs, with a loop on one side and a choice on the other.
    let nested = branches(
        "graph(%0: f32[4, 4], %1: bool[]) {
      %2: f32[4, 4] = dot %0, %0 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
      %3: f32[4] = full {value=0.5}
      %4: f32[4] = loop %3, %2 {turns=4, carried=1, scanned=1, result=0, body=graph(%0: f32[4], %1: f32[4]) {
        %2: f32[4] = max %0, %1
        return %2
      }}
      return %4
    }",
        "graph(%0: f32[4, 4], %1: bool[]) {
      %2: f32[1, 4] = reduce_sum %0 {axes=[0]}
      %3: f32[4] = reshape %2
      %4: f32[4] = cond %1, %3 {result=0, then=graph(%0: f32[4]) {
        %1: f32[4] = neg %0
        return %1
      }, otherwise=graph(%0: f32[4]) {
        return %0
      }}
      return %4
    }",
    );
    let op = Op::Cond { branches: nested, result: 0 };
    all.push(Example::new(op, &["bool[]", "f32[4, 4]", "bool[]"]));
}
