//! Replies as text: one module per noun. Every text ends with a newline, or is empty.

pub(crate) mod config;
pub(crate) mod conn;
pub(crate) mod drops;
pub(crate) mod port;
pub(crate) mod region;
pub(crate) mod remote;
pub(crate) mod stats;
pub(crate) mod status;

use anstyle::{AnsiColor, Style};
use comfy_table::{Table, presets};

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const HELP: Style = AnsiColor::Cyan.on_default();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const HEADER: Style = Style::new().bold();

/// Left-aligned columns without boxes; the first line names them.
fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = columns();
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    let text = laid_out(&mut table);
    match text.split_once('\n') {
        Some((first, rest)) => format!("{HEADER}{first}{HEADER:#}\n{rest}"),
        None => text,
    }
}

/// One `key value` pair per line.
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

/// Names joined by commas; a dash for none.
fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "-".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
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
            &["NAME", "SIZE"],
            [vec!["lab".into(), "64 MiB".into()], vec!["longer".into(), "1".into()]],
        );
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(plain, "NAME    SIZE\nlab     64 MiB\nlonger  1\n");
        assert_eq!(pairs(&[("a", "1".into()), ("long", String::new())]), "a     1\nlong\n");
        assert_eq!(list::<u8>(&[]), "-");
    }
}
