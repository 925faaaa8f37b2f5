//! Loops: a launch that launches the kernels of a body, turn after turn. Backends know nothing of it; between two turns a few addresses
//! change, and nothing is looked up or allocated. Nothing is waited for, either, but the bool of a loop until a condition fails, which the
//! host reads through the device's [`Memory`].
//!
//! The launches of a counted loop are known before it runs: [`Repeat::unroll`] lists them, so that a backend can record them with those
//! around the loop.

mod packed;

use crate::{Backend, Error, Executable, Keep, LaunchError, Memory, RawBuffer, kernel_cache};
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{Kernel, KernelBody, RepeatBody, TurnBuffer};
use packed::{Packed, PackedOperands};
use std::any::Any;
use std::sync::Arc;

/// The code of a loop.
pub(crate) struct Repeat {
    kernel: Arc<Kernel>,
    /// Of the launches of a turn.
    launches: Vec<Arc<dyn Executable>>,
    /// Of those where the predicate of a choice is false.
    otherwise: Vec<Arc<dyn Executable>>,
    /// Of the copies that are made if there is no turn.
    copies: Vec<Arc<dyn Executable>>,
    /// Where a condition is read.
    memory: Option<&'static dyn Memory>,
    /// Operands that turns read and do not change.
    packed: PackedOperands,
}

/// The code of a loop, and whether some of it was compiled now.
pub(crate) fn compile(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    body: &RepeatBody,
    label: &str,
    keep: Keep,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    let memory = backend.readable_memory();
    if (body.is_conditional || body.choice.is_some()) && memory.is_none() {
        let reason = "what runs depends on memory of the device, which the host cannot read".to_owned();
        return Err(Error::Compile { target: backend.target(), reason });
    }
    let mut fresh = false;
    let mut code = |kernel: &Kernel| {
        let (code, is_fresh) = kernel_cache::get_kept(backend, &Arc::new(kernel.clone()), label, keep)?;
        fresh |= is_fresh;
        Ok::<_, Error>(code)
    };
    let launches = body.launches.iter().map(|launch| code(&launch.kernel)).collect::<Result<_, _>>()?;
    let others = body.choice.iter().flat_map(|choice| &choice.otherwise);
    let otherwise = others.map(|launch| code(&launch.kernel)).collect::<Result<_, _>>()?;
    let copies = body.carried.iter().map(|carried| code(&carried.copy)).collect::<Result<_, _>>()?;
    let packed = PackedOperands::compile(backend, kernel, body, label, keep)?;
    Ok((Arc::new(Repeat { kernel: kernel.clone(), launches, otherwise, copies, memory, packed }), fresh))
}

/// A place in the arguments of the loop.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The argument.
    pub(crate) argument: usize,
    /// Bytes from its start.
    pub(crate) offset: usize,
}

impl Place {
    fn new(argument: usize, offset: isize, buffers: &[RawBuffer]) -> Result<Place, LaunchError> {
        let wrong = LaunchError::BadSize { value: offset as i64 };
        let offset = usize::try_from(offset).ok().filter(|&offset| offset <= buffers[argument].bytes).ok_or(wrong)?;
        Ok(Place { argument, offset })
    }

    /// What is there, if these are the arguments.
    pub(crate) fn of(self, buffers: &[RawBuffer]) -> RawBuffer {
        let RawBuffer { ptr, bytes } = buffers[self.argument];
        RawBuffer { ptr: ptr.wrapping_add(self.offset), bytes: bytes.saturating_sub(self.offset) }
    }
}

/// Where something is at a turn.
enum Position {
    /// At a place, and so many bytes further at each turn.
    Moving { first: Place, step: isize },
    /// Where the turn finds what is carried.
    Carried(usize),
    /// Where it leaves it.
    Next(usize),
}

/// Where what is carried is.
struct Carried {
    first: Place,
    /// After the last turn and every second one before it, and after the others.
    places: [Place; 2],
    /// Both are one, where it is before the first turn, too.
    is_in_place: bool,
}

/// A launch of an unrolled loop.
pub(crate) struct Unrolled {
    pub(crate) code: Arc<dyn Executable>,
    pub(crate) arguments: Vec<Place>,
    pub(crate) sizes: Vec<i64>,
}

/// Launches code with arguments at these places.
type LaunchTurn<'a> = &'a mut dyn FnMut(&Arc<dyn Executable>, &[Place], &[i64]) -> Result<(), LaunchError>;

/// The values of sizes at a launch.
struct Sizes<'a> {
    symbols: &'a [Symbol],
    values: &'a [i64],
}

