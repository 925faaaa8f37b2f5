//! Graphs that update an input: tensors stay what they were unless they are given away.

use kiln::ir::Graph;
use kiln::{CompiledGraph, Device, Error, Tensor, compile_graph};

fn counter() -> CompiledGraph {
    let text = "graph(%0: f32[n], %1: f32[n]) {
  %2: f32[n] = add %0, %1
  %3: f32[n] = mul %2, %2
  return %2 -> input 0, %3
}";
    compile_graph(&Graph::parse(text).unwrap(), &[]).unwrap()
}

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), Device::Cpu).unwrap()
}

#[test]
fn a_borrowed_input_keeps_its_value() {
    let (state, step) = (t(&[1., 2.]), t(&[10., 20.]));
    let out = counter().run(&[state.clone(), step]).unwrap();
    assert_eq!(state.to_vec::<f32>().unwrap(), [1., 2.]);
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [11., 22.]);
    assert_eq!(out[1].to_vec::<f32>().unwrap(), [121., 484.]);
}

#[test]
fn an_input_given_away_is_updated_in_place() {
    let graph = counter();
    let mut state = t(&[1., 2.]);
    let address = state.buffer().ptr();
    for turn in 1..5 {
        let out = graph.run_owned(vec![state, t(&[1., 1.])]).unwrap();
        state = out.into_iter().next().unwrap();
        assert_eq!(state.to_vec::<f32>().unwrap(), [1. + turn as f32, 2. + turn as f32]);
        assert_eq!(state.buffer().ptr(), address, "turn {turn} moved the state");
    }
}

#[test]
fn a_shared_input_is_copied_first() {
    let state = t(&[1., 2.]);
    let other = state.clone();
    let view = state.narrow(0, 1, 1).unwrap();
    let out = counter().run_owned(vec![state, t(&[5., 5.])]).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [6., 7.]);
    assert_eq!(other.to_vec::<f32>().unwrap(), [1., 2.]);
    assert_eq!(view.to_vec::<f32>().unwrap(), [2.]);
}

#[test]
fn inputs_that_do_not_fit_are_errors() {
    let error = counter().run(&[t(&[1.])]).unwrap_err().to_string();
    assert!(error.contains("takes 2 inputs, not 1"), "{error}");
    assert!(matches!(counter().run(&[t(&[1.]), t(&[1., 2.])]), Err(Error::Runtime { .. })));
    assert!(counter().run_owned(vec![]).is_err());
    let strided = t(&[1., 2., 3., 4.]).slice(0, 0, 4, 2).unwrap();
    let error = counter().run(&[t(&[1., 2.]), strided]).unwrap_err().to_string();
    assert!(error.contains("strides [2]"), "{error}");
}
