//! Loops: a launch that launches the kernels of a body, turn after turn. Backends know nothing of it; between two turns a few addresses
//! change, and nothing is looked up, allocated or waited for.

use crate::{Backend, Device, Error, Executable, Keep, LaunchError, RawBuffer, kernel_cache};
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{Kernel, RepeatBody, TurnBuffer};
use std::sync::Arc;

/// The code of a loop.
struct Repeat {
    kernel: Arc<Kernel>,
    /// Of the launches of a turn.
    launches: Vec<Arc<dyn Executable>>,
    /// Of the copies that are made if there is no turn.
    copies: Vec<Arc<dyn Executable>>,
}

/// The code of a loop, and whether some of it was compiled now.
pub(crate) fn compile(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    body: &RepeatBody,
    label: &str,
    keep: Keep,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    if body.is_conditional && backend.device() != Device::Cpu {
        let reason = "a loop until a condition fails, which the host looks at".to_owned();
        return Err(Error::Compile { target: backend.target(), reason });
    }
    let mut fresh = false;
    let mut code = |kernel: &Kernel| {
        let (code, is_fresh) = kernel_cache::get_kept(backend, &Arc::new(kernel.clone()), label, keep)?;
        fresh |= is_fresh;
        Ok::<_, Error>(code)
    };
    let launches = body.launches.iter().map(|launch| code(&launch.kernel)).collect::<Result<_, _>>()?;
    let copies = body.carried.iter().map(|carried| code(&carried.copy)).collect::<Result<_, _>>()?;
    Ok((Arc::new(Repeat { kernel: kernel.clone(), launches, copies }), fresh))
}

/// Where something is at a turn.
enum Position {
    /// At an address, and so many bytes further at each turn.
    Moving { first: RawBuffer, step: isize },
    /// Where the turn finds what is carried.
    Carried(usize),
    /// Where it leaves it.
    Next(usize),
}

/// Where what is carried is.
struct Carried {
    first: RawBuffer,
    /// After the last turn and every second one before it, and after the others.
    places: [RawBuffer; 2],
}

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
        isize::try_from(bits / 8).map_err(|_| LaunchError::BadSize { value: elements })
    }
}

/// What is so many bytes further.
fn after(buffer: RawBuffer, bytes: isize) -> Result<RawBuffer, LaunchError> {
    let wrong = LaunchError::BadSize { value: bytes as i64 };
    let start = usize::try_from(bytes).ok().filter(|&start| start <= buffer.bytes).ok_or(wrong)?;
    Ok(RawBuffer { ptr: buffer.ptr.wrapping_add(start), bytes: buffer.bytes - start })
}

impl Executable for Repeat {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_at(buffers, sizes, 0) }
    }

    unsafe fn launch_at(&self, buffers: &[RawBuffer], values: &[i64], site: u32) -> Result<(), LaunchError> {
        let kiln_kernels::kernel::KernelBody::Repeat(body) = &self.kernel.body else { return Ok(()) };
        if buffers.len() != self.kernel.buffers.len() {
            let (expected, got) = (self.kernel.buffers.len(), buffers.len());
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let sizes = Sizes { symbols: &self.kernel.sizes, values };
        let dtype = |buffer: usize| self.kernel.buffers[buffer].dtype;
        let turns = sizes.get(&body.turns)?;
        let mut carried = Vec::with_capacity(body.carried.len());
        for own in &body.carried {
            let first = after(buffers[own.first], sizes.bytes(&own.offset, dtype(own.first))?)?;
            carried.push(Carried { first, places: [buffers[own.last], buffers[own.other]] });
        }
        // Copies what is carried to where the result is.
        let copy = |from: &dyn Fn(&Carried) -> RawBuffer| -> Result<(), LaunchError> {
            for ((own, copy), carried) in body.carried.iter().zip(&self.copies).zip(&carried) {
                let arguments = [from(carried), carried.places[0]];
                // SAFETY: both have as many elements as the copy has points, and do not overlap.
                unsafe { copy.launch_at(&arguments, &sizes.all(&own.sizes)?, site)? };
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
            (true, Some(condition)) => {
                let place = found(condition, turn);
                // SAFETY: a bool of the host, which the turn before has written.
                place.bytes > 0 && unsafe { place.ptr.read() } != 0
            }
            _ => turn < turns,
        };
        if !goes_on(0) {
            return copy(&|carried| carried.first);
        }
        let mut positions = Vec::with_capacity(body.buffers.len());
        for place in &body.buffers {
            positions.push(match place {
                TurnBuffer::Whole { buffer, offset } => {
                    Position::Moving { first: after(buffers[*buffer], sizes.bytes(offset, dtype(*buffer))?)?, step: 0 }
                }
                TurnBuffer::Row { buffer, offset, stride } => {
                    let step = sizes.bytes(stride, dtype(*buffer))?;
                    let first = after(buffers[*buffer], sizes.bytes(offset, dtype(*buffer))?)?;
                    match body.reverse {
                        false => Position::Moving { first, step },
                        true => Position::Moving { first: after(first, step * (turns - 1) as isize)?, step: -step },
                    }
                }
                TurnBuffer::Carried(at) => Position::Carried(*at),
                TurnBuffer::Next(at) => Position::Next(*at),
            });
        }
        let mut arguments: Vec<RawBuffer> = Vec::new();
        let step_sizes = body.launches.iter().map(|launch| sizes.all(&launch.sizes)).collect::<Result<Vec<_>, _>>()?;
        let mut turn = 0;
        while goes_on(turn) {
            let address = |position: &Position| match position {
                Position::Moving { first, step } => {
                    let moved = step * turn as isize;
                    let bytes = first.bytes.saturating_add_signed(-moved);
                    RawBuffer { ptr: first.ptr.wrapping_offset(moved), bytes }
                }
                Position::Carried(at) => found(&carried[*at], turn),
                Position::Next(at) => carried[*at].places[place_after(turn)],
            };
            for ((launch, code), sizes) in body.launches.iter().zip(&self.launches).zip(&step_sizes) {
                arguments.clear();
                arguments.extend(launch.args.iter().map(|&arg| address(&positions[arg])));
                // SAFETY: rows of arguments that are as long as the loop has turns, temporaries of the body, and what is carried, of
                // which a turn reads one place and writes another: the schedule of the body is valid for each turn.
                unsafe { code.launch_at(&arguments, sizes, site)? };
            }
            turn += 1;
        }
        if place_after(turn - 1) == 0 { Ok(()) } else { copy(&|carried| carried.places[1]) }
    }

    fn code_bytes(&self) -> usize {
        0
    }

    fn disassembly(&self) -> Option<String> {
        let texts: Vec<String> = self.launches.iter().filter_map(|code| code.disassembly()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    fn intermediate(&self) -> Option<String> {
        let texts: Vec<String> = self.launches.iter().filter_map(|code| code.intermediate()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }
}
