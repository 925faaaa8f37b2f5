//! The rows of `kiln bench ops` that are one ATen op each. `census.txt` describes a call once: Kiln imports it as it imports the graphs
//! of PyTorch, and the peer calls the op with the same arguments.

use kiln_aten::{Argument, AtenGraph, Call, Element, Imported, InputFrom, Meta, import};
use kiln_ir::{DType, Dim, Graph, Source};
use serde_json::{Value, json};

/// One call of an op.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The op with its overload.
    pub op: &'static str,
    arguments: Vec<(&'static str, Part)>,
    results: Vec<Option<Type>>,
    /// Whether the dtype of the row is that of the case.
    floats: bool,
}

/// A dtype by PyTorch's habits: that of the case, one of Kiln's, or complex numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Case,
    Real(DType),
    Complex,
}

#[derive(Debug, Clone, PartialEq)]
struct Type {
    kind: Kind,
    shape: Vec<usize>,
}

/// What the elements of an input are drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Drawn {
    Usual,
    Range(f64, f64),
    /// As usual, and rising.
    Sorted,
}

impl Drawn {
    fn range(self, dtype: DType) -> (f64, f64) {
        match self {
            Drawn::Range(low, high) => (low, high),
            Drawn::Usual | Drawn::Sorted if dtype == DType::Bool => (0.0, 2.0),
            Drawn::Usual | Drawn::Sorted => (-1.0, 1.0),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Word(&'static str),
    Kind(Kind),
    Tensor(Type, Drawn),
    List(Vec<Part>),
}

/// Every row, in the order of the file.
pub fn rows() -> Vec<Row> {
    include_str!("census.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(Row::parse)
        .collect()
}

impl Row {
    /// A line of the file, which a test reads: one that cannot be read is a mistake in it.
    fn parse(line: &'static str) -> Row {
        let (call, results) = line.split_once(" -> ").unwrap_or_else(|| panic!("no results: {line}"));
        let mut words = call.split(' ');
        let op = words.next().unwrap_or_default();
        let argument = |word: &'static str| {
            let (name, value) = word.split_once('=').unwrap_or_else(|| panic!("no argument: {word}"));
            (name, Part::parse(value))
        };
        let result = |word: &str| (word != "_").then(|| Type::parse(word));
        let arguments = words.map(argument).collect();
        Row { op, arguments, results: results.split(' ').map(result).collect(), floats: line.contains('?') }
    }

    /// The dtypes it is measured in.
    pub fn dtypes(&self) -> &'static [DType] {
        if self.floats { &[DType::F32, DType::Bf16] } else { &[DType::F32] }
    }

    /// The op without its name space, with the shapes of its tensors and what tells rows of one op apart.
    pub fn name(&self, dtype: DType) -> String {
        let mut name = self.op.trim_start_matches("aten.").trim_end_matches(".default").to_owned();
        for (argument, part) in &self.arguments {
            match part {
                Part::Tensor(ty, _) => name += &format!(" {}", ty.name(dtype)),
                Part::Int(axis) if *argument == "dim" => name += &format!(" dim={axis}"),
                Part::List(parts) if *argument == "dim" => {
                    let axes: Vec<String> = parts
                        .iter()
                        .map(|part| if let Part::Int(n) = part { n.to_string() } else { String::new() })
                        .collect();
                    name += &format!(" dim={}", axes.join(","));
                }
                Part::List(parts) => {
                    for part in parts {
                        if let Part::Tensor(ty, _) = part {
                            name += &format!(" {}", ty.name(dtype));
                        }
                    }
                }
                Part::Bool(true) if *argument == "accumulate" => name += " accumulate",
                _ => {}
            }
        }
        name
    }

    /// The graph, and where its inputs come from.
    fn imported(&self, dtype: DType) -> Result<Imported, kiln_aten::Error> {
        let mut aten = AtenGraph::default();
        let describe = |(name, part): &(&str, Part)| ((*name).to_owned(), part.describe(&mut aten, dtype));
        let arguments = self.arguments.iter().map(describe).collect();
        let results: Vec<_> = self.results.iter().map(|ty| Some(aten.value(ty.as_ref()?.meta(dtype)))).collect();
        aten.outputs = results.iter().flatten().copied().collect();
        aten.calls.push(Call { op: self.op.to_owned(), arguments, results, source: Source::default() });
        import(&aten)
    }

    /// The graph.
    pub fn graph(&self, dtype: DType) -> Result<Graph, kiln_aten::Error> {
        Ok(self.imported(dtype)?.graph)
    }

    /// The elements of an input of the graph, made of one number in 0..1 each.
    pub fn elements(&self, dtype: DType, input: usize, numbers: Vec<f64>) -> Vec<f64> {
        let from = self.imported(dtype).ok().and_then(|imported| imported.inputs.get(input).copied());
        // A seed is any number.
        let Some(InputFrom::Given(given)) = from else { return numbers };
        let Some((ty, drawn)) = self.arguments.iter().flat_map(|(_, part)| part.tensors()).nth(given) else {
            return numbers;
        };
        let is_whole = !ty.kind.dtype(dtype).is_float();
        let (low, high) = drawn.range(ty.kind.dtype(dtype));
        let number = |x: f64| if is_whole { (low + (high - low) * x).floor() } else { low + (high - low) * x };
        let mut elements: Vec<f64> = numbers.into_iter().map(number).collect();
        if drawn == Drawn::Sorted {
            elements.sort_by(f64::total_cmp);
        }
        elements
    }

    /// For the peer.
    pub fn to_json(&self, dtype: DType) -> Value {
        let arguments: serde_json::Map<_, _> =
            self.arguments.iter().map(|(name, part)| ((*name).to_owned(), part.to_json(dtype))).collect();
        json!({"kind": "aten", "op": self.op, "arguments": arguments, "dtype": dtype.name(), "shape": []})
    }
}

impl Kind {
    fn parse(word: &str) -> Kind {
        match word {
            "?" => Kind::Case,
            "c64" => Kind::Complex,
            name => Kind::Real(name.parse().unwrap_or_else(|_| panic!("no dtype: {word}"))),
        }
    }

    fn dtype(self, case: DType) -> DType {
        match self {
            Kind::Case => case,
            Kind::Real(dtype) => dtype,
            Kind::Complex => DType::F32,
        }
    }

    fn element(self, case: DType) -> Element {
        if self == Kind::Complex { Element::complex(DType::F32) } else { Element::real(self.dtype(case)) }
    }

    fn name(self, case: DType) -> &'static str {
        if self == Kind::Complex { "c64" } else { self.dtype(case).name() }
    }
}

impl Type {
    fn parse(word: &str) -> Type {
        let (kind, shape) = word.split_once('[').unwrap_or_else(|| panic!("no type: {word}"));
        let sizes = shape.trim_end_matches(']').split(',').filter(|size| !size.is_empty());
        let size = |size: &str| size.parse().unwrap_or_else(|_| panic!("no size: {word}"));
        Type { kind: Kind::parse(kind), shape: sizes.map(size).collect() }
    }

