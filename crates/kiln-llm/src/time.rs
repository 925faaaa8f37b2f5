//! Times of the calendar, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A time in seconds since 1970 by C's format; what is no known field stays as it is.
///
/// ```
/// assert_eq!(kiln_llm::time::strftime("%Y-%m-%dT%H:%M:%SZ", 951_782_400), "2000-02-29T00:00:00Z");
/// ```
pub fn strftime(format: &str, seconds: u64) -> String {
    let (days, time) = (seconds / 86400, seconds % 86400);
    let (year, month, day) = date(days);
    let weekday = DAYS[(days % 7) as usize];
    let name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += name,
            Some('b') => out += &name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('H') => out += &format!("{:02}", time / 3600),
            Some('M') => out += &format!("{:02}", time / 60 % 60),
            Some('S') => out += &format!("{:02}", time % 60),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of the days since 1970: eras of 400 years, years that begin in March.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(strftime("%a %d %b %Y %H:%M:%S %%%q%", 0), "Thu 01 Jan 1970 00:00:00 %%q%");
        assert_eq!(strftime("%A, %d %B %y", 951_782_400), "Tuesday, 29 February 00");
        assert_eq!(strftime("%Y-%m-%d", 4_107_542_400), "2100-03-01");
        assert_eq!(strftime("%Y-%m-%dT%H:%M:%SZ", 1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
