//! Recurrent layers: all inputs are multiplied at once, states step by step. In a compiled function the steps are a loop of the graph, so that
//! it has one program for all lengths.

use super::{Forward, Module, Part, Visit, VisitMut, init};
use crate::compile::capture::record_loop;
use crate::{DType, Result, Tensor, Var};
use kiln_ir::Source;

/// The weights of one layer in one direction.
#[derive(Debug, Clone)]
struct Direction {
    weight_ih: Var,
    weight_hh: Var,
    bias_ih: Var,
    bias_hh: Var,
}

impl Direction {
    #[track_caller]
    fn new(gates: usize, input: usize, hidden: usize) -> Result<Direction> {
        let bound = init::default_bound(hidden);
        let make =
            |name: &str, shape: &[usize]| -> Result<Var> { Ok(init::parameter(name, &init::uniform(shape, bound)?)) };
        Ok(Direction {
            weight_ih: make("weight_ih", &[gates * hidden, input])?,
            weight_hh: make("weight_hh", &[gates * hidden, hidden])?,
            bias_ih: make("bias_ih", &[gates * hidden])?,
            bias_hh: make("bias_hh", &[gates * hidden])?,
        })
    }
}

/// Layers of one or two directions, with PyTorch's names.
#[derive(Debug, Clone)]
struct Layers {
    hidden: usize,
    layers: Vec<Vec<Direction>>,
}

fn suffix(layer: usize, direction: usize) -> String {
    format!("l{layer}{}", if direction == 0 { "" } else { "_reverse" })
}

impl Part for Layers {
    fn visit(&self, visit: &mut Visit<'_>) {
        self.hidden.visit(visit);
        for (layer, directions) in self.layers.iter().enumerate() {
            for (number, direction) in directions.iter().enumerate() {
                let suffix = suffix(layer, number);
                visit.part(&format!("weight_ih_{suffix}"), &direction.weight_ih);
                visit.part(&format!("weight_hh_{suffix}"), &direction.weight_hh);
                visit.part(&format!("bias_ih_{suffix}"), &direction.bias_ih);
                visit.part(&format!("bias_hh_{suffix}"), &direction.bias_hh);
            }
        }
    }

    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        for (layer, directions) in self.layers.iter_mut().enumerate() {
            for (number, direction) in directions.iter_mut().enumerate() {
                let suffix = suffix(layer, number);
                visit.part(&format!("weight_ih_{suffix}"), &mut direction.weight_ih);
                visit.part(&format!("weight_hh_{suffix}"), &mut direction.weight_hh);
                visit.part(&format!("bias_ih_{suffix}"), &mut direction.bias_ih);
                visit.part(&format!("bias_hh_{suffix}"), &mut direction.bias_hh);
            }
        }
    }
}

impl Layers {
    #[track_caller]
    fn new(gates: usize, input: usize, hidden: usize, layers: usize, both: bool) -> Result<Layers> {
        let directions = if both { 2 } else { 1 };
        let layer = |number: usize| {
            let input = if number == 0 { input } else { hidden * directions };
            (0..directions).map(|_| Direction::new(gates, input, hidden)).collect::<Result<Vec<_>>>()
        };
        Ok(Layers { hidden, layers: (0..layers).map(layer).collect::<Result<_>>()? })
    }

    fn count(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }

    /// Runs all layers. `step` makes the next state of the inputs' and the state's gates; the first part of a state is the output.
    /// Returns the outputs of the last layer and the last states of all, `[layers · directions, n, hidden]` for each part.
    ///
    /// Where gates of inputs and states are only added up (`adds`), so are their biases, before the steps; not those of 16 bits,
    /// whose sum would be rounded.
    fn run(
        &self,
        x: &Tensor,
        states: &[Tensor],
        adds: bool,
        step: impl Fn(&Tensor, &Tensor, &[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let mut x = x.clone();
        let mut last: Vec<Vec<Tensor>> = vec![Vec::new(); states.len()];
        let mut number = 0;
        for directions in &self.layers {
            let mut outputs = Vec::with_capacity(directions.len());
            for (reverse, direction) in directions.iter().enumerate() {
                let (weight, bias) = (direction.weight_hh.get(), direction.bias_hh.get());
                let adds = adds && matches!(bias.dtype(), DType::F32 | DType::F64);
                let (bias, before) = match adds {
                    true => (None, direction.bias_ih.get().add(bias)?),
                    false => (Some(bias), direction.bias_ih.get()),
                };
                let gates = x.linear(&direction.weight_ih.get(), Some(&before))?;
                let mut state = states.iter().map(|part| part.select(0, number)).collect::<Result<Vec<Tensor>>>()?;
                number += 1;
                let mut turn = |tensors: &[Tensor]| {
                    let (state, gates) = tensors.split_at(states.len());
                    let mut next = step(&gates[0], &state[0].linear(&weight, bias.as_ref())?, state)?;
                    next.push(next[0].clone());
                    Ok(Some(next))
                };
                let over = gates.transpose(0, 1)?;
                let carried: Vec<&Tensor> = state.iter().collect();
                if let Some(mut all) = record_loop(&carried, &[&over], reverse == 1, &mut turn, &Source::caller())? {
                    outputs.extend(all.pop().map(|steps| steps.transpose(0, 1)).transpose()?);
                    last.iter_mut().zip(all).for_each(|(last, part)| last.push(part));
                    continue;
                }
                let gates = gates.unbind(1)?;
                let mut steps = Vec::with_capacity(gates.len());
                let order: Vec<usize> =
                    if reverse == 0 { (0..gates.len()).collect() } else { (0..gates.len()).rev().collect() };
                for at in order {
                    let own = state[0].linear(&weight, bias.as_ref())?;
                    state = step(&gates[at], &own, &state)?;
                    steps.push(state[0].clone());
                }
                if reverse == 1 {
                    steps.reverse();
                }
                outputs.push(Tensor::stack(&steps, 1)?);
                last.iter_mut().zip(state).for_each(|(all, part)| all.push(part));
            }
            x = if outputs.len() == 1 { outputs.swap_remove(0) } else { Tensor::cat(&outputs, -1)? };
        }
        let last = last.iter().map(|parts| Tensor::stack(parts, 0)).collect::<Result<_>>()?;
        Ok((x, last))
    }

    fn zeros(&self, x: &Tensor) -> Result<Tensor> {
        Tensor::zeros((self.count(), x.size(0)?, self.hidden), x.dtype(), x.device())
    }
}

/// The state of an [`Lstm`]: hidden values and cells, `[layers · directions, n, hidden]` each.
#[derive(Debug, Clone)]
pub struct LstmState {
    /// Hidden values.
    pub hidden: Tensor,
    /// Cells.
    pub cell: Tensor,
}

/// Long short-term memory over `[n, steps, input]` (PyTorch's with `batch_first=True`).
///
/// ```
/// use kiln::nn::{Forward, Lstm};
/// use kiln::{DType, Device, Tensor};
/// let layer = Lstm::new(3, 5, 2)?;
/// let x = Tensor::ones([2, 4, 3], DType::F32, Device::Cpu)?;
/// assert_eq!(layer.forward(&x)?.shape(), [2, 4, 5]);
/// let (_, state) = layer.run(&x, None)?;
/// assert_eq!(state.cell.shape(), [2, 2, 5]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Lstm {
    #[module(flatten)]
    layers: Layers,
}

impl Lstm {
    /// Makes layers one above the other, all uniform within ±1/√hidden.
    #[track_caller]
    pub fn new(input: usize, hidden: usize, layers: usize) -> Result<Lstm> {
        Ok(Lstm { layers: Layers::new(4, input, hidden, layers, false)? })
    }