    fn meta(&self, case: DType) -> Meta {
        Meta::contiguous(self.kind.element(case), self.shape.iter().map(|&size| Dim::from(size)).collect())
    }

    fn name(&self, case: DType) -> String {
        let sizes: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!("{} {}", sizes.join("×"), self.kind.name(case))
    }
}

impl Part {
    fn parse(word: &'static str) -> Part {
        if let Some(list) = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let separator = if list.contains(';') || list.contains('[') { ';' } else { ',' };
            return Part::List(list.split(separator).filter(|item| !item.is_empty()).map(Part::parse).collect());
        }
        if word.contains('[') {
            let (ty, drawn) = word.split_once('@').map_or((word, None), |(ty, drawn)| (ty, Some(drawn)));
            let end = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("no number: {word}"));
            let drawn = match drawn {
                None => Drawn::Usual,
                Some("sorted") => Drawn::Sorted,
                Some(range) => {
                    let (low, high) = range.split_once(':').unwrap_or_else(|| panic!("no range: {word}"));
                    Drawn::Range(end(low), end(high))
                }
            };
            return Part::Tensor(Type::parse(ty), drawn);
        }
        match (word, word.parse::<i64>(), word.parse::<f64>()) {
            ("none", ..) => Part::None,
            ("true" | "false", ..) => Part::Bool(word == "true"),
            (_, Ok(number), _) => Part::Int(number),
            (_, _, Ok(number)) => Part::Float(number),
            _ => word.strip_prefix(':').map_or(Part::Word(word), |kind| Part::Kind(Kind::parse(kind))),
        }
    }

    /// The tensors in it, in their order.
    fn tensors(&self) -> Vec<(&Type, Drawn)> {
        match self {
            Part::Tensor(ty, drawn) => vec![(ty, *drawn)],
            Part::List(parts) => parts.iter().flat_map(Part::tensors).collect(),
            _ => Vec::new(),
        }
    }

    fn describe(&self, aten: &mut AtenGraph, case: DType) -> Argument {
        match self {
            Part::None => Argument::None,
            Part::Bool(flag) => Argument::Bool(*flag),
            Part::Int(number) => Argument::Int(*number),
            Part::Float(number) => Argument::Float(*number),
            // `approximate="none"` is a word.
            Part::Word(word) => Argument::Word((*word).to_owned()),
            Part::Kind(kind) => Argument::Element(kind.element(case)),
            Part::Tensor(ty, _) => Argument::Tensor(aten.input(ty.meta(case))),
            Part::List(parts) => Argument::List(parts.iter().map(|part| part.describe(aten, case)).collect()),
        }
    }

    fn to_json(&self, case: DType) -> Value {
        match self {
            Part::None => Value::Null,
            Part::Bool(flag) => json!(flag),
            Part::Int(number) => json!(number),
            Part::Float(number) => json!(number),
            Part::Word(word) => json!(word),
            Part::Kind(kind) => json!({"dtype": kind.name(case)}),
            Part::Tensor(ty, drawn) => {
                let (low, high) = drawn.range(ty.kind.dtype(case));
                let sorted = *drawn == Drawn::Sorted;
                json!({"tensor": ty.kind.name(case), "shape": ty.shape, "low": low, "high": high, "sorted": sorted})
            }
            Part::List(parts) => parts.iter().map(|part| part.to_json(case)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Ops of captured graphs that have no row here, with the benchmark that has them or the reason why none has.
    const ELSEWHERE: &[(&str, &[&str])] = &[
        ("bench matmul, bench train", &["addmm", "baddbmm", "bmm", "mm", "grouped_mm_fallback"]),
        (
            "bench attention",
            &["_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"],
        ),
        ("bench conv", &["convolution", "convolution_backward"]),
        (
            "views: nothing moves",
            &[
                "alias",
                "as_strided",
                "expand",
                "lift_fresh_copy",
                "permute",
                "select",
                "slice",
                "split",
                "split_with_sizes",
                "squeeze",
                "unbind",
                "unfold",
                "unsqueeze",
                "view",
                "view_as_complex",
                "view_as_real",
            ],
        ),
        ("copies of a whole tensor, as clone is", &["copy", "copy_"]),
        ("flip under another name", &["rev"]),
        ("randn under another name", &["randn.generator"]),
        (
            "constants: fused into what reads them",
            &["arange", "empty", "empty_permuted", "full", "full_like", "iota", "new_empty_strided", "scalar_tensor"],
        ),
        (
            "Inductor's own form of max_pool2d_with_indices",
            &["_low_memory_max_pool_offsets_to_indices", "_low_memory_max_pool_with_offsets"],
        ),
        ("no op of PyTorch itself, or of other versions of it", &["fma", "roi_align"]),
        ("sizes: no tensors", &["add", "ceil", "mul", "neg", "truediv", "sym_float", "sym_max"]),
    ];

    #[test]
    fn every_row_is_a_graph() {
        let rows = rows();
        let each = rows.iter().flat_map(|row| row.dtypes().iter().map(move |&dtype| (row, dtype)));
        let wrong = each.filter_map(|(row, dtype)| match row.graph(dtype) {
            Ok(graph) if graph.outputs().len() == row.results.iter().flatten().count() => None,
            Ok(graph) => Some(format!("{}: {} outputs", row.name(dtype), graph.outputs().len())),
            Err(error) => Some(format!("{}: {error}", row.name(dtype))),
        });
        assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
    }

    #[test]
    fn every_op_of_the_census_is_measured_somewhere() {
        let measured: BTreeSet<&str> = rows().iter().map(|row| row.op).collect();
        let census = include_str!("../../../kiln-aten/tests/coverage/census.txt");
        let missing = census.lines().filter(|line| !line.starts_with('#')).filter(|op| {
            let (_, name) = op.split_once('.').unwrap_or(("", op));
            let base = name.split('.').next().unwrap_or(name);
            // Names of operations on sizes are those of ops, too.
            let is_op = op.starts_with("aten.") || op.starts_with("prims.");
            let elsewhere = ELSEWHERE.iter().any(|(why, names)| {
                (names.contains(&base) || names.contains(&name)) && !(is_op && why.starts_with("sizes"))
            });
            !measured.contains(op) && !elsewhere
        });
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
