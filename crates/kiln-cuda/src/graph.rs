//! The launches of a program as one CUDA graph, built node by node: a replay changes the arguments that moved, and launches once. A launch
//! of a library is a graph of its own inside, which is captured again when its arguments moved.
//!
//! From compute capability 9.0 on, a kernel begins while the one before still runs (programmatic dependent launch): it fetches
//! weights that no launch of the graph writes, and then waits for the end of the one before. Kernels of many blocks that fetch nothing begin
//! after it: they would gain the time of a launch and lose more by blocks that wait where others could run.

use crate::blas::BlasCode;
use crate::capture::{Captured, External};
use crate::device::Gpu;
use crate::dnn::DnnCode;
use crate::driver::{Edge, KernelNode, RawGraph, RawGraphExec, RawNode, driver};
use crate::executable::{ALIGNMENT, Code, Workspace, failed};
use kiln_runtime::environment::CUDA_OVERLAP;
use kiln_runtime::{Launch, LaunchError, RawBuffer, Recording};
use std::any::Any;
use std::ffi::c_void;

/// Blocks a multiprocessor up to which a kernel that fetches nothing early begins before the end of the launch before.
const FEW_TURNS: u64 = 4;

/// A chain of launches.
pub(crate) struct Graph {
    gpu: &'static Gpu,
    graph: RawGraph,
    executable: RawGraphExec,
    nodes: Vec<Node>,
    /// The arguments of all launches, as the nodes have them.
    arguments: Vec<RawBuffer>,
    may_fault: bool,
    /// Memory of launches of libraries, one launch's after the other's.
    scratch: Option<Workspace>,
}

/// A launch of the chain.
struct Node {
    raw: RawNode,
    /// Where its buffers are among all arguments.
    first: usize,
    /// Which of them it writes.
    written: Vec<bool>,
    kind: NodeKind,
}

enum NodeKind {
    Kernel(KernelLaunch),
    /// A launch of a library with these sizes, as it was captured first.
    Library(Box<dyn External>, Vec<i64>, Captured),
}

/// A launch of a kernel of ours.
struct KernelLaunch {
    parameters: KernelNode,
    /// Its arguments, and where each is. The last says whether it fetches early.
    values: Vec<u64>,
    places: Vec<*mut c_void>,
    /// Which of its buffers have to keep their alignment.
    aligned: Vec<bool>,
    /// The buffers that it may fetch from while the launch before still runs, if nobody writes them.
    fetched: Vec<usize>,
    _workspace: Option<Workspace>,
}

// SAFETY: graphs may be used from any thread in which their context is current, one at a time, which `&mut self` says.
unsafe impl Send for Graph {}

