//! The verifier of vector IR and the checker of allocations detect every mutation: functions of random graphs and of
//! hand-written kernels, and their allocations, are changed one thing at a time.

mod support;

use kiln_cpu::emit::{early_clobber, registers};
use kiln_cpu::features::Isa;
use kiln_cpu::lower::{Options, lower};
use kiln_cpu::regalloc::{Allocation, Class, Location, Registers, allocate, check};
use kiln_cpu::vir::{self, *};
use kiln_ir::decompose::decompose;
use kiln_ir::{BinaryOp, DType, ReduceKind, UnaryOp, generate};
use kiln_kernels::kernel::{Access as Use, Domain, Kernel, KernelBody, ReductionKind};
use kiln_kernels::{InputLayout, ScheduleOptions, schedule};
use support::K;

/// A function and the kernel that it is the code of.
struct Case {
    name: String,
    function: Function,
    buffers: usize,
    sizes: usize,
}

impl Case {
    fn of(name: String, kernel: &Kernel, options: Options) -> Option<Case> {
        let KernelBody::Loop(body) = &kernel.body else { return None };
        let function = lower(kernel, body, options).ok()?.function;
        Some(Case { name, function, buffers: kernel.buffers.len(), sizes: kernel.sizes.len() })
    }

    fn verify(&self, function: &Function) -> Result<(), VirViolation> {
        vir::verify(function, self.buffers, self.sizes)
    }
}

/// Many values at once, of which some go through scalar functions: registers run out, and calls find live ones.
fn pressure(dtype: DType, stored: DType, values: usize, row: bool) -> Kernel {
    let mut k = if row { K::new(&[("i0", "3")], &[("i1", "70")]) } else { K::new(&[("i0", "3"), ("i1", "70")], &[]) };
    let (x, y) = (k.input(dtype), k.buffer(stored, Use::Write));
    if row {
        k.stage(Domain::Row);
    }
    let loads: Vec<_> = (0..values).map(|n| k.load(x, &format!("i0*70 + i1 + {n}"))).collect();
    let mut sum = loads[0];
    for (n, &load) in loads.iter().enumerate().skip(1) {
        let value = if n % 8 == 3 { k.binary(BinaryOp::Rem, dtype, load, sum) } else { load };
        sum = k.binary(BinaryOp::Add, dtype, sum, value);
    }
    for &load in &loads {
        sum = k.binary(BinaryOp::Max, dtype, sum, load);
    }
    if row {
        let total = k.reduce(ReductionKind::Reduce(ReduceKind::Max), dtype, sum);
        k.stage(Domain::Point);
        let root = k.unary(UnaryOp::Abs, dtype, total);
        k.store(y, "i0", root);
    } else {
        k.store(y, "i0*70 + i1", sum);
    }
    k.kernel()
}

/// Functions of so many random graphs, and of kernels with many live values.
fn cases(graphs: u64) -> Vec<Case> {
    let mut all = Vec::new();
    for (n, (dtype, stored)) in
        [(DType::F32, DType::F8E4M3), (DType::F64, DType::F64), (DType::I64, DType::I64)].into_iter().enumerate()
    {
        for row in [false, true] {
            let stored = if row { dtype } else { stored };
            for (copies, values) in [(None, 40), (Some(1), 24), (Some(2), 9)] {
                let options = Options { copies, ..Options::default() };
                all.extend(Case::of(
                    format!("pressure {n} {row} {values}"),
                    &pressure(dtype, stored, values, row),
                    options,
                ));
            }
        }
    }
    assert_eq!(all.len(), 18);
    for seed in 0..graphs {
        let options = generate::Options { nodes: 16, symbolic: seed % 2 == 0, sharing: 0.6, ..Default::default() };
        let graph = generate::graph(seed, &options);
        let graph =
            decompose(&graph, &|op| !matches!(op, kiln_ir::Op::Conv(_) | kiln_ir::Op::ReduceWindow { .. })).unwrap();
        let layouts: Vec<_> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        let Ok(schedule) = schedule(&graph, &layouts, &ScheduleOptions::default()) else { continue };
        for (at, step) in schedule.steps.iter().enumerate() {
            all.extend(Case::of(format!("seed {seed}, step {at}"), &step.kernel, Options::default()));
        }
    }
    all
}

