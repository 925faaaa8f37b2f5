//! Everything of a program that depends on sizes, worked out once for each set of sizes it is called with.

use crate::program::{InputView, Inputs, RawInput, unbound};
use crate::{Buffer, Device, Error, Executable, RawBuffer, Variant};
use kiln_ir::{DType, Dim, Symbol, TensorType};
use kiln_kernels::InputLayout;
use kiln_kernels::schedule::{Role, Schedule};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// An input as the program was built for it.
#[derive(Clone)]
pub(crate) struct InputSpec {
    ty: TensorType,
    layout: InputLayout,
}

impl InputSpec {
    pub(crate) fn new(ty: &TensorType, layout: &InputLayout) -> InputSpec {
        InputSpec { ty: ty.clone(), layout: layout.clone() }
    }

    pub(crate) fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// True if no stride depends on a size that a call brings.
    pub(crate) fn layout_is_fixed(&self) -> bool {
        self.layout.strides.iter().chain([&self.layout.offset]).all(|dim| dim.as_const().is_some())
    }
}

/// A program at given sizes.
pub(crate) struct Sizing {
    /// Values of the program's symbols, in [`Sizings::symbols`]' order.
    values: Vec<i64>,
    expected: Expected,
    pub(crate) inputs: Vec<SizedInput>,
    pub(crate) output_shapes: Vec<Vec<usize>>,
    /// By buffer of the schedule.
    pub(crate) buffer_bytes: Vec<usize>,
    /// By step.
    pub(crate) step_sizes: Vec<Vec<i64>>,
    pub(crate) arena_bytes: usize,
    /// By buffer of the schedule; only temporaries have one.
    arena_offsets: Vec<usize>,
    compiled_variants: RwLock<Option<Arc<[CompiledVariant]>>>,
    /// How often `compiled_variants` has changed.
    generation: AtomicUsize,
}

/// A variant of a launch's kernel with its code.
#[derive(Clone)]
pub(crate) struct CompiledVariant {
    pub(crate) variant: Variant,
    pub(crate) code: Arc<dyn Executable>,
}

/// The layouts of all inputs in little memory: a call on addresses compares hundreds of weights with theirs.
#[derive(Default)]
struct Expected {
    inputs: Vec<ExpectedInput>,
    /// Sizes, then strides, of one input after the other. The stride of an axis with fewer than two elements is [`ANY`].
    numbers: Vec<i64>,
}

/// A stride that does not matter.
const ANY: i64 = i64::MIN;

struct ExpectedInput {
    /// Where its numbers begin.
    start: u32,
    rank: u16,
    dtype: DType,
    /// Bytes before the element at index zero, and of all memory.
    back: usize,
    bytes: usize,
}

/// An input at given sizes.
pub(crate) struct SizedInput {
    shape: Vec<usize>,
    strides: Vec<isize>,
    /// Place of the element at index zero, from the address that kernels get.
    first: isize,
    /// Smallest and largest place, relative to the first element; `None` without elements.
    reach: Option<(isize, isize)>,
    bits: usize,
    dtype: DType,
}

/// A symbol, and where its value is found.
struct Bound {
    symbol: Symbol,
    /// The axis of an input that has its value; without one, only a caller who says what it is can run the program
    /// ([`crate::Program::call_raw`]).
    place: Option<Place>,
}

/// An axis of an input whose size is a multiple of a symbol.
#[derive(Clone, Copy)]
struct Place {
    input: usize,
    axis: usize,
    factor: i64,
}

impl Bound {
    /// The symbol that a size is a multiple of.
    fn of(size: &Dim, input: usize, axis: usize) -> Option<Bound> {
        size.as_multiple().map(|(symbol, factor)| Bound { symbol, place: Some(Place { input, axis, factor }) })
    }

    /// The value for these inputs, which are compared with the shapes that follow from it.
    fn value(&self, inputs: &dyn Inputs) -> Option<i64> {
        let Place { input, axis, factor } = self.place?;
        Some(*inputs.view(input).shape.get(axis)? as i64 / factor)
    }
}

/// The sizings of one program.
pub(crate) struct Sizings {
    symbols: Vec<Bound>,
    /// The only one, when no size is symbolic.
    fixed: Option<Arc<Sizing>>,
    /// Those of recent calls, the last one at the end.
    recent: Mutex<Vec<Arc<Sizing>>>,
}

