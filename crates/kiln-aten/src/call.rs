//! What an expression is written in: the arguments of a call, and the graph under construction.

use crate::graph::{Argument, Call, Element, Meta};
use crate::promote::{as_float, common, promote};
use crate::{Error, ValueId};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{DType, Dim, NodeId, Scalar, TensorType};

/// A tensor in the graph. One of complex numbers has a last axis of 2 that PyTorch does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The node.
    pub id: NodeId,
    /// Whether its elements are complex numbers.
    pub complex: bool,
}

/// A real tensor.
pub(crate) fn real(id: NodeId) -> Value {
    Value { id, complex: false }
}

/// What an expression gives.
pub type Results = Result<Vec<Value>, Error>;

/// One real tensor.
pub(crate) fn one(id: NodeId) -> Results {
    Ok(vec![real(id)])
}

/// The arguments of a call, and the graph.
pub struct Context<'a> {
    /// The graph so far.
    pub b: GraphBuilder,
    /// The values of the ATen graph that are there.
    pub(crate) values: Vec<Option<Value>>,
    /// What PyTorch knows of them.
    pub(crate) metas: &'a [Meta],
    /// The call.
    pub(crate) call: &'a Call,
    /// The seed of random numbers, if an op before has asked for it.
    pub(crate) seed: Option<NodeId>,
    /// Draws from the seed so far.
    pub(crate) draws: u32,
    /// Draws of this call from a seed that it was given.
    pub(crate) draws_given: u32,
}

