//! Makes a program that fails smaller: calls and statements are left out, blocks put in the place of what they are in, and choices
//! made the plain ones, as long as it still fails.

use super::program::{Block, Call, Choices, Expression, Program, Statement, Tapes};
use kiln::{Dynamic, Mode};
use std::sync::Arc;

/// The smallest program found that `fails`, as the given one does.
pub fn shrink(mut program: Program, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    loop {
        let Some(smaller) = candidates(&program).into_iter().find(|candidate| fails(candidate)) else { return program };
        program = smaller;
    }
}

/// Programs that are a little simpler, the boldest first.
fn candidates(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let with_calls = |calls: Vec<Call>| Program { calls, ..program.clone() };
    for number in 0..program.calls.len() {
        let mut calls = program.calls.clone();
        calls.remove(number);
        all.push(with_calls(calls));
    }
    for body in blocks(&program.body) {
        all.push(Program { body, ..program.clone() });
    }
    for number in 0..program.returns.len() {
        let mut returns = program.returns.clone();
        returns.remove(number);
        all.push(Program { returns, ..program.clone() });
    }
    for choices in plainer(&program.choices) {
        all.push(Program { choices, ..program.clone() });
    }
    for number in 0..program.calls.len() {
        for call in simpler(&program.calls[number]) {
            let mut calls = program.calls.clone();
            calls[number] = call;
            all.push(with_calls(calls));
        }
    }
    all
}

/// Blocks with a statement less, or a simpler one.
fn blocks(block: &Block) -> Vec<Block> {
    let mut all = Vec::new();
    let mut with = |number: usize, instead: &[Statement]| {
        let mut statements = block[..number].to_vec();
        statements.extend_from_slice(instead);
        statements.extend_from_slice(&block[number + 1..]);
        all.push(Arc::new(statements));
    };
    for number in 0..block.len() {
        with(number, &[]);
    }
    for (number, statement) in block.iter().enumerate() {
        let own: Vec<&Block> = match statement {
            Statement::If(_, then, otherwise) => vec![then, otherwise],
            Statement::Repeat(_, body) | Statement::While(_, body) | Statement::NoGrad(body) => vec![body],
            Statement::Disabled(_, body, _) | Statement::Nested(_, _, body, _) => vec![body],
            _ => Vec::new(),
        };
        own.into_iter().for_each(|body| with(number, body));
        statements(statement).iter().for_each(|simpler| with(number, std::slice::from_ref(simpler)));
    }
    all
}

/// A statement made simpler inside.
fn statements(statement: &Statement) -> Vec<Statement> {
    let one_less = |places: &Vec<usize>| {
        let shorter = |number: usize| {
            let mut places = places.clone();
            places.remove(number);
            places
        };
        (0..places.len()).filter(|_| places.len() > 1).map(shorter).collect::<Vec<_>>()
    };
    match statement {
        Statement::Let(expression) => expressions(expression).into_iter().map(Statement::Let).collect(),
        Statement::Assign(place, expression) => {
            expressions(expression).into_iter().map(|e| Statement::Assign(*place, e)).collect()
        }
        Statement::Repeat(turns, body) => {
            let fewer = (*turns > 1).then(|| Statement::Repeat(turns - 1, body.clone()));
            fewer.into_iter().chain(blocks(body).into_iter().map(|body| Statement::Repeat(*turns, body))).collect()
        }
        Statement::While(place, body) => blocks(body).into_iter().map(|b| Statement::While(*place, b)).collect(),
        Statement::NoGrad(body) => blocks(body).into_iter().map(Statement::NoGrad).collect(),
        Statement::If(test, then, otherwise) => {
            let one = blocks(then).into_iter().map(|then| Statement::If(test.clone(), then, otherwise.clone()));
            let other = blocks(otherwise).into_iter().map(|other| Statement::If(test.clone(), then.clone(), other));
            one.chain(other).collect()
        }
        Statement::Disabled(inputs, body, outputs) => {
            let make = |inputs: &[usize], body: &Block, outputs: &[usize]| {
                Statement::Disabled(inputs.to_vec(), body.clone(), outputs.to_vec())
            };
            let mut all: Vec<Statement> = blocks(body).iter().map(|body| make(inputs, body, outputs)).collect();
            all.extend(one_less(inputs).iter().map(|inputs| make(inputs, body, outputs)));
            all.extend(one_less(outputs).iter().map(|outputs| make(inputs, body, outputs)));
            all
        }
        Statement::Nested(number, inputs, body, outputs) => {
            let make = |inputs: &[usize], body: &Block, outputs: &[usize]| {
                Statement::Nested(*number, inputs.to_vec(), body.clone(), outputs.to_vec())
            };
            let mut all: Vec<Statement> = blocks(body).iter().map(|body| make(inputs, body, outputs)).collect();
            all.extend(one_less(inputs).iter().map(|inputs| make(inputs, body, outputs)));
            all.extend(one_less(outputs).iter().map(|outputs| make(inputs, body, outputs)));
            all
        }
        _ => Vec::new(),
    }
}

