//! Recurrent layers: all inputs are multiplied at once, states step by step. The steps are a loop of a graph, that of a compiled function or, in
//! eager code, of the layers themselves, so that there is one program for all lengths.

use super::{Forward, Module, Part, Visit, VisitMut, init};
use crate::compile::capture::{Compiled, Stance, compile, record_loop, stance};
use crate::tensor::tracer;
use crate::{DType, Result, Tensor, Var};
use kiln_ir::Source;
use std::fmt;
use std::sync::Arc;

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

/// What a step makes of the gates of inputs and states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Lstm,
    Gru,
}

impl Cell {
    fn gates(self) -> usize {
        if self == Cell::Lstm { 4 } else { 3 }
    }

    /// The next state; its first part is the output.
    fn step(self, input: &Tensor, own: &Tensor, state: &[Tensor]) -> Result<Vec<Tensor>> {
        if self == Cell::Lstm {
            let gates = input.add(own)?.chunk(4, -1)?;
            let (i, f) = (gates[0].sigmoid()?, gates[1].sigmoid()?);
            let cell = f.mul(&state[1])?.add(&i.mul(&gates[2].tanh()?)?)?;
            return Ok(vec![gates[3].sigmoid()?.mul(&cell.tanh()?)?, cell]);
        }
        let (input, own) = (input.chunk(3, -1)?, own.chunk(3, -1)?);
        let reset = input[0].add(&own[0])?.sigmoid()?;
        let update = input[1].add(&own[1])?.sigmoid()?;
        let new = input[2].add(&reset.mul(&own[2])?)?.tanh()?;
        Ok(vec![new.add(&update.mul(&state[0].sub(&new)?)?)?])
    }
}

/// Inputs, states, and the weights of every direction: those of inputs, those of states, and the biases of both.
type Given = (Tensor, Vec<Tensor>, Vec<Vec<Tensor>>);
type Whole = Box<dyn Fn(&Given) -> Result<(Tensor, Vec<Tensor>)> + Send + Sync>;

/// All layers as one function, for eager code. Copies of a module share its programs.
#[derive(Clone)]
struct Eager(Arc<Compiled<Whole, Given, (Tensor, Vec<Tensor>)>>);

impl fmt::Debug for Eager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Eager")
    }
}

/// Layers of one or two directions, with PyTorch's names.
#[derive(Debug, Clone)]
struct Layers {
    cell: Cell,
    hidden: usize,
    layers: Vec<Vec<Direction>>,
    eager: Eager,
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
    fn new(cell: Cell, input: usize, hidden: usize, layers: usize, both: bool) -> Result<Layers> {
        let directions = if both { 2 } else { 1 };
        let layer = |number: usize| {
            let input = if number == 0 { input } else { hidden * directions };
            (0..directions).map(|_| Direction::new(cell.gates(), input, hidden)).collect::<Result<Vec<_>>>()
        };
        let whole: Whole = Box::new(move |(x, states, weights)| run(cell, directions, x, states, weights));
        let eager = Eager(Arc::new(compile(whole)));
        Ok(Layers { cell, hidden, layers: (0..layers).map(layer).collect::<Result<_>>()?, eager })
    }

    fn count(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }

    /// Returns the outputs of the last layer and the last states of all, `[layers · directions, n, hidden]` for each part.
    #[track_caller]
    fn run(&self, x: &Tensor, states: Vec<Tensor>) -> Result<(Tensor, Vec<Tensor>)> {
        let of = |own: &Direction| [&own.weight_ih, &own.weight_hh, &own.bias_ih, &own.bias_hh].map(Var::get).to_vec();
        let weights: Vec<Vec<Tensor>> = self.layers.iter().flatten().map(of).collect();
        // Where nothing may be compiled now, eager code goes on step by step.
        if tracer::is_active() || stance() != Stance::Default {
            let directions = self.layers.first().map_or(1, Vec::len);
            return run(self.cell, directions, x, &states, &weights);
        }
        self.eager.0.call(&(x.clone(), states, weights))
    }

    fn zeros(&self, x: &Tensor) -> Result<Tensor> {
        Tensor::zeros((self.count(), x.size(0)?, self.hidden), x.dtype(), x.device())
    }
}

