//! Runs programs: the same code whether they are called as they are or captured.

use super::program::{
    Binary, Block, Call, Expression, HELD_VARIABLES, LoopKind, Program, Statement, Tapes, Test, Unary,
};
use kiln::optim::{Optimizer, Sgd, SgdConfig};
use kiln::{
    Compiled, DType, Device, Forward, Generator, Options, Result, Setting, Tensor, Var, apply, cond, disable, grad,
    jvp, no_grad, scan, while_loop,
};
use kiln_ir::Source;
use kiln_ir::examples::Random;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Columns of arguments, and elements of variables.
const WIDTH: usize = 3;
/// Products are clamped to this.
const MOST: i64 = 8;

/// A function that a program calls.
type Function = Box<dyn Fn(&Vec<Tensor>) -> Result<Vec<Tensor>> + Send + Sync>;
/// The same, compiled.
type Inner = Compiled<Function, Vec<Tensor>, Vec<Tensor>>;

/// What a program holds: variables, numbers and so on. Either way of calling has its own.
pub(super) struct World {
    dtype: DType,
    pub(super) vars: Vec<Var>,
    /// Outside of the function.
    pub(super) outer: Var,
    pub(super) setting: Setting,
    pub(super) numbers: Generator,
    held: Vec<Tensor>,
    matrix: Tensor,
    optimizer: Sgd,
    /// The compiled functions that it calls, by number; none where everything is called as it is.
    nested: Option<Mutex<HashMap<usize, Arc<Inner>>>>,
    options: Options,
}

/// Integers from −3 to 3.
fn integers(random: &mut Random, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let numbers: Vec<f64> = (0..shape.iter().product()).map(|_| random.below(7) as f64 - 3.0).collect();
    Tensor::from_vec(numbers, shape.to_vec(), Device::Cpu)?.to_dtype(dtype)
}

impl World {
    pub(super) fn new(program: &Program, is_compiled: bool, options: Options) -> Result<World> {
        let mut random = Random(program.seed);
        let mut row = || integers(&mut random, &[WIDTH], program.dtype);
        let vars = vec![
            Var::named("a", &row()?).requires_grad(true),
            Var::named("b", &row()?).requires_grad(true),
            Var::named("c", &row()?),
        ];
        let outer = Var::named("outer", &row()?).requires_grad(true);
        let held = vec![row()?, row()?.requires_grad(), vars[1].get()];
        let matrix = integers(&mut random, &[WIDTH, WIDTH], program.dtype)?.clamp(-1, 1)?;
        let momentum = if program.choices.momentum { 1.0 } else { 0.0 };
        let optimizer = Sgd::with(vars[..2].to_vec(), SgdConfig { momentum, ..Sgd::config(1.0) })?;
        let nested = is_compiled.then(Mutex::default);
        let (setting, numbers) = (Setting::new(0), Generator::new(program.seed));
        let dtype = program.dtype;
        Ok(World { dtype, vars, outer, setting, numbers, held, matrix, optimizer, nested, options })
    }

    /// Does what is done before a call, and gives its arguments.
    pub(super) fn begin(&self, call: &Call) -> Result<Vec<Tensor>> {
        self.setting.set(call.setting);
        if call.toggles {
            self.vars[0].requires_grad(!self.vars[0].is_trainable());
        }
        if call.zeroes {
            self.vars.iter().chain([&self.outer]).for_each(Var::zero_grad);
        }
        let mut random = Random(call.data);
        let mut x = if call.transposed {
            integers(&mut random, &[WIDTH, call.rows], self.dtype)?.t()?
        } else {
            integers(&mut random, &[call.rows, WIDTH], self.dtype)?
        };
        let y = integers(&mut random, &[call.rows, WIDTH], self.dtype)?;
        match call.tapes {
            Tapes::None => {}
            Tapes::Start => x = x.requires_grad(),
            Tapes::Variable => x = x.add(self.outer.get())?,
        }
        Ok(vec![x, y])
    }
}

/// Calls the function of a program.
pub(super) fn call(program: &Program, world: &Arc<World>, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    inner(&program.body, &program.returns, world, arguments)
}

/// Runs a block on values of its own, and gives some of them.
fn inner(body: &Block, returns: &[usize], world: &Arc<World>, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut scope = Scope { world, values: arguments.to_vec(), made: Vec::new() };
    scope.run(body)?;
    Ok(returns.iter().map(|&place| scope.value(place)).collect())
}

