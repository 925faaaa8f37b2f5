//! Graph to text.

use super::cursor::is_plain;
use crate::{Graph, Literal, Node, NodeId, Op, Source};
use std::fmt::{self, Display, Formatter, Write};

/// Constants of up to so many elements are printed as numbers, larger ones as bytes.
const READABLE_ELEMENTS: usize = 16;
/// A header longer than this is broken into lines.
const LINE_WIDTH: usize = 100;

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> = self.inputs().iter().map(|&id| parameter(id, self.node(id))).collect();
        let width: usize = parameters.iter().map(|p| p.len() + 2).sum();
        if width <= LINE_WIDTH {
            writeln!(f, "graph({}) {{", parameters.join(", "))?;
        } else {
            writeln!(f, "graph(\n  {}\n) {{", parameters.join(",\n  "))?;
        }
        for (id, node) in self.iter().filter(|(_, node)| !matches!(node.op, Op::Input { .. })) {
            writeln!(f, "  {id}: {} = {node}", node.ty)?;
        }
        f.write_str("  return")?;
        for (i, output) in self.outputs().iter().enumerate() {
            write!(f, "{} {}", if i == 0 { "" } else { "," }, output.node)?;
            if let Some(input) = output.updates {
                write!(f, " -> input {input}")?;
            }
        }
        f.write_str("\n}\n")
    }
}

fn parameter(id: NodeId, node: &Node) -> String {
    format!("{id}: {}{}", node.ty, At(&node.source))
}

/// The op, its operands, its attributes and its source: what comes after `=`.
impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.op.kind().name())?;
        for (i, operand) in self.operands.iter().enumerate() {
            write!(f, "{} {operand}", if i == 0 { "" } else { "," })?;
        }
        let attributes = attributes(&self.op)?;
        if !attributes.is_empty() {
            write!(f, " {{{attributes}}}")?;
        }
        write!(f, "{}", At(&self.source))
    }
}

/// ` @ file:line`, or nothing.
struct At<'a>(&'a Source);

impl Display for At<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Source { file, line, .. } = self.0;
        if file.is_empty() && *line == 0 {
            return Ok(());
        }
        if !file.is_empty() && file.chars().all(is_plain) {
            return write!(f, " @ {file}:{line}");
        }
        f.write_str(" @ \"")?;
        for c in file.chars() {
            match c {
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                '"' | '\\' => write!(f, "\\{c}")?,
                other => f.write_char(other)?,
            }
        }
        write!(f, "\":{line}")
    }
}

/// `name=value, …`; empty where the result's type says it all.
fn attributes(op: &Op) -> Result<String, fmt::Error> {
    let mut out = String::new();
    match op {
        Op::Input { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Cast(_)
        | Op::Bitcast(_)
        | Op::Reshape { .. }
        | Op::Expand { .. } => {}
        Op::Full { value, .. } => write!(out, "value={value}")?,
        Op::Constant(literal) => {
            out.push_str("value=");
            constant(&mut out, literal)?;
        }
        Op::Iota { axis, .. }
        | Op::ArgReduce { axis, .. }
        | Op::Concat { axis }
        | Op::Gather { axis }
        | Op::Scatter { axis, .. } => write!(out, "axis={axis}")?,
        Op::RandomBits { stream, .. } => write!(out, "stream={stream}")?,
        Op::Reduce { axes, .. } | Op::Flip { axes } => write!(out, "axes={axes:?}")?,
        Op::Scan { axis, reverse, .. } => {
            write!(out, "axis={axis}{}", flag("reverse", *reverse))?;
        }
        Op::SortIndices { axis, descending, count } => {
            write!(out, "axis={axis}, count={count}{}", flag("descending", *descending))?;
        }
        Op::Permute { order } => write!(out, "order={order:?}")?,
        Op::Slice { start, size, step } => write!(out, "start={start:?}, size={size:?}, step={step:?}")?,
        Op::Pad { low, high, value } => write!(out, "low={low:?}, high={high:?}, value={value}")?,
        Op::Unfold { axis, size, stride, dilation } => {
            write!(out, "axis={axis}, size={size}, stride={stride}, dilation={dilation}")?;
        }
        Op::Dot { dims, .. } => write!(
            out,
            "lhs_batch={:?}, rhs_batch={:?}, lhs_contract={:?}, rhs_contract={:?}",
            dims.lhs_batch, dims.rhs_batch, dims.lhs_contract, dims.rhs_contract
        )?,
        Op::Dequantize { format } => write!(out, "format={}", format.name())?,
        Op::Conv(dims) => write!(
            out,
            "stride={:?}, padding={:?}, dilation={:?}, input_dilation={:?}, groups={}",
            dims.stride, dims.padding, dims.dilation, dims.input_dilation, dims.groups
        )?,
        Op::ReduceWindow { dims, .. } => write!(
            out,
            "size={:?}, stride={:?}, dilation={:?}, padding={:?}",
            dims.size, dims.stride, dims.dilation, dims.padding
        )?,
        Op::Attention { causal, scale, .. }
        | Op::AttentionLogsumexp { causal, scale, .. }
        | Op::AttentionGradient { causal, scale, .. } => write!(out, "scale={scale}{}", flag("causal", *causal))?,
        Op::Loop { region, result } => {
            let (turns, carried, scanned) = (region.turns(), region.carried(), region.scanned());
            match region.is_conditional() {
                true => write!(out, "while=true")?,
                false => write!(out, "turns={turns}, carried={carried}, scanned={scanned}")?,
            }
            write!(out, "{}, result={result}, body=", flag("reverse", region.reverse()))?;
            out.push_str(&indented(region.body()));
        }
        Op::Cond { branches, result } => {
            let (then, otherwise) = (indented(branches.then()), indented(branches.otherwise()));
            write!(out, "result={result}, then={then}, otherwise={otherwise}")?;
        }
    }
    Ok(out)
}

/// A graph inside of a node, indented as that.
fn indented(graph: &Graph) -> String {
    graph.to_string().trim_end().replace('\n', "\n  ")
}

fn flag(name: &str, set: bool) -> String {
    if set { format!(", {name}=true") } else { String::new() }
}

/// Numbers where they are few and say everything, bytes otherwise.
fn constant(out: &mut String, literal: &Literal) -> fmt::Result {
    let count = literal.shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
    if let Some(count) = count.filter(|&count| count <= READABLE_ELEMENTS) {
        let elements: Vec<_> = (0..count).map_while(|i| literal.element(i)).collect();
        let rebuilt = Literal::from_elements(literal.dtype, &literal.shape, elements.iter().copied());
        if rebuilt.as_ref() == Some(literal) {
            let texts: Vec<String> = elements.iter().map(|e| e.to_string()).collect();
            return write!(out, "[{}]", texts.join(", "));
        }
    }
    out.push_str("0x");
    literal.bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}
