//! The CPU as a [`Backend`]: selects the compiler for each kind of kernel.

use crate::attention::{Attention, AttentionGradient};
use crate::beside::Beside;
use crate::choices::Choices;
use crate::features::Isa;
use crate::half_bytes::HalfBytes;
use crate::loops::{Build, LoopKernel};
use crate::lower::Options;
use crate::matmul::{Matmul, fewest_scaled, packing};
use crate::routine::Routine;
use crate::saved::{Piece, saved};
use crate::variants;
use kiln_ir::codec::{from_bytes, to_bytes};
use kiln_kernels::Target as ScheduleTarget;
use kiln_kernels::kernel::{AttentionPart, Kernel, KernelBody};
use kiln_runtime::{
    Backend, Buffer, Device, Error, Executable, HostMemory, Keep, LaunchError, Memory, Packing, RawBuffer, Variant,
};
use std::sync::Arc;

/// The CPU backend.
///
/// ```
/// use kiln_cpu::backend::CpuBackend;
/// use kiln_cpu::features::Isa;
/// use kiln_runtime::Backend;
/// assert_eq!(CpuBackend::with_isa(Isa::Portable).target(), "cpu-portable");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CpuBackend {
    isa: Isa,
    options: Options,
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuBackend {
    /// A backend for the best target of this machine, or the one that `KILN_CPU_ISA` selects.
    pub fn new() -> CpuBackend {
        CpuBackend::with_isa(Isa::get())
    }

    /// A backend for a given target, or the best of this machine below it.
    pub fn with_isa(isa: Isa) -> CpuBackend {
        CpuBackend { isa: isa.min(crate::features::detect().isa), options: Options::default() }
    }

    /// The same target with other choices.
    pub fn with_options(self, options: Options) -> CpuBackend {
        CpuBackend { options, ..self }
    }

    /// The target.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Compiles a kernel, of which some code may be ready, with one buffer packed and some choices made.
    fn build(
        &self,
        kernel: &Kernel,
        ready: &[Piece],
        packed: Option<usize>,
        choices: Choices,
    ) -> Result<Arc<dyn Executable>, Error> {
        if let Some(bytewise) = HalfBytes::bytewise(kernel) {
            return Ok(Arc::new(HalfBytes::new(kernel, self.build(&bytewise, ready, None, choices)?)));
        }
        let build = Build { isa: self.isa, options: self.options, ready };
        let target = self.target();
        match &kernel.body {
            KernelBody::Loop(body) => {
                let options = Options { copies: choices.copies, ..self.options };
                let made = Build { options, ..build }.compile(kernel, body);
                Ok(Arc::new(made.map_err(|e| self.error(e.to_string()))?.choosing(choices)))
            }
            KernelBody::Matmul(body) => {
                let made = match packed {
                    Some(buffer) => Matmul::packed(build, kernel, body, buffer, &target)?,
                    None => Matmul::new(build, kernel, body, &target)?,
                };
                Ok(Arc::new(made.choosing(choices)))
            }
            KernelBody::Attention(body) => {
                Ok(Arc::new(Attention::new(self.isa, kernel, body, &target)?.choosing(choices)))
            }
            KernelBody::AttentionBackward(body) => match &body.part {
                AttentionPart::Logsumexp { out } => {
                    let made = Attention::logsumexp(self.isa, kernel, body, out, &target)?;
                    Ok(Arc::new(made.choosing(choices)))
                }
                AttentionPart::Gradients(of) => {
                    Ok(Arc::new(AttentionGradient::new(self.isa, kernel, body, of, &target)?))
                }
            },
            KernelBody::Routine(body) => Ok(Arc::new(Routine::new(kernel, body, &target)?)),
            KernelBody::Repeat(_) => Err(self.error("a loop, which the runtime runs".into())),
            KernelBody::Parallel(bodies) => {
                let alone = |body: &KernelBody| Kernel { body: body.clone(), ..kernel.clone() };
                let made = bodies.iter().map(|body| self.build(&alone(body), ready, None, choices));
                let made = made.collect::<Result<Vec<_>, _>>()?;
                let beside =
                    Beside::new(made).ok_or_else(|| self.error(format!("{} bodies in one kernel", bodies.len())))?;
                Ok(Arc::new(beside))
            }
        }
    }

    fn error(&self, reason: String) -> Error {
        Error::Compile { target: self.target(), reason }
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> String {
        let exact = if self.options.contract { "" } else { "-exact" };
        format!("cpu-{}{exact}", self.isa.name())
    }

    fn schedule_target(&self) -> ScheduleTarget {
        ScheduleTarget {
            guarded_operands: true,
            scaled_operands: fewest_scaled(self.isa),
            stored_windows: true,
            unrolled_windows: true,
            separate_windows: true,
            split_phases: true,
            depthwise_products: self.isa != Isa::Portable,
            attention_gradients: true,
            joined_gradients: true,
            ..ScheduleTarget::default()
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        HostMemory::allocate(bytes)
    }

    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        Some(HostMemory::get())
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        self.build(kernel, &[], None, Choices::default())
    }

    fn packing(&self, kernel: &Kernel, buffer: usize) -> Option<Packing> {
        if HalfBytes::bytewise(kernel).is_some() {
            return None;
        }
        packing::packing(self.isa, kernel, buffer)
    }

    fn compile_packing(&self, kernel: &Kernel, packing: &Packing) -> Result<Arc<dyn Executable>, Error> {
        packing::packer(self.isa, kernel, packing.buffer)
            .ok_or_else(|| self.error(format!("there is no packing {}", packing.key)))
    }

    fn variants(&self, kernel: &Kernel, now: &Variant, sizes: &[i64]) -> Vec<Variant> {
        let Some(choices) = Choices::parse(&now.choices) else { return Vec::new() };
        let found = variants::variants(self.isa, kernel, choices, !now.packed.is_empty(), sizes);
        found.into_iter().map(|choices| now.choosing(choices.to_string())).collect()
    }

    fn compile_variant(&self, kernel: &Kernel, variant: &Variant, _: Keep) -> Result<Arc<dyn Executable>, Error> {
        let packed = match &variant.packed[..] {
            [] => Some(None),
            [(buffer, _)] => Some(Some(*buffer)),
            _ => None,
        };
        match (packed, Choices::parse(&variant.choices)) {
            (Some(packed), Some(choices)) => self.build(kernel, &[], packed, choices),
            _ => Err(self.error(format!("there is no variant {variant}"))),
        }
    }

    fn fingerprint(&self) -> String {
        let crates = [kiln_ir::FINGERPRINT, kiln_kernels::FINGERPRINT, kiln_runtime::FINGERPRINT, crate::FINGERPRINT];
        let (target, features, options) = (self.target(), crate::features::enabled(), self.options);
        format!("{target} {} {features:?} {options:?} {}", std::env::consts::ARCH, crates.join(" "))
    }

    fn restore(&self, kernel: &Kernel, variant: &Variant, saved: &[u8]) -> Option<Arc<dyn Executable>> {
        if !variant.is_default() {
            return None;
        }
        // The key includes this machine's target; code for another is ignored.
        let ready: Vec<Piece> = from_bytes(saved).ok()?;
        self.build(kernel, &ready, None, Choices::default()).ok()
    }

    fn threads(&self) -> usize {
        crate::pool::threads()
    }

    fn machine(&self) -> String {
        let features = crate::features::enabled();
        format!("{} threads, {features:?}, {}", crate::pool::threads(), crate::features::model())
    }
}

impl Executable for LoopKernel {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the same promise.
        unsafe { LoopKernel::launch(self, buffers, sizes) }
    }

    fn disassembly(&self) -> Option<String> {
        LoopKernel::disassembly(self)
    }

    fn intermediate(&self) -> Option<String> {
        self.vector_ir()
    }

    fn save(&self) -> Option<Vec<u8>> {
        saved(self.to_piece().into_iter().collect())
    }

    fn code_bytes(&self) -> usize {
        LoopKernel::code_bytes(self)
    }
}

impl Executable for Routine {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the same promise.
        unsafe { Routine::launch(self, buffers, sizes) }
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(to_bytes(&Vec::<Piece>::new()))
    }
}

impl Executable for Matmul {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the same promise.
        unsafe { Matmul::launch(self, buffers, sizes) }
    }

    fn disassembly(&self) -> Option<String> {
        self.describe(LoopKernel::disassembly)
    }

    fn intermediate(&self) -> Option<String> {
        self.describe(LoopKernel::vector_ir)
    }

    fn save(&self) -> Option<Vec<u8>> {
        // Also where it has no code of its own: then it is put together again, and not compiled.
        Some(to_bytes(&self.pieces()))
    }

    fn code_bytes(&self) -> usize {
        Matmul::code_bytes(self)
    }
}

impl Executable for AttentionGradient {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the same promise.
        unsafe { AttentionGradient::launch(self, buffers, sizes) }
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(to_bytes(&Vec::<Piece>::new()))
    }
}

impl Executable for Attention {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the same promise.
        unsafe { Attention::launch(self, buffers, sizes) }
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(to_bytes(&Vec::<Piece>::new()))
    }
}
