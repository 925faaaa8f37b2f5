//! Formats figures with three significant digits and a unit.

/// A time.
///
/// ```text
/// 0.0000042 → 4.20 µs     0.0123 → 12.3 ms     3.5 → 3.50 s     150 → 2.5 min
/// ```
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "–".into(),
        s if s >= 120.0 => format!("{:.1} min", s / 60.0),
        s if s >= 1.0 => format!("{} s", three(s)),
        s if s >= 1e-3 => format!("{} ms", three(s * 1e3)),
        s if s >= 1e-6 => format!("{} µs", three(s * 1e6)),
        s => format!("{} ns", three(s * 1e9)),
    }
}

/// Bytes, in powers of ten.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Formats an integer with grouped thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many a second, for instance tokens.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if !r.is_finite() => "–".into(),
        r if r >= 100.0 => count(r.round() as u64),
        r => three(r),
    }
}

/// How many times as fast.
pub fn ratio(times: f64) -> String {
    match times {
        t if !t.is_finite() => "–".into(),
        t if t >= 100.0 => format!("{t:.0}×"),
        t if t >= 10.0 => format!("{t:.1}×"),
        t => format!("{t:.2}×"),
    }
}

/// One word for one thing, another for more.
pub fn plural(number: usize, one: &str, more: &str) -> String {
    format!("{} {}", count(number as u64), if number == 1 { one } else { more })
}

/// Formats three significant digits.
fn three(number: f64) -> String {
    match number {
        n if n >= 99.95 => format!("{n:.0}"),
        n if n >= 9.995 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!([4.2e-6, 0.01234, 3.5, 150.0].map(seconds), ["4.20 µs", "12.3 ms", "3.50 s", "2.5 min"]);
        assert_eq!([0.0, 999e-9, 0.9996].map(seconds), ["0.00 ns", "999 ns", "1000 ms"]);
        assert_eq!([999, 1_500, 2_500_000, 7_000_000_000].map(bytes), ["999 B", "1.5 kB", "2.5 MB", "7.00 GB"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([7.25, 99.0, 12_345.6].map(rate), ["7.25", "99.0", "12,346"]);
        assert_eq!([0.98, 4.567, 23.45, 250.0].map(ratio), ["0.98×", "4.57×", "23.4×", "250×"]);
        assert_eq!(
            (plural(1, "entry", "entries"), plural(2, "entry", "entries")),
            ("1 entry".into(), "2 entries".into())
        );
    }
}
