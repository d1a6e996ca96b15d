//! What a program says while it works.

use std::fmt::Arguments;
use std::io::{self, Write as _};

/// How much it says. What was asked for goes to stdout, all else to stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voice {
    /// What it is doing.
    pub speaks: bool,
    /// The texts that come.
    pub shows_texts: bool,
    /// Every event.
    pub debugs: bool,
}

impl Voice {
    /// Progress.
    pub fn say(self, what: Arguments<'_>) {
        if self.speaks {
            self.complain(what);
        }
    }

    /// What is wrong, said always.
    pub fn complain(self, what: Arguments<'_>) {
        // Nobody may be left to read it.
        let _ = writeln!(io::stderr().lock(), "{what}");
    }

    pub(crate) fn debug(self, what: Arguments<'_>) {
        if self.debugs {
            self.complain(what);
        }
    }

    pub(crate) fn text(self, whose: &str, text: &[u8]) {
        if self.shows_texts {
            let mut stdout = io::stdout().lock();
            let _ = write!(stdout, "{whose}: ")
                .and_then(|()| stdout.write_all(text))
                .and_then(|()| stdout.write_all(b"\n"));
        }
    }
}
