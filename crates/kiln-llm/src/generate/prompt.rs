//! How prompts go through the model: in parts, each filled up to one of a few sizes, from where the cache ends.

use super::programs::Prompt;
use super::{GeneratorOptions, Padding};
use crate::sample::Rule;
use crate::{KvCache, Result};
use kiln::{Device, Tensor};

/// The smallest part.
const SMALLEST_BUCKET: usize = 16;

/// The parts in which tokens behind those that are held are read, as (start, bucket): whole ones, and a power of two for the
/// rest. Where that would reach beyond the context it begins earlier, at tokens that are read again, for what ends there is no
/// reason to have a program of its own.
pub(crate) fn parts(held: usize, tokens: usize, largest: usize, context: usize) -> Vec<(usize, usize)> {
    let whole = (tokens - held).saturating_sub(1) / largest;
    let mut parts: Vec<(usize, usize)> = (0..whole).map(|part| (held + part * largest, largest)).collect();
    let start = held + whole * largest;
    let bucket = (tokens - start).next_power_of_two().max(SMALLEST_BUCKET).min(largest).min(context);
    parts.push((start.min(context - bucket), bucket));
    parts
}

/// How many tokens of a prompt need not be read where the cache holds others: what both begin with, less the last token, after
/// which the next one is chosen; none where positions turn otherwise in a text as long as the prompt.
pub(super) fn reusable(cache: &KvCache, held: &[u32], prompt: &[u32]) -> usize {
    if cache.borders_before(held.len()) != cache.borders_before(prompt.len()) {
        return 0;
    }
    common(held, prompt)
}

fn common(held: &[u32], prompt: &[u32]) -> usize {
    let same = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    same.min(prompt.len().saturating_sub(1))
}

/// The prompts of a batch behind the tokens that the cache holds of each, cut into parts and filled up; and how many tokens
/// before them are not read.
pub(super) fn prompts(
    rows: usize,
    texts: &[&[u32]],
    held: usize,
    rule: Rule,
    options: &GeneratorOptions,
    device: Device,
) -> Result<(Vec<Prompt>, usize)> {
    let longest = texts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let parts = parts(held, longest, options.prefill, options.context);
    let (first, end) = (parts.first().map_or(0, |part| part.0), parts.last().map_or(0, |part| part.0 + part.1));
    // The last part has to hold the ends of all of them.
    let left = rows > 1 && (options.padding == Padding::Left || parts.len() > 1);
    let length = |row: usize| texts.get(row).map_or(1, |prompt| prompt.len());
    let pad = |row: usize| if left { end - length(row) } else { 0 };
    let pads: Vec<i64> = (0..rows).map(|row| pad(row) as i64).collect();
    let part = |(start, bucket): (usize, usize)| {
        let mut tokens = vec![0i64; rows * bucket];
        for (row, (prompt, tokens)) in texts.iter().zip(tokens.chunks_mut(bucket)).enumerate() {
            for (column, token) in tokens.iter_mut().enumerate() {
                let at = (start + column).checked_sub(pad(row));
                *token = at.and_then(|at| prompt.get(at)).map_or(0, |&token| token.into());
            }
        }
        let last = |row: usize| (row * bucket + (pad(row) + length(row) - 1).saturating_sub(start)) as i64;
        Ok(Prompt {
            tokens: Tensor::from_vec(tokens, [rows, bucket], device)?,
            start: Tensor::from_vec(vec![start as i64], 1, device)?,
            pads: Tensor::from_vec(pads.clone(), [rows, 1], device)?,
            last: Tensor::from_vec((0..rows).map(last).collect::<Vec<i64>>(), rows, device)?,
            lengths: Tensor::from_vec(
                (0..rows).map(|row| length(row) as i64).collect::<Vec<i64>>(),
                [rows, 1],
                device,
            )?,
            rule,
        })
    };
    let parts: Result<Vec<Prompt>> = parts.into_iter().map(part).collect();
    Ok((parts?, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is held, all that is not is read, in its order, within the context, in few sizes.
    #[test]
    fn parts_cover_what_is_not_held() {
        for (largest, context) in [(512, 600), (64, 200), (100, 100), (16, 40), (3, 10), (512, 7)] {
            for tokens in 1..=context {
                for held in 0..tokens {
                    let parts = parts(held, tokens, largest, context);
                    let (mut next, last) = (held, parts.len() - 1);
                    for (index, &(start, bucket)) in parts.iter().enumerate() {
                        assert!(start <= next && start + bucket <= context && bucket <= largest, "{parts:?}");
                        assert!(index == last || (start, bucket) == (next, largest), "{parts:?}");
                        next = start + bucket;
                        let sizes = [largest, context];
                        assert!(bucket.is_power_of_two() || sizes.contains(&bucket), "{parts:?}");
                    }
                    assert!(next >= tokens, "{parts:?}");
                }
            }
        }
    }

    #[test]
    fn the_last_token_is_always_read() {
        assert_eq!(common(&[1, 2, 3], &[1, 2, 3, 4]), 3);
        assert_eq!(common(&[1, 2, 3, 4], &[1, 2, 3]), 2);
        assert_eq!(common(&[1, 2, 3], &[1, 5, 3]), 1);
        assert_eq!(common(&[], &[1]), 0);
    }
}
