//! Fuzz targets: each takes arbitrary bytes, and panics if an invariant is violated.
//!
//! libFuzzer runs them (`rdma/fuzz`, `make fuzz`); `rdma/tests/protocol/fuzz.rs` runs them on the committed corpora and
//! on mutations of these.

mod fpdu_stream;
mod mpa_frames;
mod numbered;
mod operations;
mod peer;
mod placed;
mod seeds;
mod shape;

pub use fpdu_stream::fpdu_stream;
pub use mpa_frames::mpa_frames;
pub use numbered::numbered;
pub use operations::operations;
use placed::placed;
pub use seeds::seeds;

/// Function of a fuzz target.
pub type Target = fn(&[u8]);

/// Fuzz targets by the name of their corpus.
pub const TARGETS: [(&str, Target); 4] = [
    ("fpdu_stream", fpdu_stream),
    ("mpa_frames", mpa_frames),
    ("numbered", numbered),
    ("operations", operations),
];

/// Input consumed from the front; zeros follow its end.
#[derive(Debug)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    const fn is_empty(&self) -> bool {
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

    /// Returns true in one of four cases; false at the end of the input.
    fn sometimes(&mut self) -> bool {
        self.byte() % 4 == 3
    }

    /// Returns true in one of sixteen cases; false at the end of the input.
    fn rarely(&mut self) -> bool {
        self.byte() % 16 == 15
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Returns a number below `end`, which must not be 0.
    fn below(&mut self, end: usize) -> usize {
        usize::from(self.u16()) % end
    }

    /// Returns one of the values, which must not be empty.
    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.byte()) % values.len()]
    }

    /// Removes at most `len` bytes.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Splits bytes at positions that the input selects.
    fn cut<'b>(&mut self, mut bytes: &'b [u8]) -> Vec<&'b [u8]> {
        let mut chunks = Vec::new();
        while !bytes.is_empty() {
            let len = match self.byte() {
                0 => bytes.len(),
                len @ 1..200 => usize::from(len),
                more => usize::from(more - 199) * 100,
            };
            let (chunk, rest) = bytes.split_at(len.min(bytes.len()));
            chunks.push(chunk);
            bytes = rest;
        }
        chunks
    }
}
