//! TCP options (RFC 9293 §3.2; RFC 7323; RFC 2018).

use crate::seq::SeqNum;
use core::fmt;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// A range of bytes received out of order: `start` is the first, `end` the one after the last (RFC 2018 §3).
///
/// The first range of a D-SACK (RFC 2883) may lie below the cumulative acknowledgment, or inside the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackRange {
    /// Left edge: the first byte.
    pub start: SeqNum,
    /// Right edge: the byte after the last.
    pub end: SeqNum,
}

/// The ranges of a SACK option, at most [`SackBlocks::MAX`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    ranges: [SackRange; Self::MAX],
    count: u8,
}

impl SackBlocks {
    /// The number of ranges that 40 bytes of options hold (RFC 2018 §3: "A SACK option that specifies n blocks will
    /// have a length of 8*n+2 bytes, so the 40 bytes available for TCP options can specify a maximum of 4").
    pub const MAX: usize = 4;
    /// No range at all.
    pub const EMPTY: Self =
        Self { ranges: [SackRange { start: SeqNum::new(0), end: SeqNum::new(0) }; Self::MAX], count: 0 };

    /// Appends a range; returns `false` if there are four already.
    #[inline]
    pub fn push(&mut self, range: SackRange) -> bool {
        let Some(free) = self.ranges.get_mut(usize::from(self.count)) else { return false };
        *free = range;
        self.count = self.count.saturating_add(1);
        true
    }

    /// Returns the ranges, first to last.
    #[inline]
    pub fn as_slice(&self) -> &[SackRange] {
        self.ranges.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Returns true if there is no range.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The timestamps option (RFC 7323 §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the TSval that it echoes; meaningless without ACK.
    pub echo: u32,
}

impl Timestamps {
    /// Returns the bytes of the option, laid out as RFC 7323 appendix A advises.
    #[inline]
    pub(crate) const fn alone(self) -> [u8; 12] {
        let [a, b, c, d] = TcpOptions::TIMESTAMPS_ALONE;
        let ([v0, v1, v2, v3], [e0, e1, e2, e3]) = (self.value.to_be_bytes(), self.echo.to_be_bytes());
        [a, b, c, d, v0, v1, v2, v3, e0, e1, e2, e3]
    }
}

/// The TCP options of one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size, in SYN segments.
    pub mss: Option<u16>,
    /// Shift count of the window scale option as received, in SYN segments; the caller must take one above 14 for 14
    /// (RFC 7323 §2.3).
    pub window_scale: Option<u8>,
    /// SACK permitted, in SYN segments.
    pub sack_permitted: bool,
    /// Timestamps, once both ends have sent them in their SYNs.
    pub timestamps: Option<Timestamps>,
    /// Ranges of selective acknowledgment.
    pub sack: SackBlocks,
}

impl TcpOptions {
    /// Most bytes of options that a header has room for.
    pub const LEN_MAX: usize = 40;
    /// No option at all.
    pub const NONE: Self = Self {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps: None,
        sack: SackBlocks::EMPTY,
    };
    /// `NOP NOP timestamps`: the first bytes of a header that carries only timestamps (RFC 7323 appendix A).
    const TIMESTAMPS_ALONE: [u8; 4] = [NOP, NOP, TIMESTAMPS, 10];

    /// Parses the option bytes of a header.
    ///
    /// It never fails: an impossible length ends the parsing and keeps the options before it; an unknown option, or a
    /// known one of a wrong length, is skipped (RFC 9293 §3.2, MUST-6, MUST-7).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        if let Ok(alone) = bytes.try_into()
            && let Some(timestamps) = Self::timestamps_alone(alone)
        {
            return Self { timestamps: Some(timestamps), ..Self::NONE };
        }
        Self::parse_any(bytes)
    }

