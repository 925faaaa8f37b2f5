//! The check itself: the interpreter's run, then each launch on true inputs.

use super::{Blame, Clobbered, Deviation, KernelReport, Verdict, VerifyReport};
use crate::Result;
use crate::bounds::{ErrorBounds, Products, RangeWatch, is_exact, least_tolerance};
use kiln_ir::interpret::{self, Observer};
use kiln_ir::{Dim, Graph, HostTensor, NodeId, Op, Scalar};
use kiln_kernels::kernel::{Access, KernelBody};
use kiln_kernels::schedule::{Role, Step, Written};
use kiln_kernels::{Precision, reference};
use kiln_runtime::{InputView, Inspection, Program};
use std::collections::HashMap;
use std::time::Duration;

/// Operations of a kernel beyond which it is not interpreted as a kernel, which is slower than as a graph.
const INTERPRETED: u64 = 50_000_000;
/// Operations that further perturbed runs of one kernel's nodes may take together.
const PERTURBED: u64 = 400_000_000;

/// Checks a program. `inputs` are those of the graph; `views` are those of the program, which differ where some are packed.
pub(super) fn check(
    graph: &Graph,
    program: &Program,
    inputs: Vec<HostTensor>,
    views: &[InputView<'_>],
) -> Result<VerifyReport> {
    let stopped = program.inspect(views)?;
    let size = |symbol| stopped.size(symbol).map(Dim::from);
    let graph = graph.specialise(&size)?;
    let truth = Truth::of(&graph, program, inputs)?;
    let mut checker = Checker { graph: &graph, truth, stopped, images: vec![None; program.schedule().buffers.len()] };
    let mut kernels = Vec::with_capacity(program.steps().len());
    for number in 0..program.steps().len() {
        kernels.push(checker.step(number)?);
    }
    let (clobbered, outputs) = in_a_row(&graph, program, views, &checker.truth)?;
    Ok(VerifyReport { kernels, clobbered, outputs, took: Duration::ZERO })
}

/// What the interpreter says of the nodes that go through memory, of the inputs and of the outputs.
struct Truth {
    values: HashMap<NodeId, HostTensor>,
}

impl Observer for Truth {
    fn value(&mut self, node: NodeId, value: &mut HostTensor) {
        if let Some(slot) = self.values.get_mut(&node) {
            *slot = value.clone();
        }
    }
}

impl Truth {
    fn of(graph: &Graph, program: &Program, inputs: Vec<HostTensor>) -> Result<Truth> {
        let written = program.schedule().steps.iter().flat_map(|step| step.writes.iter().map(|w| w.node));
        let outputs = graph.outputs().iter().map(|output| output.node);
        let nothing = HostTensor::scalar(Scalar::bool(false));
        let values = written.chain(outputs).map(|node| (node, nothing.clone())).collect();
        let mut truth = Truth { values };
        interpret::run_with(graph, &inputs, &mut truth)?;
        truth.values.extend(graph.inputs().iter().copied().zip(inputs));
        Ok(truth)
    }
}

struct Checker<'a> {
    graph: &'a Graph,
    truth: Truth,
    stopped: Inspection<'a>,
    /// By buffer: the bytes that it truly has after the launches so far; `None` for what no launch wrote.
    images: Vec<Option<Vec<u8>>>,
}