impl Graph {
    /// Records launches; `None` if some of them are not this backend's.
    pub(crate) fn record(gpu: &'static Gpu, launches: &[Launch<'_>]) -> Result<Option<Graph>, LaunchError> {
        let driver = driver().map_err(failed)?;
        gpu.enter().map_err(failed)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place to write to.
        unsafe { driver.create_graph(&mut raw, 0) }.map_err(failed)?;
        let arguments = launches.iter().flat_map(|launch| launch.arguments).copied().collect();
        let (executable, nodes) = (std::ptr::null_mut(), Vec::new());
        let mut graph = Graph { gpu, graph: raw, executable, nodes, arguments, may_fault: false, scratch: None };
        let scratch = |launch: &Launch<'_>| {
            let code = external(launch.code.as_any()?)?;
            Some(code.scratch_bytes(launch.sizes)).filter(|&bytes| bytes > 0)
        };
        if let Some(bytes) = launches.iter().filter_map(scratch).max() {
            graph.scratch = Some(Workspace::new(gpu, bytes)?);
        }
        let mut first = 0;
        for launch in launches {
            let Some(code) = launch.code.as_any() else { return Ok(None) };
            if let Some(code) = external(code) {
                match graph.add_library(code, launch, first) {
                    Ok(true) => {}
                    Ok(false) => graph.add(code.own()?, launch, launch.arguments, first)?,
                    // What cannot be captured is launched one by one.
                    Err(_) => return Ok(None),
                }
            } else if let Some(code) = code.downcast_ref::<Code>() {
                graph.add(code, launch, launch.arguments, first)?;
            } else {
                return Ok(None);
            }
            first += launch.arguments.len();
        }
        graph.fetch_early();
        graph.connect()?;
        // SAFETY: the graph is whole.
        unsafe { driver.instantiate_graph(&mut graph.executable, graph.graph, 0) }.map_err(failed)?;
        Ok(Some(graph))
    }

    /// Adds a launch of a kernel with the launch's arguments, which begin at argument `first`, and perhaps more.
    fn add(
        &mut self,
        code: &Code,
        launch: &Launch<'_>,
        arguments: &[RawBuffer],
        first: usize,
    ) -> Result<(), LaunchError> {
        let (mut values, count) = (Vec::new(), launch.arguments.len());
        let Some((parameters, workspace)) = code.node(arguments, launch.sizes, launch.site, &mut values)? else {
            return Ok(());
        };
        let places = values.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>()).collect();
        let (aligned, fetched) = (code.aligned(count), code.fetched().to_vec());
        let mut kernel = KernelLaunch { parameters, values, places, aligned, fetched, _workspace: workspace };
        kernel.parameters.arguments = kernel.places.as_mut_ptr();
        self.may_fault |= code.may_fault();
        let (raw, mut written) = (std::ptr::null_mut(), code.written());
        written.truncate(count);
        self.nodes.push(Node { raw, first, written, kind: NodeKind::Kernel(kernel) });
        Ok(())
    }

    /// Adds a launch of a library; false if it is the kernel's own code that runs.
    fn add_library(&mut self, code: &dyn External, launch: &Launch<'_>, first: usize) -> Result<bool, LaunchError> {
        let arguments = code.arguments(launch.arguments, self.scratch.as_ref());
        // SAFETY: nothing is run; whoever replays promises what a launch needs.
        let Some(child) = (unsafe { code.capture(&arguments, launch.sizes) })? else { return Ok(false) };
        let kind = NodeKind::Library(code.share(), launch.sizes.to_vec(), child);
        let written = code.written();
        self.nodes.push(Node { raw: std::ptr::null_mut(), first, written, kind });
        if let Some(epilogue) = code.epilogue()? {
            self.add(epilogue, launch, &arguments, first)?;
        }
        Ok(true)
    }

    /// Makes the launches nodes of the graph, each after the one before.
    fn connect(&mut self) -> Result<(), LaunchError> {
        let driver = driver().map_err(failed)?;
        let overlaps = launches_overlap(self.gpu);
        let mut before: Option<(RawNode, bool)> = None;
        let few = FEW_TURNS * self.gpu.multiprocessors as u64;
        for node in &mut self.nodes {
            let fetches = node.is_early() && node.fetched(&self.arguments).next().is_some();
            let gains = fetches || node.blocks().is_some_and(|blocks| blocks <= few);
            let is_kernel = match &node.kind {
                NodeKind::Kernel(kernel) => {
                    let none = std::ptr::null();
                    // SAFETY: the graph exists, and the driver copies the arguments.
                    unsafe { driver.add_kernel_node(&mut node.raw, self.graph, none, 0, &kernel.parameters) }
                        .map_err(failed)?;
                    true
                }
                NodeKind::Library(_, _, child) => {
                    // SAFETY: both graphs exist, and the driver copies the child.
                    unsafe { driver.add_child_node(&mut node.raw, self.graph, std::ptr::null(), 0, child.raw) }
                        .map_err(failed)?;
                    false
                }
            };
            if let Some((before, after_kernel)) = before {
                let overlaps = overlaps && gains && after_kernel && is_kernel;
                let edge = if overlaps { Edge::PROGRAMMATIC } else { Edge::default() };
                // SAFETY: both are nodes of the graph.
                unsafe { driver.add_dependencies(self.graph, &before, &node.raw, &edge, 1) }.map_err(failed)?;
            }
            before = Some((node.raw, is_kernel));
        }
        Ok(())
    }

    /// Lets kernels fetch what no launch writes.
    fn fetch_early(&mut self) {
        let written: Vec<RawBuffer> = self.nodes.iter().flat_map(|node| node.written(&self.arguments)).collect();
        for node in &mut self.nodes {
            let is_free = |buffer: RawBuffer| !written.iter().any(|own| overlap(own, &buffer));
            let early = node.fetched(&self.arguments).all(is_free);
            node.set_early(early);
        }
    }

    /// Takes new arguments; false if some node was not made for such.
    ///
    /// # Safety
    /// As [`Recording::replay`].
    unsafe fn take(&mut self, arguments: &[RawBuffer]) -> Result<bool, LaunchError> {
        let is_moved = |(now, then): (&RawBuffer, &RawBuffer)| now.ptr != then.ptr;
        if !arguments.iter().zip(&self.arguments).any(is_moved) {
            return Ok(true);
        }
        let mut changed: Vec<usize> = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let (now, then) = (node.own(arguments), node.own(&self.arguments));
            if now.iter().zip(then).any(is_moved) {
                if !node.takes(now, then) {
                    return Ok(false);
                }
                changed.push(number);
            }
        }
        self.arguments.copy_from_slice(arguments);
        self.fetch_late(&mut changed);
        for at in changed {
            // SAFETY: the node is one of the graph's; the rest is the caller's promise.
            if !unsafe { self.nodes[at].update(self.executable, self.scratch.as_ref(), arguments) }? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What one launch writes now, another may not fetch early any more. Adds the nodes that this changes.
    fn fetch_late(&mut self, changed: &mut Vec<usize>) {
        for at in changed.clone() {
            let written: Vec<RawBuffer> = self.nodes[at].written(&self.arguments).collect();
            for (number, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| node.is_early()) {
                if node.fetched(&self.arguments).any(|buffer| written.iter().any(|own| overlap(own, &buffer))) {
                    node.set_early(false);
                    changed.push(number);
                }
            }
            let is_free = |buffer: RawBuffer| {
                let mut written = self.nodes.iter().flat_map(|node| node.written(&self.arguments));
                !written.any(|own| overlap(&own, &buffer))
            };
            if self.nodes[at].is_early() && !self.nodes[at].fetched(&self.arguments).all(is_free) {
                self.nodes[at].set_early(false);
            }
        }
    }
}

