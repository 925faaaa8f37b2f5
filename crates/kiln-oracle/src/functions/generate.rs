//! A program of a seed.

use super::program::{
    Binary, Block, Call, Choices, Expression, HELD_VARIABLES, LoopKind, Program, Statement, Tapes, Test, Unary,
    ValueNumber,
};
use kiln::{DType, Dynamic, Mode};
use kiln_ir::examples::Random;
use std::sync::Arc;

/// The number of statements of a function, not counting those in blocks.
const STATEMENTS: usize = 9;
/// Calls at the most.
const CALLS: usize = 5;
/// Blocks inside of blocks.
const DEPTH: usize = 3;

/// The program of a seed.
pub fn generate(seed: u64) -> Program {
    let program = generate_with_turns(seed);
    let mut make = Make { random: Random(seed ^ 0x6e75_6d62_6572_735f), nested: 0, parts: 0 };
    match make.chance(0.25) {
        true => Program { body: make.with_more(&program.body, Make::float), ..program },
        false => program,
    }
}

/// The program of a seed, but for numbers that are guarded by outcomes.
fn generate_with_turns(seed: u64) -> Program {
    let program = generate_with_cuts(seed);
    let mut make = Make { random: Random(seed ^ 0x7475_726e_735f_6b65), nested: 0, parts: 0 };
    match make.chance(0.2) {
        true => Program { body: make.with_more(&program.body, Make::turns), ..program },
        false => program,
    }
}

/// The same, but for scans that keep few states or have no rows.
fn generate_with_cuts(seed: u64) -> Program {
    let program = generate_with_variables(seed);
    let mut make = Make { random: Random(seed ^ 0x7369_7a65_735f_7264), nested: 0, parts: 0 };
    let cut = |make: &mut Make| Statement::Let(Expression::Cut(make.place(), make.place()));
    match make.chance(0.2) {
        true => Program { body: make.with_more(&program.body, cut), ..program },
        false => program,
    }
}

/// The same, but for elements that are read as sizes.
pub fn generate_with_variables(seed: u64) -> Program {
    let program = generate_plain(seed);
    let mut make = Make { random: Random(seed ^ 0x6f77_6e5f_7661_7273), nested: 0, parts: 0 };
    match make.chance(0.25) {
        true => Program { body: make.with_variables(&program.body), ..program },
        false => program,
    }
}

/// The same, but for variables that its function makes.
pub fn generate_plain(seed: u64) -> Program {
    let mut make = Make { random: Random(seed ^ 0x6b69_6c6e_5f66_756e), nested: 0, parts: 0 };
    let count = 2 + make.below(STATEMENTS);
    let body = make.block(count, 0);
    let returns = (0..1 + make.below(3)).map(|_| make.place()).collect();
    let calls = (0..2 + make.below(CALLS - 1)).map(|_| make.call()).collect();
    let dtype = if make.random.chance(0.5) { DType::F32 } else { DType::F64 };
    Program { seed, dtype, body, returns, calls, choices: make.choices() }
}

struct Make {
    random: Random,
    /// Compiled functions inside so far.
    nested: usize,
    /// Disabled parts around what is made now.
    parts: usize,
}

