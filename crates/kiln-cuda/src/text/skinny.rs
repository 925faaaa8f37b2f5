//! Products of a few rows with weights that are contiguous along the summed axis: every weight is read once, as fast as
//! memory gives it, and each warp sums a part of a row of it for all rows on the left.
//!
//! ```text
//!  weight row n   |  warp 0   |  warp 1   |  warp 2   |  warp 3   |  warp 0 …      16 bytes a lane, several of them in flight
//!
//!  fetch the first weights ▶ wait for the launch before ▶ rows on the left ▶ (fetch the next ▶ sum) … ▶ epilogue ▶ next row
//! ```
//!
//! A block goes on to further rows of the weights, and has the first of them in flight while it ends the row before. What is
//! computed before the product, a norm of the rows on the left, every block computes for itself and keeps in shared memory.

use super::index::{Names, Width};
use super::loops::{accumulator, bytes};
use super::matmul::has_blocks;
use super::strip::MOST_ROWS;
use super::value::{Statements, Temps, combined, memory_type, value_type};
use super::vector::{BYTES, Vector, is_multiple};
use super::{Body, Way, ceil_div, decode, names_of_product, points, quantised, width};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{
    Axis, Domain, Inst, InstKind, Kernel, LoopBody, MatmulBody, Place, Prologue, Reduction, ReductionKind, Stage,
    ValueId,
};
use std::fmt::{self, Write};

/// Rows on the left: beyond, the arithmetic takes longer than memory.
const FEW_ROWS: i64 = 8;
/// Threads that a multiprocessor has registers for if each has 64, and the loads of a lane that these hold, with as many that are
/// fetched for the next time.
const SPARING_THREADS: i64 = 1024;
const SPARING_UNROLL: i64 = 4;
/// Shared memory that a block has on every GPU.
const SHARED: i64 = 40 << 10;
/// Elements of quantised blocks that a lane takes at once.
pub(super) const BLOCK_LANES: i64 = 16;
/// Wide loads that a thread has on their way for a later stage over a row, at the most.
const MOST_AHEAD: i64 = 2;
/// Rows of a weight where it is not known how many.
const MANY: i64 = 4096;
/// How the values of each right operand are called.
const RIGHT: [&str; 4] = ["ya", "yb", "yc", "yd"];

/// How a product of a few rows is spread over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skinny {
    /// Threads of a block.
    pub threads: i64,
    /// Warps that share a row of the weight, at the most.
    pub warps: i64,
    /// Wide loads of a lane that are fetched at once, at the most.
    pub unroll: i64,
}

impl Default for Skinny {
    fn default() -> Skinny {
        Skinny { threads: 256, warps: 4, unroll: 4 }
    }
}

impl Skinny {
    /// Every way that is worth measuring.
    pub fn all() -> impl Iterator<Item = Skinny> {
        let threads = [128, 256];
        threads.into_iter().flat_map(|threads| {
            let warps = [1, 2, 4, 8].into_iter().filter(move |warps| warps * 32 <= threads);
            warps.flat_map(move |warps| [2, 4, 8].map(|unroll| Skinny { threads, warps, unroll }))
        })
    }

    /// The way of a text of its [`Display`](fmt::Display).
    pub fn parse(text: &str) -> Option<Skinny> {
        Skinny::all().find(|skinny| skinny.to_string() == text)
    }
}

impl fmt::Display for Skinny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Skinny { threads, warps, unroll } = self;
        write!(f, "threads={threads} warps={warps} unroll={unroll}")
    }
}

