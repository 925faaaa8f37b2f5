//! The addresses that a launch accesses at given sizes, without the values it computes.

use crate::kernel::{Axis, Inst, InstKind, Strided, ValueId};
use kiln_ir::{BinaryOp, Dim, Symbol, UnaryOp};

/// Values of symbols.
#[derive(Clone, Default)]
pub(super) struct Env(pub Vec<(Symbol, i64)>);

impl Env {
    pub fn eval(&self, dim: &Dim) -> Option<i64> {
        let value = |symbol: Symbol| self.0.iter().rev().find(|(s, _)| *s == symbol).map(|(_, value)| *value);
        dim.as_const().or_else(|| dim.eval(&value))
    }

    /// The sizes of axes.
    pub fn sizes<'a>(&self, axes: impl IntoIterator<Item = &'a Axis>) -> Option<Vec<i64>> {
        axes.into_iter().map(|axis| self.eval(&axis.size)).collect()
    }
}

/// A number that depends on a point of some axes.
pub(super) enum Position {
    /// `base + Σ point·stride`.
    Linear { base: i64, strides: Vec<i64> },
    /// Any expression over the axes.
    General { dim: Dim, vars: Vec<Symbol>, env: Env },
}

impl Position {
    pub fn new(dim: &Dim, vars: &[Symbol], env: &Env) -> Position {
        let linear = || {
            let mut rest = dim.clone();
            let mut strides = Vec::with_capacity(vars.len());
            for &var in vars {
                let (stride, other) = rest.linear_in(var)?;
                strides.push(env.eval(&stride).filter(|_| !vars.iter().any(|&v| stride.contains(v)))?);
                rest = other;
            }
            Some(Position::Linear { base: env.eval(&rest)?, strides })
        };
        linear().unwrap_or_else(|| Position::General { dim: dim.clone(), vars: vars.to_vec(), env: env.clone() })
    }

    pub fn at(&self, point: &[i64]) -> Option<i64> {
        match self {
            Position::Linear { base, strides } => {
                strides.iter().zip(point).try_fold(*base, |n: i64, (s, p)| n.checked_add(s.checked_mul(*p)?))
            }
            Position::General { dim, vars, env } => {
                let value = |symbol: Symbol| {
                    let axis = vars.iter().position(|&var| var == symbol);
                    axis.map(|axis| point[axis]).or_else(|| env.eval(&Dim::from(symbol)))
                };
                dim.eval(&value)
            }
        }
    }
}

/// When an instruction accesses memory, as far as that does not depend on data.
pub(super) enum Condition {
    /// At every point.
    Always,
    /// Depends on data.
    Unknown,
    /// Where `low ≤ position < high`.
    Between {
        position: Position,
        low: i64,
        high: i64,
    },
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
    Not(Box<Condition>),
}

impl Condition {
    fn of(value: ValueId, insts: &[&Inst], vars: &[Symbol], env: &Env) -> Condition {
        let Some(inst) = insts.iter().find(|inst| inst.id == value && !is_store(inst)) else {
            return Condition::Unknown;
        };
        let of = |value: &ValueId| Box::new(Condition::of(*value, insts, vars, env));
        match &inst.kind {
            InstKind::Const(value) if value.as_i64() != 0 => Condition::Always,
            InstKind::Const(_) => Condition::Not(Box::new(Condition::Always)),
            InstKind::InRange { expr, low, high } => match (env.eval(low), env.eval(high)) {
                (Some(low), Some(high)) => Condition::Between { position: Position::new(expr, vars, env), low, high },
                _ => Condition::Unknown,
            },
            InstKind::Binary(BinaryOp::And, x, y) => Condition::And(of(x), of(y)),
            InstKind::Binary(BinaryOp::Or, x, y) => Condition::Or(of(x), of(y)),
            InstKind::Unary(UnaryOp::Not, x) => Condition::Not(of(x)),
            _ => Condition::Unknown,
        }
    }