/// Arguments that are no tensors.
impl<'a> Context<'a> {
    /// The op.
    pub fn op(&self) -> &'a str {
        &self.call.op
    }

    /// The middle of the op's name: `aten.sin.default` is sin.
    pub fn name(&self) -> &'a str {
        self.call.op.split('.').nth(1).unwrap_or_default()
    }

    /// An error that says why this call has no expression.
    pub fn unsupported<T>(&self, reason: impl Into<String>) -> Result<T, Error> {
        let (op, at) = (self.call.op.clone(), self.call.source.clone());
        Err(Error::Unsupported { op, reason: reason.into(), at })
    }

    fn wrong<T>(&self, name: &str, expected: &'static str) -> Result<T, Error> {
        let (op, name, at) = (self.call.op.clone(), name.to_owned(), self.call.source.clone());
        Err(Error::Argument { op, name, expected, at })
    }

    /// An argument; `None` where it was not given or is none.
    pub fn given(&self, name: &str) -> Option<&'a Argument> {
        let found = self.call.arguments.iter().find(|(own, _)| own == name).map(|(_, argument)| argument);
        found.filter(|argument| **argument != Argument::None)
    }

    fn whole(&self, name: &str, argument: &Argument) -> Result<i64, Error> {
        match argument {
            Argument::Int(value) => Ok(*value),
            Argument::Bool(value) => Ok(i64::from(*value)),
            Argument::Size(dim) => match dim.as_const() {
                Some(value) => Ok(value),
                None => self.unsupported(format!("with the symbolic {name} {dim}")),
            },
            Argument::Tensor(_) => self.wrong(name, "a number that is known before the call"),
            _ => self.wrong(name, "a whole number"),
        }
    }

    /// The node of a number that only the call tells: it is given as a tensor of one element.
    pub fn told_by_call(&self, name: &str) -> Result<Option<NodeId>, Error> {
        match self.given(name) {
            Some(Argument::Tensor(_)) => self.optional_node(name),
            _ => Ok(None),
        }
    }

    /// A number.
    pub fn float(&self, name: &str) -> Result<f64, Error> {
        self.optional_float(name)?.map_or_else(|| self.wrong(name, "a number"), Ok)
    }

    /// A number, if it was given.
    pub fn optional_float(&self, name: &str) -> Result<Option<f64>, Error> {
        match self.given(name) {
            None => Ok(None),
            Some(Argument::Float(value)) => Ok(Some(*value)),
            Some(other) => Ok(Some(self.whole(name, other)? as f64)),
        }
    }

    /// A number, or another one where it was not given.
    pub fn float_or(&self, name: &str, otherwise: f64) -> Result<f64, Error> {
        Ok(self.optional_float(name)?.unwrap_or(otherwise))
    }

    /// A list of numbers; empty where it was not given.
    pub fn floats(&self, name: &str) -> Result<Vec<f64>, Error> {
        let number = |argument: &Argument| match argument {
            Argument::Float(value) => Ok(*value),
            other => Ok(self.whole(name, other)? as f64),
        };
        match self.given(name) {
            None => Ok(vec![]),
            Some(Argument::List(list)) => list.iter().map(number).collect(),
            Some(single) => Ok(vec![number(single)?]),
        }
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Result<i64, Error> {
        self.optional_int(name)?.map_or_else(|| self.wrong(name, "a whole number"), Ok)
    }

    /// A whole number, if it was given.
    pub fn optional_int(&self, name: &str) -> Result<Option<i64>, Error> {
        self.given(name).map(|argument| self.whole(name, argument)).transpose()
    }

    /// A whole number, or another one where it was not given.
    pub fn int_or(&self, name: &str, otherwise: i64) -> Result<i64, Error> {
        Ok(self.optional_int(name)?.unwrap_or(otherwise))
    }

    /// A size or count.
    pub fn size(&self, name: &str) -> Result<usize, Error> {
        usize::try_from(self.int(name)?).or_else(|_| self.wrong(name, "a size"))
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.given(name) {
            Some(Argument::Bool(value)) => Ok(*value),
            Some(Argument::Int(value)) => Ok(*value != 0),
            _ => self.wrong(name, "true or false"),
        }
    }

    /// True or false, or `otherwise` where it was not given.
    pub fn flag_or(&self, name: &str, otherwise: bool) -> Result<bool, Error> {
        if self.given(name).is_some() { self.flag(name) } else { Ok(otherwise) }
    }

    /// A list of whole numbers; empty where it was not given.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>, Error> {
        match self.given(name) {
            None => Ok(vec![]),
            Some(Argument::List(list)) => list.iter().map(|item| self.whole(name, item)).collect(),
            Some(single) => Ok(vec![self.whole(name, single)?]),
        }
    }

    /// A list of sizes that are constant.
    pub fn sizes(&self, name: &str) -> Result<Vec<usize>, Error> {
        let size = |n: i64| usize::try_from(n).or_else(|_| self.wrong(name, "a list of sizes"));
        self.ints(name)?.into_iter().map(size).collect()
    }

    fn dim_of(&self, name: &str, argument: &Argument) -> Result<Dim, Error> {
        match argument {
            Argument::Size(dim) => Ok(dim.clone()),
            other => Ok(Dim::from(self.whole(name, other)?)),
        }
    }

    /// A whole number that may be symbolic.
    pub fn dim(&self, name: &str) -> Result<Dim, Error> {
        self.optional_dim(name)?.map_or_else(|| self.wrong(name, "a whole number"), Ok)
    }

    /// A whole number that may be symbolic, if it was given.
    pub fn optional_dim(&self, name: &str) -> Result<Option<Dim>, Error> {
        self.given(name).map(|argument| self.dim_of(name, argument)).transpose()
    }

    /// A list of whole numbers that may be symbolic; empty where it was not given.
    pub fn dims(&self, name: &str) -> Result<Vec<Dim>, Error> {
        match self.given(name) {
            None => Ok(vec![]),
            Some(Argument::List(list)) => list.iter().map(|item| self.dim_of(name, item)).collect(),
            Some(single) => Ok(vec![self.dim_of(name, single)?]),
        }
    }

    /// A word, such as a mode.
    pub fn word(&self, name: &str) -> Result<Option<&'a str>, Error> {
        match self.given(name) {
            None => Ok(None),
            Some(Argument::Word(word)) => Ok(Some(word)),
            Some(_) => self.wrong(name, "a word"),
        }
    }

    /// An element type, if it was given.
    pub fn element(&self, name: &str) -> Result<Option<Element>, Error> {
        match self.given(name) {
            None => Ok(None),
            Some(Argument::Element(element)) => Ok(Some(*element)),
            Some(_) => self.wrong(name, "a dtype"),
        }
    }

    /// A dtype of real elements, if it was given.
    pub fn dtype(&self, name: &str) -> Result<Option<DType>, Error> {
        match self.element(name)? {
            Some(element) if element.complex => self.unsupported("of complex numbers"),
            element => Ok(element.map(|element| element.dtype)),
        }
    }

    /// The number of an argument, in the dtype that PyTorch gives it.
    pub fn number(&self, name: &str) -> Result<Scalar, Error> {
        match self.given(name) {
            Some(Argument::Bool(value)) => Ok(Scalar::bool(*value)),
            // Promotes as f32, but is not rounded to it before it meets an f64.
            Some(Argument::Float(value)) => Ok(Scalar::Float(DType::F32, *value)),
            Some(other) => Ok(Scalar::int(DType::I64, self.whole(name, other)?)),
            None => self.wrong(name, "a number"),
        }
    }

    /// The number of an argument in a dtype.
    pub fn scalar(&self, name: &str, dtype: DType) -> Result<Scalar, Error> {
        Ok(self.number(name)?.cast(dtype))
    }
}

