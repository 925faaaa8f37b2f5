//! Every PyTorch op that captured models use has an expression over the primitives, and the reference interpreter gives for
//! it what PyTorch gives.
//!
//! `ops.txt` lists the ops that captured graphs of models contain; `reference.txt`, written by `make_reference.py`, holds calls and
//! their results; `docs/op-coverage.md` is a table of the rows (`KILN_BLESS=1` rewrites it).

mod reference;
mod symbolic;

use kiln_aten::{Argument, AtenGraph, Call as AtenCall, Element, InputFrom, Meta, Row, rows};
use kiln_ir::{DType, HostTensor, OpKind, Scalar, Source, Tolerance};
use reference::{Attribute, Call, Expected};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const OPS: &str = include_str!("ops.txt");
const REFERENCE: &str = include_str!("reference.txt");

fn find(op: &str) -> Option<&'static Row> {
    kiln_aten::rows::find(op)
}

/// The ops of `ops.txt` under their headings.
fn op_names() -> impl Iterator<Item = &'static str> {
    OPS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// An argument that is no tensor. Words that name dtypes are dtypes.
fn argument(attribute: &Attribute) -> Argument {
    match attribute {
        Attribute::None => Argument::None,
        Attribute::Bool(value) => Argument::Bool(*value),
        Attribute::Int(value) => Argument::Int(*value),
        Attribute::Float(value) => Argument::Float(*value),
        Attribute::List(list) => Argument::List(list.iter().map(argument).collect()),
        Attribute::Word(word) => match (word.as_str(), word.parse::<DType>()) {
            ("c64", _) => Argument::Element(Element::complex(DType::F32)),
            ("c128", _) => Argument::Element(Element::complex(DType::F64)),
            (_, Ok(dtype)) => Argument::Element(Element::real(dtype)),
            (word, Err(_)) => Argument::Word(word.to_owned()),
        },
    }
}

/// Runs a call's expression, in a graph that does not know the sizes of its inputs if `is_symbolic`; gives what is wrong, or the
/// primitives it takes.
fn run(call: &Call, is_symbolic: bool) -> Result<BTreeSet<OpKind>, String> {
    let mut aten = AtenGraph::default();
    let mut inputs = Vec::new();
    let mut arguments: Vec<(String, Argument)> =
        call.attributes.iter().map(|(name, attribute)| (name.clone(), argument(attribute))).collect();
    let mut lists: BTreeMap<&str, Vec<Argument>> = BTreeMap::new();
    for ((name, tensor), shape) in call.tensors.iter().zip(symbolic::input_shapes(call, is_symbolic)) {
        let value = match (tensor, shape) {
            (Some(tensor), Some(shape)) => {
                let element = Element { complex: tensor.complex, ..Element::real(tensor.data.dtype()) };
                inputs.push(tensor.data.clone());
                Argument::Tensor(aten.input(Meta::contiguous(element, shape)))
            }
            _ => Argument::None,
        };
        lists.entry(name).or_default().push(value);
    }
    let is_list = |name: &str| {
        matches!(name, "tensors" | "indices") && !call.op.contains("embedding") && !call.op.contains("pool")
    };
    for (name, mut list) in lists {
        let value = if is_list(name) { Argument::List(list) } else { list.remove(0) };
        arguments.push((name.to_owned(), value));
    }
    let source = Source::new("model.py", 7);
    aten.calls.push(AtenCall { op: call.op.clone(), arguments, results: vec![], source: source.clone() });
    let (graph, from, complex) = kiln_aten::last_call(&aten).map_err(|e| e.to_string())?;
    graph.verify().map_err(|e| e.to_string())?;
    let is_drawn = from.contains(&InputFrom::Seed);
    inputs.extend(is_drawn.then(|| HostTensor::scalar(Scalar::int(DType::I64, 20))));
    if let Some((id, node)) = graph.iter().find(|(_, node)| node.op.kind() != OpKind::Input && node.source != source) {
        return Err(format!("{id} = {} is blamed on {}", node.op.kind().name(), node.source));
    }
    let outputs = symbolic::run(&graph, &inputs).map_err(|e| e.to_string())?;
    if outputs.len() != call.expected.len() {
        return Err(format!("{} results, expected {}", outputs.len(), call.expected.len()));
    }
    for (i, ((got, complex), want)) in outputs.iter().zip(&complex).zip(&call.expected).enumerate() {
        check(got, *complex, want).map_err(|e| format!("result {i}: {e}"))?;
    }
    Ok(graph.nodes().iter().map(|node| node.op.kind()).filter(|kind| *kind != OpKind::Input).collect())
}

