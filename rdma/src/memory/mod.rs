//! Memory protection: who may touch which bytes of which region, and how that is asked.
//!
//! ```text
//!  STag, TO, length ──▶ StagTable::check_* ──▶ Placement / Fetch ──▶ Memory::place / fetch
//!  (from the wire)      the whole check        (a token)             (the copy)
//! ```
//! A token can be had from a check only, and the copy takes nothing but a token: an access that was
//! not checked does not compile.

mod access;
mod issue;
mod table;
mod token;
mod vec;
mod window;

pub use access::Access;
pub use table::{AccessError, GrantError, Origin, PdId, Scope, StagTable, StreamId, Window};
pub use token::{Fetch, LocalSlice, Placement, Word};

pub use vec::VecMemory;
pub use window::Bind;

use crate::wire::atomic::AtomicOp;

/// A region as this worker knows it; its meaning belongs to the [`Memory`] behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// The memory of the regions.
///
/// Tokens lie inside the bounds that were given to [`StagTable::grant`], or inside a [`LocalSlice`] that
/// the owner of the memory named; an implementation checks them against the memory once more before it
/// touches a pointer.
pub trait Memory {
    /// Whether the region is there and has these bytes. It keeps them while the caller works with them.
    ///
    /// Asked once more before each copy, although the check before has said that they are there: if it was wrong,
    /// the stream ends with an error instead of with bytes that are lost or made up.
    fn holds(&self, region: RegionId, offset: u64, len: usize) -> bool;

    /// Copies `bytes` to the place. `bytes` is as long as the token says.
    fn place(&mut self, at: Placement, bytes: &[u8]);

    /// Copies the bytes out. `out` is as long as the token says.
    fn fetch(&self, from: Fetch, out: &mut [u8]);

    /// Changes a value, in the byte order of this machine, to what the operation makes of it; what it was.
    ///
    /// RFC 7306 §5.3: "Atomicity of the Read-Modify-Write (RMW) on the Responder's node by the Atomic Operation
    /// MUST be assured in the context of concurrent atomic accesses by other RDMAP Streams on the same RNIC":
    /// other workers reach the same memory.
    fn atomic(&mut self, at: Word, op: AtomicOp) -> u64;
}
