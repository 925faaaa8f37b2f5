//! Loop kernels: a thread a point where there is no row; otherwise `X` points a block with `Y` threads each along the row.

use super::index::{Names, Width};
use super::value::{Statements, Temps, combined, scalar, value_type};
use super::vector::Vector;
use super::{Body, THREADS, Way, ceil_div, decode, points, points_of_threads, rounds, width};
use kiln_ir::{ArgKind, DType, Dim, Symbol};
use kiln_kernels::kernel::{Domain, Inst, InstKind, Kernel, LoopBody, Reduction, ReductionKind, Stage};
use std::fmt::Write;

/// Elements of a row temporary that a thread keeps in registers.
const REGISTER_ELEMENTS: i64 = 32;
/// Elements of an axis beside which its rest is nothing.
const LONG_AXIS: i64 = 256;
/// Threads of a block at the most.
const MOST_THREADS: i64 = 1024;

pub(super) fn generate(kernel: &Kernel, body: &LoopBody, way: Way) -> Result<Body, String> {
    let mut names = Names::of_sizes(&kernel.sizes);
    for (number, axis) in body.grid.iter().enumerate() {
        names.add(axis, format!("g{number}"));
    }
    for (number, axis) in body.row.iter().enumerate() {
        names.add(axis, format!("r{number}"));
    }
    let (grid, row) = (points(&body.grid), points(&body.row));
    let insts = body.stages.iter().flat_map(|stage| &stage.insts);
    let width = width(&names, insts.clone(), &[&grid, &row]);
    let writer = Writer { kernel, body, names, width };
    let is_indirect = |inst: &Inst| matches!(&inst.kind, InstKind::Store { place, .. } if !place.indirect.is_empty());
    let has_indirect_stores = insts.clone().any(is_indirect);
    Ok(match (body.row.is_empty(), has_indirect_stores) {
        (true, false) => writer.pointwise(&grid, way),
        (true, true) => writer.pointwise_in_order(),
        (false, true) => writer.rows(&grid, &row, true, way),
        (false, false) => {
            let columns = rows_are_strided(body).then(|| writer.columns(&grid, &row, way)).flatten();
            columns.unwrap_or_else(|| writer.rows(&grid, &row, false, way))
        }
    })
}

pub(super) struct Writer<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) body: &'a LoopBody,
    pub(super) names: Names,
    pub(super) width: Width,
}

