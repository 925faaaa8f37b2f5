//! Every example prints and parses back; broken text gives errors that name the place.

use super::{ParseErrorKind, fuzz_once};
use crate::examples::{Random, examples};
use crate::{DType, Graph, Literal, Op, OpKind, Scalar, Source, TensorType};
use std::collections::BTreeSet;

#[test]
fn every_kind_of_op_has_an_example_that_survives_the_text_form() {
    let mut shown = BTreeSet::new();
    for example in examples() {
        example.graph.verify().unwrap_or_else(|e| panic!("{}: {e}", example.name));
        let last = example.graph.nodes().last().map(|node| node.op.kind());
        assert_eq!(last, Some(example.kind), "{}", example.name);
        let text = example.graph.to_string();
        let parsed = Graph::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        assert_eq!(parsed, example.graph, "{text}");
        shown.insert(example.kind);
    }
    for kind in OpKind::all() {
        assert!(shown.contains(&kind), "{} has no example", kind.name());
    }
}

#[test]
fn examples_have_contents_for_every_binding() {
    for example in examples() {
        assert!(!example.bindings.is_empty(), "{}", example.name);
        for binding in &example.bindings {
            let inputs = example.inputs(binding, 1).unwrap_or_else(|| panic!("{}: a size has no value", example.name));
            assert_eq!(inputs.len(), example.graph.inputs().len());
        }
    }
}

#[test]
fn a_graph_reads_like_the_contract() {
    let text = "\
graph(%0: f32[b, 4096], %1: f32[b, 4096] @ src/model.rs:7) {
  %2: f32[b, 4096] = mul %0, %1 @ src/model.rs:41
  %3: f32[b, 1] = reduce_sum %2 {axes=[1]}
  %4: f32[2] = constant {value=[1.0, -2.5]}
  %5: i64[b, 2] = sort_indices %2 {axis=1, count=2, descending=true} @ \"a b.rs\":3
  %6: f32[b*4096] = reshape %2
  %7: f32[b, 4095] = slice %2 {start=[0, 1], size=[b, 4095], step=[1, 1]}
  %8: f32[2] = full {value=-0.0}
  return %3, %2 -> input 0, %4, %5, %6, %7, %8
}
";
    let graph = Graph::parse(text).unwrap();
    assert_eq!(graph.to_string(), text);
    assert_eq!(graph.outputs()[1].updates, Some(0));
    assert_eq!(graph.nodes()[2].source.line, 41);
}

#[test]
fn inputs_keep_their_place_among_the_nodes() {
    let ty = TensorType::fixed(DType::F32, &[3]);
    let mut graph = Graph::new();
    let x = graph.input(ty.clone(), Source::default()).unwrap();
    let y = graph.add(Op::Unary(crate::UnaryOp::Neg), &[x], Source::default()).unwrap();
    graph.input(ty.clone(), Source::default()).unwrap();
    let z = graph.input(ty.clone(), Source::default()).unwrap();
    let sum = graph.add(Op::Binary(crate::BinaryOp::Add), &[y, z], Source::default()).unwrap();
    graph.input(ty, Source::default()).unwrap();
    graph.output(sum);
    assert_eq!(Graph::parse(&graph.to_string()).as_ref(), Ok(&graph), "{graph}");
}

#[test]
fn numbers_are_names() {
    let graph = Graph::parse("graph(%9: f32[2], %3: f32[2]) { %1: f32[2] = sub %3, %9 return %1 }").unwrap();
    assert_eq!(graph.to_string(), "graph(%0: f32[2], %1: f32[2]) {\n  %2: f32[2] = sub %1, %0\n  return %2\n}\n");
}

#[test]
fn every_bit_of_a_scalar_survives() {
    let mut values = vec![0.0, -0.0, 0.1, 1e-45, -1e300, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    values.extend([0xfff8_0000_0000_0000, 0x7ff0_0000_0000_0001, 0x7ff8_0000_2000_0000].map(f64::from_bits));
    let mut random = Random(3);
    values.extend((0..500).map(|_| f64::from_bits(random.bits())));
    for value in values {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let scalar = if value.is_nan() { Scalar::Float(dtype, value) } else { Scalar::float(dtype, value) };
            let mut graph = Graph::new();
            let node = graph.add(Op::Full { value: scalar, shape: vec![] }, &[], Source::default()).unwrap();
            graph.output(node);
            assert_eq!(Graph::parse(&graph.to_string()).as_ref(), Ok(&graph), "{graph}");
        }
    }
}

