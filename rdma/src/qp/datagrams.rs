//! Ends of datagrams: the queue pair of a program, which sends to any other, and the link between two devices, which
//! carries them. A queue pair has neither stream nor peer of its own; its device takes what it sends, and passes it
//! what has arrived.

use super::{Event, QueuePair};

/// Bytes of datagrams that wait at a link. Those beyond are dropped, as by a network.
const ARRIVED_MAX: usize = 256 << 10;

/// End that sends and receives datagrams.
#[derive(Debug)]
pub(crate) enum Datagrams {
    /// Queue pair of a program: a datagram goes to its next buffer, and is dropped if there is none.
    QueuePair,
    /// Link between two devices: datagrams wait until the device takes them.
    Link(Arrived),
}

/// Datagrams that have arrived at a link, each with its header.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// Bytes of those in `ends`, and of the one that is incomplete.
    bytes: Vec<u8>,
    /// End of each complete one in `bytes`.
    ends: Vec<usize>,
    /// True if a part of the incomplete one was dropped.
    is_cut: bool,
}

impl Arrived {
    /// Returns the datagrams that are complete.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = core::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).filter_map(|(begin, end)| self.bytes.get(begin..*end))
    }

    /// Drops the datagrams that are complete, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        let end = self.ends.last().copied().unwrap_or(0);
        self.bytes.drain(..end);
        self.ends.clear();
    }

    /// Adds a part of a datagram, its last one if `last` is set. Returns false if there is no room for it.
    pub(crate) fn add<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>, last: bool) -> bool {
        let has_room = !self.is_cut && self.bytes.len() < ARRIVED_MAX;
        self.is_cut = !has_room && !last;
        if !has_room {
            self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
            return false;
        }
        pieces.for_each(|piece| self.bytes.extend_from_slice(piece));
        if last {
            self.ends.push(self.bytes.len());
        }
        true
    }
}

impl QueuePair {
    /// Returns true for an end of datagrams.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.numbered.as_deref().is_some_and(|numbered| numbered.datagrams.is_some())
    }

    /// Returns the place for datagrams of a link.
    pub(crate) fn arrived(&mut self) -> Option<&mut Arrived> {
        match self.numbered.as_deref_mut()?.datagrams.as_mut()? {
            Datagrams::Link(arrived) => Some(arrived),
            Datagrams::QueuePair => None,
        }
    }

    /// Adds a part of a datagram to those of a link. Returns false if it was dropped.
    pub(crate) fn arrive<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>, last: bool) -> bool {
        let Some(arrived) = self.arrived() else { return false };
        let taken = arrived.add(pieces, last);
        if taken && last && arrived.ends.len() == 1 {
            self.events.push_back(Event::Datagrams);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(arrived: &mut Arrived, bytes: &[u8], last: bool) -> bool {
        arrived.add([bytes].into_iter(), last)
    }

    #[test]
    fn parts_of_a_datagram_are_joined_and_the_last_one_stays_until_it_is_whole() {
        let mut arrived = Arrived::default();
        for (part, last) in [(&b"one"[..], true), (b"t", false), (b"wo", true), (b"thr", false)] {
            assert!(add(&mut arrived, part, last));
        }
        assert_eq!(arrived.iter().collect::<Vec<_>>(), [b"one", b"two"]);
        arrived.clear();
        assert_eq!(arrived.iter().count(), 0);
        assert!(add(&mut arrived, b"ee", true));
        assert_eq!(arrived.iter().collect::<Vec<_>>(), [b"three"]);
    }

    #[test]
    fn datagrams_beyond_the_room_are_dropped_whole() {
        let mut arrived = Arrived::default();
        let half = vec![7; ARRIVED_MAX / 2 - 1];
        assert!(add(&mut arrived, &half, true) && add(&mut arrived, &half, true));
        assert!(add(&mut arrived, b"many bytes, ", false));
        assert!(!add(&mut arrived, b"too many, ", false));
        assert_eq!(arrived.iter().map(<[u8]>::len).collect::<Vec<_>>(), [half.len(); 2]);
        arrived.clear();
        assert!(!add(&mut arrived, b"and their end", true));
        assert!(add(&mut arrived, b"again", true));
        assert_eq!(arrived.iter().collect::<Vec<_>>(), [b"again"]);
    }
}
