//! `iwarpctl monitor`: the daemon's events, one line each, until the daemon or the user ends it.

use std::time::Duration;

use iwarp_control::{ClientError, EventRecord, MonitorMethod, NoParams};
use iwarp_terminal::clock::Clock;
use iwarp_terminal::{Failure, Output};

use crate::args::{Global, Monitor};
use crate::{command, render};

/// Shows events that meet the conditions of `options`.
pub(crate) fn run(options: &Monitor, global: &Global, output: &Output) -> Result<(), Failure> {
    let mut client = command::connect(global)?;
    let recent = client.call::<MonitorMethod>(&NoParams {})?.recent;
    let mut shown = 0;
    let mut show = |event: &EventRecord| -> Result<bool, Failure> {
        if options.admits(event) {
            output.result(event, render::event::line)?;
            shown += 1;
        }
        Ok(options.count == Some(shown))
    };
    for event in recent.iter().filter(|_| options.recent) {
        if show(event)? {
            return Ok(());
        }
    }
    let clock = Clock::start();
    loop {
        let left = options.seconds.map(|seconds| seconds.saturating_sub(clock.now()));
        if left == Some(Duration::ZERO) {
            return Ok(());
        }
        match client.next_event(left) {
            Ok(event) if show(&event)? => return Ok(()),
            Ok(_) => {}
            Err(ClientError::Timeout { .. }) if left.is_some() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