impl Writer<'_> {
    pub(super) fn statements<'s>(&'s self, stores: Option<&'s str>, temps: Temps<'s>) -> Statements<'s> {
        Statements { stores, temps, ..Statements::new(self.kernel, &self.names, self.width, "v") }
    }

    pub(super) fn insts(&self) -> impl Iterator<Item = &Inst> + Clone {
        self.body.stages.iter().flat_map(|stage| &stage.insts)
    }

    pub(super) fn point_statements(&self, vector: Option<&Vector>) -> String {
        let mut statements = self.statements(None, Temps::Registers);
        statements.vector = vector;
        self.body.stages.iter().for_each(|stage| statements.all(&stage.insts));
        statements.out
    }

    pub(super) fn finished(&self, functions: Vec<&'static str>, statements: String, blocks: Dim) -> Body {
        Body { functions, ..Body::new(statements, self.width, blocks) }
    }

    /// A thread a point, or as many neighbours as are accessed at once.
    fn pointwise(&self, grid: &Dim, way: Way) -> Body {
        let axis = self.body.grid.last().filter(|_| way.vectors);
        let vector = axis.and_then(|axis| Vector::choose(self.kernel, self.insts(), axis));
        if let (Some(axis), None) = (axis, &vector)
            && axis.size.as_const().is_some_and(|size| size >= LONG_AXIS)
            && let Some(vector) = Vector::choose_ragged(self.kernel, self.insts(), axis)
        {
            return self.pointwise_ragged(&vector);
        }
        let lanes = vector.as_ref().map_or(1, |vector| vector.lanes);
        let threads = grid.floor_div(&Dim::from(lanes));
        let mut out = String::new();
        let count = self.names.text(&threads, self.width);
        let _ = writeln!(out, "{}const idx p=q*{lanes};", points_of_threads("q", &threads, &count));
        out.push_str(&decode(&self.names, &self.body.grid, "g", "p", self.width));
        match &vector {
            None => out.push_str(&self.point_statements(None)),
            Some(vector) => {
                let last = self.body.grid.len() - 1;
                let statements = self.statements(None, Temps::Registers);
                out.push_str(&vector.begin(&statements, self.insts()));
                let _ = writeln!(
                    out,
                    "const idx first=g{last};\n#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx g{last}=first+e;"
                );
                out.push_str(&self.point_statements(Some(vector)));
                out.push_str("}\n");
                out.push_str(&vector.end(&statements, self.insts(), ""));
            }
        }
        out.push_str("}\n");
        let mut body = self.finished(Vec::new(), out, ceil_div(&threads, THREADS.into()));
        body.aligned = vector.iter().flat_map(Vector::buffers).collect();
        body
    }

    /// Several neighbours a thread where the last axis has a rest, which is taken one by one.
    fn pointwise_ragged(&self, vector: &Vector) -> Body {
        let (lanes, last) = (vector.lanes, self.body.grid.len() - 1);
        let mut chunks = self.body.grid.clone();
        let size = self.names.text(&chunks[last].size, self.width);
        chunks[last].size = ceil_div(&chunks[last].size, lanes);
        let threads = points(&chunks);
        let mut out = String::new();
        let count = self.names.text(&threads, self.width);
        let _ = writeln!(out, "for(idx q=(idx)block*{THREADS}+threadIdx.x;q<{count};q+=(idx)blocks*{THREADS}){{");
        out.push_str(&decode(&self.names, &chunks, "c", "q", self.width));
        for axis in 0..last {
            let _ = write!(out, "const idx g{axis}=c{axis};");
        }
        let _ = writeln!(out, "const idx g{last}=c{last}*{lanes},first=g{last};\nif(first+{lanes}<={size}){{");
        let statements = self.statements(None, Temps::Registers);
        out.push_str(&vector.begin(&statements, self.insts()));
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx g{last}=first+e;\n{}}}\n{}}}else for(int e=0;e<{size}-first;++e){{const idx g{last}=first+e;\n{}}}}}",
            self.point_statements(Some(vector)),
            vector.end(&statements, self.insts(), ""),
            self.point_statements(None),
        );
        let mut body = self.finished(Vec::new(), out, ceil_div(&threads, THREADS.into()));
        body.aligned = vector.buffers().collect();
        body
    }

    /// `X` points a block with `Y` threads each along the row.
    fn rows(&self, grid: &Dim, row: &Dim, in_order: bool, way: Way) -> Body {
        let row_insts =
            self.body.stages.iter().filter(|stage| stage.domain == Domain::Row).flat_map(|stage| &stage.insts);
        let axis = self.body.row.last().filter(|_| way.vectors && !in_order && !rows_are_strided(self.body));
        let chosen = axis.and_then(|axis| Vector::choose(self.kernel, row_insts.clone(), axis));
        let lanes = chosen.as_ref().map_or(1, |vector| vector.lanes);
        let shape = Shape::choose(self.body, grid, &row.floor_div(&Dim::from(lanes)), in_order, way);
        let Shape { x, y, along_row } = shape;
        let threads = x * y;
        let steps = row.as_const().map(|row| (row / lanes).div_euclid(y) + i64::from((row / lanes).rem_euclid(y) > 0));
        let temps = match steps {
            Some(steps) if steps * lanes <= REGISTER_ELEMENTS => Temps::Registers,
            _ => Temps::Memory,
        };
        let (rows, length) = (self.names.text(grid, self.width), self.names.text(row, self.width));
        let mut out = String::new();
        let mut scratch = 0;
        if self.body.stages.iter().any(|stage| !stage.reductions.is_empty()) && y > 1 {
            scratch = 16 * if along_row { (threads / 32).max(1) } else { threads };
        } else {
            out.push_str("unsigned char* const scratch=nullptr;\n");
        }
        let (sub, lane) =
            if along_row { (format!("/{y}"), format!("%{y}")) } else { (format!("%{x}"), format!("/{x}")) };
        let _ = writeln!(out, "const int sub=threadIdx.x{sub},lane=threadIdx.x{lane};");
        let mut block_bytes = Dim::default();
        if temps == Temps::Memory && !self.body.temps.is_empty() {
            block_bytes = self.memory_temps(&mut out, row, x, &length);
        }
        // One block takes all rows in their order; and where memory is short, there are fewer blocks than the grid has points for.
        let may_repeat = in_order || !block_bytes.is_zero();
        let head = match may_repeat {
            true => format!("#pragma unroll 1\nfor(idx first=(idx)block*{x};first<{rows};first+=(idx)blocks*{x}){{"),
            false => rounds("first", &format!("(idx)block*{x}"), grid, &rows, x),
        };
        let _ = writeln!(out, "{head}");
        let _ = writeln!(out, "const bool live=first+sub<{rows};\nconst idx p=live?first+sub:{rows}-1;");
        out.push_str(&decode(&self.names, &self.body.grid, "g", "p", self.width));
        if let (Temps::Registers, Some(steps)) = (temps, steps) {
            for (number, dtype) in self.body.temps.iter().enumerate() {
                let _ = writeln!(out, "{} t{number}[{}];", value_type(*dtype), (steps * lanes).max(1));
            }
        }
        let along = Along { shape, temps, steps, length: &length, lanes };
        for stage in &self.body.stages {
            match stage.domain {
                Domain::Point => {
                    let mut statements = self.statements(Some("lane==0&&live"), temps);
                    statements.all(&stage.insts);
                    out.push_str(&statements.out);
                }
                Domain::Row => self.row_stage(&mut out, stage, &along),
            }
        }
        if in_order {
            out.push_str("__syncthreads();\n");
        }
        out.push_str("}\n");
        let blocks = if in_order { Dim::from(1) } else { ceil_div(grid, x) };
        let mut body = self.finished(vec![include_str!("rows.cu")], out, blocks);
        body.threads = threads as u32;
        body.block_bytes = block_bytes;
        body.scratch = scratch;
        body.aligned = chosen.iter().flat_map(Vector::buffers).collect();
        body
    }

    /// Declares the temporaries as memory of the block; returns how many bytes they take.
    fn memory_temps(&self, out: &mut String, row: &Dim, x: i64, length: &str) -> Dim {
        out.push_str("extern __shared__ __align__(16) unsigned char own[];\n");
        out.push_str("unsigned char* const memory=workspace?workspace+blockIdx.x*workspace_bytes:own;\n");
        let mut before = 0;
        // The widest first, so that each begins where its alignment asks for.
        let mut order: Vec<usize> = (0..self.body.temps.len()).collect();
        order.sort_by_key(|&temp| std::cmp::Reverse(bytes(self.body.temps[temp])));
        for temp in order {
            let dtype = self.body.temps[temp];
            let ty = value_type(dtype);
            let _ = writeln!(
                out,
                "{ty}* const t{temp}=({ty}*)(memory+(long long){length}*{})+(long long)sub*{length};",
                before * x
            );
            before += bytes(dtype);
        }
        row * (before * x)
    }

    fn row_stage(&self, out: &mut String, stage: &Stage, along: &Along<'_>) {
        let &Along { shape: Shape { x, y, along_row }, temps, steps, length, lanes } = along;
        for reduction in &stage.reductions {
            let number = reduction.result.0;
            let (ty, identity) = accumulator(reduction);
            let _ = writeln!(out, "{ty} acc{number}={identity};");
        }
        let _ = match (temps, steps) {
            (Temps::Registers, Some(steps)) => writeln!(
                out,
                "#pragma unroll\nfor(int unit=0;unit<{steps};++unit){{const idx begin=((idx)unit*{y}+lane)*{lanes};if(begin<{length}){{"
            ),
            _ => writeln!(out, "for(idx begin=(idx)lane*{lanes};begin<{length};begin+={}){{{{", y * lanes),
        };
        out.push_str(&decode(&self.names, &self.body.row, "r", "begin", self.width));
        let vector = self.body.row.last().filter(|_| lanes > 1);
        let vector = vector.map(|axis| Vector::of(self.kernel, stage.insts.iter(), axis, lanes));
        if let Some(vector) = &vector {
            out.push_str(&vector.begin(&self.statements(None, temps), stage.insts.iter()));
        }
        let last = self.body.row.len() - 1;
        let step = if temps == Temps::Registers { format!("const int step=unit*{lanes}+e;") } else { String::new() };
        let _ = writeln!(
            out,
            "const idx r_first=r{last};\n#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx r{last}=r_first+e,at=begin+e;{step}"
        );
        let mut statements = self.statements(Some("live"), temps);
        statements.vector = vector.as_ref();
        statements.all(&stage.insts);
        out.push_str(&statements.out);
        for reduction in &stage.reductions {
            let number = reduction.result.0;
            let value = format!("v{}", reduction.value.0);
            let _ = match reduction.kind {
                ReductionKind::Reduce(kind) => {
                    let sum = combined(kind, reduction.dtype, &format!("acc{number}"), &value);
                    writeln!(out, "acc{number}={sum};")
                }
                ReductionKind::Arg(kind) => {
                    let name = arg_name(kind);
                    writeln!(
                        out,
                        "acc{number}=acc{number}.at<0?decltype(acc{number}){{{value},(long long)at}}:{name}(acc{number},decltype(acc{number}){{{value},(long long)at}});"
                    )
                }
            };
        }
        out.push_str("}\n");
        if let Some(vector) = &vector {
            out.push_str(&vector.end(&self.statements(None, temps), stage.insts.iter(), "if(live)"));
        }
        out.push_str("}}\n");
        for reduction in &stage.reductions {
            let number = reduction.result.0;
            let (ty, _) = accumulator(reduction);
            let result = format!("v{}", reduction.result.0);
            let _ = match reduction.kind {
                ReductionKind::Reduce(kind) => {
                    let combine = combined(kind, reduction.dtype, "a", "b");
                    writeln!(
                        out,
                        "const {ty} {result}=across<{x},{y},{along_row}>(acc{number},scratch,[]({ty} a,{ty} b)->{ty}{{return {combine};}});"
                    )
                }
                ReductionKind::Arg(kind) => {
                    let name = arg_name(kind);
                    writeln!(
                        out,
                        "const long long {result}=first_if_none(across<{x},{y},{along_row}>(acc{number},scratch,[]({ty} a,{ty} b)->{ty}{{return a.at<0?b:b.at<0?a:{name}(a,b);}}).at);"
                    )
                }
            };
        }
    }
}