/// Sizings kept a program.
const SIZINGS_KEPT: usize = 64;

impl Sizings {
    pub(crate) fn new(inputs: &[InputSpec], outputs: &[TensorType], schedule: &Schedule) -> Result<Sizings, Error> {
        let mut symbols: Vec<Bound> = Vec::new();
        for (input, spec) in inputs.iter().enumerate() {
            for (axis, size) in spec.ty.shape.iter().enumerate() {
                let is_new = |bound: &Bound| !symbols.iter().any(|known| known.symbol == bound.symbol);
                if let Some(bound) = Bound::of(size, input, axis).filter(is_new) {
                    symbols.push(bound);
                }
            }
        }
        let layouts = inputs.iter().flat_map(|spec| spec.layout.strides.iter().chain([&spec.layout.offset]));
        let types = inputs.iter().map(|spec| &spec.ty).chain(outputs).flat_map(|ty| &ty.shape);
        let buffers = schedule.buffers.iter().map(|decl| &decl.elements);
        let steps = schedule.steps.iter().flat_map(|step| &step.sizes);
        for size in types.chain(layouts).chain(buffers).chain(steps) {
            size.visit_symbols(&mut |symbol| {
                if !symbols.iter().any(|known| known.symbol == symbol) {
                    symbols.push(Bound { symbol, place: None });
                }
            });
        }
        let fixed = match symbols.is_empty() {
            true => Some(Arc::new(Sizing::new(vec![], &[], inputs, outputs, schedule)?)),
            false => None,
        };
        Ok(Sizings { symbols, fixed, recent: Mutex::default() })
    }

