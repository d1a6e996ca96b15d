//! Memory protection: access checks, and the tokens that they issue.
//!
//! ```text
//!  STag, TO, length ──▶ StagTable::check_* ──▶ Placement / Fetch ──▶ Memory::place / fetch
//!  (from the wire)      the whole check        (a token)             (the copy)
//! ```
//! Only a check issues a token, and a copy requires a token: an unchecked access does not compile.

mod access;
mod deferred;
mod issue;
mod notification;
mod slow;
mod table;
mod token;
mod vec;
mod window;

pub use access::Access;
pub use deferred::{AHEAD_BYTES, Ahead, CopyState, Reach, Ticket};
pub use notification::{Message, NOTIFICATION_BYTES_MAX, Notification};
pub use table::{AccessError, GrantError, GrantedRange, Origin, PdId, Scope, StagTable, StreamId};
pub use token::{Fetch, LocalSlice, Placement, Word};

pub use vec::{Notified, VecMemory};
pub use window::Bind;

use core::task::Poll;

use crate::wire::atomic::AtomicOp;

/// Bytes that the default [`Memory::copy`] copies at a time.
const COPY_BYTES: usize = 1024;

/// A region as this worker identifies it. The [`Memory`] implementation maps it to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RegionId(pub u32);

/// Memory of the regions.
///
/// Tokens lie within the bounds passed to [`StagTable::grant`], or within a [`LocalSlice`] that the owner of the
/// memory named. An implementation checks them once more against the memory before it uses a pointer.
pub trait Memory {
    /// Returns true if the region exists and has these bytes. They must stay valid until the caller's copy is done.
    ///
    /// Called once more before each copy, although the access check has passed: if that check was wrong, the stream
    /// ends with an error instead of with lost or invented bytes. Of memory that another process may take away, a copy
    /// can fail nevertheless.
    fn holds(&self, region: RegionId, offset: u64, len: usize) -> bool;

    /// Copies `bytes` to the placement. `bytes` has the length of the token. Returns false if the memory has gone: the
    /// stream ends with an error.
    #[must_use]
    fn place(&mut self, at: Placement, bytes: &[u8]) -> bool;

    /// Copies the bytes of the token to `out`, which has the length of the token. Returns false if the memory has gone:
    /// the stream ends with an error, and the content of `out` is not sent.
    #[must_use]
    fn fetch(&self, from: Fetch, out: &mut [u8]) -> bool;

    /// Copies the bytes of one token to the place of another, of the same length. Returns false if the memory has
    /// gone: the stream ends with an error. The result is undefined if the ranges overlap.
    #[must_use]
    fn copy(&mut self, from: Fetch, to: Placement) -> bool {
        self.copy_in_parts(from, to)
    }

    /// Copies as [`Self::copy`] does, by way of a small buffer.
    #[must_use]
    fn copy_in_parts(&mut self, from: Fetch, to: Placement) -> bool {
        let mut bytes = [0; COPY_BYTES];
        let (mut from, mut to) = (from, to);
        let mut copied = from.len() == to.len();
        while copied && from.len() > 0 {
            let (here, behind) = from.split_at(COPY_BYTES);
            let (place, rest) = to.split_at(here.len());
            let part = bytes.get_mut(..here.len()).unwrap_or_default();
            copied = self.fetch(here, part) && self.place(place, part);
            (from, to) = (behind, rest);
        }
        copied
    }

    /// Performs an atomic operation on a value in this machine's byte order, and returns the original value; `None`
    /// without a change if the memory has gone.
    ///
    /// RFC 7306 §5.3: "Atomicity of the Read-Modify-Write (RMW) on the Responder's node by the Atomic Operation
    /// MUST be assured in the context of concurrent atomic accesses by other RDMAP Streams on the same RNIC":
    /// other workers reach the same memory.
    #[must_use]
    fn atomic(&mut self, at: Word, op: AtomicOp) -> Option<u64>;

    /// Returns how a stream can access these bytes at the moment. The stream owns the copies that it queues afterwards.
    ///
    /// Called before each access, as [`Self::holds`], which memory without deferred copies implements alone.
    #[inline]
    fn reach(&self, stream: StreamId, region: RegionId, offset: u64, len: usize) -> Reach {
        let _ = stream;
        if self.holds(region, offset, len) { Reach::Direct } else { Reach::Gone }
    }

    /// Returns the number of bytes from an offset on that [`Self::fetch`] can access at once, of `len`.
    fn direct_len(&self, region: RegionId, offset: u64, len: usize) -> usize {
        if self.holds(region, offset, len) { len } else { 0 }
    }

    /// Returns the ticket of the copy that [`Self::place`] or [`Self::copy`] queued last.
    fn last_queued(&self) -> Option<Ticket> {
        None
    }

    /// Returns the state of a copy of a stream. Reports a failure of the stream's copies once.
    fn copy_state(&mut self, stream: StreamId, ticket: Ticket) -> CopyState {
        let _ = (stream, ticket);
        CopyState::Failed
    }

    /// Begins to read the bytes of tokens, one after the other, up to [`AHEAD_BYTES`].
    ///
    /// # Errors
    /// `Busy` or `Gone`, as [`Self::reach`].
    fn read_ahead(
        &mut self,
        stream: StreamId,
        tokens: &mut dyn Iterator<Item = Fetch>,
    ) -> Result<Ahead, Reach> {
        let _ = (stream, tokens);
        Err(Reach::Gone)
    }

    /// Copies bytes that were read ahead to `out`, from the `skip`th on. Returns false if they are not there any more.
    #[must_use]
    fn fetch_ahead(&self, ahead: &Ahead, skip: usize, out: &mut [u8]) -> bool {
        let _ = (ahead, skip, out);
        false
    }

    /// Frees the place of bytes that were read ahead.
    fn release(&mut self, ahead: Ahead) {
        let _ = ahead;
    }

    /// Queues an atomic operation. A stream has one at a time. `None`: the memory has gone.
    fn begin_atomic(&mut self, stream: StreamId, at: Word, op: AtomicOp) -> Option<Ticket> {
        let _ = (stream, at, op);
        None
    }

    /// Returns the original value of the stream's atomic operation, which is done; `None` if the memory has gone.
    /// `Pending`: the value is not to be had at this moment, and the caller asks again.
    fn take_atomic(&mut self, stream: StreamId, ticket: Ticket) -> Poll<Option<u64>> {
        let _ = (stream, ticket);
        Poll::Ready(None)
    }

    /// Returns true if [`Self::notify`] passes messages to the region on to a program. Otherwise such a message ends
    /// the stream, as there is no buffer for it.
    fn is_watched(&self, region: RegionId) -> bool {
        let _ = region;
        false
    }

    /// Passes a message to the programs that watch a region. All bytes that precede it in the stream are placed.
    fn notify(&mut self, region: RegionId, notification: &Notification<'_>) {
        let _ = (region, notification);
    }
}
