//! Wire format of `rping`: buffer advertisements and ping data.
//!
//! ```text
//!  client                                   server
//!    │ Send: source address, rkey, length ───▶ │
//!    │ ◀────────────────────────── RDMA Read   │
//!    │ ◀──────────────── Send: you may go on   │
//!    │ Send: sink address, rkey, length ─────▶ │
//!    │ ◀───────────────────────── RDMA Write   │
//!    │ ◀──────────────── Send: you may go on   │
//! ```
//! Every Send has sixteen bytes; the content of the server's is ignored.

use rdma::verbs::Stag;

/// Bytes of a Send.
pub const INFO_LEN: usize = 16;
/// Default TCP port of rping.
pub const PORT: u16 = 7174;
/// Shortest text, bytes. The head of a longer text number is truncated.
pub const SIZE_MIN: u32 = 16;
/// Longest text, bytes. Each side keeps two buffers of this size.
pub const SIZE_MAX: u32 = 16 << 20;

/// First letter of a text; the letters are `A` to `z`.
const FIRST: u8 = b'A';
const LETTERS: u64 = (b'z' - b'A') as u64 + 1;

/// Advertised memory, for the peer to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Address of the first byte (tagged offset).
    pub addr: u64,
    /// STag of the memory.
    pub rkey: Stag,
    /// Length of the memory, bytes.
    pub size: u32,
}

impl Info {
    /// Encodes the content of a Send: address, key and size, each big-endian.
    pub fn encode(&self) -> [u8; INFO_LEN] {
        let mut bytes = [0; INFO_LEN];
        let ([addr, rest], []) = bytes.as_chunks_mut::<8>() else { return bytes };
        *addr = self.addr.to_be_bytes();
        *rest = (u64::from(self.rkey.0) << 32 | u64::from(self.size)).to_be_bytes();
        bytes
    }

    /// Decodes the content of a Send.
    pub fn decode(bytes: &[u8; INFO_LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, s0, s1, s2, s3] = *bytes;
        Self {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: Stag(u32::from_be_bytes([k0, k1, k2, k3])),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
        }
    }
}

/// Fills a buffer with the text of a round: a head with the number of the round, letters, and a terminating zero.
pub fn write_text(round: u64, text: &mut [u8]) {
    let head = format!("rdma-ping-{round}: ");
    for (byte, letter) in text.iter_mut().zip(head.bytes()) {
        *byte = letter;
    }
    let letters = (0..LETTERS).cycle().skip(usize::try_from(round % LETTERS).unwrap_or(0));
    for (byte, letter) in text.iter_mut().skip(head.len()).zip(letters) {
        *byte = FIRST.wrapping_add(u8::try_from(letter).unwrap_or(0));
    }
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
}

/// Returns the round number of a text, or `None` if it is not a text of a client, or has no room for the head.
pub fn round_of(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"rdma-ping-")?;
    let end = digits.iter().position(|byte| *byte == b':')?;
    let round = std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()?;
    let mut expected = vec![0; text.len()];
    write_text(round, &mut expected);
    (expected == text).then_some(round)
}

/// Returns the printable part of a text: the bytes before its first zero.
pub fn visible(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_has_sixteen_bytes() {
        let info = Info { addr: 0x0102_0304_0506_0708, rkey: Stag(0x0a0b_0c0d), size: 64 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 64];
        assert_eq!((info.encode(), Info::decode(&bytes)), (bytes, info));
    }

    /// The lines that rdma-core's rping shows for `-S 64`.
    #[test]
    fn texts_match_those_of_rdma_core() {
        let mut text = [0; 64];
        write_text(0, &mut text);
        assert_eq!(visible(&text), b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr");
        write_text(1, &mut text);
        assert_eq!(visible(&text), b"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs");
        // `A` follows `z`, within the line and from round to round.
        write_text(57, &mut text);
        assert_eq!(&text[..20], b"rdma-ping-57: zABCDE");
        write_text(58, &mut text);
        assert_eq!(&text[..20], b"rdma-ping-58: ABCDEF");
    }

    #[test]
    fn a_text_is_recognized_and_a_corrupted_one_is_not() {
        for (round, len) in [(0, 16), (9, 16), (1000, 17), (7, 26), (123_456, 65_536)] {
            let mut text = vec![0; len];
            write_text(round, &mut text);
            assert_eq!(text.last(), Some(&0));
            assert_eq!(round_of(&text), Some(round), "{round} {len}");
            let last = text.len() - 2;
            text[last] ^= 1;
            assert_eq!(round_of(&text), None, "{round} {len}");
        }
        assert_eq!(round_of(b""), None);
        assert_eq!(round_of(b"rdma-ping-x: "), None);
        // No room for the whole number.
        let mut text = [0; 12];
        write_text(1234, &mut text);
        assert_eq!((round_of(&text), visible(&text)), (None, &b"rdma-ping-1"[..]));
    }
}