fn check(got: &HostTensor, complex: bool, want: &Expected) -> Result<(), String> {
    match want {
        Expected::Nothing => Ok(()),
        Expected::Value(want) => {
            if complex != want.complex {
                return Err(format!("complex: {complex}, expected {}", want.complex));
            }
            // The reference has eight digits of f32.
            let tolerance = Tolerance::of(got.dtype());
            got.compare(&want.data, tolerance).map_err(|e| e.to_string())
        }
        Expected::Undefined(dtype, shape) => {
            let right = got.dtype() == *dtype && got.shape() == shape;
            right.then_some(()).ok_or_else(|| format!("{}{:?}", got.dtype(), got.shape()))
        }
        Expected::Random { dtype, shape, mean, variance, low, high } => {
            if got.dtype() != *dtype || got.shape() != shape {
                return Err(format!("{}{:?}", got.dtype(), got.shape()));
            }
            let values = got.to_f64();
            let n = values.len() as f64;
            let got_mean = values.iter().sum::<f64>() / n;
            let got_variance = values.iter().map(|v| (v - got_mean).powi(2)).sum::<f64>() / n;
            let outside = values.iter().find(|v| *v < low || *v > high);
            // Four standard errors of a mean, and a tenth of a variance.
            let allowed = 4.0 * (variance / n).sqrt();
            if (got_mean - mean).abs() > allowed || (got_variance / variance - 1.0).abs() > 0.1 || outside.is_some() {
                return Err(format!("mean {got_mean}, variance {got_variance}, outside its bounds {outside:?}"));
            }
            let distinct: BTreeSet<u64> = values.iter().map(|v| v.to_bits()).collect();
            if distinct.len() < 2 {
                return Err("all elements are the same".into());
            }
            Ok(())
        }
    }
}

#[test]
fn every_op_has_an_expression_and_a_case() {
    let calls = reference::parse(REFERENCE);
    let named: BTreeSet<&str> = op_names().collect();
    assert_eq!(named.len(), op_names().count(), "an op is listed twice");
    let expressed: BTreeSet<&str> = rows().flat_map(|row| row.ops).copied().collect();
    assert_eq!(expressed.len(), rows().map(|row| row.ops.len()).sum::<usize>(), "an op has two expressions");
    let called: BTreeSet<&str> = calls.iter().map(|call| &call.op[..]).collect();
    let missing: Vec<_> = named.difference(&expressed).collect();
    assert!(missing.is_empty(), "without an expression: {missing:?}");
    let missing: Vec<_> = named.difference(&called).collect();
    assert!(missing.is_empty(), "without a case in reference.txt: {missing:?}");
    let surplus: Vec<_> = expressed.union(&called).filter(|op| !named.contains(*op)).collect();
    assert!(surplus.is_empty(), "not in ops.txt: {surplus:?}");
}

/// Ops of the census on sizes: what they give is an expression ([`kiln_aten::parse_size`]), and no tensor.
const ON_SIZES: [&str; 7] = ["py.add", "py.ceil", "py.mul", "py.neg", "py.truediv", "torch.sym_float", "torch.sym_max"];