/// Runs all layers, of so many directions.
///
/// Where gates of inputs and states are only added up, so are their biases, before the steps; not those of 16 bits, whose sum would be rounded.
fn run(
    cell: Cell,
    directions: usize,
    x: &Tensor,
    states: &[Tensor],
    weights: &[Vec<Tensor>],
) -> Result<(Tensor, Vec<Tensor>)> {
    let mut x = x.clone();
    let mut last: Vec<Vec<Tensor>> = vec![Vec::new(); states.len()];
    for (layer, weights) in weights.chunks(directions).enumerate() {
        let mut outputs = Vec::with_capacity(directions);
        for (reverse, own) in weights.iter().enumerate() {
            let [weight_ih, weight, bias_ih, bias] = &own[..] else { continue };
            let adds = cell == Cell::Lstm && matches!(bias.dtype(), DType::F32 | DType::F64);
            let (bias, before) = if adds { (None, bias_ih.add(bias)?) } else { (Some(bias), bias_ih.clone()) };
            let gates = x.linear(weight_ih, Some(&before))?;
            let number = layer * directions + reverse;
            let state = states.iter().map(|part| part.select(0, number)).collect::<Result<Vec<Tensor>>>()?;
            let step = |gates: &Tensor, state: &[Tensor]| cell.step(gates, &state[0].linear(weight, bias)?, state);
            let (output, state) = steps(&gates, state, reverse == 1, &step)?;
            outputs.push(output);
            last.iter_mut().zip(state).for_each(|(last, part)| last.push(part));
        }
        x = if outputs.len() == 1 { outputs.swap_remove(0) } else { Tensor::cat(&outputs, -1)? };
    }
    let last = last.iter().map(|parts| Tensor::stack(parts, 0)).collect::<Result<_>>()?;
    Ok((x, last))
}

/// The next state of gates of inputs and a state.
type Step<'a> = &'a dyn Fn(&Tensor, &[Tensor]) -> Result<Vec<Tensor>>;

/// Runs the steps of one direction over gates `[n, steps, …]`. Returns the outputs of all, and the state after the last.
fn steps(gates: &Tensor, mut state: Vec<Tensor>, reverse: bool, step: Step<'_>) -> Result<(Tensor, Vec<Tensor>)> {
    let count = state.len();
    let mut turn = |tensors: &[Tensor]| {
        let (state, gates) = tensors.split_at(count);
        let mut next = step(&gates[0], state)?;
        next.push(next[0].clone());
        Ok(Some(next))
    };
    let over = gates.transpose(0, 1)?;
    let carried: Vec<&Tensor> = state.iter().collect();
    if let Some(mut all) = record_loop(&carried, &[&over], reverse, &mut turn, &Source::caller())?
        && let Some(outputs) = all.pop()
    {
        return Ok((outputs.transpose(0, 1)?, all));
    }
    let mut gates = gates.unbind(1)?;
    if reverse {
        gates.reverse();
    }
    let mut outputs = Vec::with_capacity(gates.len());
    for gates in &gates {
        state = step(gates, &state)?;
        outputs.push(state[0].clone());
    }
    if reverse {
        outputs.reverse();
    }
    Ok((Tensor::stack(&outputs, 1)?, state))
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
        Ok(Lstm { layers: Layers::new(Cell::Lstm, input, hidden, layers, false)? })
    }

    /// The same in both directions: outputs of both are side by side.
    #[track_caller]
    pub fn bidirectional(input: usize, hidden: usize, layers: usize) -> Result<Lstm> {
        Ok(Lstm { layers: Layers::new(Cell::Lstm, input, hidden, layers, true)? })
    }

    /// Outputs of the last layer, and the state after the last step. Without a state it begins at zero.
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&LstmState>) -> Result<(Tensor, LstmState)> {
        let _line = Source::scope();
        let states = match state {
            Some(LstmState { hidden, cell }) => vec![hidden.clone(), cell.clone()],
            None => vec![self.layers.zeros(x)?; 2],
        };
        let (y, mut last) = self.layers.run(x, states)?;
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
        Ok(Gru { layers: Layers::new(Cell::Gru, input, hidden, layers, false)? })
    }

    /// The same in both directions: outputs of both are side by side.
    #[track_caller]
    pub fn bidirectional(input: usize, hidden: usize, layers: usize) -> Result<Gru> {
        Ok(Gru { layers: Layers::new(Cell::Gru, input, hidden, layers, true)? })
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
        let (y, mut last) = self.layers.run(x, vec![first])?;
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