impl Sizes<'_> {
    fn get(&self, dim: &Dim) -> Result<i64, LaunchError> {
        let value = |symbol: Symbol| {
            let at = self.symbols.iter().position(|known| *known == symbol)?;
            self.values.get(at).copied()
        };
        dim.as_const().or_else(|| dim.eval(&value)).ok_or(LaunchError::BadSize { value: -1 })
    }

    fn all(&self, dims: &[Dim]) -> Result<Vec<i64>, LaunchError> {
        dims.iter().map(|dim| self.get(dim)).collect()
    }

    /// So many elements, in bytes.
    fn bytes(&self, elements: &Dim, dtype: DType) -> Result<isize, LaunchError> {
        let elements = self.get(elements)?;
        let bits = elements.checked_mul(dtype.size_in_bits() as i64).ok_or(LaunchError::BadSize { value: elements })?;
        // An element that shares its byte with the one before has no address.
        if bits % 8 != 0 {
            return Err(LaunchError::BadSize { value: elements });
        }
        isize::try_from(bits / 8).map_err(|_| LaunchError::BadSize { value: elements })
    }
}

impl Repeat {
    /// The launches of a counted loop, with those of loops inside of it; nothing if it is not counted, or if there are more than `most`.
    pub(crate) fn unroll(
        &self,
        buffers: &[RawBuffer],
        sizes: &[i64],
        most: usize,
    ) -> Result<Option<Vec<Unrolled>>, LaunchError> {
        let mut list = Vec::new();
        let mut is_whole = true;
        let mut add = |code: &Arc<dyn Executable>, places: &[Place], sizes: &[i64]| {
            is_whole &= list.len() < most;
            if !is_whole {
                return Ok(());
            }
            let Some(inner) = code.as_any().and_then(|code| code.downcast_ref::<Repeat>()) else {
                list.push(Unrolled { code: code.clone(), arguments: places.to_vec(), sizes: sizes.to_vec() });
                return Ok(());
            };
            let arguments: Vec<RawBuffer> = places.iter().map(|place| place.of(buffers)).collect();
            let Some(inner) = inner.unroll(&arguments, sizes, most - list.len())? else {
                is_whole = false;
                return Ok(());
            };
            list.extend(inner.into_iter().map(|launch| {
                let around = |place: &Place| {
                    let Place { argument, offset } = places[place.argument];
                    Place { argument, offset: offset + place.offset }
                };
                Unrolled { arguments: launch.arguments.iter().map(around).collect(), ..launch }
            }));
            Ok(())
        };
        let KernelBody::Repeat(body) = &self.kernel.body else { return Ok(None) };
        // A loop of many turns is not gone through to find that it has too many launches.
        let turns = Sizes { symbols: &self.kernel.sizes, values: sizes }.get(&body.turns)?;
        if body.is_conditional || body.choice.is_some() || usize::try_from(turns).is_ok_and(|turns| turns > most) {
            return Ok(None);
        }
        self.run(buffers, sizes, None, &mut add)?;
        Ok(is_whole.then_some(list))
    }

    /// Whether the bool at a place is true, once the launches before have written it.
    fn is_true(&self, place: RawBuffer) -> Result<bool, LaunchError> {
        let mut read = [0];
        match self.memory.filter(|_| place.bytes > 0) {
            None => return Ok(false),
            // SAFETY: a byte of the host's memory, which launches before have written: they are done when they return.
            Some(memory) if memory.is_host() => read = [unsafe { place.ptr.read() }],
            // SAFETY: a byte of this memory.
            Some(memory) => unsafe { memory.copy_to_host(place.ptr, &mut read) }
                .map_err(|cause| LaunchError::Earlier { cause: Box::new(cause) })?,
        }
        Ok(read != [0])
    }