impl Make {
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.chance(probability)
    }

    /// Any value: late ones are as likely as early ones, whatever there are.
    fn place(&mut self) -> ValueNumber {
        self.below(5040)
    }

    fn places(&mut self, most: usize) -> Vec<ValueNumber> {
        (0..1 + self.below(most)).map(|_| self.place()).collect()
    }

    fn choices(&mut self) -> Choices {
        let dynamic = [Dynamic::Static, Dynamic::Automatic, Dynamic::Automatic, Dynamic::Always];
        let mode = match self.below(40) {
            0 => Mode::MaxAutotune,
            1..10 => Mode::ReduceOverhead,
            _ => Mode::Default,
        };
        Choices {
            dynamic: dynamic[self.below(dynamic.len())].clone(),
            mode,
            freeze: self.chance(0.2),
            background: self.chance(0.06),
            // It measures for a while.
            never_slower: self.chance(0.003),
            verify: self.chance(0.03),
            cache_limit: if self.chance(0.1) { 1 } else { 16 },
            momentum: self.chance(0.5),
        }
    }

    fn call(&mut self) -> Call {
        Call {
            data: self.random.bits(),
            rows: [1, 2, 2, 3, 4, 5][self.below(6)],
            transposed: self.chance(0.1),
            tapes: match self.below(8) {
                0 => Tapes::Start,
                1 | 2 => Tapes::Variable,
                _ => Tapes::None,
            },
            no_grad: self.chance(0.08),
            setting: self.below(2) as u64,
            toggles: self.chance(0.06),
            zeroes: self.chance(0.4),
            backward: self.chance(0.35),
        }
    }

    fn block(&mut self, count: usize, depth: usize) -> Block {
        Arc::new((0..count).map(|_| self.statement(depth)).collect())
    }

    /// A block inside of another.
    fn inside(&mut self, depth: usize) -> Block {
        let count = 1 + self.below(3);
        self.block(count, depth + 1)
    }

    fn statement(&mut self, depth: usize) -> Statement {
        // Blocks only so deep.
        let kinds = if depth < DEPTH { 26 } else { 18 };
        match self.below(kinds) {
            0..8 => Statement::Let(self.expression()),
            8 => Statement::Assign(self.place(), self.expression()),
            9 => Statement::Set(self.below(3), self.place()),
            10 | 11 => Statement::Add(self.below(3), self.place()),
            12 => {
                let factors = [-1, 2, 0];
                Statement::Scale(self.below(3), factors[self.below(3)])
            }
            13 => match self.below(3) {
                0 => Statement::SetFirst(self.below(3), self.place()),
                1 => Statement::SetGrad(self.below(3), self.place()),
                _ => Statement::ZeroGrad(self.below(3)),
            },
            14 | 15 => Statement::Backward(self.place(), self.chance(0.2)),
            16 => Statement::Step,
            17 => Statement::Let(Expression::Get(self.below(3))),
            18 | 19 => {
                let test = self.test();
                let then = self.inside(depth);
                let otherwise = if self.chance(0.5) { self.inside(depth) } else { Block::default() };
                Statement::If(test, then, otherwise)
            }
            20 => Statement::Repeat(1 + self.below(3), self.inside(depth)),
            21 => match self.below(4) {
                0 => Statement::While(self.place(), self.inside(depth)),
                1 if self.chance(0.3) => Statement::Fail,
                _ => Statement::NoGrad(self.inside(depth)),
            },
            22..25 => {
                self.parts += 1;
                let part = Statement::Disabled(self.places(2), self.inside(depth), self.places(2));
                self.parts -= 1;
                part
            }
            _ => {
                self.nested += 1;
                Statement::Nested(self.nested, self.places(2), self.inside(depth), self.places(2))
            }
        }
    }

    /// A statement that reads a number which is guarded by outcomes.
    fn float(&mut self) -> Statement {
        let (by, place) = (self.place(), self.place());
        match self.below(3) {
            0 => {
                let block = |expression| Arc::new(vec![Statement::Assign(place, expression)]);
                let (then, otherwise) = (Expression::Unary(Unary::Neg, place), Expression::Decided(place, by));
                Statement::If(Test::Float(by, self.below(7) as i64 - 3), block(then), block(otherwise))
            }
            1 => Statement::Let(Expression::Halved(by, place)),
            _ => Statement::Let(Expression::Decided(by, place)),
        }
    }

    /// A block with a statement or two more, in it or in blocks inside of it.
    fn with_more(&mut self, block: &Block, make: fn(&mut Make) -> Statement) -> Block {
        let mut statements = block.to_vec();
        for _ in 0..1 + self.below(2) {
            let added = make(self);
            let at = self.below(statements.len() + 1);
            match statements.get(at) {
                Some(Statement::If(test, then, otherwise)) if self.chance(0.7) => {
                    statements[at] = Statement::If(test.clone(), self.with_more(then, make), otherwise.clone());
                }
                Some(Statement::Repeat(turns, body)) if self.chance(0.7) => {
                    statements[at] = Statement::Repeat(*turns, self.with_more(body, make));
                }
                Some(Statement::Disabled(inputs, body, outputs)) if self.chance(0.7) => {
                    statements[at] = Statement::Disabled(inputs.clone(), self.with_more(body, make), outputs.clone());
                }
                Some(Statement::Nested(number, inputs, body, outputs)) if self.chance(0.7) => {
                    statements[at] =
                        Statement::Nested(*number, inputs.clone(), self.with_more(body, make), outputs.clone());
                }
                _ => statements.insert(at, added),
            }
        }
        Arc::new(statements)
    }

    /// A scan that keeps few states, or has no rows.
    fn turns(&mut self) -> Statement {
        let every = 1 + self.below(4);
        let kind = if self.chance(0.7) { LoopKind::Checkpointed(every) } else { LoopKind::NoRows };
        Statement::Let(Expression::Loop(kind, self.place(), self.chain()))
    }

    /// What is done with a row of a loop. As with `cond`: of all or of none the gradient depends on the value. The last of each makes a loop run
    /// turn by turn, as a part of its own.
    fn chain(&mut self) -> Vec<Unary> {
        let ops = match self.chance(0.5) {
            true => [Unary::Neg, Unary::Double, Unary::Next, Unary::Product, Unary::Flip, Unary::Hook],
            false => [Unary::Abs, Unary::Relu, Unary::Square, Unary::Square, Unary::Abs, Unary::Own],
        };
        (0..1 + self.below(3)).map(|_| ops[self.below(ops.len())]).collect()
    }

    /// A block that makes a variable or two, and uses them in place of others.
    fn with_variables(&mut self, block: &Block) -> Block {
        let mut statements: Vec<Statement> =
            block.iter().map(|statement| self.with_other_variable(statement)).collect();
        for _ in 0..1 + self.below(2) {
            let statement = Statement::Make(self.place(), self.chance(0.5));
            statements.insert(self.below(statements.len() + 1), statement);
        }
        Arc::new(statements)
    }

    /// A statement in which some variables are those that the function made.
    fn with_other_variable(&mut self, statement: &Statement) -> Statement {
        let mut other = |number: ValueNumber| if self.chance(0.5) { HELD_VARIABLES + self.below(2) } else { number };
        let mut expression = |expression: &Expression| match expression {
            Expression::Get(var) => Expression::Get(other(*var)),
            Expression::Grad(var) => Expression::Grad(other(*var)),
            expression => expression.clone(),
        };
        match statement {
            Statement::Let(value) => Statement::Let(expression(value)),
            Statement::Assign(place, value) => Statement::Assign(*place, expression(value)),
            Statement::Set(var, place) => Statement::Set(other(*var), *place),
            Statement::Add(var, place) => Statement::Add(other(*var), *place),
            Statement::Scale(var, factor) => Statement::Scale(other(*var), *factor),
            Statement::SetFirst(var, place) => Statement::SetFirst(other(*var), *place),
            Statement::ZeroGrad(var) => Statement::ZeroGrad(other(*var)),
            Statement::SetGrad(var, place) => Statement::SetGrad(other(*var), *place),
            Statement::If(test, then, otherwise) => {
                let test = match test {
                    Test::HasGrad(var) => Test::HasGrad(other(*var)),
                    test => test.clone(),
                };
                Statement::If(test, self.with_variables(then), self.with_others(otherwise))
            }
            Statement::Repeat(turns, body) => Statement::Repeat(*turns, self.with_others(body)),
            Statement::While(place, body) => Statement::While(*place, self.with_others(body)),
            Statement::NoGrad(body) => Statement::NoGrad(self.with_others(body)),
            // Other functions see none of them.
            statement => statement.clone(),
        }
    }

    fn with_others(&mut self, block: &Block) -> Block {
        Arc::new(block.iter().map(|statement| self.with_other_variable(statement)).collect())
    }

    fn test(&mut self) -> Test {
        match self.below(8) {
            0..3 => Test::Sum(self.place(), self.below(7) as i64 - 3),
            3 => Test::First(self.place()),
            4 | 5 => Test::Setting(self.below(2) as u64),
            6 => Test::HasGrad(self.below(3)),
            _ => match self.chance(0.3) {
                true => Test::Rows(1 + self.below(3)),
                false => Test::Size(1 + self.below(3)),
            },
        }
    }

    fn unary(&mut self) -> Unary {
        const ALL: [Unary; 17] = [
            Unary::Neg,
            Unary::Double,
            Unary::Next,
            Unary::Half,
            Unary::Count,
            Unary::Abs,
            Unary::Relu,
            Unary::Square,
            Unary::Sum,
            Unary::SumRows,
            Unary::Product,
            Unary::Detach,
            Unary::RequiresGrad,
            Unary::Flip,
            Unary::Integer,
            Unary::Own,
            Unary::Hook,
        ];
        ALL[self.below(ALL.len())]
    }

    fn expression(&mut self) -> Expression {
        match self.below(28) {
            0..5 => Expression::Unary(self.unary(), self.place()),
            27 => Expression::Counted(self.place(), self.place()),
            5..13 => {
                let op = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Mul, Binary::Max][self.below(5)];
                Expression::Binary(op, self.place(), self.place())
            }
            13 => Expression::Where(self.place(), self.place(), self.place()),
            14 | 15 => Expression::Get(self.below(3)),
            16 => Expression::Grad(self.below(3)),
            17 => Expression::Held(self.below(3)),
            18 => Expression::Random,
            19 => {
                // Of both or of neither the gradient depends on the value. The last of each ends the graph.
                let sides = match self.chance(0.5) {
                    true => [Unary::Neg, Unary::Double, Unary::Next, Unary::Product, Unary::Hook],
                    false => [Unary::Abs, Unary::Relu, Unary::Square, Unary::Square, Unary::Own],
                };
                let (a, b) = (sides[self.below(5)], sides[self.below(5)]);
                Expression::Cond(self.place(), self.place(), a, b)
            }
            // Values that one program gave are no functions of each other: outside of it their gradients by each other are none.
            20 | 21 if self.parts > 0 => Expression::GradOf(self.place(), vec![self.unary()], self.chance(0.3)),
            20 => {
                let chain = (0..1 + self.below(3)).map(|_| self.unary()).collect();
                Expression::GradOf(self.place(), chain, self.chance(0.3))
            }
            22 => Expression::Scaled(self.place(), self.place()),
            23 => Expression::Selected(self.place(), self.place()),
            24 => Expression::Rows(self.place(), self.place()),
            26 => {
                let count = if self.parts > 0 { 1 } else { 1 + self.below(3) };
                Expression::Jvp(self.place(), (0..count).map(|_| self.unary()).collect())
            }
            // Each is compiled anew.
            25 if self.chance(0.2) => Expression::Scan(self.place()),
            25 if self.chance(0.8) => {
                let turns = self.below(4);
                let kinds = [
                    LoopKind::Map,
                    LoopKind::Vmap,
                    LoopKind::While(turns),
                    LoopKind::Chosen,
                    LoopKind::Within,
                    LoopKind::Nested(turns),
                ];
                let kind = kinds[self.below(kinds.len())];
                let chain = self.chain();
                Expression::Loop(kind, self.place(), chain)
            }
            25 => Expression::Unary(self.unary(), self.place()),
            _ => Expression::Gradients(self.place(), self.place(), self.chance(0.5)),
        }
    }
}