/// The values at a point of a function.
struct Scope<'a> {
    world: &'a Arc<World>,
    values: Vec<Tensor>,
    /// Variables that the function made.
    made: Vec<Var>,
}

impl Scope<'_> {
    /// The variable of a number.
    fn var(&self, number: usize) -> &Var {
        match (number.checked_sub(HELD_VARIABLES), self.made.len()) {
            (None, _) | (_, 0) => &self.world.vars[number % HELD_VARIABLES],
            (Some(number), count) => &self.made[number % count],
        }
    }

    fn value(&self, place: usize) -> Tensor {
        match self.values.len() {
            0 => self.world.held[0].clone(),
            count => self.values[place % count].clone(),
        }
    }

    /// A value as a variable could have it.
    fn row(&self, place: usize) -> Result<Tensor> {
        let value = self.value(place);
        match value.rank() {
            0 => value.broadcast_to(WIDTH)?.contiguous(),
            1 => Ok(value),
            _ => value.sum(0),
        }
    }

    fn sum(&self, place: usize) -> Result<Tensor> {
        self.value(place).sum(..)
    }

    fn run(&mut self, block: &Block) -> Result<()> {
        block.iter().try_for_each(|statement| self.step(statement))
    }

    /// Runs a block that keeps its values to itself.
    fn inside(&mut self, block: &Block) -> Result<()> {
        let (values, made) = (self.values.len(), self.made.len());
        let done = self.run(block);
        self.values.truncate(values);
        self.made.truncate(made);
        done
    }

    fn step(&mut self, statement: &Statement) -> Result<()> {
        let world = self.world;
        match statement {
            Statement::Let(expression) => {
                let value = self.compute(expression)?;
                self.values.push(value);
            }
            Statement::Assign(place, expression) => {
                let value = self.compute(expression)?;
                match self.values.len() {
                    0 => self.values.push(value),
                    count => self.values[place % count] = value,
                }
            }
            Statement::Make(place, trained) => {
                self.made.push(Var::new(&self.row(*place)?).requires_grad(*trained));
            }
            Statement::Set(var, place) => self.var(*var).set(&self.row(*place)?)?,
            Statement::Add(var, place) => self.var(*var).add_assign(self.row(*place)?)?,
            Statement::Scale(var, factor) => self.var(*var).mul_assign(*factor)?,
            Statement::SetFirst(var, place) => {
                self.var(*var).slice_assign(0..1, &self.row(*place)?.narrow(0, 0, 1)?)?;
            }
            Statement::ZeroGrad(var) => self.var(*var).zero_grad(),
            Statement::SetGrad(var, place) => self.var(*var).set_grad(Some(self.row(*place)?.detach()))?,
            Statement::Backward(place, must) => {
                let done = self.sum(*place)?.backward();
                if *must {
                    done?;
                }
            }
            Statement::Step => {
                world.optimizer.step()?;
                for var in world.optimizer.parameters() {
                    var.set(&var.get().detach().clamp(-MOST, MOST)?)?;
                }
            }
            Statement::If(test, then, otherwise) => {
                let block = if self.test(test)? { then } else { otherwise };
                self.inside(block)?;
            }
            Statement::Repeat(turns, block) => {
                for _ in 0..*turns {
                    self.inside(block)?;
                }
            }
            Statement::While(place, block) => {
                for _ in 0..3 {
                    if self.sum(*place)?.item::<f64>()? <= 0.0 {
                        break;
                    }
                    self.inside(block)?;
                }
            }
            Statement::NoGrad(block) => no_grad(|| self.inside(block))?,
            Statement::Disabled(inputs, body, outputs) => {
                let (own, body, outputs) = (world.clone(), body.clone(), outputs.clone());
                let part = disable(move |values: &Vec<Tensor>| inner(&body, &outputs, &own, values));
                let given = inputs.iter().map(|&place| self.value(place)).collect();
                self.values.extend(part.call(&given)?);
            }
            Statement::Nested(number, inputs, body, outputs) => {
                let given: Vec<Tensor> = inputs.iter().map(|&place| self.value(place)).collect();
                self.values.extend(nested(world, *number, body, outputs, &given)?);
            }
            Statement::Fail => {
                self.value(0).reshape([1, 2, 3, 5, 7, 11, 13])?;
            }
        }
        Ok(())
    }

    fn test(&self, test: &Test) -> Result<bool> {
        Ok(match test {
            Test::Sum(place, number) => self.sum(*place)?.item::<f64>()? > *number as f64,
            Test::First(place) => self.value(*place).to_dtype(DType::F64)?.to_vec::<f64>()?[0] > 0.0,
            Test::Setting(number) => self.world.setting.get() == *number,
            Test::HasGrad(var) => self.var(*var).grad().is_some(),
            Test::Rows(rows) => self.value(0).rank() == 2 && self.value(0).dim(0)? > *rows,
            Test::Float(place, number) => self.sum(*place)?.item_float()? > *number as f64,
            Test::Size(rows) => self.value(0).rank() == 2 && self.value(0).size(0)?.is_above(*rows),
        })
    }

    fn compute(&self, expression: &Expression) -> Result<Tensor> {
        let world = self.world;
        match expression {
            Expression::Unary(op, place) => unary(world, *op, &self.value(*place)),
            Expression::Binary(op, a, b) => {
                let (a, b) = (self.value(*a), self.value(*b));
                match op {
                    Binary::Add => a.add(&b),
                    Binary::Sub => a.sub(&b),
                    Binary::Mul => a.mul(&b)?.clamp(-MOST, MOST),
                    Binary::Max => a.mul(2.0)?.maximum(&b.mul(2.0)?.add(1.0)?),
                }
            }
            Expression::Where(test, a, b) => self.value(*test).gt(0.0)?.where_(self.value(*a), self.value(*b)),
            Expression::Scaled(by, place) => self.value(*place).mul(self.sum(*by)?.item::<f64>()?)?.clamp(-MOST, MOST),
            Expression::Selected(mask, place) => {
                let (mask, x) = (self.value(*mask).gt(0.0)?, self.value(*place));
                if mask.rank() > x.rank() { x.sum(..) } else { x.masked_select(&mask)?.sum(..) }
            }
            Expression::Counted(mask, place) => {
                let mask = self.value(*mask);
                let selected = mask.detach().masked_select(&mask.gt(0.0)?)?;
                let seen =
                    disable(|x: &Tensor| x.mul(2.0)).call(&selected.narrow(0, 0, (selected.size(0)? + 1) / 2)?)?;
                let count = seen.shape()[0] as f64;
                self.value(*place).mul(count)?.clamp(-MOST, MOST)
            }
            Expression::Rows(mask, place) => {
                let (mask, x) = (self.value(*mask), self.value(*place));
                if x.rank() != 2 || mask.rank() != 2 {
                    return x.sum(..);
                }
                x.index_select(0, &mask.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?)?.sum(0)
            }
            Expression::Cut(by, place) => {
                let (by, x) = (self.value(*by), self.value(*place));
                if x.rank() != 2 {
                    return x.sum(..);
                }
                let count = by.sum(..)?.abs()?.to_dtype(DType::I64)?.item_size()?;
                x.narrow(0, 0, count.min(x.size(0)?))?.sum(0)
            }
            Expression::Decided(by, place) => {
                let x = self.value(*place);
                let (n, m) = (self.sum(*by)?.item_float()?, x.sum(..)?.item_float()?);
                let n = n.max(-MOST as f64).min(MOST as f64);
                let y = if n < m {
                    x.mul(&n)?
                } else if n == 0.0 {
                    x.sub(m.min(2.0).max(-2.0) * 2.0 + 1.0)?
                } else {
                    (1.0 - &n - &x)?
                };
                y.clamp(-MOST, MOST)
            }
            Expression::Halved(by, place) => {
                let (mut n, mut x) = (self.sum(*by)?.item_float()?.abs().min(16.0), self.value(*place));
                while n > 1.0 {
                    n *= 0.5;
                    x = x.sub(1.0)?;
                }
                x.clamp(-MOST, MOST)
            }
            Expression::Scan(place) => {
                let x = self.value(*place);
                if x.rank() != 2 {
                    return Ok(x);
                }
                let sums = scan(|(sum, x): &(Tensor, Tensor)| {
                    let sum = sum.add(x)?.clamp(-MOST, MOST)?;
                    Ok((sum.clone(), sum))
                });
                let (last, all) = sums.call(Tensor::zeros(WIDTH, world.dtype, Device::Cpu)?, x)?;
                last.add(all.sum(0)?)
            }
            Expression::Loop(kind, place, chain) => {
                let (x, matrix, dtype) = (self.value(*place), world.matrix.clone(), world.dtype);
                let x = if x.rank() == 2 { x } else { self.row(*place)?.expand((1, WIDTH))? };
                let matrix = Arc::new(matrix);
                loops(*kind, x, chain, &matrix, dtype)
            }
            Expression::Get(var) => Ok(self.var(*var).get()),
            Expression::Grad(var) => match self.var(*var).grad() {
                Some(gradient) => Ok(gradient),
                None => Tensor::zeros(WIDTH, world.dtype, Device::Cpu),
            },
            Expression::Held(place) => Ok(world.held[place % world.held.len()].clone()),
            Expression::Random => world.numbers.randint(-3, 4, WIDTH, Device::Cpu)?.to_dtype(world.dtype),
            Expression::Cond(test, place, a, b) => {
                let row = self.row(*place)?;
                let side = |op: Unary| unary(world, op, &row)?.sum(..);
                cond(&self.sum(*test)?.gt(0.0)?, || side(*a), || side(*b))
            }
            Expression::GradOf(place, chain, twice) => {
                let sum = |x: &Tensor| -> Result<Tensor> {
                    let mut x = x.clone();
                    for op in chain {
                        x = unary(world, *op, &x)?;
                    }
                    x.sum(..)
                };
                let slope = grad(sum);
                match twice {
                    true => grad(|x: &Tensor| slope(x)?.mul(x)?.sum(..))(&self.value(*place)),
                    false => slope(&self.value(*place)),
                }
            }
            Expression::Jvp(place, chain) => {
                let x = self.value(*place);
                let f = |x: &Tensor| chain.iter().try_fold(x.clone(), |x, op| unary(world, *op, &x));
                let (value, change) = jvp(f, &x, &x.add(1.0)?.detach())?;
                value.add(change)?.clamp(-MOST, MOST)
            }
            Expression::Gradients(of, by, on_tape) => {
                let (of, by) = (self.sum(*of)?, self.value(*by));
                let found = if *on_tape { of.gradients_on_tape(&[&by])? } else { of.gradients(&[&by])? };
                found.get(&by).map_or_else(|| by.zeros_like(), |gradient| Ok(gradient.clone()))
            }
        }
    }
}

