//! The trace of a simulation: one line of text per segment, and a digest by which runs are compared.

use super::watch::WireSegment;
use crate::time::Instant;
use alloc::format;
use alloc::string::String;

/// Returns a segment as one line of text.
pub(super) fn describe(seen: &WireSegment) -> String {
    let header = &seen.header;
    let options = &seen.options;
    format!(
        "{} -> {} {:?} seq {} len {} ack {} win {} ts {:?} sack {:?}",
        seen.src,
        seen.dst,
        header.flags,
        header.seq,
        seen.payload_len,
        header.ack,
        header.window,
        options.timestamps.map(|timestamps| (timestamps.value, timestamps.echo)),
        options.sack,
    )
}

/// Returns the trace's digest after one more frame.
pub(super) fn digest(trace: u64, now: Instant, host: usize, bytes: &[u8]) -> u64 {
    let mut hash = trace ^ now.as_nanos().rotate_left(17) ^ u64::try_from(host).unwrap_or(0);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    for word in words.iter().chain(core::iter::once(&last)) {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    }
    hash
}
