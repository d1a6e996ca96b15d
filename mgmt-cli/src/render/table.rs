//! Columns of text: the one form of every list, and the columns that a terminal has room for.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};

use super::{HEADER, Width, columns_of, folded};

/// Columns between two columns of a table.
pub(crate) const GAP: usize = 2;
/// The narrowest last column that is folded, in columns of the terminal.
const FOLDED_MIN: usize = 16;

/// Formats left-aligned columns without boxes under a header. Where they do not fit, it omits columns of `spare`, the
/// first one first, and folds the last column if that is not enough. A line below the table names the omitted columns.
pub(crate) fn table(
    width: Width,
    header: &[&str],
    spare: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let head: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    let widths = widths(header.len(), std::iter::once(&head).chain(&rows));
    let room = width.map_or(usize::MAX, usize::from);
    let shown = fitting(room, header, spare, &widths);
    let mut table = Table::new();
    table.set_header(shown_of(&head, &shown));
    table.add_rows(rows.iter().map(|row| shown_of(row, &shown)));
    let text = with_bold_header(&laid_out(table, room, &shown_of(&widths, &shown)));
    let is_omitted = |name: &&str| header.iter().zip(&shown).any(|(column, shown)| column == name && !shown);
    let omitted: Vec<&str> = spare.iter().copied().filter(is_omitted).collect();
    if omitted.is_empty() { text } else { text + &note(width, &omitted) }
}

/// Formats one `key value` pair per line; long values are folded.
pub(crate) fn pairs(width: Width, rows: &[(&str, String)]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|(key, value)| vec![(*key).to_owned(), value.clone()]).collect();
    let widths = widths(2, rows.iter());
    let mut table = Table::new();
    table.add_rows(rows);
    laid_out(table, width.map_or(usize::MAX, usize::from), &widths)
}

/// Selects columns, with their widths, until they fit `room`: omits those of `spare`, the first one first. The others
/// stay, even if they do not fit.
pub(crate) fn fitting(room: usize, header: &[&str], spare: &[&str], widths: &[usize]) -> Vec<bool> {
    let mut shown = vec![true; header.len()];
    for name in spare {
        if taken(&shown_of(widths, &shown)) <= room {
            break;
        }
        let column = header.iter().position(|column| column == name);
        if let Some(shown) = column.and_then(|column| shown.get_mut(column)) {
            *shown = false;
        }
    }
    shown
}

/// Returns the columns of the terminal that columns of a table take, with the gaps between them.
fn taken(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>().saturating_add(GAP.saturating_mul(widths.len().saturating_sub(1)))
}

/// Returns the items of the shown columns.
pub(crate) fn shown_of<T: Clone>(items: &[T], shown: &[bool]) -> Vec<T> {
    items.iter().zip(shown).filter(|(_, shown)| **shown).map(|(item, _)| item.clone()).collect()
}

/// Returns the width of the widest cell of each column.
pub(crate) fn widths<'a>(columns: usize, rows: impl Iterator<Item = &'a Vec<String>>) -> Vec<usize> {
    let mut widths = vec![0; columns];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = columns_of(cell).max(*width);
        }
    }
    widths
}

fn note(width: Width, omitted: &[&str]) -> String {
    folded(width, &format!("(too narrow for {}; --wide shows every column)\n", omitted.join(", ")))
}

fn with_bold_header(text: &str) -> String {
    match text.split_once('\n') {
        Some((first, rest)) => format!("{HEADER}{first}{HEADER:#}\n{rest}"),
        None => text.to_owned(),
    }
}

/// Lays out a table, and folds its last column if the others leave enough room for that.
fn laid_out(mut table: Table, room: usize, widths: &[usize]) -> String {
    table.load_style(presets::NOTHING);
    let gap = u16::try_from(GAP).unwrap_or_default();
    for column in table.column_iter_mut() {
        column.set_padding((0, gap));
    }
    let others = widths.split_last().map_or(0, |(_, others)| taken(others).saturating_add(GAP));
    if taken(widths) > room && others.saturating_add(FOLDED_MIN) <= room {
        let last = u16::try_from(room.saturating_sub(others).saturating_add(GAP)).unwrap_or(u16::MAX);
        if let Some(column) = table.column_mut(widths.len().saturating_sub(1)) {
            column.set_constraint(ColumnConstraint::Absolute(comfy_table::Width::Fixed(last)));
        }
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::MAX);
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unstyled(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn columns_are_plain_and_have_no_trailing_spaces() {
        let rows = [vec!["lab".into(), "64 MiB".into()], vec!["longer".into(), "1".into()]];
        let text = table(None, &["NAME", "SIZE"], &[], rows.clone());
        assert_eq!(unstyled(&text), "NAME    SIZE\nlab     64 MiB\nlonger  1\n");
        assert_eq!(pairs(None, &[("a", "1".into()), ("long", String::new())]), "a     1\nlong\n");
    }

    #[test]
    fn columns_are_left_out_until_the_rest_fits() {
        let header = ["NAME", "SIZE", "RX", "NOTE"];
        let rows = [["lab", "64 MiB", "100", "something long"].map(str::to_owned).to_vec()];
        let within = |width| unstyled(&table(width, &header, &["NOTE", "RX"], rows.clone()));
        assert_eq!(within(None), "NAME  SIZE    RX   NOTE\nlab   64 MiB  100  something long\n");
        assert_eq!(within(Some(33)), within(None));
        assert!(within(Some(32)).starts_with("NAME  SIZE    RX\nlab   64 MiB  100\n(too narrow for NOTE;"));
        assert!(within(Some(16)).starts_with("NAME  SIZE\nlab   64 MiB\n(too narrow for\n    NOTE, RX;\n"));
        // Columns outside `spare` always stay.
        assert!(within(Some(5)).starts_with("NAME  SIZE\n"));
    }

    #[test]
    fn the_last_column_is_folded() {
        let rows = [vec!["bad".to_owned(), "Frames that nobody wanted, and others".to_owned()]];
        assert_eq!(unstyled(&table(None, &["A", "MEANING"], &[], rows.clone())).lines().count(), 2);
        for width in 24..60 {
            let text = unstyled(&table(Some(width), &["A", "MEANING"], &[], rows.clone()));
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}: {text}");
            assert!(
                text.split_whitespace().eq("A MEANING bad Frames that nobody wanted, and others".split(' '))
            );
            let value = "Frames that nobody wanted, and others".to_owned();
            let text = pairs(Some(width), &[("key", value), ("other", "short".to_owned())]);
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}: {text}");
            assert!(text.starts_with("key    Frames that"), "{text}");
            assert!(text.ends_with("other  short\n"), "{text}");
        }
    }
}
