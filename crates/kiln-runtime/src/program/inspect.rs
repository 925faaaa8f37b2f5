//! Runs a program one launch at a time, with its memory open to be read and set in between: to time launches, and to compare
//! each of them with a reference.

use super::recorded::Recorded;
use super::{InputView, Program};
use crate::sizing::{CompiledVariant, Sizing};
use crate::{Backend, Buffer, Error, Executable, Launch, RawBuffer};
use kiln_ir::{Source, Symbol};
use kiln_kernels::schedule::Role;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A program at given inputs. Outputs and temporaries are its own, and so are copies of the inputs that the program updates: no
/// launch changes the caller's tensors.
///
/// ```
/// use kiln_ir::{DType, Graph};
/// use kiln_kernels::{InputLayout, ScheduleOptions};
/// use kiln_runtime::{Backend, InputView, Program, ReferenceBackend};
/// use std::sync::Arc;
/// let graph = Graph::parse("graph(%0: f32[2]) {
///   %1: f32[2] = neg %0
///   return %1
/// }").unwrap();
/// let layout = InputLayout::contiguous(graph.ty(graph.inputs()[0]));
/// let program = Program::build(&graph, &[layout], Arc::new(ReferenceBackend), &ScheduleOptions::default())?;
/// let buffer = ReferenceBackend.allocate(8)?;
/// buffer.write_from_host(0, &[1f32, 2.0].map(f32::to_le_bytes).concat())?;
/// let inputs = [InputView { buffer: &buffer, dtype: DType::F32, shape: &[2], strides: &[1], offset: 0 }];
/// let mut stopped = program.inspect(&inputs)?;
/// stopped.launch(0)?;
/// let output = program.schedule().outputs[0].index();
/// assert_eq!(stopped.read(output)?, [-1f32, -2.0].map(f32::to_le_bytes).concat());
/// # Ok::<(), kiln_runtime::Error>(())
/// ```
pub struct Inspection<'a> {
    program: &'a Program,
    pub(crate) sizing: Arc<Sizing>,
    /// The variant of each launch.
    pub(crate) compiled_variants: Arc<[CompiledVariant]>,
    sizes: Vec<(Symbol, i64)>,
    /// By buffer of the schedule.
    regions: Vec<Region>,
    arguments: Vec<RawBuffer>,
    /// All launches as one, where the backend can do that; nothing before it was asked.
    recording: Option<Option<Recorded>>,
    inputs: PhantomData<&'a [InputView<'a>]>,
}

/// The memory of a buffer of the schedule.
struct Region {
    buffer: Buffer,
    offset: usize,
    bytes: usize,
    /// Whether it may be set.
    own: bool,
    /// Of an input that the program updates: the caller's memory that this is a copy of.
    original: Option<(Buffer, usize)>,
}

impl Region {
    fn raw(&self) -> RawBuffer {
        // SAFETY: the offset is inside the buffer: it was checked when the region was made.
        RawBuffer { ptr: unsafe { self.buffer.ptr().add(self.offset) }, bytes: self.bytes }
    }
}

/// The buffer in memory of the device, also if it is given by value.
pub(crate) fn in_memory(backend: &dyn Backend, buffer: &Buffer) -> Result<Buffer, Error> {
    let Some(value) = buffer.value() else { return Ok(buffer.clone()) };
    let memory = backend.allocate(value.len())?;
    memory.write_from_host(0, value)?;
    Ok(memory)
}

impl Program {
    /// Stops before the first launch, with memory for these inputs.
    pub fn inspect<'a>(&'a self, inputs: &'a [InputView<'a>]) -> Result<Inspection<'a>, Error> {
        let sizing = self.sizings.get(&self.inputs, &self.output_types, &self.schedule, inputs)?;
        let arena = self.backend.allocate(sizing.arena_bytes)?;
        let mut regions = Vec::with_capacity(self.schedule.buffers.len());
        for (index, decl) in self.schedule.buffers.iter().enumerate() {
            let bytes = sizing.buffer_bytes[index];
            regions.push(match &decl.role {
                Role::Input(input) => {
                    let view = &inputs[*input];
                    let raw = sizing.inputs[*input].raw(*input, view, self.device())?;
                    let offset = raw.ptr as usize - view.buffer.ptr() as usize;
                    if self.updates.contains(input) {
                        let buffer = self.backend.allocate(raw.bytes)?;
                        let original = Some((view.buffer.clone(), offset));
                        Region { buffer, offset: 0, bytes: raw.bytes, own: true, original }
                    } else {
                        let buffer = in_memory(&*self.backend, view.buffer)?;
                        Region { buffer, offset, bytes: raw.bytes, own: false, original: None }
                    }
                }
                Role::Output(_) => {
                    Region { buffer: self.backend.allocate(bytes)?, offset: 0, bytes, own: true, original: None }
                }
                Role::Constant(_) => {
                    let buffer = self.constants[index].clone().ok_or(Error::BrokenSchedule { buffer: index })?;
                    Region { buffer, offset: 0, bytes, own: false, original: None }
                }
                Role::Temp => {
                    let raw = sizing.temp(index, &arena)?;
                    let offset = raw.ptr as usize - arena.ptr() as usize;
                    Region { buffer: arena.clone(), offset, bytes, own: true, original: None }
                }
            });
        }
        let sizes = self.sizings.values(inputs);
        let compiled_variants = self.compiled_variants(&sizing);
        let inspection = Inspection {
            program: self,
            sizing,
            compiled_variants,
            sizes,
            regions,
            arguments: Vec::new(),
            recording: None,
            inputs: PhantomData,
        };
        inspection.reset()?;
        Ok(inspection)
    }
}

