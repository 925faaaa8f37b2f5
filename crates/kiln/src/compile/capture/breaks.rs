//! What is said of graph breaks: what the function does there, and the way out. Loops whose body is no graph remember the first thing in it
//! that is none.

use super::with_session;
use crate::Result;
use kiln_ir::Source;
use kiln_runtime::event::{self, Category, Event};

/// What a part of a function does that keeps it out of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// It reads elements, or does what these words say.
    Reads(&'static str),
    /// The shape of its result depends on elements.
    SizeOfData,
    /// It computes with numbers that were read, outside of the graph.
    NumberOfData,
    /// It is disabled.
    Disabled,
    /// It is an algorithm of this name for matrices, on the host.
    Factorisation(&'static str),
    /// It has a gradient of its own.
    OwnGradient,
    /// It has a hook on a gradient.
    Hook,
    /// Gradients go through a part that is outside of the graph.
    GradientOfPart,
    /// Gradients go on outside of the function.
    GradientOutside,
    /// It draws random numbers.
    Random,
    /// It gives a variable another value.
    ChangesVar,
    /// It gives a variable another gradient.
    ChangesGradient,
    /// It makes a variable.
    MakesVar,
    /// A tape starts in it.
    StartsTape,
    /// Gradients of others go through it, and stop in it.
    StopsGradients,
    /// Gradients go through a loop until a condition fails, whose turns have no bound.
    Unbounded,
    /// What a loop carries on is not of the types that it began with, or differs in plain values.
    Unlike,
    /// It uses two devices, or elements of half a byte.
    Places,
    /// The condition is no bool of one element.
    Condition,
    /// There is no tensor to loop over or to carry, or their lengths differ.
    Lengths,
}

/// The way out of a break at which elements are read.
pub(super) const READ_FIX: &str = "the graph ends there and another begins; `where_` instead of `if` keeps one";

impl Cause {
    /// What the function does.
    pub(super) fn what(self) -> &'static str {
        match self {
            Cause::Reads(what) => what,
            Cause::SizeOfData => "asks for a result whose size depends on elements",
            Cause::NumberOfData => "computes with numbers that it reads",
            Cause::Disabled => "calls a disabled part",
            Cause::Factorisation(_) => "factorises matrices on the host",
            Cause::OwnGradient => "calls a function with a gradient of its own",
            Cause::Hook => "has a hook on a gradient",
            Cause::GradientOfPart => "asks for gradients through a disabled part",
            Cause::GradientOutside => "asks for gradients of variables outside of it",
            Cause::Random => "draws random numbers in a loop",
            Cause::ChangesVar => "changes a variable in a loop",
            Cause::ChangesGradient => "changes the gradient of a variable in a loop",
            Cause::MakesVar => "makes a variable in a loop",
            Cause::StartsTape => "starts a tape in a loop",
            Cause::StopsGradients => "stops gradients in a loop that others go through",
            Cause::Unbounded => "has gradients through a loop without a bound",
            Cause::Unlike => "carries on other shapes, dtypes or plain values in a loop than it began with",
            Cause::Places => "uses two devices, or elements of half a byte, in a loop",
            Cause::Condition => "has a loop whose condition is no bool of one element",
            Cause::Lengths => "has a loop over tensors of different lengths, or over none",
        }
    }

    /// The way out, where the function itself does it.
    fn fix(self) -> &'static str {
        match self {
            Cause::Reads(what) if what.contains("side of `cond`") || what.contains("sides of `cond`") => {
                "sides of tensor operations with results of the same shapes and dtypes keep one graph: read, draw random numbers and change \
                 variables before or after `cond`, and bound loops in it by `bounded`"
            }
            Cause::Reads(_) => READ_FIX,
            Cause::SizeOfData => {
                "the graph ends there, and one program for all sizes goes on; `where_` with a mask over all places keeps one graph"
            }
            Cause::NumberOfData => {
                "the graph ends there and another begins; as tensors without axes the numbers are computed in it"
            }
            Cause::Disabled => {
                "the graph ends there and another begins; without `kiln::disable` around it, or called before or after the compiled function, \
                 there is one"
            }
            Cause::Factorisation(_) => {
                "the graph ends there and another begins; factorise before the compiled function is called and pass the result, or once \
                 for all matrices of a batch"
            }
            Cause::OwnGradient => {
                "its gradients are wanted outside, or it reads elements: call `backward` inside of the compiled function, or write it as \
                 operations whose gradients are derived"
            }
            Cause::Hook => {
                "the graph ends there and another begins; change the gradient after `backward`, or hook outside of the function"
            }
            Cause::GradientOfPart => {
                "the gradient runs where the part runs; a part that is in the graph has its gradient there, too"
            }
            Cause::GradientOutside => {
                "call `backward` outside of the compiled function, or compute what it differentiates inside of it"
            }
            _ => self.fix_in_loop(),
        }
    }

    /// The way out, where the body of a loop does it.
    fn fix_in_loop(self) -> &'static str {
        match self {
            Cause::Reads(_) => "keep to tensors in the body (`where_`, `kiln::cond`), and read after the loop",
            Cause::SizeOfData => "keep all places in the body and mask them (`where_`)",
            Cause::NumberOfData => "compute with tensors in the body, and read after the loop",
            Cause::Disabled => "call the disabled part before or after the loop",
            Cause::Factorisation(_) => "factorise all matrices at once, before or after the loop",
            Cause::OwnGradient => {
                "write it as operations whose gradients are derived, or call it before or after the loop"
            }
            Cause::Hook => "hook on what goes into the loop or comes out of it",
            Cause::GradientOfPart | Cause::GradientOutside => "differentiate before or after the loop",
            Cause::Random => "draw the numbers of all turns before the loop, and loop over them with the rows",
            Cause::ChangesVar => "carry its value from turn to turn, and set the variable after the loop",
            Cause::ChangesGradient => "call `backward` after the loop",
            Cause::MakesVar => "make the variable before the loop, or carry a tensor",
            Cause::StartsTape => "call `requires_grad` before the loop, and differentiate after it",
            Cause::StopsGradients => "call `detach` or `no_grad` around the whole loop, or before it on what it uses",
            Cause::Unbounded => "`bounded(n)` makes it an op of the graph with gradients, of at most n turns",
            Cause::Unlike => {
                "give what is carried the same shape and dtype at each turn (`to_dtype`, `reshape`, `expand`)"
            }
            Cause::Places => "move all that the loop uses to one device (`to_device`), in elements of a byte or more",
            Cause::Condition => "reduce the condition to one bool (`all`, `any`, `amax(..)?.gt(..)`)",
            Cause::Lengths => "loop over tensors of one length, and carry one tensor at least",
        }
    }
}

