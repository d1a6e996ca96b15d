//! Progress bars on stderr, of `put`, `get` and `ping`.

use std::fmt::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use iwarp_terminal::{Output, units};

const BYTES: &str = "{msg} [{bar:32}] {bytes}/{total_bytes}  {rate}  {eta}";
const STREAM: &str = "{msg} [{bytes}]  {rate}";
const COUNT: &str = "{msg} [{bar:32}] {pos}/{len}  {eta}";

/// Creates a bar that counts bytes; it is drawn on a terminal only.
pub(super) fn of_bytes(output: &Output, what: &'static str, bytes: u64) -> ProgressBar {
    bar(output, what, bytes, BYTES)
}

/// Creates a bar that counts bytes of a stream of unknown length.
pub(super) fn of_stream(output: &Output, what: &'static str) -> ProgressBar {
    let bar = bar(output, what, 0, STREAM);
    bar.unset_length();
    bar
}

/// Creates a bar that counts round trips.
pub(super) fn of_rounds(output: &Output, what: &'static str, rounds: u64) -> ProgressBar {
    bar(output, what, rounds, COUNT)
}

fn bar(output: &Output, what: &'static str, length: u64, template: &str) -> ProgressBar {
    let target =
        if output.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // The rate has the unit of the result.
    let style = style.with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
        // A formatter that fails leaves the rate empty.
        let _ = text.write_str(&units::byte_rate(state.per_sec()));
    });
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
        assert!(ProgressStyle::with_template(STREAM).is_ok());
    }
}
