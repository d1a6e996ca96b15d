//! Fuzz targets: functions that take arbitrary bytes and panic if an invariant breaks.
//!
//! libFuzzer runs them (`tcp-stack/fuzz`, `make fuzz`), and `tcp-stack/tests/protocol/fuzz.rs` runs them on the
//! committed corpora and on mutations of these.

mod bench;
mod frame;
mod neighbor;
mod operations;
mod options;
mod peer;
mod seeds;

pub use frame::frame;
pub use operations::{operations, prediction};
pub use options::options;
pub use seeds::seeds;

/// A fuzz target: panics if an invariant breaks.
pub type Target = fn(&[u8]);

/// Every target, with the name of its corpus.
pub const TARGETS: [(&str, Target); 3] = [("frame", frame), ("operations", operations), ("options", options)];

/// Fuzz input, consumed from the front; zeros follow its end.
#[derive(Debug)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        for (to, from) in array.iter_mut().zip(self.take(N)) {
            *to = *from;
        }
        array
    }

    fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Returns one of `values`, or `otherwise` if there is none.
    fn pick<T: Copy>(&mut self, values: &[T], otherwise: T) -> T {
        let index = usize::from(self.byte()).checked_rem(values.len()).unwrap_or(0);
        values.get(index).copied().unwrap_or(otherwise)
    }

    /// Returns at most the next `len` bytes.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