/// The way out of a break at which a function does this.
pub(super) fn fix_of(what: &'static str) -> &'static str {
    Cause::Reads(what).fix()
}

/// The first thing in the body of a loop that is no part of a graph, and its line.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) cause: Cause,
    pub(super) at: Source,
}

/// What users are told of a graph break.
#[derive(Debug, Clone)]
pub(super) struct BreakText {
    /// What the function does, and where.
    pub(super) because: Refusal,
    pub(super) what: String,
    pub(super) fix: &'static str,
}

impl BreakText {
    pub(super) fn of(cause: Cause, at: &Source) -> BreakText {
        let what = match cause {
            Cause::Factorisation(op) => format!("{} ({op})", cause.what()),
            _ => cause.what().to_owned(),
        };
        BreakText { because: Refusal { cause, at: at.clone() }, what, fix: cause.fix() }
    }

    /// Of a loop that runs turn by turn because of what its body does.
    fn of_loop(because: Refusal) -> BreakText {
        let Refusal { cause, at } = &because;
        let line = if at.is_unknown() { String::new() } else { format!(" at {at}") };
        let what = format!("runs a loop turn by turn, for it {}{line}", cause.what());
        BreakText { what, fix: cause.fix_in_loop(), because }
    }

    /// Says so, for a break at this line.
    pub(super) fn emit(&self, at: &Source) {
        emit(&self.what, self.fix, at);
    }
}

/// Says that a graph breaks.
pub(super) fn emit(what: &str, fix: &str, at: &Source) {
    event::emit(Category::Breaks, || Event::GraphBreak { what: what.to_owned(), fix: fix.to_owned(), at: at.clone() });
}

/// Notes why a loop that is being recorded cannot be an op.
pub(super) fn refuse(cause: Cause, at: &Source) -> Result<()> {
    with_session(at, |session| {
        session.recording.refusal = Some(Refusal { cause, at: at.clone() });
        Ok(())
    })
}

/// What is said of a loop that could not be an op.
pub(super) fn text_of_loop(at: &Source) -> Result<BreakText> {
    with_session(at, |session| {
        let refusal = session.recording.refusal.take();
        Ok(BreakText::of_loop(refusal.unwrap_or(Refusal { cause: Cause::Unlike, at: at.clone() })))
    })
}
