//! Formats replies about drops and refusals.

use iwarp_control::DropRow;

use super::{Width, table};

/// Formats drops by reason; `all` includes the reasons that never occurred.
pub(crate) fn list(drops: &[DropRow], all: bool, width: Width) -> String {
    let shown: Vec<&DropRow> = drops.iter().filter(|row| all || row.count != 0).collect();
    if shown.is_empty() {
        return "nothing was dropped\n".to_owned();
    }
    let rows = shown.into_iter().map(|row| {
        vec![row.layer.clone(), row.reason.clone(), row.count.to_string(), row.help.trim().to_owned()]
    });
    table(width, &["LAYER", "REASON", "COUNT", "MEANING"], &[], rows)
}
