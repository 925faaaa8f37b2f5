//! Calls on memory that somebody else owns: inputs and outputs are addresses, and nothing is counted or kept.

use super::{Frame, PinKey, Program};
use crate::event::{self, Category, Event};
use crate::sizing::Sizing;
use crate::{Device, Error, RawBuffer};
use kiln_ir::{DType, Symbol};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// An input given by its address, with sizes and strides as other libraries describe tensors.
#[derive(Debug, Clone, Copy)]
pub struct RawInput<'a> {
    /// The element at index zero; may be null for a tensor without elements.
    pub ptr: *mut u8,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: &'a [i64],
    /// Elements from one index of each axis to the next.
    pub strides: &'a [i64],
    /// Whether it is a number in memory of the host, of at most [`crate::MOST_BY_VALUE`] bytes, that the call copies to the
    /// program's device. Of no meaning where that is the host.
    pub is_value: bool,
}

/// Inputs of which most are where they were at an earlier call, as a model's weights are.
#[derive(Debug, Clone, Copy)]
pub struct PinnedRaw<'a> {
    /// Identifies the addresses and layouts of the pinned inputs; never used for others.
    pub key: PinKey,
    /// All inputs; what is said of those in `others` does not count.
    pub inputs: &'a [RawInput<'a>],
    /// The inputs that are not pinned, by number.
    pub others: &'a [(u32, RawInput<'a>)],
}

impl Program {
    /// The size symbols that [`Program::call_raw`] takes values of, in order.
    pub fn symbols(&self) -> impl ExactSizeIterator<Item = Symbol> {
        self.sizings.symbols()
    }

    /// Runs the program on memory of the caller. Inputs have the layouts that the program was built for; each output that updates
    /// no input is written to the address in `outputs`, in order, row-major; `symbols` are the values of [`Program::symbols`].
    /// Once the sizes are known a call allocates nothing.
    ///
    /// ```
    /// use kiln_ir::{DType, Graph};
    /// use kiln_kernels::{InputLayout, ScheduleOptions};
    /// use kiln_runtime::{Program, RawInput, ReferenceBackend};
    /// use std::sync::Arc;
    /// let graph = Graph::parse("graph(%0: f32[n]) {
    ///   %1: f32[n] = neg %0
    ///   return %1
    /// }").unwrap();
    /// let layout = InputLayout::contiguous(graph.ty(graph.inputs()[0]));
    /// let program = Program::build(&graph, &[layout], Arc::new(ReferenceBackend), &ScheduleOptions::default())?;
    /// let (mut x, mut y) = ([1f32, 2.0], [0f32; 2]);
    /// let x = RawInput { ptr: x.as_mut_ptr().cast(), dtype: DType::F32, shape: &[2], strides: &[1], is_value: false };
    /// // SAFETY: both are arrays of two elements.
    /// unsafe { program.call_raw(&[2], &[x], &[y.as_mut_ptr().cast()]) }?;
    /// assert_eq!(y, [-1.0, -2.0]);
    /// # Ok::<(), kiln_runtime::Error>(())
    /// ```
    ///
    /// # Safety
    /// Every address but those of values is one of the program's device. Inputs are valid for reading all their elements, inputs that are updated and
    /// outputs for writing all theirs until the launches are done; nothing else writes an input or accesses what is written
    /// meanwhile, and what is written overlaps nothing else.
    pub unsafe fn call_raw(&self, symbols: &[i64], inputs: &[RawInput<'_>], outputs: &[*mut u8]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call_at(symbols, inputs, None, outputs, false) }
    }

    /// The same with launches that are recorded, where the backend can do that: calls cost less if addresses are mostly those of the
    /// call before.
    ///
    /// # Safety
    /// As [`Program::call_raw`].
    pub unsafe fn replay_raw(
        &self,
        symbols: &[i64],
        inputs: &[RawInput<'_>],
        outputs: &[*mut u8],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call_at(symbols, inputs, None, outputs, true) }
    }

    /// [`Program::call_raw`], or [`Program::replay_raw`] if `recorded`, that looks at the pinned inputs only where no earlier call has
    /// put their addresses in place.
    ///
    /// # Safety
    /// As [`Program::call_raw`].
    pub unsafe fn call_pinned(
        &self,
        symbols: &[i64],
        inputs: PinnedRaw<'_>,
        outputs: &[*mut u8],
        recorded: bool,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call_at(symbols, inputs.inputs, Some(&inputs), outputs, recorded) }
    }

