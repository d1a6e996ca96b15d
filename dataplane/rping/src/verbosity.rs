//! What a program says while it works.

use std::fmt::Arguments;
use std::io::{self, Write as _};

/// How much it says. What was asked for goes to stdout, all else to stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbosity {
    /// What it is doing.
    pub progress: bool,
    /// The texts that come.
    pub texts: bool,
    /// Every event.
    pub events: bool,
}

impl Verbosity {
    /// Progress.
    pub fn progress(self, what: Arguments<'_>) {
        if self.progress {
            self.print(what);
        }
    }

    /// What is wrong, said always.
    pub fn print(self, what: Arguments<'_>) {
        // Nobody may be left to read it.
        let _ = writeln!(io::stderr().lock(), "{what}");
    }

    pub(crate) fn debug(self, what: Arguments<'_>) {
        if self.events {
            self.print(what);
        }
    }

    pub(crate) fn text(self, whose: &str, text: &[u8]) {
        if self.texts {
            let mut stdout = io::stdout().lock();
            let _ = write!(stdout, "{whose}: ")
                .and_then(|()| stdout.write_all(text))
                .and_then(|()| stdout.write_all(b"\n"));
        }
    }
}