#[test]
fn every_op_of_the_census_has_a_row() {
    let census = include_str!("census.txt").lines().filter(|line| !line.starts_with('#'));
    let (on_sizes, on_tensors): (Vec<&str>, Vec<&str>) = census.partition(|op| ON_SIZES.contains(op));
    let missing: Vec<&&str> = on_tensors.iter().filter(|op| find(op).is_none()).collect();
    println!(
        "{} of {} ops on tensors have a row, {} are on sizes; {} ops have a row in all",
        on_tensors.len() - missing.len(),
        on_tensors.len(),
        on_sizes.len(),
        rows().map(|row| row.ops.len()).sum::<usize>()
    );
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_case_gives_what_pytorch_gives() {
    let calls = reference::parse(REFERENCE);
    let failures: Vec<String> = calls
        .iter()
        .filter_map(|call| run(call, false).err().map(|e| format!("{} (reference.txt:{}): {e}", call.op, call.line)))
        .collect();
    assert!(failures.is_empty(), "{} of {} cases fail:\n{}", failures.len(), calls.len(), failures.join("\n"));
}

/// The table of `docs/op-coverage.md`.
fn table() -> String {
    let calls = reference::parse(REFERENCE);
    let mut primitives: BTreeMap<&str, BTreeSet<OpKind>> = BTreeMap::new();
    let mut cases: BTreeMap<&str, usize> = BTreeMap::new();
    for call in &calls {
        let used = run(call, false).unwrap_or_default();
        primitives.entry(&call.op).or_default().extend(used);
        *cases.entry(&call.op).or_default() += 1;
    }
    let mut text = String::from(INTRODUCTION);
    for line in OPS.lines().filter(|line| !line.is_empty()) {
        if let Some(heading) = line.strip_prefix("# ") {
            text += &format!(
                "\n## {heading}\n\n| PyTorch op | Kiln expression | Primitives | Symbolic sizes | Cases |\n|---|---|---|---|---|\n"
            );
            continue;
        }
        let expression = find(line).map_or("", |row| row.text);
        let names: Vec<String> = primitives.get(line).into_iter().flatten().map(|kind| kind.name()).collect();
        let count = cases.get(line).copied().unwrap_or(0);
        let names = if names.is_empty() { "none".to_owned() } else { names.join(" ") };
        let symbolic = CONSTANT_SIZES.iter().find(|(op, _)| *op == line).map_or("yes", |(_, why)| why);
        text += &format!("| `{line}` | {expression} | {names} | {symbolic} | {count} |\n");
    }
    text
}

const INTRODUCTION: &str = "\
# PyTorch ops as Kiln expressions

Every op that PyTorch's captured graphs of several hundred models contain, with the expression that Kiln gives it: a
primitive, or a function of `kiln_ir::build` over primitives. The test `coverage` of `kiln-aten` runs each of them through the
reference interpreter on the calls of `crates/kiln-aten/tests/coverage/reference.txt` and compares with what PyTorch gave; it
also writes this file (`KILN_BLESS=1 cargo test -p kiln-aten --test coverage`). *Primitives* are those that the tested calls
come to; *symbolic sizes* says whether the same expressions were run in graphs that do not know the sizes of their inputs.

Without an expression are ops whose result has as many elements as its operands' values say: `nonzero`, `masked_select`,
`unique`, `index` by a mask, `repeat_interleave` by a tensor. A shape is made of sizes, not of elements; PyTorch's capture
breaks the graph there by default.

Some expressions do more work than a kernel made for the op would: `grouped_matmul` multiplies every row by every group's
matrix (zeros where it is not its own), `dft` of an unknown length is a product with an n×n matrix, `bucketize` compares with every boundary where they are few,
`as_strided` with strides that do not divide each other is a gather, and `max_pool_with_indices` looks at
each window twice.
";

#[test]
fn the_table_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/op-coverage.md");
    let table = table();
    if std::env::var_os("KILN_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == table, "docs/op-coverage.md is out of date; KILN_BLESS=1 rewrites it");
}

#[test]
fn the_table_names_functions_that_exist() {
    let mut source = String::new();
    for folder in ["build", "table"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kiln-ir/src").join(folder);
        for file in std::fs::read_dir(folder).unwrap() {
            source += &std::fs::read_to_string(file.unwrap().path()).unwrap();
        }
    }
    let primitives: BTreeSet<String> = OpKind::all().into_iter().map(|kind| kind.name()).collect();
    for row in rows() {
        for name in row.text.split('`').skip(1).step_by(2) {
            let function = source.contains(&format!("pub fn {name}<")) || source.contains(&format!(" {name} = "));
            let dim = name.starts_with("Dim");
            assert!(function || dim || primitives.contains(name), "{:?} names '{name}'", row.ops);
        }
    }
}

/// Ops some of whose cases do not hold where the sizes of inputs are symbolic, and why.
const CONSTANT_SIZES: &[(&str, &str)] = &[
    ("aten.view.default", GIVEN),
    ("aten._unsafe_view.default", GIVEN),
    ("aten.reshape.default", GIVEN),
    ("aten.view_copy.default", GIVEN),
    ("aten.expand.default", GIVEN),
    ("aten.split_with_sizes.default", GIVEN),
    ("aten.split.Tensor", "of other axes: how many parts there are must be known"),
    ("aten.unbind.int", "of other axes: how many parts there are must be known"),
    ("aten.unbind_copy.int", "of other axes: how many parts there are must be known"),
    ("aten.glu.default", "of other axes: half of the axis must be a size"),
    ("aten.col2im.default", "but for the columns, which are a multiple of the window"),
    ("aten.convolution.default", "but for channels in groups"),
    ("aten.convolution_backward.default", "but for channels in groups"),
    ("aten._scaled_dot_product_flash_attention_for_cpu.default", DEPTH),
    ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", DEPTH),
    ("aten._fft_c2c.default", LENGTH),
    ("aten._fft_r2c.default", LENGTH),
    ("aten._fft_c2r.default", LENGTH),
    ("aten._upsample_bicubic2d_aa.default", RESIZED),
    ("aten._upsample_bilinear2d_aa.default", RESIZED),
    ("aten._upsample_nearest_exact2d.default", RESIZED),
    ("aten.upsample_bicubic2d.default", RESIZED),
    ("aten.upsample_bilinear2d.default", RESIZED),
    ("aten.upsample_linear1d.default", RESIZED),
    ("aten.upsample_nearest1d.default", RESIZED),
    ("aten.upsample_nearest2d.default", RESIZED),
    ("aten.upsample_trilinear3d.default", RESIZED),
    ("aten.diagonal.default", "of other axes"),
    ("aten.adaptive_max_pool2d.default", "of axes that are not pooled"),
    ("aten.adaptive_max_pool3d.default", "of axes that are not pooled"),
];
const GIVEN: &str = "yes (the cases give sizes as numbers)";
const DEPTH: &str = "but for the depth, unless a scale is given";
const LENGTH: &str = "yes; of axes that are transformed if without a factor";
const RESIZED: &str = "of axes that are not resized";

#[test]
fn expressions_hold_for_symbolic_sizes() {
    let calls = reference::parse(REFERENCE);
    let failing: BTreeMap<&str, String> =
        calls.iter().filter_map(|call| Some((&call.op[..], run(call, true).err()?))).collect();
    let known: BTreeSet<&str> = CONSTANT_SIZES.iter().map(|(op, _)| *op).collect();
    let new: Vec<_> = failing.iter().filter(|(op, _)| !known.contains(*op)).collect();
    assert!(new.is_empty(), "{new:#?}");
    let mended: Vec<_> = known.iter().filter(|op| !failing.contains_key(*op)).collect();
    assert!(mended.is_empty(), "these hold now: {mended:?}");
}

#[test]
fn a_wrong_result_is_noticed() {
    for call in reference::parse(REFERENCE) {
        for i in 0..call.expected.len() {
            let mut wrong = call.clone();
            let Expected::Value(value) = &mut wrong.expected[i] else { continue };
            let Some(last) = value.data.elements().checked_sub(1) else { continue };
            let element = value.data.get(last);
            let other = if element.dtype() == DType::Bool {
                Scalar::bool(element.as_i64() == 0)
            } else if element.as_f64().is_finite() {
                Scalar::float(element.dtype(), element.as_f64() * 1.1 + 1.0)
            } else {
                Scalar::float(element.dtype(), 0.0)
            };
            value.data.set(last, other);
            assert!(run(&wrong, false).is_err(), "{} (reference.txt:{}): result {i}", call.op, call.line);
        }
    }
}
