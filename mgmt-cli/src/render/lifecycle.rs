//! Formats the results of `reload` and `drain`.

use std::fmt::Write as _;

use iwarp_control::{Drained, Reloaded};

/// Formats the changes of a reload, one line each.
pub(crate) fn reloaded(reloaded: &Reloaded) -> String {
    let Reloaded { config_path, changes, grants_revoked } = reloaded;
    let mut text = match changes.len() {
        0 => format!("{}: nothing has changed\n", config_path.display()),
        1 => format!("{}: 1 change\n", config_path.display()),
        count => format!("{}: {count} changes\n", config_path.display()),
    };
    for line in changes {
        // A write to a String cannot fail.
        let _ = writeln!(text, "{}: {}", line.object, line.change);
    }
    if *grants_revoked > 0 {
        let _ = writeln!(text, "grants revoked: {grants_revoked}");
    }
    text
}

/// Formats the result of a drain.
pub(crate) fn drained(drained: &Drained) -> String {
    match drained.cut_off {
        0 => "drained: all connections have ended\n".to_owned(),
        1 => "drained: 1 connection was in use and is cut off\n".to_owned(),
        count => format!("drained: {count} connections were in use and are cut off\n"),
    }
}