    /// Goes through the launches, turn after turn. Memory for packed operands is one more buffer.
    fn run(
        &self,
        buffers: &[RawBuffer],
        values: &[i64],
        packed: Option<&Packed<'_>>,
        launch: LaunchTurn<'_>,
    ) -> Result<(), LaunchError> {
        let KernelBody::Repeat(body) = &self.kernel.body else { return Ok(()) };
        let (expected, got) = (self.kernel.buffers.len() + usize::from(packed.is_some()), buffers.len());
        if got != expected {
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let sizes = Sizes { symbols: &self.kernel.sizes, values };
        let dtype = |buffer: usize| self.kernel.buffers[buffer].dtype;
        let at = |buffer: usize, offset: &Dim| Place::new(buffer, sizes.bytes(offset, dtype(buffer))?, buffers);
        let turns = sizes.get(&body.turns)?;
        let mut carried = Vec::with_capacity(body.carried.len());
        for own in &body.carried {
            let start = |argument: usize| Place { argument, offset: 0 };
            let places = [start(own.last), start(own.other)];
            carried.push(Carried { first: at(own.first, &own.offset)?, places, is_in_place: own.is_in_place() });
        }
        // Copies some of what is carried to where the result is.
        type From<'a> = &'a dyn Fn(&Carried) -> Option<Place>;
        let copy = |launch: LaunchTurn<'_>, from: From<'_>| -> Result<(), LaunchError> {
            for ((own, copy), carried) in body.carried.iter().zip(&self.copies).zip(&carried) {
                if let Some(from) = from(carried) {
                    launch(copy, &[from, carried.places[0]], &sizes.all(&own.sizes)?)?;
                }
            }
            Ok(())
        };
        // Where the turn of a number leaves what it carries on: the last one at the first of two places, if it is known which that is.
        let place_after = |turn: i64| if body.is_conditional { turn % 2 } else { (turns - 1 - turn) % 2 } as usize;
        let found = |carried: &Carried, turn: i64| match turn {
            0 => carried.first,
            turn => carried.places[place_after(turn - 1)],
        };
        let goes_on = |turn: i64| match (body.is_conditional, carried.last()) {
            (true, Some(condition)) => self.is_true(found(condition, turn).of(buffers)),
            _ => Ok(turn < turns),
        };
        if !goes_on(0)? {
            return copy(launch, &|carried| Some(carried.first));
        }
        copy(launch, &|carried| carried.is_in_place.then_some(carried.first))?;
        let mut positions = Vec::with_capacity(body.buffers.len());
        for place in &body.buffers {
            positions.push(match place {
                TurnBuffer::Whole { buffer, offset } => Position::Moving { first: at(*buffer, offset)?, step: 0 },
                TurnBuffer::Row { buffer, offset, stride } => {
                    let (first, step) = (at(*buffer, offset)?, sizes.bytes(stride, dtype(*buffer))?);
                    match body.reverse {
                        false => Position::Moving { first, step },
                        true => {
                            let last = first.offset as isize + step * (turns - 1) as isize;
                            Position::Moving { first: Place::new(*buffer, last, buffers)?, step: -step }
                        }
                    }
                }
                TurnBuffer::Carried(at) => Position::Carried(*at),
                TurnBuffer::Next(at) => Position::Next(*at),
            });
        }
        let (mut launches, mut codes) = (&body.launches, &self.launches);
        if let Some(choice) = &body.choice
            && !self.is_true(at(choice.predicate, &choice.offset)?.of(buffers))?
        {
            (launches, codes) = (&choice.otherwise, &self.otherwise);
        }
        let mut arguments: Vec<Place> = Vec::new();
        let step_sizes = launches.iter().map(|launch| sizes.all(&launch.sizes)).collect::<Result<Vec<_>, _>>()?;
        // Where the number of turns is not known, as many as make packing worth it say that there will be more.
        let packs_at = match body.is_conditional {
            true => packed::TURNS,
            false if turns >= packed::TURNS => 0,
            false => turns,
        };
        let mut turn = 0;
        loop {
            let place = |position: &Position| match position {
                Position::Moving { first: Place { argument, offset }, step } => {
                    Place { argument: *argument, offset: offset.saturating_add_signed(step * turn as isize) }
                }
                Position::Carried(at) => found(&carried[*at], turn),
                Position::Next(at) => carried[*at].places[place_after(turn)],
            };
            if let Some(packed) = packed.filter(|_| turn == packs_at) {
                // SAFETY: what is packed is there at every turn, and nothing of the loop writes it.
                unsafe { packed.pack(&|buffer| place(&positions[buffer]), buffers)? };
            }
            for (number, ((own, code), sizes)) in launches.iter().zip(codes).zip(&step_sizes).enumerate() {
                arguments.clear();
                arguments.extend(own.args.iter().map(|&arg| place(&positions[arg])));
                let mut code = code;
                if let Some((faster, argument, offset)) =
                    packed.filter(|_| turn >= packs_at).and_then(|packed| packed.of(number))
                {
                    arguments[argument] = Place { argument: buffers.len() - 1, offset };
                    code = faster;
                }
                launch(code, &arguments, sizes)?;
            }
            turn += 1;
            if !goes_on(turn)? {
                break;
            }
        }
        match place_after(turn - 1) {
            0 => Ok(()),
            _ => copy(launch, &|carried| (!carried.is_in_place).then_some(carried.places[1])),
        }
    }
}

impl Executable for Repeat {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_at(buffers, sizes, 0) }
    }

    unsafe fn launch_at(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        let mut arguments: Vec<RawBuffer> = Vec::new();
        let packed = self.packed.begin();
        let mut all = buffers.to_vec();
        all.extend(packed.memory());
        let is_packed = all.len() > buffers.len();
        self.run(&all, sizes, is_packed.then_some(&packed), &mut |code, places, sizes| {
            arguments.clear();
            arguments.extend(places.iter().map(|place| place.of(&all)));
            // SAFETY: rows of arguments that are as long as the loop has turns, temporaries of the body, and what is carried, of
            // which a turn reads one place and writes another: the schedule of the body is valid for each turn. A copy has as many points
            // as what it copies has elements.
            unsafe { code.launch_at(&arguments, sizes, site) }
        })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn code_bytes(&self) -> usize {
        0
    }

    fn disassembly(&self) -> Option<String> {
        let texts: Vec<String> =
            self.launches.iter().chain(&self.otherwise).filter_map(|code| code.disassembly()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    fn intermediate(&self) -> Option<String> {
        let texts: Vec<String> =
            self.launches.iter().chain(&self.otherwise).filter_map(|code| code.intermediate()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }
}