/// Loops and choices over the rows of a matrix, to one row.
fn loops(kind: LoopKind, x: Tensor, chain: &[Unary], matrix: &Arc<Tensor>, dtype: DType) -> Result<Tensor> {
    let step = |chain: &[Unary]| {
        let (chain, matrix) = (chain.to_vec(), matrix.clone());
        move |row: &Tensor| -> Result<Tensor> {
            let mut row = row.clone();
            for op in &chain {
                row = on_row(*op, &row, &matrix, dtype)?;
            }
            row.clamp(-MOST, MOST)
        }
    };
    let turns = |count: usize, chain: &[Unary]| {
        let step = step(chain);
        let goes_on = |(_, left): &(Tensor, Tensor)| left.gt(0.0);
        let loops = while_loop(goes_on, move |(row, left): &(Tensor, Tensor)| Ok((step(row)?, left.sub(1.0)?)));
        // With a bound gradients go through an op, without one turn by turn.
        let loops = match (chain.len().is_multiple_of(2), count % 2) {
            (true, 0) => loops.bounded(4),
            // In chunks.
            (true, _) => loops.bounded(20),
            (false, _) => loops,
        };
        move |row: Tensor| {
            Ok::<Tensor, kiln::Error>(loops.call((row, Tensor::full((), count as f64, dtype, Device::Cpu)?))?.0)
        }
    };
    let zeros = || Tensor::zeros(WIDTH, dtype, Device::Cpu);
    let (all, first) = (step(chain), step(&chain[..1]));
    let scanned = |x: Tensor, every: Option<usize>| {
        let all = step(chain);
        let sums = scan(move |(state, row): &(Tensor, Tensor)| {
            let next = all(&state.add(row)?)?;
            Ok((next.clone(), next))
        });
        let sums = if let Some(every) = every { sums.checkpointed(every) } else { sums };
        let (last, rows) = sums.call(zeros()?, x)?;
        last.add(rows.sum(0)?)
    };
    match kind {
        LoopKind::Map => kiln::map(move |row: &Tensor| all(row)).call(x)?.sum(0),
        LoopKind::Vmap => kiln::vmap(move |row: &Tensor| all(row)).call(x)?.sum(0),
        LoopKind::While(count) => turns(count, chain)(x.select(0, 0)?),
        LoopKind::Chosen => {
            let chosen = scan(move |(state, row): &(Tensor, Tensor)| {
                let next = cond(&row.sum(..)?.gt(0.0)?, || all(&state.add(row)?), || first(&state.sub(row)?))?;
                Ok((next.clone(), next))
            });
            let (last, rows) = chosen.call(zeros()?, x)?;
            last.add(rows.sum(0)?)
        }
        LoopKind::Within => {
            let each = kiln::map(move |row: &Tensor| first(row));
            cond(&x.sum(..)?.gt(0.0)?, || scanned(x.clone(), None), || each.call(x.clone())?.sum(0))
        }
        LoopKind::Checkpointed(every) => scanned(x, Some(every)),
        LoopKind::NoRows => scanned(x.narrow(0, 0, 0)?, None)?.add(x.sum(0)?),
        LoopKind::Nested(count) => {
            let inner = turns(count, chain);
            let outer = scan(move |(state, row): &(Tensor, Tensor)| {
                let next = inner(state.add(row)?)?;
                Ok((next.clone(), next))
            });
            let (last, rows) = outer.call(zeros()?, x)?;
            last.add(rows.sum(0)?)
        }
    }
}