    /// The same in both directions: outputs of both are side by side.
    #[track_caller]
    pub fn bidirectional(input: usize, hidden: usize, layers: usize) -> Result<Lstm> {
        Ok(Lstm { layers: Layers::new(4, input, hidden, layers, true)? })
    }

    /// Outputs of the last layer, and the state after the last step. Without a state it begins at zero.
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&LstmState>) -> Result<(Tensor, LstmState)> {
        let _line = Source::scope();
        let states = match state {
            Some(LstmState { hidden, cell }) => vec![hidden.clone(), cell.clone()],
            None => vec![self.layers.zeros(x)?; 2],
        };
        let step = |input: &Tensor, own: &Tensor, state: &[Tensor]| {
            let gates = input.add(own)?.chunk(4, -1)?;
            let (i, f) = (gates[0].sigmoid()?, gates[1].sigmoid()?);
            let cell = f.mul(&state[1])?.add(&i.mul(&gates[2].tanh()?)?)?;
            Ok(vec![gates[3].sigmoid()?.mul(&cell.tanh()?)?, cell])
        };
        let (y, mut last) = self.layers.run(x, &states, true, step)?;
        let cell = last.swap_remove(1);
        Ok((y, LstmState { hidden: last.swap_remove(0), cell }))
    }
}

impl Forward for Lstm {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        Ok(self.run(x, None)?.0)
    }
}

/// Gated recurrent units over `[n, steps, input]` (PyTorch's with `batch_first=True`).
///
/// ```
/// use kiln::nn::{Forward, Gru};
/// use kiln::{DType, Device, Tensor};
/// let layer = Gru::bidirectional(3, 5, 1)?;
/// assert_eq!(layer.forward(&Tensor::ones([2, 4, 3], DType::F32, Device::Cpu)?)?.shape(), [2, 4, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Gru {
    #[module(flatten)]
    layers: Layers,
}

impl Gru {
    /// Makes layers one above the other, all uniform within ±1/√hidden.
    #[track_caller]
    pub fn new(input: usize, hidden: usize, layers: usize) -> Result<Gru> {
        Ok(Gru { layers: Layers::new(3, input, hidden, layers, false)? })
    }

    /// The same in both directions: outputs of both are side by side.
    #[track_caller]
    pub fn bidirectional(input: usize, hidden: usize, layers: usize) -> Result<Gru> {
        Ok(Gru { layers: Layers::new(3, input, hidden, layers, true)? })
    }

    /// Outputs of the last layer, and the hidden values after the last step, `[layers · directions, n, hidden]`. Without any it begins at
    /// zero.
    #[track_caller]
    pub fn run(&self, x: &Tensor, hidden: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let _line = Source::scope();
        let first = match hidden {
            Some(hidden) => hidden.clone(),
            None => self.layers.zeros(x)?,
        };
        let step = |input: &Tensor, own: &Tensor, state: &[Tensor]| {
            let (input, own) = (input.chunk(3, -1)?, own.chunk(3, -1)?);
            let reset = input[0].add(&own[0])?.sigmoid()?;
            let update = input[1].add(&own[1])?.sigmoid()?;
            let new = input[2].add(&reset.mul(&own[2])?)?.tanh()?;
            Ok(vec![new.add(&update.mul(&state[0].sub(&new)?)?)?])
        };
        let (y, mut last) = self.layers.run(x, &[first], false, step)?;
        Ok((y, last.swap_remove(0)))
    }
}

impl Forward for Gru {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        Ok(self.run(x, None)?.0)
    }
}
