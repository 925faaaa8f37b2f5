//! The verifier of kernels detects every mutation: kernels of random graphs and of hand-written ones are changed one thing at a
//! time, and each change breaks a rule of the contract.

mod support;

use kiln_ir::decompose::decompose;
use kiln_ir::generate;
use kiln_ir::{BinaryOp, BlockFormat, DType, Dim, Graph, Op, Ranges, Scalar, Symbol, UnaryOp};
use kiln_kernels::kernel::*;
use kiln_kernels::verify::{self, Rule, Violation};
use kiln_kernels::{InputLayout, Precision, Role, Schedule, ScheduleOptions, Target, schedule};
use std::sync::Arc;

fn scheduled(graph: Graph) -> Option<Schedule> {
    let graph = decompose(&graph, &|op| !matches!(op, Op::Conv(_) | Op::ReduceWindow { .. })).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let target = Target { long_row: 64, ..support::GPU };
    let options = ScheduleOptions { target, ..ScheduleOptions::default() };
    schedule(&graph, &layouts, &options).ok()
}

/// What random graphs do not have.
const WRITTEN: [&str; 6] = [
    "graph(%0: f32[2, 4, 8, 16], %1: f32[2, 2, 8, 16], %2: f32[2, 2, 8, 16], %3: bool[2, 4, 8, 8]) {
       %4: f32[2, 4, 8, 16] = attention %0, %1, %2, %3 {causal=false, scale=0.25}
       return %4
     }",
    "graph(%0: f32[b, t], %1: f32[t]) {
       %2: f32[b, 1] = reduce_max %0 {axes=[1]}
       %3: f32[b, t] = expand %2
       %4: f32[b, t] = sub %0, %3
       %5: f32[b, t] = exp %4
       %6: f32[b, 1] = reduce_sum %5 {axes=[1]}
       %7: f32[b, t] = expand %6
       %8: f32[b, t] = div %5, %7
       return %8
     }",
    "graph(%0: u8[16, 68], %1: f32[3, 64]) {
       %2: f32[16, 64] = dequantize %0 {format=q8_0}
       %3: f32[3, 16] = dot %1, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
       return %3
     }",
    "graph(%0: i64[3, 5], %1: f32[7, 5], %2: f32[3, 5]) {
       %3: f32[7, 5] = scatter_add %1, %0, %2 {axis=0}
       return %3
     }",
    "graph(%0: f32[32, 2, 16, 32], %1: i64[4, 8], %2: f32[32, 2, 16, 32], %3: f32[4, 4, 1, 32]) {
       %4: i64[32, 1, 1, 1] = reshape %1
       %5: i64[32, 2, 16, 32] = expand %4
       %6: f32[32, 2, 16, 32] = gather %0, %5 {axis=0}
       %7: f32[4, 8, 2, 16, 32] = reshape %6
       %8: f32[4, 2, 8, 16, 32] = permute %7 {order=[0, 2, 1, 3, 4]}
       %9: f32[4, 2, 128, 32] = reshape %8
       %10: f32[32, 2, 16, 32] = gather %2, %5 {axis=0}
       %11: f32[4, 8, 2, 16, 32] = reshape %10
       %12: f32[4, 2, 8, 16, 32] = permute %11 {order=[0, 2, 1, 3, 4]}
       %13: f32[4, 2, 128, 32] = reshape %12
       %14: f32[4, 4, 1, 32] = attention %3, %9, %13 {causal=false, scale=0.25}
       return %14
     }",
    // A norm, a product beside two that become one.
    "graph(%0: f32[2, 128], %1: f32[96, 128], %2: f32[64, 128], %3: f32[64, 128]) {
       %4: f32[2, 128] = mul %0, %0
       %5: f32[2, 1] = reduce_sum %4 {axes=[1]}
       %6: f32[2, 128] = expand %5
       %7: f32[2, 128] = div %0, %6
       %8: f32[2, 96] = dot %7, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
       %9: f32[2, 64] = dot %7, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
       %10: f32[2, 64] = dot %7, %3 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
       %11: f32[2, 64] = tanh %9
       %12: f32[2, 64] = mul %11, %10
       return %8, %12
     }",
];