const TARGETS: [Isa; 2] = [Isa::Avx2, Isa::Avx512];

#[test]
fn functions_and_allocations_of_random_graphs_are_valid() {
    let cases = cases(600);
    let graphs = cases
        .iter()
        .filter_map(|case| case.name.strip_prefix("seed ")?.split(',').next())
        .collect::<std::collections::HashSet<_>>();
    assert!(graphs.len() >= 500, "{}", graphs.len());
    let (mut spills, mut hoisted, mut saved) = (0, 0, 0);
    for case in &cases {
        let f = &case.function;
        case.verify(f).unwrap_or_else(|e| panic!("{}: {e}\n{f}", case.name));
        for isa in TARGETS {
            let allocation = allocate(f, registers(isa), &early_clobber);
            check(f, &allocation, registers(isa), &early_clobber).unwrap_or_else(|e| panic!("{}: {e}\n{f}", case.name));
            spills += allocation.locations.iter().filter(|location| matches!(location, Location::Slot(_))).count();
            hoisted += allocation.hoisted.len();
            saved += calls(f).map(|at| allocation.saved_across(at, f, registers(isa)).len()).sum::<usize>();
        }
    }
    assert!(spills > 1000 && hoisted > 1000 && saved > 1000, "{spills} {hoisted} {saved}");
}

/// The instructions that call.
fn calls(f: &Function) -> impl Iterator<Item = usize> {
    f.insts.iter().enumerate().filter(|(_, inst)| matches!(inst.op, Op::Call(_) | Op::Transpose(_))).map(|(at, _)| at)
}

fn position(f: &Function, wanted: impl Fn(&Inst) -> bool) -> Option<usize> {
    f.insts.iter().position(wanted)
}

/// Changes the first instruction that `change` can change.
fn first(f: &mut Function, change: impl FnMut(&mut Inst) -> Option<()>) -> Option<()> {
    f.insts.iter_mut().find_map(change)
}

fn is_open(inst: &Inst) -> bool {
    matches!(inst.op, Op::Loop { .. } | Op::If)
}

/// The `End` of what opens at `open`.
fn end_of(f: &Function, open: usize) -> usize {
    let mut depth = 0;
    (open..f.insts.len())
        .find(|&at| {
            depth += i32::from(is_open(&f.insts[at])) - i32::from(f.insts[at].op == Op::End);
            depth == 0
        })
        .unwrap()
}

fn uses(inst: &Inst, v: V) -> bool {
    inst.args.contains(&v)
}

