//! Products whose operands are read through padding, which schedules for CPUs do not have: the code is right all the same.

mod support;

use kiln_cpu::CpuBackend;
use kiln_cpu::features::Isa;
use kiln_ir::{DType, Graph, HostTensor};
use kiln_kernels::reference::run_kernel;
use kiln_kernels::{InputLayout, Kernel, ScheduleOptions, Target, schedule};
use kiln_runtime::{Backend, RawBuffer};
use std::sync::Arc;
use support::{Guarded, element, tensor, zeros};

/// The one kernel of a convolution with a bias.
fn kernel(dtype: DType) -> Arc<Kernel> {
    let text = format!(
        "graph(%0: {dtype}[2, 3, 6, 6], %1: {dtype}[8, 3, 3, 3], %2: {dtype}[8]) {{
  %3: {dtype}[2, 3, 8, 8] = pad %0 {{low=[0, 0, 1, 1], high=[0, 0, 1, 1], value=0}}
  %4: {dtype}[2, 3, 3, 8, 3] = unfold %3 {{axis=2, size=3, stride=2, dilation=1}}
  %5: {dtype}[2, 3, 3, 3, 3, 3] = unfold %4 {{axis=3, size=3, stride=2, dilation=1}}
  %6: {dtype}[2, 3, 3, 8] = dot %5, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1, 4, 5], rhs_contract=[1, 2, 3]}}
  %7: {dtype}[2, 8, 3, 3] = permute %6 {{order=[0, 3, 1, 2]}}
  %8: {dtype}[1, 8, 1, 1] = reshape %2
  %9: {dtype}[2, 8, 3, 3] = expand %8
  %10: {dtype}[2, 8, 3, 3] = add %7, %9
  return %10
}}"
    );
    let graph = Graph::parse(&text).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let target = Target { guarded_operands: true, ..Target::default() };
    let schedule = schedule(&graph, &layouts, &ScheduleOptions { target, ..ScheduleOptions::default() }).unwrap();
    assert_eq!(schedule.steps.len(), 1, "{schedule}");
    schedule.steps[0].kernel.clone()
}

/// Holds the code of every target against the reference on operands of these sizes, the result after them, and returns what parts it has.
fn agrees(kernel: &Kernel, dtype: DType, sizes: [usize; 3], results: usize) -> Vec<(Isa, String)> {
    let mut tensors: Vec<HostTensor> = sizes.iter().map(|&size| tensor(dtype, size, size as u64, false)).collect();
    tensors.push(zeros(dtype, results));
    let mut wanted = tensors.clone();
    run_kernel(kernel, &mut wanted, &[]).unwrap();
    let mut parts = Vec::new();
    for isa in Isa::available() {
        let code = CpuBackend::with_isa(isa).compile(kernel).unwrap_or_else(|error| panic!("{error}"));
        let memory: Vec<Guarded> = tensors.iter().map(|tensor| Guarded::new(tensor.bytes(), false)).collect();
        let buffers: Vec<RawBuffer> =
            memory.iter().zip(&tensors).map(|(m, t)| RawBuffer { ptr: m.at, bytes: t.bytes().len() }).collect();
        // SAFETY: the buffers are those that the reference ran on within bounds.
        unsafe { code.launch(&buffers, &[]) }.unwrap();
        let mut got = zeros(dtype, wanted[3].elements());
        let bytes = got.bytes().len();
        // SAFETY: the memory is as long as the tensor.
        got.bytes_mut().copy_from_slice(unsafe { std::slice::from_raw_parts(memory[3].at, bytes) });
        for i in 0..got.elements() {
            let (got, wanted) = (element(&got, i), element(&wanted[3], i));
            assert!((got - wanted).abs() <= 0.02 + 0.01 * wanted.abs(), "{isa:?} {dtype} {i}: {got} {wanted}");
        }
        parts.push((isa, code.disassembly().unwrap_or_default()));
    }
    parts
}

#[test]
fn convolutions_read_through_padding() {
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::I32] {
        agrees(&kernel(dtype), dtype, [2 * 3 * 36, 8 * 27, 8], 2 * 8 * 9);
    }
}

/// Depthwise convolutions with channels last, in memory and in results, are computed with channels in lanes.
#[test]
fn depthwise_convolutions_with_channels_last_have_channels_in_lanes() {
    for (dtype, channels) in [(DType::F32, 32), (DType::F32, 21), (DType::Bf16, 32)] {
        let text = format!(
            "graph(%0: {dtype}[2, 6, 9, {channels}], %1: {dtype}[{channels}, 1, 3, 3], %2: {dtype}[{channels}]) {{
  %3: {dtype}[2, 8, 11, {channels}] = pad %0 {{low=[0, 1, 1, 0], high=[0, 1, 1, 0], value=0}}
  %4: {dtype}[2, 3, 11, {channels}, 3] = unfold %3 {{axis=1, size=3, stride=2, dilation=1}}
  %5: {dtype}[2, 3, 9, {channels}, 3, 3] = unfold %4 {{axis=2, size=3, stride=1, dilation=1}}
  %6: {dtype}[{channels}, 2, 3, 9, 1] = dot %5, %1 {{lhs_batch=[3], rhs_batch=[0], lhs_contract=[4, 5], rhs_contract=[2, 3]}}
  %7: {dtype}[{channels}, 2, 3, 9] = reshape %6
  %8: {dtype}[2, 3, 9, {channels}] = permute %7 {{order=[1, 2, 3, 0]}}
  %9: {dtype}[1, 1, 1, {channels}] = reshape %2
  %10: {dtype}[2, 3, 9, {channels}] = expand %9
  %11: {dtype}[2, 3, 9, {channels}] = add %8, %10
  return %11
}}"
        );
        let graph = Graph::parse(&text).unwrap();
        let layouts: Vec<InputLayout> =
            graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        let target = Target { guarded_operands: true, depthwise_products: true, ..Target::default() };
        let schedule = schedule(&graph, &layouts, &ScheduleOptions { target, ..ScheduleOptions::default() }).unwrap();
        assert_eq!(schedule.steps.len(), 1, "{schedule}");
        let parts =
            agrees(&schedule.steps[0].kernel, dtype, [2 * 54 * channels, 9 * channels, channels], 54 * channels);
        for (isa, parts) in parts {
            let has = parts.contains("finishes results of single channels");
            assert_eq!(has, isa != Isa::Portable, "{isa:?} {dtype} {channels}: {parts}");
        }
    }
}

/// A right operand with few columns in plain memory is no image under windows: it gets no code of a convolution's weight gradient.
#[test]
fn few_columns_are_no_gradient_of_weights() {
    let text = "graph(%0: f32[64, 64], %1: f32[64, 4]) {
  %2: f32[64, 4] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  return %2
}";
    let graph = Graph::parse(text).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let schedule = schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap();
    assert_eq!(schedule.steps.len(), 1, "{schedule}");
    for isa in Isa::available() {
        let code = CpuBackend::with_isa(isa).compile(&schedule.steps[0].kernel).unwrap();
        let parts = code.disassembly().unwrap_or_default();
        assert!(!parts.contains("finishes gradients of weights"), "{isa:?}: {parts}");
    }
}