impl Checker<'_> {
    /// Runs one launch on true inputs.
    fn step(&mut self, number: usize) -> Result<KernelReport, kiln_runtime::Error> {
        let program = self.stopped.program();
        let step = program.schedule().steps[number].clone();
        for arg in &step.args {
            if let Some(image) = &self.images[arg.index()] {
                self.stopped.write(arg.index(), image)?;
            }
        }
        let before = self.arguments(&step)?;
        let launched = self.stopped.launch(number);
        let after = self.arguments(&step)?;
        let (mut deviation, mut verdict) = match launched {
            Ok(_) => self.judge(&step, number, &before, &after),
            Err(error) => (Deviation::default(), Verdict::Failed { error: error.to_string() }),
        };
        if verdict == Verdict::Right
            && let Some(outside) = self.outside(&step, &before, &after)
        {
            verdict = outside;
        }
        self.settle(&step, number, &before, &after, &mut deviation, &mut verdict);
        let about = |&id: &NodeId| {
            let node = self.graph.node(id);
            (id, format!("{} = {}", node.ty, node.op.kind().name()), node.source.clone())
        };
        Ok(KernelReport {
            number,
            label: step.label.clone(),
            nodes: step.nodes.iter().map(about).collect(),
            deviation,
            verdict,
            text: step.kernel.to_string(),
        })
    }

    /// The bytes of a launch's arguments that it writes; of others nothing.
    fn arguments(&self, step: &Step) -> Result<Vec<Vec<u8>>, kiln_runtime::Error> {
        let read = |(arg, decl): (&kiln_kernels::BufferId, &kiln_kernels::kernel::BufferArg)| match decl.access {
            Access::Read => Ok(Vec::new()),
            _ => self.stopped.read(arg.index()),
        };
        step.args.iter().zip(&step.kernel.buffers).map(read).collect()
    }

    fn argument(&self, step: &Step, write: &Written) -> Option<usize> {
        step.args.iter().position(|arg| *arg == write.buffer)
    }

    /// Returns the layout of a write's elements; `None` if a size has no value, which a launch would have reported.
    fn layout_of(&self, write: &Written) -> Option<ElementLayout> {
        let eval = |dim: &Dim| dim.as_const().or_else(|| dim.eval(&|s| self.stopped.size(s)));
        let shape = self.graph.ty(write.node).fixed_shape()?;
        let strides = write.strides.iter().map(eval).collect::<Option<Vec<i64>>>()?;
        let bits = self.graph.ty(write.node).dtype.size_in_bits();
        Some(ElementLayout { offset: eval(&write.offset)?, strides, shape, bits })
    }

    /// Compares what a launch wrote to the truth.
    fn judge(&self, step: &Step, number: usize, before: &[Vec<u8>], after: &[Vec<u8>]) -> (Deviation, Verdict) {
        let mut all = Deviation::default();
        let mut judged: Option<Verdict> = None;
        for write in &step.writes {
            let (Some(at), Some(place)) = (self.argument(step, write), self.layout_of(write)) else { continue };
            let want = &self.truth.values[&write.node];
            let Some(got) = place.gather(&after[at], want) else {
                judged.get_or_insert(Verdict::Unclear("its results are outside of their buffer".to_owned()));
                continue;
            };
            let deviation = Deviation::between(&got, want);
            let elements = all.elements + deviation.elements;
            if deviation.max_ulp >= all.max_ulp {
                all = Deviation {
                    max_abs: all.max_abs.max(deviation.max_abs),
                    max_rel: all.max_rel.max(deviation.max_rel),
                    ..deviation
                };
            }
            all.elements = elements;
            if !judged.as_ref().is_some_and(Verdict::is_wrong)
                && let Some(verdict) = self.values(step, number, write, want, &got, before)
            {
                judged = Some(verdict);
            }
        }
        (all, judged.unwrap_or(Verdict::Right))
    }

    /// What is to be said against a result, if anything.
    fn values(
        &self,
        step: &Step,
        number: usize,
        write: &Written,
        want: &HostTensor,
        got: &HostTensor,
        before: &[Vec<u8>],
    ) -> Option<Verdict> {
        if got.bytes() == want.bytes() {
            return None;
        }
        let (part, reads) = self.part(number, write.node);
        let close = |element: usize| match (want.get(element), got.get(element)) {
            (Scalar::Int(_, want), Scalar::Int(_, got)) => want == got,
            (want, got) => {
                let (want, got) = (want.as_f64(), got.as_f64());
                let same = want == got || (want.is_nan() && got.is_nan());
                same || (want - got).abs() <= least_tolerance(self.graph.ty(write.node).dtype, want)
            }
        };
        if !is_exact(&part) && (0..want.elements()).all(close) {
            return None;
        }
        let inputs: Vec<HostTensor> = reads.iter().map(|node| self.truth.values[node].clone()).collect();
        let mut watch = RangeWatch::new(&part);
        if interpret::run_with(&part, &inputs, &mut watch).is_err() {
            return Some(Verdict::Unclear("its nodes cannot be interpreted alone".to_owned()));
        }
        if watch.loss.order {
            return Some(Verdict::Unclear("its sums overflow or vanish in one order and not in another".to_owned()));
        }
        let work = self.work(step).max(1);
        let precision = |body: &KernelBody| match body {
            KernelBody::Matmul(body) => body.precision,
            _ => Precision::Highest,
        };
        let precision = step.kernel.bodies().iter().map(precision).min().unwrap_or_default();
        let products = Products::of(&part, precision);
        let mut bounds = ErrorBounds::with_runs(&part, &inputs, products, (PERTURBED / work).clamp(4, 252));
        let (element, tolerance) = bounds.violation(0, want, got)?;
        if watch.loss.short {
            let why = "a short float leaves its range inside of it, where it is not rounded; ask with Numerics::Eager";
            return Some(Verdict::Unclear(why.to_owned()));
        }
        let blame = self.blame(step, number, write, want, before, &mut bounds);
        let (got, want) = (got.get(element).to_string(), want.get(element).to_string());
        Some(Verdict::Wrong { node: write.node, element, got, want, tolerance, blame })
    }

    fn work(&self, step: &Step) -> u64 {
        let program = self.stopped.program();
        program.schedule().work(step, &|s| self.stopped.size(s)).map_or(u64::MAX, |work| work.flops + work.bytes())
    }

    /// Returns the graph of one result of a launch, from the memory contents before it, and the nodes that are its inputs.
    fn part(&self, number: usize, result: NodeId) -> (Graph, Vec<NodeId>) {
        let earlier = &self.stopped.program().schedule().steps[..number];
        let in_memory = |id: NodeId| {
            matches!(self.graph.node(id).op, Op::Input { .. })
                || (id != result && earlier.iter().any(|step| step.writes.iter().any(|w| w.node == id)))
        };
        let mut wanted = vec![false; result.index() + 1];
        wanted[result.index()] = true;
        for at in (0..=result.index()).rev() {
            let id = NodeId(at as u32);
            if wanted[at] && !in_memory(id) {
                self.graph.node(id).operands.iter().for_each(|o| wanted[o.index()] = true);
            }
        }
        let (mut part, mut reads) = (Graph::new(), Vec::new());
        let mut new = vec![NodeId(0); wanted.len()];
        for at in (0..wanted.len()).filter(|&at| wanted[at]) {
            let id = NodeId(at as u32);
            let node = self.graph.node(id);
            let made = if in_memory(id) {
                reads.push(id);
                part.input(node.ty.clone(), node.source.clone())
            } else {
                let operands: Vec<NodeId> = node.operands.iter().map(|o| new[o.index()]).collect();
                part.add(node.op.clone(), &operands, node.source.clone())
            };
            new[at] = made.expect("a part of a valid graph is valid");
        }
        part.output(new[result.index()]);
        (part, reads)
    }

    /// Interprets the kernel on the same inputs and returns the result of each argument. `None` if that takes too long or
    /// fails, or if an argument is in a layout that only the backend knows.
    fn interpreted(&self, step: &Step, number: usize, before: &[Vec<u8>]) -> Option<Vec<HostTensor>> {
        let is_packed = !self.stopped.program().steps()[number].variant().packed.is_empty();
        if is_packed || self.work(step) > INTERPRETED {
            return None;
        }
        let mut buffers = Vec::with_capacity(step.args.len());
        for ((arg, decl), before) in step.args.iter().zip(&step.kernel.buffers).zip(before) {
            let bytes = match decl.access {
                Access::Read => self.stopped.read(arg.index()).ok()?,
                _ => before.clone(),
            };
            let elements = bytes.len() * 8 / decl.dtype.size_in_bits();
            let length = decl.dtype.bytes_for(elements)?;
            buffers.push(HostTensor::from_bytes(decl.dtype, &[elements], bytes[..length].to_vec()).ok()?);
        }
        reference::run_kernel(&step.kernel, &mut buffers, self.stopped.launch_sizes(number)).ok()?;
        Some(buffers)
    }

    fn blame(
        &self,
        step: &Step,
        number: usize,
        write: &Written,
        want: &HostTensor,
        before: &[Vec<u8>],
        bounds: &mut ErrorBounds<'_>,
    ) -> Blame {
        let told = self.interpreted(step, number, before).and_then(|buffers| {
            let at = self.argument(step, write)?;
            self.layout_of(write)?.gather(buffers[at].bytes(), want)
        });
        match told {
            None => Blame::Open,
            Some(told) if bounds.violation(0, want, &told).is_none() => Blame::Code,
            Some(_) => Blame::Kernel,
        }
    }

    /// Memory that changed beside the results.
    fn outside(&self, step: &Step, before: &[Vec<u8>], after: &[Vec<u8>]) -> Option<Verdict> {
        for (at, arg) in step.args.iter().enumerate() {
            let writes = || step.writes.iter().filter(|w| w.buffer == *arg);
            if before[at].is_empty() || writes().next().is_none() {
                continue;
            }
            let mut restored = after[at].clone();
            for write in writes() {
                let old = self.layout_of(write)?.gather(&before[at], &self.truth.values[&write.node])?;
                self.layout_of(write)?.scatter(&mut restored, &old)?;
            }
            if let Some(byte) = (0..restored.len()).find(|&i| restored[i] != before[at][i]) {
                let buffer = self.stopped.program().schedule().buffer_name(arg.index());
                return Some(Verdict::WroteOutside { buffer, byte });
            }
        }
        None
    }

    /// Makes the memory after a launch what it truly is.
    fn settle(
        &mut self,
        step: &Step,
        number: usize,
        before: &[Vec<u8>],
        after: &[Vec<u8>],
        deviation: &mut Deviation,
        verdict: &mut Verdict,
    ) {
        for (at, (arg, decl)) in step.args.iter().zip(&step.kernel.buffers).enumerate() {
            if decl.access == Access::Read {
                continue;
            }
            let writes: Vec<&Written> = step.writes.iter().filter(|w| w.buffer == *arg).collect();
            let mut image = before[at].clone();
            if writes.is_empty() {
                // A node of the scheduler's own: there is no truth but the kernel itself.
                match self.interpreted(step, number, before) {
                    Some(buffers) => {
                        let length = buffers[at].bytes().len();
                        image[..length].copy_from_slice(buffers[at].bytes());
                        let bytes = after[at][..length].to_vec();
                        if let Ok(got) = HostTensor::from_bytes(decl.dtype, buffers[at].shape(), bytes) {
                            let found = Deviation::between(&got, &buffers[at]);
                            let largest = buffers[at].to_f64().into_iter().fold(0.0f64, |a, v| a.max(v.abs()));
                            *deviation = found;
                            if *verdict == Verdict::Right && found.max_abs > 64.0 * least_tolerance(decl.dtype, largest)
                            {
                                *verdict = Verdict::Wrong {
                                    node: step.nodes.last().copied().unwrap_or(NodeId(0)),
                                    element: found.worst,
                                    got: found.got.to_string(),
                                    want: found.want.to_string(),
                                    tolerance: 64.0 * least_tolerance(decl.dtype, largest),
                                    blame: Blame::Code,
                                };
                            }
                        }
                    }
                    None => {
                        image.clone_from(&after[at]);
                        if *verdict == Verdict::Right {
                            *verdict = Verdict::Unclear("a step between that no node stands for, too large".to_owned());
                        }
                    }
                }
            }
            for write in writes {
                if let Some(place) = self.layout_of(write) {
                    place.scatter(&mut image, &self.truth.values[&write.node]);
                }
            }
            self.images[arg.index()] = Some(image);
        }
    }
}

