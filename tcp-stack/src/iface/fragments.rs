//! Reassembly of fragmented IP packets (RFC 791 §3.2, RFC 8200 §4.5), called by
//! [`Interface::receive`](super::Interface::receive).
//!
//! Fragments wait in the frames that they arrived in. Once a packet is complete, the other fragments are copied behind
//! the first, into the room that its buffer has left, and the packet is received like one that was never fragmented.
//! Memory is bounded: the records are reserved when the interface is made, waiting buffers count with their true size,
//! and no source has more than a quarter of either. A fragment beyond a limit evicts the packet that has waited
//! longest.
//!
//! A packet with overlapping fragments is discarded, with all fragments that follow (RFC 5722); an exact duplicate is
//! not an overlap.

use super::DropReason;
use super::neighbor::Keys;
use crate::buf::Buf;
use crate::pool::{NIL, Pool};
use crate::time::{Duration, Instant};
use crate::wire::{FragmentHeader, Ipv6Header, Sum};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::{IpAddr, Ipv6Addr};
use core::ops::Range;
use hashbrown::HashMap;

/// Fragments per packet: 1500 bytes over the smallest link that IPv4 allows.
const FRAGMENTS_PER_PACKET_MAX: u16 = 32;
/// Part of the memory that one source may have: one of this many.
const SHARE_DIVISOR: u32 = 4;
/// Smallest buffer size assumed, bytes.
const BUFFER_BYTES_MIN: u32 = 512;
/// RFC 791 §3.1: the longest packet, bytes.
const PACKET_MAX: usize = 65_535;

/// Configured limits of reassembly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentLimits {
    /// Packets that wait at a time, 0..=1024; with 0, fragments are dropped.
    pub(crate) datagrams_max: u16,
    /// True size of all waiting buffers, bytes.
    pub(crate) bytes_max: u32,
    /// Time that a packet waits for its fragments.
    pub(crate) timeout: Duration,
}

/// Key by which fragments belong to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) identification: u32,
    /// Protocol, a part of the key in IPv4; zero for IPv6 (RFC 8200 §4.5: "Only the value from the Offset zero fragment
    /// packet is used").
    pub(super) protocol: u8,
}

/// A fragment, described by its headers.
#[derive(Clone, Debug)]
pub(super) struct Fragment {
    pub(super) key: Key,
    /// Offset of the IP header in the frame.
    pub(super) ip_at: usize,
    /// Position of the fragment's payload in the frame.
    pub(super) payload: Range<usize>,
    /// Offset of that payload in the packet's payload, bytes.
    pub(super) offset: u32,
    pub(super) more: bool,
    /// ECN bits of its IP header.
    pub(super) ecn: u8,
}

impl Fragment {
    /// Returns the end of its payload in the packet's payload, bytes.
    fn end(&self) -> u32 {
        self.offset.wrapping_add(u32::try_from(self.payload.len()).unwrap_or(u32::MAX))
    }

    /// Returns true if its length and offset are possible: RFC 8200 §4.5: all but the last are a multiple of 8 bytes
    /// long, and none reaches beyond the longest packet.
    pub(super) fn is_valid(&self) -> bool {
        let headers = self.payload.start.saturating_sub(self.ip_at);
        let len = self.payload.len();
        let end = usize::try_from(self.end()).unwrap_or(usize::MAX);
        len > 0 && (!self.more || len.is_multiple_of(8)) && end.saturating_add(headers) <= PACKET_MAX
    }
}

/// The result of adding a fragment.
#[derive(Debug)]
pub(super) enum Insertion<B> {
    /// The fragment waits for the others.
    Held,
    /// The packet is complete: its frame.
    Whole(B),
    /// The fragment was dropped.
    Dropped(DropReason),
}

#[derive(Debug)]
struct Piece<B> {
    start: u32,
    end: u32,
    /// Position of the payload in the frame.
    payload: Range<usize>,
    buf: B,
    next: u32,
}

