//! What a list of samples says: nothing is thrown away, and a list that varies too much is called so.

use serde_json::{Value, json};

/// Above this part of the mean, a standard deviation is worth a warning.
pub const VARIATION: f64 = 0.05;

/// Samples of one side, in milliseconds, in the order they were taken.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    ms: Vec<f64>,
}

/// What is told of samples, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// Samples.
    pub count: usize,
    /// Fastest.
    pub min: f64,
    /// Slowest.
    pub max: f64,
    /// Average.
    pub mean: f64,
    /// Standard deviation of all the samples.
    pub std: f64,
    /// Half of them are faster.
    pub median: f64,
    /// Nine of ten are faster.
    pub p90: f64,
    /// Ninety-nine of a hundred are faster.
    pub p99: f64,
}

impl Samples {
    /// Adds samples of a turn.
    pub fn extend(&mut self, ms: impl IntoIterator<Item = f64>) {
        self.ms.extend(ms.into_iter().filter(|sample| sample.is_finite()));
    }

    /// In the order they were taken.
    pub fn in_order(&self) -> &[f64] {
        &self.ms
    }

    /// In order of size.
    pub fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.ms.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.ms.len()
    }

    /// What they say; `None` of no samples.
    pub fn statistics(&self) -> Option<Statistics> {
        let sorted = self.sorted();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let variance = sorted.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / count as f64;
        Some(Statistics {
            count,
            min,
            max,
            mean,
            std: variance.sqrt(),
            median: percentile(&sorted, 0.5),
            p90: percentile(&sorted, 0.9),
            p99: percentile(&sorted, 0.99),
        })
    }
}

/// Returns the percentile (0..=1) of sorted samples by linear interpolation; NaN without samples.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = part.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

impl Statistics {
    /// The standard deviation as a part of the mean.
    pub fn variation(&self) -> f64 {
        if self.mean > 0.0 { self.std / self.mean } else { 0.0 }
    }

    /// What to say of samples that vary too much to quote without a word.
    pub fn warning(&self) -> Option<String> {
        let variation = self.variation();
        (variation > VARIATION).then(|| format!("varies by {:.0} % of the mean", variation * 100.0))
    }

    /// Puts the figures into a JSON line.
    pub fn write(&self, line: &mut Value) {
        for (name, value) in [
            ("median_ms", self.median),
            ("mean_ms", self.mean),
            ("std_ms", self.std),
            ("p90_ms", self.p90),
            ("p99_ms", self.p99),
            ("min_ms", self.min),
            ("max_ms", self.max),
        ] {
            line[name] = json!(value);
        }
        line["repeats"] = json!(self.count);
        line["variation"] = json!(self.variation());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(ms: impl IntoIterator<Item = f64>) -> Statistics {
        let mut samples = Samples::default();
        samples.extend(ms);
        samples.statistics().expect("samples")
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_samples() {
        // 0..=100 backwards: percentile p is p.
        let s = statistics((0..=100).rev().map(f64::from));
        assert_eq!((s.min, s.median, s.p90, s.p99, s.max), (0.0, 50.0, 90.0, 99.0, 100.0));
        assert_eq!(s.mean, 50.0);
        // Σ(i − 50)² / 101 = 850.
        assert!((s.std - 850f64.sqrt()).abs() < 1e-12);
        assert_eq!(s.count, 101);
    }

    #[test]
    fn percentiles_lie_on_the_line_between_neighbours() {
        assert_eq!(percentile(&[1.0, 2.0], 0.5), 1.5);
        assert_eq!(percentile(&[1.0, 2.0, 10.0, 20.0], 0.5), 6.0);
        assert!((percentile(&[0.0, 10.0], 0.99) - 9.9).abs() < 1e-12);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn outliers_are_kept() {
        let s = statistics((0..99).map(|_| 1.0).chain([101.0]));
        assert_eq!((s.max, s.median, s.p90), (101.0, 1.0, 1.0));
        assert!(s.p99 > 1.0, "one of a hundred shows in p99: {}", s.p99);
        assert_eq!(s.mean, 2.0);
        assert!(s.warning().is_some());
    }

    #[test]
    fn more_than_five_per_cent_is_told() {
        // Two values at ± d around 1: the deviation is d of the mean.
        let around = |d: f64| statistics([1.0 - d, 1.0 + d].repeat(50));
        assert_eq!(around(0.04).warning(), None);
        assert_eq!(around(0.06).warning().as_deref(), Some("varies by 6 % of the mean"));
    }

    #[test]
    fn no_samples_have_no_figures() {
        assert_eq!(Samples::default().statistics(), None);
        let mut samples = Samples::default();
        samples.extend([f64::NAN, f64::INFINITY]);
        assert_eq!(samples.statistics(), None);
    }
}