/// Tensors.
impl Context<'_> {
    fn value(&self, id: ValueId) -> Result<Value, Error> {
        self.values.get(id.index()).copied().flatten().ok_or(Error::NoSuchValue { value: id.0 })
    }

    /// The tensor of an argument, if it was given.
    pub fn optional(&self, name: &str) -> Result<Option<Value>, Error> {
        match self.given(name) {
            Some(Argument::Tensor(id)) => self.value(*id).map(Some),
            _ => Ok(None),
        }
    }

    /// The tensor of an argument.
    pub fn tensor(&self, name: &str) -> Result<Value, Error> {
        self.optional(name)?.map_or_else(|| self.wrong(name, "a tensor"), Ok)
    }

    /// The node of an argument, which is real.
    pub fn node(&self, name: &str) -> Result<NodeId, Error> {
        self.real(self.tensor(name)?)
    }

    /// The node of an argument, if it was given.
    pub fn optional_node(&self, name: &str) -> Result<Option<NodeId>, Error> {
        self.optional(name)?.map(|value| self.real(value)).transpose()
    }

    fn real(&self, value: Value) -> Result<NodeId, Error> {
        if value.complex { self.unsupported("of complex numbers") } else { Ok(value.id) }
    }

    /// The members of a list of tensors.
    pub fn list(&self, name: &str) -> Result<Vec<Option<Value>>, Error> {
        let member = |argument: &Argument| match argument {
            Argument::Tensor(id) => self.value(*id).map(Some),
            Argument::None => Ok(None),
            _ => self.wrong(name, "a list of tensors"),
        };
        match self.given(name) {
            None => Ok(vec![]),
            Some(Argument::List(list)) => list.iter().map(member).collect(),
            Some(single) => Ok(vec![member(single)?]),
        }
    }

    /// What PyTorch knows of the tensor of an argument.
    pub fn meta(&self, name: &str) -> Result<&Meta, Error> {
        match self.given(name) {
            Some(Argument::Tensor(id)) => self.metas.get(id.index()).ok_or(Error::NoSuchValue { value: id.0 }),
            _ => self.wrong(name, "a tensor"),
        }
    }

    /// What PyTorch knows of the first result.
    pub fn result_meta(&self) -> Option<&Meta> {
        self.result_meta_at(0)
    }

    /// What PyTorch knows of a result; `None` where nobody reads it.
    pub fn result_meta_at(&self, number: usize) -> Option<&Meta> {
        self.metas.get(self.call.results.get(number).copied().flatten()?.index())
    }

    /// How many results the op has, whether or not they are read.
    pub fn result_count(&self) -> usize {
        self.call.results.len()
    }

    /// Results in the dtypes that PyTorch found, for ops that keep statistics of short floats now in f32, now as they are.
    pub fn as_traced(&mut self, results: &[NodeId]) -> Results {
        let mut cast = Vec::with_capacity(results.len());
        for (number, result) in results.iter().enumerate() {
            let id = self.call.results.get(number).copied().flatten();
            let dtype = id.and_then(|id| self.metas.get(id.index())).map(|meta| meta.element.dtype);
            let dtype = dtype.filter(|dtype| dtype.is_float()).unwrap_or(self.b.graph().ty(*result).dtype);
            cast.push(real(build::cast(&mut self.b, result, dtype)?));
        }
        Ok(cast)
    }

    /// Dtype and shape as PyTorch counts it: without the axis of the parts of complex numbers.
    pub fn ty(&self, value: Value) -> TensorType {
        let mut ty = self.b.graph().ty(value.id).clone();
        if value.complex {
            ty.shape.pop();
        }
        ty
    }

    /// Sizes as PyTorch counts them.
    pub fn shape(&self, value: Value) -> Vec<Dim> {
        self.ty(value).shape
    }

    /// The rank as PyTorch counts it.
    pub fn rank(&self, value: Value) -> usize {
        self.ty(value).rank()
    }

    /// An axis of a value, counted from its end if negative.
    pub fn axis(&self, value: Value, axis: i64) -> Result<usize, Error> {
        // PyTorch lets a scalar have axis 0.
        build::axis(self.rank(value).max(1), axis).map_or_else(|| self.unsupported(format!("along axis {axis}")), Ok)
    }

    /// A value, or of a scalar the vector of its one element, which PyTorch takes for it where an op goes along an axis.
    pub fn with_an_axis(&mut self, value: Value) -> Result<Value, Error> {
        if self.rank(value) > 0 {
            return Ok(value);
        }
        let shape = self.with_parts(value, &[Dim::from(1)]);
        Ok(Value { id: build::reshape(&mut self.b, &value.id, &shape)?, complex: value.complex })
    }

    /// The result of an op along an axis of [`Context::with_an_axis`]: of a scalar one element, which is a scalar again.
    pub fn without_it(&mut self, of: Value, result: NodeId) -> Result<NodeId, Error> {
        let shape = self.b.graph().ty(result).shape.clone();
        if self.rank(of) > 0 || shape.is_empty() {
            return Ok(result);
        }
        Ok(build::reshape(&mut self.b, &result, &[])?)
    }

    /// Axes of a value that are listed, none of an empty list.
    pub fn listed_axes(&self, value: Value, name: &str) -> Result<Vec<usize>, Error> {
        if self.ints(name)?.is_empty() { Ok(vec![]) } else { self.axes(value, name) }
    }

    /// Axes of a value; all of them where the list is empty or not given.
    pub fn axes(&self, value: Value, name: &str) -> Result<Vec<usize>, Error> {
        let axes = self.ints(name)?;
        if axes.is_empty() {
            return Ok((0..self.rank(value)).collect());
        }
        let axes = axes.into_iter().map(|axis| self.axis(value, axis)).collect::<Result<Vec<usize>, Error>>()?;
        Ok(if self.rank(value) == 0 { vec![] } else { axes })
    }

    /// A shape in which one size may be −1.
    pub fn target(&self, value: Value, name: &str) -> Result<Vec<Dim>, Error> {
        let mut sizes = self.dims(name)?;
        let unknown = sizes.iter().position(|size| size.as_const() == Some(-1));
        if let Some(at) = unknown {
            let known = sizes.iter().enumerate().filter(|(i, _)| *i != at);
            let known = known.fold(Dim::from(1), |product, (_, size)| product * size);
            let total = self.ty(value).elements();
            sizes[at] = match (known.is_zero(), total.div_exact(&known)) {
                (true, _) => Dim::from(0),
                (false, Some(size)) => size,
                (false, None) => match self.result_meta().and_then(|meta| meta.shape.get(at)) {
                    Some(size) => size.clone(),
                    None => total.floor_div(&known),
                },
            };
        }
        Ok(sizes)
    }

    /// A shape followed by the axis of the parts if a value is complex.
    pub fn with_parts(&self, value: Value, shape: &[Dim]) -> Vec<Dim> {
        shape.iter().cloned().chain(value.complex.then(|| Dim::from(2))).collect()
    }

    /// The dtype that PyTorch computes in for these arguments, tensors or numbers.
    pub fn promoted(&self, names: &[&str]) -> Result<DType, Error> {
        let (mut tensors, mut scalars, mut numbers) = (None, None, None);
        for name in names {
            let (class, dtype) = match (self.optional(name)?, self.given(name)) {
                (Some(value), _) if self.rank(value) > 0 => (&mut tensors, self.ty(value).dtype),
                (Some(value), _) => (&mut scalars, self.ty(value).dtype),
                (None, Some(Argument::Size(_))) => (&mut numbers, DType::I64),
                (None, _) => (&mut numbers, self.number(name)?.dtype()),
            };
            *class = Some(class.map_or(dtype, |before| common(before, dtype)));
        }
        promote(tensors, scalars, numbers).map_or_else(|| self.unsupported("without operands"), Ok)
    }

    /// An argument in a dtype, whether a tensor or a number.
    pub fn cast_to(&mut self, name: &str, dtype: DType) -> Result<NodeId, Error> {
        if let Some(value) = self.optional(name)? {
            let id = self.real(value)?;
            return Ok(build::cast(&mut self.b, &id, dtype)?);
        }
        if let Some(Argument::Size(dim)) = self.given(name)
            && dim.as_const().is_none()
        {
            return Ok(build::size_value(&mut self.b, dim, dtype)?);
        }
        let scalar = self.scalar(name, dtype)?;
        Ok(build::full(&mut self.b, scalar, &[])?)
    }

    /// Two arguments in the dtype that PyTorch computes in.
    pub fn pair(&mut self, x: &str, y: &str) -> Result<(NodeId, NodeId), Error> {
        let dtype = self.promoted(&[x, y])?;
        Ok((self.cast_to(x, dtype)?, self.cast_to(y, dtype)?))
    }

    /// Two factors, or a dividend and a divisor, whose result is of a dtype. PyTorch rounds a second one that is a number or a
    /// scalar to a short float only with the result; both are in f32 then.
    pub fn factors(&mut self, x: &str, y: &str, dtype: DType) -> Result<(NodeId, NodeId), Error> {
        let is_rounded = match self.optional(y)? {
            Some(value) => self.rank(value) == 0 && self.ty(value).dtype != dtype,
            None if matches!(self.given(y), Some(Argument::Size(_))) => true,
            None => self.number(y)?.cast(DType::F64) != self.scalar(y, dtype)?.cast(DType::F64),
        };
        let dtype = if dtype.is_float() && is_rounded { dtype.compute_type() } else { dtype };
        Ok((self.cast_to(x, dtype)?, self.cast_to(y, dtype)?))
    }

    /// An argument as a float: integers become f32.
    pub fn float_node(&mut self, name: &str) -> Result<NodeId, Error> {
        let dtype = self.promoted(&[name])?;
        self.cast_to(name, as_float(dtype))
    }

    /// The seed of random numbers, and the number of this draw from it. A call that has the arguments `kiln_seed` and `kiln_stream`
    /// draws from that seed from that number on, so that the same numbers can be drawn again.
    pub fn draw(&mut self) -> Result<(NodeId, u32), Error> {
        if let Some(seed) = self.optional_node("kiln_seed")? {
            let first = u32::try_from(self.int("kiln_stream")?);
            let Ok(first) = first else { return self.unsupported("of such a stream") };
            self.draws_given += 1;
            return Ok((seed, first + self.draws_given - 1));
        }
        let seed = match self.seed {
            Some(seed) => seed,
            None => *self.seed.insert(self.b.input(TensorType::fixed(DType::I64, &[]))?),
        };
        self.draws += 1;
        Ok((seed, self.draws - 1))
    }
}
