//! Attention with an f64 operand, and its gradients: plain loops in f64, one row of queries at a time.

use super::backward::Gradients;
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

/// Runs a launch of gradients; a task has all rows of queries that share a key head.
///
/// # Safety
/// The views reach only inside their buffers; nothing overlaps the results.
pub(super) unsafe fn gradients(scale: f64, g: &Geometry, of: &Gradients) {
    pool::run(g.batch * g.kv_heads, pool::threads(), &|group| {
        let (batch, kv_head) = (group / g.kv_heads, group % g.kv_heads);
        let (mut dk, mut dv) = (vec![0f64; g.keys * g.width], vec![0f64; g.keys * g.value_width]);
        let mut dq = vec![0f64; g.width];
        for row in 0..g.group_rows() {
            let (head, query) = g.place(kv_head, row);
            let at = [batch, head, query];
            dq.fill(0.0);
            // SAFETY: passed on from the caller; rows and groups are disjoint.
            unsafe {
                let (q, gradient, delta) = (g.q.row(at), g.out.row(at), element(&of.delta, of.delta.row(at), 0));
                let logsumexp = g.logsumexp.map_or(0.0, |view| element(&view, view.row(at), 0));
                for key in 0..g.visible(query) {
                    let k = g.k.row([batch, kv_head, key]);
                    let score = score(scale, g, at, (q, k), key);
                    if score == f64::NEG_INFINITY {
                        continue;
                    }
                    let weight = (score - logsumexp).exp();
                    let v = g.v.row([batch, kv_head, key]);
                    let mut product = 0.0;
                    for i in 0..g.value_width {
                        let of_result = element(&g.out, gradient, i);
                        dv[key * g.value_width + i] += weight * of_result;
                        product += of_result * element(&g.v, v, i);
                    }
                    let difference = scale * weight * (product - delta);
                    for i in 0..g.width {
                        dq[i] += difference * element(&g.k, k, i);
                        dk[key * g.width + i] += difference * element(&g.q, q, i);
                    }
                }
                if let Some(view) = &of.queries {
                    dq.iter().enumerate().for_each(|(i, &value)| write(view, view.row(at), i, value));
                }
            }
        }
        for (view, sums, width) in [(&of.keys, &dk, g.width), (&of.values, &dv, g.value_width)] {
            let Some(view) = view else { continue };
            for (at, &value) in sums.iter().enumerate() {
                // SAFETY: the rows are this group's.
                unsafe { write(view, view.row([batch, kv_head, at / width]), at % width, value) };
            }
        }
    });
}

/// The score of a key, −∞ where the mask hides it.
unsafe fn score(scale: f64, g: &Geometry, at: [usize; 3], (q, k): (*const u8, *const u8), key: usize) -> f64 {
    // SAFETY: all elements are inside the views.
    unsafe {
        let added = g.mask.as_ref().map_or(0.0, |mask| element(mask, mask.row(at), key));
        if added == f64::NEG_INFINITY {
            return added;
        }
        let product: f64 = (0..g.width).map(|i| element(&g.q, q, i) * element(&g.k, k, i)).sum();
        product * scale + added
    }
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
            *score = self::score(scale, g, at, (q, g.k.row([batch, kv_head, key])), key);
        }
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, |a, b| if a > b || a.is_nan() { a } else { b });
        result.fill(0.0);
        let mut sum = 0.0;
        if top != f64::NEG_INFINITY {
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
            write(&g.out, out, i, value);
        }
        if let Some(view) = &g.logsumexp {
            // Without visible keys the largest is −∞, and so is its logarithm.
            let logarithm = if top == f64::NEG_INFINITY { top } else { top + sum.ln() };
            write(view, view.row(at), 0, logarithm);
        }
    }
}

/// Writes element `i` of a row.
///
/// # Safety
/// The element is inside the view and is of its type.
pub(super) unsafe fn write(view: &View, row: *mut u8, i: usize, value: f64) {
    let to = row.wrapping_offset(i as isize * view.step() * view.size);
    // SAFETY: the caller's promise.
    unsafe {
        match view.dtype {
            DType::F64 => to.cast::<f64>().write(value),
            DType::F32 => to.cast::<f32>().write(value as f32),
            DType::F16 => to.cast::<f16>().write(f16::from_f64(value)),
            DType::Bf16 => to.cast::<bf16>().write(bf16::from_f64(value)),
            other => unreachable!("{other} was refused when the kernel was made"),
        }
    }
}

/// Element `i` of a row; of a bool mask, the addend.
///
/// # Safety
/// The element is inside the view and is of its type.
pub(super) unsafe fn element(view: &View, row: *const u8, i: usize) -> f64 {
    // SAFETY: the element is inside the view and is of its type.
    unsafe {
        let at = row.offset(i as isize * view.step() * view.size);
        match view.dtype {
            DType::F64 => at.cast::<f64>().read(),
            dtype => f64::from(super::convert::element(dtype, at)),
        }
    }
}