type Damage = (&'static str, fn(&mut Function) -> Option<()>);

const OF_FUNCTIONS: &[Damage] = &[
    ("an operand without a type", |f| {
        let beyond = V(f.types.len() as u32);
        first(f, |inst| inst.args.iter_mut().find(|v| v.is_some()).map(|v| *v = beyond))
    }),
    ("a definition that is missing", |f| {
        let at = (0..f.insts.len()).find(|&at| {
            let dst = f.insts[at].dst;
            dst.is_some()
                && f.insts.iter().filter(|inst| inst.dst == dst).count() == 1
                && f.insts.iter().any(|inst| uses(inst, dst))
        })?;
        f.insts.remove(at);
        Some(())
    }),
    ("a definition after its use", |f| {
        let at = (1..f.insts.len()).find(|&at| {
            let (one, two) = (&f.insts[at - 1], &f.insts[at]);
            one.dst.is_some()
                && uses(two, one.dst)
                && !uses(one, one.dst)
                && !is_open(two)
                && !f.insts[..at - 1].iter().any(|inst| inst.dst == one.dst)
        })?;
        f.insts.swap(at - 1, at);
        Some(())
    }),
    ("a definition that comes twice", |f| {
        let at = position(f, |inst| inst.dst.is_some() && inst.op != Op::Copy && !matches!(inst.op, Op::Const(_)))?;
        let once = f.insts.iter().filter(|inst| inst.dst == f.insts[at].dst).count() == 1;
        once.then(|| f.insts.insert(at, f.insts[at]))
    }),
    ("a value of a loop used after it", |f| {
        let open = position(f, |inst| matches!(inst.op, Op::Loop { .. }))?;
        let end = end_of(f, open);
        let inside = f.insts[open..end].iter().find(|inst| inst.dst.is_some() && inst.op != Op::Copy)?.dst;
        let ty = f.types[inside.index()];
        if f.insts[..open].iter().any(|inst| inst.dst == inside) {
            return None;
        }
        f.types.push(ty);
        let dst = V(f.types.len() as u32 - 1);
        f.insts.insert(end + 1, Inst { op: Op::Copy, ty, dst, args: [inside, V::NONE, V::NONE, V::NONE] });
        Some(())
    }),
    ("a scalar where a vector belongs", |f| {
        let scalar = f.insts.iter().find(|inst| inst.dst.is_some() && f.types[inst.dst.index()] == Ty::Int)?.dst;
        first(f, |inst| matches!(inst.op, Op::Bin(_) | Op::Select | Op::Fma(_)).then(|| inst.args[1] = scalar))
    }),
    ("a vector where a scalar belongs", |f| {
        let vector = f.insts.iter().find(|inst| inst.dst.is_some() && f.types[inst.dst.index()].lane_bytes() > 0)?.dst;
        first(f, |inst| matches!(inst.op, Op::Int(_) | Op::Address { .. }).then(|| inst.args[0] = vector))
    }),
    ("a choice by a vector", |f| first(f, |inst| matches!(inst.op, Op::Select).then(|| inst.args[0] = inst.args[1]))),
    ("a result of another width", |f| {
        let at = position(f, |inst| matches!(inst.op, Op::Bin(_)) && inst.ty.lane_bytes() > 0)?;
        let ty = &mut f.types[f.insts[at].dst.index()];
        *ty = if ty.lane_bytes() == 4 { Ty::I64 } else { Ty::I32 };
        Some(())
    }),
    ("a comparison that gives a vector", |f| {
        let at = position(f, |inst| matches!(inst.op, Op::Compare(_)))?;
        f.types[f.insts[at].dst.index()] = f.insts[at].ty;
        Some(())
    }),
    ("a result of what has none", |f| {
        let at = position(f, |inst| matches!(inst.op, Op::Store(_)))?;
        f.insts[at].dst = f.insts[at].args[3];
        Some(())
    }),
    ("an absent operand", |f| first(f, |inst| matches!(inst.op, Op::Bin(_)).then(|| inst.args[1] = V::NONE))),
    ("an operand too many", |f| first(f, |inst| matches!(inst.op, Op::Bin(_)).then(|| inst.args[2] = inst.args[0]))),
    ("a store of nothing", |f| first(f, |inst| matches!(inst.op, Op::Store(_)).then(|| inst.args[3] = V::NONE))),
    ("a mask that is no mask", |f| {
        first(f, |inst| match inst.op {
            Op::Store(m) if m.access == vir::Access::Contiguous && inst.ty != Ty::Mask => {
                inst.args[2] = inst.args[3];
                Some(())
            }
            _ => None,
        })
    }),
    ("a masked load of one element", |f| {
        let mask = f.insts.iter().find(|inst| inst.dst.is_some() && f.types[inst.dst.index()] == Ty::Mask)?.dst;
        let single = |inst: &Inst| matches!(inst.op, Op::Load(m) if m.access == vir::Access::Single);
        let at = (0..f.insts.len()).rfind(|&at| single(&f.insts[at]))?;
        f.insts[at].args[2] = mask;
        Some(())
    }),
    ("a load of another type", |f| {
        first(f, |inst| match &mut inst.op {
            Op::Load(m) if m.access == vir::Access::Contiguous => {
                m.dtype = if m.dtype == DType::Bool { DType::F32 } else { DType::Bool };
                Some(())
            }
            _ => None,
        })
    }),
    ("a gather without indices", |f| {
        first(f, |inst| match inst.op {
            Op::Load(m) if m.access == vir::Access::Indexed => {
                inst.args[1] = V::NONE;
                Some(())
            }
            _ => None,
        })
    }),
    ("a gather by indices of another width", |f| {
        first(f, |inst| match &mut inst.op {
            Op::Load(m) if m.access == vir::Access::Indexed => {
                m.wide_index = !m.wide_index;
                Some(())
            }
            _ => None,
        })
    }),
    ("a loop that is not closed", |f| {
        let at = (0..f.insts.len()).rfind(|&at| f.insts[at].op == Op::End)?;
        f.insts.remove(at);
        Some(())
    }),
    ("an end of nothing", |f| {
        f.insts.push(Inst { op: Op::End, ty: Ty::Int, dst: V::NONE, args: [V::NONE; 4] });
        Some(())
    }),
    ("a counter that is assigned in its loop", |f| {
        let open = position(f, |inst| matches!(inst.op, Op::Loop { .. }))?;
        let [counter, bound, ..] = f.insts[open].args;
        f.insts.insert(
            open + 1,
            Inst { op: Op::Copy, ty: Ty::Int, dst: counter, args: [bound, V::NONE, V::NONE, V::NONE] },
        );
        Some(())
    }),
    ("a counter that is no variable", |f| {
        first(f, |inst| matches!(inst.op, Op::Loop { .. }).then(|| inst.args[0] = inst.args[1]))
    }),
    ("a loop that does not advance", |f| {
        first(f, |inst| match &mut inst.op {
            Op::Loop { step, .. } => {
                *step = Step::Elements(0);
                Some(())
            }
            _ => None,
        })
    }),
    ("an argument that is not there", |f| {
        first(f, |inst| match &mut inst.op {
            Op::Arg(n) => {
                *n = 3;
                Some(())
            }
            _ => None,
        })
    }),
    ("a buffer that is not there", |f| {
        // Fields of the context are at most 24 bytes in; a field of any list is 8 bytes an entry.
        let at = (0..f.insts.len()).rfind(|&at| matches!(f.insts[at].op, Op::Field(_)))?;
        f.insts[at].op = Op::Field(8 * 1000);
        let base = f.insts.iter().find(|inst| inst.dst == f.insts[at].args[0])?;
        matches!(base.op, Op::Field(_) | Op::Arg(0)).then_some(())
    }),
    ("local memory that is not there", |f| {
        let bytes = f.local_bytes;
        first(f, |inst| match &mut inst.op {
            Op::Local(at) => {
                *at = bytes;
                Some(())
            }
            _ => None,
        })
    }),
    ("a scale that addresses do not have", |f| {
        first(f, |inst| match &mut inst.op {
            Op::Address { scale, .. } => {
                *scale = 3;
                Some(())
            }
            _ => None,
        })
    }),
    ("a shift of floats", |f| {
        first(f, |inst| match &mut inst.op {
            Op::Bin(op) if inst.ty.is_float() => {
                *op = BinOp::Shl;
                Some(())
            }
            _ => None,
        })
    }),
    ("a shift by the width", |f| {
        let shifts: Vec<V> = f
            .insts
            .iter()
            .filter(|inst| matches!(inst.op, Op::Bin(BinOp::Shl | BinOp::Sar | BinOp::Shr)))
            .map(|inst| inst.args[1])
            .collect();
        first(f, |inst| match &mut inst.op {
            Op::Const(bits) if shifts.contains(&inst.dst) => {
                *bits = 64;
                Some(())
            }
            _ => None,
        })
    }),
    ("a product and sum of integers", |f| {
        first(f, |inst| matches!(inst.op, Op::Fma(_)).then(|| inst.ty = inst.ty.as_int()))
    }),
    ("a root of integers", |f| {
        first(f, |inst| match inst.op {
            Op::Un(UnOp::Sqrt | UnOp::Floor | UnOp::Round) => {
                inst.ty = inst.ty.as_int();
                Some(())
            }
            _ => None,
        })
    }),
    ("a conversion to its own type", |f| {
        first(f, |inst| match &mut inst.op {
            Op::Convert(from) if *from != Ty::Int => {
                *from = inst.ty;
                Some(())
            }
            _ => None,
        })
    }),
    ("a function of two numbers without the second", |f| {
        first(f, |inst| matches!(inst.op, Op::Call(ScalarFn::Binary(_))).then(|| inst.args[1] = V::NONE))
    }),
    ("a width that is not said", |f| {
        f.wide = !f.wide;
        Some(())
    }),
];

#[test]
fn every_damage_of_a_function_is_seen() {
    let mut applied = vec![0; OF_FUNCTIONS.len()];
    for case in cases(900) {
        for ((damage, change), count) in OF_FUNCTIONS.iter().zip(&mut applied) {
            let mut f = case.function.clone();
            if change(&mut f).is_none() {
                continue;
            }
            *count += 1;
            assert!(case.verify(&f).is_err(), "{}: {damage} is not seen in\n{f}\nof\n{}", case.name, case.function);
        }
    }
    for ((damage, _), count) in OF_FUNCTIONS.iter().zip(applied) {
        assert!(count > 0, "no function for: {damage}");
    }
}

/// An allocation, its function and its target.
struct Allocated<'a> {
    f: &'a Function,
    registers: Registers,
    allocation: Allocation,
}

