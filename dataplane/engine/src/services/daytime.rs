//! Daytime service (RFC 867): sends the time of day in one line to every client.
//!
//! The daemon closes first. Peers thereby see an active close with TIME-WAIT on our side, and, if they close at the
//! same moment, a simultaneous close.

use std::fmt::Write as _;
use std::time::Duration;

use arrayvec::ArrayString;

/// Longest line, bytes: the longest of the years up to 9999 has 46.
const LINE_MAX: usize = 64;
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [(&str, u64); 12] = [
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];

/// Formats the line for a time since 1970-01-01 00:00:00 UTC, in the first of the two forms that RFC 867 suggests:
/// "Weekday, Month Day, Year Time-Zone", as in `Tuesday, February 22, 1982 17:37:43-PST`. It ends with CR and LF. The
/// zone is UTC.
pub(super) fn line(since_epoch: Duration) -> ArrayString<LINE_MAX> {
    let seconds = since_epoch.as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    // The remainder is below 7.
    let weekday = WEEKDAYS.get(usize::try_from(days % 7).unwrap_or(0)).copied().unwrap_or_default();
    let (year, month, day) = date(days);
    let mut line = ArrayString::new();
    // A clock that is wrong by millions of years has a longer line, which is cut.
    let _ = write!(line, "{weekday}, {month} {day}, {year} {hour:02}:{minute:02}:{second:02}-UTC\r\n");
    line
}

/// Returns year, month and day of the month for a number of days since 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, &'static str, u64) {
    // Any 400 consecutive years have 146,097 days.
    let (mut year, mut left) = (1970 + days / 146_097 * 400, days % 146_097);
    while left >= year_days(year) {
        left -= year_days(year);
        year += 1;
    }
    let mut month = "January";
    for (name, days) in MONTHS {
        month = name;
        let days = days + u64::from(name == "February" && is_leap(year));
        if left < days {
            break;
        }
        left -= days;
    }
    (year, month, left + 1)
}

fn is_leap(year: u64) -> bool {
    (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
}

fn year_days(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seconds: u64) -> String {
        line(Duration::from_secs(seconds)).to_string()
    }

    #[test]
    fn a_line_is_as_rfc_867_suggests() {
        for (seconds, expected) in [
            (0, "Thursday, January 1, 1970 00:00:00-UTC\r\n"),
            // The RFC's own example, in UTC.
            (383_276_263, "Tuesday, February 23, 1982 01:37:43-UTC\r\n"),
            (951_782_399, "Monday, February 28, 2000 23:59:59-UTC\r\n"),
            (951_782_400, "Tuesday, February 29, 2000 00:00:00-UTC\r\n"),
            (1_000_000_000, "Sunday, September 9, 2001 01:46:40-UTC\r\n"),
            (4_107_542_399, "Sunday, February 28, 2100 23:59:59-UTC\r\n"),
            (4_107_542_400, "Monday, March 1, 2100 00:00:00-UTC\r\n"),
            (253_402_300_799, "Friday, December 31, 9999 23:59:59-UTC\r\n"),
        ] {
            assert_eq!(text(seconds), expected, "{seconds}");
        }
    }

    /// Checks every day of more than 400 years.
    #[test]
    fn consecutive_days_have_consecutive_dates() {
        let mut before = text(0);
        for days in 1..146_097 + 1000 {
            let now = text(days * 86_400);
            assert!(now.ends_with(" 00:00:00-UTC\r\n") && now.len() <= 46 && now != before, "{now}");
            let day = |text: &str| -> u64 { text.split([' ', ',']).nth(3).unwrap().parse().unwrap() };
            assert!(day(&now) == day(&before) + 1 || (day(&now) == 1 && day(&before) >= 28), "{before}{now}");
            before = now;
        }
        assert_eq!(text(146_097 * 86_400), "Thursday, January 1, 2370 00:00:00-UTC\r\n");
    }

    #[test]
    fn a_clock_with_the_largest_value_gives_a_bounded_line() {
        assert!(line(Duration::MAX).len() <= LINE_MAX);
    }
}