/// An expression with less in it.
fn expressions(expression: &Expression) -> Vec<Expression> {
    use super::program::LoopKind;
    use super::program::Unary::Next;
    match expression {
        Expression::Where(_, a, b) => vec![Expression::Unary(Next, *a), Expression::Unary(Next, *b)],
        Expression::Scaled(a, b)
        | Expression::Selected(a, b)
        | Expression::Counted(a, b)
        | Expression::Rows(a, b)
        | Expression::Decided(a, b)
        | Expression::Halved(a, b)
        | Expression::Cut(a, b) => {
            vec![Expression::Unary(Next, *a), Expression::Unary(Next, *b)]
        }
        Expression::Binary(_, a, b) => vec![Expression::Unary(Next, *a), Expression::Unary(Next, *b)],
        Expression::Cond(_, place, a, b) => vec![Expression::Unary(*a, *place), Expression::Unary(*b, *place)],
        Expression::GradOf(place, chain, twice) => {
            let shorter = (1..chain.len()).map(|count| Expression::GradOf(*place, chain[..count].to_vec(), *twice));
            let once = twice.then(|| Expression::GradOf(*place, chain.clone(), false));
            shorter.chain(once).collect()
        }
        Expression::Loop(kind, place, chain) => {
            let shorter = (1..chain.len()).map(|count| Expression::Loop(*kind, *place, chain[..count].to_vec()));
            let less = match kind {
                LoopKind::While(turns) if *turns > 0 => Some(LoopKind::While(turns - 1)),
                LoopKind::Nested(turns) if *turns > 0 => Some(LoopKind::Nested(turns - 1)),
                LoopKind::Checkpointed(every) if *every > 1 => Some(LoopKind::Checkpointed(every - 1)),
                LoopKind::Chosen | LoopKind::Within | LoopKind::Vmap | LoopKind::Checkpointed(_) => Some(LoopKind::Map),
                _ => None,
            };
            let less = less.map(|kind| Expression::Loop(kind, *place, chain.clone()));
            shorter.chain(less).chain([Expression::Unary(chain[0], *place)]).collect()
        }
        Expression::Jvp(place, chain) => {
            let shorter = (1..chain.len()).map(|count| Expression::Jvp(*place, chain[..count].to_vec()));
            shorter.chain([Expression::GradOf(*place, chain.clone(), false)]).collect()
        }
        Expression::Gradients(of, by, true) => vec![Expression::Gradients(*of, *by, false)],
        _ => Vec::new(),
    }
}

fn plainer(choices: &Choices) -> Vec<Choices> {
    let plain = [
        Choices { dynamic: Dynamic::Static, ..choices.clone() },
        Choices { mode: Mode::Default, ..choices.clone() },
        Choices { freeze: false, ..choices.clone() },
        Choices { background: false, ..choices.clone() },
        Choices { never_slower: false, ..choices.clone() },
        Choices { verify: false, ..choices.clone() },
        Choices { cache_limit: 16, ..choices.clone() },
        Choices { momentum: false, ..choices.clone() },
    ];
    plain.into_iter().filter(|plain| plain != choices).collect()
}

fn simpler(call: &Call) -> Vec<Call> {
    let simple = [
        Call { rows: 1, ..call.clone() },
        Call { rows: 2, ..call.clone() },
        Call { transposed: false, ..call.clone() },
        Call { tapes: Tapes::None, ..call.clone() },
        Call { no_grad: false, ..call.clone() },
        Call { setting: 0, ..call.clone() },
        Call { toggles: false, ..call.clone() },
        Call { zeroes: false, ..call.clone() },
        Call { backward: false, ..call.clone() },
    ];
    // Towards one row, never back.
    let is_less = |simple: &Call| simple != call && simple.rows <= call.rows;
    simple.into_iter().filter(is_less).collect()
}