fn arg_name(kind: ArgKind) -> &'static str {
    match kind {
        ArgKind::Max => "arg_max",
        ArgKind::Min => "arg_min",
    }
}

/// The type of a reduction's accumulator and its first value.
pub(super) fn accumulator(reduction: &Reduction) -> (String, String) {
    let ty = value_type(reduction.dtype);
    match reduction.kind {
        ReductionKind::Reduce(kind) => (ty.to_owned(), scalar(kind.identity(reduction.dtype))),
        // No position yet.
        ReductionKind::Arg(_) => (format!("Extreme<{ty}>"), format!("{{({ty})0,-1}}")),
    }
}

pub(super) fn bytes(dtype: DType) -> i64 {
    match value_type(dtype) {
        "double" | "long long" => 8,
        "bool" => 1,
        _ => 4,
    }
}

/// How a stage runs along the row.
struct Along<'a> {
    shape: Shape,
    temps: Temps<'a>,
    /// Steps of a thread, where that is constant.
    steps: Option<i64>,
    length: &'a str,
    /// Neighbours that a thread takes at once.
    lanes: i64,
}

/// How a block's threads are spread over points and rows.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Points a block.
    x: i64,
    /// Threads a row; a power of two.
    y: i64,
    /// Whether neighbouring threads are neighbours along the row, rather than of neighbouring points.
    along_row: bool,
}