fn schedules(count: u64) -> impl Iterator<Item = (String, Schedule)> {
    let written = WRITTEN.iter().enumerate().map(|(at, text)| {
        let graph = Graph::parse(text).unwrap_or_else(|e| panic!("graph {at}: {e}"));
        (format!("graph {at}"), scheduled(graph).unwrap())
    });
    let random = (0..count).filter_map(|seed| {
        let options = generate::Options { nodes: 16, symbolic: seed % 2 == 0, sharing: 0.6, ..Default::default() };
        Some((format!("seed {seed}"), scheduled(generate::graph(seed, &options))?))
    });
    written.chain(random)
}

#[test]
fn kernels_of_random_graphs_are_valid() {
    let (mut graphs, mut kernels) = (0, 0);
    for (name, schedule) in schedules(700) {
        let verdict = verify::kernels(&schedule, &Ranges::default());
        verdict.unwrap_or_else(|violation| panic!("{name}: {violation}\n{schedule}"));
        graphs += 1;
        kernels += schedule.steps.len();
    }
    assert!(graphs >= 500 && kernels > 1500, "{graphs} graphs, {kernels} kernels");
}

type Insts<'a> = Vec<&'a mut Vec<Inst>>;

/// The lists of instructions, in order.
fn lists(kernel: &mut Kernel) -> Insts<'_> {
    match &mut kernel.body {
        KernelBody::Loop(body) => body.stages.iter_mut().map(|stage| &mut stage.insts).collect(),
        KernelBody::Matmul(body) => vec![&mut body.lhs.insts, &mut body.rhs[0].insts, &mut body.epilogue],
        _ => Vec::new(),
    }
}

fn is_store(inst: &Inst) -> bool {
    matches!(inst.kind, InstKind::Store { .. } | InstKind::StoreTemp(..))
}

fn operands(kind: &mut InstKind) -> Vec<&mut ValueId> {
    match kind {
        InstKind::Store { value, guard, .. } => guard.iter_mut().chain([value]).collect(),
        InstKind::Load { guard, .. } => guard.iter_mut().collect(),
        InstKind::StoreTemp(_, x)
        | InstKind::Unary(_, x)
        | InstKind::Cast(x)
        | InstKind::Bitcast(x)
        | InstKind::Round(x, _)
        | InstKind::CheckIndex { value: x, .. }
        | InstKind::Random { seed: x, .. } => vec![x],
        InstKind::Binary(_, x, y) | InstKind::Compare(_, x, y) => vec![x, y],
        InstKind::Select(c, x, y) => vec![c, x, y],
        _ => Vec::new(),
    }
}

fn place(kind: &mut InstKind) -> Option<&mut Place> {
    match kind {
        InstKind::Load { place, .. } | InstKind::LoadBlock { place, .. } | InstKind::Store { place, .. } => Some(place),
        _ => None,
    }
}

/// Changes the first instruction that `change` can change.
fn first_inst(kernel: &mut Kernel, mut change: impl FnMut(&mut Inst) -> Option<()>) -> Option<()> {
    lists(kernel).into_iter().flatten().find_map(&mut change)
}

fn first_place(kernel: &mut Kernel, change: impl Fn(&mut Place)) -> Option<()> {
    first_inst(kernel, |inst| place(&mut inst.kind).map(&change))
}

/// Declares a buffer that an instruction uses otherwise.
fn declare(kernel: &mut Kernel, store: bool, access: Access) -> Option<()> {
    let mut buffer = None;
    first_inst(kernel, |inst| {
        let stores = matches!(inst.kind, InstKind::Store { .. });
        buffer = place(&mut inst.kind).filter(|_| stores == store).map(|place| place.buffer);
        buffer.map(|_| ())
    })?;
    kernel.buffers[buffer?].access = access;
    Some(())
}

fn other(dtype: DType) -> DType {
    if dtype == DType::I64 { DType::F32 } else { DType::I64 }
}

fn loop_of(kernel: &mut Kernel) -> Option<&mut LoopBody> {
    match &mut kernel.body {
        KernelBody::Loop(body) => Some(body),
        _ => None,
    }
}

fn matmul_of(kernel: &mut Kernel) -> Option<&mut MatmulBody> {
    match &mut kernel.body {
        KernelBody::Matmul(body) => Some(body),
        _ => None,
    }
}

/// The first product, of several bodies too.
fn joined_of(kernel: &mut Kernel) -> Option<&mut MatmulBody> {
    let bodies = match &mut kernel.body {
        KernelBody::Parallel(bodies) => bodies.as_mut_slice(),
        body => std::slice::from_mut(body),
    };
    bodies.iter_mut().find_map(|body| match body {
        KernelBody::Matmul(body) => Some(body),
        _ => None,
    })
}

