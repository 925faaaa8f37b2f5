//! Encodes kernels and schedules as bytes for caches that outlive the process; see [`kiln_ir::codec`].

use crate::kernel::{
    Access, AttentionBackwardBody, AttentionBody, AttentionGradients, AttentionPart, Axis, BufferArg, CarriedBuffer,
    ChoiceBody, Domain, Inst, InstKind, Kernel, KernelBody, LoopBody, MatmulBody, Pages, Place, Precision, Prologue,
    Reduction, ReductionKind, RepeatBody, RoutineBody, Stage, Strided, TurnBuffer, TurnLaunch, ValueId,
};
use crate::schedule::{BufferDecl, BufferId, InputLayout, Note, ReadFrom, Reason, Role, Schedule, Step, Written};
use kiln_ir::codec::{Codec, DecodeError, Reader, write_number};
use kiln_ir::{codec_enum, codec_struct};
use std::collections::HashMap;
use std::sync::Arc;

codec_struct! {
    Kernel { buffers, sizes, body }
    BufferArg { dtype, access }
    Axis { var, size }
    LoopBody { grid, row, stages, temps }
    Stage { domain, insts, reductions }
    Reduction { kind, value, dtype, result }
    Inst { id, dtype, kind }
    Place { buffer, offset, indirect }
    Prologue { insts, value }
    MatmulBody { batch, m, n, k, before, lhs, rhs, acc, precision, epilogue }
    AttentionBody {
        batch, heads, kv_heads, queries, keys, width, value_width, q, k, v, k_pages, v_pages, mask, out, logsumexp,
        causal, scale,
    }
    AttentionBackwardBody {
        batch, heads, kv_heads, queries, keys, width, q, k, mask, causal, scale, part,
    }
    AttentionGradients { value_width, v, gradient, logsumexp, delta, queries, keys, values }
    RepeatBody { turns, is_conditional, reverse, buffers, carried, launches, choice }
    ChoiceBody { predicate, offset, otherwise }
    CarriedBuffer { first, offset, last, other, copy, sizes }
    Pages { table, length, stride, count }
    Strided { buffer, offset, strides }
    InputLayout { strides, offset }
    BufferDecl { dtype, elements, role }
    ReadFrom { node, buffer, initial }
    Written { node, buffer, offset, strides, parts_of }
    Note { producer, consumer, reason }
}

codec_enum! {
    Access { 0 = Read, 1 = Write, 2 = ReadWrite }
    KernelBody {
        0 = Loop(body),
        1 = Matmul(body),
        2 = Attention(body),
        3 = Routine(body),
        4 = Parallel(bodies),
        5 = AttentionBackward(body),
        6 = Repeat(body),
    }
    TurnBuffer { 0 = Whole { buffer, offset }, 1 = Row { buffer, offset, stride }, 2 = Carried(number), 3 = Next(number) }
    AttentionPart { 0 = Logsumexp { out }, 1 = Gradients(of) }
    Domain { 0 = Point, 1 = Row }
    Precision { 0 = Medium, 1 = High, 2 = Highest }
    ReductionKind { 0 = Reduce(kind), 1 = Arg(kind) }
    InstKind {
        0 = Const(value),
        1 = Index(index),
        2 = InRange { expr, low, high },
        3 = Load { place, guard },
        4 = Store { place, value, guard },
        5 = LoadTemp(temp),
        6 = StoreTemp(temp, value),
        7 = Unary(op, value),
        8 = Binary(op, x, y),
        9 = Compare(op, x, y),
        10 = Select(condition, x, y),
        11 = Cast(value),
        12 = Bitcast(value),
        13 = Round(value, dtype),
        14 = CheckIndex { value, size },
        15 = Random { seed, position, stream },
        16 = Accumulator(number),
        17 = LoadBlock { place, element, format },
    }
    RoutineBody {
        0 = Scan { shape, axis, kind, reverse, input, output },
        1 = SortIndices { shape, axis, descending, count, input, output },
        2 = Scatter { shape, updates_shape, axis, kind, index, updates, output },
    }
    Role { 0 = Input(number), 1 = Output(number), 2 = Temp, 3 = Constant(literal) }
    Reason {
        0 = OtherElements,
        1 = OtherSpace,
        2 = Row,
        3 = Between,
        4 = Operand,
        5 = OneAnchor,
        6 = Parallelism,
        7 = TooLarge,
        8 = Off,
    }
}

