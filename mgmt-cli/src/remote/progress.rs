//! A bar for whoever waits.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

const BYTES: &str = "{msg} [{bar:32}] {bytes}/{total_bytes}  {bytes_per_sec}  {eta}";
const COUNT: &str = "{msg} [{bar:32}] {pos}/{len}  {eta}";

/// Progress in octets; only a person at a terminal sees it.
pub(super) fn of_bytes(output: &Output, what: &'static str, bytes: u64) -> ProgressBar {
    bar(output, what, bytes, BYTES)
}

/// Progress in rounds.
pub(super) fn of_rounds(output: &Output, what: &'static str, rounds: u64) -> ProgressBar {
    bar(output, what, rounds, COUNT)
}

fn bar(output: &Output, what: &'static str, length: u64, template: &str) -> ProgressBar {
    let target =
        if output.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(length), target)
        .with_style(style.progress_chars("=> "))
        .with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_right() {
        assert!(ProgressStyle::with_template(BYTES).is_ok());
        assert!(ProgressStyle::with_template(COUNT).is_ok());
    }
}
