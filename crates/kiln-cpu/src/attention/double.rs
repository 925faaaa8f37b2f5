//! Attention with an f64 operand: plain loops in f64, one row of queries at a time.

use super::geometry::{Geometry, View};
use crate::pool;
use half::{bf16, f16};
use kiln_ir::DType;

/// Runs a launch.
///
/// # Safety
/// The views reach only inside their buffers; nothing overlaps the result.
pub(super) unsafe fn run(scale: f64, g: &Geometry) {
    let rows = g.batch * g.heads * g.queries;
    let threads = pool::threads();
    let work = rows.saturating_mul(g.keys).saturating_mul(g.width + g.value_width);
    let chunks = if work < 1 << 16 { 1 } else { rows.min(threads * 4) };
    pool::run(chunks, threads, &|chunk| {
        let mut scores = vec![0f64; g.keys];
        let mut result = vec![0f64; g.value_width];
        for row in rows * chunk / chunks..rows * (chunk + 1) / chunks {
            let at = [row / (g.heads * g.queries), row / g.queries % g.heads, row % g.queries];
            // SAFETY: passed on from the caller; rows are disjoint.
            unsafe { attend(scale, g, at, &mut scores, &mut result) };
        }
    });
}

/// One row of the result.
unsafe fn attend(scale: f64, g: &Geometry, at: [usize; 3], scores: &mut [f64], result: &mut [f64]) {
    let [batch, head, query] = at;
    let kv_head = head / g.group;
    let visible = g.visible(query);
    let scores = &mut scores[..visible];
    // SAFETY: all elements are inside the views.
    unsafe {
        let q = g.q.row(at);
        for (key, score) in scores.iter_mut().enumerate() {
            let added = g.mask.as_ref().map_or(0.0, |mask| element(mask, mask.row(at), key));
            if added == f64::NEG_INFINITY {
                *score = added;
                continue;
            }
            let k = g.k.row([batch, kv_head, key]);
            let product: f64 = (0..g.width).map(|i| element(&g.q, q, i) * element(&g.k, k, i)).sum();
            *score = product * scale + added;
        }
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, |a, b| if a > b || a.is_nan() { a } else { b });
        result.fill(0.0);
        if top != f64::NEG_INFINITY {
            let mut sum = 0.0;
            // Hidden keys are not read.
            for (key, score) in scores.iter().enumerate().filter(|(_, score)| **score != f64::NEG_INFINITY) {
                let weight = (score - top).exp();
                sum += weight;
                let v = g.v.row([batch, kv_head, key]);
                for (i, result) in result.iter_mut().enumerate() {
                    *result += weight * element(&g.v, v, i);
                }
            }
            result.iter_mut().for_each(|result| *result /= sum);
        }
        let out = g.out.row(at);
        for (i, &value) in result.iter().enumerate() {
            let to = out.offset(i as isize * g.out.step() * g.out.size);
            match g.out.dtype {
                DType::F64 => to.cast::<f64>().write(value),
                DType::F32 => to.cast::<f32>().write(value as f32),
                DType::F16 => to.cast::<f16>().write(f16::from_f64(value)),
                DType::Bf16 => to.cast::<bf16>().write(bf16::from_f64(value)),
                other => unreachable!("{other} was refused by `Attention::new`"),
            }
        }
    }
}

/// Element `i` of a row; of a bool mask, the addend.
unsafe fn element(view: &View, row: *const u8, i: usize) -> f64 {
    // SAFETY: the element is inside the view and is of its type.
    unsafe {
        let at = row.offset(i as isize * view.step() * view.size);
        match view.dtype {
            DType::F64 => at.cast::<f64>().read(),
            dtype => f64::from(super::convert::element(dtype, at)),
        }
    }
}
