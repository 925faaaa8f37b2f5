//! How many comparisons rest on what: a run of many says which share of them decided nothing.

use crate::{Agreement, Skipped};
use std::fmt;

/// Counts comparisons. `Display` is a line for people.
///
/// ```
/// use kiln_oracle::{Agreement, Skipped, Tally};
/// let mut tally = Tally::default();
/// tally.add(&Agreement { compared: 4, ..Agreement::default() });
/// tally.add(&Agreement { skipped: Some(Skipped::Order), ..Agreement::default() });
/// assert_eq!((tally.comparisons, tally.share_skipped()), (2, 0.5));
/// assert_eq!(tally.to_string(), "1 agreed, 1 skipped for the order of sums (50.0 %), 0 failed alike, 0 vacuous; 0.0 % of 4 elements undecided");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// All comparisons.
    pub comparisons: u64,
    /// Nothing was compared, because of [`Skipped::Order`].
    pub order: u64,
    /// All candidates failed for the same reason, as expected: [`Skipped::Fails`].
    pub failed_alike: u64,
    /// Every element was undecided.
    pub vacuous: u64,
    /// Elements compared with the reference.
    pub compared: u64,
    /// Elements that rounding errors alone can make one thing or another.
    pub undecided: u64,
}

impl Tally {
    /// Counts one more.
    pub fn add(&mut self, agreement: &Agreement) {
        self.comparisons += 1;
        self.compared += agreement.compared as u64;
        self.undecided += agreement.undecided as u64;
        match agreement.skipped {
            Some(Skipped::Order) => self.order += 1,
            Some(Skipped::Fails) => self.failed_alike += 1,
            None => self.vacuous += u64::from(agreement.is_vacuous()),
        }
    }

    /// Counts those of another tally too.
    pub fn merge(&mut self, other: &Tally) {
        let Tally { comparisons, order, failed_alike, vacuous, compared, undecided } = other;
        self.comparisons += comparisons;
        self.order += order;
        self.failed_alike += failed_alike;
        self.vacuous += vacuous;
        self.compared += compared;
        self.undecided += undecided;
    }

    /// The comparisons that held something against the reference.
    pub fn agreed(&self) -> u64 {
        self.comparisons - self.order - self.failed_alike - self.vacuous
    }

    /// The share of comparisons in which nothing was held against the reference, though nobody failed.
    pub fn share_skipped(&self) -> f64 {
        share(self.order + self.vacuous, self.comparisons)
    }

    /// The share of elements that nothing was said about.
    pub fn share_undecided(&self) -> f64 {
        share(self.undecided, self.undecided + self.compared)
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = 100.0 * share(self.order, self.comparisons);
        let elements = self.compared + self.undecided;
        write!(
            f,
            "{} agreed, {} skipped for the order of sums ({order:.1} %), {} failed alike, {} vacuous; {:.1} % of {elements} elements undecided",
            self.agreed(),
            self.order,
            self.failed_alike,
            self.vacuous,
            100.0 * self.share_undecided(),
        )
    }
}
