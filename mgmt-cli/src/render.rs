//! Formats replies as text: one module per noun. Every text ends with a newline, or is empty.

pub(crate) mod app;
pub(crate) mod config;
pub(crate) mod conn;
pub(crate) mod doctor;
pub(crate) mod drops;
pub(crate) mod event;
pub(crate) mod lifecycle;
pub(crate) mod nfs;
pub(crate) mod port;
pub(crate) mod region;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod worker;

use anstyle::{AnsiColor, Style};
use iwarp_terminal::Width;

use self::table::{pairs, table};

const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const HEADER: Style = Style::new().bold();

/// Folds lines that are too long for the terminal: they break between parts that two spaces separate, or else between
/// words, and continue indented.
fn folded(width: Width, text: &str) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut folded = String::new();
    for line in text.lines() {
        let mut used = 0_usize;
        for (gap, word) in parts(line, width.into()) {
            let columns = columns_of(word);
            let gap = if used == 0 { "" } else { gap };
            let end = used.saturating_add(gap.len()).saturating_add(columns);
            if used > 0 && end > usize::from(width) {
                folded.push_str("\n    ");
                used = columns.saturating_add(4);
            } else {
                folded.push_str(gap);
                used = end;
            }
            folded.push_str(word);
        }
        folded.push('\n');
    }
    folded
}

/// Returns the parts of a line, each with the gap before it; a part longer than a line is split into words.
fn parts(line: &str, width: usize) -> impl Iterator<Item = (&str, &str)> {
    line.split("  ").flat_map(move |part| {
        let by_words = columns_of(part).saturating_add(4) > width;
        let words: Vec<&str> = if by_words { part.split(' ').collect() } else { vec![part] };
        words.into_iter().enumerate().map(|(index, word)| (if index == 0 { "  " } else { " " }, word))
    })
}

/// Returns the columns of a text on a terminal, without escape sequences.
fn columns_of(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(anstream::adapter::strip_str(text).to_string().as_str())
}

/// Joins names by commas; a dash stands for none.
pub(crate) fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "-".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// Formats a number; a dash stands for none.
fn number_or_dash(number: Option<u32>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

pub(crate) fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unstyled(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn no_name_is_a_dash() {
        assert_eq!(list::<u8>(&[]), "-");
        assert_eq!(list(&[1, 2]), "1,2");
    }

    #[test]
    fn lines_are_folded_between_their_parts() {
        let line = format!("port p0  {GOOD}up{GOOD:#}  mtu 1500  rx 1250 packets\n");
        assert_eq!(folded(None, &line), line);
        assert_eq!(unstyled(&folded(Some(39), &line)), "port p0  up  mtu 1500  rx 1250 packets\n");
        assert_eq!(unstyled(&folded(Some(30), &line)), "port p0  up  mtu 1500\n    rx 1250 packets\n");
        assert_eq!(
            unstyled(&folded(Some(12), &line)),
            "port p0  up\n    mtu 1500\n    rx 1250\n    packets\n"
        );
    }
}
