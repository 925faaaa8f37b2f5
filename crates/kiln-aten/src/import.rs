//! ATen graph → Kiln graph, a call at a time.

use crate::call::{Context, Value};
use crate::graph::{Argument, AtenGraph, Call, Element, Meta};
use crate::layout::StoredAs;
use crate::{Error, ValueId, rows};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{Dim, Graph, TensorType};

/// Where an input of the graph comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFrom {
    /// An input of the ATen graph, by number.
    Given(usize),
    /// A number that the caller draws at each call, `i64`.
    Seed,
    /// The memory of an output, by number, with the strides of that output; it is overwritten and not read.
    Output(usize),
}

/// Where an output of the ATen graph comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFrom {
    /// It is this input, as it is after the call.
    Input(usize),
    /// It is the same tensor as an earlier output.
    Same(usize),
    /// Output `.0` of the graph, whose elements in row-major order are the memory of the tensor with the strides of its [`Meta`].
    Output(usize),
    /// Input `.0` of the graph, which is overwritten ([`InputFrom::Output`]).
    Written(usize),
}

/// A graph, and how it is called.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The graph. Outputs that update inputs come last.
    pub graph: Graph,
    /// Where its inputs come from.
    pub inputs: Vec<InputFrom>,
    /// The strides of each of its inputs, in elements of its dtype.
    pub strides: Vec<Vec<Dim>>,
    /// Where the outputs of the ATen graph come from.
    pub outputs: Vec<OutputFrom>,
    /// The inputs of the ATen graph that a call overwrites.
    pub updates: Vec<usize>,
}

/// Makes a Kiln graph of an ATen graph.
pub fn import(aten: &AtenGraph) -> Result<Imported, Error> {
    let mut walk = Walk::new(aten)?;
    for call in &aten.calls {
        walk.call(call)?;
    }
    walk.finish()
}

/// The calls that have no Kiln expression, by number, each with the reason. The others are imported with the results of these as
/// inputs.
pub fn unsupported(aten: &AtenGraph) -> Result<Vec<(usize, Error)>, Error> {
    let mut walk = Walk::new(aten)?;
    let mut found = Vec::new();
    for (number, call) in aten.calls.iter().enumerate() {
        if let Err(error) = walk.call(call) {
            found.push((number, error));
            for &result in call.results.iter().flatten() {
                walk.context_input(result)?;
            }
        }
    }
    Ok(found)
}

struct Walk<'a> {
    aten: &'a AtenGraph,
    b: GraphBuilder,
    values: Vec<Option<Value>>,
    seed: Option<kiln_ir::NodeId>,
    draws: u32,
    inputs: Vec<InputFrom>,
    strides: Vec<Vec<Dim>>,
    /// The new value of each updated input of the ATen graph.
    updates: Vec<(usize, Value)>,
}

/// The type of a tensor in a Kiln graph.
fn stored_type(meta: &Meta) -> TensorType {
    let parts = meta.element.complex.then(|| Dim::from(2));
    TensorType::new(meta.element.dtype, meta.shape.iter().cloned().chain(parts).collect::<Vec<Dim>>())
}

/// Its strides there.
fn stored_strides(meta: &Meta) -> Vec<Dim> {
    if !meta.element.complex {
        return meta.strides.clone();
    }
    meta.strides.iter().map(|stride| stride * 2).chain([Dim::from(1)]).collect()
}

