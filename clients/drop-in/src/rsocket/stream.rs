//! Byte stream over a queue pair: the protocol of rdma-core's rsockets (`docs/rsocket`), as it is on iWARP.
//!
//! Data are RDMA Writes into the peer's receive buffer. Each is followed by a Send of four bytes, which states the
//! length; rdma-core sends these messages in the byte order of the machine. The receive buffer is granted by halves: a
//! half that the program has read is granted again by an RDMA Write of its address into the peer's list of targets,
//! with another message, which also grants messages.

#![allow(
    clippy::cast_possible_truncation,
    reason = "buffers have at most 64 MiB, queues at most 4096 entries"
)]

mod maps;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

use iwarp_verbs::{
    Access, Data, Mr, QpCap, QpOptions, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge, Stag, WcStatus,
    WorkCompletion,
};

use super::completions::Completions;
use super::sizes::Sizes;
use super::wire::{ConnData, IoMap, MESSAGE_BYTES, Message, TARGET_BYTES, TARGETS, Target};
use crate::cm::Id;
use crate::context::number;
use crate::objects::Pd;
use crate::raw::object;
use crate::sleepers::Sleepers;

/// Bytes of the send buffer that must be free for the program to send.
const SEND_LOW: u32 = 2048;
/// Length of the first RDMA Write of a call, bytes. Each that follows is twice as long, up to [`TRANSFER_MAX`]: the
/// copy of one overlaps with the transfer of the one before.
const TRANSFER_FIRST: u32 = 2048;
const TRANSFER_MAX: u32 = 65_536;
/// Control requests that may be outstanding.
const CONTROL_MAX: u32 = 4;
/// Completions that are polled at a time.
const POLL_MAX: usize = 16;

// Kinds of requests, in the high half of their numbers.
const RECEIVE: u64 = 1;
const DATA: u64 = 2;
const CONTROL: u64 = 3;
const LAST: u64 = 4;

/// One end of a stream.
#[derive(Debug)]
pub(super) struct Stream {
    // Dropped in this order: the queue pair before its memory and its completion queue.
    pub(super) qp: QueuePair,
    /// Send buffer, receive buffer, messages, targets, map of buffers, in this order.
    memory: Mr,
    pub(super) completions: Completions,
    sizes: Sizes,
    /// True from the connection's establishment to its end.
    pub(super) connected: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Error that has ended the stream.
    pub(super) error: c_int,

    // Sending.
    send_at: u32,
    send_free: u32,
    slots_free: u16,
    sent: u16,
    allowed: u16,
    /// Target in use, and its place in the list.
    target: Target,
    target_at: u32,
    control_sent: u32,
    control_max: u32,

    // Receiving.
    next_buffer: u16,
    /// Lengths of the data in the receive buffer.
    unread: VecDeque<u32>,
    unread_bytes: u32,
    recv_at: u32,
    recv_free: u32,
    grant_at: u32,
    received: u16,
    granted: u16,
    /// List of targets of the peer, and the place to write next.
    remote: Target,
    remote_at: u32,

    /// Places of the peer's map of buffers, with this side's buffers.
    maps: Vec<Option<maps::Mapped>>,
    remote_maps: Target,
    /// The peer's map of buffers.
    peer_maps: Vec<IoMap>,
}