impl Allocated<'_> {
    fn class(&self, v: V) -> Class {
        self.registers.class(self.f.types[v.index()])
    }

    fn location(&self, v: V) -> Location {
        self.allocation.locations[v.index()]
    }

    fn move_to(&mut self, v: V, location: Location) {
        self.allocation.locations[v.index()] = location;
    }

    /// A value that an instruction reads, and that is no constant.
    fn read(&self, class: Option<Class>) -> Option<V> {
        let mut read = self.f.insts.iter().flat_map(|inst| inst.args).filter(|v| v.is_some());
        read.find(|&v| class.is_none_or(|class| self.class(v) == class) && !self.is_constant(v))
    }

    fn is_constant(&self, v: V) -> bool {
        self.f.insts.iter().any(|inst| inst.dst == v && matches!(inst.op, Op::Number(_) | Op::Const(_)))
    }

    fn in_register(&self, v: V) -> bool {
        matches!(self.location(v), Location::Reg(_))
    }

    /// Two operands of one instruction, of one class, in places that `of` accepts.
    fn two(&self, of: impl Fn(V) -> bool) -> Option<(V, V)> {
        self.f.insts.iter().find_map(|inst| {
            let args: Vec<V> =
                inst.args.into_iter().filter(|v| v.is_some() && of(*v) && !self.is_constant(*v)).collect();
            args.iter()
                .flat_map(|&a| args.iter().map(move |&b| (a, b)))
                .find(|&(a, b)| a != b && self.class(a) == self.class(b))
        })
    }

    /// A value used in a loop (or part) and defined before it, and one that is defined inside: of one class, neither a constant.
    fn across(&self, wanted: impl Fn(&Inst) -> bool) -> Option<(V, V)> {
        let f = self.f;
        (0..f.insts.len()).filter(|&at| wanted(&f.insts[at])).find_map(|open| {
            let end = end_of(f, open);
            let body = &f.insts[open + 1..end];
            let defined = |v: V| f.insts[open..end].iter().any(|inst| inst.dst == v);
            let ends: Vec<V> = if is_loop(&f.insts[open]) {
                body.iter().flat_map(|inst| inst.args).collect()
            } else {
                f.insts[end..].iter().flat_map(|inst| inst.args).collect()
            };
            let outer = ends.into_iter().filter(|v| v.is_some() && !defined(*v) && !self.is_constant(*v));
            let before = |v: V| f.insts[..open].iter().any(|inst| inst.dst == v);
            outer.filter(|&v| before(v) && self.in_register(v)).find_map(|v| {
                let inner = body.iter().filter(|inst| inst.dst.is_some() && !self.is_constant(inst.dst));
                inner
                    .map(|inst| inst.dst)
                    .find(|&d| d != v && !before(d) && self.class(d) == self.class(v))
                    .map(|d| (v, d))
            })
        })
    }
}