impl Inspection<'_> {
    /// The program.
    pub fn program(&self) -> &Program {
        self.program
    }

    /// The value of a size symbol at these inputs.
    pub fn size(&self, symbol: Symbol) -> Option<i64> {
        self.sizes.iter().find(|(known, _)| *known == symbol).map(|&(_, value)| value)
    }

    /// The values of a launch's own size symbols.
    pub fn launch_sizes(&self, step: usize) -> &[i64] {
        self.sizing.step_sizes.get(step).map_or(&[], Vec::as_slice)
    }

    /// Bytes of a buffer of the schedule; of an input, to the end of its memory.
    pub fn bytes_len(&self, buffer: usize) -> usize {
        self.regions.get(buffer).map_or(0, |region| region.bytes)
    }

    /// The bytes of a buffer of the schedule now.
    pub fn read(&self, buffer: usize) -> Result<Vec<u8>, Error> {
        let region = self.regions.get(buffer).ok_or(Error::BrokenSchedule { buffer })?;
        let mut bytes = vec![0; region.bytes];
        region.buffer.read_to_host(region.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Sets the first bytes of a buffer of the schedule. Inputs that the program does not update and constants are refused.
    pub fn write(&mut self, buffer: usize, bytes: &[u8]) -> Result<(), Error> {
        let region = self.regions.get(buffer).ok_or(Error::BrokenSchedule { buffer })?;
        if !region.own || bytes.len() > region.bytes {
            return Err(Error::ReadOnly { bytes: region.bytes });
        }
        region.buffer.write_from_host(region.offset, bytes)
    }

    /// Sets the inputs that the program updates to what the caller's tensors have. Whoever runs all launches again and again begins
    /// each round with it: a position that is counted up would leave its table.
    pub fn reset(&self) -> Result<(), Error> {
        for region in &self.regions {
            if let Some((original, offset)) = &region.original {
                original.copy_to(*offset, &region.buffer, region.bytes)?;
            }
        }
        Ok(())
    }

    /// Runs one launch on the memory as it is and waits for it; how long it took.
    pub fn launch(&mut self, step: usize) -> Result<Duration, Error> {
        let Some(code) = self.compiled_variants.get(step).map(|compiled| compiled.code.clone()) else {
            return Err(Error::BrokenSchedule { buffer: step });
        };
        self.launch_as(step, &*code)
    }

    /// Runs all launches in order on the memory as it is and waits for them; how long they took together. A backend that records
    /// launches runs its recording.
    pub fn launch_all(&mut self) -> Result<Duration, Error> {
        let program = self.program;
        let region = |&buffer: &usize| self.regions[buffer].raw();
        self.arguments.clear();
        self.arguments.extend(program.steps.iter().flat_map(|step| step.args.iter().map(region)));
        let mut rest = &self.arguments[..];
        let launches = program.steps.iter().enumerate().map(|(number, step)| {
            let (arguments, others) = rest.split_at(step.args.len());
            rest = others;
            let (code, sizes) = (&*self.compiled_variants[number].code, &self.sizing.step_sizes[number][..]);
            Launch { code, arguments, sizes, site: step.site }
        });
        let launches: Vec<Launch<'_>> = launches.collect();
        if self.recording.is_none() {
            self.recording = Some(Recorded::new(&*program.backend, &launches)?);
        }
        let mut recording = self.recording.as_mut().and_then(Option::as_mut);
        program.backend.time(&mut || {
            let failed = |cause| Error::Launch { op: "a recorded program".to_owned(), cause, at: Source::default() };
            // SAFETY: as in `launch_as`, for each of them.
            let is_replayed = recording.as_mut().map(|recording| unsafe { recording.replay(&self.arguments) });
            if is_replayed.transpose().map_err(failed)? == Some(true) {
                return Ok(());
            }
            for (launch, step) in launches.iter().zip(&program.steps) {
                // SAFETY: as above.
                unsafe { launch.code.launch_at(launch.arguments, launch.sizes, launch.site) }
                    .map_err(|cause| step.error(cause))?;
            }
            Ok(())
        })
    }

    /// [`Inspection::launch`] with other code for the same kernel.
    pub(crate) fn launch_as(&mut self, step: usize, code: &dyn Executable) -> Result<Duration, Error> {
        let number = step;
        let Some(step) = self.program.steps.get(number) else { return Err(Error::BrokenSchedule { buffer: number }) };
        self.arguments.clear();
        self.arguments.extend(step.args.iter().map(|&buffer| self.regions[buffer].raw()));
        let sizes = &self.sizing.step_sizes[number];
        self.program.backend.time(&mut || {
            // SAFETY: the buffers are those that a run has, with the same sizes; what a launch writes belongs to `self`.
            unsafe { code.launch_at(&self.arguments, sizes, step.site) }.map_err(|cause| step.error(cause))
        })
    }
}
