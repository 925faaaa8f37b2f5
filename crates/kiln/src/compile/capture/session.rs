//! The capture under way on a thread, and how tensor code records in it.

use super::breaks::{BreakText, Cause};
use super::driver::Driver;
use super::recording::{Break, Recording};
use super::segment::InputSource;
use super::tree::BranchGuard;
use super::{disable, part};
use crate::tensor::dim::{self, Relation, Scope};
use crate::tensor::eager::{self, Operation, Write};
use crate::tensor::float::expression::Expression;
use crate::tensor::setting::Setting;
use crate::tensor::tape::{self, Tape};
use crate::tensor::tracer::{self, HostFunction, HostWork, Tracer, is_active, paused};
use crate::tensor::var::WeakVar;
use crate::{DType, Device, Error, Generator, Result, Tensor, Var};
use kiln_ir::build::Emit;
use kiln_ir::{Op, Source};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A capture under way.
pub(super) struct Session {
    pub(super) recording: Recording,
    /// Runs segments; without one, nothing can be read.
    pub(super) driver: Option<Driver>,
}

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// Runs `f` with `session` as the capture under way; gives the session back, unless it is lost.
pub(super) fn within<T>(session: Session, f: impl FnOnce() -> T) -> (T, Option<Session>) {
    SESSION.set(Some(session));
    let around = dim::scope::set_fixed(None);
    let result = tracer::traced_by(&SessionTracer, f);
    dim::scope::set_fixed(around);
    (result, SESSION.take())
}

