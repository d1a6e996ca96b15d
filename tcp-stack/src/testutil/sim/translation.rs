//! Connections that both ends open at once.
//!
//! A stack chooses the port that it connects from, so two that call each other miss: each calls a port on
//! which the other one is not. A translator between them, as in the "hole punching" of RFC 5128 §3.4, makes
//! the two flows one. On the wire there is the first caller's flow; the second has another view of it:
//!
//! ```text
//!   first caller:   p ─▶ service        on the wire:  p ─▶ service
//!   second caller:  q ─▶ service                      p ◀─ service
//! ```

use super::Simulation;
use crate::testutil::WireSegment;
use crate::testutil::segment::rewrite;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// A flow with two views.
#[derive(Clone, Copy, Debug)]
pub(super) struct Translation {
    /// The second caller.
    host: usize,
    /// The flow on the wire: the first caller, and the port that it calls.
    first: SocketAddr,
    called: SocketAddr,
    /// The second caller's view: what it calls, and from where.
    caller: SocketAddr,
    second: SocketAddr,
}

impl Translation {
    /// Of a first caller at `first` and a second one, on `host`, at `second`, who both call port `service`.
    pub(super) const fn new(host: usize, service: u16, first: SocketAddr, second: SocketAddr) -> Self {
        let called = SocketAddr::new(second.ip(), service);
        let caller = SocketAddr::new(first.ip(), service);
        Self { host, first, called, caller, second }
    }
}

impl Simulation {
    /// A segment of the second caller as it goes on the wire, if it is one.
    pub(super) fn translate_out(&self, from: usize, seen: &WireSegment, frame: &[u8]) -> Option<Vec<u8>> {
        let translation = self
            .translations
            .iter()
            .find(|it| it.host == from && (it.second, it.caller) == (seen.src, seen.dst))?;
        rewrite(frame, |header, _| {
            (header.src_port, header.dst_port) = (translation.called.port(), translation.first.port());
        })
    }

    /// A frame from the wire as it reaches a host: segments for a second caller in its view.
    pub(super) fn translate_in(&self, to: usize, frame: Vec<u8>) -> Vec<u8> {
        if self.translations.is_empty() {
            return frame;
        }
        let Ok(Some(seen)) = WireSegment::parse(&frame) else { return frame };
        let translation = self
            .translations
            .iter()
            .find(|it| it.host == to && (it.first, it.called) == (seen.src, seen.dst));
        let Some(translation) = translation else { return frame };
        let translated = rewrite(&frame, |header, _| {
            (header.src_port, header.dst_port) = (translation.caller.port(), translation.second.port());
        });
        translated.unwrap_or(frame)
    }
}
