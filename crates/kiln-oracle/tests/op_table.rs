//! Every part of the compiler answers for every row of the table of pointwise ops, and the columns of a row agree with each
//! other. The values of each op on every dtype are compared in `differential`, its derivative with differences in the tests of
//! the passes, and the accuracy of its code in those of the CPU: all of them walk over the table.

use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::codec::{Codec, from_bytes, to_bytes};
use kiln_ir::table::{DTypeClass, Derivative};
use kiln_ir::{
    BinaryOp, CompareOp, DType, Graph, HostTensor, Literal, Op, OpKind, ReduceKind, Scalar, Source, TensorType,
    UnaryOp, examples, infer, interpret,
};
use kiln_oracle as oracle;

/// An op of the table: how many operands it has, and what they may be.
fn pointwise() -> Vec<(Op, usize, DTypeClass)> {
    let unary = UnaryOp::ALL.iter().map(|op| (Op::Unary(*op), 1, op.row().accepts));
    let binary = BinaryOp::ALL.iter().map(|op| (Op::Binary(*op), 2, op.row().accepts));
    let compare = CompareOp::ALL.iter().map(|op| (Op::Compare(*op), 2, DTypeClass::Computable));
    unary.chain(binary).chain(compare).collect()
}

/// The graph of one op on inputs of a dtype.
fn graph_of(op: &Op, operands: usize, dtype: DType) -> Graph {
    let mut graph = Graph::new();
    let ty = TensorType::fixed(dtype, &[5]);
    let operands: Vec<_> = (0..operands).map(|_| graph.input(ty.clone(), Source::default()).unwrap()).collect();
    let node = graph.add(op.clone(), &operands, Source::default()).unwrap();
    graph.output(node);
    graph
}

#[test]
fn types_are_those_of_the_row() {
    for (op, operands, class) in pointwise() {
        for dtype in DType::ALL {
            let ty = TensorType::fixed(dtype, &[5]);
            let result = infer(&op, &vec![&ty; operands]);
            assert_eq!(result.is_ok(), class.has(dtype), "{} of {dtype}: {result:?}", op.kind().name());
            if result.is_ok() {
                let graph = graph_of(&op, operands, dtype);
                assert_eq!(Graph::parse(&graph.to_string()).as_ref(), Ok(&graph));
            }
        }
    }
    for kind in ReduceKind::ALL {
        for dtype in DType::ALL {
            let result = infer(&Op::Reduce { kind: *kind, axes: vec![0] }, &[&TensorType::fixed(dtype, &[5])]);
            assert_eq!(result.is_ok(), kind.accepts().has(dtype), "{} of {dtype}", kind.name());
        }
    }
}

