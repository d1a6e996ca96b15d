//! Formats replies as text: one module per noun. Every text ends with a newline, or is empty.

pub(crate) mod app;
pub(crate) mod config;
pub(crate) mod conn;
pub(crate) mod doctor;
pub(crate) mod drops;
pub(crate) mod event;
pub(crate) mod nfs;
pub(crate) mod port;
pub(crate) mod region;
pub(crate) mod stats;
pub(crate) mod status;

use anstyle::{AnsiColor, Style};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use iwarp_terminal::Width;

const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const HEADER: Style = Style::new().bold();

/// Formats left-aligned columns without boxes under a header; the last column is folded where they do not fit.
fn table(width: Width, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = columns();
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    if let (Some(width), Some(column)) = (width, table.column_mut(header.len().saturating_sub(1))) {
        column.set_constraint(ColumnConstraint::LowerBoundary(comfy_table::Width::Fixed(16)));
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    with_bold_header(laid_out(&mut table))
}

/// Formats columns and omits those of `spare`, the first one first, until the rest fits. A line below the table names
/// the omitted ones.
fn table_within(width: Width, header: &[&str], spare: &[&str], rows: &[Vec<String>]) -> String {
    for left_out in 0..=spare.len() {
        let (hidden, _) = spare.split_at(left_out);
        let kept = |row: &[String]| -> Vec<String> {
            let shown = row.iter().zip(header).filter(|(_, name)| !hidden.contains(name));
            shown.map(|(cell, _)| cell.clone()).collect()
        };
        let mut table = columns();
        table.set_header(header.iter().filter(|name| !hidden.contains(name)));
        table.add_rows(rows.iter().map(|row| kept(row)));
        let text = laid_out(&mut table);
        let fits = width.is_none_or(|width| text.lines().all(|line| columns_of(line) <= usize::from(width)));
        if fits || left_out == spare.len() {
            let text = with_bold_header(text);
            return if hidden.is_empty() { text } else { text + &left_out_note(width, hidden) };
        }
    }
    String::new()
}

fn left_out_note(width: Width, hidden: &[&str]) -> String {
    let note = format!("(too narrow for {}; a pipe or a file gets every column)", hidden.join(", "));
    folded(width, &(note + "\n"))
}

fn with_bold_header(text: String) -> String {
    match text.split_once('\n') {
        Some((first, rest)) => format!("{HEADER}{first}{HEADER:#}\n{rest}"),
        None => text,
    }
}

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

/// Formats one `key value` pair per line.
fn pairs(rows: &[(&str, String)]) -> String {
    let mut table = columns();
    table.add_rows(rows.iter().map(|(key, value)| [(*key).to_owned(), value.clone()]));
    laid_out(&mut table)
}

fn columns() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn laid_out(table: &mut Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Joins names by commas; a dash stands for none.
fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "-".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// Formats a number; a dash stands for none.
fn number_or_dash(number: Option<u32>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_plain_and_have_no_trailing_spaces() {
        let text = table(
            None,
            &["NAME", "SIZE"],
            [vec!["lab".into(), "64 MiB".into()], vec!["longer".into(), "1".into()]],
        );
        let unstyled = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(unstyled, "NAME    SIZE\nlab     64 MiB\nlonger  1\n");
        assert_eq!(pairs(&[("a", "1".into()), ("long", String::new())]), "a     1\nlong\n");
        assert_eq!(list::<u8>(&[]), "-");
    }

    fn unstyled(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn columns_are_left_out_until_the_rest_fits() {
        let header = ["NAME", "SIZE", "RX", "NOTE"];
        let rows = [["lab", "64 MiB", "100", "something long"].map(str::to_owned).to_vec()];
        let within = |width| unstyled(&table_within(width, &header, &["NOTE", "RX"], &rows));
        assert_eq!(within(None), "NAME  SIZE    RX   NOTE\nlab   64 MiB  100  something long\n");
        assert_eq!(within(Some(33)), within(None));
        assert!(within(Some(32)).starts_with("NAME  SIZE    RX\nlab   64 MiB  100\n(too narrow for NOTE;"));
        assert!(within(Some(16)).starts_with("NAME  SIZE\nlab   64 MiB\n(too narrow for\n    NOTE, RX; a\n"));
        // Columns outside `spare` always stay.
        assert!(within(Some(5)).starts_with("NAME  SIZE\n"));
    }

    #[test]
    fn the_last_column_is_folded() {
        let rows = || [vec!["bad".to_owned(), "Frames that nobody wanted, and others".to_owned()]];
        assert_eq!(unstyled(&table(None, &["A", "MEANING"], rows())).lines().count(), 2);
        for width in 24..60 {
            let text = unstyled(&table(Some(width), &["A", "MEANING"], rows()));
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}: {text}");
            assert!(
                text.split_whitespace().eq("A MEANING bad Frames that nobody wanted, and others".split(' '))
            );
        }
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
