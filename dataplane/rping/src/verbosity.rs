//! Output of the client and the server while they run.

use std::fmt::Arguments;
use std::io::{self, Write as _};

/// Selects the output. Requested data goes to stdout, everything else to stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbosity {
    /// Print progress messages to stderr.
    pub progress: bool,
    /// Print received ping data.
    pub texts: bool,
    /// Print every event to stderr.
    pub events: bool,
}

impl Verbosity {
    /// Prints a progress message if enabled.
    pub fn progress(self, what: Arguments<'_>) {
        if self.progress {
            self.print(what);
        }
    }

    /// Prints a message in any case.
    pub fn print(self, what: Arguments<'_>) {
        // A closed stderr is ignored.
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
