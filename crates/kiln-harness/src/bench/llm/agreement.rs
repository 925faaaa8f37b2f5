//! Whether a side says what Kiln's eager mode says, with what rounding allows.
//!
//! All sides are fed the tokens of the eager mode, so that their logits are of the same texts; these may differ by a bound. Where
//! two logits of the eager mode are closer than the bound, another token is a tie that rounding decides, and not a mistake.

/// How far rounding may carry the logits of a dtype, of the largest one. Two ways of rounding to bf16 in 32 layers of random weights
/// differ by 7 % at the worst of eight million logits.
fn tolerance(dtype: &str) -> f64 {
    match dtype {
        "f32" => 1e-3,
        "f16" => 5e-2,
        _ => 1e-1,
    }
}

/// The logits of the eager mode, `[texts · positions, vocabulary]`.
pub struct Expected<'a> {
    logits: &'a [f32],
    vocabulary: usize,
    bound: f64,
}

/// How the logits of a side compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// The largest difference.
    pub error: f64,
    /// The largest that is allowed.
    pub bound: f64,
    /// Positions that were compared.
    pub positions: usize,
    /// Positions at which another token is the likeliest.
    pub other_choices: usize,
    /// Of these, positions at which that is no tie.
    pub mistakes: usize,
}

impl Found {
    /// Whether all differences are within what rounding allows.
    pub fn is_right(&self) -> bool {
        self.error <= self.bound && self.mistakes == 0
    }
}

/// How far logits are from those of float32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExactError {
    /// The root of the mean of the squares of the differences.
    pub rmse: f64,
    /// The largest difference.
    pub largest: f64,
    /// The root of the mean of the squares of the logits of float32.
    pub scale: f64,
}

impl ExactError {
    /// `None` where there is nothing to compare: a side without logits, or with those of other positions.
    pub fn of(logits: &[f32], exact: &[f32]) -> Option<ExactError> {
        if logits.is_empty() || logits.len() != exact.len() {
            return None;
        }
        let (mut squares, mut largest, mut own) = (0f64, 0f64, 0f64);
        for (logit, exact) in logits.iter().zip(exact) {
            let difference = f64::from(*logit) - f64::from(*exact);
            squares += difference * difference;
            // NaN is as far from a number as can be.
            largest = if difference.is_nan() { f64::INFINITY } else { largest.max(difference.abs()) };
            own += f64::from(*exact) * f64::from(*exact);
        }
        let root = |sum: f64| (sum / logits.len() as f64).sqrt();
        Some(ExactError { rmse: root(squares), largest, scale: root(own) })
    }
}

impl<'a> Expected<'a> {
    pub fn new(logits: &'a [f32], vocabulary: usize, dtype: &str) -> Expected<'a> {
        let largest = logits.iter().fold(1f32, |most, value| most.max(value.abs()));
        Expected { logits, vocabulary: vocabulary.max(1), bound: tolerance(dtype) * f64::from(largest) }
    }

    /// The logits of a side. Lists of unequal length have nothing in common.
    pub fn compare(&self, logits: &[f32]) -> Found {
        let positions = logits.len() / self.vocabulary;
        let mut found = Found { error: f64::INFINITY, bound: self.bound, positions, other_choices: 0, mistakes: 0 };
        if logits.len() != self.logits.len() {
            return found;
        }
        let pairs = logits.iter().zip(self.logits).map(|(a, b)| f64::from(*a) - f64::from(*b));
        // NaN against a number is no agreement.
        found.error = pairs.fold(0f64, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d.abs()) });
        for (position, row) in logits.chunks_exact(self.vocabulary).enumerate() {
            let choice = best(row);
            if choice != best(self.row(position)) {
                found.other_choices += 1;
                found.mistakes += usize::from(!self.is_tie(position, choice));
            }
        }
        found
    }

    /// Whether texts that a side made by itself are allowed: where each leaves that of the eager mode, the token it takes is as
    /// likely there, within the bound. What comes behind is another text. A place whose logits are not known is decided by
    /// `strict`.
    pub fn allows(&self, ids: &[Vec<u32>], right: &[Vec<u32>], strict: bool) -> bool {
        let positions = self.logits.len() / self.vocabulary / right.len().max(1);
        let leaves = |(text, (ids, right)): (usize, (&Vec<u32>, &Vec<u32>))| match ids
            .iter()
            .zip(right)
            .position(|(a, b)| a != b)
        {
            Some(at) if at < positions => self.is_tie(text * positions + at, ids[at] as usize),
            Some(_) => !strict,
            None => ids.len() == right.len(),
        };
        ids.len() == right.len() && ids.iter().zip(right).enumerate().all(leaves)
    }

    fn row(&self, position: usize) -> &[f32] {
        &self.logits[position * self.vocabulary..][..self.vocabulary]
    }

    /// Whether a token is as likely as the likeliest one, within the bound.
    fn is_tie(&self, position: usize, token: usize) -> bool {
        let row = self.row(position);
        row.get(token).is_some_and(|&logit| f64::from(row[best(row)]) - f64::from(logit) <= self.bound)
    }
}