impl Stream {
    /// Creates the queue pair and the buffers of a connection. `id` has a device. Completions wake `sleepers`.
    pub(super) fn new(id: &Id, sizes: Sizes, sleepers: &Arc<Sleepers>) -> Result<Self, c_int> {
        let open = id.verbs().ok_or(libc::EINVAL)?;
        let pd = object::<Pd>(id.head.pd.load(std::sync::atomic::Ordering::Acquire)).ok_or(libc::ENOMEM)?;
        let recv_wr = sizes.recv_buffers();
        let entries = u32::from(sizes.send_queue) + u32::from(recv_wr);
        let completions = Completions::new(open, entries, sleepers)?;
        let cap = QpCap {
            max_send_wr: sizes.send_queue,
            max_recv_wr: recv_wr,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: sizes.inline,
        };
        let options = QpOptions { cap, sq_sig_all: true, ..QpOptions::new(completions.cq()) };
        let qp = pd.pd.create_qp(&options).map_err(|error| number(&error))?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = pd.pd.alloc_mr(sizes.bytes(), access).map_err(|error| number(&error))?;
        let mut stream = Self {
            qp,
            memory,
            completions,
            sizes,
            connected: false,
            readable: false,
            writable: false,
            error: 0,
            send_at: 0,
            send_free: sizes.send_bytes,
            slots_free: sizes.send_queue.saturating_sub(CONTROL_MAX as u16),
            sent: 0,
            allowed: 0,
            target: Target::default(),
            target_at: 0,
            control_sent: 0,
            control_max: CONTROL_MAX,
            next_buffer: 0,
            unread: VecDeque::new(),
            unread_bytes: 0,
            recv_at: 0,
            recv_free: sizes.half(),
            grant_at: sizes.half(),
            received: 0,
            granted: sizes.recv_queue / 2,
            remote: Target::default(),
            remote_at: 1,
            maps: Vec::new(),
            remote_maps: Target::default(),
            peer_maps: Vec::new(),
        };
        for _ in 0..recv_wr {
            stream.post_buffer()?;
        }
        Ok(stream)
    }

    /// Returns the private data of this side's connect request or reply.
    pub(super) fn conn_data(&self) -> ConnData {
        let Sizes { recv_queue, iomaps, .. } = self.sizes;
        let at = |start: u32, length| Target {
            address: self.memory.addr() + u64::from(start),
            key: self.memory.rkey().0,
            length,
        };
        ConnData {
            credits: recv_queue,
            iomaps,
            targets: at(self.sizes.targets_start(), TARGETS),
            buffer: at(self.sizes.recv_start(), self.sizes.half()),
        }
    }

    /// Begins with the private data of the peer.
    pub(super) fn open(&mut self, peer: &ConnData) -> Result<(), c_int> {
        // The list has room for another target, beside the one in use.
        if peer.targets.length < 2 {
            return Err(libc::EPROTO);
        }
        (self.target, self.remote, self.allowed) = (peer.buffer, peer.targets, peer.credits);
        self.target_at = 0;
        let maps = u64::from(peer.targets.length) * TARGET_BYTES as u64;
        self.remote_maps = Target {
            address: peer.targets.address.wrapping_add(maps),
            key: peer.targets.key,
            length: peer.iomaps.into(),
        };
        self.maps.resize_with(peer.iomaps.into(), || None);
        Ok(())
    }

    pub(super) fn established(&mut self) {
        (self.connected, self.readable, self.writable) = (true, true, true);
    }

    /// Returns the error of sending on a stream that the program cannot write to: what has ended it, or else that one
    /// of the two ends has shut it down.
    pub(super) const fn send_error(&self) -> c_int {
        if self.error == 0 { libc::EPIPE } else { self.error }
    }

    fn end(&mut self, error: c_int) {
        (self.connected, self.readable, self.writable) = (false, false, false);
        if self.error == 0 {
            self.error = error;
        }
    }

    /// Posts the next receive buffer.
    fn post_buffer(&mut self) -> Result<(), c_int> {
        let at = self.next_buffer;
        let offset = self.sizes.messages_start() + u32::from(at) * MESSAGE_BYTES as u32;
        let sge = self.memory.sge(offset.into(), MESSAGE_BYTES as u32);
        let wr = RecvWr { wr_id: RECEIVE << 32 | u64::from(at), sg_list: &[sge] };
        self.next_buffer = (at + 1) % self.sizes.recv_buffers();
        self.qp.post_recv(&[wr]).map_err(|_| libc::EIO)
    }

