//! Formats the result of `config check`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use iwarp_config::{Config, Kind, connection_window_bytes, connection_window_line, memory_plan};
use iwarp_terminal::units;
use serde::Serialize;

use super::{GOOD, Width, table};
use crate::reserve::Reserved;

/// A configuration without mistakes, and the memory it needs.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    file: PathBuf,
    valid: bool,
    hugepages: u64,
    hugepage_bytes: u64,
    heap_bytes: u64,
    /// The largest receive window of one connection.
    connection_window_bytes: u64,
    #[serde(skip)]
    window_line: String,
    items: Vec<Item>,
}

#[derive(Debug, Serialize)]
struct Item {
    what: String,
    kind: &'static str,
    bytes: u64,
}

impl Checked {
    pub(crate) fn new(file: &Path, config: &Config) -> Self {
        let plan = memory_plan(config);
        let items = plan.items().iter().map(|item| Item {
            what: item.what.clone(),
            kind: match item.kind {
                Kind::Huge => "hugepages",
                Kind::Heap => "heap",
            },
            bytes: item.bytes,
        });
        Self {
            file: file.to_path_buf(),
            valid: true,
            hugepages: plan.hugepages(),
            hugepage_bytes: plan.hugepage_bytes(),
            heap_bytes: plan.heap_bytes(),
            connection_window_bytes: connection_window_bytes(config),
            window_line: connection_window_line(config),
            items: items.collect(),
        }
    }
}

/// Formats the memory that the configuration needs, item by item.
pub(crate) fn checked(checked: &Checked, width: Width) -> String {
    let rows = checked
        .items
        .iter()
        .map(|item| vec![item.kind.to_owned(), units::size(item.bytes), item.what.clone()]);
    let mut text = format!("{}: {GOOD}ok{GOOD:#}\n", checked.file.display());
    text += &table(width, &["MEMORY", "SIZE", "FOR"], &[], rows);
    // A write to a String cannot fail.
    let _ = writeln!(
        text,
        "in all {} of hugepages ({} pages) and {} of ordinary memory",
        units::size(checked.hugepage_bytes),
        checked.hugepages,
        units::size(checked.heap_bytes)
    );
    let _ = writeln!(text, "{}", checked.window_line);
    text
}

/// Formats what was reserved.
pub(crate) fn reserved(reserved: &Reserved) -> String {
    let Reserved { file, needed, free, pool_before, pool } = reserved;
    let raised = if pool == pool_before {
        format!("the pool has {pool}")
    } else {
        format!("the pool was raised from {pool_before} to {pool}")
    };
    format!("{}: {needed} hugepages of 2 MiB are needed and {free} are free; {raised}\n", file.display())
}
