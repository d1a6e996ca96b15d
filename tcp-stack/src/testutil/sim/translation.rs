//! Address translation that makes a simultaneous open of two active opens.
//!
//! A stack chooses its source port, so two stacks that connect to each other would not meet: each sends its SYN to a
//! port that the other one does not use. A translator between them, as in the "hole punching" of RFC 5128 §3.4, merges
//! the two flows. The wire carries the first caller's flow; the second caller sees translated ports:
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

/// The two views of one translated flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Translation {
    /// Host of the second caller.
    host: usize,
    /// Flow on the wire: the first caller's address, and the address that it calls.
    first: SocketAddr,
    called: SocketAddr,
    /// View of the second caller: the address that it calls, and its own.
    caller: SocketAddr,
    second: SocketAddr,
}

impl Translation {
    /// Returns the translation between a caller at `first` and one on `host` at `second`, both of which call port
    /// `service`.
    pub(super) const fn new(host: usize, service: u16, first: SocketAddr, second: SocketAddr) -> Self {
        let called = SocketAddr::new(second.ip(), service);
        let caller = SocketAddr::new(first.ip(), service);
        Self { host, first, called, caller, second }
    }
}

impl Simulation {
    /// Returns a segment of a second caller as the wire carries it, or `None` if it is not translated.
    pub(super) fn translate_out(&self, from: usize, seen: &WireSegment, frame: &[u8]) -> Option<Vec<u8>> {
        let translation = self
            .translations
            .iter()
            .find(|entry| entry.host == from && (entry.second, entry.caller) == (seen.src, seen.dst))?;
        rewrite(frame, |header, _| {
            (header.src_port, header.dst_port) = (translation.called.port(), translation.first.port());
        })
    }

    /// Returns a frame from the wire as it reaches host `to`: translated if it is for a second caller.
    pub(super) fn translate_in(&self, to: usize, frame: Vec<u8>) -> Vec<u8> {
        if self.translations.is_empty() {
            return frame;
        }
        let Ok(Some(seen)) = WireSegment::parse(&frame) else { return frame };
        let translation = self
            .translations
            .iter()
            .find(|entry| entry.host == to && (entry.first, entry.called) == (seen.src, seen.dst));
        let Some(translation) = translation else { return frame };
        let translated = rewrite(&frame, |header, _| {
            (header.src_port, header.dst_port) = (translation.caller.port(), translation.second.port());
        });
        translated.unwrap_or(frame)
    }
}
