//! Frozen inputs in the layout that a backend reads fastest.
//!
//! ```text
//!  Program: x, w ──▶ launches read w            w frozen, and the backend has a packing for it
//!
//!  Packer:  w ──▶ p                             when w changes
//!  Program: x, p ──▶ launches read p            w is no input any more, unless another launch reads it
//! ```
//!
//! Packed memory is an input like any other, of bytes; a program does not know how it was made. The original stays with the user, so that
//! a packed weight is in memory twice: the backend says where that pays ([`Pays`]), and [`packed`](crate::packed) bounds all copies.

use crate::event::{self, Category, Event};
use crate::packed::{self, Slot};
use crate::program::{in_memory, raw};
use crate::sizing::{InputSpec, SizedInput, Sizings};
use crate::{Backend, Buffer, Error, Executable, InputView, Packing, Pays, Program, Variant, kernel_cache};
use kiln_ir::{DType, Dim, TensorType};
use kiln_kernels::InputLayout;
use kiln_kernels::kernel::Access;
use kiln_kernels::schedule::{BufferDecl, BufferId, Role};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The most bytes that a program packs of what pays in a cache alone ([`Pays::InCache`]).
const CACHE: usize = 8 << 20;

/// What [`Program::pack`] may do.
#[derive(Debug, Clone, Copy, Default)]
pub struct PackOptions<'a> {
    /// Whether everything is packed that the backend has a layout for, or only where that pays.
    pub always: bool,
    /// For each input, the number of the variable that it is: programs that read the same variables share their copies.
    pub variables: &'a [Option<u64>],
}

/// Makes the packed inputs of a program that [`Program::pack`] gave.
pub struct Packer {
    backend: Arc<dyn Backend>,
    packs: Vec<Pack>,
    kept: Vec<usize>,
    unpacked_bytes: usize,
}

/// One packed input.
struct Pack {
    /// Its number among the inputs before packing.
    input: usize,
    packing: Packing,
    code: Arc<dyn Executable>,
    spec: InputSpec,
    sized: SizedInput,
    slot: Arc<Slot>,
}

/// A packing that the backend has for an argument of a launch.
struct Candidate {
    step: usize,
    argument: usize,
    input: usize,
    packing: Packing,
}

impl Packer {
    /// The inputs before packing that the program still has, in order; the packed ones follow them.
    pub fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// The input before packing that each packed one is made of.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = usize> {
        self.packs.iter().map(|pack| pack.input)
    }

    /// Bytes of the packed inputs.
    pub fn bytes(&self) -> usize {
        self.packs.iter().map(|pack| pack.packing.bytes).sum()
    }

    /// Bytes of the copies that were not made: they would not fit a cache, or be beyond the bound of [`packed`](crate::packed).
    pub fn unpacked_bytes(&self) -> usize {
        self.unpacked_bytes
    }

    /// Packs the inputs, which `source` gives with their versions by their numbers before packing, but for those that another program
    /// has packed.
    pub fn pack<'a>(&self, source: &dyn Fn(usize) -> (InputView<'a>, u64)) -> Result<Vec<Buffer>, Error> {
        let pack = |pack: &Pack| {
            let (view, version) = source(pack.input);
            pack.slot.get(version, || self.packed(pack, view))
        };
        self.packs.iter().map(pack).collect()
    }

    /// Packs one input.
    fn packed(&self, pack: &Pack, view: InputView<'_>) -> Result<Buffer, Error> {
        let buffer = in_memory(&*self.backend, view.buffer)?;
        let view = InputView { buffer: &buffer, ..view };
        pack.sized.check(pack.input, &view, &pack.spec)?;
        let from = pack.sized.raw(pack.input, &view, self.backend.device())?;
        let to = self.backend.allocate(pack.packing.bytes)?;
        // SAFETY: the source was checked to be inside its buffer in the layout the code expects, the target has the size
        // the backend requested and is not shared yet.
        unsafe { pack.code.launch(&[from, raw(&to)], &[]) }.map_err(|cause| Error::Launch {
            op: "pack".into(),
            cause,
            at: Default::default(),
        })?;
        Ok(to)
    }

    /// The packed inputs as the program takes them.
    pub fn view<'a>(&'a self, number: usize, buffer: &'a Buffer) -> InputView<'a> {
        const STRIDES: &[isize] = &[1];
        let shape = std::slice::from_ref(&self.packs[number].packing.bytes);
        InputView { buffer, dtype: DType::U8, shape, strides: STRIDES, offset: 0 }
    }
}

