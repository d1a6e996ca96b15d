//! The header of RPC-over-RDMA version 1 (RFC 8166 §4).

use rdma::Stag;

use crate::xdr::{Reader, Writer, XdrError};

/// Version of the protocol (RFC 8166 §4.2.2).
pub const VERSION: u32 = 1;
/// Length of the shortest header, in bytes. A shorter message has no XID that can be trusted (RFC 8166 §4.5).
pub const LENGTH_MIN: usize = 28;

/// Plain segment: memory of the requester (RFC 8166 §3.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Key of the memory.
    pub stag: Stag,
    /// Length of the memory in bytes.
    pub length: u32,
    /// Tagged offset of the first byte.
    pub offset: u64,
}

/// Read segment: a part of a data item, or of a whole call, to be fetched (RFC 8166 §3.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSegment {
    /// Offset in bytes of the item in the unreduced payload stream; a multiple of four.
    pub position: u32,
    /// Memory that holds this part.
    pub segment: Segment,
}

/// The three chunk lists (RFC 8166 §4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkLists {
    /// Segments of all read chunks.
    pub reads: Vec<ReadSegment>,
    /// Write chunks, in the order of the data items.
    pub writes: Vec<Vec<Segment>>,
    /// Reply chunk, if there is one.
    pub reply: Option<Vec<Segment>>,
}

/// Error that a responder reports (RFC 8166 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaError {
    /// ERR_VERS: the version is not supported; the supported ones follow, both inclusive.
    Version {
        /// Lowest version that is served.
        low: u32,
        /// Highest version that is served.
        high: u32,
    },
    /// ERR_CHUNK: the header is malformed, or no reply is possible with the chunks.
    Chunk,
}

/// The part of a message that depends on its procedure (RFC 8166 §4.2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// RDMA_MSG: the payload stream follows the chunk lists.
    Msg(ChunkLists),
    /// RDMA_NOMSG: a chunk holds the payload stream.
    NoMsg(ChunkLists),
    /// RDMA_DONE, which nobody sends any more.
    Done,
    /// RDMA_ERROR: a responder cannot answer a call.
    Error(RdmaError),
}

/// The header of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Transaction ID of call and reply.
    pub xid: u32,
    /// Version of the protocol.
    pub version: u32,
    /// Credits requested by a call, or granted by a reply.
    pub credits: u32,
    /// Content that the procedure determines.
    pub body: Body,
}

/// Reason why a message has no header of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The message is shorter than [`LENGTH_MIN`].
    Short,
    /// The version is another one.
    Version,
    /// The procedure is RDMA_MSGP, or unknown.
    Procedure(u32),
    /// There are more segments than the limit.
    Segments,
    /// A segment ends behind the last tagged offset.
    Wrapping,
    /// A field is cut off, or has no valid value.
    Xdr(XdrError),
}

impl From<XdrError> for HeaderError {
    fn from(error: XdrError) -> Self {
        Self::Xdr(error)
    }
}

/// Counts segments down from the limit.
struct Allowance(usize);

impl Allowance {
    fn segment(&mut self, reader: &mut Reader<'_>) -> Result<Segment, HeaderError> {
        self.0 = self.0.checked_sub(1).ok_or(HeaderError::Segments)?;
        let (stag, length, offset) = (Stag(reader.u32()?), reader.u32()?, reader.u64()?);
        match offset.checked_add(length.into()) {
            Some(_) => Ok(Segment { stag, length, offset }),
            None => Err(HeaderError::Wrapping),
        }
    }

    fn chunk(&mut self, reader: &mut Reader<'_>) -> Result<Vec<Segment>, HeaderError> {
        let count = reader.u32()? as usize;
        if count > self.0 {
            return Err(HeaderError::Segments);
        }
        (0..count).map(|_| self.segment(reader)).collect()
    }

