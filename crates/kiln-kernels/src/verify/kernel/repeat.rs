//! Rules of loops: their launches are kernels by themselves, and refer to what there is.

use super::{KernelViolation, Rule, of_kernel};
use crate::kernel::{Access, CarriedBuffer, Kernel, RepeatBody, TurnBuffer, TurnLaunch};
use kiln_ir::{DType, Dim};

pub(super) fn verify(kernel: &Kernel, body: &RepeatBody, written: &mut [bool]) -> Result<(), KernelViolation> {
    let count = |what, expected, found| of_kernel(Rule::Count { what, expected, found });
    let argument = |buffer: usize| match buffer < kernel.buffers.len() {
        true => Ok(&kernel.buffers[buffer]),
        false => Err(count("arguments of a loop", kernel.buffers.len(), buffer + 1)),
    };
    let known = |dim: &Dim| match dim.symbols().into_iter().all(|symbol| kernel.sizes.contains(&symbol)) {
        true => Ok(()),
        false => Err(of_kernel(Rule::OutOfRange { what: "a size of a loop", value: dim.clone() })),
    };
    let mut all = Ok(());
    body.visit_dims(&mut |dim| {
        if all.is_ok() {
            all = known(dim);
        }
    });
    all?;
    for carried in &body.carried {
        let CarriedBuffer { first, last, other, copy, sizes, .. } = carried;
        copy.verify()?;
        if copy.sizes.len() != sizes.len() || copy.buffers.len() != 2 {
            return Err(count("sizes of a copy", copy.sizes.len(), sizes.len()));
        }
        let same = [first, last, other]
            .into_iter()
            .all(|at| argument(*at).is_ok_and(|arg| arg.dtype == copy.buffers[0].dtype));
        let distinct = first != last && first != other;
        let writable = [last, other].into_iter().all(|at| argument(*at).is_ok_and(|arg| arg.access != Access::Read));
        if !same || !distinct || !writable {
            return Err(of_kernel(Rule::Misplaced { what: "a value that is carried" }));
        }
        [last, other].into_iter().for_each(|at| written[*at] = true);
    }
    if body.is_conditional {
        let condition = body.carried.last().and_then(|carried| kernel.buffers.get(carried.first));
        let has_rows = body.buffers.iter().any(|buffer| matches!(buffer, TurnBuffer::Row { .. }));
        if condition.is_none_or(|buffer| buffer.dtype != DType::Bool) || has_rows {
            return Err(of_kernel(Rule::Misplaced { what: "a condition" }));
        }
    }
    if let Some(choice) = &body.choice {
        let is_bool = kernel.buffers.get(choice.predicate).is_some_and(|buffer| buffer.dtype == DType::Bool);
        if !is_bool || !body.turns.is_one() || body.is_conditional || !body.carried.is_empty() {
            return Err(of_kernel(Rule::Misplaced { what: "a predicate" }));
        }
    }
    for TurnLaunch { kernel: own, args, sizes } in body.all_launches() {
        own.verify()?;
        if own.buffers.len() != args.len() {
            return Err(count("arguments of a launch in a loop", own.buffers.len(), args.len()));
        }
        if own.sizes.len() != sizes.len() {
            return Err(count("sizes of a launch in a loop", own.sizes.len(), sizes.len()));
        }
        for (arg, declared) in args.iter().zip(&own.buffers) {
            let place =
                body.buffers.get(*arg).ok_or_else(|| count("buffers of a turn", body.buffers.len(), arg + 1))?;
            let (dtype, access) =
                target(kernel, body, place).ok_or_else(|| count("arguments of a loop", kernel.buffers.len(), *arg))?;
            let writes = declared.access != Access::Read;
            // Elements of half a byte have no places of their own.
            if bits(dtype) != bits(declared.dtype)
                || (writes && access == Access::Read)
                || dtype == DType::I4 && matches!(place, TurnBuffer::Row { .. })
            {
                return Err(of_kernel(Rule::Misplaced { what: "an argument of a launch in a loop" }));
            }
            if let (true, TurnBuffer::Whole { buffer, .. } | TurnBuffer::Row { buffer, .. }) = (writes, place) {
                written[*buffer] = true;
            }
        }
    }
    Ok(())
}

fn bits(dtype: DType) -> usize {
    dtype.size_in_bits()
}

/// The element type of what a launch of a turn refers to, and what may be done with it.
fn target(kernel: &Kernel, body: &RepeatBody, place: &TurnBuffer) -> Option<(DType, Access)> {
    Some(match place {
        TurnBuffer::Whole { buffer, .. } | TurnBuffer::Row { buffer, .. } => {
            let argument = kernel.buffers.get(*buffer)?;
            (argument.dtype, argument.access)
        }
        TurnBuffer::Carried(at) => (kernel.buffers.get(body.carried.get(*at)?.first)?.dtype, Access::Read),
        TurnBuffer::Next(at) => (kernel.buffers.get(body.carried.get(*at)?.last)?.dtype, Access::Write),
    })
}