fn unary(world: &World, op: Unary, x: &Tensor) -> Result<Tensor> {
    on_row(op, x, &world.matrix, world.dtype)
}

fn on_row(op: Unary, x: &Tensor, matrix: &Tensor, dtype: DType) -> Result<Tensor> {
    match op {
        Unary::Neg => x.neg(),
        Unary::Double => x.mul(2.0),
        Unary::Next => x.add(1.0),
        Unary::Half => match x.rank() {
            2 => x.narrow(0, 0, (x.size(0)? + 1) / 2)?.sum(0),
            _ => Ok(x.clone()),
        },
        Unary::Count => match x.rank() {
            0 => Ok(x.clone()),
            _ => x.add(x.size(0)?),
        },
        Unary::Abs => x.abs(),
        Unary::Relu => x.relu(),
        Unary::Square => x.square()?.clamp(-MOST, MOST),
        Unary::Sum => x.sum(..),
        Unary::SumRows => {
            if x.rank() == 2 {
                x.sum(0)
            } else {
                Ok(x.clone())
            }
        }
        Unary::Product => match x.rank() {
            0 => Ok(x.clone()),
            _ => x.matmul(matrix),
        },
        Unary::Detach => Ok(x.detach()),
        Unary::RequiresGrad => Ok(x.requires_grad()),
        Unary::Flip => match x.rank() {
            0 => Ok(x.clone()),
            _ => x.flip(-1),
        },
        Unary::Integer => x.to_dtype(DType::I64)?.to_dtype(dtype),
        Unary::Own => Ok(apply(Own, &[x])?.swap_remove(0)),
        Unary::Hook => x.with_hook(|gradient| gradient.neg().map(Some)),
    }
}

