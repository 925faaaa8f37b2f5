//! The text of a kernel. It names everything the kernel is and nothing else, so that equal text means equal kernel.

use crate::kernel::{
    Access, AttentionPart, Axis, BodyView, BufferArg, Domain, Inst, InstKind, Kernel, KernelBody, LoopBody, MatmulBody,
    Pages, Place, Precision, Prologue, Reduction, ReductionKind, RoutineBody, Stage, Strided, ValueId,
};
use kiln_ir::Dim;
use std::fmt::{self, Display, Formatter};

/// Items with a separator.
struct List<'a, T>(&'a [T], &'static str);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if at == 0 { "" } else { self.1 })?;
        }
        Ok(())
    }
}

impl Display for ValueId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for Axis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} < {}", self.var, self.size)
    }
}

impl Display for BufferArg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "update",
        };
        write!(f, "{access} {}", self.dtype)
    }
}

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.body.kind())?;
        for (at, buffer) in self.buffers.iter().enumerate() {
            write!(f, "{}b{at}: {buffer}", if at == 0 { "" } else { ", " })?;
        }
        f.write_str(")")?;
        if !self.sizes.is_empty() {
            write!(f, " sizes({})", List(&self.sizes, ", "))?;
        }
        write!(f, "{}", self.body)
    }
}

impl Display for KernelBody {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            KernelBody::Loop(body) => write!(f, "{body}"),
            KernelBody::Matmul(body) => write!(f, "{body}"),
            KernelBody::Attention(a) => {
                writeln!(f, " {{")?;
                write!(f, "  batch {} heads {}/{} ", a.batch, a.heads, a.kv_heads)?;
                writeln!(f, "rows {} x {} width {}/{}", a.queries, a.keys, a.width, a.value_width)?;
                writeln!(f, "  scale {}{}", a.scale, if a.causal { " causal" } else { "" })?;
                for (name, view, pages) in [("q", &a.q, &None), ("k", &a.k, &a.k_pages), ("v", &a.v, &a.v_pages)] {
                    match pages {
                        None => writeln!(f, "  {name} = {view}")?,
                        Some(pages) => writeln!(f, "  {name} = {view} {pages}")?,
                    }
                }
                if let Some(mask) = &a.mask {
                    writeln!(f, "  mask = {mask}")?;
                }
                writeln!(f, "  out = {}", a.out)?;
                if let Some(logsumexp) = &a.logsumexp {
                    writeln!(f, "  logsumexp = {logsumexp}")?;
                }
                f.write_str("}")
            }
            KernelBody::AttentionBackward(a) => {
                writeln!(f, " {{")?;
                write!(f, "  batch {} heads {}/{} ", a.batch, a.heads, a.kv_heads)?;
                write!(f, "rows {} x {} width {}", a.queries, a.keys, a.width)?;
                match &a.part {
                    AttentionPart::Logsumexp { .. } => writeln!(f)?,
                    AttentionPart::Gradients(of) => writeln!(f, "/{}", of.value_width)?,
                }
                writeln!(f, "  scale {}{}", a.scale, if a.causal { " causal" } else { "" })?;
                for BodyView { name, view, written, .. } in a.views() {
                    writeln!(f, "  {}{name} = {view}", if written { "write " } else { "" })?;
                }
                f.write_str("}")
            }
            KernelBody::Routine(body) => write!(f, "{body}"),
            KernelBody::Repeat(body) => {
                match (body.is_conditional, &body.choice) {
                    (_, Some(choice)) => writeln!(f, " if %{} {{", choice.predicate)?,
                    (true, _) => writeln!(f, " while true {{")?,
                    (false, _) => {
                        let order = if body.reverse { " from the last" } else { "" };
                        writeln!(f, " {} turns{order} {{", body.turns)?;
                    }
                }
                body.launches.iter().try_for_each(|launch| writeln!(f, "{}", launch.kernel))?;
                if let Some(choice) = &body.choice {
                    writeln!(f, "}} else {{")?;
                    choice.otherwise.iter().try_for_each(|launch| writeln!(f, "{}", launch.kernel))?;
                }
                f.write_str("}")
            }
            KernelBody::Parallel(bodies) => {
                writeln!(f, " {{")?;
                bodies.iter().try_for_each(|body| writeln!(f, "{}{body}", body.kind()))?;
                f.write_str("}")
            }
        }
    }
}

impl KernelBody {
    fn kind(&self) -> &'static str {
        match self {
            KernelBody::Loop(_) => "loop",
            KernelBody::Matmul(_) => "matmul",
            KernelBody::Attention(_) => "attention",
            KernelBody::AttentionBackward(_) => "attention_backward",
            KernelBody::Routine(_) => "routine",
            KernelBody::Repeat(_) => "repeat",
            KernelBody::Parallel(_) => "parallel",
        }
    }
}

impl Display for Pages {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "pages {} of {} at {} < {}", self.length, self.stride, self.table, self.count)
    }
}

impl Display for LoopBody {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, " grid({})", List(&self.grid, ", "))?;
        if !self.row.is_empty() {
            write!(f, " row({})", List(&self.row, ", "))?;
        }
        if !self.temps.is_empty() {
            write!(f, " temps({})", List(&self.temps, ", "))?;
        }
        writeln!(f, " {{")?;
        self.stages.iter().try_for_each(|stage| write!(f, "{stage}"))?;
        f.write_str("}")
    }
}

