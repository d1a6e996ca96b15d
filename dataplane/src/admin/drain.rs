//! Handles `drain` and SIGTERM: stops accepting connections, closes the others once they are idle, and reports when all
//! have ended or the time is over. `daemon` then stops the workers, which reset what is left.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use iwarp_control::{Drain, DrainMethod, Drained, Draining, ErrorKind, ErrorObject, params};
use serde_json::Value;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::ControlHandler;
use super::worker_handle::WorkerHandle;
use crate::control::{Peer, Reply};
use crate::events::Event;
use crate::worker::{Command, Cursor, SettingsCommand};

/// Pause between two looks at the connections.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for a client to take the reply to its `drain`.
const REPLY_WAIT: Duration = Duration::from_secs(1);

/// State of the drain, of which there is at most one.
#[derive(Debug)]
pub(crate) struct DrainState {
    /// Time at which the connections that are left are reset; `None`: no drain.
    until: Cell<Option<Instant>>,
    asked: Notify,
    /// Connections that have not ended.
    open: Cell<u64>,
    /// Number of connections that are cut off, once the drain has ended.
    ended: watch::Sender<Option<u64>>,
    /// Clients that have not taken their reply.
    replies: RefCell<Vec<oneshot::Receiver<()>>>,
}

impl Default for DrainState {
    fn default() -> Self {
        Self {
            until: Cell::new(None),
            asked: Notify::new(),
            open: Cell::new(0),
            ended: watch::channel(None).0,
            replies: RefCell::default(),
        }
    }
}

impl DrainState {
    /// Returns true once a drain was asked for.
    pub(super) fn is_on(&self) -> bool {
        self.until.get().is_some()
    }

    /// Returns the state for `status`.
    pub(super) fn status(&self) -> Option<Draining> {
        let left = self.until.get()?.saturating_duration_since(Instant::now());
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        Some(Draining { connections: self.open.get(), left_ms })
    }
}

impl ControlHandler {
    /// Begins a drain. In one that runs, a client sets its time anew, and a signal can only shorten it. `by` is the
    /// client that asks, if one does.
    pub(crate) fn drain(&self, time: Duration, by: Option<&Peer>) {
        let state = &self.draining;
        let (before, asked) = (state.until.get(), Instant::now() + time);
        let until = before.filter(|before| by.is_none() && *before < asked).unwrap_or(asked);
        state.until.set(Some(until));
        let timeout_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if before.is_none() {
            let (uid, pid) = (by.map(|peer| peer.uid), by.map(|peer| peer.pid));
            self.report(&Event::DrainStarted { timeout_ms, uid, pid });
        }
        state.asked.notify_one();
    }

    /// Waits for a drain and carries it out. Returns the number of connections that are cut off.
    ///
    /// # Errors
    /// A worker does not answer.
    pub(crate) async fn run_drain(&self) -> Result<u64, ErrorObject> {
        let state = &self.draining;
        state.asked.notified().await;
        for handle in self.workers.iter() {
            handle.ask(|reply| Command::Settings(SettingsCommand::StopAccepting { reply })).await?;
        }
        loop {
            let mut open = 0_u64;
            for handle in self.workers.iter() {
                open = open.saturating_add(drain_worker(handle).await?);
            }
            state.open.set(open);
            let (now, until) = (Instant::now(), state.until.get().unwrap_or_else(Instant::now));
            if open == 0 || now >= until {
                self.report(&Event::DrainEnded { cut_off: open });
                state.ended.send_replace(Some(open));
                return Ok(open);
            }
            tokio::select! {
                () = sleep_until(until.min(now + PAUSE)) => {}
                () = state.asked.notified() => {}
            }
        }
    }

    /// Waits until the clients that asked for the drain have its result.
    pub(crate) async fn drain_replied(&self) {
        let replies = self.draining.replies.take();
        let all = async {
            for reply in replies {
                // The sender is dropped when the reply is written.
                let _ = reply.await;
            }
        };
        let _ = timeout(REPLY_WAIT, all).await;
    }

    /// Answers `drain` when the drain has ended.
    pub(super) async fn drain_method(&self, peer: &Peer, given: Value) -> Result<Reply, ErrorObject> {
        let Drain { timeout_ms } = params::<DrainMethod>(given)?;
        if timeout_ms > Drain::TIMEOUT_MS_MAX {
            let max = Drain::TIMEOUT_MS_MAX;
            let what = format!("timeout_ms: {timeout_ms} ms are asked for; at most {max} are allowed");
            return Err(ErrorObject::new(ErrorKind::InvalidParams, what));
        }
        let mut ended = self.draining.ended.subscribe();
        let (sent, is_sent) = oneshot::channel();
        self.draining.replies.borrow_mut().push(is_sent);
        self.drain(Duration::from_millis(timeout_ms), Some(peer));
        let cut_off = ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended);
        let cut_off = cut_off.ok_or_else(|| ErrorObject::new(ErrorKind::Internal, "the drain has failed"))?;
        Ok(Reply::new(Drained { cut_off }).with_sent(sent))
    }
}

/// Closes the idle connections of a worker. Returns the number of those that have not ended.
async fn drain_worker(handle: &WorkerHandle) -> Result<u64, ErrorObject> {
    let (mut open, mut next): (u64, Option<Cursor>) = (0, Some((0, 0)));
    while let Some(from) = next {
        let page = |reply| Command::Settings(SettingsCommand::Drain { from, reply });
        let (count, following) = handle.ask(page).await?;
        (open, next) = (open.saturating_add(count), following);
    }
    Ok(open)
}