/// Calls a function of its own: compiled, and kept from call to call; or as it is.
fn nested(
    world: &Arc<World>,
    number: usize,
    body: &Block,
    outputs: &[usize],
    given: &Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    let Some(known) = &world.nested else { return inner(body, outputs, world, given) };
    let made = {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            // It is kept by the world, and so does not keep it.
            let (weak, body, outputs) = (Arc::downgrade(world), body.clone(), outputs.to_vec());
            let f = move |values: &Vec<Tensor>| match weak.upgrade() {
                Some(world) => inner(&body, &outputs, &world, values),
                None => Err(kiln::Error::Escaped { at: Source::default() }),
            };
            let f: Function = Box::new(f);
            Arc::new(kiln::compile_with(f, world.options.clone()))
        };
        known.entry(number).or_insert_with(make).clone()
    };
    made.call(given)
}

/// Twice its operand, with a gradient that no rule derives: of a saved operand and a saved result.
struct Own;

impl kiln::Function for Own {
    fn forward(&self, operands: &[Tensor]) -> Result<Forward> {
        let twice = operands[0].mul(2.0)?.clamp(-MOST, MOST)?;
        Ok(Forward { saved: vec![operands[0].clone(), twice.clone()], results: vec![twice] })
    }

    fn backward(&self, saved: &[Tensor], cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(cotangent) = &cotangents[0] else { return Ok(vec![None]) };
        let sign = saved[0].add(&saved[1])?.clamp(-1.0, 1.0)?;
        Ok(vec![Some(cotangent.mul(sign)?.clamp(-MOST, MOST)?)])
    }
}
