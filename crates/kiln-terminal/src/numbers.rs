//! Numbers of the command line that have to be in a range: what is not is refused while the options are read.

/// A whole number from `LEAST` on.
pub fn at_least<const LEAST: usize>(text: &str) -> Result<usize, String> {
    let number = text.trim().parse::<usize>().ok().filter(|number| *number >= LEAST);
    number.ok_or_else(|| format!("it takes a whole number from {LEAST} on"))
}

/// A number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    let number = text.trim().parse::<usize>().ok().filter(|number| (1..=256).contains(number));
    number.ok_or_else(|| "it takes a whole number from 1 to 256".to_owned())
}

/// A number above 0, for instance of seconds.
pub fn positive(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "it takes a number above 0".to_owned())
}

/// A number from 0 on.
pub fn from_zero(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "it takes a number from 0 on".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_their_ranges() {
        assert_eq!((at_least::<1>("1"), at_least::<2>("7")), (Ok(1), Ok(7)));
        for text in ["0", "-1", "1.5", "x", "", "99999999999999999999999"] {
            assert_eq!(at_least::<1>(text), Err("it takes a whole number from 1 on".to_owned()), "{text}");
            assert!(threads(text).is_err(), "{text}");
        }
        assert!(threads("257").is_err() && threads("256").is_ok());
        assert_eq!((positive("0.08"), from_zero("0")), (Ok(0.08), Ok(0.0)));
        for text in ["0", "-0.5", "nan", "inf", "x"] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert!(from_zero("-1").is_err() && from_zero("inf").is_err());
    }
}
