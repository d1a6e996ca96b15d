//! One end of a benchmark's connections: a node in this process, or a program's context of an `iwarpd`.

use anyhow::Result;
use rdma::verbs::{RecvWr, SendWr, WorkCompletion};
use rdma::wire::Stag;

/// Memory of an end: the address of its first byte, its keys and its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) addr: u64,
    pub(super) lkey: Stag,
    pub(super) rkey: Stag,
    pub(super) bytes: u64,
}

/// One of the two ends of connected queue pairs.
pub(super) trait End {
    /// Returns the number of queue pairs.
    fn queue_pairs(&self) -> usize;
    /// Returns the memory that messages come from, and that which they are placed in.
    fn regions(&self) -> [Region; 2];
    /// Returns address and key of these two regions of the other end.
    fn peer_regions(&self) -> [(u64, Stag); 2];
    /// Posts requests in order on the queue pair of this index.
    fn post_send(&mut self, qp: usize, requests: &[SendWr<'_>]) -> Result<()>;
    /// Posts receive buffers in order on the queue pair of this index.
    fn post_recv(&mut self, qp: usize, buffers: &[RecvWr<'_>]) -> Result<()>;
    /// Polls the completions of the send queues.
    fn poll_send(&mut self, out: &mut [WorkCompletion]) -> Result<usize>;
    /// Polls the completions of the receive queues.
    fn poll_recv(&mut self, out: &mut [WorkCompletion]) -> Result<usize>;
    /// Fails if an asynchronous event has arrived.
    fn check_events(&mut self) -> Result<()>;
    /// Does the work that was posted, as far as this thread does it.
    fn step(&mut self);
    /// Writes bytes at an offset of the region that messages come from.
    fn write_source(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
    /// Reads bytes at an offset of the region that messages come from.
    fn read_source(&self, at: u64, out: &mut [u8]) -> Result<()>;
    /// Reads bytes at an offset of the region that messages are placed in.
    fn read_sink(&self, at: u64, out: &mut [u8]) -> Result<()>;
    /// Opens a batch on a queue pair: what is posted until [`Self::end_batch`] may be announced together.
    fn begin_batch(&mut self, _qp: usize) {}
    /// Ends the batch that is open on a queue pair.
    fn end_batch(&mut self, _qp: usize) {}
}

/// Fills the source with bytes that differ from page to page, so that misplaced data is detected; they are equal on
/// both ends.
///
/// # Errors
/// The memory cannot be written.
pub(super) fn fill_pattern(bytes: u64, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    const PAGE: usize = 4096;
    let mut page = [0; PAGE];
    for number in 0..bytes.div_ceil(PAGE as u64) {
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for bytes in page.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.copy_from_slice(&state.to_le_bytes());
        }
        let at = number * PAGE as u64;
        let len = usize::try_from(bytes.saturating_sub(at)).unwrap_or(PAGE).min(PAGE);
        write(at, &page[..len])?;
    }
    Ok(())
}

/// Returns how many of the `len` bytes at `offset` of the sink equal the source, provided that the others are still
/// zero; `None` if any other byte was placed.
pub(super) fn count_equal(end: &impl End, offset: u64, len: u64) -> Option<u64> {
    let (mut placed, mut sent) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let (end_at, mut count) = (offset + len, 0);
    for at in (offset..end_at).step_by(1 << 16) {
        let len = usize::try_from((end_at - at).min(1 << 16)).unwrap_or(0);
        let (placed, sent) = (placed.get_mut(..len)?, sent.get_mut(..len)?);
        if end.read_sink(at, placed).is_err() || end.read_source(at, sent).is_err() {
            return None;
        }
        for (placed, sent) in placed.iter().zip(sent.iter()) {
            if placed != sent && *placed != 0 {
                return None;
            }
            count += u64::from(placed == sent);
        }
    }
    Some(count)
}