#[test]
fn every_bit_of_a_constant_survives() {
    let mut random = Random(4);
    for round in 0..400 {
        for dtype in DType::ALL {
            let shape = [1 + round % 5, 1 + random.below(6)];
            let count = dtype.bytes_for(shape[0] * shape[1]).unwrap();
            let mut bytes: Vec<u8> = (0..count).map(|_| random.bits() as u8).collect();
            if dtype == DType::Bool {
                bytes.iter_mut().for_each(|byte| *byte &= 1);
            }
            let literal = Literal { dtype, shape: shape.to_vec(), bytes: bytes.into() };
            let mut graph = Graph::new();
            let node = graph.add(Op::Constant(literal), &[], Source::default()).unwrap();
            graph.output(node);
            assert_eq!(Graph::parse(&graph.to_string()).as_ref(), Ok(&graph), "{graph}");
        }
    }
}

#[test]
fn any_source_survives() {
    for file in ["src/a.rs", "a b", "C:\\x.rs", "\"#{}\n\t\r\\", "ü/日.rs", "", "x:3", "~/n+1-2_3.rs", "\u{7f}\u{0}"]
    {
        for line in [0, 1, u32::MAX] {
            let source = Source::new(file.to_owned(), line);
            let mut graph = Graph::new();
            let ty = TensorType::fixed(DType::F32, &[2]);
            let x = graph.input(ty, source.clone()).unwrap();
            let y = graph.add(Op::Unary(crate::UnaryOp::Neg), &[x], source).unwrap();
            graph.output(y);
            assert_eq!(Graph::parse(&graph.to_string()).as_ref(), Ok(&graph), "{graph}");
        }
    }
}

#[track_caller]
fn error(text: &str) -> String {
    Graph::parse(text).expect_err("this text is not a graph").to_string()
}

/// The message for a body of one node on `%0: f32[2, 3]`.
#[track_caller]
fn node_error(node: &str) -> String {
    error(&format!("graph(%0: f32[2, 3]) {{\n{node}\nreturn %0\n}}"))
}

#[test]
fn errors_name_the_place_and_what_is_wrong() {
    assert_eq!(error(""), "line 1, column 1: expected graph, found the end");
    assert_eq!(error("graph() {"), "line 1, column 10: expected a node or return, found the end");
    assert_eq!(error("graph() { return } x"), "line 1, column 20: expected the end, found 'x'");
    assert_eq!(error("graph(%0: f31[2]) {}"), "line 1, column 11: unknown dtype 'f31'");
    assert_eq!(error("graph(%0: f32[2) {}"), "line 1, column 16: expected , or ], found ')'");
    assert_eq!(error("graph(%0: f32[-1]) {}"), "line 1, column 11: f32[-1] has a negative size");
    assert_eq!(error("graph(%0: f32[2], %0: f32[3]) {}"), "line 1, column 19: %0 is defined twice");
    assert_eq!(
        error("graph(%0: f32[b +]) {}"),
        "line 1, column 15: not a size: expected a number, a name or `(` at offset 3"
    );
    assert_eq!(
        error("graph(%0: f32[1048576, 1048576, 1048576, 1048576]) {}"),
        "line 1, column 11: f32[1048576, 1048576, 1048576, 1048576] is too large to address"
    );
    assert_eq!(
        error("graph(%0: f32[2]) { return %0 -> input 1 }"),
        "line 1, column 21: output 0 updates input 1: there is no such input"
    );
    assert_eq!(error("graph() { return %4 }"), "line 1, column 18: %4 is not defined above");
    assert_eq!(error("graph(%99999999999: f32[2]) {}"), "line 1, column 8: 99999999999 is out of range");
    assert_eq!(error("graph(%0: f32[2] @ \"a) {}"), "line 1, column 26: expected a closing \", found the end");
}

