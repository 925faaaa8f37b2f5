//! The launches of a program as one CUDA graph, built node by node: a replay changes the arguments that moved, and launches once.

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
}

/// A launch of the chain.
struct Node {
    raw: RawNode,
    parameters: KernelNode,
    /// Where its buffers are among all arguments.
    first: usize,
    count: usize,
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
        let mut graph = Graph { gpu, graph: raw, executable, nodes: Vec::new(), arguments, may_fault: false };
        let mut first = 0;
        for launch in launches {
            let Some(code) = launch.code.as_any().and_then(|code| code.downcast_ref::<Code>()) else { return Ok(None) };
            let mut values = Vec::new();
            if let Some((parameters, workspace)) =
                code.node(launch.arguments, launch.sizes, launch.site, &mut values)?
            {
                graph.add(code, parameters, workspace, values, first, launch.arguments.len())?;
            }
            first += launch.arguments.len();
        }
        // SAFETY: the graph is whole.
        unsafe { driver.instantiate_graph(&mut graph.executable, graph.graph, 0) }.map_err(failed)?;
        Ok(Some(graph))
    }

    fn add(
        &mut self,
        code: &Code,
        parameters: KernelNode,
        workspace: Option<Workspace>,
        mut values: Vec<u64>,
        first: usize,
        count: usize,
    ) -> Result<(), LaunchError> {
        let places = values.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>()).collect();
        let aligned = code.aligned(count);
        let raw = std::ptr::null_mut();
        let mut node = Node { raw, parameters, first, count, values, places, aligned, _workspace: workspace };
        node.parameters.arguments = node.places.as_mut_ptr();
        let before: Vec<RawNode> = self.nodes.last().map(|node| node.raw).into_iter().collect();
        let driver = driver().map_err(failed)?;
        // SAFETY: the graph exists, the node before it is one of its nodes, and the driver copies the arguments.
        unsafe { driver.add_kernel_node(&mut node.raw, self.graph, before.as_ptr(), before.len(), &node.parameters) }
            .map_err(failed)?;
        self.may_fault |= code.may_fault();
        self.nodes.push(node);
        Ok(())
    }
}

impl Recording for Graph {
    unsafe fn replay(&mut self, arguments: &[RawBuffer]) -> Result<bool, LaunchError> {
        let (expected, got) = (self.arguments.len(), arguments.len());
        if expected != got {
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let is_aligned = |buffer: &RawBuffer| buffer.ptr.addr().is_multiple_of(16);
        let driver = driver().map_err(failed)?;
        self.gpu.enter().map_err(failed)?;
        for node in &mut self.nodes {
            let range = node.first..node.first + node.count;
            let (now, then) = (&arguments[range.clone()], &self.arguments[range]);
            if now.iter().zip(then).all(|(now, then)| now.ptr == then.ptr) {
                continue;
            }
            let mut pairs = now.iter().zip(then).zip(&node.aligned);
            if pairs.any(|((now, then), aligned)| *aligned && is_aligned(now) != is_aligned(then)) {
                return Ok(false);
            }
            node.values.iter_mut().zip(now).for_each(|(value, buffer)| *value = buffer.ptr as u64);
            // SAFETY: the node is one of the graph's, and the driver copies the arguments.
            unsafe { driver.set_kernel_node(self.executable, node.raw, &node.parameters) }.map_err(failed)?;
        }
        self.arguments.copy_from_slice(arguments);
        if self.may_fault {
            self.gpu.faults.expect();
        }
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
