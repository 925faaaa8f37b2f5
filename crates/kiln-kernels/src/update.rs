//! Outputs that are the new value of an input: the result is copied into the input's memory when everything else is done.

use crate::domain::Domain;
use crate::kernel::{
    Access, BufferArg, Domain as StageDomain, Inst, InstKind, Kernel, KernelBody, LoopBody, Place, Stage, ValueId,
};
use crate::schedule::{BufferId, InputLayout, Schedule, Step};
use crate::trace::Storage;
use crate::{axes, index};
use kiln_ir::{Dim, Graph, NodeId};
use std::sync::Arc;

/// Makes every update reach its input.
pub(crate) fn write_updates(graph: &Graph, layouts: &[InputLayout], schedule: &mut Schedule) {
    for (number, output) in graph.outputs().iter().enumerate() {
        let Some(input) = output.updates else { continue };
        let from = schedule.outputs[number];
        // Inputs are declared first, in order.
        let to = BufferId(input as u32);
        let layout = &layouts[input];
        let source = Storage {
            buffer: from,
            offset: Dim::default(),
            strides: index::contiguous_strides(&graph.ty(output.node).shape),
        };
        let target = Storage { buffer: to, offset: layout.offset.clone(), strides: layout.strides.clone() };
        schedule.outputs[number] = to;
        if !graph.ty(output.node).shape.iter().any(Dim::is_zero) {
            schedule.steps.push(copy_step(graph, output.node, &source, &target));
        }
    }
}

/// A launch that copies a node from one place to another.
fn copy_step(graph: &Graph, node: NodeId, from: &Storage, to: &Storage) -> Step {
    let ty = graph.ty(node);
    let (domain, index) = Domain::of_shape(&ty.shape, &[]);
    let dtype = ty.dtype.compute_type();
    let place = |buffer: usize, storage: &Storage| Place { buffer, offset: storage.position(&index), indirect: vec![] };
    let load = InstKind::Load { place: place(0, from), guard: None };
    let store = InstKind::Store { place: place(1, to), value: ValueId(0), guard: None };
    let mut insts = vec![Inst { id: ValueId(0), dtype, kind: load }, Inst { id: ValueId(1), dtype, kind: store }];
    let renamed = axes::merge(&domain, &[domain.axes(false).collect()], axes::moving_dims(insts.iter()));
    renamed.apply(&mut insts);
    let grid = renamed.lists.into_iter().next().unwrap_or_default();
    let sizes = axes::size_symbols(grid.iter(), insts.iter());
    let stages = vec![Stage { domain: StageDomain::Point, insts, reductions: Vec::new() }];
    let buffers =
        [Access::Read, Access::Write].into_iter().map(|access| BufferArg { dtype: ty.dtype, access }).collect();
    let values = sizes.iter().map(|&s| Dim::from(s)).collect();
    let body = KernelBody::Loop(LoopBody { grid, row: Vec::new(), stages, temps: Vec::new() });
    Step {
        kernel: Arc::new(Kernel { buffers, sizes, body }),
        args: vec![from.buffer, to.buffer],
        sizes: values,
        nodes: vec![node],
        label: "copy".into(),
    }
}
