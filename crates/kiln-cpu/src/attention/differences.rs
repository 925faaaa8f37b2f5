//! Weights and their gradients from scores, element by element over a tile [key][query].

use super::convert::vectorised;
use super::exponential::exponential;
use crate::features::Isa;

/// The largest argument whose power is finite.
const MOST: f32 = 88.722_83;

vectorised! {
    /// scores = exp(factor · scores − logsumexp); 0 where a key is hidden, whose score is −∞.
    fn weights(scores: *mut f32, factor: f32, logsumexp: &[f32], keys: usize, stride: usize) {
        for key in 0..keys {
            // SAFETY: there is a row of scores for each key, no shorter than the logarithms.
            let row = unsafe { std::slice::from_raw_parts_mut(scores.add(key * stride), logsumexp.len()) };
            for (score, &logarithm) in row.iter_mut().zip(logsumexp) {
                *score = weight(*score, factor, logarithm);
            }
        }
    }
}

#[inline(always)]
fn weight(score: f32, factor: f32, logarithm: f32) -> f32 {
    let x = score * factor - logarithm;
    let power = exponential(x);
    let power = if x > MOST { f32::INFINITY } else { power };
    // A hidden row's logarithm is −∞ too, and the difference no number.
    if score == f32::NEG_INFINITY { 0.0 } else { power }
}

vectorised! {
    /// products = scale · weights · (products − delta); 0 where the weight is, whatever the product is.
    fn differences(products: *mut f32, weights: *const f32, scale: f32, delta: &[f32], keys: usize, stride: usize) {
        for key in 0..keys {
            // SAFETY: there are rows of products and weights for each key, no shorter than `delta`.
            let (products, weights) = unsafe {
                let products = std::slice::from_raw_parts_mut(products.add(key * stride), delta.len());
                (products, std::slice::from_raw_parts(weights.add(key * stride), delta.len()))
            };
            for ((product, &weight), &delta) in products.iter_mut().zip(weights).zip(delta) {
                let difference = weight * (*product - delta) * scale;
                *product = if weight == 0.0 { 0.0 } else { difference };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_powers_of_differences() {
        for isa in Isa::available() {
            let logsumexp = [0.0, 1.5, f32::NEG_INFINITY, -3.0];
            let hidden = f32::NEG_INFINITY;
            let mut scores = [0.0, 0.5, hidden, -2.0, hidden, hidden, hidden, 200.0, f32::NAN, -400.0, 1.0, 0.0];
            // SAFETY: three rows of four.
            unsafe { weights(isa, scores.as_mut_ptr(), 2.0, &logsumexp, 3, 4) };
            let wanted = [1.0, (-0.5f32).exp(), 0.0, (-1f32).exp(), 0.0, 0.0, 0.0, f32::INFINITY];
            for (got, want) in scores.iter().zip(wanted) {
                assert!(*got == want || (got - want).abs() < 1e-6, "{isa:?}: {got} {want}");
            }
            assert!(scores[8].is_nan() && scores[9] == 0.0 && scores[10] == f32::INFINITY, "{isa:?}");
        }
    }

    #[test]
    fn a_hidden_key_has_no_gradient() {
        for isa in Isa::available() {
            let mut products = [f32::NAN, 3.0, f32::INFINITY, 5.0];
            // SAFETY: one row of four.
            unsafe { differences(isa, products.as_mut_ptr(), [0.0, 0.5, 0.0, 1.0].as_ptr(), 2.0, &[1.0; 4], 1, 4) };
            assert_eq!(products, [0.0, 2.0, 0.0, 8.0], "{isa:?}");
        }
    }
}
