//! Jinja, as much of it as chat templates are written in, with a bound on everything.
//!
//! ```text
//!  source ─▶ tokens ─▶ tree ─▶ machine ─▶ text
//!                              └─ budget: steps, bytes, levels
//! ```
//!
//! A template comes with a model and is foreign input. General engines bound its steps; but one step can make a text of any
//! length (`'%999999999d' % 1`, `x ~ x` in a loop), a value that takes for ever to compare (`[a, a]` in a loop) or one that
//! overflows the stack when it is dropped (`[a]` in a loop). Here whatever grows is paid for before it is made, lists and
//! maps know how large and how deep they are, and the tree is no deeper than the parser allows.
//!
//! The language is Jinja2's as transformers sets it up: `trim_blocks`, `lstrip_blocks`, loop controls, the immutable sandbox
//! (no `append`), undefined names that are empty, and the methods of Python's texts, lists and maps.

mod ast;
mod budget;
mod calls;
mod expressions;
mod filters;
mod format;
mod json;
mod lexer;
mod machine;
mod methods;
mod operators;
mod parse;
mod predicates;
mod sequences;
mod text;
mod value;

use ast::Program;
use budget::Budget;
use kiln::shown;
use machine::Machine;
use serde_json::Value as Json;
use value::Value;

/// The longest source of a template; the longest of a model is some 20 kB.
const LONGEST_SOURCE: usize = 1 << 20;

/// A bound that a template went beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Limit {
    /// The source is too long.
    #[error("the source has {bytes} bytes, and may have {most}")]
    Source {
        /// As it is.
        bytes: usize,
        /// As it may be.
        most: usize,
    },
    /// Blocks, expressions or calls within each other.
    #[error("nested deeper than {most} levels")]
    Nesting {
        /// As deep as it may be.
        most: usize,
    },
    /// Lists within lists.
    #[error("lists within lists, more than {most} deep")]
    ValueDepth {
        /// As deep as it may be.
        most: usize,
    },
    /// Work.
    #[error("it takes more than the {most} steps that a rendering may take")]
    Steps {
        /// As many as there may be.
        most: u64,
    },
    /// Text and lists.
    #[error("it makes more than the {most} bytes of text and lists that a rendering may make")]
    Bytes {
        /// As many as there may be.
        most: usize,
    },
}

/// Why a template cannot be read or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// It is no template, or uses what there is no code for.
    #[error("line {line}: {}", shown(problem).up_to(400))]
    Syntax {
        /// Where.
        line: u32,
        /// What is wrong.
        problem: String,
    },
    /// It asks for something that cannot be done.
    #[error("line {line}: {}", shown(problem).up_to(400))]
    Failed {
        /// Where.
        line: u32,
        /// What it was.
        problem: String,
    },
    /// It calls `raise_exception`.
    #[error("{}", shown(message).up_to(400))]
    Raised {
        /// Its words.
        message: String,
    },
    /// It goes beyond a bound.
    #[error("line {line}: {limit}")]
    Limit {
        /// Where.
        line: u32,
        /// The bound.
        limit: Limit,
    },
}

/// A template, parsed.
#[derive(Debug)]
pub(crate) struct Template(Program);

impl Template {
    /// Parses a source.
    pub(crate) fn parse(source: &str) -> Result<Template, TemplateError> {
        if source.len() > LONGEST_SOURCE {
            let limit = Limit::Source { bytes: source.len(), most: LONGEST_SOURCE };
            return Err(TemplateError::Limit { line: 1, limit });
        }
        let parse = || {
            parse::parse(source).map(Template).map_err(|Syntax { line, problem }| match problem {
                Fault::Limit(limit) => TemplateError::Limit { line, limit },
                Fault::Failed(problem) | Fault::Raised(problem) => TemplateError::Syntax { line, problem },
            })
        };
        with_stack(parse)
    }

    /// The text for variables of these values.
    pub(crate) fn render<'a>(&self, variables: impl Iterator<Item = (&'a str, Json)>) -> Result<String, TemplateError> {
        let variables: Vec<(&str, Json)> = variables.collect();
        with_stack(|| {
            let mut named = Vec::with_capacity(variables.len());
            for (name, value) in &variables {
                named.push((*name, from_json(value).map_err(|fault| fault.at(1))?));
            }
            let weight = named.iter().fold(0usize, |sum, (_, value)| sum.saturating_add(value.extent().weight));
            Machine::new(&self.0, Budget::new(weight)).run(named)
        })
    }
}

/// Memory for what is nested as deep as it may be; only what is used is taken.
const STACK: usize = 32 << 20;

/// Runs on a thread of its own: how much stack the caller has left is not known.
fn with_stack<T: Send>(run: impl FnOnce() -> Result<T, TemplateError> + Send) -> Result<T, TemplateError> {
    let failed = |problem: &str| Err(TemplateError::Failed { line: 1, problem: problem.into() });
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK).spawn_scoped(scope, run);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => failed("the engine panicked, which is a bug of Kiln"),
            Err(error) => failed(&format!("there is no thread to run it: {error}")),
        }
    })
}

/// What went wrong, before it is known where.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Limit(Limit),
    Failed(String),
    Raised(String),
}

/// What is wrong with a source, and where.
#[derive(Debug)]
struct Syntax {
    line: u32,
    problem: Fault,
}

impl Fault {
    fn text(problem: impl Into<String>) -> Fault {
        Fault::Failed(problem.into())
    }

    fn at(self, line: u32) -> TemplateError {
        match self {
            Fault::Limit(limit) => TemplateError::Limit { line, limit },
            Fault::Failed(problem) => TemplateError::Failed { line, problem },
            Fault::Raised(message) => TemplateError::Raised { message },
        }
    }
}

fn from_json(json: &Json) -> Result<Value, Fault> {
    let budget = &mut Budget::unlimited();
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Integer(number),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::text(text.as_str()),
        Json::Array(items) => Value::list(items.iter().map(from_json).collect::<Result<_, _>>()?, budget)?,
        Json::Object(members) => {
            let member = |(name, value): (&String, &Json)| Ok((Value::text(name.as_str()), from_json(value)?));
            Value::map(members.iter().map(member).collect::<Result<_, Fault>>()?, budget)?
        }
    })
}