impl<'a> Walk<'a> {
    fn new(aten: &'a AtenGraph) -> Result<Walk<'a>, Error> {
        let mut walk = Walk {
            aten,
            b: GraphBuilder::new(),
            values: vec![None; aten.values.len()],
            seed: None,
            draws: 0,
            inputs: Vec::new(),
            strides: Vec::new(),
            updates: Vec::new(),
        };
        for (number, &input) in aten.inputs.iter().enumerate() {
            walk.context_input(input)?;
            walk.inputs.push(InputFrom::Given(number));
            walk.strides.push(stored_strides(aten.meta(input)));
        }
        Ok(walk)
    }

    fn context_input(&mut self, id: ValueId) -> Result<(), Error> {
        let meta = self.aten.values.get(id.index()).ok_or(Error::NoSuchValue { value: id.0 })?;
        let node = self.b.input(stored_type(meta))?;
        self.values[id.index()] = Some(Value { id: node, complex: meta.element.complex });
        Ok(())
    }

    /// The results of a call's row.
    fn results(&mut self, call: &'a Call) -> Result<Vec<Value>, Error> {
        let row =
            rows::find(&call.op).ok_or_else(|| Error::UnknownOp { op: call.op.clone(), at: call.source.clone() })?;
        self.check_storage(call)?;
        self.b.set_source(Some(call.source.clone()));
        let mut context = Context {
            b: std::mem::take(&mut self.b),
            values: std::mem::take(&mut self.values),
            metas: &self.aten.values,
            call,
            seed: self.seed,
            draws: self.draws,
            draws_given: 0,
        };
        let results = (row.build)(&mut context).map_err(|error| error.in_op(&call.op));
        (self.b, self.values) = (context.b, context.values);
        (self.draws, self.seed) = (context.draws, context.seed);
        self.b.set_source(None);
        if self.seed.is_some() && !self.inputs.contains(&InputFrom::Seed) {
            self.inputs.push(InputFrom::Seed);
            self.strides.push(vec![]);
        }
        results
    }

    /// An error where an op would compute with numbers that Kiln only stores.
    fn check_storage(&self, call: &Call) -> Result<(), Error> {
        let mut elements = Vec::new();
        call.arguments.iter().for_each(|(_, argument)| self.elements_of(argument, &mut elements));
        elements.extend(call.results.iter().flatten().map(|id| self.aten.meta(*id).element));
        if elements.iter().any(|element| element.unsigned) && !rows::takes_storage(&call.op, &elements) {
            let (op, at) = (call.op.clone(), call.source.clone());
            return Err(Error::Unsupported { op, reason: "of whole numbers without a sign".into(), at });
        }
        Ok(())
    }

    fn elements_of(&self, argument: &Argument, elements: &mut Vec<Element>) {
        match argument {
            Argument::Tensor(id) => elements.extend(self.aten.values.get(id.index()).map(|meta| meta.element)),
            Argument::Element(element) => elements.push(*element),
            Argument::List(list) => list.iter().for_each(|item| self.elements_of(item, elements)),
            _ => {}
        }
    }

    fn call(&mut self, call: &'a Call) -> Result<(), Error> {
        let results = self.results(call)?;
        for (number, wanted) in call.results.iter().enumerate() {
            let Some(id) = wanted else { continue };
            let value = results.get(number).copied();
            self.values[id.index()] = Some(self.checked(call, number, *id, value)?);
        }
        self.update(call, &results)
    }

    /// A result, if it is what PyTorch found, with the sizes as PyTorch writes them: one size may have two expressions.
    fn checked(&mut self, call: &Call, result: usize, id: ValueId, value: Option<Value>) -> Result<Value, Error> {
        let meta = self.aten.values.get(id.index()).ok_or(Error::NoSuchValue { value: id.0 })?;
        let expected = stored_type(meta);
        let mismatch = |got: String| {
            let (op, expected, at) = (call.op.clone(), expected.to_string(), call.source.clone());
            Error::Mismatch { op, result, got, expected, at }
        };
        let mut value = value.ok_or_else(|| mismatch("missing".to_owned()))?;
        let got = self.b.graph().ty(value.id).clone();
        let differ = |(a, b): (&Dim, &Dim)| a != b && a.as_const().is_some() && b.as_const().is_some();
        let is_same = got.dtype == expected.dtype
            && value.complex == meta.element.complex
            && got.rank() == expected.rank()
            && !got.shape.iter().zip(&expected.shape).any(differ);
        if !is_same {
            let kind = match (value.complex, meta.element.complex) {
                (true, false) => "complex numbers as ",
                (false, true) => "real numbers as ",
                _ => "",
            };
            return Err(mismatch(format!("{kind}{got}")));
        }
        for (axis, (own, size)) in got.shape.iter().zip(&expected.shape).enumerate() {
            if own != size {
                value.id = build::narrow(&mut self.b, &value.id, axis, 0, size.clone())?;
            }
        }
        Ok(value)
    }

    /// A `copy_` into an input is the input's new value.
    fn update(&mut self, call: &Call, results: &[Value]) -> Result<(), Error> {
        if call.op != "aten.copy_.default" {
            return Ok(());
        }
        let target = call.arguments.iter().find(|(name, _)| name == "self").map(|(_, argument)| argument);
        let (Some(Argument::Tensor(target)), Some(&value)) = (target, results.first()) else { return Ok(()) };
        let Some(input) = self.aten.inputs.iter().position(|input| input == target) else {
            let (op, at) = (call.op.clone(), call.source.clone());
            return Err(Error::Unsupported { op, reason: "into what is no input of the graph".into(), at });
        };
        self.values[target.index()] = Some(value);
        match self.updates.iter_mut().find(|(known, _)| *known == input) {
            Some((_, new)) => *new = value,
            None => self.updates.push((input, value)),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Imported, Error> {
        let mut outputs: Vec<OutputFrom> = Vec::with_capacity(self.aten.outputs.len());
        let mut written = Vec::new();
        let mut count = 0;
        for (number, id) in self.aten.outputs.iter().enumerate() {
            let updated = |call: &Call| call.op == "aten.copy_.default" && call.results.first() == Some(&Some(*id));
            let copied =
                self.aten.calls.iter().find(|call| updated(call)).and_then(|call| match call.arguments.first() {
                    Some((_, Argument::Tensor(target))) => Some(*target),
                    _ => None,
                });
            let own = copied.unwrap_or(*id);
            let from = if let Some(input) = self.aten.inputs.iter().position(|input| *input == own) {
                OutputFrom::Input(input)
            } else if let Some(before) = self.aten.outputs[..number].iter().position(|before| before == id) {
                OutputFrom::Same(before)
            } else {
                self.output(number, *id, &mut written)?
            };
            if let OutputFrom::Output(_) = from {
                count += 1;
                outputs.push(OutputFrom::Output(count - 1));
            } else {
                outputs.push(from);
            }
        }
        for (node, input) in written {
            self.b.update(node, input);
        }
        let updates: Vec<usize> = self.updates.iter().map(|(input, _)| *input).collect();
        for (input, value) in &self.updates {
            self.b.update(value.id, *input);
        }
        let graph = self.b.finish();
        graph.verify()?;
        Ok(Imported { graph, inputs: self.inputs, strides: self.strides, outputs, updates })
    }

    /// Makes a value an output whose memory is as its strides say.
    fn output(
        &mut self,
        number: usize,
        id: ValueId,
        written: &mut Vec<(kiln_ir::NodeId, usize)>,
    ) -> Result<OutputFrom, Error> {
        let value = self.values.get(id.index()).copied().flatten().ok_or(Error::NoSuchValue { value: id.0 })?;
        let meta = self.aten.meta(id);
        match StoredAs::of(meta, &self.aten.hints) {
            StoredAs::Dense { order, repeated } => {
                let mut node = value.id;
                for axis in repeated {
                    node = build::narrow(&mut self.b, &node, axis, Dim::from(0), 1)?;
                }
                let parts = value.complex.then_some(order.len());
                let order: Vec<usize> = order.into_iter().chain(parts).collect();
                if !order.is_sorted() {
                    node = build::permute(&mut self.b, &node, &order)?;
                }
                self.b.output(node);
                Ok(OutputFrom::Output(0))
            }
            StoredAs::Strided => {
                let input = self.b.graph().inputs().len();
                self.b.input(stored_type(meta))?;
                self.inputs.push(InputFrom::Output(number));
                self.strides.push(stored_strides(meta));
                written.push((value.id, input));
                Ok(OutputFrom::Written(input))
            }
        }
    }
}

/// The results of a graph's last call, as outputs of a graph and whether each is of complex numbers. Nothing is compared with what
/// PyTorch found, so that the call may be one whose results nobody has described.
#[doc(hidden)]
pub fn last_call(aten: &AtenGraph) -> Result<(Graph, Vec<InputFrom>, Vec<bool>), Error> {
    let mut walk = Walk::new(aten)?;
    let Some((call, before)) = aten.calls.split_last() else { return Err(Error::NoSuchValue { value: 0 }) };
    before.iter().try_for_each(|call| walk.call(call))?;
    let results = walk.results(call)?;
    results.iter().for_each(|value| walk.b.output(value.id));
    Ok((walk.b.finish(), walk.inputs, results.iter().map(|value| value.complex).collect()))
}