impl Node {
    /// Its buffers among all arguments.
    fn own<'a>(&self, arguments: &'a [RawBuffer]) -> &'a [RawBuffer] {
        &arguments[self.first..self.first + self.written.len()]
    }

    /// The buffers that it writes.
    fn written<'a>(&'a self, arguments: &'a [RawBuffer]) -> impl Iterator<Item = RawBuffer> + 'a {
        self.own(arguments).iter().zip(&self.written).filter(|(_, written)| **written).map(|(buffer, _)| *buffer)
    }

    /// The buffers that it may fetch from early.
    fn fetched<'a>(&'a self, arguments: &'a [RawBuffer]) -> impl Iterator<Item = RawBuffer> + 'a {
        let list = match &self.kind {
            NodeKind::Kernel(kernel) => kernel.fetched.as_slice(),
            NodeKind::Library(..) => &[],
        };
        list.iter().map(|&buffer| self.own(arguments)[buffer])
    }

    /// The blocks of a kernel.
    fn blocks(&self) -> Option<u64> {
        let NodeKind::Kernel(kernel) = &self.kind else { return None };
        let [x, y, z] = kernel.parameters.grid.map(u64::from);
        Some(x * y * z)
    }

    /// Whether it fetches before the launch before has ended.
    fn is_early(&self) -> bool {
        matches!(&self.kind, NodeKind::Kernel(kernel) if kernel.values.last().is_some_and(|&value| value != 0))
    }

    fn set_early(&mut self, early: bool) {
        if let NodeKind::Kernel(kernel) = &mut self.kind
            && let Some(value) = kernel.values.last_mut()
        {
            *value = early.into();
        }
    }

    /// Whether the code is right for other buffers.
    fn takes(&self, now: &[RawBuffer], then: &[RawBuffer]) -> bool {
        let NodeKind::Kernel(kernel) = &self.kind else { return true };
        let is_aligned = |buffer: &RawBuffer| buffer.ptr.addr().is_multiple_of(ALIGNMENT);
        let mut pairs = now.iter().zip(then).zip(&kernel.aligned);
        pairs.all(|((now, then), aligned)| !*aligned || is_aligned(now) == is_aligned(then))
    }

    /// Gives a node of an instantiated graph other arguments; false if that cannot be done.
    ///
    /// # Safety
    /// As [`Recording::replay`], and the node is one of the graph's.
    unsafe fn update(
        &mut self,
        executable: RawGraphExec,
        scratch: Option<&Workspace>,
        arguments: &[RawBuffer],
    ) -> Result<bool, LaunchError> {
        let driver = driver().map_err(failed)?;
        let (raw, now) = (self.raw, self.own(arguments));
        match &mut self.kind {
            NodeKind::Kernel(kernel) => {
                kernel.values.iter_mut().zip(now).for_each(|(value, buffer)| *value = buffer.ptr as u64);
                // SAFETY: the driver copies the arguments; the rest is the caller's promise.
                unsafe { driver.set_kernel_node(executable, raw, &kernel.parameters) }.map_err(failed)?;
                Ok(true)
            }
            NodeKind::Library(code, sizes, _) => {
                // SAFETY: the caller's promise; the driver copies the child.
                unsafe {
                    let Ok(Some(child)) = code.capture(&code.arguments(now, scratch), sizes) else { return Ok(false) };
                    Ok(driver.set_child_node(executable, raw, child.raw).is_ok())
                }
            }
        }
    }
}

