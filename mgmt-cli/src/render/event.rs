//! Events and the state of the log as text.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use iwarp_control::{EventRecord, LogStatus};
use serde_json::Value;

/// Returns an event as a line: time, severity, text, and the fields that the text does not name.
pub(crate) fn line(event: &EventRecord) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(event.time_ms)).unwrap_or(UNIX_EPOCH);
    let style = match event.level.as_str() {
        "error" => AnsiColor::Red.on_default(),
        "warn" => AnsiColor::Yellow.on_default(),
        _ => Style::new(),
    };
    let mut line = format!(
        "{} {style}{:<5}{style:#} {}",
        humantime::format_rfc3339_millis(at),
        event.level,
        event.message
    );
    for (name, value) in &event.fields {
        let value = match value {
            Value::String(text) if plain(text) => text.clone(),
            other => other.to_string(),
        };
        // A write to a String cannot fail.
        let _ = write!(line, " {name}={value}");
    }
    line + "\n"
}

/// Returns true if a text is one word without quotes and control characters.
fn plain(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|letter| !letter.is_whitespace() && !letter.is_control() && letter != '"')
}

/// Returns the state of the log.
pub(crate) fn log_status(status: &LogStatus) -> String {
    let level = serde_json::to_value(status.level).unwrap_or_default();
    format!("level   {}\nformat  {}\n", level.as_str().unwrap_or_default(), status.format)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_line_with_its_fields() {
        let event: EventRecord = serde_json::from_value(json!({
            "seq": 3, "time_ms": 1_700_000_000_123_u64, "level": "warn", "event": "grant_refused",
            "message": "refused a region to a peer: wrong token", "peer": "10.77.0.1:4242", "region": "a b",
            "worker": 0
        }))
        .unwrap();
        let line = anstream::adapter::strip_str(&line(&event)).to_string();
        assert_eq!(
            line,
            "2023-11-14T22:13:20.123Z warn  refused a region to a peer: wrong token peer=10.77.0.1:4242 \
             region=\"a b\" worker=0\n"
        );
    }

    #[test]
    fn a_name_cannot_forge_a_line() {
        let event: EventRecord = serde_json::from_value(json!({
            "seq": 1, "time_ms": 0, "level": "info", "event": "e", "message": "m", "command": "x\ny\u{1b}[2J"
        }))
        .unwrap();
        assert_eq!(line(&event).lines().count(), 1);
        assert!(!line(&event).contains("\u{1b}[2J"));
    }
}
