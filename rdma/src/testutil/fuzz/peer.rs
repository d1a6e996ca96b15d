//! Peer of the fuzzed side: it knows what an honest peer knows, and builds segments from it, valid or almost valid.

use super::Input;
use crate::testutil::bytes::{
    READ_RESPONSE, SEND, TAGGED_LAST, TAGGED_MORE, TERMINATE, UNTAGGED_LAST, UNTAGGED_MORE, WRITE,
    read_request, tagged, terminate, untagged,
};
use std::collections::VecDeque;

const READ_REQUEST: u8 = 0x41;
const IMMEDIATE: u8 = 0x48;
const ATOMIC_REQUEST: u8 = 0x4a;
const ATOMIC_RESPONSE: u8 = 0x4b;

/// Response that the fuzzed side waits for.
#[derive(Debug)]
enum Due {
    Read { sink: u32, offset: u64, left: u32 },
    Atomic { id: u32 },
}

/// Message numbers of the peer, and the responses that it owes.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stags: Vec<u32>,
    sends: u32,
    offset: u32,
    reads: u32,
    atomic_responses: u32,
    due: VecDeque<Due>,
}

impl Peer {
    pub(super) fn new(stags: Vec<u32>) -> Self {
        Self { stags, sends: 1, offset: 0, reads: 1, atomic_responses: 1, due: VecDeque::new() }
    }

    /// Processes a segment of the fuzzed side.
    pub(super) fn see(&mut self, ulpdu: &[u8]) {
        let word = |at: usize| u32::from_be_bytes(*ulpdu[at..].first_chunk().unwrap());
        match ulpdu[1] {
            READ_REQUEST => {
                let offset = u64::from_be_bytes(*ulpdu[22..].first_chunk().unwrap());
                self.due.push_back(Due::Read { sink: word(18), offset, left: word(30) });
            }
            ATOMIC_REQUEST => self.due.push_back(Due::Atomic { id: word(22) }),
            _ => {}
        }
    }

    /// Returns the granted STag at this index, and sometimes another one.
    fn stag(&self, input: &mut Input<'_>, usual: usize) -> u32 {
        match input.byte() % 16 {
            15 => input.u32(),
            12..15 => input.pick(&self.stags),
            _ => self.stags[usual],
        }
    }

    /// Returns an offset near the edges of a window of `window` bytes.
    fn to(input: &mut Input<'_>, window: u64) -> u64 {
        match input.byte() % 32 {
            30 => input.u64(),
            31 => window.wrapping_sub(u64::from(input.byte())),
            _ => u64::from(input.byte()) % window,
        }
    }

    pub(super) fn write(&mut self, input: &mut Input<'_>, window: u64) -> Vec<u8> {
        let (stag, to) = (self.stag(input, 0), Self::to(input, window));
        let control = input.pick(&[TAGGED_LAST, TAGGED_MORE]);
        tagged(control, WRITE, stag, to, &vec![0xdd; usize::from(input.byte() % 100)])
    }

    /// Builds a Send of any kind, or Immediate Data, in sequence.
    pub(super) fn send(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let last = input.byte() % 4 < 3;
        let op = match input.byte() % 16 {
            0..10 => SEND + 2 * (input.byte() % 2),
            10..13 => SEND + 1 + 2 * (input.byte() % 2),
            _ => IMMEDIATE + input.byte() % 2,
        };
        let len = if op >= IMMEDIATE { 8 } else { usize::from(input.byte() % 24) };
        let stag = self.stag(input, 3);
        let control = if last { UNTAGGED_LAST } else { UNTAGGED_MORE };
        let segment = untagged(control, op, stag, [0, self.sends, self.offset], &vec![0xdd; len]);
        if last {
            (self.sends, self.offset) = (self.sends.wrapping_add(1), 0);
        } else {
            self.offset += len as u32;
        }
        segment
    }

    /// Builds a Read or Atomic Request, in sequence.
    pub(super) fn request(&mut self, input: &mut Input<'_>, window: u64) -> Vec<u8> {
        let msn = self.reads;
        self.reads = msn.wrapping_add(1);
        let usual = 1 + usize::from(input.byte() % 2);
        let (stag, to) = (self.stag(input, usual), Self::to(input, window));
        if input.byte().is_multiple_of(2) {
            return read_request(msn, 7, u32::from(input.byte() % 120), stag, to);
        }
        let mut header = input.pick(&[0_u32, 2, 0, 2, 0, 2, 1, 3]).to_be_bytes().to_vec();
        header.extend_from_slice(&msn.to_be_bytes());
        header.extend_from_slice(&stag.to_be_bytes());
        header.extend_from_slice(&(to & !7).to_be_bytes());
        for _ in 0..4 {
            header.extend_from_slice(&input.u64().to_be_bytes());
        }
        untagged(UNTAGGED_LAST, ATOMIC_REQUEST, 0, [1, msn, 0], &header)
    }

    /// Builds a segment of the response that is due, or an unexpected one.
    pub(super) fn response(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        match self.due.front_mut() {
            Some(Due::Read { sink, offset, left }) => {
                let wanted = if input.sometimes() { u32::from(input.byte()) } else { *left };
                let len = wanted.min(*left);
                let control = if len == *left { TAGGED_LAST } else { TAGGED_MORE };
                let segment = tagged(control, READ_RESPONSE, *sink, *offset, &vec![0xdd; len as usize]);
                (*offset, *left) = (*offset + u64::from(len), *left - len);
                if *left == 0 {
                    self.due.pop_front();
                }
                segment
            }
            Some(Due::Atomic { id }) => {
                let mut header = id.to_be_bytes().to_vec();
                header.extend_from_slice(&input.u64().to_be_bytes());
                let msn = self.atomic_responses;
                self.atomic_responses = msn.wrapping_add(1);
                self.due.pop_front();
                untagged(UNTAGGED_LAST, ATOMIC_RESPONSE, 0, [3, msn, 0], &header)
            }
            None if input.sometimes() => tagged(TAGGED_LAST, READ_RESPONSE, input.u32(), 0, &[0xdd; 8]),
            None => tagged(TAGGED_LAST, WRITE, input.u32(), 0, &[]),
        }
    }

    /// Builds a Terminate, valid or almost valid.
    pub(super) fn terminate(input: &mut Input<'_>) -> Vec<u8> {
        let word = input.array();
        let len = usize::from(input.byte() % 60);
        let mut segment = terminate(word, input.take(len));
        if input.sometimes() {
            segment.truncate(18 + usize::from(input.byte() % 5));
        }
        debug_assert_eq!(segment[1], TERMINATE);
        segment
    }
}