    /// The sizing for these inputs, which are checked against it.
    pub(crate) fn get(
        &self,
        specs: &[InputSpec],
        outputs: &[TensorType],
        schedule: &Schedule,
        views: &[InputView<'_>],
    ) -> Result<Arc<Sizing>, Error> {
        let sizing = match self.fixed(views.len(), specs)? {
            Some(sizing) => sizing.clone(),
            None => self.find(specs, outputs, schedule, &views)?,
        };
        for (input, ((view, spec), sized)) in views.iter().zip(specs).zip(&sizing.inputs).enumerate() {
            sized.check(input, view, spec)?;
        }
        Ok(sizing)
    }

    /// The only sizing, if there is one. Refuses another number of inputs than the program has.
    #[inline]
    pub(crate) fn fixed(&self, count: usize, specs: &[InputSpec]) -> Result<Option<&Arc<Sizing>>, Error> {
        if count != specs.len() {
            return Err(Error::InputCount { expected: specs.len(), got: count });
        }
        Ok(self.fixed.as_ref())
    }

    /// The values of the program's symbols for these inputs.
    pub(crate) fn values(&self, views: &[InputView<'_>]) -> Vec<(Symbol, i64)> {
        let value = |bound: &Bound| Some((bound.symbol, bound.value(&views)?));
        self.symbols.iter().filter_map(value).collect()
    }

    /// The sizing for these inputs, as many as the program has, which are not checked against it yet.
    pub(crate) fn find(
        &self,
        specs: &[InputSpec],
        outputs: &[TensorType],
        schedule: &Schedule,
        inputs: &dyn Inputs,
    ) -> Result<Arc<Sizing>, Error> {
        let matches =
            |sizing: &Arc<Sizing>| self.symbols.iter().zip(&sizing.values).all(|(s, v)| s.value(inputs) == Some(*v));
        {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = recent.iter().rev().find(|s| matches(s)) {
                return Ok(found.clone());
            }
        }
        let mut values = Vec::with_capacity(self.symbols.len());
        for bound in &self.symbols {
            let wrong = || match bound.place {
                Some(Place { input, .. }) => wrong_type(input, &inputs.view(input), &specs[input]),
                None => unbound(&Dim::from(bound.symbol)),
            };
            values.push(bound.value(inputs).ok_or_else(wrong)?);
        }
        self.add(values, specs, outputs, schedule)
    }

    /// The symbols, in the order of their values.
    pub(crate) fn symbols(&self) -> impl ExactSizeIterator<Item = Symbol> {
        self.symbols.iter().map(|bound| bound.symbol)
    }

    /// The sizing for these values of the symbols.
    pub(crate) fn at(
        &self,
        values: &[i64],
        specs: &[InputSpec],
        outputs: &[TensorType],
        schedule: &Schedule,
    ) -> Result<Arc<Sizing>, Error> {
        if let Some(fixed) = &self.fixed {
            return Ok(fixed.clone());
        }
        if let Some(bound) = self.symbols.get(values.len()) {
            return Err(unbound(&Dim::from(bound.symbol)));
        }
        let values = &values[..self.symbols.len()];
        {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = recent.iter().rev().find(|sizing| sizing.values == values) {
                return Ok(found.clone());
            }
        }
        self.add(values.to_vec(), specs, outputs, schedule)
    }

    fn add(
        &self,
        values: Vec<i64>,
        specs: &[InputSpec],
        outputs: &[TensorType],
        schedule: &Schedule,
    ) -> Result<Arc<Sizing>, Error> {
        let sizing = Arc::new(Sizing::new(values, &self.symbols, specs, outputs, schedule)?);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= SIZINGS_KEPT {
            recent.remove(0);
        }
        recent.push(sizing.clone());
        Ok(sizing)
    }
}

#[cold]
fn wrong_type(input: usize, view: &InputView<'_>, spec: &InputSpec) -> Error {
    let expected = Box::new(spec.ty.clone());
    Error::InputType { input, dtype: view.dtype, shape: view.shape.to_vec(), expected }
}

impl Sizing {
    fn new(
        values: Vec<i64>,
        symbols: &[Bound],
        inputs: &[InputSpec],
        outputs: &[TensorType],
        schedule: &Schedule,
    ) -> Result<Sizing, Error> {
        let value = |symbol: Symbol| symbols.iter().position(|s| s.symbol == symbol).map(|i| values[i]);
        let eval = |size: &Dim| size.eval(&value).ok_or_else(|| unbound(size));
        let size = |size: &Dim| usize::try_from(eval(size)?).map_err(|_| unbound(size));
        let shape = |ty: &TensorType| ty.shape.iter().map(size).collect::<Result<Vec<usize>, Error>>();

        let inputs = inputs
            .iter()
            .map(|spec| SizedInput::new(shape(&spec.ty)?, spec, &eval))
            .collect::<Result<Vec<_>, Error>>()?;
        let output_shapes = outputs.iter().map(shape).collect::<Result<Vec<_>, Error>>()?;
        let mut buffer_bytes = Vec::with_capacity(schedule.buffers.len());
        for decl in &schedule.buffers {
            buffer_bytes.push(decl.dtype.bytes_for(size(&decl.elements)?).ok_or_else(|| unbound(&decl.elements))?);
        }
        let mut step_sizes = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            step_sizes.push(step.sizes.iter().map(eval).collect::<Result<Vec<i64>, Error>>()?);
        }
        let plan = kiln_kernels::plan(schedule, &value).map_err(|cause| Error::Schedule { cause: Box::new(cause) })?;
        let offset = |index: usize| match schedule.buffers[index].role {
            Role::Temp => plan.offsets.get(index).copied().flatten().unwrap_or(0),
            _ => 0,
        };
        let arena_offsets = (0..schedule.buffers.len()).map(offset).collect();
        let arena_bytes = plan.arena_bytes;
        let expected = Expected::new(&inputs);
        let (compiled_variants, generation) = (RwLock::default(), AtomicUsize::new(0));
        Ok(Sizing {
            values,
            expected,
            inputs,
            output_shapes,
            buffer_bytes,
            step_sizes,
            arena_bytes,
            arena_offsets,
            compiled_variants,
            generation,
        })
    }

    /// The memory of an input given by its address, if it is as the program expects it, which it is as a rule.
    #[inline]
    pub(crate) fn expected(&self, input: usize, given: &RawInput<'_>) -> Option<RawBuffer> {
        self.expected.find(input, given)
    }

    /// How each launch is run at these sizes, where that was tuned.
    pub(crate) fn compiled_variants(&self) -> Option<Arc<[CompiledVariant]>> {
        self.compiled_variants.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes how launches are run at these sizes.
    pub(crate) fn set_compiled_variants(&self, compiled_variants: Arc<[CompiledVariant]>) {
        *self.compiled_variants.write().unwrap_or_else(PoisonError::into_inner) = Some(compiled_variants);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// How often that has changed.
    pub(crate) fn generation(&self) -> usize {
        self.generation.load(Ordering::Acquire)
    }

    /// A temporary's place in the arena.
    pub(crate) fn temp(&self, buffer: usize, arena: &Buffer) -> Result<RawBuffer, Error> {
        let (offset, bytes) = (self.arena_offsets[buffer], self.buffer_bytes[buffer]);
        if offset.checked_add(bytes).is_none_or(|end| end > arena.bytes_len()) {
            return Err(Error::BrokenSchedule { buffer });
        }
        // SAFETY: the range is inside the arena.
        Ok(RawBuffer { ptr: unsafe { arena.ptr().add(offset) }, bytes })
    }
}

impl Expected {
    fn new(inputs: &[SizedInput]) -> Expected {
        let mut expected = Expected::default();
        for input in inputs {
            let start = expected.numbers.len() as u32;
            let stride = |(&size, &stride): (&usize, &isize)| if size < 2 { ANY } else { stride as i64 };
            expected.numbers.extend(input.shape.iter().map(|&size| size as i64));
            expected.numbers.extend(input.shape.iter().zip(&input.strides).map(stride));
            let is_whole = input.shape.len() == input.strides.len() && input.reach.is_some();
            let extent = input.extent().filter(|_| is_whole);
            let (back, bytes) = extent.unwrap_or_default();
            // No tensor has that rank: what is not as usual is looked at by `raw_at`.
            let rank = if extent.is_some() { input.shape.len() as u16 } else { u16::MAX };
            expected.inputs.push(ExpectedInput { start, rank, dtype: input.dtype, back, bytes });
        }
        expected
    }

    #[inline]
    fn find(&self, input: usize, given: &RawInput<'_>) -> Option<RawBuffer> {
        let expected = self.inputs.get(input)?;
        let rank = usize::from(expected.rank);
        if given.shape.len() != rank || given.strides.len() != rank || given.dtype != expected.dtype {
            return None;
        }
        let numbers = self.numbers.get(expected.start as usize..)?.get(..2 * rank)?;
        let mut same = true;
        for axis in 0..rank {
            let stride = numbers[rank + axis];
            same &= given.shape[axis] == numbers[axis] && (given.strides[axis] == stride || stride == ANY);
        }
        same.then(|| RawBuffer { ptr: given.ptr.wrapping_sub(expected.back), bytes: expected.bytes })
    }
}

impl SizedInput {
    /// Bytes before the element at index zero and of all memory, as far as there are elements that an address can be given of.
    fn extent(&self) -> Option<(usize, usize)> {
        let (low, high) = self.reach?;
        self.first.checked_add(low).filter(|&start| start >= 0)?;
        let end = (self.first + high + 1) as usize * self.bits;
        Some((self.first as usize * self.bits / 8, end.div_ceil(8)))
    }

    fn new(
        shape: Vec<usize>,
        spec: &InputSpec,
        eval: &dyn Fn(&Dim) -> Result<i64, Error>,
    ) -> Result<SizedInput, Error> {
        let wide = |dim: &Dim| isize::try_from(eval(dim)?).map_err(|_| unbound(dim));
        let strides = spec.layout.strides.iter().map(wide).collect::<Result<Vec<isize>, Error>>()?;
        let first = wide(&spec.layout.offset)?;
        let mut reach = Some((0isize, 0isize));
        for (axis, (&size, &stride)) in shape.iter().zip(&strides).enumerate() {
            let too_far = || unbound(&spec.layout.strides[axis]);
            reach = match (reach, isize::try_from(size).map_err(|_| too_far())?) {
                (None, _) | (_, 0) => None,
                (Some((low, high)), size) => {
                    let last = stride.checked_mul(size - 1).ok_or_else(too_far)?;
                    let low = low.checked_add(last.min(0)).ok_or_else(too_far)?;
                    Some((low, high.checked_add(last.max(0)).ok_or_else(too_far)?))
                }
            };
        }
        let dtype = spec.ty.dtype;
        Ok(SizedInput { shape, strides, first, reach, bits: dtype.size_in_bits(), dtype })
    }

    /// An input of constant sizes and strides.
    pub(crate) fn fixed(spec: &InputSpec) -> Result<SizedInput, Error> {
        let eval = |dim: &Dim| dim.as_const().ok_or_else(|| unbound(dim));
        let size = |dim: &Dim| usize::try_from(eval(dim)?).map_err(|_| unbound(dim));
        let shape = spec.ty.shape.iter().map(size).collect::<Result<Vec<usize>, Error>>()?;
        SizedInput::new(shape, spec, &eval)
    }

    /// Whether an input has the dtype, the sizes and the strides that the program was built for.
    pub(crate) fn check(&self, input: usize, view: &InputView<'_>, spec: &InputSpec) -> Result<(), Error> {
        let (rank, mut sizes) = (self.shape.len(), view.shape.iter().zip(&self.shape));
        // A few numbers: comparing them here is cheaper than a call that compares memory.
        if view.dtype != spec.ty.dtype || view.shape.len() != rank || sizes.any(|(given, own)| given != own) {
            return Err(wrong_type(input, view, spec));
        }
        let mut strides = view.strides.iter().zip(&self.strides).zip(&self.shape);
        let same = view.strides.len() >= rank && strides.all(|((given, own), size)| given == own || *size < 2);
        if self.reach.is_some() && !same {
            let expected: Vec<String> = spec.layout.strides.iter().map(Dim::to_string).collect();
            let (strides, expected) = (view.strides.to_vec(), expected.join(", "));
            return Err(Error::InputStrides { input, strides, expected });
        }
        Ok(())
    }

    /// The memory of an input given by its address, if it has the dtype, the sizes and the strides that the program was built for;
    /// `nothing` for one without elements.
    pub(crate) fn raw_at(
        &self,
        input: usize,
        given: &RawInput<'_>,
        spec: &InputSpec,
        nothing: RawBuffer,
    ) -> Result<RawBuffer, Error> {
        let rank = self.shape.len();
        let mut sizes = given.shape.iter().zip(&self.shape);
        if given.dtype != spec.ty.dtype || given.shape.len() != rank || sizes.any(|(given, own)| *given != *own as i64)
        {
            let shape = given.shape.iter().map(|&n| n as usize).collect();
            return Err(Error::InputType { input, dtype: given.dtype, shape, expected: Box::new(spec.ty.clone()) });
        }
        if self.reach.is_none() {
            return Ok(nothing);
        }
        let mut strides = given.strides.iter().zip(&self.strides).zip(&self.shape);
        let same = |((given, own), size): ((&i64, &isize), &usize)| *given == *own as i64 || *size < 2;
        if given.strides.len() < rank || !strides.all(same) {
            let expected: Vec<String> = spec.layout.strides.iter().map(Dim::to_string).collect();
            let strides = given.strides.iter().map(|&n| n as isize).collect();
            return Err(Error::InputStrides { input, strides, expected: expected.join(", ") });
        }
        // The memory that kernels may touch reaches from its lowest element, at or before which `first` begins, to its highest.
        let outside = || Error::InputOutsideBuffer { input, bytes: 0 };
        let (back, bytes) = self.extent().ok_or_else(outside)?;
        Ok(RawBuffer { ptr: given.ptr.wrapping_sub(back), bytes })
    }

    /// The memory as passed to kernels, once it is known to hold every element.
    pub(crate) fn raw(&self, input: usize, view: &InputView<'_>, device: Device) -> Result<RawBuffer, Error> {
        let buffer = view.buffer;
        if buffer.device() != device {
            return Err(Error::WrongDevice { what: "input", index: input, device: buffer.device(), expected: device });
        }
        let Some((low, high)) = self.reach else {
            return Ok(RawBuffer { ptr: buffer.ptr(), bytes: buffer.bytes_len() });
        };
        let bytes = buffer.bytes_len();
        let outside = || Error::InputOutsideBuffer { input, bytes };
        let offset = isize::try_from(view.offset).map_err(|_| outside())?;
        let end = |place: isize| usize::try_from(place).ok()?.checked_add(1)?.checked_mul(self.bits);
        let inside = |place: Option<isize>| place.and_then(end).is_some_and(|end| end <= bytes * 8);
        if !inside(offset.checked_add(low)) || !inside(offset.checked_add(high)) {
            return Err(outside());
        }
        let start = offset.checked_sub(self.first).filter(|&s| s >= 0).ok_or_else(outside)? as usize * self.bits;
        if !start.is_multiple_of(8) {
            return Err(outside());
        }
        // SAFETY: `start` is at or below the buffer's end.
        Ok(RawBuffer { ptr: unsafe { buffer.ptr().add(start / 8) }, bytes: bytes - start / 8 })
    }
}
