//! Verifies the order of launches, for all sizes.

use super::{Launch, Violation};
use crate::kernel::Access;
use crate::schedule::{BufferId, ReadFrom, Role, Schedule, Step, Written};
use kiln_ir::{Dim, Graph, NodeId};
use std::collections::HashMap;

/// Verifies that every launch finds what it reads: memory that was written, all parts of it, and the value that it should read.
/// `graph` is the graph that was scheduled.
pub fn order(graph: &Graph, schedule: &Schedule) -> Result<(), Violation> {
    let steps = &schedule.steps;
    let mut check = Check { graph, schedule, steps, writer: vec![None; schedule.buffers.len()], parts: HashMap::new() };
    (0..steps.len()).try_for_each(|at| check.arguments(at))?;
    for (at, step) in steps.iter().enumerate() {
        for (arg, decl) in step.args.iter().zip(&step.kernel.buffers) {
            if decl.access != Access::Read {
                check.writer[arg.index()].get_or_insert(at);
            }
        }
        for written in &step.writes {
            for &node in &written.parts_of {
                check.parts.entry((node, written.buffer)).or_default().push(at);
            }
        }
    }
    for at in 0..steps.len() {
        check.buffers(at)?;
        check.reads(at)?;
    }
    check.writes()?;
    check.outputs()
}

struct Check<'a> {
    graph: &'a Graph,
    schedule: &'a Schedule,
    steps: &'a [Step],
    /// The first launch that writes each buffer.
    writer: Vec<Option<usize>>,
    /// Who writes a node to a buffer, or a part of it.
    parts: HashMap<(NodeId, BufferId), Vec<usize>>,
}

impl Check<'_> {
    fn launch(&self, step: usize) -> Launch {
        Launch::of(step, self.steps)
    }

    fn role(&self, buffer: BufferId) -> &Role {
        &self.schedule.buffers[buffer.index()].role
    }

    fn arguments(&self, at: usize) -> Result<(), Violation> {
        let Step { args, kernel, .. } = &self.steps[at];
        if args.len() != kernel.buffers.len() {
            let (args, buffers) = (args.len(), kernel.buffers.len());
            return Err(Violation::Arguments { at: self.launch(at), args, buffers });
        }
        for (number, (&buffer, decl)) in args.iter().zip(&kernel.buffers).enumerate() {
            let again = |(other, arg): (usize, &BufferId)| other != number && *arg == buffer;
            if decl.access != Access::Read && args.iter().enumerate().any(again) {
                return Err(Violation::Aliased { at: self.launch(at), buffer });
            }
        }
        Ok(())
    }

    fn buffers(&self, at: usize) -> Result<(), Violation> {
        let step = &self.steps[at];
        for (&buffer, decl) in step.args.iter().zip(&step.kernel.buffers) {
            let fixed = match self.role(buffer) {
                Role::Input(input) => self.graph.outputs().iter().all(|output| output.updates != Some(*input)),
                Role::Constant(_) => true,
                Role::Output(_) | Role::Temp => {
                    let written = self.writer[buffer.index()].is_some_and(|writer| writer < at);
                    let empty = self.schedule.buffers[buffer.index()].elements.is_zero();
                    if decl.access != Access::Write && !written && !empty {
                        return Err(Violation::Unwritten { at: self.launch(at), buffer });
                    }
                    false
                }
            };
            if fixed && decl.access != Access::Read {
                return Err(Violation::ReadOnly { at: self.launch(at), buffer });
            }
        }
        Ok(())
    }

    fn reads(&self, at: usize) -> Result<(), Violation> {
        for read in &self.steps[at].reads {
            let buffer = read.buffer;
            let parts = self.parts.get(&(read.node, buffer)).map(Vec::as_slice).unwrap_or_default();
            if let Some(&late) = parts.iter().find(|&&writer| writer > at) {
                let (at, writer) = (self.launch(at), self.launch(late));
                return Err(Violation::Incomplete { at, node: read.node, buffer, writer });
            }
            let Role::Input(_) = self.role(buffer) else { continue };
            if read.initial {
                // A launch that writes the input too may still read it, in the same iteration; the verifier of elements checks
                // that.
                let changed = self.writer[buffer.index()].filter(|&writer| writer < at);
                if let Some(writer) = changed.filter(|_| !writes(&self.steps[at], buffer)) {
                    let (at, writer) = (self.launch(at), self.launch(writer));
                    return Err(Violation::Overwritten { at, buffer, writer });
                }
            } else if parts.is_empty() && !self.is_unchanged(*read) {
                return Err(Violation::Missing { at: self.launch(at), node: read.node, buffer });
            }
        }
        Ok(())
    }

    fn is_unchanged(&self, read: ReadFrom) -> bool {
        let mut unchanged = self.schedule.unchanged.iter();
        unchanged.any(|w| w.buffer == read.buffer && w.parts_of.contains(&read.node))
    }

    fn writes(&self) -> Result<(), Violation> {
        let mut known: HashMap<(NodeId, BufferId), Vec<(usize, &Written)>> = HashMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            for written in &step.writes {
                let (node, buffer) = (written.node, written.buffer);
                let places = known.entry((node, buffer)).or_default();
                let same = |place: &Written| (&place.offset, &place.strides) == (&written.offset, &written.strides);
                if let Some(&(writer, _)) = places.iter().find(|(before, place)| *before < at && same(place)) {
                    let (at, writer) = (self.launch(at), self.launch(writer));
                    return Err(Violation::WrittenTwice { at, node, buffer, writer });
                }
                places.push((at, written));
            }
        }
        Ok(())
    }

    fn outputs(&self) -> Result<(), Violation> {
        for (number, (&buffer, output)) in self.schedule.outputs.iter().zip(self.graph.outputs()).enumerate() {
            let empty = self.graph.ty(output.node).shape.iter().any(Dim::is_zero);
            let unchanged = self.schedule.unchanged.iter().any(|written| written.buffer == buffer);
            if !empty && !unchanged && self.writer[buffer.index()].is_none() {
                return Err(Violation::NoOutput { output: number, buffer });
            }
        }
        Ok(())
    }
}

fn writes(step: &Step, buffer: BufferId) -> bool {
    step.args.iter().zip(&step.kernel.buffers).any(|(arg, decl)| *arg == buffer && decl.access != Access::Read)
}
