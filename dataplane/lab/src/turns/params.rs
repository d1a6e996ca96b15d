//! Parameters of the exchange, which both ends derive lengths and data from. `dataplane/tests/siw/turns.h` specifies
//! them; `turns.c` implements the other end.

use anyhow::{Context, Result, ensure};
use rdma::Stag;

/// Bytes of [`Params`] in the private data of the connection request.
pub(super) const PARAMS_LEN: usize = 24;
/// Bytes of an encoded [`Header`].
pub(super) const HEADER_LEN: u32 = 40;
const SLOTS_MAX: u16 = 256;
const BYTES_MAX: u32 = 1 << 20;
const MAGIC: &[u8; 4] = b"TRN1";

/// Parameters chosen by the connecting end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Params {
    /// Number of concurrent exchanges.
    pub(super) slots: u16,
    /// True if the connecting end issues RDMA Reads.
    pub(super) connector_reads: bool,
    /// True if the listening end issues RDMA Reads.
    pub(super) listener_reads: bool,
    /// True if the run ends with a Write to an invalidated STag.
    pub(super) trespass: bool,
    /// Messages of each exchange, an even number.
    pub(super) turns: u32,
    /// Largest source, sink and filler after a message's header, bytes.
    pub(super) bytes: u32,
    /// Seed of all lengths and data.
    pub(super) seed: u64,
}

impl Params {
    /// Encodes the parameters for the private data.
    pub(super) fn encode(&self) -> [u8; PARAMS_LEN] {
        let flags = u8::from(self.trespass)
            | u8::from(self.connector_reads) << 1
            | u8::from(self.listener_reads) << 2;
        let mut out = [0; PARAMS_LEN];
        let fields: [&[u8]; 6] = [
            MAGIC,
            &self.slots.to_be_bytes(),
            &[flags, 0],
            &self.turns.to_be_bytes(),
            &self.bytes.to_be_bytes(),
            &self.seed.to_be_bytes(),
        ];
        for (to, from) in out.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        out
    }

    /// Decodes the parameters from the private data.
    ///
    /// # Errors
    /// The bytes are not valid parameters.
    pub(super) fn decode(data: &[u8]) -> Result<Self> {
        let data: &[u8; PARAMS_LEN] = data.try_into().context("params have 24 bytes")?;
        let [m0, m1, m2, m3, s0, s1, flags, zero, t0, t1, t2, t3, b0, b1, b2, b3, seed @ ..] = *data;
        ensure!([m0, m1, m2, m3] == *MAGIC && flags < 8 && zero == 0, "not the params of an exchange");
        let params = Self {
            slots: u16::from_be_bytes([s0, s1]),
            trespass: flags & 1 != 0,
            connector_reads: flags & 2 != 0,
            listener_reads: flags & 4 != 0,
            turns: u32::from_be_bytes([t0, t1, t2, t3]),
            bytes: u32::from_be_bytes([b0, b1, b2, b3]),
            seed: u64::from_be_bytes(seed),
        };
        ensure!((1..=SLOTS_MAX).contains(&params.slots), "1 to {SLOTS_MAX} slots");
        ensure!(params.turns >= 2 && params.turns.is_multiple_of(2), "an even number of turns");
        ensure!((1..=BYTES_MAX).contains(&params.bytes), "1 to {BYTES_MAX} bytes");
        Ok(params)
    }

    fn draw(&self, turn: u32, slot: u16, kind: DrawKind) -> u64 {
        let place = u64::from(turn) << 24 | u64::from(slot) << 4 | kind as u64;
        let state = self.seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(place);
        random(state)
    }

    /// Returns the seed of one buffer's pattern.
    pub(super) fn seed_of(&self, turn: u32, slot: u16, kind: DrawKind) -> u64 {
        self.draw(turn, slot, kind) | 1
    }

    /// Returns a length of 1 to `bytes`; each power of two is equally likely.
    pub(super) fn length_of(&self, turn: u32, slot: u16, kind: DrawKind) -> u32 {
        let drawn = self.draw(turn, slot, kind);
        let mut len = 1_u32 << ((drawn >> 8) % 21);
        while len > self.bytes {
            len /= 2;
        }
        // The C program uses 32 bits too.
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
        let more = (drawn >> 16) as u32 % len;
        len.saturating_add(more).min(self.bytes)
    }
}

/// Purpose of a random draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum DrawKind {
    /// Source buffer that the other end reads.
    Source,
    /// Data written to the other end's sink.
    Written,
    /// Filler after a message's header.
    Filler,
}

/// Returns true if the Send of a turn asks for a solicited event.
pub(super) fn solicited(turn: u32, slot: u16) -> bool {
    (turn / 2).wrapping_add(u32::from(slot)) & 1 != 0
}

/// Returns true if the Send invalidates the sink's STag that the other end's last message named.
pub(super) fn invalidates(turn: u32, slot: u16) -> bool {
    turn > 0 && (turn / 2).wrapping_add(u32::from(slot)) & 2 != 0
}

/// Header of a message. All fields are big-endian.
///
/// ```text
///  0 turn  4 slot  8 source STag  12 sink STag  16 source  24 sink  32 STag invalidated, or 0  36 bytes that follow
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) turn: u32,
    pub(super) slot: u32,
    pub(super) source_stag: Stag,
    pub(super) sink_stag: Stag,
    pub(super) source: u64,
    pub(super) sink: u64,
    pub(super) invalidates: Stag,
    pub(super) filler: u32,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN as usize);
        for word in [self.turn, self.slot, self.source_stag.0, self.sink_stag.0] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        for place in [self.source, self.sink] {
            out.extend_from_slice(&place.to_be_bytes());
        }
        for word in [self.invalidates.0, self.filler] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Decodes a header; `None` if the bytes are too short.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        Some(Self {
            turn: word(&mut bytes)?,
            slot: word(&mut bytes)?,
            source_stag: Stag(word(&mut bytes)?),
            sink_stag: Stag(word(&mut bytes)?),
            source: long(&mut bytes)?,
            sink: long(&mut bytes)?,
            invalidates: Stag(word(&mut bytes)?),
            filler: word(&mut bytes)?,
        })
    }
}

fn word(bytes: &mut &[u8]) -> Option<u32> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*head))
}

fn long(bytes: &mut &[u8]) -> Option<u64> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_be_bytes(*head))
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the first number of splitmix64 from a state.
fn random(state: u64) -> u64 {
    let mut z = state.wrapping_add(GAMMA);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns the first bytes of a pattern.
pub(super) fn pattern(seed: u64, len: u32) -> Vec<u8> {
    let start = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let words = (0_u64..).map(|index| random(start.wrapping_add(index.wrapping_mul(GAMMA))));
    words.flat_map(u64::to_le_bytes).take(len as usize).collect()
}
