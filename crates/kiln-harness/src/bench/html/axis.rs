//! Maps values to coordinates of a plot, and picks the ticks.

/// A logarithmic or a linear axis from a low to a high value, over a stretch of the picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    /// From 0 to a value.
    pub fn linear(high: f64, from: f64, to: f64) -> Axis {
        Axis { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, from, to, log: false }
    }

    /// Around positive values, with a little room at both ends; values that are not are left out.
    pub fn log(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, 0f64);
        for value in values.into_iter().filter(|value| value.is_finite() && *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            (low, high) = (0.1, 10.0);
        }
        // At least a factor of two, so that noise does not look like a difference.
        let middle = (low * high).sqrt();
        let reach = ((high / low).sqrt() * 1.08).max(2f64.sqrt());
        Axis { low: middle / reach, high: middle * reach, from, to, log: true }
    }

    /// Returns the coordinate of a value; values beyond the ends are clamped.
    pub fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + (self.to - self.from) * part.clamp(0.0, 1.0)
    }

    /// Round values between the ends, few enough to read.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let raw = self.high / 4.0;
            let ten = 10f64.powf(raw.log10().floor());
            let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|n| n * ten).into_iter().find(|step| *step >= raw).unwrap_or(raw);
            return (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= self.high).collect();
        }
        let decades = (self.high / self.low).log10();
        let digits: &[f64] = match decades {
            d if d > 3.0 => &[1.0],
            d if d > 2.0 => &[1.0, 3.0],
            d if d > 0.9 => &[1.0, 2.0, 5.0],
            _ => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let step = if decades > 8.0 { 2 } else { 1 };
        let all = (first..=last).step_by(step).flat_map(|ten| digits.iter().map(move |digit| digit * 10f64.powi(ten)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_starts_at_nothing() {
        let axis = Axis::linear(100.0, 10.0, 110.0);
        assert_eq!((axis.at(0.0), axis.at(50.0), axis.at(1e9)), (10.0, 60.0, 110.0));
        assert_eq!(axis.ticks(), [0.0, 25.0, 50.0, 75.0, 100.0]);
    }

    #[test]
    fn equal_ratios_are_equally_far_apart() {
        let axis = Axis::log([1.0, 100.0], 0.0, 100.0);
        let (a, b, c) = (axis.at(1.0), axis.at(10.0), axis.at(100.0));
        assert!((b - a - (c - b)).abs() < 1e-9);
        assert!(a > 0.0 && c < 100.0);
        assert!(axis.ticks().contains(&10.0));
    }

    #[test]
    fn no_values_make_an_axis_too() {
        for values in [vec![], vec![0.0], vec![f64::NAN], vec![3.0]] {
            let axis = Axis::log(values.clone(), 0.0, 10.0);
            assert!(axis.at(3.0).is_finite() && !axis.ticks().is_empty(), "{values:?}");
        }
        assert!(Axis::linear(0.0, 0.0, 1.0).at(1.0).is_finite());
    }
}
