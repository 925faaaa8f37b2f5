//! Products of short floats whose operands are unfolded (convolutions as implicit products): like `tensor`, for any number of
//! summed axes, for loads that positions guard and for elements that are not neighbours.
//!
//! ```text
//!  position(m, k) = f(m) + g(k)          f of a thread's rows once a tile, g of its columns once a step
//!  guards:  0 ≤ fᵢ(m) + gᵢ(k) < sizeᵢ    likewise, one pair a guarded axis; what is outside is 0
//!
//!  Along    eight neighbours along the last summed axis          cp.async, a chunk of a row of the tile
//!  Across   eight neighbours along the last axis of the side     cp.async, `ldmatrix` transposes
//!  Gather   any others: elements through registers, loaded before the products of a step and stored after them
//! ```
//!
//! The axes of each side and the summed ones are put into the order that makes the most neighbours: a sum has no order, and
//! the tiles of a result have none either.

use super::index::Width;
use super::tensor::Tile;
use super::tiles::{CHUNK, DEPTH, STAGES, Tiles};
use super::vector::is_multiple;
use super::{Body, Way, decode, names_of_product, points, width};
use kiln_ir::{BinaryOp, DType, Dim, Symbol};
use kiln_kernels::kernel::{Axis, Inst, InstKind, Kernel, MatmulBody, Place, Prologue, ValueId};
use std::fmt::Write;

/// Chunks of an operand whose elements a thread can hold while it multiplies.
const MOST_HELD: i64 = 4;
/// Elements that are read with their neighbours: those of a sector of the cache, about.
const NEAR: i64 = 8;
/// Steps whose summed positions are in shared memory.
const RING: i64 = 4;

/// How the elements of an operand get into shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Along,
    Across,
    /// Threads beside each other take rows of the tile if `by_lines`, else chunks of a row.
    Gather {
        by_lines: bool,
    },
}

/// A load that positions may guard.
struct Source<'a> {
    place: &'a Place,
    /// Expressions with the range that each is in where memory may be touched.
    guards: Vec<(&'a Dim, &'a Dim, &'a Dim)>,
}

/// An operand: its positions and guards as a part of the side and a part of the sum.
struct Operand<'a> {
    mode: Mode,
    buffer: usize,
    axes: &'a [Axis],
    /// Begins the names of its variables, and of its axes.
    names: [&'static str; 2],
    /// The size of its side, and the first of the tile.
    count: &'static str,
    first: &'static str,
    /// Rows or columns of the tile.
    side: i64,
    threads: i64,
    at: [Dim; 2],
    /// Where `0 ≤ side + sum < size`.
    guards: Vec<([Dim; 2], Dim)>,
    /// Where its table of summed positions is in shared memory.
    table: i64,
}

/// The body, if the product is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &MatmulBody, way: Way) -> Option<Body> {
    let rhs = body.single_rhs().filter(|_| body.before.is_none() && body.acc == DType::F32)?;
    let all: Vec<Symbol> =
        [&body.batch, &body.m, &body.n, &body.k].into_iter().flatten().map(|axis| axis.var).collect();
    let sources = [Source::of(kernel, &body.lhs, &all)?, Source::of(kernel, rhs, &all)?];
    let dtype = kernel.buffers[sources[0].place.buffer].dtype;
    let few = |axes: &[Axis]| points(axes).as_const().is_some_and(|size| size < CHUNK);
    if kernel.buffers[sources[1].place.buffer].dtype != dtype || few(&body.m) || few(&body.n) || body.k.is_empty() {
        return None;
    }
    let depth = points(&body.k).as_const().filter(|&depth| depth >= 2 * CHUNK)?;
    let (k, along) = summed(&sources, &body.k, way);
    let mut modes = [Mode::Along; 2];
    let mut sides = [body.m.clone(), body.n.clone()];
    for number in 0..2 {
        if !along[number] {
            (modes[number], sides[number]) = sources[number].mode(&sides[number], &k, way);
        }
    }
    let [m, n] = &sides;
    let names = names_of_product(kernel, [&body.batch, m, n, &k]);
    let counts = [points(&body.batch), points(m), points(n)];
    let width = width(&names, kernel.insts(), &counts.each_ref());
    let held = |tile: Tile| {
        let fits =
            |mode: Mode, side: i64| !matches!(mode, Mode::Gather { .. }) || side * CHUNK <= MOST_HELD * tile.threads();
        fits(modes[0], tile.tall) && fits(modes[1], tile.wide)
    };
    let tile = way.tile.filter(|&tile| !tile.warpgroups && held(tile)).unwrap_or_else(|| choose(&counts, &held));
    let tiles = Tiles { kernel, epilogue: &body.epilogue, batch: &body.batch, m, n, names, width, tile };
    let operand = |number: usize| {
        let (names, count, first, side) = match number {
            0 => (["x", "m"], "M", "top", tile.tall),
            _ => (["y", "n"], "N", "left", tile.wide),
        };
        let source = &sources[number];
        let guards = source.guards.iter().map(|&(expr, low, high)| Some((parts(&(expr - low), &k)?, high - low)));
        Some(Operand {
            mode: modes[number],
            buffer: source.place.buffer,
            axes: &sides[number],
            names,
            count,
            first,
            side,
            threads: tile.threads(),
            at: parts(&source.place.offset, &k)?,
            guards: guards.collect::<Option<Vec<_>>>()?,
            table: 0,
        })
    };
    let mut operands = [operand(0)?, operand(1)?];
    let mut bytes = STAGES * tiles.stage_bytes().1;
    for operand in operands.iter_mut().filter(|operand| operand.is_gathered()) {
        operand.table = bytes;
        bytes += RING * DEPTH * operand.fields() * if width == Width::Narrow { 4 } else { 8 };
    }
    let made = write(&tiles, &operands, &k, depth, dtype, way.vectors);
    Some(Body { block_bytes: Dim::from(bytes), ..made })
}