    unsafe fn call_at(
        &self,
        symbols: &[i64],
        inputs: &[RawInput<'_>],
        pinned: Option<&PinnedRaw<'_>>,
        outputs: &[*mut u8],
        recorded: bool,
    ) -> Result<(), Error> {
        let start = event::is_enabled(Category::Run).then(Instant::now);
        if inputs.len() != self.inputs.len() {
            return Err(Error::InputCount { expected: self.inputs.len(), got: inputs.len() });
        }
        let sizing = self.sizings.at(symbols, &self.inputs, &self.output_types, &self.schedule)?;
        // What the caller captures runs at any time: nobody else may use its memory.
        let captured = self.backend.is_captured();
        let mut frame = if captured { Frame::default() } else { self.take_frame(&sizing) };
        // SAFETY: the caller's promise.
        let outcome = unsafe { frame.run_raw(self, &sizing, inputs, pinned, outputs, recorded && !captured) };
        if captured {
            self.captured.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
            return outcome;
        }
        self.put_frame(frame);
        if let (Some(start), Ok(())) = (start, &outcome) {
            self.backend.synchronize()?;
            let launches = self.steps.len();
            event::emit(Category::Run, || Event::ProgramRun { launches, took: start.elapsed() });
        }
        outcome
    }

    /// The outputs that [`Program::call_raw`] writes, by number.
    pub fn written_outputs(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.schedule.outputs.len()).filter(|&output| self.is_written(output))
    }

    pub(super) fn is_written(&self, output: usize) -> bool {
        let buffer = self.schedule.outputs[output].index();
        self.schedule.buffers[buffer].role.input().is_none()
    }
}

impl Frame {
    /// Runs the program on addresses.
    ///
    /// # Safety
    /// As [`Program::call_raw`].
    unsafe fn run_raw(
        &mut self,
        program: &Program,
        sizing: &Arc<Sizing>,
        inputs: &[RawInput<'_>],
        pinned: Option<&PinnedRaw<'_>>,
        outputs: &[*mut u8],
        recorded: bool,
    ) -> Result<(), Error> {
        let known = self.prepare_raw(program, sizing, pinned.map(|pinned| pinned.key))?;
        if !known {
            for (input, given) in inputs.iter().enumerate() {
                if pinned.is_none_or(|pinned| !pinned.others.iter().any(|&(other, _)| other as usize == input)) {
                    // SAFETY: the caller's promise.
                    unsafe { self.put_given(program, sizing, input, given) }?;
                }
            }
        }
        for (input, given) in pinned.map_or(&[][..], |pinned| pinned.others) {
            // SAFETY: the caller's promise.
            unsafe { self.put_given(program, sizing, *input as usize, given) }?;
        }
        self.set_pinned(pinned.map(|pinned| pinned.key));
        self.send_values()?;
        if let Some(output) = program.written_outputs().nth(outputs.len()) {
            let needed = sizing.buffer_bytes[program.schedule.outputs[output].index()];
            return Err(Error::OutputTooSmall { output, needed, bytes: 0 });
        }
        let nothing = RawBuffer { ptr: self.scratch(), bytes: 0 };
        self.put_outputs(program, sizing, outputs, nothing);
        // SAFETY: inputs have the layouts that the kernels were made for, and the caller promises the rest.
        unsafe {
            match recorded && self.replay(program, sizing)? {
                true => Ok(()),
                false => self.launch_all(program, sizing),
            }
        }
    }

    /// Writes the address of an input, whose layout is compared with the program's.
    ///
    /// # Safety
    /// As [`Program::call_raw`].
    #[inline]
    unsafe fn put_given(
        &mut self,
        program: &Program,
        sizing: &Sizing,
        input: usize,
        given: &RawInput<'_>,
    ) -> Result<(), Error> {
        let raw = match sizing.expected(input, given) {
            Some(raw) => raw,
            None => {
                let nothing = RawBuffer { ptr: self.scratch(), bytes: 0 };
                let (Some(sized), Some(spec)) = (sizing.inputs.get(input), program.inputs.get(input)) else {
                    return Err(Error::InputCount { expected: program.inputs.len(), got: input + 1 });
                };
                sized.raw_at(input, given, spec, nothing)?
            }
        };
        match given.is_value && raw.bytes > 0 && program.device() != Device::Cpu {
            // SAFETY: the caller says that it can be read.
            true => unsafe { self.put_value(input, raw, program) },
            false => {
                self.put_address(input, raw);
                Ok(())
            }
        }
    }
}
