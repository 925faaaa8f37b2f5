//! The `KILN_*` variables: a value that is not understood stops the command before it begins, a name that is nearly one of Kiln's
//! is told.

use kiln_cpu::features::Isa;
use kiln_runtime::environment::{self, Problem};
use kiln_terminal::Paint;
use kiln_terminal::failure::Failure;

/// An error for the first variable whose value is not understood.
pub fn check() -> Result<(), Failure> {
    let mut bad = Vec::new();
    for problem in environment::check() {
        match problem {
            Problem::UnknownName { .. } => eprintln!("{} {problem}", Paint::stderr().yellow("warning:")),
            problem => bad.push(problem),
        }
    }
    // Whether this machine has it is not known to the table.
    if bad.is_empty() {
        bad.extend(Isa::from_environment().err());
    }
    match bad.first() {
        None => Ok(()),
        Some(problem @ Problem::BadValue { variable, .. }) => {
            Err(Failure::unusable(problem.to_string()).advise(format!("unset {variable}")))
        }
        Some(problem) => Err(Failure::unusable(problem.to_string())),
    }
}
