//! Keys that a mask hides: tiles without a visible key are not read, and their contents do not change the result.

use super::tensor::{Layout, Tensor, encode, noise};
use super::{Case, FLOATS, Sizes, case};
use kiln_cpu::features::Isa;
use kiln_ir::DType;
use std::ops::Range;

/// The visible keys of a query of a batch.
pub type Rule = fn(batch: usize, query: usize, queries: usize) -> Range<usize>;

/// A position in a cache, one for each row of the batch; the second row has seen nothing yet.
pub const POSITIONS: Rule =
    |batch, query, _| 0..[130, 0, 7, 611][batch % 4] + if batch % 4 == 1 { 0 } else { query + 1 };
/// The last few before a position.
const WINDOW: Rule = |batch, query, _| 300 + 7 * batch + query..371 + 90 * batch + query;
/// Everything.
const ALL: Rule = |_, _, _| 0..700;

const SHAPES: [Sizes; 6] = [
    [4, 2, 2, 1, 700, 64, 64],
    [3, 6, 2, 1, 700, 48, 40],
    [2, 3, 1, 3, 700, 32, 32],
    [4, 4, 2, 21, 700, 16, 16],
    [2, 2, 2, 70, 700, 33, 31],
    [2, 2, 1, 1, 700, 128, 64],
];

/// The case under a mask; the mask's heads are one where `broadcast`.
pub fn masked(sizes: Sizes, dtype: DType, mask: DType, rule: Rule, low: f64, broadcast: bool) -> Case {
    let [b, h, _, t, s, ..] = sizes;
    let mut case = case(sizes, dtype, Layout::Packed);
    let heads = if broadcast { 1 } else { h };
    let values: Vec<f64> = (0..b * heads * t * s)
        .map(|i| match (rule(i / (heads * t * s), i / s % t, t).contains(&(i % s)), mask) {
            (seen, DType::Bool) => f64::from(seen),
            (true, _) => 0.0,
            (false, _) => low,
        })
        .collect();
    let mut values = values.into_iter();
    let mut tensor = Tensor::new(mask, [b, heads, t, s], Layout::Packed, || values.next().unwrap());
    if broadcast {
        let one = t * s;
        tensor.values = (0..b * h).flat_map(|i| tensor.values[i / h * one..][..one].to_vec()).collect();
        (tensor.shape, tensor.strides[1]) = ([b, h, t, s], 0);
    }
    case.mask = Some(tensor);
    case
}

/// Fills the memory of keys and values that are not visible to any query of a batch with NaN.
fn poison(case: &mut Case, rule: Rule) {
    let t = case.q.shape[2];
    for tensor in [&mut case.k, &mut case.v] {
        let [_, g, s, d] = tensor.shape;
        let bad = encode(tensor.dtype, f64::NAN);
        for i in 0..tensor.values.len() {
            let (batch, key) = (i / (g * s * d), i / d % s);
            let seen = (0..t).map(|query| rule(batch, query, t)).filter(|seen| !seen.is_empty());
            let (start, end) = seen.fold((s, 0), |(a, b), seen| (a.min(seen.start), b.max(seen.end)));
            if key >= end || key + 16 <= start {
                let at = tensor.at(i);
                tensor.bytes[at..at + bad.len()].copy_from_slice(&bad);
            }
        }
    }
}

#[test]
fn hidden_keys_may_hold_anything() {
    for sizes in SHAPES {
        for dtype in FLOATS {
            for mask in [DType::Bool, DType::F32, dtype] {
                for (name, rule) in [("positions", POSITIONS), ("window", WINDOW)] {
                    for broadcast in [false, true] {
                        let mut case = masked(sizes, dtype, mask, rule, f64::NEG_INFINITY, broadcast);
                        poison(&mut case, rule);
                        case.causal = name == "window" && sizes[3] == 3;
                        case.check(&format!("{name}, {dtype}, mask {mask}, {sizes:?}"));
                    }
                }
            }
        }
    }
}

#[test]
fn skipping_changes_no_bit() {
    // A weight of e^−1e30 is 0 as well, but such keys are not skipped.
    for sizes in SHAPES {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for (name, rule) in [("positions", POSITIONS), ("window", WINDOW), ("all", ALL)] {
                for isa in Isa::available() {
                    let skipped = masked(sizes, dtype, DType::F32, rule, f64::NEG_INFINITY, true).run(isa);
                    let bools = masked(sizes, dtype, DType::Bool, rule, 0.0, true).run(isa);
                    let mut dense = masked(sizes, dtype, DType::F32, rule, -1e30, true).run(isa);
                    if name == "positions" {
                        // Without −∞ a row without visible keys is a mean of everything.
                        let row = dense.len() / sizes[0];
                        for batch in (1..sizes[0]).step_by(4) {
                            dense[batch * row..(batch + 1) * row].fill(0.0);
                        }
                    }
                    for (what, other) in [("dense", &dense), ("bools", &bools)] {
                        let differs = skipped.iter().zip(other).position(|(a, b)| a != b);
                        assert_eq!(differs, None, "{name} of {sizes:?}, {dtype} on {isa:?}: skipped and {what}");
                    }
                }
            }
        }
    }
}

#[test]
fn neither_threads_nor_neighbours_change_a_row() {
    let (sizes, alone): (Sizes, Sizes) = ([4, 6, 2, 1, 700, 64, 64], [1, 6, 2, 1, 700, 64, 64]);
    let rule: Rule = |batch, _, _| 0..[1, 131, 400, 640][batch];
    let mut whole = masked(sizes, DType::F32, DType::Bool, rule, 0.0, true);
    let mut first: Option<Vec<f64>> = None;
    for threads in [1, 2, 5] {
        kiln_cpu::pool::set_threads(threads);
        let got = whole.run(Isa::get());
        assert!(*first.get_or_insert_with(|| got.clone()) == got, "{threads} threads");
    }
    kiln_cpu::pool::set_threads(0);
    let together = first.unwrap();
    for batch in 0..sizes[0] {
        let mut one = case(alone, DType::F32, Layout::Packed);
        for (to, from) in [(&mut one.q, &whole.q), (&mut one.k, &whole.k), (&mut one.v, &whole.v)] {
            let count = to.values.len();
            let mut values = from.values[batch * count..][..count].iter().copied();
            *to = Tensor::new(to.dtype, to.shape, Layout::Packed, || values.next().unwrap());
        }
        let mut key = 0;
        let mut mask = Tensor::new(DType::Bool, [1, 1, 1, 700], Layout::Packed, || {
            key += 1;
            f64::from(rule(batch, 0, 1).contains(&(key - 1)))
        });
        (mask.shape, mask.strides[1]) = ([1, 6, 1, 700], 0);
        one.mask = Some(mask);
        let got = one.run(Isa::get());
        assert!(got == together[batch * got.len()..][..got.len()], "row {batch} alone");
    }
}

#[test]
fn holes_in_a_mask_are_kept() {
    let mut random = noise(17);
    for sizes in SHAPES {
        let [b, h, _, t, s, ..] = sizes;
        for dtype in FLOATS {
            let mut case = case(sizes, dtype, Layout::Packed);
            // Whole stretches without a key, and single ones.
            let mut stretch = 0.0;
            let mut at = 0;
            let mask = Tensor::new(DType::Bool, [b, h, t, s], Layout::Packed, || {
                if at % 97 == 0 {
                    stretch = random();
                }
                at += 1;
                f64::from(stretch > 0.5 && random() > -1.5)
            });
            case.mask = Some(mask);
            case.check(&format!("holes, {dtype}, {sizes:?}"));
        }
    }
}