    /// Returns the timestamps if these twelve bytes hold nothing else, laid out as RFC 7323 appendix A advises.
    #[inline]
    pub(crate) fn timestamps_alone(bytes: &[u8; 12]) -> Option<Timestamps> {
        let [a, b, c, d, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes;
        ([a, b, c, d] == Self::TIMESTAMPS_ALONE).then_some(Timestamps {
            value: u32::from_be_bytes([v0, v1, v2, v3]),
            echo: u32::from_be_bytes([e0, e1, e2, e3]),
        })
    }

    #[cold]
    #[inline(never)]
    fn parse_any(mut bytes: &[u8]) -> Self {
        let mut options = Self::NONE;
        // Each iteration consumes at least one byte.
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == END {
                break;
            }
            if kind == NOP {
                bytes = rest;
                continue;
            }
            let Some((&len, rest)) = rest.split_first() else { break };
            // The length counts the kind and itself.
            let Some(body_len) = usize::from(len).checked_sub(2) else { break };
            let Some((body, rest)) = rest.split_at_checked(body_len) else { break };
            options.take(kind, body);
            bytes = rest;
        }
        options
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
            (SACK_PERMITTED, &[]) => self.sack_permitted = true,
            (TIMESTAMPS, body) if body.len() == 8 => self.timestamps = timestamps(body),
            (SACK, body) => {
                let (ranges, []) = body.as_chunks::<8>() else { return };
                for &[s0, s1, s2, s3, e0, e1, e2, e3] in ranges {
                    self.sack.push(SackRange {
                        start: SeqNum::new(u32::from_be_bytes([s0, s1, s2, s3])),
                        end: SeqNum::new(u32::from_be_bytes([e0, e1, e2, e3])),
                    });
                }
            }
            _ => {}
        }
    }

    /// Returns true if there is no option but timestamps.
    #[inline]
    pub(crate) const fn has_no_others(&self) -> bool {
        self.sack.is_empty() && !self.sack_permitted && self.mss.is_none() && self.window_scale.is_none()
    }

    /// Returns the length of all options but SACK as emitted, bytes.
    #[inline]
    fn len_without_sack(&self) -> usize {
        let mut len = 0_usize;
        if self.mss.is_some() {
            len = len.wrapping_add(4);
        }
        match (self.sack_permitted, self.timestamps.is_some()) {
            (_, true) => len = len.wrapping_add(12),
            (true, false) => len = len.wrapping_add(4),
            (false, false) => {}
        }
        if self.window_scale.is_some() {
            len = len.wrapping_add(4);
        }
        len
    }

    /// Returns the SACK ranges that fit beside the other options: the first ones.
    #[inline]
    fn sack_that_fits(&self) -> &[SackRange] {
        let room = Self::LEN_MAX.saturating_sub(self.len_without_sack()).saturating_sub(4) / 8;
        let ranges = self.sack.as_slice();
        ranges.get(..room).unwrap_or(ranges)
    }

    /// Returns the length as emitted, bytes: 0..=40, a multiple of 4.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        let sack = match self.sack_that_fits().len() {
            0 => 0,
            count => count.wrapping_mul(8).wrapping_add(4),
        };
        self.len_without_sack().wrapping_add(sack)
    }

    /// Writes the options, padded with NOPs so that each is aligned; returns `false` if `out` is not
    /// [`Self::emitted_len`] bytes long.
    ///
    /// SACK ranges that do not fit beside the other options are left out, last ones first.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> bool {
        if out.len() != self.emitted_len() {
            return false;
        }
        let mut to = Writer { rest: out };
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            to.put([MSS, 4, a, b]);
        }
        match (self.sack_permitted, self.timestamps.is_some()) {
            (true, true) => to.put([SACK_PERMITTED, 2, TIMESTAMPS, 10]),
            (true, false) => to.put([NOP, NOP, SACK_PERMITTED, 2]),
            (false, true) => to.put(Self::TIMESTAMPS_ALONE),
            (false, false) => {}
        }
        if let Some(timestamps) = self.timestamps {
            to.put(timestamps.value.to_be_bytes());
            to.put(timestamps.echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            to.put([NOP, WINDOW_SCALE, 3, shift]);
        }
        let ranges = self.sack_that_fits();
        if !ranges.is_empty() {
            let len = u8::try_from(ranges.len()).unwrap_or(0).wrapping_mul(8).wrapping_add(2);
            to.put([NOP, NOP, SACK, len]);
            for range in ranges {
                to.put(range.start.get().to_be_bytes());
                to.put(range.end.get().to_be_bytes());
            }
        }
        to.rest.is_empty()
    }
}

/// Returns the value of a timestamps option, or `None` unless it has eight bytes.
#[inline]
fn timestamps(body: &[u8]) -> Option<Timestamps> {
    let &[v0, v1, v2, v3, e0, e1, e2, e3] = body else { return None };
    Some(Timestamps {
        value: u32::from_be_bytes([v0, v1, v2, v3]),
        echo: u32::from_be_bytes([e0, e1, e2, e3]),
    })
}

/// Writes 32-bit words in sequence as long as there is room.
struct Writer<'a> {
    rest: &'a mut [u8],
}

impl Writer<'_> {
    #[inline]
    fn put(&mut self, word: [u8; 4]) {
        if let Some((to, rest)) = core::mem::take(&mut self.rest).split_first_chunk_mut::<4>() {
            *to = word;
            self.rest = rest;
        }
    }
}