/// The tile where nothing was measured.
fn choose([batch, rows, columns]: &[Dim; 3], held: &dyn Fn(Tile) -> bool) -> Tile {
    let known = |dim: &Dim| dim.as_const().unwrap_or(4096);
    let narrow = Tile::new(128, 64, 2, 2);
    if known(columns) <= 64 && known(batch) * known(rows) >= 128 * 256 && held(narrow) {
        return narrow;
    }
    let tile = Tile::choose(batch, rows, columns);
    if held(tile) { tile } else { Tile::new(64, 64, 2, 2) }
}

/// The summed axes, those along which most operands have chunks of neighbours last, and which operands have them.
fn summed(sources: &[Source<'_>; 2], k: &[Axis], way: Way) -> (Vec<Axis>, [bool; 2]) {
    let chunks = |axis: &Axis| sources.each_ref().map(|source| way.vectors && source.has_chunks(axis));
    // The left operand of a convolution is the larger one.
    let worth = |axis: &&Axis| chunks(axis).iter().zip([2, 1]).map(|(&has, worth)| i32::from(has) * worth).sum::<i32>();
    let last = k.iter().max_by_key(worth);
    match last.filter(|axis| worth(axis) > 0) {
        Some(last) => (with_last(k, last.var), chunks(last)),
        None => (k.to_vec(), [false; 2]),
    }
}

fn with_last(axes: &[Axis], var: Symbol) -> Vec<Axis> {
    let (last, others): (Vec<Axis>, Vec<Axis>) = axes.iter().cloned().partition(|axis| axis.var == var);
    [others, last].concat()
}

/// An expression as a sum of what does not depend on some axes and what depends on nothing else.
fn parts(expr: &Dim, axes: &[Axis]) -> Option<[Dim; 2]> {
    let (mut rest, mut own) = (expr.clone(), Dim::default());
    for axis in axes {
        let (step, other) = rest.linear_in(axis.var)?;
        own += step * Dim::from(axis.var);
        rest = other;
    }
    Some([rest, own])
}

impl<'a> Source<'a> {
    fn of(kernel: &Kernel, prologue: &'a Prologue, axes: &[Symbol]) -> Option<Source<'a>> {
        let find = |id: ValueId| prologue.insts.iter().find(|inst| inst.id == id);
        let InstKind::Load { place, guard } = &find(prologue.value)?.kind else { return None };
        let short = matches!(kernel.buffers[place.buffer].dtype, DType::Bf16 | DType::F16);
        let mut guards = Vec::new();
        let mut open: Vec<ValueId> = guard.iter().copied().collect();
        while let Some(id) = open.pop() {
            match find(id).map(|inst: &Inst| &inst.kind)? {
                InstKind::Binary(BinaryOp::And, x, y) => open.extend([*x, *y]),
                InstKind::InRange { expr, low, high } => guards.push((expr, low, high)),
                _ => return None,
            }
        }
        let fixed = |dim: &Dim| !axes.iter().any(|&var| dim.contains(var));
        let linear = |dim: &Dim| axes.iter().all(|&var| dim.linear_in(var).is_some_and(|(step, _)| fixed(&step)));
        let separate = guards.iter().all(|(expr, low, high)| linear(expr) && fixed(low) && fixed(high));
        (short && place.indirect.is_empty() && linear(&place.offset) && separate).then_some(Source { place, guards })
    }

    /// Whether it has chunks of neighbours along an axis, which one guard governs.
    fn has_chunks(&self, axis: &Axis) -> bool {
        let Some((step, rest)) = self.place.offset.linear_in(axis.var) else { return false };
        let whole = axis.size.as_const().is_some_and(|size| size % CHUNK == 0);
        whole
            && step.is_one()
            && is_multiple(&rest, CHUNK)
            && !self.guards.iter().any(|(expr, ..)| expr.contains(axis.var))
    }

    /// How it is read where it has no chunks along the sum, and the order of its side's axes.
    fn mode(&self, side: &[Axis], k: &[Axis], way: Way) -> (Mode, Vec<Axis>) {
        if let Some(axis) = side.iter().find(|axis| way.vectors && self.has_chunks(axis)) {
            return (Mode::Across, with_last(side, axis.var));
        }
        // The axis with the smallest steps is taken by threads beside each other; a few elements further on is near enough, since
        // rows of a tile take one look at the sum for all of them.
        let step = |axis: &Axis| {
            let step = self.place.offset.linear_in(axis.var).and_then(|(step, _)| step.as_const());
            step.filter(|&step| step != 0).map_or(i64::MAX, i64::abs)
        };
        let nearest = side.iter().min_by_key(|axis| step(axis));
        let least = k.iter().map(step).min().unwrap_or(i64::MAX);
        match nearest.filter(|axis| step(axis) <= least.saturating_mul(NEAR)) {
            Some(axis) => (Mode::Gather { by_lines: true }, with_last(side, axis.var)),
            None => (Mode::Gather { by_lines: false }, side.to_vec()),
        }
    }
}

impl Operand<'_> {
    /// Chunks of a thread.
    fn chunks(&self) -> i64 {
        self.side * CHUNK / self.threads
    }

    /// Chunks of a row of the tile.
    fn across(&self) -> i64 {
        if self.mode == Mode::Across { self.side / CHUNK } else { DEPTH / CHUNK }
    }

    /// Places of the side that a thread has: one where its chunks differ in the sum alone.
    fn places(&self) -> i64 {
        match self.mode {
            Mode::Along | Mode::Gather { by_lines: false } => self.chunks(),
            Mode::Across | Mode::Gather { by_lines: true } => 1,
        }
    }

    /// The row of the tile and the chunk of it that chunk `s` of a thread is.
    fn spot(&self) -> (String, String) {
        let (across, threads) = (self.across(), self.threads);
        match self.mode {
            Mode::Gather { by_lines: true } => {
                let side = self.side;
                (format!("(int)threadIdx.x%{side}"), format!("(int)threadIdx.x/{side}+s*{}", threads / side))
            }
            _ => (format!("(int)threadIdx.x/{across}+s*{}", threads / across), format!("(int)threadIdx.x%{across}")),
        }
    }

    /// Numbers of a summed position: the position, and a part of each guard.
    fn fields(&self) -> i64 {
        1 + self.shared_guards().count() as i64
    }

    fn is_gathered(&self) -> bool {
        matches!(self.mode, Mode::Gather { .. })
    }

    /// Guards that the sum has a part in.
    fn shared_guards(&self) -> impl Iterator<Item = (usize, &[Dim; 2], &Dim)> {
        let shared = |(_, (parts, _)): &(usize, &([Dim; 2], Dim))| !parts[1].is_zero();
        self.guards.iter().enumerate().filter(shared).map(|(number, (parts, size))| (number, parts, size))
    }

    /// Declares what its positions and guards have of the side, for the tile.
    fn declare_side(&self, out: &mut String, tiles: &Tiles<'_>) {
        let Operand { names: [name, axis], count, first, .. } = self;
        let places = self.places();
        let _ = write!(out, "idx {name}_at[{places}];bool {name}_in[{places}];");
        for (number, ..) in self.shared_guards() {
            let _ = write!(out, "idx {name}_g{number}[{places}];");
        }
        let (line, chunk) = self.spot();
        let own = if self.mode == Mode::Across { format!("({chunk})*{CHUNK}") } else { line };
        let _ = writeln!(
            out,
            "\n#pragma unroll\nfor(int s=0;s<{places};++s){{const idx own_at={first}+{own},at=own_at<{count}?own_at:0;"
        );
        out.push_str(&decode(&tiles.names, self.axes, axis, "at", tiles.width));
        let _ = write!(out, "{name}_at[s]={};{name}_in[s]=own_at<{count}", tiles.text(&self.at[0]));
        for (parts, size) in self.guards.iter().filter(|(parts, _)| parts[1].is_zero()) {
            let _ = write!(out, "&&{}", within(tiles, &tiles.text(&parts[0]), size));
        }
        out.push(';');
        for (number, parts, _) in self.shared_guards() {
            let _ = write!(out, "{name}_g{number}[s]={};", tiles.text(&parts[0]));
        }
        out.push_str("}\n");
        if self.is_gathered() {
            let (fields, chunks) = (self.fields(), self.chunks());
            let _ = writeln!(
                out,
                "idx (*const {name}_sum)[{DEPTH}][{fields}]=(idx(*)[{DEPTH}][{fields}])(own+{});unsigned short {name}_held[{chunks}][{CHUNK}];",
                self.table
            );
        }
    }

    /// A condition: the element at place `at` of the side and the part `sum(guard)` of the sum may be touched.
    fn inside(&self, tiles: &Tiles<'_>, at: &str, sum: &dyn Fn(usize, usize) -> String) -> String {
        let name = self.names[0];
        let mut text = format!("{name}_in[{at}]");
        for (field, (number, _, size)) in self.shared_guards().enumerate() {
            let _ =
                write!(text, "&&{}", within(tiles, &format!("({name}_g{number}[{at}]+{})", sum(field, number)), size));
        }
        text
    }

    /// Statements that copy its tile at summed position `deep` to an address in shared memory.
    fn fetch(&self, out: &mut String, tiles: &Tiles<'_>, k: &[Axis], depth: i64, to: &str) {
        let (name, places) = (self.names[0], self.places());
        let (line, chunk) = self.spot();
        let own = if self.mode == Mode::Across { format!("deep+{line}") } else { format!("deep+({chunk})*{CHUNK}") };
        // Chunks of one row of the tile have one place in the sum where they are along it.
        let summed = |out: &mut String| {
            let _ = writeln!(out, "const int own_k={own},in_k=own_k<{depth}?own_k:0;");
            out.push_str(&decode(&tiles.names, k, "k", "in_k", Width::Narrow));
            let _ = write!(out, "const idx at_k={};", tiles.text(&self.at[1]));
            for (number, parts, _) in self.shared_guards() {
                let _ = write!(out, "const idx g{number}_k={};", tiles.text(&parts[1]));
            }
            out.push('\n');
        };
        let at = if places == 1 { "0" } else { "s" };
        let inside = self.inside(tiles, at, &|_, number| format!("g{number}_k"));
        out.push_str("{\n");
        if self.mode == Mode::Along {
            summed(out);
        }
        let _ = writeln!(out, "#pragma unroll\nfor(int s=0;s<{};++s){{", self.chunks());
        if self.mode == Mode::Across {
            summed(out);
        }
        let _ = writeln!(
            out,
            "const bool inside=own_k<{depth}&&{inside};
copy_chunk({to}+chunk_at<{}>({line},{chunk}),b{}+(inside?{name}_at[{at}]+at_k:0),inside);}}}}",
            self.across(),
            self.buffer
        );
    }

    /// Statements that put the summed parts of a step's positions and guards into shared memory, a thread a position.
    fn tabulate(&self, out: &mut String, tiles: &Tiles<'_>) {
        let name = self.names[0];
        let _ = write!(out, "{name}_sum[step%{RING}][threadIdx.x][0]={};", tiles.text(&self.at[1]));
        for (field, (_, parts, _)) in self.shared_guards().enumerate() {
            let _ = write!(out, "{name}_sum[step%{RING}][threadIdx.x][{}]={};", field + 1, tiles.text(&parts[1]));
        }
        out.push('\n');
    }

    /// Statements that load a step's elements into registers.
    fn hold(&self, out: &mut String, tiles: &Tiles<'_>, depth: i64) {
        let (name, chunks) = (self.names[0], self.chunks());
        let at = if self.places() == 1 { "0" } else { "s" };
        let (_, chunk) = self.spot();
        let inside = self.inside(tiles, at, &|field, _| format!("{name}_sum[step%{RING}][own_k][{}]", field + 1));
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int e=0;e<{CHUNK};++e)\n#pragma unroll\nfor(int s=0;s<{chunks};++s){{const int own_k=({chunk})*{CHUNK}+e;
{name}_held[s][e]=step*{DEPTH}+own_k<{depth}&&{inside}?b{}[{name}_at[{at}]+{name}_sum[step%{RING}][own_k][0]]:0;}}",
            self.buffer
        );
    }

    /// Statements that store the elements in registers to a place in shared memory.
    fn place(&self, out: &mut String, to: &str) {
        let (name, chunks) = (self.names[0], self.chunks());
        let (line, chunk) = self.spot();
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int s=0;s<{chunks};++s){{Wide<unsigned,4> w;
#pragma unroll\nfor(int e=0;e<4;++e)w.v[e]={name}_held[s][2*e]|(unsigned){name}_held[s][2*e+1]<<16;
*(Wide<unsigned,4>*)(own+{to}+chunk_at<{}>({line},{chunk}))=w;}}",
            self.across()
        );
    }
}

