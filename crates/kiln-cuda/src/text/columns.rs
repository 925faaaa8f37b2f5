//! Reductions of columns: rows of a matrix are read as they lie in memory, several neighbouring columns a thread and several rows
//! at a time. `X` threads are side by side along the columns of a block, and `Y` of them share each.
//!
//! ```text
//!  rows y, y + Y, … ──wide loads, a few rows ahead──▶ sums of L columns in registers ──shared memory──▶ a thread a column: the rest
//! ```

use super::loops::{Writer, accumulator};
use super::value::{Temps, combined};
use super::vector::Vector;
use super::{Body, THREADS, Way, ceil_div, decode};
use kiln_ir::Dim;
use kiln_kernels::kernel::{Access, Domain, Inst, InstKind, ReductionKind, Stage};
use std::fmt::Write;

/// Bytes that a thread asks for before it uses any.
const AHEAD: i64 = 128;
/// Rows that a thread asks for at once at the most.
const MOST_ROWS: i64 = 8;
/// Rows that are worth a text of this kind.
const ROWS: i64 = 16;
/// Threads that keep a multiprocessor's loads in flight.
const BUSY: i64 = 2048;

impl Writer<'_> {
    /// The body, if the loop reduces columns that are contiguous in memory, in one stage.
    pub(super) fn columns(&self, grid: &Dim, row: &Dim, way: Way) -> Option<Body> {
        let axis = self.body.grid.last().filter(|_| way.vectors)?;
        let mut rows = self.body.stages.iter().filter(|stage| stage.domain == Domain::Row);
        let (stage, None) = (rows.next()?, rows.next()) else { return None };
        let points = || self.body.stages.iter().filter(|stage| stage.domain == Domain::Point);
        let is_reduction = |kind: ReductionKind| matches!(kind, ReductionKind::Reduce(_));
        let is_plain = |inst: &Inst| match &inst.kind {
            InstKind::Load { place, .. } => self.kernel.buffers[place.buffer].access == Access::Read,
            InstKind::CheckIndex { .. } => false,
            _ => true,
        };
        let fits = !stage.reductions.is_empty()
            && stage.reductions.iter().all(|reduction| is_reduction(reduction.kind))
            && self.body.temps.is_empty()
            && stage.insts.iter().all(is_plain)
            && points().flat_map(|stage| &stage.insts).all(|inst| !matches!(inst.kind, InstKind::CheckIndex { .. }))
            && row.as_const().is_none_or(|row| row >= ROWS);
        if !fits {
            return None;
        }
        let lanes = Vector::choose(self.kernel, stage.insts.iter(), axis)?.lanes;
        let vector = Vector::of(self.kernel, stage.insts.iter(), axis, lanes);
        let mut vector = vector.with_same(self.kernel, stage.insts.iter(), axis);
        vector.suffix = "[u]";
        Some(self.columns_in(stage, &vector, grid, row))
    }

    fn columns_in(&self, stage: &Stage, vector: &Vector, grid: &Dim, row: &Dim) -> Body {
        let lanes = vector.lanes;
        let groups = grid.floor_div(&Dim::from(lanes));
        let y = sharing(groups.as_const().unwrap_or(BUSY), row.as_const().unwrap_or(1024));
        let x = i64::from(THREADS) / y;
        let columns = x * lanes;
        let ahead = (AHEAD / vector.bytes(self.kernel).max(1)).clamp(1, MOST_ROWS);
        let (count, points) = (self.names.text(&groups, self.width), self.names.text(grid, self.width));
        let length = self.names.text(row, self.width);
        let last = self.body.grid.len() - 1;
        let accumulators: Vec<(u32, String, String)> = stage
            .reductions
            .iter()
            .map(|reduction| {
                let (ty, identity) = accumulator(reduction);
                (reduction.result.0, ty, identity)
            })
            .collect();
        let mut out = format!(
            "const int sub=threadIdx.x%{x},lane=threadIdx.x/{x};
for(idx first=(idx)block*{x};first<{count};first+=(idx)blocks*{x}){{
const bool live=first+sub<{count};\nconst idx p=(live?first+sub:{count}-1)*{lanes};\n"
        );
        out.push_str(&decode(&self.names, &self.body.grid, "g", "p", self.width));
        let _ = writeln!(out, "const idx g_first=g{last};");
        for (number, ty, identity) in &accumulators {
            let _ = writeln!(
                out,
                "{ty} acc{number}[{lanes}];\n#pragma unroll\nfor(int e=0;e<{lanes};++e)acc{number}[e]={identity};"
            );
        }
        let _ = writeln!(out, "for(idx start=lane;start<{length};start+={}){{", y * ahead);
        let at_row = decode(&self.names, &self.body.row, "r", "begin", self.width);
        let plain = self.statements(None, Temps::Registers);
        let (declared, filled) = vector.streamed(&plain, stage.insts.iter(), &format!("[{ahead}]"), "");
        let each = format!(
            "#pragma unroll\nfor(int u=0;u<{ahead};++u){{const idx begin=start+u*{y};if(begin<{length}){{\n{at_row}"
        );
        let _ = writeln!(out, "{declared}\n{each}{filled}}}}}\n{each}");
        let stores = || stage.insts.iter().filter(|inst| matches!(inst.kind, InstKind::Store { .. }));
        out.push_str(&vector.begin(&plain, stores()));
        let _ = writeln!(out, "#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx g{last}=g_first+e;");
        let mut statements = self.statements(Some("live"), Temps::Registers);
        statements.vector = Some(vector);
        // What the columns have of their own is computed where it is used; stores of it come at the end.
        for before in self.body.stages.iter().take_while(|other| other.domain == Domain::Point) {
            let is_value = |inst: &&Inst| !matches!(inst.kind, InstKind::Store { .. });
            before.insts.iter().filter(is_value).for_each(|inst| statements.inst(inst));
        }
        statements.all(&stage.insts);
        out.push_str(&statements.out);
        for reduction in &stage.reductions {
            let ReductionKind::Reduce(kind) = reduction.kind else { continue };
            let own = format!("acc{}[e]", reduction.result.0);
            let sum = combined(kind, reduction.dtype, &own, &format!("v{}", reduction.value.0));
            let _ = writeln!(out, "{own}={sum};");
        }
        let _ = writeln!(out, "}}\n{}}}}}}}", vector.end(&plain, stores(), "if(live)"));
        for (reduction, (number, ty, _)) in stage.reductions.iter().zip(&accumulators) {
            let ReductionKind::Reduce(kind) = reduction.kind else { continue };
            let combine = combined(kind, reduction.dtype, "a", "b");
            let _ = writeln!(
                out,
                "const {ty} v{number}=down<{columns},{y},{lanes}>(acc{number},scratch,[]({ty} a,{ty} b)->{ty}{{return {combine};}});"
            );
        }
        let _ =
            writeln!(out, "const idx column=first*{lanes}+threadIdx.x;\nif(threadIdx.x<{columns}&&column<{points}){{");
        out.push_str(&decode(&self.names, &self.body.grid, "g", "column", self.width));
        let mut statements = self.statements(None, Temps::Registers);
        for point in self.body.stages.iter().filter(|stage| stage.domain == Domain::Point) {
            statements.all(&point.insts);
        }
        let _ = writeln!(out, "{}}}\n}}", statements.out);
        let functions = vec![include_str!("stream.cu"), include_str!("columns.cu")];
        let mut body = self.finished(functions, out, ceil_div(&groups, x));
        body.aligned = vector.buffers().collect();
        body.scratch = i64::from(THREADS) * lanes * 8;
        body
    }
}

/// Threads that share a column: more where there are few columns; a power of two.
fn sharing(groups: i64, rows: i64) -> i64 {
    let power = |n: i64| i64::try_from(n.max(1).unsigned_abs().next_power_of_two()).unwrap_or(1);
    let most = if groups * 16 < i64::from(THREADS) * super::MULTIPROCESSORS { 32 } else { 16 };
    power(super::MULTIPROCESSORS * BUSY / groups.max(1)).min(power(rows / 4)).clamp(2, most)
}