/// The body, if the product is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &MatmulBody, way: Way) -> Option<Body> {
    let [axis] = body.k.as_slice() else { return None };
    let (rows, depth) = (points(&body.m).as_const()?, axis.size.as_const()?);
    if !(1..=MOST_ROWS).contains(&rows) || depth == 0 || body.rhs.len() > RIGHT.len() {
        return None;
    }
    // Only this kind of kernel has several products, or rows that are computed first; quantised blocks are read along the sum.
    let needed = body.rhs.len() > 1 || body.before.is_some() || body.rhs.iter().any(|rhs| has_blocks(&rhs.insts));
    let wide = way.vectors.then(|| wide_lanes(kernel, body, axis)).flatten().filter(|lanes| depth >= 32 * lanes);
    let lanes = match wide {
        Some(lanes) if body.acc == DType::F32 || needed => lanes,
        _ if way.vectors && has_wide_blocks(kernel, body, axis) => BLOCK_LANES,
        _ if needed => 1,
        _ => return None,
    };
    if rows > FEW_ROWS && !needed {
        return None;
    }
    let vector = |prologue: &Prologue, suffix: &'static str| {
        let mut vector = Vector::of(kernel, prologue.insts.iter(), axis, lanes);
        vector.suffix = suffix;
        if lanes == 1 || has_blocks(&prologue.insts) { Vector::none() } else { vector }
    };
    let names = names_of_product(kernel, [&body.batch, &body.m, &body.n, &body.k]);
    let total = points(&body.batch) * points(&body.n);
    let width = width(&names, kernel.insts(), &[&total, &Dim::from(rows * depth)]);
    // Several warps share a row if it is long enough for all of them to have several loads.
    let several = body.rhs.len() as i64;
    let wanted = (way.skinny.unroll / several).max(1);
    let warps = way.skinny.warps.min(depth / (32 * lanes * wanted)).max(1);
    let warps = 1 << warps.ilog2();
    let step = warps * 32 * lanes;
    let unroll = unroll(wanted, depth / step);
    let kept = body.before.as_ref().map(|before| Kept::of(before, rows, depth));
    let writer = Writer {
        kernel,
        body,
        axis,
        names,
        width,
        left: vector(&body.lhs, ""),
        right: body.rhs.iter().map(|rhs| vector(rhs, "[u]")).collect(),
        rows,
        depth,
        lanes,
        warps,
        step,
        unroll,
        threads: way.skinny.threads,
        kept,
    };
    Some(match quantised::Plan::of(&writer, &total, way) {
        Some(plan) => plan.generate(&Writer { threads: quantised::THREADS, ..writer }, way),
        None => writer.generate(&total, way),
    })
}

/// Loads of a lane at once, about as many as wanted, so that few others are left at the end of a row of `count`.
fn unroll(wanted: i64, count: i64) -> i64 {
    let wanted = wanted.min(count).max(1);
    let near = (wanted / 2 + 1..=wanted).rev();
    let more = (wanted + 1..=2 * wanted).rev();
    let fewer = (1..=wanted / 2).rev();
    near.chain(more).chain(fewer).find(|&unroll| count % unroll == 0).unwrap_or(1)
}

/// Whether every right operand is quantised blocks of which a lane takes sixteen elements at once, and the left one allows it.
fn has_wide_blocks(kernel: &Kernel, body: &MatmulBody, axis: &Axis) -> bool {
    let is_block = |rhs: &Prologue| match rhs.insts.as_slice() {
        [Inst { kind: InstKind::LoadBlock { place, format, .. }, .. }] => {
            // Blocks of a multiple of 16 bytes are read 16 bytes at a time, others two.
            let bytes = if format.bytes().is_multiple_of(16) { 16 } else { 2 };
            place.indirect.is_empty() && is_multiple(&place.offset, bytes)
        }
        _ => false,
    };
    let vector = Vector::of(kernel, body.lhs.insts.iter(), axis, BLOCK_LANES);
    let is_wide = |inst: &Inst| match &inst.kind {
        InstKind::Load { place, .. } => !place.offset.contains(axis.var) || vector.has(inst.id),
        _ => true,
    };
    body.rhs.iter().all(is_block) && body.lhs.insts.iter().all(is_wide)
}

/// The neighbours along the summed axis that are read at once, where all of the operands allow it.
fn wide_lanes(kernel: &Kernel, body: &MatmulBody, axis: &Axis) -> Option<i64> {
    let lanes = Vector::choose_up_to(kernel, body.rhs[0].insts.iter(), axis, BYTES)?.lanes;
    let is_wide = |prologue: &Prologue| {
        let vector = Vector::of(kernel, prologue.insts.iter(), axis, lanes);
        let depends = |inst: &Inst| match &inst.kind {
            InstKind::Load { place, .. } => place.offset.contains(axis.var),
            InstKind::LoadBlock { .. } => true,
            _ => false,
        };
        prologue.insts.iter().filter(|inst| depends(inst)).all(|inst| vector.has(inst.id))
    };
    (body.rhs.iter().all(is_wide) && is_wide(&body.lhs)).then_some(lanes)
}