/// A condition: `0 ≤ expr < size`.
fn within(tiles: &Tiles<'_>, expr: &str, size: &Dim) -> String {
    let word = if tiles.width == Width::Narrow { "unsigned" } else { "unsigned long long" };
    format!("({word}){expr}<({word}){}", tiles.text(size))
}

fn write(tiles: &Tiles<'_>, operands: &[Operand<'_>; 2], k: &[Axis], depth: i64, dtype: DType, vectors: bool) -> Body {
    let (m_tiles, n_tiles) = tiles.fragments();
    let (lhs_bytes, stage) = tiles.stage_bytes();
    let steps = depth.div_euclid(DEPTH) + i64::from(depth % DEPTH > 0);
    let ahead = STAGES - 1;
    let gathered = || operands.iter().filter(|operand| operand.is_gathered());
    let has_gathered = gathered().next().is_some();
    let within_stage = |number: usize| if number == 0 { String::new() } else { format!("+{lhs_bytes}") };
    let mut out = String::new();
    tiles.open(&mut out);
    operands.iter().for_each(|operand| operand.declare_side(&mut out, tiles));
    let _ = writeln!(out, "auto fetch=[&](int step,unsigned to){{\nconst int deep=step*{DEPTH};");
    for (number, operand) in operands.iter().enumerate().filter(|(_, operand)| !operand.is_gathered()) {
        operand.fetch(&mut out, tiles, k, depth, &format!("to{}", within_stage(number)));
    }
    out.push_str("};\n");
    if has_gathered {
        let _ = writeln!(
            out,
            "auto tabulate=[&](int step){{if(threadIdx.x>={DEPTH}||step>={steps})return;
const int own_k=step*{DEPTH}+(int)threadIdx.x,in_k=own_k<{depth}?own_k:0;"
        );
        out.push_str(&decode(&tiles.names, k, "k", "in_k", Width::Narrow));
        gathered().for_each(|operand| operand.tabulate(&mut out, tiles));
        out.push_str("};\nauto hold=[&](int step){\n");
        gathered().for_each(|operand| operand.hold(&mut out, tiles, depth));
        out.push_str("};\nauto place=[&](int to){\n");
        for (number, operand) in operands.iter().enumerate().filter(|(_, operand)| operand.is_gathered()) {
            operand.place(&mut out, &format!("to{}", within_stage(number)));
        }
        out.push_str("};\n");
    }
    let when = |text: &str| if has_gathered { text.to_owned() } else { String::new() };
    let _ = writeln!(
        out,
        "float acc[{m_tiles}][{n_tiles}][4]={{}};\n__syncthreads();{}
#pragma unroll\nfor(int step=0;step<{ahead};++step){{if(step<{steps}){{fetch(step,shared+step*{stage});{}}}copies_commit();}}
for(int step=0;step<{steps};++step){{
copies_wait<{}>();\n__syncthreads();
const int later=step+{ahead},to=later%{STAGES}*{stage};
if(later<{steps}){{fetch(later,shared+to);{}}}\ncopies_commit();{}
const unsigned a_tile=shared+step%{STAGES}*{stage},b_tile=a_tile+{lhs_bytes};",
        when(&format!("\nfor(int step=0;step<={ahead};++step)tabulate(step);\n__syncthreads();")),
        when(&format!("hold(step);place(step*{stage});")),
        STAGES - 2,
        when("hold(later);"),
        when("\ntabulate(later+1);"),
    );
    tiles.multiply(&mut out, operands.each_ref().map(|operand| operand.mode != Mode::Across), dtype);
    let _ = writeln!(out, "{}}}", when(&format!("if(later<{steps})place(to);\n")));
    let mut aligned = tiles.finish(&mut out, vectors);
    aligned.extend(operands.iter().filter(|operand| !operand.is_gathered()).map(|operand| operand.buffer));
    Body {
        functions: vec![include_str!("tensor.cu")],
        threads: tiles.tile.threads() as u32,
        resident: if has_gathered { 1 } else { tiles.tile.resident() },
        aligned,
        ..Body::new(out, tiles.width, tiles.blocks())
    }
}
