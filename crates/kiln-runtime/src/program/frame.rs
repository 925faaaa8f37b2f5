//! A launch list with everything resolved that does not change from run to run: the arguments of all launches one after
//! another, temporaries and constants in place, and where inputs and outputs go.
//!
//! ```text
//!  arguments   | x  w  t0 | t0 c  t1 | t1 y |      launch 0 | launch 1 | launch 2
//!  inputs        ↑  ↑                        written by each run
//!  outputs                              ↑
//! ```
//!
//! Inputs that are given [by value](Buffer::by_value) have places in one small block of the frame, which a run fills with one copy before
//! its launches; their addresses stay the same from run to run.
//!
//! A run takes a frame that fits its sizes, writes the addresses of its inputs and outputs and launches; then the frame is
//! returned. Nothing is looked up by name and, with [`Program::replay`], nothing is allocated.

use super::idle::Counted;
use super::recorded::Recorded;
use super::{CompiledStep, InputView, Inputs, PinKey, Produced, Program, raw};
use crate::sizing::{CompiledVariant, Sizing};
use crate::{Buffer, Error, Executable, Launch, MOST_BY_VALUE, RawBuffer, Variant};
use kiln_ir::Source;
use kiln_kernels::schedule::Role;
use std::sync::Arc;

/// Frames kept per program: as many threads run it without allocating.
const FRAMES_KEPT: usize = 8;
/// Frames up to which sizes that have none get a new one, instead of one that other sizes have left.
const SIZES_KEPT: usize = 4;
/// The run at which launches are recorded.
const RECORDED_RUN: usize = 2;
/// Memory kept for one output of a frame, for callers that hold on to earlier results for a while.
const OUTPUTS_KEPT: usize = 4;

/// The state of a run besides inputs and outputs; kept from run to run.
#[derive(Default)]
pub(super) struct Frame {
    /// The sizes it is made for.
    sizing: Option<Arc<Sizing>>,
    /// The value of [`Sizing::generation`] then.
    generation: usize,
    /// The code of each launch.
    codes: Vec<Arc<dyn Executable>>,
    arena: Option<Buffer>,
    /// The arguments of all launches.
    arguments: Vec<RawBuffer>,
    /// Inputs and their positions in `arguments`, by input.
    input_places: Vec<(u32, u32)>,
    /// By input, the end of its positions.
    input_ends: Vec<u32>,
    /// The pinned inputs whose addresses are in place.
    pinned: Option<PinKey>,
    values: Values,
    /// Positions in `arguments` and the output whose address goes there.
    output_places: Vec<(u32, u32)>,
    /// By output, how many before it update no input.
    output_ranks: Vec<u32>,
    /// A list for the outputs of a run, empty between runs.
    pub(super) produced: Vec<Produced>,
    /// Memory of earlier outputs, by output.
    recycled: Vec<Vec<Buffer>>,
    /// All launches as one, where the backend can do that; made at the second run that recycles.
    recording: Option<Recorded>,
    /// Runs since it was bound.
    runs: usize,
    /// The bytes it was counted with when it was returned.
    pub(super) counted: Counted,
}

/// The inputs of a frame that are given by value.
#[derive(Default)]
struct Values {
    /// Memory of the device with a place for each input that may be one; made when the first is given.
    block: Option<Buffer>,
    /// What goes there: a place for each input of `inputs`.
    staged: Vec<u8>,
    /// The inputs that have a place, in the order of their places.
    inputs: Vec<u32>,
    /// Whether something was staged that is not in the block.
    is_stale: bool,
}

impl Values {
    /// Puts the value of an input in its place, and returns the address that it will have on the device.
    fn put(&mut self, input: usize, value: &[u8], program: &Program) -> Result<*mut u8, Error> {
        let block = match &self.block {
            Some(block) => block,
            None => self.block.insert(program.backend.allocate(program.inputs.len() * MOST_BY_VALUE)?),
        };
        let known = self.inputs.iter().position(|&known| known as usize == input);
        let (is_new, place) = (known.is_none(), known.unwrap_or(self.inputs.len()));
        if is_new {
            self.inputs.push(input as u32);
            self.staged.resize(self.inputs.len() * MOST_BY_VALUE, 0);
        }
        let start = place * MOST_BY_VALUE;
        let staged = &mut self.staged[start..start + value.len()];
        if is_new || staged != value {
            staged.copy_from_slice(value);
            self.is_stale = true;
        }
        // SAFETY: there is a place for every input.
        Ok(unsafe { block.ptr().add(start) })
    }