/// The temporaries of what is computed before the product, in shared memory.
pub(super) struct Kept {
    /// What each is kept as: a short float where that is all that is stored in it.
    pub(super) dtypes: Vec<DType>,
    /// Where each begins.
    offsets: Vec<i64>,
    pub(super) bytes: i64,
}

impl Kept {
    fn of(before: &LoopBody, rows: i64, depth: i64) -> Kept {
        let insts = || before.stages.iter().flat_map(|stage| &stage.insts);
        let rounded = |value| {
            insts().find(|inst| inst.id == value).and_then(|inst| match inst.kind {
                InstKind::Round(_, dtype) if matches!(dtype, DType::Bf16 | DType::F16) => Some(dtype),
                _ => None,
            })
        };
        let dtype = |(temp, dtype): (usize, &DType)| {
            let mut stored = insts().filter_map(|inst| match inst.kind {
                InstKind::StoreTemp(own, value) if own == temp => Some(rounded(value)),
                _ => None,
            });
            let first = stored.next().flatten();
            first.filter(|_| stored.all(|other| other == first)).unwrap_or(*dtype)
        };
        let dtypes: Vec<DType> = before.temps.iter().enumerate().map(dtype).collect();
        let (mut offsets, mut end) = (Vec::new(), 0);
        for dtype in &dtypes {
            offsets.push(end);
            let size = if dtype.size_in_bits() == 16 { 2 } else { bytes(*dtype) };
            end += (rows * depth * size + 15) / 16 * 16;
        }
        Kept { dtypes, offsets, bytes: end }
    }
}

/// Writes the statements of one product.
pub(super) struct Writer<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) body: &'a MatmulBody,
    axis: &'a Axis,
    pub(super) names: Names,
    pub(super) width: Width,
    pub(super) left: Vector,
    right: Vec<Vector>,
    pub(super) rows: i64,
    pub(super) depth: i64,
    pub(super) lanes: i64,
    warps: i64,
    /// Elements of a row that all lanes of its warps load at once.
    step: i64,
    unroll: i64,
    threads: i64,
    pub(super) kept: Option<Kept>,
}