/// Works on the capture under way, which is away meanwhile: what runs records nothing.
pub(super) fn with_session<T>(at: &Source, work: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
    let Some(mut session) = SESSION.take() else { return Err(Error::Escaped { at: at.clone() }) };
    let result = paused(|| {
        catch_unwind(AssertUnwindSafe(|| {
            let done = work(&mut session)?;
            session.fix_sizes()?;
            Ok(done)
        }))
    });
    SESSION.set(Some(session));
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The line of the call that the function is captured for, while it is.
pub(crate) fn call_site() -> Option<Source> {
    let at = |session: &Option<Session>| session.as_ref().map(|session| session.recording.at.clone());
    if is_active() { SESSION.with_borrow(at) } else { None }
}

/// The number of the argument that a traced tensor is, if it is one.
pub(crate) fn argument_number(tensor: &Tensor) -> Option<usize> {
    let at = Source::default();
    with_session(&at, |session| Ok(session.recording.argument_number(tensor))).ok().flatten()
}

/// A number that comes with the arguments, after their tensors.
pub(crate) fn extra_argument(number: usize, device: Device, at: &Source) -> Result<Tensor> {
    with_session(at, |session| session.recording.extra_argument(number, device, at))
}

impl Session {
    /// Goes on without symbols, if that is what the driver waits for.
    fn fix_sizes(&mut self) -> Result<()> {
        if self.recording.is_in_body() || !self.driver.as_mut().is_some_and(Driver::is_past_symbols) {
            return Ok(());
        }
        match Scope::leave() {
            Some(scope) => {
                dim::scope::set_fixed(Some(scope.sizes()));
                self.recording.fix_sizes(scope.sizes())
            }
            None => Ok(()),
        }
    }

    /// Makes sure that a tensor has memory, and says where: the segment ends and runs if it has to.
    pub(super) fn settle(&mut self, tensor: &Tensor, cause: Cause, at: &Source) -> Result<InputSource> {
        let value = self.recording.value_of(tensor, at)?;
        self.may_break(cause, at)?;
        if self.recording.settled(value).is_none() {
            let recorded = self.recording.end_segment(at)?;
            self.may_break(cause, at)?.segment(recorded, at)?;
        }
        self.recording.settled(value).cloned().ok_or_else(|| Error::Escaped { at: at.clone() })
    }
}

/// Notes that the sizes of a tensor are those of a variable.
fn has_shape_of(tensor: &Tensor, var: &Var, at: &Source) {
    for (size, &own) in tensor.sizes().iter().zip(var.shape()) {
        size.equals(own.into(), at);
    }
}

/// The [`Tracer`] of a capture: it works on the session of the thread.
pub(super) struct SessionTracer;

impl Tracer for SessionTracer {
    fn record(
        &self,
        what: Operation<'_>,
        operands: &[&Tensor],
        device: Device,
        write: Write<'_>,
        at: &Source,
    ) -> Result<Vec<Tensor>> {
        SESSION.with_borrow_mut(|slot| {
            let Some(Session { recording, .. }) = slot else { return Err(Error::Escaped { at: at.clone() }) };
            recording.must_not_have_failed()?;
            recording.builder().set_source(Some(what.source(at)));
            let failed = |cause| eager::refused(what, cause, at);
            let mut nodes = Vec::with_capacity(operands.len());
            for operand in operands {
                nodes.push(recording.node_of(operand, at)?);
            }
            let results = write(recording.builder(), &nodes).inspect_err(|cause| dim::scope::refused(cause, at));
            let mut results = results.map_err(failed)?;
            if !tape::is_enabled() {
                for result in &mut results {
                    if nodes.contains(result) {
                        // An operand as it is: gradients do go past that.
                        let shape = recording.builder().graph().ty(*result).shape.clone();
                        *result = recording.builder().emit(Op::Reshape { shape }, &[*result]).map_err(failed)?;
                    }
                }
                recording.stops.extend(&results);
            } else {
                if !matches!(what, Operation::Op(_)) {
                    recording.link(&nodes, &results);
                }
                if !matches!(what, Operation::Op(_)) || results.len() > 1 {
                    recording.operations.push((nodes, results.clone()));
                }
            }
            results.into_iter().map(|node| recording.inside(node, device, at)).collect()
        })
    }

    fn data(&self, bytes: &[u8], shape: &[usize], dtype: DType, device: Device, at: &Source) -> Result<Option<Tensor>> {
        with_session(at, |session| {
            if !session.recording.has_read {
                return Ok(None);
            }
            let data = Tensor::from_bytes_at(bytes, shape.to_vec(), dtype, device, at)?;
            let ty = data.ty();
            session.recording.outside(InputSource::Data(data), ty, device, None, at).map(Some)
        })
    }

    fn concrete(&self, tensor: &Tensor, what: &'static str, at: &Source) -> Result<Tensor> {
        with_session(at, |session| {
            session.recording.must_not_be_in_body(Cause::Reads(what), at)?;
            session.recording.must_not_be_in_function()
        })?;
        // Whoever has the elements knows how many there are.
        for size in tensor.sizes() {
            size.number(at);
        }
        with_session(at, |session| {
            let from = session.settle(tensor, Cause::Reads(what), at)?;
            let Session { driver: Some(driver), .. } = session else { return Err(Error::Escaped { at: at.clone() }) };
            driver.ask(BranchGuard::Elements { of: from.clone(), what, at: at.clone() }, at)?;
            let read = driver.tensor(&from, at)?;
            // One flag is a decision; anything more is data, which may be found again in what follows.
            session.recording.has_read |= read.dtype() != DType::Bool || read.elements() != 1;
            Ok(read)
        })
    }

    fn sized_by_data(
        &self,
        tensor: &Tensor,
        compute: fn(&Tensor, &Source) -> Result<Tensor>,
        most: Option<usize>,
        at: &Source,
    ) -> Result<Tensor> {
        with_session(at, |session| session.sized_by_data(tensor, compute, most, at))
    }

    fn decide(&self, left: &Expression<Tensor>, relation: Relation, right: &Expression<Tensor>, at: &Source) -> bool {
        let decided = with_session(at, |session| session.decide(left, relation, right, at));
        decided.unwrap_or_else(|error| SESSION.with_borrow_mut(|slot| slot.as_mut().is_some_and(|s| s.fail(error))))
    }

    fn number(&self, expression: &Expression<Tensor>, device: Device, at: &Source) -> Result<Tensor> {
        let made = with_session(at, |session| session.number(expression, device, at));
        made.inspect_err(|error| {
            SESSION.with_borrow_mut(|slot| slot.as_mut().is_some_and(|s| s.fail(error.clone())));
        })
    }

    fn outside(&self, what: HostWork, tensors: &[&Tensor], compute: HostFunction, at: &Source) -> Result<Vec<Tensor>> {
        let given: Vec<Tensor> = tensors.iter().map(|&tensor| tensor.clone()).collect();
        let cause = match what {
            HostWork::Factorisation(op) => Cause::Factorisation(op),
            HostWork::Function => Cause::OwnGradient,
            HostWork::Hook => Cause::Hook,
        };
        disable::outside(move |tensors: &Vec<Tensor>| compute(tensors), &given, BreakText::of(cause, at), at)
    }

    fn records_function(&self, at: &Source) -> Result<bool> {
        let in_body = with_session(at, |session| Ok(session.recording.is_in_body()))?;
        if in_body {
            return Ok(false);
        }
        // Without anybody outside who wants gradients none are lost.
        self.is_recorded(at)?;
        with_session(at, |session| Ok(session.driver.as_ref().is_none_or(|driver| driver.records_function(at))))
    }

    fn begin_function(&self, at: &Source) -> Result<()> {
        with_session(at, |session| {
            session.recording.running.push(at.clone());
            Ok(())
        })
    }

    fn end_function(&self, at: &Source) -> Result<()> {
        with_session(at, |session| {
            session.recording.running.pop();
            Ok(())
        })
    }

    fn function_results(&self, operands: &[Tensor], results: Vec<Tensor>, at: &Source) -> Result<Vec<Tensor>> {
        with_session(at, |session| session.recording.function_results(operands, results, at))
    }

    fn alias(&self, tensor: &Tensor, tape: Option<Tape>, at: &Source) -> Result<Tensor> {
        with_session(at, |session| session.recording.alias(tensor, tape, at))
    }

    fn start(&self, tensor: &Tensor, at: &Source) -> Result<Tensor> {
        with_session(at, |session| session.recording.start(tensor, at))
    }

    fn is_recorded(&self, at: &Source) -> Result<bool> {
        with_session(at, |session| {
            let records = session.recording.records;
            session.recording.has_asked = true;
            if let Some(driver) = &mut session.driver
                && !session.recording.asked_records
            {
                session.recording.asked_records = true;
                driver.ask(BranchGuard::IsRecorded, at)?;
            }
            Ok(records)
        })
    }

    fn backward_of_argument(&self, argument: usize, cotangent: &Tensor, at: &Source) -> Result<()> {
        part::backward_of_argument(argument, cotangent, at)
    }

    fn break_at(&self, what: &'static str, at: &Source) -> Result<()> {
        with_session(at, |session| {
            if session.recording.must_not_be_in_body(Cause::Reads(what), at).is_ok() {
                session.recording.broken.get_or_insert(Break { what, at: at.clone() });
            }
            Ok(())
        })
    }

    fn make_var(&self, var: WeakVar, value: &Tensor, at: &Source) -> Result<()> {
        with_session(at, |session| session.recording.make_var(var, value, at))
    }

    fn read_var(&self, var: &Var, at: &Source) -> Result<Tensor> {
        with_session(at, |session| session.recording.read_var(var, at))
    }

    fn write_var(&self, var: &Var, tensor: &Tensor, at: &Source) -> Result<()> {
        has_shape_of(tensor, var, at);
        with_session(at, |session| session.recording.write_var(var, tensor, at))
    }

    fn read_gradient(&self, var: &Var, at: &Source) -> Result<Option<Tensor>> {
        with_session(at, |session| {
            let mut is_there = false;
            if !session.recording.knows_gradient(var) {
                is_there = var.has_grad();
                session.recording.has_asked = true;
                if let Some(driver) = &mut session.driver {
                    is_there = *driver.ask(BranchGuard::HasGradient(var.clone()), at)? == [1];
                }
            }
            session.recording.read_gradient(var, is_there, at)
        })
    }

    fn write_gradient(&self, var: &Var, tensor: Option<&Tensor>, at: &Source) -> Result<()> {
        if let Some(tensor) = tensor {
            has_shape_of(tensor, var, at);
        }
        with_session(at, |session| session.recording.write_gradient(var, tensor, at))
    }

    fn random_key(&self, generator: &Generator, device: Device, at: &Source) -> Result<Tensor> {
        with_session(at, |session| session.recording.key(generator, device, at))
    }

    fn read_setting(&self, setting: &Setting, value: u64) -> Result<u64> {
        let at = Source::default();
        with_session(&at, |session| {
            let known = session.recording.settings.iter().find(|(known, _)| known.same(setting));
            if let Some((_, value)) = known {
                return Ok(*value);
            }
            let mut read = value;
            if let Some(driver) = &mut session.driver {
                let outcome = driver.ask(BranchGuard::Setting(setting.clone()), &at)?;
                read = outcome[..].try_into().map_or(value, u64::from_le_bytes);
            }
            session.recording.has_asked = true;
            session.recording.settings.push((setting.clone(), read));
            Ok(read)
        })
    }
}