/// The layout of a tensor's elements in a buffer.
struct ElementLayout {
    offset: i64,
    strides: Vec<i64>,
    shape: Vec<usize>,
    bits: usize,
}

impl ElementLayout {
    /// Calls `visit` with each element's row-major number and its position in the buffer; `None` when one is negative.
    fn each(&self, visit: &mut dyn FnMut(usize, usize) -> Option<()>) -> Option<()> {
        let elements: usize = self.shape.iter().product();
        let mut index = vec![0usize; self.shape.len()];
        let mut at = self.offset;
        for element in 0..elements {
            visit(element, usize::try_from(at).ok()?)?;
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                at += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                at -= self.strides[axis] * self.shape[axis] as i64;
                index[axis] = 0;
            }
        }
        Some(())
    }

    /// Reads the tensor of `like`'s type from a buffer; `None` if it is not within it.
    fn gather(&self, bytes: &[u8], like: &HostTensor) -> Option<HostTensor> {
        let mut tensor = HostTensor::zeros(like.dtype(), like.shape()).ok()?;
        if self.bits < 8 {
            let flat = HostTensor::from_bytes(like.dtype(), &[bytes.len() * 8 / self.bits], bytes.to_vec()).ok()?;
            self.each(&mut |element, at| (at < flat.elements()).then(|| tensor.set(element, flat.get(at))))?;
            return Some(tensor);
        }
        let width = self.bits / 8;
        self.each(&mut |element, at| {
            let from = bytes.get(at * width..(at + 1) * width)?;
            tensor.bytes_mut()[element * width..][..width].copy_from_slice(from);
            Some(())
        })?;
        Some(tensor)
    }

    /// Puts a tensor into a buffer; `None` if it does not fit, with a part of it there.
    fn scatter(&self, bytes: &mut Vec<u8>, tensor: &HostTensor) -> Option<()> {
        if self.bits < 8 {
            let taken = std::mem::take(bytes);
            let mut flat = HostTensor::from_bytes(tensor.dtype(), &[taken.len() * 8 / self.bits], taken).ok()?;
            let done = self.each(&mut |element, at| (at < flat.elements()).then(|| flat.set(at, tensor.get(element))));
            *bytes = flat.into_bytes();
            return done;
        }
        let width = self.bits / 8;
        self.each(&mut |element, at| {
            let to = bytes.get_mut(at * width..(at + 1) * width)?;
            to.copy_from_slice(&tensor.bytes()[element * width..][..width]);
            Some(())
        })
    }
}

