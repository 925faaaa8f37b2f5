//! Sums and products of f64 in about twice its precision: a reference must be more exact than what is compared with it.

use crate::HostTensor;

/// A number as a float and what that float is too small by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compensated {
    high: f64,
    low: f64,
}

impl From<f64> for Compensated {
    fn from(high: f64) -> Compensated {
        Compensated { high, low: 0.0 }
    }
}

impl Compensated {
    /// The elements of a tensor.
    pub(super) fn of(x: &HostTensor) -> Vec<Compensated> {
        x.to_f64().into_iter().map(Compensated::from).collect()
    }

    /// Rounded to floats; a zero keeps its sign.
    pub(super) fn round(values: &[Compensated]) -> Vec<f64> {
        values.iter().map(|x| if x.low == 0.0 { x.high } else { x.high + x.low }).collect()
    }

    /// An infinity or NaN has no error.
    fn new(high: f64, low: f64) -> Compensated {
        Compensated { high, low: if high.is_finite() && low.is_finite() { low } else { 0.0 } }
    }

    pub(super) fn add(self, other: Compensated) -> Compensated {
        let high = self.high + other.high;
        let part = high - self.high;
        let lost = (self.high - (high - part)) + (other.high - part);
        Compensated::new(high, self.low + other.low + lost)
    }

    pub(super) fn multiply(self, other: Compensated) -> Compensated {
        let high = self.high * other.high;
        let lost = self.high.mul_add(other.high, -high);
        Compensated::new(high, self.high.mul_add(other.low, self.low.mul_add(other.high, lost)))
    }

    /// Either of two by a rule that gives one of its operands.
    pub(super) fn pick(self, other: Compensated, rule: fn(f64, f64) -> f64) -> Compensated {
        Compensated::from(rule(self.high, other.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_two_large_numbers() {
        let sum = [1e16, 1.0, -1e16].into_iter().map(Compensated::from).reduce(Compensated::add).unwrap();
        assert_eq!(Compensated::round(&[sum]), [1.0]);
        let product = [1.0 + f64::EPSILON; 3].into_iter().map(Compensated::from).reduce(Compensated::multiply).unwrap();
        assert_eq!(Compensated::round(&[product]), [1.0 + 3.0 * f64::EPSILON]);
        let infinite = Compensated::from(f64::INFINITY).add(1.0.into()).multiply(2.0.into());
        assert_eq!(Compensated::round(&[infinite]), [f64::INFINITY]);
        let none = infinite.add(f64::NEG_INFINITY.into());
        assert!(Compensated::round(&[none])[0].is_nan());
    }
}