#[derive(Debug)]
struct Datagram {
    key: Key,
    share: usize,
    deadline: Instant,
    /// First of its pieces, which are sorted by offset.
    head: u32,
    pieces: u16,
    /// Payload received, and payload of the packet once the last fragment has arrived; bytes.
    have: u32,
    end: Option<u32>,
    /// True size of its buffers, bytes.
    buffer_bytes: u32,
    /// Offset of the IP header in the first fragment's frame.
    ip_at: usize,
    /// ECN codepoints that its fragments carried, one bit each.
    ecn: u8,
    /// Set once fragments have overlapped: all others are dropped.
    poisoned: bool,
    /// Neighbors in the list, which is sorted by arrival.
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    datagrams: u16,
    buffer_bytes: u32,
}

/// The packets that wait for fragments.
#[derive(Debug)]
pub(super) struct Fragments<B> {
    limits: FragmentLimits,
    datagrams: Pool<Datagram>,
    pieces: Pool<Piece<B>>,
    index: HashMap<Key, u32, Keys>,
    /// Usage per source, by a keyed hash: sources that collide share an entry.
    shares: Vec<Share>,
    buffer_bytes: u32,
    oldest: u32,
    newest: u32,
}

impl<B: Buf> Fragments<B> {
    pub(super) fn new(limits: FragmentLimits, keys: Keys) -> Self {
        let limits = FragmentLimits { datagrams_max: limits.datagrams_max.min(1024), ..limits };
        let datagrams = usize::from(limits.datagrams_max);
        let mut shares = Vec::new();
        shares.resize(datagrams.next_power_of_two(), Share::default());
        Self {
            limits,
            datagrams: Pool::new(limits.datagrams_max.into()),
            pieces: Pool::new((limits.bytes_max / BUFFER_BYTES_MIN).min(1 << 16)),
            // Twice the entries, so that removals never make the table grow.
            index: HashMap::with_capacity_and_hasher(datagrams.wrapping_mul(2), keys),
            shares,
            buffer_bytes: 0,
            oldest: NIL,
            newest: NIL,
        }
    }

    /// Returns the true size of the waiting buffers, bytes.
    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// Adds a valid fragment; calls `lost` for each waiting one that is dropped to make room.
    pub(super) fn take(
        &mut self,
        now: Instant,
        fragment: &Fragment,
        buf: B,
        lost: &mut dyn FnMut(DropReason),
    ) -> Insertion<B> {
        if self.limits.datagrams_max == 0 {
            return Insertion::Dropped(DropReason::IpFragment);
        }
        let known = self.index.get(&fragment.key).copied();
        let Some(index) = known.or_else(|| self.begin(now, fragment.key, lost)) else {
            return Insertion::Dropped(DropReason::FragmentLimit);
        };
        let before = match self.position_for(index, fragment, &buf) {
            Ok(before) => before,
            Err(reason) => {
                if reason == DropReason::FragmentOverlap {
                    self.poison(index, lost);
                }
                return Insertion::Dropped(reason);
            }
        };
        if !self.make_room(index, buf.true_size(), lost) || !self.insert(index, before, fragment, buf) {
            return Insertion::Dropped(DropReason::FragmentLimit);
        }
        match self.datagrams.get(index) {
            Some(datagram) if datagram.end == Some(datagram.have) => self.finish(index, lost),
            _ => Insertion::Held,
        }
    }