impl Program {
    /// Lets launches read frozen inputs packed where that pays and there is room for the copies. The resulting program has
    /// [`Packer::kept`] of the inputs that it had, and then the packed ones. An input that the program updates or whose sizes are
    /// symbolic is not packed.
    pub fn pack(mut self, frozen: &[bool], options: &PackOptions<'_>) -> Result<(Program, Packer), Error> {
        let count = self.inputs.len();
        let (chosen, mut unpacked_bytes) = self.choose_packings(frozen, options.always);
        let mut packs: Vec<Pack> = Vec::new();
        let mut codes: HashMap<String, Arc<dyn Executable>> = HashMap::new();
        let mut refused: HashSet<(usize, String)> = HashSet::new();
        for step in chosen.chunk_by(|a, b| a.step == b.step) {
            let mut moved = Vec::new();
            for candidate in step {
                let Candidate { input, packing, .. } = candidate;
                let same = |pack: &Pack| pack.input == *input && pack.packing.key == packing.key;
                let pack = match packs.iter().position(same) {
                    Some(pack) => pack,
                    None => {
                        let variable = options.variables.get(*input).copied().flatten();
                        let device = self.backend.device();
                        let Some(slot) = Slot::reserve(device, variable, &packing.key, packing.bytes) else {
                            if refused.insert((*input, packing.key.clone())) {
                                unpacked_bytes += packing.bytes;
                            }
                            continue;
                        };
                        packs.push(self.packed_input(candidate, slot, count + packs.len(), &mut codes)?);
                        packs.len() - 1
                    }
                };
                moved.push((candidate, Role::Input(count + pack)));
            }
            if !moved.is_empty() {
                self.read_packed(&moved)?;
            }
        }
        if !refused.is_empty() {
            event::emit(Category::Perf, || Event::Slow {
                text: format!(
                    "{} weights are read as they lie: their packed copies would exceed the {} bytes that all copies of the process may \
                     take (KILN_PACKED_MAX_BYTES, kiln::runtime::packed::set_most_bytes)",
                    refused.len(),
                    packed::most_bytes()
                ),
                at: chosen.first().map_or_else(Default::default, |first| self.steps[first.step].source().clone()),
            });
        }
        let used = |input: usize| {
            let buffer = self.schedule.buffers.iter().position(|decl| decl.role == Role::Input(input));
            let is = |id: &BufferId| Some(id.index()) == buffer;
            self.schedule.outputs.iter().any(is) || self.schedule.steps.iter().any(|step| step.args.iter().any(is))
        };
        let is_packed = |input: usize| packs.iter().any(|pack| pack.input == input);
        let kept: Vec<usize> = (0..count).filter(|&input| !is_packed(input) || used(input)).collect();
        self.renumber(count, &kept);
        self.forget_frames();
        self.sizings = Sizings::new(&self.inputs, &self.output_types, &self.schedule)?;
        let packer = Packer { backend: self.backend.clone(), packs, kept, unpacked_bytes };
        Ok((self, packer))
    }

    /// Returns what is to be packed, launch after launch, and how many bytes are not since they would not fit a cache.
    fn choose_packings(&self, frozen: &[bool], always: bool) -> (Vec<Candidate>, usize) {
        let can = |input: usize| {
            let fixed = self.inputs[input].ty().fixed_shape().is_some() && self.inputs[input].layout_is_fixed();
            frozen.get(input) == Some(&true) && !self.updates.contains(&input) && fixed
        };
        let can: Vec<bool> = (0..self.inputs.len()).map(can).collect();
        let mut found = Vec::new();
        for (step, compiled) in self.steps.iter().enumerate() {
            for (argument, declared) in compiled.kernel.buffers.iter().enumerate() {
                let id = compiled.args[argument];
                let Role::Input(input) = self.schedule.buffers[id].role else { continue };
                let once = compiled.args.iter().filter(|&&arg| arg == id).count() == 1;
                if !can[input] || declared.access != Access::Read || !once {
                    continue;
                }
                if let Some(packing) = self.backend.packing(&compiled.kernel, argument) {
                    found.push(Candidate { step, argument, input, packing });
                }
            }
        }
        if always {
            return (found, 0);
        }
        found.retain(|candidate| candidate.packing.pays > Pays::Never);
        let bytes_of = |least: Pays| {
            let wanted = found.iter().filter(|candidate| candidate.packing.pays >= least);
            let copies: HashMap<_, _> =
                wanted.map(|Candidate { input, packing, .. }| ((input, &packing.key), packing.bytes)).collect();
            copies.values().sum::<usize>()
        };
        let (all, sure) = (bytes_of(Pays::InCache), bytes_of(Pays::Always));
        if all <= CACHE {
            return (found, 0);
        }
        found.retain(|candidate| candidate.packing.pays == Pays::Always);
        (found, all - sure)
    }