#[test]
fn errors_of_a_node_name_the_op() {
    assert_eq!(node_error("%1: f32[2, 3] = foo %0"), "line 2, column 17: unknown op 'foo'");
    assert_eq!(node_error("%1: f32[2, 3] = input"), "line 2, column 17: unknown op 'input'");
    assert_eq!(node_error("%1: f32[2, 3] = neg %2"), "line 2, column 21: %2 is not defined above");
    assert_eq!(node_error("%0: f32[2, 3] = neg %0"), "line 2, column 1: %0 is defined twice");
    assert_eq!(node_error("%1: f32[2, 4] = neg %0"), "line 2, column 5: declared f32[2, 4], but neg gives f32[2, 3]");
    assert_eq!(node_error("%1: f32[2, 3] = add %0"), "line 2, column 17: add: takes two operands, not 1");
    assert_eq!(
        node_error("%1: f32[7] = reshape %0"),
        "line 2, column 14: reshape: f32[2, 3] has 6 elements, f32[7] has 7"
    );
    assert_eq!(node_error("%1: f32[2, 1] = reduce_sum %0"), "line 2, column 17: reduce_sum needs the attribute 'axes'");
    assert_eq!(
        node_error("%1: f32[2, 1] = reduce_sum %0 {axes=[1], axis=1}"),
        "line 2, column 42: reduce_sum has no attribute 'axis'"
    );
    assert_eq!(
        node_error("%1: f32[2, 1] = reduce_sum %0 {axes=[1], axes=[1]}"),
        "line 2, column 42: the attribute 'axes' is given twice"
    );
    assert_eq!(
        node_error("%1: f32[2, 1] = reduce_sum %0 {axes=[1] 2}"),
        "line 2, column 41: expected , or }, found '2'"
    );
    assert_eq!(node_error("%1: f32[2, 1] = reduce_sum %0 {axes=1}"), "line 2, column 37: expected [, found '1'");
    assert_eq!(node_error("%1: i8[] = full {value=128}"), "line 2, column 24: 128 is out of range");
    assert_eq!(node_error("%1: f16[] = full {value=1e9}"), "line 2, column 25: 1e9 is out of range");
    assert_eq!(node_error("%1: f32[] = full {value=infinity}"), "line 2, column 25: expected a number, found 'i'");
    assert_eq!(node_error("%1: bool[] = full {value=1}"), "line 2, column 26: expected true or false, found '1'");
    assert_eq!(
        node_error("%1: f32[3] = constant {value=[1, 2]}"),
        "line 2, column 30: 2 elements for a constant of f32[3]"
    );
    assert_eq!(
        node_error("%1: i4[4] = constant {value=[1, 2, 3]}"),
        "line 2, column 29: 3 elements for a constant of i4[4]"
    );
    assert_eq!(
        node_error("%1: f32[b] = constant {value=[1]}"),
        "line 2, column 30: 1 elements for a constant of f32[b]"
    );
    assert_eq!(
        node_error("%1: f32[3] = constant {value=0x00}"),
        "line 2, column 14: constant: f32[3] takes 12 bytes, not 1"
    );
    assert_eq!(
        node_error("%1: u8[2] = constant {value=0x000}"),
        "line 2, column 34: expected an even number of digits, found '}'"
    );
}

/// Nothing is allocated for what a shape merely claims.
#[test]
fn a_huge_constant_is_refused() {
    let message = node_error("%1: f32[1000000000, 1000000] = constant {value=[]}");
    assert!(message.contains("0 elements for a constant"), "{message}");
    let message = node_error("%1: u8[1000000000000000000] = constant {value=0xff}");
    assert!(message.contains("takes 1000000000000000000 bytes, not 1"), "{message}");
}

#[test]
fn deep_nesting_is_an_error() {
    let open = "(".repeat(100_000);
    assert!(matches!(
        Graph::parse(&format!("graph(%0: f32[{open}]) {{ return }}")).map_err(|e| e.kind),
        Err(ParseErrorKind::BadDim { .. })
    ));
    let brackets = "[".repeat(100_000);
    assert!(Graph::parse(&format!("graph(%0: f32[2]) {{ %1: f32[2] = flip %0 {{axes={brackets}}} return }}")).is_err());
}

/// Printed examples with bytes changed, cut and doubled: never a panic, and what still parses is a valid graph.
/// `KILN_FUZZ_ROUNDS` makes it run longer.
#[test]
fn mutated_text_never_panics() {
    let texts: Vec<Vec<u8>> = examples().iter().map(|example| example.graph.to_string().into_bytes()).collect();
    let mut random = Random(20_250);
    let rounds = std::env::var("KILN_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    for _ in 0..rounds {
        let mut text = texts[random.below(texts.len())].clone();
        crate::text::mutate(&mut text, &mut random);
        fuzz_once(&text);
    }
}
