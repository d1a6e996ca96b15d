//! The edges of a command-line program: results and failures on the terminal, units, the clock.
//!
//! `iwarpctl` and the remote initiator write a result with [`Output::result`], as text or as one line of
//! JSON, and end with the exit code of a [`Failure`]. Daemons share [`ConfigOptions`].
#![forbid(unsafe_code)]

pub mod clock;
mod config;
mod failure;
mod output;
mod panic;
pub mod units;

pub use config::{ConfigOptions, ErrorFormat};
pub use failure::{Failure, Report};
pub use output::{Color, ERROR, Format, HELP, Output, Width};
pub use panic::abort_on_panic;

/// Writes a command's `after_help`: examples, and before them a text if there is one.
#[macro_export]
macro_rules! examples {
    ($text:literal; $($example:literal),+ $(,)?) => {
        concat!($text, "\n\nExamples:" $(, "\n  ", $example)+)
    };
    ($($example:literal),+ $(,)?) => {
        concat!("Examples:" $(, "\n  ", $example)+)
    };
}