/// The likeliest token, the first of equals.
fn best(row: &[f32]) -> usize {
    let better = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
    (1..row.len()).fold(0, better)
}

/// Leading tokens that agree, over all texts, and how many there are.
pub fn agreeing(ids: &[Vec<u32>], right: &[Vec<u32>]) -> (usize, usize) {
    let all = right.iter().map(Vec::len).sum();
    let leading = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    (ids.iter().zip(right).map(leading).sum(), all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two positions of three tokens: a clear choice, and a near tie. The bound of f16 is 0.5.
    const EAGER: [f32; 6] = [10.0, 2.0, 1.0, 5.0, 4.8, 1.0];

    #[test]
    fn a_tie_is_no_mistake_and_a_clear_choice_is() {
        let expected = Expected::new(&EAGER, 3, "f16");
        let same = expected.compare(&EAGER);
        assert_eq!((same.error, same.bound, same.positions, same.other_choices), (0.0, 0.5, 2, 0));
        assert!(same.is_right());
        let tie = expected.compare(&[10.0, 2.0, 1.0, 4.9, 5.0, 1.0]);
        assert_eq!((tie.other_choices, tie.mistakes), (1, 0));
        assert!(tie.is_right());
        // The same logits in f32 are not the same.
        assert!(!Expected::new(&EAGER, 3, "f32").compare(&[10.0, 2.0, 1.0, 4.9, 5.0, 1.0]).is_right());
        let wrong = expected.compare(&[2.0, 10.0, 1.0, 5.0, 4.8, 1.0]);
        assert_eq!((wrong.error, wrong.mistakes), (8.0, 1));
        assert!(!wrong.is_right());
        assert!(!expected.compare(&[10.0, f32::NAN, 1.0, 5.0, 4.8, 1.0]).is_right());
        assert!(!expected.compare(&EAGER[..3]).is_right());
    }

    #[test]
    fn texts_may_part_at_a_tie_only() {
        let expected = Expected::new(&EAGER, 3, "f16");
        let right = [vec![0, 0, 2, 1]];
        assert!(expected.allows(&right, &right, true));
        assert!(expected.allows(&[vec![0, 1, 7, 7]], &right, true), "a tie at the second token");
        assert!(!expected.allows(&[vec![0, 2, 7, 7]], &right, true), "no tie");
        assert!(!expected.allows(&[vec![1, 0, 2, 1]], &right, false), "a clear choice");
        assert!(!expected.allows(&[vec![0, 0, 7, 7]], &right, true), "nothing is known of the third");
        assert!(expected.allows(&[vec![0, 0, 7, 7]], &right, false));
        assert!(!expected.allows(&[vec![0, 0]], &right, false) && !expected.allows(&[], &right, false));
    }

    #[test]
    fn leading_tokens_are_counted() {
        assert_eq!(agreeing(&[vec![1, 2, 9], vec![4]], &[vec![1, 2, 3], vec![4]]), (3, 4));
    }

    #[test]
    fn an_error_is_that_of_all_logits() {
        let error = ExactError::of(&[1.0, 2.0, 3.0, 5.0], &[1.0, 2.0, 3.0, 3.0]).unwrap();
        assert_eq!((error.rmse, error.largest), (1.0, 2.0));
        assert_eq!(ExactError::of(&[f32::NAN, 0.0], &[1.0, 0.0]).unwrap().largest, f64::INFINITY);
        assert_eq!(ExactError::of(&[], &[]), None);
        assert_eq!(ExactError::of(&[1.0], &[1.0, 2.0]), None);
    }
}
