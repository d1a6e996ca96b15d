//! Listening sockets. A thread of each accepts connections when their requests arrive, as the kernel does for its
//! sockets: `connect` of a peer ends while the program does something else.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use iwarp_verbs::start_thread;

use super::socket::{Backlog, Direction, Endpoint, Inner, Phase, Socket, new_channel};
use super::stream::Stream;
use super::wire::ConnData;
use crate::cm::{self, CONNECT_REQUEST, Entry};
use crate::cm_calls;
use crate::context::lock;
use crate::sleepers::{Limit, Sleeper};

/// Most connections that wait for `accept`, the kernel's `net.core.somaxconn`.
const BACKLOG_MAX: u16 = 4096;
/// Requests that wait, beside those connections, as the kernel lets SYNs wait. Others are refused.
const WAITING_MAX: u16 = 128;
/// Longest wait of a request. It is refused then: about when TCP's connection attempts end, too.
const WAITING_TIME: Duration = Duration::from_secs(60);

impl Socket {
    pub(super) fn listen(self: &Arc<Self>, backlog: c_int) -> Result<(), c_int> {
        let limit =
            u16::try_from(backlog).unwrap_or(if backlog < 0 { 0 } else { BACKLOG_MAX }).clamp(1, BACKLOG_MAX);
        let mut inner = lock(&self.inner);
        if let Phase::Listening(of) = &mut inner.phase {
            of.limit = limit.into();
            self.sleepers.wake();
            return Ok(());
        }
        if !matches!(inner.phase, Phase::New) {
            return Err(libc::EINVAL);
        }
        // Made here: the thread that sleeps on it could tell nobody that there is no descriptor.
        let sleeper = Sleeper::new()?;
        cm_calls::listen(inner.endpoint.id()?, limit.saturating_add(WAITING_MAX).into())?;
        let socket = Arc::clone(self);
        start_thread("iwarp-accept", move || socket.accept_requests(&sleeper))
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
        // The thread waits for the lock until then.
        inner.phase = Phase::Listening(Backlog { accepted: VecDeque::new(), limit: limit.into() });
        Ok(())
    }

    /// Accepts requests in their order until the listener ends, as long as the program takes the connections.
    fn accept_requests(&self, sleeper: &Arc<Sleeper>) {
        let _asleep = self.sleepers.add(sleeper);
        let mut waiting: VecDeque<(Limit, Entry)> = VecDeque::new();
        loop {
            while let Some(entry) = self.connection.pop() {
                if entry.kind != CONNECT_REQUEST {
                    // The device is gone.
                    self.end_listener(lock(&self.inner));
                } else if waiting.len() < WAITING_MAX.into() {
                    waiting.push_back((Limit::after(WAITING_TIME), entry));
                } else {
                    entry.reject();
                }
            }
            while waiting.front().is_some_and(|(limit, _)| limit.left().is_some_and(|left| left.is_zero())) {
                waiting.pop_front().into_iter().for_each(|(_, entry)| entry.reject());
            }
            let has_room = match &lock(&self.inner).phase {
                Phase::Listening(of) => of.accepted.len() < of.limit,
                _ => return,
            };
            if has_room && let Some((_, entry)) = waiting.pop_front() {
                // A peer that is no rsocket, or has gone, does not end the listener.
                if let Ok(socket) = self.accept_one(entry)
                    && let Phase::Listening(of) = &mut lock(&self.inner).phase
                {
                    of.accepted.push_back(socket);
                }
                self.sleepers.wake();
                continue;
            }
            // The loop looks for all that may have ended the sleep.
            let _ = sleeper.sleep(waiting.front().map_or(Limit::Never, |(limit, _)| *limit));
        }
    }

    fn accept_one(&self, entry: Entry) -> Result<Self, c_int> {
        let channel = match new_channel() {
            Ok(channel) => channel,
            Err(error) => {
                entry.reject();
                return Err(error);
            }
        };
        let sleepers = Arc::default();
        channel.queue().wake_instead(&sleepers);
        let request = entry.request.ok_or(libc::EPROTO)?;
        // Destroyed, with the connection, if anything fails below; after the stream.
        let (endpoint, sizes, options) = {
            let inner = lock(&self.inner);
            let id = cm::accepted(inner.endpoint.id()?, request, &channel);
            (Endpoint { id: Some(id), channel }, inner.sizes, inner.options.clone())
        };
        let id = endpoint.id()?;
        let peer = ConnData::decode(&entry.private_data).ok_or(libc::EPROTO)?;
        let mut stream = Stream::new(id, sizes, &sleepers)?;
        stream.open(&peer)?;
        cm_calls::accept_with(id, &stream.qp, &stream.conn_data().encode())?;
        let is_ipv6 = id.head.src.get().is_some_and(|local| local.is_ipv6());
        let domain = if is_ipv6 { libc::AF_INET6 } else { libc::AF_INET };
        Ok(Self::with(endpoint, sleepers, (domain, sizes, options), Phase::Opening(Box::new(stream))))
    }

    /// Takes the next connection of a listener.
    pub(super) fn accept(&self) -> Result<Self, c_int> {
        let limit = self.limit(0, Direction::Receive);
        loop {
            let socket = self.wait(limit, |inner| match &mut inner.phase {
                Phase::Listening(of) => Ok(of.accepted.pop_front()),
                _ => Err(libc::EINVAL),
            })?;
            // The thread may accept another one now.
            self.sleepers.wake();
            // One that has ended before it was established is nothing to the program.
            match socket.established(limit) {
                Err(libc::EAGAIN) if limit != Limit::Now => return Err(libc::EAGAIN),
                Ok(()) | Err(libc::EAGAIN) => return Ok(socket),
                Err(_) => {}
            }
        }
    }

    /// Ends a listener: its thread, and the connections that the program has not taken.
    pub(super) fn end_listener(&self, mut inner: MutexGuard<'_, Inner>) {
        let ended = std::mem::replace(&mut inner.phase, Phase::Failed);
        inner.endpoint.destroy();
        drop(inner);
        self.sleepers.wake();
        drop(ended);
    }
}