#[test]
fn names_and_numbers_tell_ops_apart() {
    fn check<T: Codec + Copy + PartialEq + std::fmt::Debug>(
        all: &[T],
        name: fn(T) -> &'static str,
        from_name: fn(&str) -> Option<T>,
    ) {
        for (number, op) in all.iter().enumerate() {
            assert_eq!(from_name(name(*op)), Some(*op));
            assert_eq!(to_bytes(op), [number as u8]);
            assert_eq!(from_bytes::<T>(&[number as u8]), Ok(*op));
        }
    }
    check(UnaryOp::ALL, UnaryOp::name, UnaryOp::from_name);
    check(BinaryOp::ALL, BinaryOp::name, BinaryOp::from_name);
    check(CompareOp::ALL, CompareOp::name, CompareOp::from_name);
    check(ReduceKind::ALL, ReduceKind::name, ReduceKind::from_name);
    let mut names: Vec<String> = OpKind::all().into_iter().map(OpKind::name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// A value of a domain, `at` of the way through it.
fn sample(domain: Option<(f64, f64)>, dtype: DType, at: f64) -> Scalar {
    let (low, high) = domain.unwrap_or(if dtype == DType::U8 { (0.0, 9.0) } else { (-2.0, 2.0) });
    Scalar::float(dtype, low + (high - low) * at)
}

/// Values of the operands of an op.
fn operands(op: &Op, dtype: DType) -> Vec<Vec<Scalar>> {
    let domains = match op {
        Op::Unary(op) => vec![op.row().domain],
        Op::Binary(op) => {
            let of = |n| op.row().domain.filter(|d| d.0 == n).map(|(_, low, high)| (low, high));
            vec![of(0), of(1)]
        }
        _ => vec![None; 2],
    };
    let values = |(n, domain): (usize, &Option<(f64, f64)>)| {
        (0..5).map(|i| sample(*domain, dtype, ((i * (n + 2)) % 5) as f64 / 4.0)).collect()
    };
    domains.iter().enumerate().map(values).collect()
}

#[test]
fn meanings_are_there_for_every_dtype_and_all_floors_share_them() {
    for (op, count, class) in pointwise() {
        for dtype in DType::ALL.into_iter().filter(|d| class.has(*d)) {
            let columns = operands(&op, dtype);
            let at = |i: usize| match (&op, &columns[..]) {
                (Op::Unary(op), [x]) => op.eval(x[i]),
                (Op::Binary(op), [x, y]) => op.eval(x[i], y[i]),
                (Op::Compare(op), [x, y]) => Some(Scalar::bool(op.eval(x[i], y[i]))),
                _ => None,
            };
            let want: Vec<Scalar> = (0..5)
                .map(|i| at(i).unwrap_or_else(|| panic!("{} has no meaning on {dtype}", op.kind().name())))
                .collect();
            let graph = graph_of(&op, count, dtype);
            let literal = |column: &Vec<Scalar>| Literal::from_elements(dtype, &[5], column.iter().copied()).unwrap();
            let inputs: Vec<_> = columns.iter().map(|c| HostTensor::from_literal(&literal(c)).unwrap()).collect();
            let result = interpret::run(&graph, &inputs).unwrap()[0].to_literal();
            let got: Vec<Scalar> = (0..5).map(|i| result.element(i).unwrap()).collect();
            assert_eq!(got, want, "{} of {dtype}", op.kind().name());
            let compared = oracle::compare(&graph, &inputs, &Default::default());
            assert!(compared.is_ok(), "{} of {dtype}: {compared:?}", op.kind().name());
        }
    }
}

#[test]
fn a_result_that_fits_is_not_rounded() {
    for (op, _, class) in pointwise() {
        let fits = match &op {
            Op::Unary(op) => op.row().fits,
            Op::Binary(op) => op.row().fits,
            _ => continue,
        };
        for dtype in DType::ALL.into_iter().filter(|d| class.has(*d) && fits(*d)) {
            let wide = |x: Scalar| x.cast(dtype.compute_type());
            let columns = operands(&op, dtype);
            for (i, x) in columns[0].iter().enumerate() {
                let result = match &op {
                    Op::Unary(op) => op.eval(wide(*x)),
                    Op::Binary(op) => op.eval(wide(*x), wide(columns[1][i])),
                    _ => None,
                };
                let result = result.unwrap();
                assert_eq!(result.cast(dtype).cast(result.dtype()), result, "{} of {x:?}", op.kind().name());
            }
        }
    }
}

#[test]
fn costs_and_tolerances_are_those_of_something() {
    let rows = UnaryOp::ALL.iter().map(|op| (op.name(), op.row().cost, op.row().instructions, op.row().ulps));
    let binary = |op: &BinaryOp| (op.name(), op.row().cost, op.row().instructions, op.row().ulps + op.row().short_ulps);
    let rows = rows.chain(BinaryOp::ALL.iter().map(binary));
    for (name, cost, instructions, ulps) in rows {
        assert!((1..=64).contains(&cost) && (1..=64).contains(&instructions), "{name}");
        assert!((0.0..=64.0).contains(&ulps), "{name}");
    }
}

#[test]
fn derivatives_are_built_where_the_row_has_them() {
    for (op, count, class) in pointwise() {
        let dtype = class.example();
        let mut b = GraphBuilder::new();
        let ty = TensorType::fixed(dtype, &[5]);
        let operands: Vec<_> = (0..count).map(|_| b.input(ty.clone()).unwrap()).collect();
        let y = b.emit(op.clone(), &operands).unwrap();
        let g = b.input(b.ty(&y)).unwrap();
        let derivative = kiln_passes::derivative(op.kind());
        let gradients = kiln_passes::gradient(&mut b, &op, &operands, &y, &g, &vec![true; count]).unwrap();
        for gradient in &gradients {
            assert_eq!(gradient.is_some(), derivative == Derivative::Rule, "{}", op.kind().name());
            if let Some(gradient) = gradient {
                assert_eq!(b.ty(gradient), ty, "{}", op.kind().name());
            }
        }
        // What has a derivative is a function of floats, what is constant between its jumps has jumps.
        let Op::Unary(op) = op else { continue };
        assert!(derivative == Derivative::None || op.row().float.is_some(), "{}", op.name());
        assert!(derivative != Derivative::Zero || op.row().jump.is_some(), "{}", op.name());
    }
}

/// A function whose row names no jump has none: it is continuous and a number everywhere. Where the row names some, the nearest is
/// one.
#[test]
fn jumps_are_where_the_row_says() {
    const STEP: f64 = 1e-7;
    let breaks = |f: fn(f64) -> f64, x: f64| {
        let (before, at, after) = (f(x - STEP), f(x), f(x + STEP));
        let apart = |a: f64, b: f64| (a - b).abs() > 1e3 * STEP || !a.is_finite() || !b.is_finite();
        apart(before, at) || apart(at, after)
    };
    for op in UnaryOp::ALL {
        let Some(f) = op.row().float.filter(|_| !op.row().gives_bool) else { continue };
        for i in -4000..=4000 {
            let x = f64::from(i) / 1024.0;
            match op.row().jump {
                None => assert!(!breaks(f, x), "{}({x})", op.name()),
                Some(jump) => {
                    let point = jump(x, f64::from(f32::MAX));
                    // Zero may change its sign; those beyond are the ends of the range of f32.
                    let turns = f(point - STEP).is_sign_negative() != f(point + STEP).is_sign_negative();
                    let beyond = !point.is_finite() || point.abs() > 80.0;
                    assert!(beyond || turns || breaks(f, point), "{}({point})", op.name());
                }
            }
        }
    }
}

#[test]
fn examples_and_reductions_have_every_op() {
    let examples = examples::examples();
    for kind in OpKind::all() {
        assert!(examples.iter().any(|example| example.kind == kind), "{}", kind.name());
    }
    for kind in ReduceKind::ALL {
        for dtype in DType::ALL.into_iter().filter(|d| kind.accepts().has(*d)) {
            for x in [-3.0, 0.0, 1.0, 7.0].map(|x| Scalar::float(dtype, x)) {
                assert_eq!(kind.combine().eval(kind.identity(dtype), x), Some(x), "{} of {x:?}", kind.name());
            }
        }
    }
}
