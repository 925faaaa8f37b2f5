//! Frozen inputs in the layout that a backend reads fastest.
//!
//! ```text
//!  Program: x, w ──▶ launches read w            w frozen, and the backend has a packing for it
//!
//!  Packer:  w ──▶ p                             when w changes
//!  Program: x, p ──▶ launches read p            w is no input any more, unless another launch reads it
//! ```
//!
//! Packed memory is an input like any other, of bytes; a program does not know how it was made.

use crate::program::{in_memory, raw};
use crate::sizing::{InputSpec, SizedInput, Sizings};
use crate::{Backend, Buffer, Error, Executable, InputView, Packing, Program, Variant, kernel_cache};
use kiln_ir::{DType, Dim, TensorType};
use kiln_kernels::InputLayout;
use kiln_kernels::kernel::Access;
use kiln_kernels::schedule::{BufferDecl, BufferId, Role};
use std::collections::HashMap;
use std::sync::Arc;

/// Makes the packed inputs of a program that [`Program::pack`] gave.
pub struct Packer {
    backend: Arc<dyn Backend>,
    packs: Vec<Pack>,
    kept: Vec<usize>,
}

/// One packed input.
struct Pack {
    /// Its number among the inputs before packing.
    input: usize,
    packing: Packing,
    code: Arc<dyn Executable>,
    spec: InputSpec,
    sized: SizedInput,
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

    /// Packs the inputs, which `source` gives by their numbers before packing.
    pub fn pack<'a>(&self, source: &dyn Fn(usize) -> InputView<'a>) -> Result<Vec<Buffer>, Error> {
        let mut packed = Vec::with_capacity(self.packs.len());
        for pack in &self.packs {
            let view = source(pack.input);
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
            packed.push(to);
        }
        Ok(packed)
    }

    /// The packed inputs as the program takes them.
    pub fn view<'a>(&'a self, number: usize, buffer: &'a Buffer) -> InputView<'a> {
        const STRIDES: &[isize] = &[1];
        let shape = std::slice::from_ref(&self.packs[number].packing.bytes);
        InputView { buffer, dtype: DType::U8, shape, strides: STRIDES, offset: 0 }
    }
}

impl Program {
    /// Lets every launch read frozen inputs packed where that pays, or, with `always`, wherever it can. The resulting program
    /// has [`Packer::kept`] of the inputs that it had, and then the packed ones. An input that the program updates or whose
    /// sizes are symbolic is not packed.
    pub fn pack(mut self, frozen: &[bool], always: bool) -> Result<(Program, Packer), Error> {
        let count = self.inputs.len();
        let can = |input: usize| {
            let fixed = self.inputs[input].ty().fixed_shape().is_some() && self.inputs[input].layout_is_fixed();
            frozen.get(input) == Some(&true) && !self.updates.contains(&input) && fixed
        };
        let can: Vec<bool> = (0..count).map(can).collect();
        let mut packs: Vec<Pack> = Vec::new();
        let mut codes: HashMap<String, Arc<dyn Executable>> = HashMap::new();
        for at in 0..self.steps.len() {
            self.pack_step(at, (&can, always), &mut packs, &mut codes)?;
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
        let packer = Packer { backend: self.backend.clone(), packs, kept };
        Ok((self, packer))
    }

    /// Requests packings of a launch's frozen arguments from the backend.
    fn pack_step(
        &mut self,
        at: usize,
        (can, always): (&[bool], bool),
        packs: &mut Vec<Pack>,
        codes: &mut HashMap<String, Arc<dyn Executable>>,
    ) -> Result<(), Error> {
        let kernel = self.steps[at].kernel.clone();
        let mut variant = Variant::default();
        let mut moved = Vec::new();
        for (number, argument) in kernel.buffers.iter().enumerate() {
            let id = self.steps[at].args[number];
            let Role::Input(input) = self.schedule.buffers[id].role else { continue };
            let once = self.steps[at].args.iter().filter(|&&arg| arg == id).count() == 1;
            if !can.get(input).copied().unwrap_or(false) || argument.access != Access::Read || !once {
                continue;
            }
            let Some(packing) = self.backend.packing(&kernel, number).filter(|p| p.pays || always) else { continue };
            let same = |pack: &Pack| pack.input == input && pack.packing.key == packing.key;
            let pack = match packs.iter().position(same) {
                Some(pack) => pack,
                None => {
                    let code = match codes.get(&packing.key) {
                        Some(code) => code.clone(),
                        None => self.backend.compile_packing(&kernel, &packing)?,
                    };
                    codes.insert(packing.key.clone(), code.clone());
                    let spec = self.inputs[input].clone();
                    let sized = SizedInput::fixed(&spec)?;
                    self.add_input(can.len() + packs.len(), packing.bytes);
                    packs.push(Pack { input, packing: packing.clone(), code, spec, sized });
                    packs.len() - 1
                }
            };
            variant.packed.push((number, packing.key));
            moved.push((number, Role::Input(can.len() + pack)));
        }
        if moved.is_empty() {
            return Ok(());
        }
        let (code, _) =
            kernel_cache::get_variant(&*self.backend, &kernel, &variant, self.steps[at].label(), self.keep)?;
        for (number, role) in moved {
            let buffer = self.schedule.buffers.iter().position(|decl| decl.role == role);
            let buffer = buffer.ok_or(Error::BrokenSchedule { buffer: self.schedule.buffers.len() })?;
            self.steps[at].args[number] = buffer;
            self.schedule.steps[at].args[number] = BufferId(buffer as u32);
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