    /// Whether it holds; `None` where that depends on data.
    pub fn holds(&self, point: &[i64]) -> Option<bool> {
        match self {
            Condition::Always => Some(true),
            Condition::Unknown => None,
            Condition::Between { position, low, high } => position.at(point).map(|at| (*low..*high).contains(&at)),
            Condition::And(x, y) => match (x.holds(point), y.holds(point)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Condition::Or(x, y) => match (x.holds(point), y.holds(point)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Condition::Not(x) => x.holds(point).map(|holds| !holds),
        }
    }
}

fn is_store(inst: &Inst) -> bool {
    matches!(inst.kind, InstKind::Store { .. } | InstKind::StoreTemp(..))
}

/// One load or store of a launch.
pub(super) struct Touch {
    /// Number of the argument.
    pub buffer: usize,
    /// The first element touched at a point.
    pub position: Position,
    /// Elements touched from there on.
    pub run: i64,
    /// When it does.
    pub condition: Condition,
    /// Data-dependent parts of the address: number of steps and their stride. `None` where that is not known.
    pub indirect: Option<Vec<(i64, i64)>>,
    /// A store, not a load.
    pub store: bool,
    /// Sizes of the axes; those of the grid come first.
    pub sizes: Vec<i64>,
    /// How many axes number the iterations that run side by side; `None` where every iteration has the touch for itself or not, as
    /// an operand of a product, which many iterations read.
    pub grid: Option<usize>,
}

impl Touch {
    /// What an instruction touches; `None` if it touches no memory.
    pub fn of(
        inst: &Inst,
        insts: &[&Inst],
        axes: &[&Axis],
        grid: Option<usize>,
        env: &Env,
    ) -> Option<Result<Touch, Dim>> {
        let (place, guard, block, store) = match &inst.kind {
            InstKind::Load { place, guard } => (place, guard, None, false),
            InstKind::Store { place, guard, .. } => (place, guard, None, true),
            InstKind::LoadBlock { place, element, format } => (place, &None, Some((element, format)), false),
            _ => return None,
        };
        let vars: Vec<Symbol> = axes.iter().map(|axis| axis.var).collect();
        let Some(sizes) = env.sizes(axes.iter().copied()) else { return Some(Err(place.offset.clone())) };
        let (offset, run) = match block {
            Some((element, format)) => {
                let (elements, bytes) = (format.elements() as i64, format.bytes() as i64);
                (&place.offset + element.floor_div(&Dim::from(elements)) * bytes, bytes)
            }
            None => (place.offset.clone(), 1),
        };
        let reach = |(value, stride): &(ValueId, Dim)| {
            let checked = insts.iter().find(|inst| inst.id == *value && !is_store(inst))?;
            let InstKind::CheckIndex { size, .. } = &checked.kind else { return None };
            Some((env.eval(size)?, env.eval(stride)?))
        };
        Some(Ok(Touch {
            buffer: place.buffer,
            position: Position::new(&offset, &vars, env),
            run,
            condition: guard.map_or(Condition::Always, |guard| Condition::of(guard, insts, &vars, env)),
            indirect: place.indirect.iter().map(reach).collect(),
            store,
            sizes,
            grid,
        }))
    }

    /// All of a strided view.
    pub fn view(view: &Strided, shape: &[&Dim], store: bool, env: &Env) -> Option<Touch> {
        let sizes = shape.iter().map(|size| env.eval(size)).collect::<Option<Vec<i64>>>()?;
        let strides = view.strides.iter().map(|stride| env.eval(stride)).collect::<Option<Vec<i64>>>()?;
        let position = Position::Linear { base: env.eval(&view.offset)?, strides };
        let (condition, indirect) = (Condition::Always, Some(Vec::new()));
        Some(Touch { buffer: view.buffer, position, run: 1, condition, indirect, store, sizes, grid: None })
    }

    /// How many elements it touches at the most.
    pub fn count(&self) -> i64 {
        let indirect = self.indirect.iter().flatten().map(|(size, _)| *size);
        self.sizes.iter().copied().chain(indirect).fold(self.run, |n, size| n.saturating_mul(size.max(0)))
    }

    /// Calls `visit` with every element touched: the iteration, the element, and whether it is certain.
    pub fn each<E>(&self, visit: &mut dyn FnMut(Option<i64>, i64, bool) -> Result<(), E>) -> Result<(), E> {
        if self.sizes.iter().any(|&size| size <= 0) {
            return Ok(());
        }
        let mut point = vec![0; self.sizes.len()];
        loop {
            let (sure, position) = (self.condition.holds(&point), self.position.at(&point));
            let number = |grid: usize| self.sizes[..grid].iter().zip(&point).fold(0, |n, (size, at)| n * size + at);
            let iteration = self.grid.map(number);
            if let (Some(position), true) = (position, sure != Some(false)) {
                self.at(position, self.indirect.as_deref().unwrap_or_default(), &mut |element| {
                    visit(iteration, element, sure == Some(true) && self.indirect.is_some())
                })?;
            }
            // The next point, the last axis fastest.
            let Some(axis) = (0..point.len()).rev().find(|&axis| point[axis] + 1 < self.sizes[axis]) else {
                return Ok(());
            };
            point[axis] += 1;
            point[axis + 1..].fill(0);
        }
    }

    fn at<E>(
        &self,
        position: i64,
        indirect: &[(i64, i64)],
        visit: &mut dyn FnMut(i64) -> Result<(), E>,
    ) -> Result<(), E> {
        match indirect.split_first() {
            None => (0..self.run).try_for_each(|next| visit(position.saturating_add(next))),
            Some((&(size, stride), rest)) => (0..size)
                .try_for_each(|at| self.at(position.saturating_add(at.saturating_mul(stride)), rest, &mut *visit)),
        }
    }
}
