//! Loop kernels: a thread a point where there is no row; otherwise `X` points a block with `Y` threads each along the row.

use super::index::{Names, Width};
use super::value::{Statements, Temps, combined, scalar, value_type};
use super::vector::Vector;
use super::{Body, MOST_BLOCKS, THREADS, Way, ceil_div, decode, points, width};
use kiln_ir::{ArgKind, DType, Dim, Symbol};
use kiln_kernels::kernel::{Domain, Inst, InstKind, Kernel, LoopBody, Reduction, ReductionKind, Stage};
use std::collections::HashSet;
use std::fmt::Write;

/// Elements of a row temporary that a thread keeps in registers.
const REGISTER_ELEMENTS: i64 = 32;

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
        (false, _) => writer.rows(&grid, &row, has_indirect_stores, way),
    })
}

struct Writer<'a> {
    kernel: &'a Kernel,
    body: &'a LoopBody,
    names: Names,
    width: Width,
}

impl Writer<'_> {
    fn statements<'s>(&'s self, stores: Option<&'s str>, temps: Temps) -> Statements<'s> {
        Statements {
            kernel: self.kernel,
            names: &self.names,
            width: self.width,
            prefix: "v",
            stores,
            temps,
            vector: None,
            accumulator: None,
            out: String::new(),
        }
    }

    fn insts(&self) -> impl Iterator<Item = &Inst> + Clone {
        self.body.stages.iter().flat_map(|stage| &stage.insts)
    }

    fn point_statements(&self, vector: Option<&Vector>) -> String {
        let mut statements = self.statements(None, Temps::Registers);
        statements.vector = vector;
        self.body.stages.iter().for_each(|stage| statements.all(&stage.insts));
        statements.out
    }

    fn finished(&self, functions: &'static [&'static str], statements: String, blocks: Dim) -> Body {
        Body {
            functions,
            statements,
            width: self.width,
            blocks,
            most_blocks: MOST_BLOCKS,
            threads: THREADS,
            block_bytes: Dim::default(),
            cluster: 1,
            resident: 1,
            aligned: Vec::new(),
        }
    }

    /// A thread a point, or as many neighbours as are accessed at once.
    fn pointwise(&self, grid: &Dim, way: Way) -> Body {
        let axis = self.body.grid.last().filter(|_| way.vectors);
        let vector = axis.and_then(|axis| Vector::choose(self.kernel, self.insts(), axis));
        let lanes = vector.as_ref().map_or(1, |vector| vector.lanes);
        let threads = grid.floor_div(&Dim::from(lanes));
        let mut out = String::new();
        let count = self.names.text(&threads, self.width);
        let _ = writeln!(
            out,
            "for(idx q=(idx)blockIdx.x*{THREADS}+threadIdx.x;q<{count};q+=(idx)gridDim.x*{THREADS}){{const idx p=q*{lanes};"
        );
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
        let mut body = self.finished(&[], out, ceil_div(&threads, THREADS.into()));
        body.aligned = vector.iter().flat_map(Vector::buffers).collect();
        body
    }

    /// Stores at places that data decide: points that may meet are one thread's, in order.
    fn pointwise_in_order(&self) -> Body {
        let (serial, parallel) = self.split_axes();
        let mut out = String::new();
        let axes = |list: &[usize]| list.iter().map(|&at| self.body.grid[at].clone()).collect::<Vec<_>>();
        let (parallel_axes, serial_axes) = (axes(&parallel), axes(&serial));
        let count = self.names.text(&points(&parallel_axes), self.width);
        let _ =
            writeln!(out, "for(idx p=(idx)blockIdx.x*{THREADS}+threadIdx.x;p<{count};p+=(idx)gridDim.x*{THREADS}){{");
        out.push_str(&decode(&self.names, &parallel_axes, "p", "p", self.width));
        let rename = |out: &mut String, list: &[usize], prefix: &str| {
            for (number, at) in list.iter().enumerate() {
                let _ = writeln!(out, "const idx g{at}={prefix}{number};");
            }
        };
        rename(&mut out, &parallel, "p");
        let steps = self.names.text(&points(&serial_axes), self.width);
        let _ = writeln!(out, "for(idx o=0;o<{steps};++o){{");
        out.push_str(&decode(&self.names, &serial_axes, "o", "o", self.width));
        rename(&mut out, &serial, "o");
        out.push_str(&self.point_statements(None));
        out.push_str("}}\n");
        self.finished(&[], out, ceil_div(&points(&parallel_axes), THREADS.into()))
    }

    /// The axes whose points may store to one place, and the others. Two points that differ along the others never do if the place is
    /// `Σ axis·coefficient + Σ index·stride` where the first sum stays below every stride and the indices do not depend on those axes.
    fn split_axes(&self) -> (Vec<usize>, Vec<usize>) {
        let all: Vec<usize> = (0..self.body.grid.len()).collect();
        let mut deciding: HashSet<Symbol> = HashSet::new();
        let depends = dependencies(self.body.stages.iter().flat_map(|stage| &stage.insts));
        let mut bound: Option<i64> = None;
        let mut offsets = Vec::new();
        for inst in self.body.stages.iter().flat_map(|stage| &stage.insts) {
            let InstKind::Store { place, .. } = &inst.kind else { continue };
            for (value, stride) in &place.indirect {
                deciding.extend(depends[value.0 as usize].iter().copied());
                let Some(stride) = stride.as_const().map(i64::abs) else { return (all, Vec::new()) };
                bound = Some(bound.map_or(stride, |least| least.min(stride)));
            }
            offsets.push(&place.offset);
        }
        let is_serial = |at: &usize| deciding.contains(&self.body.grid[*at].var);
        let (serial, parallel): (Vec<usize>, Vec<usize>) = all.iter().copied().partition(is_serial);
        let apart = offsets.iter().all(|offset| {
            let base = offset.substitute(&|symbol| {
                parallel.iter().any(|&at| self.body.grid[at].var == symbol).then(|| Dim::from(0))
            });
            let depends_on_serial = serial.iter().any(|&at| offset.contains(self.body.grid[at].var));
            let spread = self.names.magnitude(&(*offset - base));
            !depends_on_serial && spread.zip(bound).is_some_and(|(spread, bound)| spread < bound)
        });
        if apart { (serial, parallel) } else { (all, Vec::new()) }
    }

    /// `X` points a block with `Y` threads each along the row.
    fn rows(&self, grid: &Dim, row: &Dim, in_order: bool, way: Way) -> Body {
        let row_insts =
            self.body.stages.iter().filter(|stage| stage.domain == Domain::Row).flat_map(|stage| &stage.insts);
        let axis = self.body.row.last().filter(|_| way.vectors && !in_order && !rows_are_strided(self.body));
        let chosen = axis.and_then(|axis| Vector::choose(self.kernel, row_insts.clone(), axis));
        let lanes = chosen.as_ref().map_or(1, |vector| vector.lanes);
        let shape = Shape::choose(self.body, grid, &row.floor_div(&Dim::from(lanes)), in_order);
        let Shape { x, y, along_row } = shape;
        let threads = x * y;
        let steps = row.as_const().map(|row| (row / lanes).div_euclid(y) + i64::from((row / lanes).rem_euclid(y) > 0));
        let temps = match steps {
            Some(steps) if steps * lanes <= REGISTER_ELEMENTS => Temps::Registers,
            _ => Temps::Memory,
        };
        let (rows, length) = (self.names.text(grid, self.width), self.names.text(row, self.width));
        let mut out = String::new();
        if self.body.stages.iter().any(|stage| !stage.reductions.is_empty()) && y > 1 {
            let words = if along_row { threads / 32 } else { threads };
            let _ = writeln!(out, "__shared__ __align__(16) unsigned char scratch[{}];", words.max(1) * 16);
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
        let _ = writeln!(out, "for(idx first=(idx)blockIdx.x*{x};first<{rows};first+=(idx)gridDim.x*{x}){{");
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
        let mut body = self.finished(&[include_str!("rows.cu")], out, blocks);
        body.threads = threads as u32;
        body.block_bytes = block_bytes;
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
fn accumulator(reduction: &Reduction) -> (String, String) {
    let ty = value_type(reduction.dtype);
    match reduction.kind {
        ReductionKind::Reduce(kind) => (ty.to_owned(), scalar(kind.identity(reduction.dtype))),
        // No position yet.
        ReductionKind::Arg(_) => (format!("Extreme<{ty}>"), format!("{{({ty})0,-1}}")),
    }
}

fn bytes(dtype: DType) -> i64 {
    match value_type(dtype) {
        "double" | "long long" => 8,
        "bool" => 1,
        _ => 4,
    }
}

/// How a stage runs along the row.
struct Along<'a> {
    shape: Shape,
    temps: Temps,
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
    fn choose(body: &LoopBody, grid: &Dim, row: &Dim, in_order: bool) -> Shape {
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
        // A row that few share gets all the threads that a block may have.
        if count < 132 && length >= 8192 {
            return Shape { x: 1, y: 1024, along_row: true };
        }
        Shape { x: threads / y, y, along_row: true }
    }
}

/// Whether neighbouring points are contiguous in memory rather than neighbouring elements of a row.
fn rows_are_strided(body: &LoopBody) -> bool {
    let (Some(point), Some(along)) = (body.grid.last(), body.row.last()) else { return false };
    let step = |offset: &Dim, var: Symbol| offset.linear_in(var).and_then(|(step, _)| step.as_const()).map(i64::abs);
    let (mut by_point, mut by_row) = (0, 0);
    for inst in body.stages.iter().filter(|stage| stage.domain == Domain::Row).flat_map(|stage| &stage.insts) {
        let (InstKind::Load { place, .. } | InstKind::Store { place, .. }) = &inst.kind else { continue };
        match (step(&place.offset, point.var), step(&place.offset, along.var)) {
            (_, Some(1)) => by_row += 1,
            (Some(1), other) if other != Some(0) => by_point += 1,
            _ => {}
        }
    }
    by_point > by_row
}

/// The axes that each value depends on, by number.
fn dependencies<'a>(insts: impl Iterator<Item = &'a Inst>) -> Vec<HashSet<Symbol>> {
    let mut all: Vec<HashSet<Symbol>> = Vec::new();
    for inst in insts {
        let mut own = HashSet::new();
        let mut add_dim = |dim: &Dim| {
            dim.visit_symbols(&mut |symbol| {
                own.insert(symbol);
            })
        };
        let mut values = Vec::new();
        match &inst.kind {
            InstKind::Index(dim) => add_dim(dim),
            InstKind::InRange { expr, low, high } => [expr, low, high].into_iter().for_each(add_dim),
            InstKind::Load { place, guard } => {
                add_dim(&place.offset);
                place.indirect.iter().for_each(|(value, stride)| {
                    add_dim(stride);
                    values.push(*value);
                });
                values.extend(*guard);
            }
            InstKind::Unary(_, x) | InstKind::Cast(x) | InstKind::Bitcast(x) | InstKind::Round(x, _) => values.push(*x),
            InstKind::Binary(_, x, y) | InstKind::Compare(_, x, y) => values.extend([*x, *y]),
            InstKind::Select(c, x, y) => values.extend([*c, *x, *y]),
            InstKind::CheckIndex { value, size } => {
                add_dim(size);
                values.push(*value);
            }
            InstKind::Random { seed, position, .. } => {
                add_dim(position);
                values.push(*seed);
            }
            _ => {}
        }
        for value in values {
            if let Some(symbols) = all.get(value.0 as usize) {
                own.extend(symbols.iter().copied());
            }
        }
        let at = inst.id.0 as usize;
        if all.len() <= at {
            all.resize_with(at + 1, HashSet::new);
        }
        all[at] = own;
    }
    all
}