/// The code of a library among all code.
fn external(code: &dyn Any) -> Option<&dyn External> {
    let blas = code.downcast_ref::<BlasCode>().map(|code| code as &dyn External);
    blas.or_else(|| code.downcast_ref::<DnnCode>().map(|code| code as &dyn External))
}

/// Whether launches of a graph overlap: from compute capability 9.0 on, unless `KILN_CUDA_OVERLAP` is `off`.
fn launches_overlap(gpu: &Gpu) -> bool {
    gpu.capability >= (9, 0) && CUDA_OVERLAP.get().is_none_or(|value| value != "off")
}

fn overlap(a: &RawBuffer, b: &RawBuffer) -> bool {
    let (a_first, b_first) = (a.ptr.addr(), b.ptr.addr());
    a_first < b_first + b.bytes && b_first < a_first + a.bytes
}

impl Recording for Graph {
    unsafe fn replay(&mut self, arguments: &[RawBuffer]) -> Result<bool, LaunchError> {
        let (expected, got) = (self.arguments.len(), arguments.len());
        if expected != got {
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let driver = driver().map_err(failed)?;
        self.gpu.enter().map_err(failed)?;
        // SAFETY: the caller's promise.
        if !unsafe { self.take(arguments) }? {
            return Ok(false);
        }
        if self.may_fault {
            self.gpu.faults.expect();
        }
        let turn = self.gpu.turn().map_err(failed)?;
        // SAFETY: the graph is whole; the rest is the caller's promise.
        unsafe { driver.launch_graph(self.executable, turn.stream) }.map_err(failed)?;
        Ok(true)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok()
            && let Ok(driver) = driver()
        {
            // SAFETY: nobody launches it any more; the driver keeps what is queued.
            unsafe {
                if !self.executable.is_null() {
                    let _ = driver.destroy_graph_exec(self.executable);
                }
                let _ = driver.destroy_graph(self.graph);
            }
        }
    }
}
