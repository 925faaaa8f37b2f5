//! Calls on memory of the caller.

use kiln_ir::{DType, Dim, Graph};
use kiln_kernels::{InputLayout, ScheduleOptions};
use kiln_runtime::{Error, PinnedRaw, Program, RawInput, ReferenceBackend};
use std::sync::Arc;

fn program(text: &str, layouts: &[Option<&[i64]>]) -> Program {
    let graph = Graph::parse(text).unwrap();
    let layout = |(&id, strides): (_, &Option<&[i64]>)| match strides {
        None => InputLayout::contiguous(graph.ty(id)),
        Some(strides) => {
            InputLayout { strides: strides.iter().map(|&s| Dim::from(s)).collect(), offset: Dim::default() }
        }
    };
    let layouts: Vec<InputLayout> = graph.inputs().iter().zip(layouts).map(layout).collect();
    Program::build(&graph, &layouts, Arc::new(ReferenceBackend), &ScheduleOptions::default()).unwrap()
}

fn raw<'a>(data: &mut [f32], shape: &'a [i64], strides: &'a [i64]) -> RawInput<'a> {
    RawInput { ptr: data.as_mut_ptr().cast(), dtype: DType::F32, shape, strides, is_value: false }
}

/// Runs a program on f32 outputs of these lengths.
fn call(program: &Program, symbols: &[i64], inputs: &[RawInput], lengths: &[usize]) -> Result<Vec<Vec<f32>>, Error> {
    let mut outputs: Vec<Vec<f32>> = lengths.iter().map(|&n| vec![f32::NAN; n]).collect();
    let addresses: Vec<*mut u8> = outputs.iter_mut().map(|output| output.as_mut_ptr().cast()).collect();
    // SAFETY: the tests give as much memory as the programs use.
    unsafe { program.call_raw(symbols, inputs, &addresses) }?;
    Ok(outputs)
}

#[test]
fn inputs_of_any_layout_are_read_where_they_are() {
    let text = "graph(%0: f32[2, 3], %1: f32[2, 3]) {
      %2: f32[2, 3] = add %0, %1
      return %2
    }";
    // Columns first, and one row for all.
    let program = program(text, &[Some(&[1, 2]), Some(&[0, 1])]);
    let (mut x, mut y) = ([1., 2., 3., 4., 5., 6.], [10., 20., 30.]);
    let inputs = [raw(&mut x, &[2, 3], &[1, 2]), raw(&mut y, &[2, 3], &[0, 1])];
    assert_eq!(call(&program, &[], &inputs, &[6]).unwrap(), [[11., 23., 35., 12., 24., 36.]]);
}

#[test]
fn every_output_has_memory_of_its_own() {
    let text = "graph(%0: f32[2]) {
      %1: f32[2] = constant {value=[3.0, 4.0]}
      %2: f32[2] = neg %0
      return %0, %1, %2, %2, %1
    }";
    let program = program(text, &[None]);
    let mut x = [1., 2.];
    let got = call(&program, &[], &[raw(&mut x, &[2], &[1])], &[2; 5]).unwrap();
    assert_eq!(got, [[1., 2.], [3., 4.], [-1., -2.], [-1., -2.], [3., 4.]]);
}

#[test]
fn updates_of_strided_inputs_leave_the_gaps() {
    let text = "graph(%0: f32[2, 2], %1: f32[2, 2]) {
      %2: f32[2, 2] = add %0, %1
      %3: f32[2, 2] = neg %0
      return %3, %2 -> input 0
    }";
    let program = program(text, &[Some(&[3, 1]), None]);
    let (mut x, mut y) = ([1., 2., 77., 3., 4., 78.], [10., 20., 30., 40.]);
    let inputs = [raw(&mut x, &[2, 2], &[3, 1]), raw(&mut y, &[2, 2], &[2, 1])];
    assert_eq!(call(&program, &[], &inputs, &[4]).unwrap(), [[-1., -2., -3., -4.]]);
    assert_eq!(x, [11., 22., 77., 33., 44., 78.]);
}

