//! The launches of a program as one CUDA graph, built node by node: a replay changes the arguments that moved, and launches once. A launch
//! of a library is a graph of its own inside, which is captured again when its arguments moved.

use crate::blas::{Blas, BlasCode};
use crate::device::Gpu;
use crate::driver::{KernelNode, RawGraph, RawGraphExec, RawNode, driver};
use crate::executable::{Code, Workspace, failed};
use kiln_runtime::{Launch, LaunchError, RawBuffer, Recording};
use std::ffi::c_void;

/// A chain of launches.
pub(crate) struct Graph {
    gpu: &'static Gpu,
    graph: RawGraph,
    executable: RawGraphExec,
    nodes: Vec<Node>,
    /// The arguments of all launches, as the nodes have them.
    arguments: Vec<RawBuffer>,
    may_fault: bool,
    /// Whether a launch is a library's.
    has_library: bool,
    /// Accumulators of libraries, one launch's after the other's.
    scratch: Option<Workspace>,
}

/// A launch of the chain.
struct Node {
    raw: RawNode,
    /// Where its buffers are among all arguments.
    first: usize,
    count: usize,
    kind: NodeKind,
}

enum NodeKind {
    Kernel(KernelLaunch),
    /// A launch of a library with these sizes.
    Library(BlasCode, Vec<i64>),
}

/// A launch of a kernel of ours.
struct KernelLaunch {
    parameters: KernelNode,
    /// Its arguments, and where each is.
    values: Vec<u64>,
    places: Vec<*mut c_void>,
    /// Which of its buffers have to keep their alignment.
    aligned: Vec<bool>,
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
        let executable = std::ptr::null_mut();
        let (nodes, may_fault, has_library, scratch) = (Vec::new(), false, false, None);
        let mut graph = Graph { gpu, graph: raw, executable, nodes, arguments, may_fault, has_library, scratch };
        let scratch = |launch: &Launch<'_>| {
            let code = launch.code.as_any()?.downcast_ref::<BlasCode>()?;
            Some(code.scratch_bytes(launch.sizes)).filter(|&bytes| bytes > 0)
        };
        if let Some(bytes) = launches.iter().filter_map(scratch).max() {
            graph.scratch = Some(Workspace::new(gpu, bytes)?);
        }
        let mut first = 0;
        for launch in launches {
            let Some(code) = launch.code.as_any() else { return Ok(None) };
            if let Some(code) = code.downcast_ref::<BlasCode>() {
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
        // SAFETY: the graph is whole.
        unsafe { driver.instantiate_graph(&mut graph.executable, graph.graph, 0) }.map_err(failed)?;
        Ok(Some(graph))
    }

    /// The node that the next one comes after.
    fn before(&self) -> Vec<RawNode> {
        self.nodes.last().map(|node| node.raw).into_iter().collect()
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
        let aligned = code.aligned(count);
        let mut kernel = KernelLaunch { parameters, values, places, aligned, _workspace: workspace };
        kernel.parameters.arguments = kernel.places.as_mut_ptr();
        let (before, mut raw) = (self.before(), std::ptr::null_mut());
        let driver = driver().map_err(failed)?;
        // SAFETY: the graph exists, the node before it is one of its nodes, and the driver copies the arguments.
        unsafe { driver.add_kernel_node(&mut raw, self.graph, before.as_ptr(), before.len(), &kernel.parameters) }
            .map_err(failed)?;
        self.may_fault |= code.may_fault();
        self.nodes.push(Node { raw, first, count, kind: NodeKind::Kernel(kernel) });
        Ok(())
    }

    /// Adds a launch of a library; false if it is the kernel's own code that runs.
    fn add_library(&mut self, code: &BlasCode, launch: &Launch<'_>, first: usize) -> Result<bool, LaunchError> {
        let arguments = code.arguments(launch.arguments, self.scratch.as_ref());
        // SAFETY: nothing is run; whoever replays promises what a launch needs.
        let Some(child) = (unsafe { code.capture(&arguments, launch.sizes) })? else { return Ok(false) };
        let (before, mut raw) = (self.before(), std::ptr::null_mut());
        let driver = driver().map_err(failed)?;
        // SAFETY: both graphs exist, the node before it is one of this one's, and the driver copies the child.
        unsafe { driver.add_child_node(&mut raw, self.graph, before.as_ptr(), before.len(), child.raw) }
            .map_err(failed)?;
        self.has_library = true;
        let kind = NodeKind::Library(code.clone(), launch.sizes.to_vec());
        self.nodes.push(Node { raw, first, count: launch.arguments.len(), kind });
        if let Some(epilogue) = code.epilogue() {
            self.add(epilogue, launch, &arguments, first)?;
        }
        Ok(true)
    }
}

impl Node {
    /// Gives a node of an instantiated graph other arguments; false if it was not made for such.
    ///
    /// # Safety
    /// As [`Recording::replay`], and the node is one of the graph's.
    unsafe fn update(
        &mut self,
        executable: RawGraphExec,
        scratch: Option<&Workspace>,
        now: &[RawBuffer],
        then: &[RawBuffer],
    ) -> Result<bool, LaunchError> {
        let driver = driver().map_err(failed)?;
        match &mut self.kind {
            NodeKind::Kernel(kernel) => {
                let is_aligned = |buffer: &RawBuffer| buffer.ptr.addr().is_multiple_of(16);
                let mut pairs = now.iter().zip(then).zip(&kernel.aligned);
                if pairs.any(|((now, then), aligned)| *aligned && is_aligned(now) != is_aligned(then)) {
                    return Ok(false);
                }
                kernel.values.iter_mut().zip(now).for_each(|(value, buffer)| *value = buffer.ptr as u64);
                // SAFETY: the driver copies the arguments; the rest is the caller's promise.
                unsafe { driver.set_kernel_node(executable, self.raw, &kernel.parameters) }.map_err(failed)?;
                Ok(true)
            }
            NodeKind::Library(code, sizes) => {
                // SAFETY: the caller's promise; the driver copies the child.
                unsafe {
                    let Ok(Some(child)) = code.capture(&code.arguments(now, scratch), sizes) else { return Ok(false) };
                    Ok(driver.set_child_node(executable, self.raw, child.raw).is_ok())
                }
            }
        }
    }
}

impl Recording for Graph {
    unsafe fn replay(&mut self, arguments: &[RawBuffer]) -> Result<bool, LaunchError> {
        let (expected, got) = (self.arguments.len(), arguments.len());
        if expected != got {
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let driver = driver().map_err(failed)?;
        self.gpu.enter().map_err(failed)?;
        for node in &mut self.nodes {
            let range = node.first..node.first + node.count;
            let (now, then) = (&arguments[range.clone()], &self.arguments[range]);
            let moved = now.iter().zip(then).any(|(now, then)| now.ptr != then.ptr);
            // SAFETY: the node is one of the graph's; the rest is the caller's promise.
            if moved && !unsafe { node.update(self.executable, self.scratch.as_ref(), now, then) }? {
                return Ok(false);
            }
        }
        self.arguments.copy_from_slice(arguments);
        if self.may_fault {
            self.gpu.faults.expect();
        }
        let blas = if self.has_library { Blas::of(self.gpu).ok() } else { None };
        let _workspace = blas.map(Blas::workspace);
        // SAFETY: the graph is whole; the rest is the caller's promise.
        unsafe { driver.launch_graph(self.executable, self.gpu.stream()) }.map_err(failed)?;
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
