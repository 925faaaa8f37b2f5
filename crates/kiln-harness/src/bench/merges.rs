//! Byte-pair merges of a word as a `while_loop`: the pair of the lowest rank is merged until no pair has one.

use kiln::{DType, Device, Result, Tensor};

/// Places of a word.
const PLACES: i64 = 48;
/// Symbols of the alphabet, merged ones among them.
const SYMBOLS: i64 = 64;
/// The rank of pairs that are not merged.
const NONE: i64 = 300;

/// Symbols of a word, how many these are, and the rank of each with the one behind it.
type State = (Tensor, Tensor, Tensor);

/// A word: its symbols, and how many these are.
type Word = (Tensor, Tensor);

/// What is known of pairs: ranks, and what they are merged into.
struct Table {
    ranks: Tensor,
    merged: Tensor,
}

fn count_to(end: i64) -> Result<Tensor> {
    Tensor::arange(end, DType::I64, Device::Cpu)
}

/// The words that are merged: symbols, and how many of them there are.
pub fn words(count: i64) -> Result<Vec<Word>> {
    let word = |word: i64| {
        let symbols: Vec<i64> =
            (0..PLACES).map(|place| (word * 31 + place * (place * 7 + word * 5)) % SYMBOLS).collect();
        let length = 16 + word % (PLACES - 15);
        Ok((Tensor::from_vec(symbols, PLACES as usize, Device::Cpu)?, Tensor::new(length, Device::Cpu)?))
    };
    (0..count).map(word).collect()
}

/// Merges the pairs of a word; the symbols that are left, and how many.
pub fn merge() -> Result<impl Fn(&Word) -> Result<Word>> {
    let pairs = || (0..SYMBOLS * SYMBOLS).map(|pair| (pair / SYMBOLS, pair % SYMBOLS));
    let ranks: Vec<i64> = pairs().map(|(a, b)| ((a * 37 + b * 101 + a * b * 13) % 1009).min(NONE)).collect();
    let merged: Vec<i64> = pairs().map(|(a, b)| (a * 7 + b * 3 + 1) % SYMBOLS).collect();
    let table = |list: Vec<i64>| Tensor::from_vec(list, (SYMBOLS * SYMBOLS) as usize, Device::Cpu);
    let (ranks, merged) = (table(ranks)?, table(merged)?);
    let table = Table { ranks: ranks.clone(), merged };
    let merges = kiln::while_loop(
        |(_, _, ranks): &State| ranks.amin(..)?.lt(NONE),
        move |(symbols, length, ranks): &State| table.step(symbols, length, ranks),
    );
    Ok(move |(symbols, length): &Word| {
        let first = ranked(&ranks, symbols, length)?;
        let (symbols, length, _) = merges.call((symbols.clone(), length.clone(), first))?;
        Ok((symbols, length))
    })
}

/// Each symbol with the one behind it, as a number.
fn pairs(symbols: &Tensor) -> Result<Tensor> {
    symbols.mul(SYMBOLS)?.add(symbols.roll(-1, 0)?)
}

/// The ranks of the pairs of a word.
fn ranked(ranks: &Tensor, symbols: &Tensor, length: &Tensor) -> Result<Tensor> {
    let is_pair = count_to(PLACES)?.add(1)?.lt(length)?;
    is_pair.where_(ranks.index_select(0, &pairs(symbols)?)?, NONE)
}

impl Table {
    /// Merges the first pair of the lowest rank.
    fn step(&self, symbols: &Tensor, length: &Tensor, ranks: &Tensor) -> Result<State> {
        let (places, place) = (count_to(PLACES)?, ranks.argmin(0)?);
        let merged = self.merged.index_select(0, &pairs(symbols)?)?;
        let rest = places.eq(&place)?.where_(merged, symbols.roll(-1, 0)?)?;
        let (symbols, length) = (places.lt(&place)?.where_(symbols, rest)?, length.sub(1)?);
        let ranks = ranked(&self.ranks, &symbols, &length)?;
        Ok((symbols, length, ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same on lists.
    fn by_hand(mut symbols: Vec<i64>) -> Vec<i64> {
        loop {
            let rank = |pair: &[i64]| (pair[0] * 37 + pair[1] * 101 + pair[0] * pair[1] * 13) % 1009;
            let best = symbols.windows(2).enumerate().map(|(place, pair)| (rank(pair), place)).min();
            let Some((_, place)) = best.filter(|(rank, _)| *rank < NONE) else { return symbols };
            let second = symbols.remove(place + 1);
            symbols[place] = (symbols[place] * 7 + second * 3 + 1) % SYMBOLS;
        }
    }

    #[test]
    fn merges_as_lists_do() {
        let merge = merge().unwrap();
        let fast = kiln::compile(&merge);
        let mut turns = 0;
        for word in words(64).unwrap() {
            let length = word.1.item::<i64>().unwrap() as usize;
            let expected = by_hand(word.0.to_vec::<i64>().unwrap()[..length].to_vec());
            turns += length - expected.len();
            for (symbols, length) in [merge(&word).unwrap(), fast.call(&word).unwrap()] {
                let length = length.item::<i64>().unwrap() as usize;
                assert_eq!(symbols.to_vec::<i64>().unwrap()[..length], expected);
            }
        }
        assert!(turns > 64 * 8, "{turns} turns are too few to measure");
        assert_eq!((fast.stats().programs, fast.stats().breaks), (1, 0));
    }
}
