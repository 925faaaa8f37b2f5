//! Whole graphs: where inputs come from, how outputs lie in memory, what is refused.

use kiln_aten::{Argument, AtenGraph, Call, Element, Error, InputFrom, Meta, OutputFrom, ValueId, import, unsupported};
use kiln_ir::{DType, Dim, HostTensor, Source, interpret};

const F32: Element = Element::real(DType::F32);

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&n| Dim::from(n)).collect()
}

fn strided(shape: &[i64], strides: &[i64]) -> Meta {
    Meta { element: F32, shape: dims(shape), strides: dims(strides) }
}

fn matrix(rows: i64, columns: i64) -> Meta {
    strided(&[rows, columns], &[columns, 1])
}

fn call(op: &str, arguments: &[(&str, Argument)], result: ValueId) -> Call {
    let arguments = arguments.iter().map(|(name, argument)| (name.to_string(), argument.clone())).collect();
    Call { op: op.into(), arguments, results: vec![Some(result)], source: Source::new("model.py", 3) }
}

fn tensor(id: ValueId) -> Argument {
    Argument::Tensor(id)
}

/// `neg` of a 2×3 input with a result of these strides.
fn negated(shape: &[i64], strides: &[i64]) -> AtenGraph {
    let mut aten = AtenGraph::default();
    let x = aten.input(matrix(2, 3));
    let y = aten.value(strided(shape, strides));
    aten.calls.push(call("aten.neg.default", &[("self", tensor(x))], y));
    aten.outputs.push(y);
    aten
}