impl Writer<'_> {
    pub(super) fn statements<'s>(&'s self, prefix: &'s str) -> Statements<'s> {
        Statements::new(self.kernel, &self.names, self.width, prefix)
    }

    fn generate(&self, total: &Dim, way: Way) -> Body {
        let Writer { body, rows, depth, lanes, warps, step, unroll, threads, .. } = self;
        let (groups, several) = (threads / 32 / warps, body.rhs.len());
        let ty = value_type(body.acc);
        let count = self.names.text(total, self.width);
        let full = depth / (step * unroll);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "__shared__ {ty} parts[2][{}][{several}][{rows}];\nint flip=0;
const int warp=threadIdx.x/32,lane=threadIdx.x%32,part=warp%{warps};\nconst idx k_first=(idx)(part*32+lane)*{lanes};
idx first=(idx)block*{groups};\nconst idx stride=(idx)blocks*{groups};
auto row_of=[&](idx first)->idx{{const idx p=first+warp/{warps};return p<{count}?p:{count}-1;}};",
            threads / 32
        );
        let fetched = self.chunks(&mut out);
        let fetch = "if(first<{count})fetch(now,row_of(first),k_first);".replace("{count}", &count);
        if fetched {
            let _ = writeln!(out, "Chunk now;\nif(early){{{fetch}wait_before();}}else{{wait_before();{fetch}}}");
        }
        if let (Some(before), Some(kept)) = (&body.before, &self.kept) {
            out.push_str("extern __shared__ __align__(16) unsigned char own[];\n");
            self.before(&mut out, before, kept);
        }
        let _ = writeln!(
            out,
            "for(;first<{count};first+=stride){{\nconst bool live=first+warp/{warps}<{count};\nconst idx p=row_of(first);"
        );
        self.position(&mut out, "p");
        let ahead = self.ahead(&mut out);
        let _ = writeln!(out, "{ty} acc[{several}][{rows}]={{}};\nidx k=k_first;");
        if fetched {
            let _ = writeln!(
                out,
                "for(int c=0;c<{full};++c,k+={0}){{\nChunk next;
if(c+1<{full})fetch(next,p,k+{0});else if(first+stride<{count})fetch(next,row_of(first+stride),k_first);",
                unroll * step
            );
            let _ = writeln!(out, "#pragma unroll\nfor(int u=0;u<{unroll};++u){{const idx first_k=k+u*{step};");
            self.chunk_names(&mut out, "now");
            self.sum(&mut out);
            out.push_str("}\nnow=next;\n}\n");
            // What is left of the row.
            if full * step * unroll < *depth {
                let _ = writeln!(
                    out,
                    "for(;k<{depth};k+={step}){{Chunk rest;fetch_one(rest,p,k);\nconst idx first_k=k;const int u=0;"
                );
                self.chunk_names(&mut out, "rest");
                self.sum(&mut out);
                out.push_str("}\n");
            }
        } else {
            let _ = writeln!(out, "#pragma unroll 4\nfor(;k<{depth};k+={step}){{const idx first_k=k;");
            self.sum(&mut out);
            out.push_str("}\n");
        }
        self.finish(&mut out, ahead);
        out.push_str("}\n");
        let mut functions: Vec<&'static str> = vec![include_str!("stream.cu")];
        if body.before.is_some() {
            functions.push(include_str!("rows.cu"));
        }
        if body.rhs.iter().any(|rhs| has_blocks(&rhs.insts)) {
            functions.push(include_str!("blocks.cu"));
        }
        let fits = unroll * several as i64 <= SPARING_UNROLL;
        let most = if fits { SPARING_THREADS } else { SPARING_THREADS / 2 };
        let resident = (most / threads).max(1);
        Body {
            functions,
            most_blocks: way.multiprocessors * resident,
            resident: resident as u32,
            share: several as i64 * total.as_const().unwrap_or(MANY),
            threads: *threads as u32,
            block_bytes: Dim::from(self.kept.as_ref().map_or(0, |kept| kept.bytes)),
            aligned: self.aligned().chain(self.block_buffers()).collect(),
            fetched: self.right.iter().flat_map(Vector::buffers).collect(),
            ..Body::new(out, self.width, ceil_div(total, groups))
        }
    }

    /// The buffers that are accessed several elements at a time.
    pub(super) fn aligned(&self) -> impl Iterator<Item = usize> {
        let stages = self.body.before.iter().flat_map(|before| &before.stages);
        let rows = stages.filter(|stage| stage.domain == Domain::Row).map(|stage| self.row_vector(stage));
        let rows: Vec<usize> = rows.flat_map(|vector| vector.buffers().collect::<Vec<_>>()).collect();
        self.right.iter().chain([&self.left]).flat_map(Vector::buffers).chain(rows)
    }

    /// The buffers of blocks that are read several bytes at a time.
    fn block_buffers(&self) -> impl Iterator<Item = usize> {
        let insts = self.body.rhs.iter().flat_map(|rhs| &rhs.insts).filter(|_| self.lanes == BLOCK_LANES);
        insts.filter_map(|inst| match &inst.kind {
            InstKind::LoadBlock { place, .. } => Some(place.buffer),
            _ => None,
        })
    }

    /// Statements that say where the weight's row `p` is.
    pub(super) fn position(&self, out: &mut String, p: &str) {
        if self.body.batch.is_empty() {
            let _ = writeln!(out, "const idx nn={p};");
        } else {
            let columns = self.names.text(&points(&self.body.n), self.width);
            let _ = writeln!(out, "const idx image={p}/{columns},nn={p}%{columns};");
            out.push_str(&decode(&self.names, &self.body.batch, "z", "image", self.width));
        }
        out.push_str(&decode(&self.names, &self.body.n, "n", "nn", self.width));
    }

    /// Declares what a lane fetches at once, and the functions that fetch it; false where there is nothing wide.
    fn chunks(&self, out: &mut String) -> bool {
        let (mut members, mut filled) = (String::new(), String::new());
        for ((rhs, vector), prefix) in self.body.rhs.iter().zip(&self.right).zip(RIGHT) {
            let count = format!("[{}]", self.unroll);
            let (declared, fill) = vector.streamed(&self.statements(prefix), rhs.insts.iter(), &count, "c.");
            members.push_str(&declared);
            filled.push_str(&fill);
        }
        if members.is_empty() {
            return false;
        }
        let _ = writeln!(out, "struct Chunk{{{members}}};");
        for (name, unroll) in [("fetch", self.unroll), ("fetch_one", 1)] {
            let _ = writeln!(out, "auto {name}=[&](Chunk& c,idx p,idx k){{");
            self.position(out, "p");
            let _ = writeln!(
                out,
                "#pragma unroll\nfor(int u=0;u<{unroll};++u){{const idx k0=k+u*{};\n{filled}}}}};",
                self.step
            );
        }
        true
    }

    /// Calls what a chunk holds by the names that statements know.
    fn chunk_names(&self, out: &mut String, chunk: &str) {
        for ((rhs, vector), prefix) in self.body.rhs.iter().zip(&self.right).zip(RIGHT) {
            for name in vector.names(prefix, rhs.insts.iter()) {
                let _ = writeln!(out, "auto& {name}={chunk}.{name};");
            }
        }
    }

    /// Adds what the lane has at `first_k` to the sums of all rows.
    fn sum(&self, out: &mut String) {
        let Writer { body, lanes, rows, depth, .. } = self;
        let (ty, several) = (value_type(body.acc), body.rhs.len());
        let _ = writeln!(out, "{ty} weight[{several}][{lanes}];");
        let wide_blocks = |rhs: &Prologue| *lanes == BLOCK_LANES && has_blocks(&rhs.insts);
        for (number, rhs) in body.rhs.iter().enumerate().filter(|(_, rhs)| wide_blocks(rhs)) {
            let InstKind::LoadBlock { place, format, .. } = &rhs.insts[0].kind else { continue };
            let (name, elements, bytes) = (format.name(), format.elements(), format.bytes());
            let at = self.names.text(&place.offset, self.width);
            let _ = writeln!(
                out,
                "run_{name}(b{}+{at}+first_k/{elements}*{bytes},(int)(first_k%{elements})/{lanes},weight[{number}]);",
                place.buffer
            );
        }
        let _ = writeln!(out, "#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx k0=first_k+e;");
        let others = body.rhs.iter().zip(&self.right).zip(RIGHT).enumerate();
        for (number, ((rhs, vector), prefix)) in others.filter(|(_, ((rhs, _), _))| !wide_blocks(rhs)) {
            let mut weights = Statements { vector: Some(vector), ..self.statements(prefix) };
            weights.all(&rhs.insts);
            let _ = writeln!(out, "{}weight[{number}][e]={prefix}{};", weights.out, rhs.value.0);
        }
        let _ = writeln!(out, "}}\n#pragma unroll\nfor(int mm=0;mm<{rows};++mm){{const idx k0=first_k;");
        out.push_str(&decode(&self.names, &body.m, "m", "mm", self.width));
        out.push_str(&self.left.begin(&self.statements("x"), body.lhs.insts.iter()));
        let mut temps = Temps::Registers;
        if let Some(kept) = &self.kept {
            temps = Temps::Wide(&kept.dtypes);
            out.push_str(&self.wide_temps(&format!("mm*{depth}+first_k")));
        }
        let _ = writeln!(out, "#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx k0=first_k+e;");
        let mut inputs = Statements { vector: Some(&self.left), temps, ..self.statements("x") };
        inputs.all(&body.lhs.insts);
        out.push_str(&inputs.out);
        let x = format!("x{}", body.lhs.value.0);
        for number in 0..several {
            let (acc, weight) = (format!("acc[{number}][mm]"), format!("weight[{number}][e]"));
            let _ = writeln!(out, "{acc}={};", multiply_add(body.acc, &x, &weight, &acc));
        }
        out.push_str("}}\n");
    }

    /// Wide values of the temporaries that the left operand reads at a position.
    pub(super) fn wide_temps(&self, at: &str) -> String {
        let mut out = String::new();
        let Some(kept) = &self.kept else { return out };
        for inst in &self.body.lhs.insts {
            let InstKind::LoadTemp(temp) = inst.kind else { continue };
            let wide = format!("Packed<{},{}>", memory_type(kept.dtypes[temp]), self.lanes);
            let _ = writeln!(out, "const {wide} wt{temp}=*(const {wide}*)(t{temp}+{at});");
        }
        out
    }

    /// What the epilogue reads and the sums do not change, a residual for instance, is on its way while the sums are computed; which
    /// instructions these are.
    fn ahead(&self, out: &mut String) -> Vec<ValueId> {
        let mut ahead: Vec<ValueId> = Vec::new();
        let mut list: Vec<Inst> = Vec::new();
        for inst in &self.body.epilogue {
            let is_plain = match &inst.kind {
                InstKind::Load { place, guard } => guard.is_none() && place.indirect.is_empty(),
                InstKind::Const(_) | InstKind::Index(_) => true,
                InstKind::Cast(x) | InstKind::Round(x, _) => ahead.contains(x),
                _ => false,
            };
            if is_plain {
                ahead.push(inst.id);
                list.push(inst.clone());
            }
        }
        if !list.iter().any(|inst| matches!(inst.kind, InstKind::Load { .. })) {
            return Vec::new();
        }
        let _ = writeln!(out, "const int mm=lane<{0}?lane:{0}-1;", self.rows);
        out.push_str(&decode(&self.names, &self.body.m, "m", "mm", self.width));
        let mut statements = self.statements("e");
        statements.all(&list);
        out.push_str(&statements.out);
        ahead
    }

    /// Combines the sums of all lanes and warps of a row, and runs the epilogue.
    fn finish(&self, out: &mut String, ahead: Vec<ValueId>) {
        let Writer { body, rows, warps, .. } = self;
        let (ty, several) = (value_type(body.acc), body.rhs.len());
        let add = |a: &str, b: &str| combined(kiln_ir::ReduceKind::Sum, body.acc, a, b);
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int mm=0;mm<{rows};++mm){{\n#pragma unroll\nfor(int j=0;j<{several};++j){{
for(int mask=16;mask>0;mask/=2)acc[j][mm]={};\nif(lane==0)parts[flip][warp][j][mm]=acc[j][mm];}}}}\n__syncthreads();
if(live&&part==0&&lane<{rows}){{const int mm=lane;\n{ty} sums[{several}]={{}};
#pragma unroll\nfor(int w=0;w<{warps};++w)\n#pragma unroll\nfor(int j=0;j<{several};++j)sums[j]={};",
            add("acc[j][mm]", "__shfl_xor_sync(~0u,acc[j][mm],mask)"),
            add("sums[j]", &format!("parts[flip][warp/{warps}*{warps}+w][j][mm]")),
        );
        out.push_str(&decode(&self.names, &body.m, "m", "mm", self.width));
        let accumulators = (0..several).map(|number| format!("sums[{number}]")).collect();
        let mut epilogue = Statements { accumulators, ..self.statements("e") };
        let rest = body.epilogue.iter().filter(|inst| !ahead.contains(&inst.id));
        epilogue.all(&rest.cloned().collect::<Vec<_>>());
        out.push_str(&epilogue.out);
        // The next row's sums go elsewhere: whoever is late still reads these.
        out.push_str("}\nflip^=1;\n");
    }

    /// What is computed before the product, by all threads of the block for all rows, into shared memory.
    pub(super) fn before(&self, out: &mut String, before: &LoopBody, kept: &Kept) {
        // What every GPU has is known to be shared memory, whose loads are shorter.
        let memory = match kept.bytes <= SHARED {
            true => "own",
            false => "workspace?workspace+blockIdx.x*workspace_bytes:own",
        };
        let _ = writeln!(out, "unsigned char* const memory={memory};");
        for (temp, (dtype, offset)) in kept.dtypes.iter().zip(&kept.offsets).enumerate() {
            let ty = if dtype.size_in_bits() == 16 { memory_type(*dtype) } else { value_type(*dtype) };
            let _ = writeln!(out, "{ty}* const t{temp}=({ty}*)(memory+{offset});");
        }
        if before.stages.iter().any(|stage| !stage.reductions.is_empty()) {
            let _ = writeln!(out, "__shared__ __align__(16) unsigned char scratch[{}];", self.threads / 32 * 16);
        }
        let _ = writeln!(out, "for(int mm=0;mm<{};++mm){{", self.rows);
        out.push_str(&decode(&self.names, &self.body.m, "m", "mm", self.width));
        let rows = before.stages.iter().filter(|stage| stage.domain == Domain::Row);
        rows.skip(1).for_each(|stage| self.load_ahead(out, stage));
        let mut first = true;
        for stage in &before.stages {
            match stage.domain {
                Domain::Point => {
                    let mut statements = self.statements("r");
                    statements.all(&stage.insts);
                    out.push_str(&statements.out);
                }
                Domain::Row => {
                    self.row(out, stage, &kept.dtypes, !first);
                    first = false;
                }
            }
        }
        out.push_str("}\n__syncthreads();\n");
    }

    /// What a row stage accesses several elements at a time.
    fn row_vector(&self, stage: &Stage) -> Vector {
        match self.lanes {
            1 => Vector::none(),
            lanes => Vector::of(self.kernel, stage.insts.iter(), self.axis, lanes),
        }
    }

    /// Wide loads of a thread for each of those of a stage over a row, if they are few enough for registers.
    fn turns(&self) -> Option<i64> {
        let (all, turn) = (self.depth, self.threads * self.lanes);
        Some((all + turn - 1) / turn).filter(|turns| self.lanes > 1 && *turns <= MOST_AHEAD)
    }

    /// What a later stage loads (the weight of a norm) is on its way while an earlier one sums the row.
    fn load_ahead(&self, out: &mut String, stage: &Stage) {
        let Some(turns) = self.turns() else { return };
        let mut vector = self.row_vector(stage);
        vector.suffix = "[turn]";
        let (declared, filled) = vector.ahead(&self.statements("r"), stage.insts.iter(), turns);
        let _ = writeln!(
            out,
            "{declared}\n#pragma unroll\nfor(int turn=0;turn<{turns};++turn){{const idx k0=(idx)(threadIdx.x+turn*{})*{};if(k0<{}){{\n{filled}}}}}",
            self.threads, self.lanes, self.depth
        );
    }

    /// The temporaries of which a thread has neighbours at a stage, and stores them at once: one by one they would be in the same banks.
    fn gathered(&self, stage: &Stage) -> Vec<usize> {
        let loads = stage.insts.iter().any(|inst| matches!(inst.kind, InstKind::LoadTemp(_)));
        let stored = stage.insts.iter().filter_map(|inst| match inst.kind {
            InstKind::StoreTemp(temp, _) => Some(temp),
            _ => None,
        });
        if loads || self.lanes == 1 { Vec::new() } else { stored.collect() }
    }

    /// The type of as many elements of a temporary as a thread has.
    fn wide_temp(&self, dtype: DType) -> String {
        let ty = if dtype.size_in_bits() == 16 { memory_type(dtype) } else { value_type(dtype) };
        format!("Wide<{ty},{}>", self.lanes)
    }

    /// Statements that ask the L2 cache for what rows are computed of (the weight of a norm), before the launch before has ended: for
    /// kernels of one block a multiprocessor, which have all of their shared memory filled by then.
    pub(super) fn ask_for_rows(&self, out: &mut String) {
        let Some(before) = &self.body.before else { return };
        let mut places: Vec<&Place> = Vec::new();
        for stage in before.stages.iter().filter(|stage| stage.domain == Domain::Row && self.lanes > 1) {
            let vector = self.row_vector(stage);
            let wide = stage.insts.iter().filter(|inst| vector.has(inst.id)).filter_map(|inst| match &inst.kind {
                InstKind::Load { place, guard: None } if place.indirect.is_empty() => Some(place),
                _ => None,
            });
            wide.for_each(|place| {
                if !places.contains(&place) {
                    places.push(place);
                }
            });
        }
        if places.is_empty() {
            return;
        }
        out.push_str("if(threadIdx.x==0){const idx mm=0,k0=0;\n");
        out.push_str(&decode(&self.names, &self.body.m, "m", "mm", self.width));
        for place in places {
            let bits = self.kernel.buffers[place.buffer].dtype.size_in_bits() as i64;
            let (at, bytes) = (self.names.text(&place.offset, self.width), self.depth * bits / 8 / BYTES * BYTES);
            let _ = writeln!(out, "fetch_soon(b{}+{at},{bytes});", place.buffer);
        }
        out.push_str("}\n");
    }

    /// A stage over a row; what it loads may be there already.
    fn row(&self, out: &mut String, stage: &Stage, dtypes: &[DType], loaded: bool) {
        let Writer { depth, threads, lanes, .. } = self;
        for reduction in &stage.reductions {
            let (ty, identity) = accumulator(reduction);
            let _ = writeln!(out, "{ty} over{}={identity};", reduction.result.0);
        }
        let mut vector = self.row_vector(stage);
        let turns = self.turns().filter(|_| loaded);
        if let Some(turns) = turns {
            vector.suffix = "[turn]";
            let _ = writeln!(
                out,
                "#pragma unroll\nfor(int turn=0;turn<{turns};++turn){{const idx begin=(idx)(threadIdx.x+turn*{threads})*{lanes};if(begin>={depth})continue;"
            );
        } else {
            let _ = writeln!(
                out,
                "#pragma unroll 2\nfor(idx begin=(idx)threadIdx.x*{lanes};begin<{depth};begin+={}){{const idx k0=begin;",
                threads * lanes
            );
            out.push_str(&vector.begin(&self.statements("r"), stage.insts.iter()));
        }
        let gathered = self.gathered(stage);
        for &temp in &gathered {
            let _ = writeln!(out, "{} st{temp};", self.wide_temp(dtypes[temp]));
        }
        let _ = writeln!(out, "#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx k0=begin+e,at=mm*{depth}+k0;");
        let temps = if gathered.is_empty() { Temps::Elements(dtypes) } else { Temps::Gathered(dtypes) };
        let mut statements = Statements { vector: Some(&vector), temps, ..self.statements("r") };
        statements.all(&stage.insts);
        out.push_str(&statements.out);
        let combine = |reduction: &Reduction, a: &str, b: &str| match reduction.kind {
            ReductionKind::Reduce(kind) => combined(kind, reduction.dtype, a, b),
            ReductionKind::Arg(_) => a.to_owned(),
        };
        for reduction in &stage.reductions {
            let (over, value) = (format!("over{}", reduction.result.0), format!("r{}", reduction.value.0));
            let _ = writeln!(out, "{over}={};", combine(reduction, &over, &value));
        }
        out.push_str("}\n");
        for &temp in &gathered {
            let _ = writeln!(out, "*({}*)(t{temp}+mm*{depth}+begin)=st{temp};", self.wide_temp(dtypes[temp]));
        }
        out.push_str("}\n");
        for reduction in &stage.reductions {
            let ((ty, _), number) = (accumulator(reduction), reduction.result.0);
            let combine = combine(reduction, "a", "b");
            let _ = writeln!(
                out,
                "const {ty} r{number}=across<1,{threads},true>(over{number},scratch,[]({ty} a,{ty} b)->{ty}{{return {combine};}});"
            );
        }
    }
}

fn multiply_add(acc: DType, x: &str, y: &str, sum: &str) -> String {
    match acc {
        DType::F32 => format!("fmaf({x},{y},{sum})"),
        DType::F64 => format!("fma({x},{y},{sum})"),
        DType::I64 => format!("(long long)((unsigned long long){sum}+(unsigned long long){x}*(unsigned long long){y})"),
        _ => format!("(int)((unsigned){sum}+(unsigned){x}*(unsigned){y})"),
    }
}