    fn lists(&mut self, reader: &mut Reader<'_>) -> Result<ChunkLists, HeaderError> {
        let mut lists = ChunkLists::default();
        while reader.bool()? {
            let position = reader.u32()?;
            if !position.is_multiple_of(4) {
                return Err(XdrError::Value(position).into());
            }
            lists.reads.push(ReadSegment { position, segment: self.segment(reader)? });
        }
        while reader.bool()? {
            // A chunk without segments counts as one, so that a message cannot hold thousands.
            let chunk = self.chunk(reader)?;
            if chunk.is_empty() {
                self.0 = self.0.checked_sub(1).ok_or(HeaderError::Segments)?;
            }
            lists.writes.push(chunk);
        }
        if reader.bool()? {
            lists.reply = Some(self.chunk(reader)?);
        }
        Ok(lists)
    }
}

impl Header {
    /// Returns the XID and the version of a message: they have the same place in all versions of the protocol.
    #[must_use]
    pub fn xid_and_version(message: &[u8]) -> Option<(u32, u32)> {
        let mut reader = Reader::new(message);
        Some((reader.u32().ok()?, reader.u32().ok()?))
    }

    /// Parses a message. Returns the header and the bytes behind it: the payload stream of RDMA_MSG.
    ///
    /// # Errors
    /// The message has no valid header of version 1, or one with more than `segments_max` segments.
    pub fn parse(message: &[u8], segments_max: usize) -> Result<(Self, &[u8]), HeaderError> {
        let mut reader = Reader::new(message);
        let (xid, version, credits) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if version != VERSION {
            return Err(HeaderError::Version);
        }
        let mut allowance = Allowance(segments_max);
        let body = match reader.u32()? {
            0 => Body::Msg(allowance.lists(&mut reader)?),
            1 => Body::NoMsg(allowance.lists(&mut reader)?),
            3 => Body::Done,
            4 => Body::Error(match reader.u32()? {
                1 => RdmaError::Version { low: reader.u32()?, high: reader.u32()? },
                2 => RdmaError::Chunk,
                other => return Err(XdrError::Value(other).into()),
            }),
            other => return Err(HeaderError::Procedure(other)),
        };
        Ok((Self { xid, version, credits, body }, reader.rest()))
    }

    /// Appends the header to a message.
    pub fn emit(&self, writer: &mut Writer) {
        writer.u32(self.xid);
        writer.u32(self.version);
        writer.u32(self.credits);
        match &self.body {
            Body::Msg(lists) => {
                writer.u32(0);
                lists.emit(writer);
            }
            Body::NoMsg(lists) => {
                writer.u32(1);
                lists.emit(writer);
            }
            Body::Done => writer.u32(3),
            Body::Error(error) => {
                writer.u32(4);
                error.emit(writer);
            }
        }
    }
}

impl RdmaError {
    fn emit(self, writer: &mut Writer) {
        match self {
            Self::Version { low, high } => [1, low, high].into_iter().for_each(|word| writer.u32(word)),
            Self::Chunk => writer.u32(2),
        }
    }
}

impl ChunkLists {
    /// Returns all segments, in the order of the lists.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        let reads = self.reads.iter().map(|read| &read.segment);
        reads.chain(self.writes.iter().flatten()).chain(self.reply.iter().flatten())
    }

    fn emit(&self, writer: &mut Writer) {
        for read in &self.reads {
            writer.bool(true);
            writer.u32(read.position);
            read.segment.emit(writer);
        }
        writer.bool(false);
        for chunk in &self.writes {
            writer.bool(true);
            emit_chunk(chunk, writer);
        }
        writer.bool(false);
        writer.bool(self.reply.is_some());
        if let Some(chunk) = &self.reply {
            emit_chunk(chunk, writer);
        }
    }
}

impl Segment {
    fn emit(&self, writer: &mut Writer) {
        writer.u32(self.stag.0);
        writer.u32(self.length);
        writer.u64(self.offset);
    }
}

fn emit_chunk(chunk: &[Segment], writer: &mut Writer) {
    writer.u32(u32::try_from(chunk.len()).unwrap_or(u32::MAX));
    for segment in chunk {
        segment.emit(writer);
    }
}
