//! A product as code: cuBLASLt where it takes the launch, the kernel's own text elsewhere.

use super::plan::{ALIGNMENT, Addresses, Plan};
use super::product::{Extent, Product};
use super::{Blas, Policy};
use crate::CudaBackend;
use crate::backend::OWN;
use crate::capture::{External, Made, made, saved_code};
use crate::device::Gpu;
use crate::driver::RawStream;
use crate::executable::{Code, Stored, StoredLibrary, Workspace, made_beside, own_code};
use kiln_ir::codec::to_bytes;
use kiln_kernels::kernel::{Access, Kernel};
use kiln_runtime::{Executable, Keep, LaunchError, RawBuffer, Variant, kernel_cache};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Plans of other sizes that are kept.
const PLANS_KEPT: usize = 64;

/// Code of a product.
#[derive(Clone)]
pub(crate) struct BlasCode(Arc<Inner>);

struct Inner {
    backend: CudaBackend,
    gpu: &'static Gpu,
    keep: Keep,
    kernel: Kernel,
    product: Product,
    policy: Policy,
    /// The number of the algorithm, where it was measured.
    algorithm: Option<usize>,
    /// What the library proposes, by sizes.
    plans: Mutex<HashMap<Vec<i64>, Result<Plan, LaunchError>>>,
    own: Made,
    /// The code of the product's epilogue, where it is a kernel of its own.
    epilogue: Made,
}

impl BlasCode {
    /// The code of a kernel: by one algorithm at all sizes, or by the first one where the product is large. `None` where the library is
    /// not there, not wanted, or has no such product.
    pub(crate) fn of(backend: CudaBackend, kernel: &Kernel, algorithm: Option<usize>, keep: Keep) -> Option<BlasCode> {
        let code = BlasCode::proposed(backend, kernel, algorithm, keep)?;
        Blas::of(backend.gpu()).is_ok().then_some(code)
    }

    /// The same without a look for the library.
    fn proposed(backend: CudaBackend, kernel: &Kernel, algorithm: Option<usize>, keep: Keep) -> Option<BlasCode> {
        let gpu = backend.gpu();
        let policy = Policy::of_environment();
        let mut product = Product::of(kernel).filter(|_| policy != Policy::Off)?;
        product.warpgroups = gpu.way().warpgroups;
        if policy == Policy::Auto && algorithm.is_none() && !product.may_be_large() {
            return None;
        }
        let (kernel, plans, own, epilogue) = (kernel.clone(), Mutex::default(), OnceLock::new(), OnceLock::new());
        let inner = Inner { backend, gpu, keep, kernel, product, policy, algorithm, plans, own, epilogue };
        Some(BlasCode(Arc::new(inner)))
    }

    /// The code that was stored. The library is loaded when it is first launched.
    pub(crate) fn restore(
        backend: CudaBackend,
        kernel: &Kernel,
        algorithm: Option<usize>,
        stored: &StoredLibrary,
    ) -> Option<BlasCode> {
        let code = BlasCode::proposed(backend, kernel, algorithm, Keep::Disk)?;
        if let Some(own) = &stored.own {
            let variant = Variant::default().choosing(OWN);
            let _ = code.0.own.set(saved_code(&backend, &Arc::new(kernel.clone()), &variant, own)?);
        }
        if let (Some(epilogue), Some(bytes)) = (&code.0.product.epilogue, &stored.epilogue) {
            let _ = code.0.epilogue.set(saved_code(&backend, epilogue, &Variant::default(), bytes)?);
        }
        Some(code)
    }

    /// Makes what launches need: the epilogue, and the kernel's own text if some sizes may need it.
    pub(crate) fn make(&self) -> Result<(), LaunchError> {
        self.epilogue()?;
        if self.0.algorithm.is_none() && !self.0.kernel.sizes.is_empty() {
            self.own()?;
        }
        Ok(())
    }

    /// The number of algorithms at these sizes; 0 where the library is not worth a measurement.
    pub(crate) fn algorithms(&self, sizes: &[i64]) -> usize {
        let proposals = || {
            let extent = self.0.product.at(sizes).filter(|extent| !extent.is_few())?;
            self.0.gpu.enter().ok()?;
            Some(Plan::new(Blas::of(self.0.gpu).ok()?, &self.0.product, &extent).ok()?.proposals())
        };
        proposals().unwrap_or(0)
    }

    /// Whether launches of these sizes are the library's.
    pub(crate) fn takes(&self, sizes: &[i64]) -> bool {
        self.0.product.at(sizes).is_some_and(|extent| self.0.takes(&extent))
    }
}

