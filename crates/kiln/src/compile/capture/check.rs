//! What a captured function decided by its arguments' sizes, as a short program over them that a hit runs.

use crate::tensor::dim::{Predicate, Relation};
use kiln_ir::dim::Factor;
use kiln_ir::{Dim, Source, Symbol};
use std::fmt;

/// A statement about sizes.
#[derive(Debug, Clone)]
pub(super) struct Check {
    /// Leaves the left side and the right side.
    code: Box<[Step]>,
    relation: Relation,
    text: String,
    at: Source,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Number(i64),
    Size(usize),
    Add,
    Multiply,
    Divide,
    Modulo,
    Least,
    Greatest,
}

/// Numbers that a check may have at once.
const DEPTH: usize = 24;

impl Check {
    /// A predicate over the sizes that its symbols come from: their numbers, and what they are divided by.
    pub(super) fn new(predicate: &Predicate, home: &dyn Fn(Symbol) -> Option<(usize, i64)>) -> Option<Check> {
        let mut code = Vec::new();
        write(&predicate.left, home, &mut code)?;
        write(&predicate.right, home, &mut code)?;
        let mut depth = 0usize;
        for step in &code {
            depth = if matches!(step, Step::Number(_) | Step::Size(_)) { depth + 1 } else { depth - 1 };
            if depth > DEPTH {
                return None;
            }
        }
        let (text, at) = (predicate.to_string(), predicate.at.clone());
        Some(Check { code: code.into(), relation: predicate.relation, text, at })
    }

    /// The statement that the size of this number is what it is now.
    pub(super) fn is(number: usize, size: usize) -> Check {
        let now = i64::try_from(size).unwrap_or(i64::MAX);
        let code = Box::new([Step::Size(number), Step::Number(now)]);
        Check { code, relation: Relation::Equal, text: format!("size {number} == {size}"), at: Source::default() }
    }

    /// The same about sizes of other numbers.
    pub(super) fn renumbered(mut self, numbers: &[usize]) -> Check {
        for step in &mut self.code {
            if let Step::Size(number) = step {
                *number = numbers.get(*number).copied().unwrap_or(*number);
            }
        }
        self
    }

    /// The numbers of the sizes that it is about.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.code.iter().filter_map(|step| if let Step::Size(number) = step { Some(*number) } else { None })
    }

    /// The line that decided by it.
    pub(super) fn at(&self) -> &Source {
        &self.at
    }

    /// Whether it holds at these sizes.
    pub(super) fn holds(&self, sizes: &[usize]) -> bool {
        self.sides(sizes).is_some_and(|(left, right)| self.relation.holds(left, right))
    }

    fn sides(&self, sizes: &[usize]) -> Option<(i64, i64)> {
        let (mut stack, mut top) = ([0i64; DEPTH], 0);
        for step in &self.code {
            let pushed = match *step {
                Step::Number(n) => n,
                Step::Size(number) => i64::try_from(*sizes.get(number)?).ok()?,
                operator => {
                    let (a, b) = (stack[top - 2], stack[top - 1]);
                    top -= 2;
                    match operator {
                        Step::Add => a.checked_add(b)?,
                        Step::Multiply => a.checked_mul(b)?,
                        Step::Divide => floor_div(a, b)?,
                        Step::Modulo => a.checked_sub(b.checked_mul(floor_div(a, b)?)?)?,
                        Step::Least => a.min(b),
                        _ => a.max(b),
                    }
                }
            };
            *stack.get_mut(top)? = pushed;
            top += 1;
        }
        Some((stack[0], stack[1]))
    }
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn write(dim: &Dim, home: &dyn Fn(Symbol) -> Option<(usize, i64)>, code: &mut Vec<Step>) -> Option<()> {
    if let Some(n) = dim.as_const() {
        code.push(Step::Number(n));
        return Some(());
    }
    if dim.is_undefined() {
        return None;
    }
    let (mut first, mut known) = (true, Some(()));
    dim.visit_terms(&mut |coefficient, factors| {
        code.push(Step::Number(coefficient));
        for factor in factors {
            known = known.and(write_factor(factor, home, code));
            code.push(Step::Multiply);
        }
        if !std::mem::take(&mut first) {
            code.push(Step::Add);
        }
    });
    known
}

fn write_factor(
    factor: &Factor<'_>,
    home: &dyn Fn(Symbol) -> Option<(usize, i64)>,
    code: &mut Vec<Step>,
) -> Option<()> {
    let mut two = |a: &Dim, b: &Dim, step: Step| {
        write(a, home, code)?;
        write(b, home, code)?;
        code.push(step);
        Some(())
    };
    match factor {
        Factor::Symbol(symbol) => {
            let (number, divisor) = home(*symbol)?;
            code.push(Step::Size(number));
            if divisor != 1 {
                code.extend([Step::Number(divisor), Step::Divide]);
            }
            Some(())
        }
        Factor::FloorDiv(a, b) => two(a, b, Step::Divide),
        Factor::Modulo(a, b) => two(a, b, Step::Modulo),
        Factor::Min(list) => write_list(list, home, Step::Least, code),
        Factor::Max(list) => write_list(list, home, Step::Greatest, code),
    }
}

fn write_list(
    list: &[Dim],
    home: &dyn Fn(Symbol) -> Option<(usize, i64)>,
    step: Step,
    code: &mut Vec<Step>,
) -> Option<()> {
    for (i, dim) in list.iter().enumerate() {
        write(dim, home, code)?;
        if i > 0 {
            code.push(step);
        }
    }
    Some(())
}

/// With the line that decided by it: `t <= 512, which src/model.rs:12 decides by`.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.at.is_unknown() { Ok(()) } else { write!(f, ", which {} decides by", self.at) }
    }
}