fn is_loop(inst: &Inst) -> bool {
    matches!(inst.op, Op::Loop { .. })
}

type AllocationDamage = (&'static str, fn(&mut Allocated<'_>) -> Option<()>);

const OF_ALLOCATIONS: &[AllocationDamage] = &[
    ("two operands in one register", |a| {
        let (x, y) = a.two(|v| a.in_register(v))?;
        a.move_to(x, a.location(y));
        Some(())
    }),
    ("two operands in one slot", |a| {
        let (x, y) = a.two(|v| matches!(a.location(v), Location::Slot(_)))?;
        a.move_to(x, a.location(y));
        Some(())
    }),
    ("a vector's slot beyond the frame", |a| {
        let v = a.read(Some(Class::Vector))?;
        a.move_to(v, Location::Slot(a.allocation.vector_slots));
        Some(())
    }),
    ("a scalar's slot that is an argument's", |a| {
        let v = a.read(Some(Class::Int))?;
        a.move_to(v, Location::Slot(a.allocation.int_slots));
        Some(())
    }),
    ("a scalar in a scratch register", |a| {
        let v = a.read(Some(Class::Int))?;
        a.move_to(v, Location::Reg(0));
        Some(())
    }),
    ("a vector in a scratch register", |a| {
        let v = a.read(Some(Class::Vector))?;
        a.move_to(v, Location::Reg(a.registers.vector.trailing_ones() as u8));
        Some(())
    }),
    ("a mask in a vector's register", |a| {
        let v = a.read(Some(Class::Mask))?;
        a.move_to(v, Location::Reg(20));
        Some(())
    }),
    ("a value without a place", |a| {
        let v = a.read(None)?;
        a.move_to(v, Location::None);
        Some(())
    }),
    ("a value taken for a constant", |a| {
        let v = a.read(None)?;
        a.move_to(v, Location::Const);
        Some(())
    }),
    ("a constant that is not loaded", |a| {
        let used = |v: V| a.f.insts.iter().any(|inst| uses(inst, v));
        let at = a.allocation.hoisted.iter().position(|(v, _)| used(*v))?;
        a.allocation.hoisted.remove(at);
        Some(())
    }),
    ("a constant in an operand's register", |a| {
        let hoisted: Vec<V> = a.allocation.hoisted.iter().map(|(v, _)| *v).collect();
        let (constant, register) = a.f.insts.iter().find_map(|inst| {
            let constant = inst.args.into_iter().find(|v| hoisted.contains(v))?;
            let other = inst
                .args
                .into_iter()
                .find(|v| v.is_some() && !hoisted.contains(v) && a.class(*v) == Class::Vector && a.in_register(*v))?;
            match a.location(other) {
                Location::Reg(r) => Some((constant, r)),
                _ => None,
            }
        })?;
        a.allocation.hoisted.iter_mut().find(|(v, _)| *v == constant)?.1 = register;
        a.move_to(constant, Location::Reg(register));
        Some(())
    }),
    ("a register that a call does not save", |a| {
        let (f, registers) = (a.f, a.registers);
        let (v, at) = calls(f).find_map(|at| {
            let saved = a.allocation.saved_across(at, f, registers);
            let holds = |v: V| matches!(a.location(v), Location::Reg(r) if saved.contains(&(r, a.class(v))));
            // Defined before the call and used after it, with no other value in the register between.
            let before = |v: V| f.insts[..at].iter().any(|inst| inst.dst == v);
            let later = f.insts[at + 1..].iter().flat_map(|inst| inst.args);
            later
                .into_iter()
                .find(|&v| v.is_some() && holds(v) && before(v) && !f.insts[at..].iter().any(|inst| inst.dst == v))
                .map(|v| (v, at))
        })?;
        a.allocation.span[v.index()].1 = 2 * at as u32;
        Some(())
    }),
    ("a register of the caller that is not saved", |a| {
        let scalar = |inst: &&Inst| inst.dst.is_some() && a.class(inst.dst) == Class::Int;
        let register = a.f.insts.iter().filter(scalar).find_map(|inst| match a.location(inst.dst) {
            Location::Reg(r) => Some(r),
            _ => None,
        })?;
        a.allocation.used_int &= !(1 << register);
        Some(())
    }),
    ("a counter in its bound's register", |a| {
        let [counter, bound, ..] = a.f.insts.iter().find(|inst| is_loop(inst) && a.in_register(inst.args[1]))?.args;
        a.move_to(counter, a.location(bound));
        Some(())
    }),
    ("a result over an operand that is still read", |a| {
        let (dst, operand) =
            a.f.insts.iter().filter(|inst| inst.dst.is_some() && early_clobber(inst)).find_map(|inst| {
                let fits = |v: &V| {
                    v.is_some()
                        && *v != inst.dst
                        && a.class(*v) == a.class(inst.dst)
                        && a.in_register(*v)
                        && !a.is_constant(*v)
                };
                Some((inst.dst, inst.args.into_iter().find(fits)?))
            })?;
        a.move_to(dst, a.location(operand));
        Some(())
    }),
    ("a loop's value over one that the next iteration reads", |a| {
        let (outer, inner) = a.across(is_loop)?;
        a.move_to(inner, a.location(outer));
        Some(())
    }),
    ("a part's value over one that is read after it", |a| {
        let (outer, inner) = a.across(|inst| inst.op == Op::If)?;
        a.move_to(inner, a.location(outer));
        Some(())
    }),
];

