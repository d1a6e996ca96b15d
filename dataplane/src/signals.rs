//! Signal handling of the daemon. Every signal that can be caught is handled, so that none ends the daemon without an
//! orderly shutdown.

use std::future::poll_fn;
use std::task::Poll;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::log::Log;

/// Reaction to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Orderly shutdown: connections reset, ports stopped, socket removed.
    End,
    /// The same after a drain; at once the second time.
    Drain,
    /// Reads the configuration again.
    Reload,
    /// Ignored without a log line: a failed write of the log raises some of these signals, and a line would raise the
    /// next one.
    Nothing,
    /// Raises the level of detail of the log.
    More,
    /// Lowers the level of detail of the log.
    Less,
}

/// Signals whose default action would end the process, except those of program errors.
const ACTIONS: [(i32, &str, Action); 15] = [
    (libc::SIGTERM, "SIGTERM", Action::Drain),
    (libc::SIGINT, "SIGINT", Action::End),
    (libc::SIGQUIT, "SIGQUIT", Action::End),
    (libc::SIGALRM, "SIGALRM", Action::End),
    (libc::SIGVTALRM, "SIGVTALRM", Action::End),
    (libc::SIGPROF, "SIGPROF", Action::End),
    (libc::SIGXCPU, "SIGXCPU", Action::End),
    (libc::SIGPWR, "SIGPWR", Action::End),
    (libc::SIGSTKFLT, "SIGSTKFLT", Action::End),
    (libc::SIGHUP, "SIGHUP", Action::Reload),
    (libc::SIGPIPE, "SIGPIPE", Action::Nothing),
    (libc::SIGXFSZ, "SIGXFSZ", Action::Nothing),
    (libc::SIGIO, "SIGIO", Action::Nothing),
    (libc::SIGUSR1, "SIGUSR1", Action::More),
    (libc::SIGUSR2, "SIGUSR2", Action::Less),
];

/// Request of a signal, with the signal's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SignalRequest {
    /// Stop at once, and reset all connections.
    End(String),
    /// Stop when the connections have ended.
    Drain(String),
    /// Read the configuration again.
    Reload(String),
}

/// Caught signals of the daemon.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(String, Action, Signal)>);

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn catch() -> Result<Self> {
        let named = ACTIONS.map(|(number, name, action)| (number, name.to_owned(), action));
        // Caught too, because the TAP driver would use the first of these with the default disposition.
        let realtime = (libc::SIGRTMIN()..=libc::SIGRTMAX())
            .map(|number| (number, format!("signal {number}"), Action::End));
        let catch = |(number, name, action): (i32, String, Action)| {
            let caught =
                signal(SignalKind::from_raw(number)).with_context(|| format!("cannot catch {name}"))?;
            Ok((name, action, caught))
        };
        named.into_iter().chain(realtime).map(catch).collect::<Result<_>>().map(Self)
    }

    /// Handles signals until one concerns the whole daemon, and returns what it asks for.
    pub(crate) async fn request(&mut self, log: &Log) -> SignalRequest {
        loop {
            let (name, action) = self.next().await;
            match action {
                Action::End => return SignalRequest::End(name),
                Action::Drain => return SignalRequest::Drain(name),
                Action::Reload => return SignalRequest::Reload(name),
                Action::Nothing => {}
                Action::More => log.more(&name),
                Action::Less => log.less(&name),
            }
        }
    }

    async fn next(&mut self) -> (String, Action) {
        poll_fn(|context| {
            let came = |(name, action, signal): &mut (String, Action, Signal)| {
                signal.poll_recv(context).is_ready().then(|| (name.clone(), *action))
            };
            self.0.iter_mut().find_map(came).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but those of program errors, and SIGKILL, which cannot be caught.
    #[test]
    fn every_signal_that_ends_a_process_by_default_has_an_action() {
        let harmless = [
            libc::SIGCHLD,
            libc::SIGCONT,
            libc::SIGSTOP,
            libc::SIGTSTP,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGURG,
            libc::SIGWINCH,
        ];
        let errors = [
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGSEGV,
            libc::SIGSYS,
        ];
        for number in 1..=31 {
            let exempt = harmless.contains(&number) || errors.contains(&number) || number == libc::SIGKILL;
            assert_eq!(ACTIONS.iter().any(|(of, ..)| *of == number), !exempt, "signal {number}");
        }
    }
}
