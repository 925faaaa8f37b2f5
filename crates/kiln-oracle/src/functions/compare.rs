//! Calls a program as it is and compiled, and compares what can be seen after each call.

use super::program::{Call, Program};
use super::run::{World, call};
use kiln::{DType, Error, Options, Result, Tensor, compile_with, no_grad};
use kiln_kernels::Numerics;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Where both ways of calling a program differ.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The number of the call, from 0; the number of calls where it was seen after all of them.
    pub call: usize,
    /// What differs.
    pub what: String,
    /// What it is where the function is called as it is.
    pub eager: String,
    /// What it is where the function is compiled.
    pub compiled: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { call, what, eager, compiled } = self;
        write!(f, "call {call}, {what}: eager {eager}, compiled {compiled}")
    }
}

impl std::error::Error for Difference {}

/// Something that can be seen after a call.
struct Observation {
    what: String,
    value: String,
    /// More about it, which may differ: an error's text.
    detail: String,
}

impl Observation {
    fn new(what: &str, value: String) -> Observation {
        Observation { what: what.to_owned(), value, detail: String::new() }
    }

    fn told(&self) -> String {
        format!("{}{}", self.value, self.detail)
    }
}

/// All that can be seen.
type Observations = Vec<Observation>;

/// Runs a program both ways. An answer in f32 that differs by rounding alone is right in f64, and counts as right.
pub fn compare(program: &Program) -> Result<(), Difference> {
    let difference = match once(program) {
        Ok(()) => return Ok(()),
        Err(difference) => difference,
    };
    if program.dtype == DType::F32 && once(&Program { dtype: DType::F64, ..program.clone() }).is_ok() {
        return Ok(());
    }
    Err(difference)
}

fn once(program: &Program) -> Result<(), Difference> {
    let options = Options {
        dynamic: program.choices.dynamic.clone(),
        mode: program.choices.mode,
        freeze: program.choices.freeze,
        background: program.choices.background,
        never_slower: program.choices.never_slower,
        verify: program.choices.verify,
        cache_limit: program.choices.cache_limit,
        numerics: Numerics::Eager,
        tuning_budget: std::time::Duration::from_millis(1),
        ..Options::default()
    };
    let world = |is_compiled| World::new(program, is_compiled, options.clone()).map(Arc::new);
    let failed = |error: Error| Difference {
        call: 0,
        what: "the program cannot be set up".to_owned(),
        eager: error.to_string(),
        compiled: error.to_string(),
    };
    let (own, other) = (world(false).map_err(failed)?, world(true).map_err(failed)?);
    let (inside, function) = (other.clone(), program.clone());
    let fast = compile_with(move |arguments: &Vec<Tensor>| call(&function, &inside, arguments), options);
    let (mut eager_kept, mut compiled_kept) = (Vec::new(), Vec::new());
    for (number, around) in program.calls.iter().enumerate() {
        let eager = look(&own, around, &mut eager_kept, &|arguments| call(program, &own, arguments));
        let compiled = look(&other, around, &mut compiled_kept, &|arguments| fast.call(arguments));
        same(number, &eager, &compiled)?;
    }
    // Results of earlier calls stay what they were, and both drew as many numbers.
    let last = |world: &World, kept: &[Tensor]| -> Observations {
        let mut observations: Observations =
            kept.iter().map(|tensor| Observation::new("a result kept", show(tensor))).collect();
        let next = world.numbers.randint(0, 1 << 40, 1, kiln::Device::Cpu);
        observations.push(Observation::new(
            "the next random number",
            next.map_or_else(|error| error.to_string(), |x| show(&x)),
        ));
        observations
    };
    same(program.calls.len(), &last(&own, &eager_kept), &last(&other, &compiled_kept))
}

fn same(call: usize, eager: &Observations, compiled: &Observations) -> Result<(), Difference> {
    for (eager, compiled) in eager.iter().zip(compiled) {
        if eager.value != compiled.value {
            let (what, eager, compiled) = (eager.what.clone(), eager.told(), compiled.told());
            return Err(Difference { call, what, eager, compiled });
        }
    }
    if eager.len() != compiled.len() {
        let (what, eager, compiled) = ("results".to_owned(), eager.len().to_string(), compiled.len().to_string());
        return Err(Difference { call, what, eager, compiled });
    }
    Ok(())
}

/// Calls a function, and says what can be seen then.
fn look(
    world: &World,
    around: &Call,
    kept: &mut Vec<Tensor>,
    f: &dyn Fn(&Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Observations {
    let mut observations = Observations::new();
    let mut see = |what: &str, value: String| observations.push(Observation::new(what, value));
    let arguments = match world.begin(around) {
        Ok(arguments) => arguments,
        Err(error) => return vec![Observation::new("arguments", error.to_string())],
    };
    let mut detail = String::new();
    let called = || if around.no_grad { no_grad(|| f(&arguments)) } else { f(&arguments) };
    match catch_unwind(AssertUnwindSafe(called)) {
        Err(panic) => see("outcome", format!("panics: {}", panic_text(&*panic))),
        Ok(Err(error)) => {
            detail = format!(" ({error})");
            see("outcome", kind(&error));
        }
        Ok(Ok(results)) => {
            see("outcome", format!("{} results", results.len()));
            for result in &results {
                see("a result", show(result));
                see("whether a result is on a tape", result.has_tape().to_string());
            }
            if around.backward {
                let done = match catch_unwind(AssertUnwindSafe(|| backward(&results))) {
                    Err(panic) => format!("panics: {}", panic_text(&*panic)),
                    Ok(Err(error)) => kind(&error),
                    Ok(Ok(())) => "done".to_owned(),
                };
                see("backward of the results", done);
            }
            kept.extend(results);
        }
    }
    for var in world.vars.iter().chain([&world.outer]) {
        let name = var.name().unwrap_or("a variable");
        see(name, show(&var.get()));
        see(&format!("the gradient of {name}"), var.grad().map_or_else(|| "none".to_owned(), |grad| show(&grad)));
    }
    see("the setting", world.setting.get().to_string());
    // The outcome comes first.
    observations[0].detail = detail;
    observations
}

fn backward(results: &[Tensor]) -> Result<()> {
    for result in results.iter().filter(|result| result.has_tape()) {
        result.sum(..)?.backward()?;
    }
    Ok(())
}

/// Shape and elements; −0 is 0, which sums in another order make of it.
fn show(tensor: &Tensor) -> String {
    let elements = tensor.to_dtype(DType::F64).and_then(|tensor| tensor.to_vec::<f64>());
    match elements {
        Ok(elements) => {
            let elements: Vec<f64> = elements.into_iter().map(|element| element + 0.0).collect();
            format!("{}{:?} {elements:?}", tensor.dtype(), tensor.shape())
        }
        Err(error) => error.to_string(),
    }
}

/// The name of an error's variant.
fn kind(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
