//! Operands that a loop does not change, in the layout that its kernels read fastest: packed once before the turns, where the turns are
//! many enough.

use super::Place;
use crate::program::raw;
use crate::{Backend, Buffer, Error, Executable, HostMemory, Keep, LaunchError, RawBuffer, Variant, kernel_cache};
use kiln_kernels::kernel::{Access, Kernel, RepeatBody, TurnBuffer, TurnLaunch};
use std::sync::{Arc, Mutex, PoisonError};

/// Turns from which packing pays: it takes less time than a turn gains by it, a few times over.
pub(super) const TURNS: i64 = 4;

/// The packed operands of a loop.
#[derive(Default)]
pub(super) struct PackedOperands {
    operands: Vec<PackedOperand>,
    /// Bytes of all of them.
    bytes: usize,
    /// Memory of a launch before, so that the next takes none.
    spare: Mutex<Option<Buffer>>,
}

/// One operand of one launch.
struct PackedOperand {
    /// The launch of a turn, and its argument.
    launch: usize,
    argument: usize,
    /// What is packed, by its number among [`RepeatBody::buffers`].
    from: usize,
    /// Where it goes, in bytes from the start of the memory, and how many bytes it is.
    offset: usize,
    bytes: usize,
    key: String,
    pack: Arc<dyn Executable>,
    /// The code of the launch that reads it.
    code: Arc<dyn Executable>,
}

/// Memory for the packed operands of one launch of the loop.
pub(super) struct Packed<'a> {
    operands: &'a PackedOperands,
    memory: Option<Buffer>,
}

impl PackedOperands {
    /// Requests packings from the backend, for what no launch of a turn writes. Only memory of the host is packed here.
    pub(super) fn compile(
        backend: &dyn Backend,
        kernel: &Kernel,
        body: &RepeatBody,
        label: &str,
        keep: Keep,
    ) -> Result<PackedOperands, Error> {
        let mut packed = PackedOperands::default();
        if body.choice.is_some() || !backend.readable_memory().is_some_and(|memory| memory.is_host()) {
            return Ok(packed);
        }
        for (number, launch) in body.launches.iter().enumerate() {
            let is_unchanged = |&argument: &usize| match &body.buffers[launch.args[argument]] {
                TurnBuffer::Whole { buffer, .. } => {
                    let once = launch.args.iter().filter(|&&arg| arg == launch.args[argument]).count() == 1;
                    once && kernel.buffers[*buffer].access == Access::Read
                }
                _ => false,
            };
            for argument in (0..launch.args.len()).filter(is_unchanged) {
                if launch.kernel.buffers[argument].access != Access::Read {
                    continue;
                }
                // Code reads one packed operand.
                if packed.add(backend, (number, launch, argument), label, keep)? {
                    break;
                }
            }
        }
        Ok(packed)
    }

    fn add(
        &mut self,
        backend: &dyn Backend,
        (number, launch, argument): (usize, &TurnLaunch, usize),
        label: &str,
        keep: Keep,
    ) -> Result<bool, Error> {
        let packing = backend.packing(&launch.kernel, argument);
        let Some(packing) = packing.filter(|packing| packing.pays_in_turns) else {
            return Ok(false);
        };
        let variant = Variant { packed: vec![(argument, packing.key.clone())], choices: String::new() };
        let (code, _) = kernel_cache::get_variant(backend, &Arc::new(launch.kernel.clone()), &variant, label, keep)?;
        let from = launch.args[argument];
        // Launches that read the same one share it.
        let known = self.operands.iter().find(|known| known.from == from && known.key == packing.key);
        let (offset, bytes, pack) = match known {
            Some(known) => (known.offset, 0, known.pack.clone()),
            None => (self.bytes, packing.bytes, backend.compile_packing(&launch.kernel, &packing)?),
        };
        self.bytes += bytes.next_multiple_of(crate::ALIGNMENT);
        self.operands.push(PackedOperand {
            launch: number,
            argument,
            from,
            offset,
            bytes,
            key: packing.key,
            pack,
            code,
        });
        Ok(true)
    }

    /// Memory for one launch of the loop; nothing is packed without.
    pub(super) fn begin(&self) -> Packed<'_> {
        if self.operands.is_empty() {
            return Packed { operands: self, memory: None };
        }
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        let memory = spare.or_else(|| HostMemory::allocate(self.bytes).ok());
        Packed { operands: self, memory }
    }
}

impl Packed<'_> {
    /// The memory, as the last argument of the loop.
    pub(super) fn memory(&self) -> Option<RawBuffer> {
        self.memory.as_ref().map(raw)
    }

    /// Packs all operands. `place` says where each buffer of a turn is, `buffers` are the arguments of the loop, the memory the last of
    /// them.
    ///
    /// # Safety
    /// As for a launch of the loop.
    pub(super) unsafe fn pack(&self, place: &dyn Fn(usize) -> Place, buffers: &[RawBuffer]) -> Result<(), LaunchError> {
        for operand in self.operands.operands.iter().filter(|operand| operand.bytes > 0) {
            let to = Place { argument: buffers.len() - 1, offset: operand.offset }.of(buffers);
            // SAFETY: the operand as the launches of a turn get it, and memory of the size that the backend requested.
            unsafe { operand.pack.launch(&[place(operand.from).of(buffers), to], &[])? };
        }
        Ok(())
    }

    /// The code of a launch of a turn that reads a packed operand, its argument, and where that is in the memory.
    pub(super) fn of(&self, launch: usize) -> Option<(&Arc<dyn Executable>, usize, usize)> {
        let operand = self.operands.operands.iter().find(|operand| operand.launch == launch)?;
        Some((&operand.code, operand.argument, operand.offset))
    }
}

impl Drop for Packed<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.operands.spare.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(memory);
        }
    }
}
