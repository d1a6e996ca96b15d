//! What a signal does to the daemon. No signal that can be caught ends it without taking it down in order.

use std::future::poll_fn;
use std::task::Poll;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::log::Log;

/// What follows a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The daemon goes down in order: connections reset, ports stopped, socket removed.
    End,
    /// A line in the log.
    Explain,
    /// Nothing, silently: a failed write of the log raises some of these, and a line about that would raise the next.
    Nothing,
    /// The log becomes more detailed.
    More,
    /// The log becomes less detailed.
    Less,
}

/// Signals whose default action would end the process, but for those of a program that has gone wrong.
const ACTIONS: [(i32, &str, Action); 15] = [
    (libc::SIGTERM, "SIGTERM", Action::End),
    (libc::SIGINT, "SIGINT", Action::End),
    (libc::SIGQUIT, "SIGQUIT", Action::End),
    (libc::SIGALRM, "SIGALRM", Action::End),
    (libc::SIGVTALRM, "SIGVTALRM", Action::End),
    (libc::SIGPROF, "SIGPROF", Action::End),
    (libc::SIGXCPU, "SIGXCPU", Action::End),
    (libc::SIGPWR, "SIGPWR", Action::End),
    (libc::SIGSTKFLT, "SIGSTKFLT", Action::End),
    (libc::SIGHUP, "SIGHUP", Action::Explain),
    (libc::SIGPIPE, "SIGPIPE", Action::Nothing),
    (libc::SIGXFSZ, "SIGXFSZ", Action::Nothing),
    (libc::SIGIO, "SIGIO", Action::Nothing),
    (libc::SIGUSR1, "SIGUSR1", Action::More),
    (libc::SIGUSR2, "SIGUSR2", Action::Less),
];

/// The daemon's signals, caught.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(String, Action, Signal)>);

impl Signals {
    /// Catches them, from here on.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn catch() -> Result<Self> {
        let named = ACTIONS.map(|(number, name, action)| (number, name.to_owned(), action));
        // The TAP driver would take the first of these whose disposition is the default.
        let realtime = (libc::SIGRTMIN()..=libc::SIGRTMAX())
            .map(|number| (number, format!("signal {number}"), Action::End));
        let catch = |(number, name, action): (i32, String, Action)| {
            let caught =
                signal(SignalKind::from_raw(number)).with_context(|| format!("cannot catch {name}"))?;
            Ok((name, action, caught))
        };
        named.into_iter().chain(realtime).map(catch).collect::<Result<_>>().map(Self)
    }

    /// Waits for a signal that ends the daemon, obeys the others meanwhile, and returns the name of the one.
    pub(crate) async fn end(&mut self, log: &mut Log) -> String {
        loop {
            let (name, action) = self.next().await;
            match action {
                Action::End => return name,
                Action::Explain => tracing::warn!(
                    "{name}: nothing is reloaded: the configuration is read at the start only, and the log goes to \
                     stderr; restart iwarpd for a new configuration"
                ),
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