#[test]
fn every_damage_of_an_allocation_is_seen() {
    let mut applied = vec![0; OF_ALLOCATIONS.len()];
    for case in cases(300) {
        for isa in TARGETS {
            for ((damage, change), count) in OF_ALLOCATIONS.iter().zip(&mut applied) {
                let (f, registers) = (&case.function, registers(isa));
                let allocation = allocate(f, registers, &early_clobber);
                let mut allocated = Allocated { f, registers, allocation };
                if change(&mut allocated).is_none() {
                    continue;
                }
                *count += 1;
                let verdict = check(f, &allocated.allocation, registers, &early_clobber);
                assert!(verdict.is_err(), "{}, {isa:?}: {damage} is not seen in\n{f}", case.name);
            }
        }
    }
    for ((damage, _), count) in OF_ALLOCATIONS.iter().zip(applied) {
        assert!(count > 0, "no allocation for: {damage}");
    }
}

#[test]
fn a_violation_names_the_instruction() {
    let mut b = Builder::new();
    let (begin, end) = (b.arg(1), b.arg(2));
    let sum = b.int(IntOp::Add, begin, end);
    let address = b.arg(0);
    b.effect(Op::StoreInt { dtype: DType::I64, disp: 0 }, Ty::Int, &[address, V::NONE, sum]);
    let mut f = b.finish();
    assert_eq!(vir::verify(&f, 0, 0), Ok(()));
    let registers = registers(Isa::Avx2);
    let mut allocation = allocate(&f, registers, &early_clobber);
    assert_eq!(check(&f, &allocation, registers, &early_clobber), Ok(()));
    allocation.locations[end.index()] = allocation.locations[begin.index()];
    let error = check(&f, &allocation, registers, &early_clobber).unwrap_err().to_string();
    assert_eq!(error, "registers, instruction 2 (add v0, v1): v0 is read from Reg(3), which holds Some(v1)");
    f.types[begin.index()] = Ty::F32;
    let error = vir::verify(&f, 0, 0).unwrap_err().to_string();
    assert_eq!(error, "vector IR, instruction 0 (arg(1)): the result is F32, expected Int");
}