fn bodies_of(kernel: &mut Kernel) -> Option<&mut Vec<KernelBody>> {
    match &mut kernel.body {
        KernelBody::Parallel(bodies) => Some(bodies),
        _ => None,
    }
}

fn attention_of(kernel: &mut Kernel) -> Option<&mut AttentionBody> {
    match &mut kernel.body {
        KernelBody::Attention(body) => Some(body),
        _ => None,
    }
}

fn backward_of(kernel: &mut Kernel) -> Option<&mut AttentionBackwardBody> {
    match &mut kernel.body {
        KernelBody::AttentionBackward(body) => Some(body),
        _ => None,
    }
}

fn stranger() -> Symbol {
    Symbol::new("stranger").unwrap()
}

/// A new instruction at the front of a list, numbered below all others by moving them up.
fn prepend(kernel: &mut Kernel, list: usize, dtype: DType, kind: InstKind) -> Option<()> {
    let inst = Inst { id: ValueId(u32::MAX), dtype, kind };
    lists(kernel).into_iter().nth(list).map(|insts| insts.insert(0, inst))
}

type Mutation = (&'static str, fn(&mut Kernel) -> Option<()>);

/// Each damage is applied where it can be; `None` means that a kernel has nothing to damage in that way.
const MUTATIONS: &[Mutation] = &[
    ("a buffer number too large", |k| {
        let count = k.buffers.len();
        first_place(k, |place| place.buffer = count)
    }),
    ("a store to a buffer that is only read", |k| declare(k, true, Access::Read)),
    ("a load of a buffer that is only written", |k| declare(k, false, Access::Write)),
    ("a buffer that nothing is stored to", |k| {
        k.buffers.push(BufferArg { dtype: DType::F32, access: Access::Write });
        Some(())
    }),
    ("a value defined twice", |k| {
        lists(k).into_iter().find_map(|insts| {
            let mut defined = insts.iter_mut().filter(|inst| !is_store(inst));
            let (first, second) = (defined.next()?.id, defined.next()?);
            second.id = first;
            Some(())
        })
    }),
    ("a value that uses itself", |k| {
        first_inst(k, |inst| {
            let id = inst.id;
            if is_store(inst) {
                return None;
            }
            operands(&mut inst.kind).into_iter().next().map(|operand| *operand = id)
        })
    }),
    ("a value that nobody defines", |k| {
        first_inst(k, |inst| operands(&mut inst.kind).pop().map(|operand| *operand = ValueId(1 << 20)))
    }),
    ("a value numbered beyond all tables", |k| {
        let last = lists(k).pop()?;
        last.iter_mut().rfind(|inst| !is_store(inst)).map(|inst| inst.id = ValueId(u32::MAX - 1))
    }),
    ("a row's value used after its stage", |k| {
        let body = loop_of(k)?;
        let row = body.stages.iter().position(|stage| stage.domain == Domain::Row)?;
        let leaked = body.stages[row].insts.iter().find(|inst| !is_store(inst)).map(|inst| inst.id)?;
        let later = body.stages[row + 1..].iter_mut().flat_map(|stage| &mut stage.insts);
        later.into_iter().find_map(|inst| operands(&mut inst.kind).into_iter().next()).map(|operand| *operand = leaked)
    }),
    ("a result of another type", |k| {
        first_inst(k, |inst| {
            let strict = matches!(
                inst.kind,
                InstKind::Load { .. } | InstKind::Unary(..) | InstKind::Binary(..) | InstKind::Const(_)
            );
            strict.then(|| inst.dtype = other(inst.dtype))
        })
    }),
    ("a result of a short type", |k| first_inst(k, |inst| (!is_store(inst)).then(|| inst.dtype = DType::Bf16))),
    ("a comparison that is not bool", |k| {
        first_inst(k, |inst| matches!(inst.kind, InstKind::Compare(..)).then(|| inst.dtype = DType::I32))
    }),
    ("a choice by what is not bool", |k| {
        first_inst(k, |inst| match &mut inst.kind {
            InstKind::Select(c, x, _) if inst.dtype != DType::Bool => {
                *c = *x;
                Some(())
            }
            _ => None,
        })
    }),
    ("a choice between types", |k| {
        first_inst(k, |inst| match &mut inst.kind {
            InstKind::Select(c, x, _) if inst.dtype != DType::Bool => {
                *x = *c;
                Some(())
            }
            _ => None,
        })
    }),
    ("bits of floats", |k| {
        first_inst(k, |inst| match &mut inst.kind {
            InstKind::Binary(op, ..) if inst.dtype.is_float() => {
                *op = BinaryOp::And;
                Some(())
            }
            _ => None,
        })
    }),
    ("an exponential of integers", |k| {
        first_inst(k, |inst| match &mut inst.kind {
            InstKind::Unary(op, _) if !inst.dtype.is_float() && *op != UnaryOp::IsNan => {
                *op = UnaryOp::Exp;
                Some(())
            }
            _ => None,
        })
    }),
    ("a bitcast to another width", |k| {
        first_inst(k, |inst| match inst.kind {
            InstKind::Cast(x) if inst.dtype == DType::F32 => {
                inst.kind = InstKind::Bitcast(x);
                // From any type to another width.
                inst.dtype = DType::Bool;
                Some(())
            }
            _ => None,
        })
    }),
    ("rounding to a compute type", |k| {
        first_inst(k, |inst| match &mut inst.kind {
            InstKind::Round(_, to) => {
                *to = to.compute_type();
                Some(())
            }
            _ => None,
        })
    }),
    ("a buffer of another type", |k| {
        let mut buffer = None;
        first_inst(k, |inst| place(&mut inst.kind).map(|place| buffer = Some(place.buffer)))?;
        let decl = &mut k.buffers[buffer?];
        decl.dtype = other(decl.dtype);
        Some(())
    }),
    ("a symbol that is no size", |k| first_place(k, |place| place.offset = &place.offset + Dim::from(stranger()))),
    ("an undefined position", |k| first_place(k, |place| place.offset = Dim::undefined())),
    ("a row's variable at a point", |k| {
        let body = loop_of(k)?;
        let var = body.row.first()?.var;
        let points = body.stages.iter_mut().filter(|stage| stage.domain == Domain::Point);
        let mut insts = points.flat_map(|stage| &mut stage.insts);
        insts.find_map(|inst| place(&mut inst.kind)).map(|place| place.offset = &place.offset + Dim::from(var))
    }),
    ("a size that is not brought", |k| k.sizes.pop().map(|_| ())),
    ("two axes of one name", |k| {
        let body = loop_of(k)?;
        let axis = body.grid.first()?.clone();
        body.row.push(axis);
        Some(())
    }),
    ("an axis of size one", |k| {
        loop_of(k)?.grid.push(Axis { var: stranger(), size: Dim::from(1) });
        Some(())
    }),
    ("an axis whose size moves", |k| {
        let body = loop_of(k)?;
        let var = body.grid.first()?.var;
        body.grid.push(Axis { var: stranger(), size: Dim::from(var) });
        Some(())
    }),
    ("a load after a store", |k| {
        lists(k).into_iter().find_map(|insts| {
            let store = insts.iter().position(|inst| matches!(inst.kind, InstKind::Store { .. }))?;
            let load = insts.iter().position(|inst| matches!(inst.kind, InstKind::Load { .. }))?;
            // A load that nothing uses is out of order all the same.
            let mut again = insts[load].clone();
            again.id = insts.iter().map(|inst| inst.id).max()?;
            insts.insert(store + 1, again);
            Some(())
        })
    }),
    ("a guard that is not bool", |k| {
        lists(k).into_iter().find_map(|insts| {
            let value = insts.iter().find(|inst| !is_store(inst) && inst.dtype != DType::Bool)?.id;
            insts.iter_mut().skip_while(|inst| inst.id <= value).find_map(|inst| match &mut inst.kind {
                InstKind::Load { guard, .. } | InstKind::Store { guard, .. } => {
                    *guard = Some(value);
                    Some(())
                }
                _ => None,
            })
        })
    }),
    ("an index that is not i64", |k| {
        lists(k).into_iter().find_map(|insts| {
            let value = insts.iter().find(|inst| !is_store(inst) && inst.dtype != DType::I64)?.id;
            let mut later = insts.iter_mut().skip_while(|inst| inst.id <= value);
            later.find_map(|inst| place(&mut inst.kind)).map(|place| place.indirect.push((value, Dim::from(1))))
        })
    }),
    ("a temporary number too large", |k| {
        first_inst(k, |inst| match &mut inst.kind {
            InstKind::LoadTemp(temp) => {
                *temp = 99;
                Some(())
            }
            _ => None,
        })
    }),
    ("a temporary that is not written", |k| {
        let body = loop_of(k)?;
        let stage =
            body.stages.iter_mut().find(|s| s.insts.iter().any(|i| matches!(i.kind, InstKind::StoreTemp(..))))?;
        stage.insts.retain(|inst| !matches!(inst.kind, InstKind::StoreTemp(..)));
        Some(())
    }),
    ("a temporary of another type", |k| {
        let temp = loop_of(k)?.temps.first_mut()?;
        *temp = other(*temp);
        Some(())
    }),
    ("a temporary at a point", |k| {
        let body = loop_of(k)?;
        let stage =
            body.stages.iter_mut().find(|s| s.insts.iter().any(|i| matches!(i.kind, InstKind::StoreTemp(..))))?;
        stage.domain = Domain::Point;
        Some(())
    }),
    ("a reduction at a point", |k| {
        let body = loop_of(k)?;
        let stage = body.stages.iter_mut().find(|stage| !stage.reductions.is_empty())?;
        stage.domain = Domain::Point;
        stage.insts.retain(|inst| matches!(inst.kind, InstKind::Const(_)));
        Some(())
    }),
    ("a reduction of another type", |k| {
        let body = loop_of(k)?;
        let reduction = body.stages.iter_mut().flat_map(|stage| &mut stage.reductions).next()?;
        reduction.dtype = other(reduction.dtype);
        Some(())
    }),
    ("a reduction's result that is taken", |k| {
        let body = loop_of(k)?;
        let stage = body.stages.iter_mut().find(|stage| !stage.reductions.is_empty())?;
        stage.reductions[0].result = stage.reductions[0].value;
        Some(())
    }),
    ("an accumulator in a prologue", |k| {
        let acc = matmul_of(k)?.acc;
        prepend(k, 0, acc, InstKind::Accumulator(0))
    }),
    ("an accumulator of an operand that is not there", |k| {
        let body = joined_of(k)?;
        let count = body.rhs.len();
        body.epilogue.iter_mut().find_map(|inst| match &mut inst.kind {
            InstKind::Accumulator(number) => {
                *number = count;
                Some(())
            }
            _ => None,
        })
    }),
    ("a product without a right operand", |k| {
        joined_of(k)?.rhs.clear();
        Some(())
    }),
    ("rows over other axes than the product's", |k| {
        joined_of(k)?.before.as_mut()?.row.clear();
        Some(())
    }),
    ("a store before a product", |k| {
        let body = joined_of(k)?;
        let store = body.epilogue.iter().find(|inst| is_store(inst))?.kind.clone();
        let InstKind::Store { place, .. } = store else { return None };
        let stage = body.before.as_mut()?.stages.last_mut()?;
        let inst = stage.insts.last_mut()?;
        let InstKind::StoreTemp(_, value) = inst.kind else { return None };
        let place = Place { offset: Dim::default(), ..place };
        inst.kind = InstKind::Store { place, value, guard: None };
        Some(())
    }),
    ("a temporary that no row writes", |k| {
        let body = joined_of(k)?;
        body.before.as_mut()?.stages.iter_mut().for_each(|stage| stage.insts.retain(|inst| !is_store(inst)));
        Some(())
    }),
    ("a temporary on the right", |k| {
        let body = joined_of(k)?;
        body.before.as_ref()?;
        let inst = body.rhs[0].insts.first_mut()?;
        inst.kind = InstKind::LoadTemp(0);
        Some(())
    }),
    ("one parallel body", |k| {
        bodies_of(k)?.truncate(1);
        Some(())
    }),
    ("parallel bodies in one", |k| {
        let bodies = bodies_of(k)?;
        let inner = bodies.clone();
        bodies[0] = KernelBody::Parallel(inner);
        Some(())
    }),
    ("parallel bodies that write the same", |k| {
        let bodies = bodies_of(k)?;
        let first = bodies.first()?.clone();
        bodies.push(first);
        Some(())
    }),
    ("an accumulator in a loop", |k| {
        loop_of(k)?.stages.first()?;
        prepend(k, 0, DType::F32, InstKind::Accumulator(0))
    }),
    ("an accumulator of another type", |k| {
        let body = matmul_of(k)?;
        body.acc = other(body.acc);
        Some(())
    }),
    ("a store in a prologue", |k| {
        let body = matmul_of(k)?;
        let store = body.epilogue.iter().find(|inst| is_store(inst))?.clone();
        let InstKind::Store { place, .. } = store.kind else { return None };
        let (value, place) = (body.lhs.value, Place { offset: Dim::default(), ..place });
        body.lhs.insts.push(Inst { kind: InstKind::Store { place, value, guard: None }, ..store });
        Some(())
    }),
    ("an operand that nobody defines", |k| {
        matmul_of(k)?.rhs[0].value = ValueId(77);
        Some(())
    }),
    ("an operand over the other one's axis", |k| {
        let body = matmul_of(k)?;
        let var = body.n.first()?.var;
        body.lhs.insts.iter_mut().find_map(|inst| place(&mut inst.kind)).map(|p| p.offset = &p.offset + Dim::from(var))
    }),
    ("a precision of integers", |k| {
        let body = matmul_of(k)?;
        (body.acc != DType::F32).then(|| body.precision = Precision::Medium)
    }),
    ("blocks on the left", |k| {
        let body = matmul_of(k)?;
        let format = BlockFormat::from_name("q8_0")?;
        let place = Place { buffer: 0, offset: Dim::default(), indirect: Vec::new() };
        let element = Dim::from(body.k.first()?.var);
        let kind = InstKind::LoadBlock { place, element, format };
        body.lhs = Prologue { insts: vec![Inst { id: ValueId(0), dtype: DType::F32, kind }], value: ValueId(0) };
        Some(())
    }),
    ("blocks that another axis counts", |k| {
        first_inst(k, |inst| match &mut inst.kind {
            InstKind::LoadBlock { element, .. } => {
                *element = Dim::from(0);
                Some(())
            }
            _ => None,
        })
    }),
    ("attention with a stride too few", |k| attention_of(k)?.q.strides.pop().map(|_| ())),
    ("attention with keys of another type", |k| {
        let buffer = attention_of(k)?.k.buffer;
        let decl = &mut k.buffers[buffer];
        decl.dtype = other(decl.dtype);
        Some(())
    }),
    ("attention with a mask of integers", |k| {
        let buffer = attention_of(k)?.mask.as_ref()?.buffer;
        k.buffers[buffer].dtype = DType::I32;
        Some(())
    }),
    ("attention with a scale of another type", |k| {
        attention_of(k)?.scale = Scalar::float(DType::F32, 1.0);
        Some(())
    }),
    ("attention with heads that do not divide", |k| {
        attention_of(k)?.kv_heads = Dim::from(3);
        Some(())
    }),
    ("attention with pages of no keys", |k| {
        attention_of(k)?.k_pages.as_mut()?.length = Dim::from(0);
        Some(())
    }),
    ("attention with a table of one axis", |k| attention_of(k)?.v_pages.as_mut()?.table.strides.pop().map(|_| ())),
    ("a gradient of attention with a stride too few", |k| backward_of(k)?.q.strides.pop().map(|_| ())),
    ("a gradient of attention with heads that do not divide", |k| {
        backward_of(k)?.kv_heads = Dim::from(3);
        Some(())
    }),
    ("a gradient of attention with a scale of another type", |k| {
        backward_of(k)?.scale = Scalar::float(DType::F32, 1.0);
        Some(())
    }),
    ("a gradient of attention with logarithms of another type", |k| {
        let AttentionPart::Gradients(of) = &backward_of(k)?.part else { return None };
        let buffer = of.logsumexp.buffer;
        k.buffers[buffer].dtype = DType::F16;
        Some(())
    }),
    ("gradients of attention without a result", |k| {
        let AttentionPart::Gradients(of) = &mut backward_of(k)?.part else { return None };
        (of.queries, of.keys, of.values) = (None, None, None);
        Some(())
    }),
    ("a routine along an axis that is not there", |k| match &mut k.body {
        KernelBody::Routine(
            RoutineBody::Scan { axis, shape, .. }
            | RoutineBody::SortIndices { axis, shape, .. }
            | RoutineBody::Scatter { axis, shape, .. },
        ) => {
            *axis = shape.len();
            Some(())
        }
        _ => None,
    }),
    ("a scatter into what is not read", |k| match &k.body {
        KernelBody::Routine(RoutineBody::Scatter { output, .. }) => {
            k.buffers[output.buffer].access = Access::Write;
            Some(())
        }
        _ => None,
    }),
    ("a scatter by floats", |k| match &k.body {
        KernelBody::Routine(RoutineBody::Scatter { index, .. }) => {
            k.buffers[index.buffer].dtype = DType::F32;
            Some(())
        }
        _ => None,
    }),
    ("a sort that gives floats", |k| match &k.body {
        KernelBody::Routine(RoutineBody::SortIndices { output, .. }) => {
            k.buffers[output.buffer].dtype = DType::F32;
            Some(())
        }
        _ => None,
    }),
    ("a choice by what is no bool", |k| match &k.body {
        KernelBody::Repeat(body) => {
            k.buffers[body.choice.as_ref()?.predicate].dtype = DType::F32;
            Some(())
        }
        _ => None,
    }),
    ("a choice of no turn", |k| match &mut k.body {
        KernelBody::Repeat(body) => {
            body.choice.as_ref()?;
            body.turns = Dim::from(0);
            Some(())
        }
        _ => None,
    }),
    ("a launch of a side with too few arguments", |k| match &mut k.body {
        KernelBody::Repeat(body) => body.choice.as_mut()?.otherwise.first_mut()?.args.pop().map(|_| ()),
        _ => None,
    }),
    ("a scan to another type", |k| match &k.body {
        // In place there is one type.
        KernelBody::Routine(RoutineBody::Scan { input, output, .. }) if input.buffer != output.buffer => {
            let decl = &mut k.buffers[output.buffer];
            decl.dtype = other(decl.dtype);
            Some(())
        }
        _ => None,
    }),
];

#[test]
fn every_damage_of_a_kernel_is_seen() {
    let mut applied = vec![0; MUTATIONS.len()];
    for (name, schedule) in schedules(800) {
        for step in &schedule.steps {
            for ((damage, mutate), count) in MUTATIONS.iter().zip(&mut applied) {
                let mut kernel = Kernel::clone(&step.kernel);
                if mutate(&mut kernel).is_none() {
                    continue;
                }
                *count += 1;
                assert!(kernel.verify().is_err(), "{name}: {damage} is not seen in\n{kernel}\nof\n{}", step.kernel);
            }
        }
    }
    for ((damage, _), count) in MUTATIONS.iter().zip(applied) {
        assert!(count > 0, "no kernel for: {damage}");
    }
}

#[test]
fn places_beyond_their_buffers_are_seen() {
    let (mut above, mut below) = (0, 0);
    for (name, schedule) in schedules(400) {
        for at in 0..schedule.steps.len() {
            for down in [false, true] {
                let mut changed = schedule.clone();
                let step = &mut changed.steps[at];
                let mut kernel = Kernel::clone(&step.kernel);
                // One past the end, or one before the start, of everything stored without a guard.
                let mut moved = 0;
                for inst in lists(&mut kernel).into_iter().flatten() {
                    let InstKind::Store { place, guard: None, .. } = &mut inst.kind else { continue };
                    let decl = &changed.buffers[step.args[place.buffer].index()];
                    let elements = decl.elements.as_const().filter(|elements| *elements > 0);
                    let (Some(elements), false) = (elements, matches!(decl.role, Role::Input(_))) else { continue };
                    place.offset = if down { &place.offset - elements } else { &place.offset + elements };
                    moved += 1;
                }
                if moved == 0 {
                    continue;
                }
                step.kernel = Arc::new(kernel);
                let verdict = verify::kernels(&changed, &Ranges::default());
                let Err(Violation::Kernel { cause, .. }) = &verdict else { panic!("{name}: {verdict:?}\n{changed}") };
                assert!(matches!(cause.rule, Rule::Outside { .. }), "{name}: {cause}\n{changed}");
                *(if down { &mut below } else { &mut above }) += 1;
            }
        }
    }
    assert!(above > 300 && below > 300, "{above} above, {below} below");
}

#[test]
fn a_violation_names_stage_and_instruction() {
    let schedule = scheduled(Graph::parse(WRITTEN[1]).unwrap()).unwrap();
    let mut kernel = Kernel::clone(&schedule.steps[0].kernel);
    first_inst(&mut kernel, |inst| match &mut inst.kind {
        InstKind::Binary(_, _, y) => {
            *y = ValueId(40);
            Some(())
        }
        _ => None,
    });
    let error = kernel.verify().unwrap_err().to_string();
    assert_eq!(error, "stage 1, instruction 1 (v3: f32 = sub v2, v40): v40 is used before it is defined");
}
