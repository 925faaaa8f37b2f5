//! Renders a schedule as text: its launches, the nodes of each, and what was not fused and why.

use crate::schedule::{BufferDecl, Reason, Role, Schedule};
use kiln_ir::{Graph, Symbol};
use std::fmt::{self, Display, Formatter, Write};

impl Display for Role {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Role::Input(n) => write!(f, "in{n}"),
            Role::Output(n) => write!(f, "out{n}"),
            Role::Temp => f.write_str("temp"),
            Role::Constant(_) => f.write_str("constant"),
        }
    }
}

impl Display for BufferDecl {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}]", self.role, self.dtype, self.elements)
    }
}

impl Schedule {
    /// The name of a buffer: its role, with a number for temporaries and constants.
    pub fn buffer_name(&self, at: usize) -> String {
        let decl = &self.buffers[at];
        match decl.role {
            Role::Temp | Role::Constant(_) => format!("{}{at}", decl.role),
            _ => decl.role.to_string(),
        }
    }
}

impl Display for Schedule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let names: Vec<String> = step.args.iter().map(|b| self.buffer_name(b.index())).collect();
            writeln!(f, "{}({})", step.label, names.join(", "))?;
            writeln!(f, "{}", step.kernel)?;
        }
        for note in &self.notes {
            writeln!(f, "# {} -> {}: {}", note.producer, note.consumer, note.reason)?;
        }
        Ok(())
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::OtherElements => "the consumer reads elements that another iteration computes",
            Reason::OtherSpace => "their iteration spaces cannot be brought together",
            Reason::Row => "an epilogue gets one element at a time, the consumer needs a row of them",
            Reason::Between => "a kernel between them needs the first and feeds the second",
            Reason::Operand => "the operand of a product, of attention or of a routine is materialised",
            Reason::OneAnchor => "a kernel holds one product, attention or routine",
            Reason::Parallelism => "one kernel would leave most cores idle",
            Reason::TooLarge => "one kernel would be too large",
            Reason::Off => "fusion is switched off",
        })
    }
}

impl Schedule {
    /// Renders the nodes of each launch, with source lines and bytes, and what was not fused and why.
    pub fn explain(&self, graph: &Graph, size: &dyn Fn(Symbol) -> Option<i64>) -> String {
        let mut out = String::new();
        for (number, step) in self.steps.iter().enumerate() {
            let bytes = self.work(step, size).map_or_else(
                || "sizes unknown".to_owned(),
                |work| format!("{} bytes read, {} written", work.read, work.written),
            );
            let _ = writeln!(out, "{number}: {} ({} nodes, {bytes})", step.label, step.nodes.len());
            for (arg, decl) in step.args.iter().zip(&step.kernel.buffers) {
                let buffer = &self.buffers[arg.index()];
                let _ = writeln!(out, "     {decl} [{}] {}", buffer.elements, self.buffer_name(arg.index()));
            }
            for &id in &step.nodes {
                let node = graph.node(id);
                let at = if node.source.is_unknown() { String::new() } else { format!(" at {}", node.source) };
                let _ = writeln!(out, "     {id}: {} = {}{at}", node.ty, node.op.kind().name());
            }
        }
        for note in &self.notes {
            let (a, b) = (graph.node(note.producer), graph.node(note.consumer));
            let lines = if a.source.is_unknown() { String::new() } else { format!(" ({} and {})", a.source, b.source) };
            let (first, second) = (a.op.kind().name(), b.op.kind().name());
            let _ = writeln!(
                out,
                "{} {first} and {} {second} are not fused: {}{lines}",
                note.producer, note.consumer, note.reason
            );
        }
        out
    }
}