/// Kernels in kernels: a few deep at the most.
impl Codec for TurnLaunch {
    fn encode(&self, out: &mut Vec<u8>) {
        let TurnLaunch { kernel, args, sizes } = self;
        kernel.encode(out);
        args.encode(out);
        sizes.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<TurnLaunch, DecodeError> {
        let kernel = from.nested(Kernel::decode)?;
        Ok(TurnLaunch { kernel, args: Vec::decode(from)?, sizes: Vec::decode(from)? })
    }
}

impl Codec for ValueId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<ValueId, DecodeError> {
        u32::decode(from).map(ValueId)
    }
}

impl Codec for BufferId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<BufferId, DecodeError> {
        u32::decode(from).map(BufferId)
    }
}

/// Each kernel once, then the launches with its number: equal layers take little room. What is read refers to nothing that
/// is not there, and its kernels keep the contract of kernels.
impl Codec for Schedule {
    fn encode(&self, out: &mut Vec<u8>) {
        let Schedule { buffers, steps, outputs, unchanged, notes } = self;
        let mut numbers: HashMap<&Kernel, usize> = HashMap::new();
        let mut kernels: Vec<&Kernel> = Vec::new();
        for step in steps {
            numbers.entry(&step.kernel).or_insert_with(|| {
                kernels.push(&step.kernel);
                kernels.len() - 1
            });
        }
        write_number(kernels.len() as u64, out);
        kernels.iter().for_each(|kernel| kernel.encode(out));
        buffers.encode(out);
        write_number(steps.len() as u64, out);
        for Step { kernel, args, sizes, nodes, label, reads, writes } in steps {
            numbers[&**kernel].encode(out);
            args.encode(out);
            sizes.encode(out);
            nodes.encode(out);
            label.encode(out);
            reads.encode(out);
            writes.encode(out);
        }
        outputs.encode(out);
        unchanged.encode(out);
        notes.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Schedule, DecodeError> {
        let kernels: Vec<Arc<Kernel>> = Vec::<Kernel>::decode(from)?.into_iter().map(Arc::new).collect();
        // Backends rely on the contract of kernels, and the bytes are not trusted.
        if kernels.iter().any(|kernel| kernel.verify().is_err()) {
            return Err(from.invalid("kernel"));
        }
        let buffers = Vec::<BufferDecl>::decode(from)?;
        let is_buffer = |id: &BufferId| id.index() < buffers.len();
        let mut steps = Vec::new();
        for _ in 0..from.length()? {
            let kernel = kernels.get(usize::decode(from)?).ok_or_else(|| from.invalid("kernel"))?.clone();
            let args = Vec::<BufferId>::decode(from)?;
            let sizes = Vec::decode(from)?;
            let nodes = Vec::decode(from)?;
            let label = String::decode(from)?;
            let reads = Vec::<ReadFrom>::decode(from)?;
            let writes = Vec::<Written>::decode(from)?;
            let places = reads.iter().map(|r| &r.buffer).chain(writes.iter().map(|w| &w.buffer));
            let fits = args.len() == kernel.buffers.len() && sizes.len() == kernel.sizes.len();
            if !fits || !args.iter().chain(places).all(is_buffer) {
                return Err(from.invalid("launch"));
            }
            steps.push(Step { kernel, args, sizes, nodes, label, reads, writes });
        }
        let outputs = Vec::<BufferId>::decode(from)?;
        if !outputs.iter().all(is_buffer) {
            return Err(from.invalid("output"));
        }
        let unchanged = Vec::<Written>::decode(from)?;
        if !unchanged.iter().map(|written| &written.buffer).all(is_buffer) {
            return Err(from.invalid("update"));
        }
        Ok(Schedule { buffers, steps, outputs, unchanged, notes: Vec::decode(from)? })
    }
}
