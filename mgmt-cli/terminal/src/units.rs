//! Formats numbers for people: sizes in powers of 1024, rates in powers of 1000, times.

use std::time::Duration;

const IEC: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const SI: [&str; 5] = ["k", "M", "G", "T", "P"];

/// Formats bytes: `512 B`, `64 MiB`, `1.5 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (value, unit) = scaled(bytes as f64, 1024.0, &IEC);
    number(value) + " " + unit
}

/// Formats bytes per second: `866 MB/s`, `1.23 GB/s`.
#[must_use]
pub fn byte_rate(bytes_per_second: f64) -> String {
    prefixed(bytes_per_second, "B/s")
}

/// Formats bits per second: `9.8 Gb/s`.
#[must_use]
pub fn bit_rate(bits_per_second: f64) -> String {
    prefixed(bits_per_second, "b/s")
}

/// Formats events per second: `1.21 M/s`, `12 /s`.
#[must_use]
pub fn event_rate(per_second: f64) -> String {
    prefixed(per_second, "/s")
}

/// Formats nanoseconds as microseconds: `12.3 µs`.
#[must_use]
pub fn micros(nanoseconds: u64) -> String {
    format!("{:.1} µs", nanoseconds as f64 / 1e3)
}

/// Formats a duration: `1.25 s`, `2m05s`, `1h02m`, `3d04h`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.2} s", duration.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Formats a permille as percent: `12.3 %`.
#[must_use]
pub fn permille(permille: u32) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

fn prefixed(value: f64, unit: &str) -> String {
    if value < 1000.0 {
        return format!("{} {unit}", number(value));
    }
    let (value, prefix) = scaled(value, 1000.0, &SI);
    format!("{} {prefix}{unit}", number(value))
}

/// Divides by the base until the value is below it; returns the quotient and the unit reached.
fn scaled<'a>(mut value: f64, base: f64, units: &[&'a str]) -> (f64, &'a str) {
    let mut reached = "";
    for unit in units {
        value /= base;
        reached = unit;
        if value < base {
            break;
        }
    }
    (value, reached)
}

/// Formats three significant digits, without trailing zeros.
fn number(value: f64) -> String {
    let digits = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            (100_000_000, "95.4 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn rates() {
        assert_eq!(byte_rate(999.0), "999 B/s");
        assert_eq!(byte_rate(866e6), "866 MB/s");
        assert_eq!(bit_rate(9.84e9), "9.84 Gb/s");
        assert_eq!(event_rate(0.0), "0 /s");
        assert_eq!(event_rate(1.5), "1.5 /s");
        assert_eq!(event_rate(1e20), "100000 P/s");
    }

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "0.00 s"),
            (59, "59.00 s"),
            (125, "2m05s"),
            (3720, "1h02m"),
            (3 * 86_400 + 4 * 3600, "3d04h"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
        assert_eq!(micros(12_345), "12.3 µs");
        assert_eq!(permille(5), "0.5 %");
    }
}
