//! Execution plans: an engine that is ready to compute a problem. As text, which has the engine's code, they are kept on disk.

use super::descriptor::{Descriptor, attribute, kind, of_type};
use super::library::Dnn;
use super::plan::number;
use super::problem::{Memory, Problem};
use crate::driver::{DevicePtr, RawStream};
use kiln_runtime::LaunchError;
use std::ffi::c_void;

/// Bytes of memory that an engine may use.
const MOST_WORKSPACE: i64 = 512 << 20;

/// An engine for a problem.
pub(super) struct Engine {
    dnn: &'static Dnn,
    plan: Descriptor,
    /// Bytes of memory that it uses.
    pub(super) workspace: usize,
    /// The tensors that a launch brings.
    tensors: Vec<(i64, Memory)>,
}

impl Engine {
    /// The engine of a configuration, which may be compiled.
    pub(super) fn of(dnn: &'static Dnn, problem: &Problem, config: &Descriptor) -> Result<Engine, LaunchError> {
        Engine::new(dnn, problem, |plan| plan.with(attribute::PLAN_CONFIG, config))
    }

    /// The engine that [`Engine::save`] gave; an error where it is of another version or GPU.
    pub(super) fn restore(dnn: &'static Dnn, problem: &Problem, text: &[u8]) -> Result<Engine, LaunchError> {
        Engine::new(dnn, problem, |plan| plan.set(attribute::PLAN_TEXT, of_type::CHAR, text))
    }

    fn new(
        dnn: &'static Dnn,
        problem: &Problem,
        set: impl FnOnce(Descriptor) -> Result<Descriptor, LaunchError>,
    ) -> Result<Engine, LaunchError> {
        let handle = dnn.handle()?;
        let plan = Descriptor::new(dnn.functions, kind::PLAN)?;
        let plan = set(plan.set(attribute::PLAN_HANDLE, of_type::HANDLE, &[handle.raw()])?)?.done()?;
        let mut bytes = [0i64];
        plan.get(attribute::PLAN_WORKSPACE, of_type::INT64, &mut bytes)?;
        if bytes[0] > MOST_WORKSPACE {
            return Err(LaunchError::Device { code: 0, message: "cuDNN's engine needs too much memory".to_owned() });
        }
        let tensors = problem.tensors.iter().enumerate().map(|(id, tensor)| (number(id), tensor.memory));
        let tensors = tensors.filter(|(_, memory)| *memory != Memory::Between).collect();
        Ok(Engine { dnn, plan, workspace: bytes[0].max(0) as usize, tensors })
    }

    /// Its plan as text; `None` for an engine that has none.
    pub(super) fn save(&self) -> Option<Vec<u8>> {
        let size = self.plan.get::<u8>(attribute::PLAN_TEXT, of_type::CHAR, &mut []).ok()?;
        let mut text = vec![0; size];
        let size = self.plan.get(attribute::PLAN_TEXT, of_type::CHAR, &mut text).ok()?;
        text.truncate(size);
        (!text.is_empty()).then_some(text)
    }

    /// Queues the problem. `address` says where tensors in memory are.
    ///
    /// # Safety
    /// The addresses are those of the problem's tensors, `workspace` is of as many bytes as the engine uses, and the GPU's context is
    /// current.
    pub(super) unsafe fn execute(
        &self,
        address: &dyn Fn(Memory) -> DevicePtr,
        workspace: DevicePtr,
        stream: RawStream,
    ) -> Result<(), LaunchError> {
        let functions = self.dnn.functions;
        let ids: Vec<i64> = self.tensors.iter().map(|(id, _)| *id).collect();
        // Numbers are read from here before the call returns.
        let numbers: Vec<u32> = self.tensors.iter().map(|(_, memory)| bits(*memory)).collect();
        let pointer = |((_, memory), number): (&(i64, Memory), &u32)| match memory {
            Memory::Float(_) | Memory::Int(_) => std::ptr::from_ref(number).cast::<c_void>(),
            _ => address(*memory) as *const c_void,
        };
        let pointers: Vec<*const c_void> = self.tensors.iter().zip(&numbers).map(pointer).collect();
        let pack = Descriptor::new(functions, kind::VARIANT_PACK)?
            .set(attribute::PACK_POINTERS, of_type::POINTER, &pointers)?
            .set(attribute::PACK_IDS, of_type::INT64, &ids)?
            .set(attribute::PACK_WORKSPACE, of_type::POINTER, &[workspace])?
            .done()?;
        let handle = self.dnn.handle()?;
        // SAFETY: the caller's promise.
        let status = unsafe {
            functions.check("cudnnSetStream", (functions.set_stream)(handle.raw(), stream))?;
            (functions.execute)(handle.raw(), self.plan.raw, pack.raw)
        };
        functions.check("cudnnBackendExecute", status)
    }
}

fn bits(memory: Memory) -> u32 {
    match memory {
        Memory::Float(bits) => bits,
        Memory::Int(value) => value as u32,
        _ => 0,
    }
}