    /// Inserts the record of a new packet, evicting another if a limit is reached.
    fn begin(&mut self, now: Instant, key: Key, lost: &mut dyn FnMut(DropReason)) -> Option<u32> {
        let share = self.share_of(key.src);
        let most = (self.limits.datagrams_max / 4).max(1);
        if self.shares.get(share).is_some_and(|share| share.datagrams >= most) {
            let victim = self.oldest_of(share);
            self.remove(victim, DropReason::FragmentLimit, lost);
        } else if self.datagrams.available() == 0 {
            self.remove(self.oldest, DropReason::FragmentLimit, lost);
        }
        let datagram = Datagram {
            key,
            share,
            deadline: now + self.limits.timeout,
            head: NIL,
            pieces: 0,
            have: 0,
            end: None,
            buffer_bytes: 0,
            ip_at: 0,
            ecn: 0,
            poisoned: false,
            older: self.newest,
            newer: NIL,
        };
        let index = self.datagrams.insert(datagram).ok()?;
        match self.datagrams.get_mut(self.newest) {
            Some(newest) => newest.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.index.insert(key, index);
        if let Some(share) = self.shares.get_mut(share) {
            share.datagrams = share.datagrams.saturating_add(1);
        }
        Some(index)
    }

    /// Returns the index of a source's share. An IPv6 host can send from a whole /64, which has one share.
    fn share_of(&self, src: IpAddr) -> usize {
        let src = match src {
            IpAddr::V4(_) => src,
            IpAddr::V6(src) => Ipv6Addr::from_bits(src.to_bits() >> 64).into(),
        };
        let [.., a, b] = self.index.hasher().hash_one(src).to_be_bytes();
        usize::from(u16::from_be_bytes([a, b])) & self.shares.len().saturating_sub(1)
    }

    /// Returns the packet of a share that has waited longest.
    fn oldest_of(&self, share: usize) -> u32 {
        let mut index = self.oldest;
        while let Some(datagram) = self.datagrams.get(index) {
            if datagram.share == share {
                break;
            }
            index = datagram.newer;
        }
        index
    }

    /// Returns the piece after which a fragment belongs, `NIL` for the first place, or the reason to drop it.
    fn position_for(&self, index: u32, fragment: &Fragment, buf: &B) -> Result<u32, DropReason> {
        let datagram = self.datagrams.get(index).ok_or(DropReason::FragmentLimit)?;
        let (start, end) = (fragment.offset, fragment.end());
        let contradicts = match datagram.end {
            Some(known) => end > known || (!fragment.more && end != known),
            None => false,
        };
        if datagram.poisoned || contradicts {
            return Err(DropReason::FragmentOverlap);
        }
        let mut before = NIL;
        let mut at = datagram.head;
        while let Some(piece) = self.pieces.get(at) {
            if (piece.start, piece.end) == (start, end) {
                let same = piece.buf.bytes().get(piece.payload.clone())
                    == buf.bytes().get(fragment.payload.clone())
                    && fragment.more == (datagram.end != Some(end));
                return Err(if same { DropReason::FragmentDuplicate } else { DropReason::FragmentOverlap });
            }
            // It overlaps, or lies beyond the end.
            if (piece.start < end && start < piece.end) || (!fragment.more && piece.end > end) {
                return Err(DropReason::FragmentOverlap);
            }
            if piece.start < start {
                before = at;
            }
            at = piece.next;
        }
        if datagram.pieces >= FRAGMENTS_PER_PACKET_MAX {
            return Err(DropReason::FragmentLimit);
        }
        Ok(before)
    }

    /// Makes room for a buffer of a packet by evicting the packets that have waited longest: those of the same source
    /// if it exceeds its share. Returns `false` if the packet itself was evicted.
    fn make_room(&mut self, index: u32, size: usize, lost: &mut dyn FnMut(DropReason)) -> bool {
        let Some(share) = self.datagrams.get(index).map(|datagram| datagram.share) else { return false };
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        for _ in 0..=self.limits.datagrams_max {
            let buffer_bytes = self.shares.get(share).map_or(0, |share| share.buffer_bytes);
            let victim = if buffer_bytes.saturating_add(size) > self.limits.bytes_max / SHARE_DIVISOR {
                self.oldest_of(share)
            } else if self.buffer_bytes.saturating_add(size) > self.limits.bytes_max
                || self.pieces.available() == 0
            {
                self.oldest
            } else {
                return true;
            };
            self.remove(victim, DropReason::FragmentLimit, lost);
            if victim == index {
                return false;
            }
        }
        false
    }

    fn insert(&mut self, index: u32, before: u32, fragment: &Fragment, buf: B) -> bool {
        let Some(datagram) = self.datagrams.get_mut(index) else { return false };
        let next = match self.pieces.get(before) {
            Some(before) => before.next,
            None => datagram.head,
        };
        let (start, end) = (fragment.offset, fragment.end());
        let size = u32::try_from(buf.true_size()).unwrap_or(u32::MAX);
        let piece = Piece { start, end, payload: fragment.payload.clone(), buf, next };
        let Ok(at) = self.pieces.insert(piece) else { return false };
        match self.pieces.get_mut(before) {
            Some(before) => before.next = at,
            None => datagram.head = at,
        }
        if start == 0 {
            datagram.ip_at = fragment.ip_at;
        }
        if !fragment.more {
            datagram.end = Some(end);
        }
        datagram.pieces = datagram.pieces.saturating_add(1);
        datagram.have = datagram.have.saturating_add(end.wrapping_sub(start));
        datagram.buffer_bytes = datagram.buffer_bytes.saturating_add(size);
        datagram.ecn |= 1 << (fragment.ecn & 3);
        self.buffer_bytes = self.buffer_bytes.saturating_add(size);
        if let Some(share) = self.shares.get_mut(datagram.share) {
            share.buffer_bytes = share.buffer_bytes.saturating_add(size);
        }
        true
    }

    /// Completes a packet that has arrived in full.
    fn finish(&mut self, index: u32, lost: &mut dyn FnMut(DropReason)) -> Insertion<B> {
        let Some((datagram, head)) = self.unlink(index) else {
            return Insertion::Dropped(DropReason::FragmentLimit);
        };
        let made = head.ok_or(DropReason::FragmentLimit).and_then(|first| self.join(&datagram, first));
        // The first piece is out; this frees the buffers of the others.
        let mut at = datagram.head;
        while let Some(piece) = self.pieces.remove(at) {
            at = piece.next;
        }
        match made {
            Ok(buf) => Insertion::Whole(buf),
            Err(reason) => {
                // The returned reason counts the fragment that completed the packet.
                for _ in 1..datagram.pieces {
                    lost(reason);
                }
                Insertion::Dropped(reason)
            }
        }
    }

    /// Copies the other pieces behind the first, and rewrites its headers for the whole packet.
    fn join(&self, datagram: &Datagram, first: Piece<B>) -> Result<B, DropReason> {
        const NOT_ECT: u8 = 1 << 0;
        const CE: u8 = 1 << 3;
        // RFC 3168 §5.3: CE of any fragment is set on the whole, which "MUST NOT occur if any of the other
        // fragments contributing to this reassembly carries the Not-ECT codepoint"; then it is dropped.
        if datagram.ecn & CE != 0 && datagram.ecn & NOT_ECT != 0 {
            return Err(DropReason::FragmentMalformed);
        }
        let mut buf = first.buf;
        if !buf.truncate(first.payload.end) {
            return Err(DropReason::FragmentTooLarge);
        }
        let mut at = datagram.head;
        while let Some(piece) = self.pieces.get(at) {
            let from = piece.buf.bytes().get(piece.payload.clone()).ok_or(DropReason::FragmentMalformed)?;
            let to = buf.append(from.len()).ok_or(DropReason::FragmentTooLarge)?;
            for (to, from) in to.iter_mut().zip(from) {
                *to = *from;
            }
            at = piece.next;
        }
        let marked = datagram.ecn & CE != 0;
        let is_ipv4 = datagram.key.src.is_ipv4();
        let packet = buf.bytes_mut().and_then(|frame| frame.get_mut(datagram.ip_at..));
        let headers = first.payload.start.saturating_sub(datagram.ip_at);
        let rewritten = packet.and_then(|packet| {
            if is_ipv4 {
                rewrite_ipv4(packet, headers, marked)
            } else {
                rewrite_ipv6(packet, headers, marked)
            }
        });
        rewritten.map(|()| buf).ok_or(DropReason::FragmentMalformed)
    }

    /// Discards a packet whose fragments overlap. The record stays, so that later fragments are dropped, too.
    fn poison(&mut self, index: u32, lost: &mut dyn FnMut(DropReason)) {
        let Some(datagram) = self.datagrams.get_mut(index) else { return };
        datagram.poisoned = true;
        let (mut at, buffer_bytes, share) = (datagram.head, datagram.buffer_bytes, datagram.share);
        (datagram.head, datagram.buffer_bytes, datagram.pieces) = (NIL, 0, 0);
        self.release(buffer_bytes, share);
        while let Some(piece) = self.pieces.remove(at) {
            lost(DropReason::FragmentOverlap);
            at = piece.next;
        }
    }

    fn release(&mut self, buffer_bytes: u32, share: usize) {
        self.buffer_bytes = self.buffer_bytes.saturating_sub(buffer_bytes);
        if let Some(share) = self.shares.get_mut(share) {
            share.buffer_bytes = share.buffer_bytes.saturating_sub(buffer_bytes);
        }
    }

    /// Removes a packet from the lists; returns it with its first piece. The caller frees the others, from `head` on.
    fn unlink(&mut self, index: u32) -> Option<(Datagram, Option<Piece<B>>)> {
        let mut datagram = self.datagrams.remove(index)?;
        self.index.remove(&datagram.key);
        match self.datagrams.get_mut(datagram.older) {
            Some(older) => older.newer = datagram.newer,
            None => self.oldest = datagram.newer,
        }
        match self.datagrams.get_mut(datagram.newer) {
            Some(newer) => newer.older = datagram.older,
            None => self.newest = datagram.older,
        }
        self.release(datagram.buffer_bytes, datagram.share);
        if let Some(share) = self.shares.get_mut(datagram.share) {
            share.datagrams = share.datagrams.saturating_sub(1);
        }
        let first = self.pieces.remove(datagram.head);
        datagram.head = first.as_ref().map_or(NIL, |first| first.next);
        Some((datagram, first))
    }

    /// Discards a packet; returns the frame of its first fragment, if that has arrived.
    fn remove(&mut self, index: u32, reason: DropReason, lost: &mut dyn FnMut(DropReason)) -> Option<B> {
        let (datagram, first) = self.unlink(index)?;
        for _ in 0..datagram.pieces {
            lost(reason);
        }
        let mut at = datagram.head;
        while let Some(piece) = self.pieces.remove(at) {
            at = piece.next;
        }
        first.filter(|first| first.start == 0).map(|first| first.buf)
    }

    /// Discards packets that have waited too long: calls `lost` for each of their fragments, and `expired` with the
    /// first fragment of each packet that has it.
    pub(super) fn handle_timeouts(
        &mut self,
        now: Instant,
        lost: &mut dyn FnMut(DropReason),
        expired: &mut dyn FnMut(B),
    ) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            if let Some(first) = self.remove(self.oldest, DropReason::FragmentTimeout, lost) {
                expired(first);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.datagrams.get(self.oldest).map(|datagram| datagram.deadline)
    }
}

/// Rewrites the headers of a first fragment, `headers` bytes long, for the whole packet.
fn rewrite_ipv4(packet: &mut [u8], headers: usize, marked: bool) -> Option<()> {
    let [l0, l1] = u16::try_from(packet.len()).ok()?.to_be_bytes();
    let header = packet.get_mut(..headers)?;
    let [_, class, len0, len1, _, _, flags, offset, _, _, c0, c1, ..] = header else { return None };
    (*len0, *len1, *flags, *offset, *c0, *c1) = (l0, l1, 0, 0, 0, 0);
    *class |= if marked { 3 } else { 0 };
    let [s0, s1] = Sum::of(header).checksum().to_be_bytes();
    *header.get_mut(10..12)?.first_chunk_mut()? = [s0, s1];
    Some(())
}

/// Does the same for IPv6: the fragment header at the end of the headers becomes that of an atomic fragment.
fn rewrite_ipv6(packet: &mut [u8], headers: usize, marked: bool) -> Option<()> {
    let payload_len = packet.len().checked_sub(Ipv6Header::LEN)?;
    let [l0, l1] = u16::try_from(payload_len).ok()?.to_be_bytes();
    let [_, class, _, _, len0, len1, ..] = packet else { return None };
    (*len0, *len1) = (l0, l1);
    *class |= if marked { 0x30 } else { 0 };
    let at = headers.checked_sub(FragmentHeader::LEN)?;
    packet.get_mut(at..headers)?.get_mut(2..4)?.fill(0);
    Some(())
}