#[test]
fn symbols_that_no_input_has_are_given_by_the_caller() {
    let text = "graph(%0: f32[n + 1]) {
      %1: f32[n + 1] = neg %0
      %2: f32[n] = iota {axis=0}
      return %1, %2
    }";
    let program = program(text, &[None]);
    let names: Vec<String> = program.symbols().map(|symbol| symbol.to_string()).collect();
    assert_eq!(names, ["n"]);
    let mut x = [1., 2., 3.];
    let input = raw(&mut x, &[3], &[1]);
    assert_eq!(call(&program, &[2], &[input], &[3, 2]).unwrap(), [vec![-1., -2., -3.], vec![0., 1.]]);
    assert!(matches!(call(&program, &[], &[input], &[3, 2]), Err(Error::UnboundSize { .. })));
    assert!(matches!(call(&program, &[3], &[input], &[4, 3]), Err(Error::InputType { input: 0, .. })));
}

#[test]
fn what_the_program_was_not_built_for_is_refused() {
    let text = "graph(%0: f32[2, 2]) {
      %1: f32[2, 2] = neg %0
      return %1
    }";
    let program = program(text, &[None]);
    let mut x = [0.; 4];
    let refused = |input: RawInput| call(&program, &[], &[input], &[4]).unwrap_err();
    assert!(matches!(refused(raw(&mut x, &[2, 2], &[1, 2])), Error::InputStrides { input: 0, .. }));
    assert!(matches!(refused(raw(&mut x, &[4], &[1])), Error::InputType { input: 0, .. }));
    let wrong = RawInput { dtype: DType::I32, ..raw(&mut x, &[2, 2], &[2, 1]) };
    assert!(matches!(refused(wrong), Error::InputType { input: 0, .. }));
    let good = raw(&mut x, &[2, 2], &[2, 1]);
    assert!(matches!(call(&program, &[], &[good], &[]), Err(Error::OutputTooSmall { output: 0, .. })));
    assert!(matches!(call(&program, &[], &[], &[4]), Err(Error::InputCount { expected: 1, got: 0 })));
}

#[test]
fn tensors_without_elements_may_have_no_address() {
    let text = "graph(%0: f32[0, 2], %1: f32[2]) {
      %2: f32[0, 2] = neg %0
      %3: f32[2] = neg %1
      return %2, %3
    }";
    let program = program(text, &[None, None]);
    let empty =
        RawInput { ptr: std::ptr::null_mut(), dtype: DType::F32, shape: &[0, 2], strides: &[2, 1], is_value: false };
    let mut x = [1., 2.];
    let got = call(&program, &[], &[empty, raw(&mut x, &[2], &[1])], &[0, 2]).unwrap();
    assert_eq!(got, [vec![], vec![-1., -2.]]);
}

#[test]
fn pinned_inputs_are_looked_at_once_a_key() {
    let text = "graph(%0: f32[2], %1: f32[2]) {
      %2: f32[2] = sub %0, %1
      return %2
    }";
    let program = program(text, &[None, None]);
    let (mut old, mut new, mut x) = ([1f32, 2.], [5f32, 6.], [10f32, 20.]);
    let (old, new) = (raw(&mut old, &[2], &[1]), raw(&mut new, &[2], &[1]));
    let mut call = |key: u64, weight: RawInput<'_>, step: f32| {
        x[0] += step;
        let nothing = raw(&mut [], &[], &[]);
        let (inputs, others) = ([nothing, weight], [(0, raw(&mut x, &[2], &[1]))]);
        let mut output = [f32::NAN; 2];
        let pinned = PinnedRaw { key: (0, key), inputs: &inputs, others: &others };
        // SAFETY: two elements each.
        unsafe { program.call_pinned(&[], pinned, &[output.as_mut_ptr().cast()], false) }.map(|()| output)
    };
    assert_eq!(call(1, old, 0.).unwrap(), [9., 18.]);
    // The input that is not pinned is another one, the pinned one is not looked at.
    assert_eq!(call(1, new, 1.).unwrap(), [10., 18.]);
    assert_eq!(call(2, new, 0.).unwrap(), [6., 14.]);
    // What is looked at is compared with the program's layout.
    let short = RawInput { shape: &[1], ..old };
    assert!(matches!(call(3, short, 0.), Err(Error::InputType { input: 1, .. })));
    assert_eq!(call(2, new, 0.).unwrap(), [6., 14.]);
    let all = [new, old];
    assert_eq!(self::call(&program, &[], &all, &[2]).unwrap(), [[4., 4.]]);
    assert_eq!(call(2, old, 0.).unwrap(), [10., 18.]);
}