/// Runs all launches as a call does, each on what those before it left, and looks for memory that changes between a write and
/// a read; then the outputs against the interpreter's.
fn in_a_row(
    graph: &Graph,
    program: &Program,
    views: &[InputView<'_>],
    truth: &Truth,
) -> Result<(Option<Clobbered>, Vec<Deviation>), kiln_runtime::Error> {
    let schedule = program.schedule();
    let mut stopped = program.inspect(views)?;
    let mut written: Vec<Option<(usize, Vec<u8>)>> = vec![None; schedule.buffers.len()];
    let mut clobbered = None;
    for (number, step) in schedule.steps.iter().enumerate() {
        for (arg, decl) in step.args.iter().zip(&step.kernel.buffers) {
            if let Some((writer, bytes)) = &written[arg.index()]
                && decl.access != Access::Write
                && clobbered.is_none()
                && stopped.read(arg.index())? != *bytes
            {
                let buffer = schedule.buffer_name(arg.index());
                clobbered = Some(Clobbered { buffer, writer: *writer, reader: number });
            }
        }
        if stopped.launch(number).is_err() {
            return Ok((clobbered, Vec::new()));
        }
        for (arg, decl) in step.args.iter().zip(&step.kernel.buffers) {
            if decl.access != Access::Read && schedule.buffers[arg.index()].role == Role::Temp {
                written[arg.index()] = Some((number, stopped.read(arg.index())?));
            }
        }
    }
    let mut outputs = Vec::with_capacity(graph.outputs().len());
    for (output, buffer) in graph.outputs().iter().zip(&schedule.outputs) {
        let want = &truth.values[&output.node];
        let write = schedule
            .steps
            .iter()
            .rev()
            .flat_map(|step| &step.writes)
            .find(|w| w.buffer == *buffer && w.node == output.node);
        let eval = |dim: &Dim| dim.as_const().or_else(|| dim.eval(&|s| stopped.size(s)));
        let place = write.and_then(|write| {
            let strides = write.strides.iter().map(eval).collect::<Option<Vec<i64>>>()?;
            let bits = want.dtype().size_in_bits();
            Some(ElementLayout { offset: eval(&write.offset)?, strides, shape: want.shape().to_vec(), bits })
        });
        let bytes = stopped.read(buffer.index())?;
        let got = match place {
            Some(place) => place.gather(&bytes, want),
            None => HostTensor::from_bytes(want.dtype(), want.shape(), bytes).ok(),
        };
        outputs.push(got.map_or(Deviation::default(), |got| Deviation::between(&got, want)));
    }
    Ok((clobbered, outputs))
}