impl External for BlasCode {
    fn gpu(&self) -> &'static Gpu {
        self.0.gpu
    }

    fn written(&self) -> Vec<bool> {
        self.0.kernel.buffers.iter().map(|buffer| buffer.access != Access::Read).collect()
    }

    fn own(&self) -> Result<&Code, LaunchError> {
        self.0.own()
    }

    fn epilogue(&self) -> Result<Option<&Code>, LaunchError> {
        let Inner { backend, keep, product, epilogue, .. } = &*self.0;
        let Some(kernel) = &product.epilogue else { return Ok(None) };
        let make = || {
            let made = kernel_cache::get_kept(backend, kernel, "epilogue", *keep);
            made.map(|(code, _)| code).map_err(|error| LaunchError::Device { code: 0, message: error.to_string() })
        };
        own_code(epilogue.get_or_init(make)).map(Some)
    }

    fn scratch_bytes(&self, sizes: &[i64]) -> usize {
        let extent = self.0.product.at(sizes).filter(|extent| self.0.takes(extent));
        extent.map_or(0, |extent| extent.scratch as usize)
    }

    fn arguments(&self, buffers: &[RawBuffer], scratch: Option<&Workspace>) -> Vec<RawBuffer> {
        let raw = |scratch: &Workspace| RawBuffer { ptr: scratch.address as *mut u8, bytes: scratch.bytes };
        buffers.iter().copied().chain(scratch.filter(|_| self.0.product.epilogue.is_some()).map(raw)).collect()
    }

    unsafe fn queue(&self, arguments: &[RawBuffer], sizes: &[i64], stream: RawStream) -> Result<bool, LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.multiply(arguments, sizes, stream) }
    }

    fn share(&self) -> Box<dyn External> {
        Box::new(self.clone())
    }
}

impl Inner {
    fn own(&self) -> Result<&Code, LaunchError> {
        own_code(self.own.get_or_init(|| made_beside(&self.backend, &self.kernel, OWN, self.keep)))
    }

    /// Whether a product of this extent is the library's.
    fn takes(&self, extent: &Extent) -> bool {
        self.algorithm.is_some() || self.policy == Policy::Always || extent.is_large()
    }

    /// Queues the product of a launch on a stream if it is the library's, and returns whether it is.
    ///
    /// # Safety
    /// As [`Executable::launch`]; the GPU's context is current.
    unsafe fn multiply(&self, arguments: &[RawBuffer], sizes: &[i64], stream: RawStream) -> Result<bool, LaunchError> {
        let Some(extent) = self.product.at(sizes).filter(|extent| self.takes(extent)) else { return Ok(false) };
        let Some(addresses) = self.addresses(arguments, &extent) else { return Ok(false) };
        // Without the library everything is the own text's.
        let Ok(blas) = Blas::of(self.gpu) else { return Ok(false) };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= PLANS_KEPT && !plans.contains_key(sizes) {
            plans.clear();
        }
        let plan = plans.entry(sizes.to_vec()).or_insert_with(|| Plan::new(blas, &self.product, &extent));
        // What the library refuses is the own text's.
        let Some(plan) = plan.as_mut().ok().filter(|plan| plan.proposals() > 0) else { return Ok(false) };
        // SAFETY: the caller's promise.
        unsafe { plan.multiply(self.algorithm.unwrap_or(0), addresses, stream) }.map(|()| true)
    }

    /// Where the matrices are, if all of them are aligned.
    fn addresses(&self, arguments: &[RawBuffer], extent: &Extent) -> Option<Addresses> {
        let Product { a, b, c, d, bias, dtype, out_dtype, .. } = &self.product;
        let at = |buffer: usize, offset: i64, bits: usize| {
            let address = (arguments[buffer].ptr as u64).checked_add_signed(offset * bits as i64 / 8)?;
            address.is_multiple_of(ALIGNMENT as u64).then_some(address)
        };
        let (bits, out_bits) = (dtype.size_in_bits(), out_dtype.size_in_bits());
        Some(Addresses {
            a: at(a.buffer, extent.a.offset, bits)?,
            b: at(b.buffer, extent.b.offset, bits)?,
            c: at(c.as_ref().unwrap_or(d).buffer, extent.c.offset, out_bits)?,
            d: at(d.buffer, extent.d.offset, out_bits)?,
            bias: match bias {
                Some(bias) => Some(at(bias.buffer, extent.bias, out_bits)?),
                None => None,
            },
        })
    }
}

impl Executable for BlasCode {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_at(buffers, sizes, 0) }
    }

    unsafe fn launch_at(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_all(buffers, sizes, site) }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn intermediate(&self) -> Option<String> {
        let own = made(&self.0.own).and_then(|code| code.intermediate()).unwrap_or_default();
        Some(format!("// cublasLtMatmul: {}\n{own}", self.0.product))
    }

    fn save(&self) -> Option<Vec<u8>> {
        let saved = |code: &Made| made(code).and_then(|code| code.save()).map(Arc::from);
        let (own, epilogue) = (saved(&self.0.own), saved(&self.0.epilogue));
        Some(to_bytes(&Stored::Library(StoredLibrary { own, epilogue, engine: None })))
    }

    fn code_bytes(&self) -> usize {
        made(&self.0.own).map_or(0, |code| code.code_bytes())
    }
}