    fn post(&self, requests: &[SendWr<'_>]) -> Result<(), c_int> {
        self.qp.post_send(requests).map_err(|_| libc::EIO)
    }

    /// Returns a request that writes into the peer's memory.
    fn write<'a>(kind: u64, bytes: u32, (remote_addr, rkey): (u64, u32), data: Data<'a>) -> SendWr<'a> {
        let op = SendOp::RdmaWrite { remote_addr, rkey: Stag(rkey) };
        SendWr { wr_id: kind << 32 | u64::from(bytes), op, data, flags: SendFlags::default() }
    }

    /// Returns a request that sends a message.
    fn message(kind: u64, text: &[u8]) -> SendWr<'_> {
        SendWr {
            wr_id: kind << 32,
            op: SendOp::SEND,
            data: Data::Inline(text),
            flags: SendFlags { solicited: true, ..SendFlags::default() },
        }
    }

    // --- receiving and granting

    /// Polls completions, and grants what the program has read. Returns true if a completion has come.
    pub(super) fn advance(&mut self) -> bool {
        let mut some = [WorkCompletion::default(); POLL_MAX];
        let mut any = false;
        loop {
            self.grant();
            let Ok(polled) = self.completions.cq().poll(&mut some) else {
                self.end(libc::EIO);
                return true;
            };
            for wc in some.iter().take(polled) {
                self.complete(wc);
            }
            any |= polled > 0;
            if polled < POLL_MAX {
                self.grant();
                return any;
            }
        }
    }

    fn complete(&mut self, wc: &WorkCompletion) {
        let (kind, low) = (wc.wr_id >> 32, (wc.wr_id & u64::from(u32::MAX)) as u32);
        let failed = wc.status != WcStatus::Success;
        match kind {
            RECEIVE if failed => {
                // The connection has ended, without a message of the peer that says so.
                if self.connected {
                    self.end(libc::ECONNRESET);
                }
                return;
            }
            RECEIVE => {
                if let Err(error) = self.take_message(low) {
                    self.end(error);
                }
                return;
            }
            DATA => {
                self.slots_free += 1;
                self.send_free += low;
            }
            CONTROL => self.control_max = self.control_max.wrapping_add(1),
            _ => {
                self.control_max = self.control_max.wrapping_add(1);
                self.end(0);
            }
        }
        if failed && self.connected {
            self.end(libc::EIO);
        }
    }

    /// Handles a message of the peer, and posts its buffer again.
    fn take_message(&mut self, buffer: u32) -> Result<(), c_int> {
        let mut bytes = [0; MESSAGE_BYTES];
        let offset = self.sizes.messages_start() + buffer * MESSAGE_BYTES as u32;
        self.memory.read(offset.into(), &mut bytes).map_err(|_| libc::EIO)?;
        if self.connected {
            self.post_buffer()?;
        }
        match Message::decode(bytes) {
            Message::Data(length) => {
                let granted = self.sizes.recv_bytes.saturating_sub(self.unread_bytes + self.recv_free);
                let is_granted = self.unread.len() < usize::from(self.sizes.recv_queue);
                if length > granted || !is_granted {
                    return Err(libc::EPROTO);
                }
                self.unread_bytes += length;
                self.unread.push_back(length);
            }
            Message::Grant(allowed) => self.allowed = allowed,
            Message::Shutdown if self.writable => self.readable = false,
            Message::Shutdown | Message::Disconnect => self.end(0),
            Message::Mapped => self.read_map(),
            Message::Other => {}
        }
        Ok(())
    }

    fn controls_free(&self) -> u32 {
        self.control_max.wrapping_sub(self.control_sent)
    }

    /// Grants the peer the half of the receive buffer that is free, and messages.
    fn grant(&mut self) {
        let half = self.sizes.half();
        let is_half_free = self.recv_free >= half;
        let are_messages_due = self.received.wrapping_sub(self.granted).cast_signed() >= 0;
        if !self.connected || !(is_half_free || are_messages_due) || self.controls_free() < 2 {
            return;
        }
        self.granted = self.received.wrapping_add(self.sizes.recv_queue / 2);
        let text = Message::Grant(self.received.wrapping_add(self.sizes.recv_queue)).encode();
        let message = Self::message(CONTROL, &text);
        let posted = if is_half_free {
            self.control_sent = self.control_sent.wrapping_add(2);
            let address = self.memory.addr() + u64::from(self.sizes.recv_start() + self.grant_at);
            let target = Target { address, key: self.memory.rkey().0, length: half }.to_bytes();
            let place = self.remote.address.wrapping_add(u64::from(self.remote_at) * TARGET_BYTES as u64);
            self.recv_free -= half;
            self.grant_at = if self.grant_at == 0 { half } else { 0 };
            self.remote_at = (self.remote_at + 1) % self.remote.length;
            self.post(&[Self::write(CONTROL, 0, (place, self.remote.key), Data::Inline(&target)), message])
        } else {
            self.control_sent = self.control_sent.wrapping_add(1);
            self.post(&[message])
        };
        if let Err(error) = posted {
            self.end(error);
        }
    }

    /// Returns the number of bytes that the program can read (`FIONREAD`).
    pub(super) const fn unread(&self) -> u32 {
        self.unread_bytes
    }

    /// Returns the number of bytes that were sent and are not acknowledged (`SIOCOUTQ`).
    pub(super) const fn unacknowledged(&self) -> u32 {
        self.sizes.send_bytes - self.send_free
    }

    pub(super) fn has_data(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Copies received bytes to `out`, and returns their number. With `peek`, they stay. What is read is granted at
    /// once, also if the call waits for more: the peer may wait for the grant.
    pub(super) fn read(&mut self, out: &mut [u8], peek: bool) -> usize {
        let (mut at, mut done) = (self.recv_at, 0_usize);
        let mut consumed = Vec::new();
        for length in &self.unread {
            let count = (out.len() - done).min(*length as usize);
            let Some(mut part) = out.get_mut(done..done + count) else { break };
            while !part.is_empty() {
                let here = part.len().min((self.sizes.recv_bytes - at) as usize);
                let (now, rest) = part.split_at_mut(here);
                // Within the buffer, whose length bounds `at`.
                let _ = self.memory.read((self.sizes.recv_start() + at).into(), now);
                at = (at + here as u32) % self.sizes.recv_bytes;
                part = rest;
            }
            done += count;
            consumed.push(count as u32);
            if done == out.len() {
                break;
            }
        }
        if !peek {
            self.recv_at = at;
            consumed.into_iter().for_each(|count| self.consume(count));
            self.grant();
        }
        done
    }

    fn consume(&mut self, count: u32) {
        let Some(first) = self.unread.front_mut() else { return };
        *first -= count;
        if *first == 0 {
            self.unread.pop_front();
            self.received = self.received.wrapping_add(1);
        }
        self.unread_bytes -= count;
        self.recv_free += count;
    }

    // --- sending

    /// Returns true if the program can send: there are requests, messages, room in the send buffer, and a target.
    pub(super) fn can_send(&mut self) -> bool {
        if self.target.length == 0 {
            self.next_target();
        }
        self.slots_free >= 2
            && self.send_free >= SEND_LOW.min(self.sizes.send_bytes)
            && self.sent != self.allowed
            && self.target.length > 0
    }

    /// Takes the next target from the list, if the peer has written it. Its last word has the length, and is loaded
    /// before the address: the peer's Write may be placed meanwhile.
    fn next_target(&mut self) {
        let offset = u64::from(self.sizes.targets_start()) + u64::from(self.target_at) * TARGET_BYTES as u64;
        let last = self.memory.load(offset + (TARGET_BYTES - size_of::<u64>()) as u64);
        if last.is_ok_and(|last| Target::of_last_word(last).length > 0) {
            let mut bytes = [0; TARGET_BYTES];
            // Within the memory, as the word above.
            let _ = self.memory.read(offset, &mut bytes);
            self.target = Target::from_bytes(&bytes);
            // The peer writes its place again when this target is used up.
            let _ = self.memory.write(offset, &[0; TARGET_BYTES]);
        }
    }

    /// Copies bytes to the send buffer. Returns the one or two elements that they take there.
    fn buffer(&mut self, bytes: &[u8]) -> [Sge; 2] {
        let room = (self.sizes.send_bytes - self.send_at) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(room));
        let elements = [
            self.memory.sge(self.send_at.into(), first.len() as u32),
            self.memory.sge(0, second.len() as u32),
        ];
        // Within the buffer.
        let _ = self.memory.write(self.send_at.into(), first);
        let _ = self.memory.write(0, second);
        self.send_at = (self.send_at + bytes.len() as u32) % self.sizes.send_bytes;
        elements
    }

    /// Posts bytes of the program as an RDMA Write, with a message if there is one.
    fn post_bytes(&mut self, bytes: &[u8], to: (u64, u32), message: Option<Message>) -> Result<(), c_int> {
        let length = bytes.len() as u32;
        let elements;
        let data = if bytes.len() <= usize::from(self.sizes.inline) {
            Data::Inline(bytes)
        } else {
            elements = self.buffer(bytes);
            Data::List(if elements[1].length == 0 { &elements[..1] } else { &elements })
        };
        let write = Self::write(DATA, length, to, data);
        self.send_free -= length;
        let Some(message) = message else {
            self.slots_free -= 1;
            return self.post(&[write]);
        };
        self.slots_free -= 2;
        self.sent = self.sent.wrapping_add(1);
        self.post(&[write, Self::message(DATA, &message.encode())])
    }

    /// Sends as much as is possible now, and returns its length. `length` is that of the RDMA Write to begin with.
    pub(super) fn send(&mut self, bytes: &[u8], length: &mut u32) -> Result<usize, c_int> {
        // Data may say that a buffer is mapped.
        if !self.announce_maps()? {
            return Ok(0);
        }
        let mut done = 0_usize;
        while done < bytes.len() && self.writable && self.can_send() {
            let now = next_length(bytes.len() - done, length).min(self.send_free).min(self.target.length);
            let part = bytes.get(done..done + now as usize).unwrap_or_default();
            let to = (self.target.address, self.target.key);
            self.target.address = self.target.address.wrapping_add(now.into());
            self.target.length -= now;
            if self.target.length == 0 {
                self.target_at = (self.target_at + 1) % TARGETS;
            }
            self.post_bytes(part, to, Some(Message::Data(now)))?;
            done += now as usize;
        }
        Ok(done)
    }

    /// Sends a message that the program sends no more, or that the stream has ended. Returns false if that is not
    /// possible now.
    pub(super) fn send_end(&mut self, how: Message) -> Result<bool, c_int> {
        if self.controls_free() == 0 {
            return Ok(false);
        }
        self.control_sent = self.control_sent.wrapping_add(1);
        let kind = if how == Message::Disconnect { LAST } else { CONTROL };
        self.post(&[Self::message(kind, &how.encode())])?;
        Ok(true)
    }

    /// Returns true if all requests have completed.
    pub(super) fn is_idle(&self) -> bool {
        self.slots_free == self.sizes.send_queue - CONTROL_MAX as u16 && self.controls_free() == CONTROL_MAX
    }
}

/// Returns the length of the next RDMA Write, and doubles the one after it.
fn next_length(left: usize, length: &mut u32) -> u32 {
    let now = u32::try_from(left).unwrap_or(u32::MAX).min(*length);
    *length = (*length * 2).min(TRANSFER_MAX);
    now
}

/// Returns the length of the first RDMA Write of a call.
pub(super) const fn first_length() -> u32 {
    TRANSFER_FIRST
}