fn run(aten: &AtenGraph) -> Vec<f64> {
    let graph = import(aten).unwrap().graph;
    let x = HostTensor::from_slice(&[2, 3], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
    interpret::run(&graph, &[x]).unwrap()[0].to_f64()
}

#[test]
fn a_dense_output_is_written_in_the_order_of_its_strides() {
    assert_eq!(run(&negated(&[2, 3], &[3, 1])), [-1., -2., -3., -4., -5., -6.]);
    assert_eq!(run(&negated(&[2, 3], &[1, 2])), [-1., -4., -2., -5., -3., -6.]);
}

#[test]
fn an_output_with_gaps_is_an_input_that_is_overwritten() {
    let imported = import(&negated(&[2, 3], &[4, 1])).unwrap();
    assert_eq!(imported.inputs, [InputFrom::Given(0), InputFrom::Output(0)]);
    assert_eq!(imported.strides[1], dims(&[4, 1]));
    assert_eq!(imported.outputs, [OutputFrom::Written(1)]);
    assert_eq!(imported.graph.outputs()[0].updates, Some(1));
}

#[test]
fn a_repeated_axis_has_one_index_in_memory() {
    let mut aten = AtenGraph::default();
    let x = aten.input(strided(&[1, 3], &[3, 1]));
    let y = aten.value(strided(&[4, 3], &[0, 1]));
    let size = Argument::List(vec![Argument::Int(4), Argument::Int(-1)]);
    aten.calls.push(call("aten.expand.default", &[("self", tensor(x)), ("size", size)], y));
    aten.outputs.push(y);
    let graph = import(&aten).unwrap().graph;
    assert_eq!(graph.ty(graph.outputs()[0].node).fixed_shape(), Some(vec![1, 3]));
}

#[test]
fn copies_into_inputs_are_updates() {
    let mut aten = AtenGraph::default();
    let (x, y) = (aten.input(matrix(2, 3)), aten.value(matrix(2, 3)));
    let copied = aten.value(matrix(2, 3));
    aten.calls.push(call("aten.neg.default", &[("self", tensor(x))], y));
    aten.calls.push(call("aten.copy_.default", &[("self", tensor(x)), ("src", tensor(y))], copied));
    aten.outputs.extend([copied, y, x, y]);
    let imported = import(&aten).unwrap();
    assert_eq!(imported.updates, [0]);
    let (input, output) = (OutputFrom::Input(0), OutputFrom::Output(0));
    assert_eq!(imported.outputs, [input, output, input, OutputFrom::Same(1)]);
    assert_eq!(imported.graph.outputs().iter().filter(|output| output.updates == Some(0)).count(), 1);

    let mut aten = negated(&[2, 3], &[3, 1]);
    let (y, copied) = (aten.outputs[0], aten.value(matrix(2, 3)));
    aten.calls.push(call("aten.copy_.default", &[("self", tensor(y)), ("src", tensor(y))], copied));
    assert!(matches!(import(&aten), Err(Error::Unsupported { .. })));
}

#[test]
fn random_ops_share_a_seed_and_not_their_numbers() {
    let mut aten = AtenGraph::default();
    let size = Argument::List(vec![Argument::Int(8)]);
    for _ in 0..2 {
        let y = aten.value(strided(&[8], &[1]));
        aten.calls.push(call("aten.rand.default", &[("size", size.clone())], y));
        aten.outputs.push(y);
    }
    let imported = import(&aten).unwrap();
    assert_eq!(imported.inputs, [InputFrom::Seed]);
    let seed = HostTensor::scalar(kiln_ir::Scalar::int(DType::I64, 5));
    let drawn = interpret::run(&imported.graph, &[seed]).unwrap();
    assert_ne!(drawn[0].to_f64(), drawn[1].to_f64());
}

#[test]
fn a_result_of_another_type_than_pytorch_found_is_an_error() {
    assert!(matches!(import(&negated(&[2, 4], &[4, 1])), Err(Error::Mismatch { result: 0, .. })));
    let mut aten = negated(&[2, 3], &[3, 1]);
    aten.values[1].element = Element::real(DType::F64);
    let error = import(&aten).unwrap_err().to_string();
    assert_eq!(error, "result 0 of aten.neg.default is f32[2, 3], not f64[2, 3], at model.py:3");
}

#[test]
fn calls_without_an_expression_are_listed_all_at_once() {
    let mut aten = negated(&[2, 3], &[3, 1]);
    let mut last = aten.outputs[0];
    for op in ["aten.nothing.default", "aten.neg.default", "aten.nothing.else"] {
        let next = aten.value(matrix(2, 3));
        aten.calls.push(call(op, &[("self", tensor(last))], next));
        last = next;
    }
    let found = unsupported(&aten).unwrap();
    assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(found[0].1.to_string(), "aten.nothing.default has no Kiln expression, at model.py:3");
    assert!(matches!(import(&aten), Err(Error::UnknownOp { .. })));
}

#[test]
fn a_symbolic_place_counts_from_the_end_if_it_is_negative() {
    let size = |text: &str| kiln_aten::parse_size(text).unwrap();
    let vector = |text: &str| Meta { element: F32, shape: vec![size(text)], strides: dims(&[1]) };
    let mut aten = AtenGraph::default();
    let (x, _) = (aten.input(vector("s0")), aten.input(vector("s1")));
    let y = aten.value(vector("s1"));
    let place = |text: &str| Argument::Size(size(text));
    let arguments = [("self", tensor(x)), ("dim", Argument::Int(0)), ("start", place("-s1"))];
    aten.calls.push(call("aten.slice.Tensor", &arguments, y));
    aten.outputs.push(y);
    let graph = import(&aten).unwrap().graph;
    let x = HostTensor::from_slice(&[5], &[1f32, 2., 3., 4., 5.]).unwrap();
    let other = HostTensor::from_slice(&[2], &[0f32, 0.]).unwrap();
    assert_eq!(interpret::run(&graph, &[x, other]).unwrap()[0].to_f64(), [4., 5.]);
}

#[test]
fn arguments_that_are_left_out_have_the_defaults_of_the_schema() {
    let mut aten = AtenGraph::default();
    let x = aten.input(matrix(2, 3));
    let four = aten.value(matrix(2, 4));
    let pad = [0, 1].map(Argument::Int).to_vec();
    aten.calls.push(call("aten.constant_pad_nd.default", &[("self", tensor(x)), ("pad", Argument::List(pad))], four));
    let half = aten.value(matrix(2, 2));
    aten.calls.push(call("aten.glu.default", &[("self", tensor(four))], half));
    let y = aten.value(matrix(2, 2));
    let place = aten.value(Meta::contiguous(Element::real(DType::I64), dims(&[1])));
    aten.calls.push(call(
        "aten.full.default",
        &[
            ("size", Argument::List(vec![Argument::Int(1)])),
            ("fill_value", Argument::Int(1)),
            ("dtype", Argument::Element(Element::real(DType::I64))),
        ],
        place,
    ));
    let value = aten.value(Meta::contiguous(F32, dims(&[1, 2])));
    let sizes = [1, 2].map(Argument::Int).to_vec();
    aten.calls.push(call(
        "aten.full.default",
        &[("size", Argument::List(sizes)), ("fill_value", Argument::Float(7.0))],
        value,
    ));
    let indices = Argument::List(vec![tensor(place)]);
    let arguments = [("self", tensor(half)), ("indices", indices), ("values", tensor(value))];
    aten.calls.push(call("aten.index_put.default", &arguments, y));
    aten.outputs.push(y);
    // x₀·σ(x₂) and x₁·σ(0); the second row is replaced.
    let sigmoid = 1.0 / (1.0 + (-3f64).exp());
    let got = run(&aten);
    let want = [sigmoid, 1.0, 7.0, 7.0];
    assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}");
}

#[test]
fn a_call_with_a_seed_draws_the_same_numbers_again() {
    let mut aten = AtenGraph::default();
    let seed = aten.input(Meta { element: Element::real(DType::I64), shape: vec![], strides: vec![] });
    let size = Argument::List(vec![Argument::Int(4), Argument::Int(5)]);
    for stream in [0, 16, 0] {
        let drawn = aten.value(matrix(4, 5));
        let given = [("kiln_seed", tensor(seed)), ("kiln_stream", Argument::Int(stream)), ("size", size.clone())];
        aten.calls.push(call("aten.randn.default", &given, drawn));
        aten.outputs.push(drawn);
    }
    let imported = import(&aten).unwrap();
    assert_eq!(imported.inputs, [InputFrom::Given(0)]);
    let drawn = |seed: i64| {
        let seed = HostTensor::from_slice(&[], &[seed]).unwrap();
        interpret::run(&imported.graph, &[seed]).unwrap().iter().map(HostTensor::to_f64).collect::<Vec<_>>()
    };
    let found = drawn(3);
    assert_eq!(found[0], found[2]);
    assert_ne!(found[0], found[1]);
    assert_ne!(found[0], drawn(4)[0]);
}
