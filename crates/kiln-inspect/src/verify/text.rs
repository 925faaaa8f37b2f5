//! Formats a verify report.

use super::{Blame, KernelReport, Verdict, VerifyReport};
use crate::deviation::{Deviation, Figure};
use std::fmt;

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Blame::Code => "the kernel, interpreted, is right: its machine code is wrong",
            Blame::Kernel => "the kernel, interpreted, is as wrong: the scheduler made a wrong kernel of these nodes",
            Blame::Open => "the kernel is too large to be interpreted, so its code or the scheduler is to blame",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Right => f.write_str("right"),
            Verdict::Unclear(why) => write!(f, "unclear: {why}"),
            Verdict::Wrong { node, element, got, want, tolerance, blame } => {
                write!(f, "element {element} of {node} is {got}, not {want} (±{tolerance:.1e}); {blame}")
            }
            Verdict::WroteOutside { buffer, byte } => {
                write!(f, "changes byte {byte} of {buffer}, which is none of its results")
            }
            Verdict::Failed { error } => write!(f, "fails, and the interpreter does not: {error}"),
        }
    }
}

impl KernelReport {
    /// The user's lines, each once.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for (_, _, source) in &self.nodes {
            let line = source.to_string();
            if !source.is_unknown() && !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }
}

impl VerifyReport {
    /// What is wrong first, in a sentence; `None` if nothing is.
    pub fn fault(&self) -> Option<String> {
        if let Some(kernel) = self.first_wrong() {
            let lines = kernel.lines();
            let at = if lines.is_empty() { String::new() } else { format!(", at {}", lines.join(", ")) };
            return Some(format!(
                "kernel {} ({}) is the first that is wrong: {}{at}",
                kernel.number, kernel.label, kernel.verdict
            ));
        }
        self.clobbered.as_ref().map(|c| {
            format!(
                "all are right one by one, but {} is overwritten between kernels {} and {}: the memory plan is wrong",
                c.buffer, c.writer, c.reader
            )
        })
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.kernels.iter().map(|k| k.label.len()).max().unwrap_or(0).clamp(6, 48);
        let count = self.kernels.len();
        let kernels = if count == 1 { "kernel" } else { "kernels" };
        writeln!(f, "{count} {kernels} against the interpreter, in {:.1?}", self.took)?;
        writeln!(
            f,
            "{:>4}  {:width$}  {:>10}  {:>8}  {:>8}  {:>8}  verdict",
            "", "kernel", "elements", "max abs", "max rel", "max ulp"
        )?;
        for kernel in &self.kernels {
            let Deviation { elements, max_abs, max_rel, max_ulp, .. } = kernel.deviation;
            let verdict = match &kernel.verdict {
                wrong if wrong.is_wrong() => "WRONG".to_owned(),
                other => other.to_string(),
            };
            writeln!(
                f,
                "{:>4}  {:width$}  {elements:>10}  {:>8}  {:>8}  {:>8}  {verdict}",
                kernel.number,
                kernel.label,
                Figure(max_abs),
                Figure(max_rel),
                Figure(max_ulp)
            )?;
        }
        for (number, deviation) in self.outputs.iter().enumerate() {
            writeln!(f, "output {number} after all of them: {deviation}")?;
        }
        let Some(fault) = self.fault() else { return writeln!(f, "nothing wrong was found") };
        writeln!(f, "{fault}")?;
        if let Some(kernel) = self.first_wrong() {
            for (id, what, source) in &kernel.nodes {
                let at = if source.is_unknown() { String::new() } else { format!("  at {source}") };
                writeln!(f, "    {id}: {what}{at}")?;
            }
            for line in kernel.text.lines() {
                writeln!(f, "    | {line}")?;
            }
        }
        Ok(())
    }
}
