//! Shows replies of the daemon once, or again and again.

use std::time::Duration;

use iwarp_control::Client;
use iwarp_terminal::{Failure, Output, Width, clock};
use serde::Serialize;

use crate::args::{Global, View};
use crate::command;

/// A pause longer than this closes the connection: the daemon closes silent ones.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// A connection to a program that outlives short pauses between requests.
#[derive(Debug)]
pub(crate) struct Session<F> {
    connect: F,
    client: Option<Client>,
}

impl<F: Fn() -> Result<Client, Failure>> Session<F> {
    pub(crate) const fn new(connect: F) -> Self {
        Self { connect, client: None }
    }

    /// Asks the daemon, and keeps the connection if the next question comes after a short `pause`.
    pub(crate) fn ask<T>(
        &mut self,
        pause: Option<Duration>,
        ask: impl FnOnce(&mut Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut client = self.client.take().map_or_else(|| (self.connect)(), Ok)?;
        let reply = ask(&mut client)?;
        self.client = pause.is_some_and(|pause| pause <= LONG_PAUSE).then_some(client);
        Ok(reply)
    }
}

/// Asks the daemon and shows its reply as often as `view` wants; returns the last one.
pub(crate) fn show<T: Serialize>(
    view: &View,
    global: &Global,
    output: &Output,
    ask: impl FnMut(&mut Client) -> Result<T, Failure>,
    text: impl Fn(&T, Width) -> String,
) -> Result<T, Failure> {
    show_of(|| command::connect(global), view, output, ask, text)
}

/// Asks the program that `connect` reaches, and shows its reply as [`show`] does.
pub(crate) fn show_of<T: Serialize>(
    connect: impl Fn() -> Result<Client, Failure>,
    view: &View,
    output: &Output,
    mut ask: impl FnMut(&mut Client) -> Result<T, Failure>,
    text: impl Fn(&T, Width) -> String,
) -> Result<T, Failure> {
    let mut session = Session::new(connect);
    let mut reports = 0;
    loop {
        let pause = view.pause();
        let reply = session.ask(pause, &mut ask)?;
        let width = if view.wide { None } else { output.width() };
        let text = |reply: &T| text(reply, width);
        let Some(pause) = pause else {
            output.result(&reply, text)?;
            return Ok(reply);
        };
        output.redraw(&reply, text)?;
        reports += 1;
        if view.count == Some(reports) {
            return Ok(reply);
        }
        if output.is_text() && output.width().is_none() {
            output.text("\n")?;
        }
        clock::sleep(pause);
    }
}
