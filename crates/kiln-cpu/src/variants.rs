//! Which choices are worth measuring for a kernel at given sizes: from what it does now, one change at a time.

use crate::choices::Choices;
use crate::features::Isa;
use crate::matmul::Known;
use crate::pool;
use kiln_ir::Dim;
use kiln_kernels::kernel::{AttentionBody, Axis, Kernel, KernelBody, LoopBody, MatmulBody};

/// Multiply-adds, or points, beyond which one thread is never faster than several.
const SERIAL: i64 = 1 << 23;
/// Points of a row from which on a reduction can be taken in two kernels.
const ROW: i64 = 4096;
/// Rows of a product up to which its right operand may be streamed.
const STREAM_ROWS: i64 = 192;

/// Changes of `now`, each of one choice.
pub(crate) fn variants(isa: Isa, kernel: &Kernel, now: Choices, packed: bool, sizes: &[i64]) -> Vec<Choices> {
    let known = Known { symbols: &kernel.sizes, values: sizes };
    let found = match &kernel.body {
        KernelBody::Loop(body) => of_loop(isa, body, now, &known),
        KernelBody::Matmul(body) => of_product(isa, body, now, packed, &known),
        KernelBody::Attention(body) => of_attention(isa, body, now, &known),
        KernelBody::AttentionBackward(_) | KernelBody::Routine(_) => None,
        KernelBody::Repeat(_) | KernelBody::Parallel(_) => None,
    };
    let mut found = found.unwrap_or_default();
    found.retain(|choices| *choices != now);
    found
}

/// The number of points of some axes.
fn points(known: &Known<'_>, axes: &[Axis]) -> Option<i64> {
    axes.iter().try_fold(1i64, |n, axis| Some(n.saturating_mul(known.number(&axis.size).ok()?)))
}

/// Fewer threads where the work is small, and other cuts for several of them.
fn cuts(now: Choices, work: i64) -> Vec<Choices> {
    if pool::threads() < 2 {
        return Vec::new();
    }
    let mut found = Vec::new();
    if work <= SERIAL {
        found.push(Choices { threads: (now.threads != Some(1)).then_some(1), ..now });
    }
    if now.threads != Some(1) {
        found.extend([1, 2, 8].map(|tasks| Choices { tasks: Some(tasks), ..now }));
    }
    found
}

fn of_loop(isa: Isa, body: &LoopBody, now: Choices, known: &Known<'_>) -> Option<Vec<Choices>> {
    let (units, row) = (points(known, &body.grid)?, points(known, &body.row)?);
    if units == 0 || row == 0 {
        return None;
    }
    let mut found = cuts(now, units.saturating_mul(row));
    if isa != Isa::Portable {
        let copies: &[usize] = if body.row.is_empty() { &[2, 4] } else { &[1, 2, 8] };
        found.extend(copies.iter().map(|&copies| Choices { copies: Some(copies), ..now }));
    }
    let reduces = body.stages.iter().any(|stage| !stage.reductions.is_empty());
    if reduces && row >= ROW {
        found.extend([0, 1].map(|parts| Choices { parts: Some(parts), ..now }));
    }
    Some(found)
}

fn of_product(isa: Isa, body: &MatmulBody, now: Choices, packed: bool, known: &Known<'_>) -> Option<Vec<Choices>> {
    let (m, n, k) = (points(known, &body.m)?, points(known, &body.n)?, points(known, &body.k)?);
    let work = m.saturating_mul(n).saturating_mul(k);
    if work == 0 {
        return None;
    }
    let mut found = cuts(now, work);
    if isa != Isa::Portable {
        if !packed && m.min(n) <= STREAM_ROWS {
            found.extend([0, 1].map(|stream| Choices { stream: Some(stream), ..now }));
        }
        if !packed && m == 1 {
            found.extend([1, 8].map(|streams| Choices { streams: Some(streams), ..now }));
        }
        // The panel matters where K is cut at all.
        if k > 256 {
            found.extend([12, 32, 48].map(|panel| Choices { panel: Some(panel), ..now }));
        }
    }
    Some(found)
}

fn of_attention(isa: Isa, body: &AttentionBody, now: Choices, known: &Known<'_>) -> Option<Vec<Choices>> {
    let number = |dim: &Dim| known.number(dim).ok();
    let (queries, keys) = (number(&body.queries)?, number(&body.keys)?);
    let heads = number(&body.batch)?.saturating_mul(number(&body.heads)?);
    let width = number(&body.width)?.saturating_add(number(&body.value_width)?);
    let work = heads.saturating_mul(queries).saturating_mul(keys).saturating_mul(width);
    if work == 0 {
        return None;
    }
    let mut found = cuts(now, work);
    found.retain(|choices| choices.tasks.is_none());
    if queries > 16 && isa != Isa::Portable {
        found.extend([16, 32, 64].map(|rows| Choices { rows: Some(rows), ..now }));
    }
    if keys >= 256 {
        found.extend([128, 512, 1 << 20].map(|keys| Choices { keys: Some(keys), ..now }));
    }
    Some(found)
}