    /// Queues the copy of what was staged. What earlier runs queued reads the block before it, what this run launches after it.
    fn send(&mut self) -> Result<(), Error> {
        if let Some(block) = self.block.as_ref().filter(|_| self.is_stale) {
            block.write_from_host(0, &self.staged)?;
            self.is_stale = false;
        }
        Ok(())
    }
}

/// The source of outputs.
#[derive(Clone, Copy)]
pub(super) enum Outputs<'a> {
    /// From the caller where there is one, else new.
    Given(&'a [Option<Buffer>]),
    /// From those of earlier runs that are no longer held.
    Recycled,
}

impl Frame {
    /// Bytes of the memory it holds.
    pub(super) fn bytes(&self) -> usize {
        let recycled = self.recycled.iter().flatten().map(Buffer::bytes_len).sum::<usize>();
        let values = self.values.block.as_ref().map_or(0, Buffer::bytes_len);
        self.arena.as_ref().map_or(0, Buffer::bytes_len) + recycled + values
    }

    /// Whether everything is resolved for these sizes and the current variants.
    fn fits(&self, sizing: &Arc<Sizing>) -> bool {
        let same = self.sizing.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, sizing));
        same && self.generation == sizing.generation()
    }

    /// Resolves everything for these sizes.
    fn bind(&mut self, program: &Program, sizing: &Arc<Sizing>) -> Result<(), Error> {
        self.sizing = None;
        self.pinned = None;
        self.recording = None;
        self.runs = 0;
        self.generation = sizing.generation();
        self.codes.clear();
        match sizing.compiled_variants() {
            Some(compiled_variants) => {
                self.codes.extend(compiled_variants.iter().map(|compiled| compiled.code.clone()))
            }
            None => self.codes.extend(program.steps.iter().map(|step| step.code.clone())),
        }
        let arena = match &self.arena {
            Some(arena) if arena.bytes_len() >= sizing.arena_bytes => arena.clone(),
            _ => self.arena.insert(program.backend.allocate(sizing.arena_bytes)?).clone(),
        };
        self.arguments.clear();
        self.input_places.clear();
        self.output_places.clear();
        let mut rank = 0;
        self.output_ranks.clear();
        for output in 0..program.schedule.outputs.len() {
            self.output_ranks.push(rank);
            rank += u32::from(program.is_written(output));
        }
        self.recycled.clear();
        self.recycled.resize_with(program.schedule.outputs.len(), Vec::new);
        let nothing = RawBuffer { ptr: arena.ptr(), bytes: 0 };
        for &buffer in program.steps.iter().flat_map(|step| &step.args) {
            let place = self.arguments.len() as u32;
            self.arguments.push(match &program.schedule.buffers[buffer].role {
                Role::Input(input) => {
                    self.input_places.push((*input as u32, place));
                    nothing
                }
                Role::Output(output) => {
                    self.output_places.push((place, *output as u32));
                    nothing
                }
                Role::Constant(_) => {
                    program.constants[buffer].as_ref().map(raw).ok_or(Error::BrokenSchedule { buffer })?
                }
                Role::Temp => sizing.temp(buffer, &arena)?,
            });
        }
        self.input_places.sort_unstable();
        self.input_ends.clear();
        for input in 0..program.inputs.len() as u32 {
            self.input_ends.push(self.input_places.partition_point(|&(known, _)| known <= input) as u32);
        }
        self.sizing = Some(sizing.clone());
        Ok(())
    }

    /// Writes the address of an input to all its arguments.
    fn put_input(
        &mut self,
        input: usize,
        program: &Program,
        sizing: &Sizing,
        inputs: &dyn Inputs,
    ) -> Result<(), Error> {
        let (sized, view) = (&sizing.inputs[input], inputs.view(input));
        sized.check(input, &view, &program.inputs[input])?;
        let mut raw = sized.raw(input, &view, program.device())?;
        if let Some(value) = view.buffer.value() {
            let offset = raw.ptr as usize - view.buffer.ptr() as usize;
            // SAFETY: the offset is inside the value, and so it is inside of its place.
            raw.ptr = unsafe { self.values.put(input, value, program)?.add(offset) };
        }
        self.put_address(input, raw);
        Ok(())
    }

    /// Writes the addresses of the inputs; those that are pinned only where they are not in place.
    fn put_inputs(&mut self, program: &Program, sizing: &Sizing, inputs: &dyn Inputs) -> Result<(), Error> {
        let pinned = inputs.pinned();
        if let Some(pinned) = pinned.filter(|pinned| self.pinned == Some(pinned.key)) {
            return pinned.others.iter().try_for_each(|&input| self.put_input(input as usize, program, sizing, inputs));
        }
        self.pinned = None;
        (0..program.inputs.len()).try_for_each(|input| self.put_input(input, program, sizing, inputs))?;
        self.pinned = pinned.map(|pinned| pinned.key);
        Ok(())
    }

    /// Runs the program; `produced` gets the outputs.
    pub(super) fn run(
        &mut self,
        program: &Program,
        sizing: &Arc<Sizing>,
        inputs: &dyn Inputs,
        outputs: Outputs<'_>,
        produced: &mut Vec<Produced>,
    ) -> Result<(), Error> {
        if !self.fits(sizing) {
            self.bind(program, sizing)?;
        }
        produced.clear();
        self.put_inputs(program, sizing, inputs)?;
        self.values.send()?;
        self.outputs(program, sizing, outputs, produced)?;
        for &(place, output) in &self.output_places {
            self.arguments[place as usize] = match &produced[output as usize] {
                Produced::Buffer(buffer) => raw(buffer),
                Produced::Input(_) => return Err(Error::BrokenSchedule { buffer: place as usize }),
            };
        }
        // SAFETY: the inputs were checked to be inside their buffers with the layout the kernels were made for, outputs,
        // temporaries and constants have the sizes the schedule requires, and the caller of `run_updating` guarantees that
        // the inputs that are written are not shared.
        unsafe {
            match matches!(outputs, Outputs::Recycled) && self.replay(program, sizing)? {
                true => Ok(()),
                false => self.launch_all(program, sizing),
            }
        }
    }

    /// Launches everything with the addresses that are in place.
    ///
    /// # Safety
    /// They are those of the program's buffers, as [`Executable::launch`] wants them.
    pub(super) unsafe fn launch_all(&self, program: &Program, sizing: &Sizing) -> Result<(), Error> {
        let mut rest = &self.arguments[..];
        for ((step, sizes), code) in program.steps.iter().zip(&sizing.step_sizes).zip(&self.codes) {
            let (arguments, others) = rest.split_at(step.args.len());
            rest = others;
            // SAFETY: the caller's promise.
            unsafe { code.launch_at(arguments, sizes, step.site) }.map_err(|cause| step.error(cause))?;
        }
        Ok(())
    }

    /// Resolves everything for these sizes; says whether the inputs that are pinned with this key are in place. Until
    /// [`Frame::set_pinned`] none are.
    pub(super) fn prepare_raw(
        &mut self,
        program: &Program,
        sizing: &Arc<Sizing>,
        key: Option<PinKey>,
    ) -> Result<bool, Error> {
        if !self.fits(sizing) {
            self.bind(program, sizing)?;
        }
        Ok(self.pinned.take().is_some_and(|known| Some(known) == key))
    }

    /// Says which pinned inputs are in place.
    pub(super) fn set_pinned(&mut self, key: Option<PinKey>) {
        self.pinned = key;
    }

    /// An address that is valid for no bytes.
    pub(super) fn scratch(&self) -> *mut u8 {
        self.arena.as_ref().map_or(std::ptr::null_mut(), Buffer::ptr)
    }

    /// Stages a number of the host, and writes the address that it will have to all arguments of an input.
    ///
    /// # Safety
    /// It can be read.
    pub(super) unsafe fn put_value(&mut self, input: usize, raw: RawBuffer, program: &Program) -> Result<(), Error> {
        if raw.bytes > MOST_BY_VALUE {
            return Err(Error::InputOutsideBuffer { input, bytes: MOST_BY_VALUE });
        }
        // SAFETY: the caller's promise.
        let value = unsafe { std::slice::from_raw_parts(raw.ptr, raw.bytes) };
        let ptr = self.values.put(input, value, program)?;
        self.put_address(input, RawBuffer { ptr, bytes: raw.bytes });
        Ok(())
    }

    /// Queues the copy of the numbers that were staged.
    pub(super) fn send_values(&mut self) -> Result<(), Error> {
        self.values.send()
    }

    /// Writes an address to all arguments of an input.
    #[inline]
    pub(super) fn put_address(&mut self, input: usize, raw: RawBuffer) {
        let start = if input == 0 { 0 } else { self.input_ends[input - 1] };
        for &(_, place) in &self.input_places[start as usize..self.input_ends[input] as usize] {
            self.arguments[place as usize] = raw;
        }
    }

    /// Writes the addresses of outputs that update no input, in order, each with the bytes that it needs.
    pub(super) fn put_outputs(&mut self, program: &Program, sizing: &Sizing, outputs: &[*mut u8], nothing: RawBuffer) {
        for &(place, output) in &self.output_places {
            let bytes = sizing.buffer_bytes[program.schedule.outputs[output as usize].index()];
            let ptr = outputs[self.output_ranks[output as usize] as usize];
            self.arguments[place as usize] = if bytes == 0 { nothing } else { RawBuffer { ptr, bytes } };
        }
    }

    /// Runs all launches as one, if the backend can; what is run once is not worth recording.
    ///
    /// # Safety
    /// As [`Frame::launch_all`].
    pub(super) unsafe fn replay(&mut self, program: &Program, sizing: &Sizing) -> Result<bool, Error> {
        self.runs += 1;
        if self.recording.is_none() && self.runs == RECORDED_RUN {
            let mut rest = &self.arguments[..];
            let steps = program.steps.iter().zip(&sizing.step_sizes).zip(&self.codes);
            let launches: Vec<Launch<'_>> = steps
                .map(|((step, sizes), code)| {
                    let (arguments, others) = rest.split_at(step.args.len());
                    rest = others;
                    Launch { code: &**code, arguments, sizes, site: step.site }
                })
                .collect();
            self.recording = Recorded::new(&*program.backend, &launches)?;
        }
        let Some(recording) = &mut self.recording else { return Ok(false) };
        // SAFETY: the caller's promise.
        let outcome = unsafe { recording.replay(&self.arguments) };
        let ran =
            outcome.map_err(|cause| Error::Launch { op: "a recorded program".into(), cause, at: Source::default() })?;
        if !ran {
            (self.recording, self.runs) = (None, 1);
        }
        Ok(ran)
    }

    /// The outputs' memory.
    fn outputs(
        &mut self,
        program: &Program,
        sizing: &Sizing,
        outputs: Outputs<'_>,
        produced: &mut Vec<Produced>,
    ) -> Result<(), Error> {
        for (output, id) in program.schedule.outputs.iter().enumerate() {
            let needed = sizing.buffer_bytes[id.index()];
            let one = match &program.schedule.buffers[id.index()].role {
                Role::Input(input) => Produced::Input(*input),
                Role::Output(first) if *first < output => produced[*first].clone(),
                Role::Output(_) => Produced::Buffer(match outputs {
                    Outputs::Given(given) => match given.get(output) {
                        Some(Some(buffer)) => program.check_given(output, buffer, needed)?,
                        _ => program.backend.allocate(needed)?,
                    },
                    Outputs::Recycled => {
                        let kept = &mut self.recycled[output];
                        match kept.iter_mut().find_map(|buffer| buffer.is_unique().then(|| buffer.clone())) {
                            Some(buffer) => buffer,
                            None => {
                                let buffer = program.backend.allocate(needed)?;
                                if kept.len() == OUTPUTS_KEPT {
                                    kept.remove(0);
                                }
                                kept.push(buffer.clone());
                                buffer
                            }
                        }
                    }
                }),
                Role::Constant(_) => match &program.constants[id.index()] {
                    Some(buffer) => Produced::Buffer(buffer.clone()),
                    None => return Err(Error::BrokenSchedule { buffer: id.index() }),
                },
                Role::Temp => return Err(Error::BrokenSchedule { buffer: id.index() }),
            };
            produced.push(one);
        }
        Ok(())
    }
}