impl Shape {
    fn choose(body: &LoopBody, grid: &Dim, row: &Dim, in_order: bool, way: Way) -> Shape {
        let threads = i64::from(THREADS);
        let length = row.as_const().unwrap_or(1024).max(1);
        let count = grid.as_const().unwrap_or(4096).max(1);
        if in_order {
            return Shape { x: 1, y: threads, along_row: true };
        }
        let power = |n: i64| i64::try_from(n.max(1).unsigned_abs().next_power_of_two()).unwrap_or(threads);
        if rows_are_strided(body) && count >= 32 {
            // Enough rows fill the device with a thread each; fewer share their rows.
            let y = power(length / 8).min(8).min(power(132 * 1024 / count)).max(1);
            return Shape { x: threads / y, y, along_row: false };
        }
        let y = match length {
            ..=32 => power(length),
            ..=1024 if count >= 1024 => 32,
            _ => power(length / 4).clamp(32, threads),
        };
        // Rows that leave multiprocessors without any get a thread for every step, as far as a block has them.
        if count < way.multiprocessors && row.as_const().is_some() && length >= threads {
            return Shape { x: 1, y: power(length).min(MOST_THREADS), along_row: true };
        }
        Shape { x: threads / y, y, along_row: true }
    }
}

/// Whether neighbouring points are contiguous in memory rather than neighbouring elements of a row, in what is read for each of them.
fn rows_are_strided(body: &LoopBody) -> bool {
    let (Some(point), Some(along)) = (body.grid.last(), body.row.last()) else { return false };
    let step = |offset: &Dim, var: Symbol| offset.linear_in(var).and_then(|(step, _)| step.as_const()).map(i64::abs);
    let (mut by_point, mut by_row) = (0, 0);
    for inst in body.stages.iter().filter(|stage| stage.domain == Domain::Row).flat_map(|stage| &stage.insts) {
        let (InstKind::Load { place, .. } | InstKind::Store { place, .. }) = &inst.kind else { continue };
        match (step(&place.offset, point.var), step(&place.offset, along.var)) {
            (_, Some(1)) if place.offset.contains(point.var) => by_row += 1,
            (Some(1), other) if other != Some(0) => by_point += 1,
            _ => {}
        }
    }
    by_point > by_row
}