    /// Declares an input of bytes for a copy of what the candidate packs.
    fn packed_input(
        &mut self,
        candidate: &Candidate,
        slot: Arc<Slot>,
        number: usize,
        codes: &mut HashMap<String, Arc<dyn Executable>>,
    ) -> Result<Pack, Error> {
        let Candidate { step, input, packing, .. } = candidate;
        let code = match codes.get(&packing.key) {
            Some(code) => code.clone(),
            None => self.backend.compile_packing(&self.steps[*step].kernel, packing)?,
        };
        codes.insert(packing.key.clone(), code.clone());
        let spec = self.inputs[*input].clone();
        let sized = SizedInput::fixed(&spec)?;
        self.add_input(number, packing.bytes);
        Ok(Pack { input: *input, packing: packing.clone(), code, spec, sized, slot })
    }

    /// Lets a launch read some of its arguments packed, from inputs with these roles.
    fn read_packed(&mut self, moved: &[(&Candidate, Role)]) -> Result<(), Error> {
        let at = moved[0].0.step;
        let kernel = self.steps[at].kernel.clone();
        let packed = moved.iter().map(|(candidate, _)| (candidate.argument, candidate.packing.key.clone())).collect();
        let variant = Variant { packed, ..Variant::default() };
        let (code, _) =
            kernel_cache::get_variant(&*self.backend, &kernel, &variant, self.steps[at].label(), self.keep)?;
        for (candidate, role) in moved {
            let buffer = self.schedule.buffers.iter().position(|decl| decl.role == *role);
            let buffer = buffer.ok_or(Error::BrokenSchedule { buffer: self.schedule.buffers.len() })?;
            self.steps[at].args[candidate.argument] = buffer;
            self.schedule.steps[at].args[candidate.argument] = BufferId(buffer as u32);
        }
        (self.steps[at].code, self.steps[at].variant) = (code, variant);
        Ok(())
    }

    /// Declares one more input, of bytes.
    fn add_input(&mut self, number: usize, bytes: usize) {
        let ty = TensorType::fixed(DType::U8, &[bytes]);
        self.inputs.push(InputSpec::new(&ty, &InputLayout::contiguous(&ty)));
        self.schedule.buffers.push(BufferDecl {
            dtype: DType::U8,
            elements: Dim::from(bytes),
            role: Role::Input(number),
        });
        self.constants.push(None);
    }

    /// Drops the inputs below `count` that are not kept, and their buffers.
    fn renumber(&mut self, count: usize, kept: &[usize]) {
        let number = |input: usize| match kept.iter().position(|&k| k == input) {
            Some(number) => Some(number),
            None if input >= count => Some(kept.len() + input - count),
            None => None,
        };
        let mut next = 0;
        let mut map = Vec::with_capacity(self.schedule.buffers.len());
        let mut keep = Vec::with_capacity(self.schedule.buffers.len());
        for decl in &mut self.schedule.buffers {
            let stays = match decl.role {
                Role::Input(input) => match number(input) {
                    Some(number) => {
                        decl.role = Role::Input(number);
                        true
                    }
                    None => false,
                },
                _ => true,
            };
            map.push(next);
            keep.push(stays);
            next += usize::from(stays);
        }
        self.schedule.retain_buffers(&keep);
        retain(&mut self.constants, &keep);
        let inputs: Vec<bool> = (0..self.inputs.len()).map(|input| number(input).is_some()).collect();
        retain(&mut self.inputs, &inputs);
        self.steps.iter_mut().flat_map(|step| &mut step.args).for_each(|arg| *arg = map[*arg]);
        self.updates.iter_mut().for_each(|input| *input = number(*input).unwrap_or(*input));
    }
}

fn retain<T>(list: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    list.retain(|_| keep.next() == Some(&true));
}
