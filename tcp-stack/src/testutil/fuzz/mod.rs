//! What is fuzzed: each target takes any bytes, and panics when something is wrong.
//!
//! The same functions are run by libFuzzer (`tcp-stack/fuzz`, `make fuzz`), and on the committed corpora and
//! what chance makes of them by `tcp-stack/tests/fuzz.rs`.

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

/// A target.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: [(&str, Target); 3] = [("frame", frame), ("operations", operations), ("options", options)];

/// Bytes that are used up from the front; zeros follow them.
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

    /// One of some values.
    fn pick<T: Copy>(&mut self, values: &[T], otherwise: T) -> T {
        let index = usize::from(self.byte()).checked_rem(values.len()).unwrap_or(0);
        values.get(index).copied().unwrap_or(otherwise)
    }

    /// At most so many.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