impl Program {
    /// The variant of each launch at these sizes.
    pub(crate) fn compiled_variants(&self, sizing: &Sizing) -> Arc<[CompiledVariant]> {
        let own = |step: &CompiledStep| CompiledVariant { variant: step.variant.clone(), code: step.code.clone() };
        sizing.compiled_variants().unwrap_or_else(|| self.steps.iter().map(own).collect())
    }

    /// The variant of each launch for inputs of these shapes: what is packed, and what was tuned.
    pub fn variants(&self, inputs: &[InputView<'_>]) -> Result<Vec<Variant>, Error> {
        let sizing = self.sizings.get(&self.inputs, &self.output_types, &self.schedule, inputs)?;
        Ok(self.compiled_variants(&sizing).iter().map(|compiled| compiled.variant.clone()).collect())
    }

    /// A frame that is bound to these sizes if there is one.
    pub(super) fn take_frame(&self, sizing: &Arc<Sizing>) -> Frame {
        let choose = |frames: &[Frame]| match frames.iter().rposition(|frame| frame.fits(sizing)) {
            Some(at) => Some(at),
            // A few sizes that alternate keep a frame each; of many, each takes over the memory of another.
            None if frames.len() < SIZES_KEPT => None,
            None => Some(0),
        };
        self.frames.take(choose).unwrap_or_default()
    }

    /// Drops all frames, since launches or inputs have changed.
    pub(crate) fn forget_frames(&mut self) {
        self.frames.clear();
    }

    pub(super) fn put_frame(&self, frame: Frame) {
        self.frames.put(frame, FRAMES_KEPT);
    }
}
