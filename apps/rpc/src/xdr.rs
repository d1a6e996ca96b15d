//! XDR (RFC 4506) in memory: a reader that knows read chunks, and a writer.
//!
//! The reader allocates nothing: a length that a peer claims is checked against the bytes that are there.

use core::fmt;

/// A read chunk of a call: a data item that was removed from the payload stream (RFC 8166 §3.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset in bytes of the item in the unreduced payload stream.
    pub position: u32,
    /// Offset in bytes of the item in the buffer of fetched data.
    pub offset: u32,
    /// Length of the chunk in bytes.
    pub length: u32,
}

/// The content of a variable-length opaque item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// In the payload stream.
    Inline(&'a [u8]),
    /// In the buffer of fetched data.
    Fetched {
        /// Offset of the first byte in the buffer.
        offset: u32,
        /// Length in bytes, without XDR padding.
        length: u32,
    },
}

impl Data<'_> {
    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no caller asks whether there are any bytes")]
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Fetched { length, .. } => *length as usize,
        }
    }
}

/// Reason why bytes are not the expected XDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdrError {
    /// The stream ends within the item.
    Truncated,
    /// A length exceeds the limit of its item.
    TooLong,
    /// A discriminant, an enumeration or a Boolean has no such value.
    Value(u32),
    /// A read chunk is at a position where no data item may be reduced, or has not the length of its item.
    Chunk,
}

impl fmt::Display for XdrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the stream ends within an item"),
            Self::TooLong => f.write_str("an item is longer than its limit"),
            Self::Value(value) => write!(f, "{value} is not among the values of its type"),
            Self::Chunk => f.write_str("a read chunk does not match a data item"),
        }
    }
}

impl core::error::Error for XdrError {}

/// Returns the number of bytes that pad an item of `length` bytes to a multiple of four.
#[must_use]
pub fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

/// Reads a payload stream, and keeps its position in the unreduced stream.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    position: u64,
    chunks: &'a [Chunk],
}

impl<'a> Reader<'a> {
    /// Reads a stream without chunks.
    #[must_use]
    pub fn new(stream: &'a [u8]) -> Self {
        Self::with_chunks(stream, &[])
    }

    /// Reads a reduced stream; `chunks` are in the order of their positions.
    #[must_use]
    pub fn with_chunks(stream: &'a [u8], chunks: &'a [Chunk]) -> Self {
        Self { rest: stream, position: 0, chunks }
    }

    /// Returns the offset of the next item in the unreduced stream.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the bytes of the stream that have not been read.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads bytes of fixed length, and the padding behind them.
    ///
    /// # Errors
    /// The stream ends, or a read chunk is at one of these bytes.
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], XdrError> {
        let padded = length.checked_add(padding(length)).ok_or(XdrError::TooLong)?;
        let end = self.position.saturating_add(padded as u64);
        if self.chunks.first().is_some_and(|chunk| u64::from(chunk.position) < end) && padded > 0 {
            return Err(XdrError::Chunk);
        }
        let (item, rest) = self.rest.split_at_checked(padded).ok_or(XdrError::Truncated)?;
        self.rest = rest;
        self.position = end;
        item.get(..length).ok_or(XdrError::Truncated)
    }

    /// Reads an array of bytes whose length is a multiple of four.
    ///
    /// # Errors
    /// As [`Self::fixed`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        self.fixed(N)?.try_into().map_err(|_| XdrError::Truncated)
    }

    /// Reads an unsigned integer of 32 bits.
    ///
    /// # Errors
    /// As [`Self::fixed`].
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads an unsigned integer of 64 bits.
    ///
    /// # Errors
    /// As [`Self::fixed`].
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a Boolean, or the flag of optional data.
    ///
    /// # Errors
    /// As [`Self::fixed`]; the value is neither 0 nor 1.
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(XdrError::Value(other)),
        }
    }

    /// Reads optional data.
    ///
    /// # Errors
    /// As [`Self::bool`], and those of `read`.
    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, XdrError>,
    ) -> Result<Option<T>, XdrError> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads a length of at most `max`.
    fn length(&mut self, max: usize) -> Result<usize, XdrError> {
        let length = self.u32()? as usize;
        if length > max { Err(XdrError::TooLong) } else { Ok(length) }
    }

    /// Reads an opaque item of at most `max` bytes, which must not travel in a chunk.
    ///
    /// # Errors
    /// As [`Self::fixed`]; the item is longer than `max`.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], XdrError> {
        let length = self.length(max)?;
        self.fixed(length)
    }

    /// Reads an opaque item of at most `max` bytes that may travel in a chunk. The chunk has the length of the item, or
    /// that and its padding (RFC 8166 §3.4.5.2).
    ///
    /// # Errors
    /// As [`Self::opaque`]; the chunk has another length than the item.
    pub fn reducible(&mut self, max: usize) -> Result<Data<'a>, XdrError> {
        let length = self.length(max)?;
        let Some((chunk, others)) =
            self.chunks.split_first().filter(|(chunk, _)| u64::from(chunk.position) == self.position)
        else {
            return self.fixed(length).map(Data::Inline);
        };
        let padded = length.saturating_add(padding(length));
        if chunk.length as usize != length && chunk.length as usize != padded {
            return Err(XdrError::Chunk);
        }
        self.chunks = others;
        self.position = self.position.saturating_add(padded as u64);
        let length = u32::try_from(length).map_err(|_| XdrError::TooLong)?;
        Ok(Data::Fetched { offset: chunk.offset, length })
    }

    /// Ends the arguments.
    ///
    /// # Errors
    /// A read chunk has not been used.
    pub fn finish(&self) -> Result<(), XdrError> {
        if self.chunks.is_empty() { Ok(()) } else { Err(XdrError::Chunk) }
    }
}

/// Reads bytes for decoders of other crates, which must ask for items of fixed length only.
impl std::io::Read for Reader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let item = self.fixed(out.len()).map_err(std::io::Error::other)?;
        out.copy_from_slice(item);
        Ok(item.len())
    }
}

/// Writes a payload stream.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Returns an empty stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes an unsigned integer of 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes an unsigned integer of 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes a Boolean, or the flag of optional data.
    pub fn bool(&mut self, value: bool) {
        self.u32(value.into());
    }

    /// Writes bytes of fixed length, and their padding.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().saturating_add(padding(bytes.len())), 0);
    }

    /// Writes an opaque item: its length, its bytes and their padding. An item of 4 GiB or more does not occur.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.fixed(bytes);
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn position(&self) -> usize {
        self.0.len()
    }

    /// Borrows the bytes written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