impl Display for Stage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.domain {
            Domain::Point => "  point\n",
            Domain::Row => "  row\n",
        })?;
        self.insts.iter().try_for_each(|inst| writeln!(f, "    {inst}"))?;
        self.reductions.iter().try_for_each(|reduction| writeln!(f, "    {reduction}"))
    }
}

impl Display for Reduction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            ReductionKind::Reduce(kind) => kind.name(),
            ReductionKind::Arg(kind) => kind.name(),
        };
        write!(f, "{}: {} = over row {name} {}", self.result, self.dtype, self.value)
    }
}

impl Display for Inst {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            InstKind::Store { place, value, guard } => {
                write!(f, "store {place}, {value}")?;
                guard.iter().try_for_each(|g| write!(f, " if {g}"))
            }
            InstKind::StoreTemp(temp, value) => write!(f, "store t{temp}, {value}"),
            kind => write!(f, "{}: {} = {}", self.id, self.dtype, Computed(kind)),
        }
    }
}

/// An instruction that defines a value.
struct Computed<'a>(&'a InstKind);

impl Display for Computed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            InstKind::Const(c) => write!(f, "const {c}"),
            InstKind::Index(expr) => write!(f, "index {expr}"),
            InstKind::InRange { expr, low, high } => write!(f, "in_range {low} <= {expr} < {high}"),
            InstKind::Load { place, guard } => {
                write!(f, "load {place}")?;
                guard.iter().try_for_each(|g| write!(f, " if {g}"))
            }
            InstKind::LoadBlock { place, element, format } => write!(f, "{} {place} at {element}", format.name()),
            InstKind::LoadTemp(temp) => write!(f, "load t{temp}"),
            InstKind::Unary(op, x) => write!(f, "{} {x}", op.name()),
            InstKind::Binary(op, x, y) => write!(f, "{} {x}, {y}", op.name()),
            InstKind::Compare(op, x, y) => write!(f, "{} {x}, {y}", op.name()),
            InstKind::Select(c, x, y) => write!(f, "select {c}, {x}, {y}"),
            InstKind::Cast(x) => write!(f, "cast {x}"),
            InstKind::Bitcast(x) => write!(f, "bitcast {x}"),
            InstKind::Round(x, to) => write!(f, "round {x} to {to}"),
            InstKind::CheckIndex { value, size } => write!(f, "check {value} < {size}"),
            InstKind::Random { seed, position, stream } => write!(f, "random {seed} at {position} stream {stream}"),
            InstKind::Accumulator(0) => f.write_str("accumulator"),
            InstKind::Accumulator(number) => write!(f, "accumulator {number}"),
            InstKind::Store { .. } | InstKind::StoreTemp(..) => Ok(()),
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "b{}[{}", self.buffer, self.offset)?;
        for (value, stride) in &self.indirect {
            write!(f, " + {value}*{}", Factor(stride))?;
        }
        f.write_str("]")
    }
}

/// An expression that stands as a factor.
struct Factor<'a>(&'a Dim);

impl Display for Factor<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let simple = self.0.as_const().is_some() || self.0.as_symbol().is_some();
        if simple { write!(f, "{}", self.0) } else { write!(f, "({})", self.0) }
    }
}

impl Display for Prologue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.insts.iter().try_for_each(|inst| writeln!(f, "    {inst}"))?;
        writeln!(f, "    yield {}", self.value)
    }
}

impl Display for MatmulBody {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (name, axes) in [("batch", &self.batch), ("m", &self.m), ("n", &self.n), ("k", &self.k)] {
            write!(f, " {name}({})", List(axes, ", "))?;
        }
        write!(f, " acc {}", self.acc)?;
        if self.precision != Precision::Highest {
            write!(f, " {} precision", self.precision.name())?;
        }
        writeln!(f, " {{")?;
        if let Some(before) = &self.before {
            writeln!(f, "  before{before}")?;
        }
        write!(f, "  lhs\n{}", self.lhs)?;
        self.rhs.iter().try_for_each(|rhs| write!(f, "  rhs\n{rhs}"))?;
        f.write_str("  epilogue\n")?;
        self.epilogue.iter().try_for_each(|inst| writeln!(f, "    {inst}"))?;
        f.write_str("}")
    }
}

impl Display for Strided {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "b{}[{}] by [{}]", self.buffer, self.offset, List(&self.strides, ", "))
    }
}

impl Display for RoutineBody {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, " {{")?;
        match self {
            RoutineBody::Scan { shape, axis, kind, reverse, input, output } => {
                let from = if *reverse { " reverse" } else { "" };
                writeln!(f, "  scan {}{from} axis {axis} of [{}]", kind.name(), List(shape, ", "))?;
                writeln!(f, "  input = {input}\n  output = {output}")?;
            }
            RoutineBody::SortIndices { shape, axis, descending, count, input, output } => {
                let how = if *descending { " descending" } else { "" };
                writeln!(f, "  sort_indices{how} axis {axis} of [{}] count {count}", List(shape, ", "))?;
                writeln!(f, "  input = {input}\n  output = {output}")?;
            }
            RoutineBody::Scatter { shape, updates_shape, axis, kind, index, updates, output } => {
                let (shape, from) = (List(shape, ", "), List(updates_shape, ", "));
                writeln!(f, "  scatter {} axis {axis} of [{shape}] from [{from}]", kind.name())?;
                writeln!(f, "  index = {index}\n  updates = {updates}\n  output = {output}")?;
            }
        }
        f.write_str("}")
    }
}
