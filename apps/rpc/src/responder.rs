//! The responder of one connection: what to do with a received message (RFC 8166 §3 and §4).

use core::ops::Range;

use rdma::Stag;

use crate::header::{
    Body, ChunkLists, Header, HeaderError, LENGTH_MIN, RdmaError, ReadSegment, Segment, VERSION,
};
use crate::private_data::PrivateData;
use crate::stats::{Stats, count};
use crate::xdr::{Chunk, Reader, Writer};

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Credits granted: calls in flight, at least 1. The caller posts as many receive buffers.
    pub credits: u32,
    /// Segments of all chunk lists of a call, together.
    pub segments_max: usize,
    /// Bytes of all read chunks of a call, together.
    pub fetch_bytes_max: u32,
}

/// RDMA Read to post: from the peer's memory into the buffer of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Memory of the peer; its length is not zero.
    pub source: Segment,
    /// Offset in bytes in the buffer.
    pub offset: u32,
}

/// Reaction to a received message.
#[derive(Debug)]
pub enum Received {
    /// A call. It holds a credit until [`Responder::reply`] or a function that gives it up.
    Call(Call),
    /// Send this message: an RDMA_ERROR.
    Answer(Vec<u8>),
    /// Post the receive buffer again: the message is discarded.
    Discard,
    /// Close the connection: the peer exceeds its credits.
    Close,
}

/// Reason to answer a call with ERR_CHUNK after it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The fetched RPC message has another XID than the header.
    Xid,
    /// A write chunk is too small for its data item.
    WriteChunk,
    /// The reply fits neither the reply chunk nor the inline threshold.
    ReplyChunk,
}

/// Place of a call's payload stream.
#[derive(Clone, Debug)]
enum Stream {
    /// In the received message.
    Message(Range<usize>),
    /// In the buffer of fetched data, from its beginning: a position-zero read chunk.
    Fetched(u32),
}

/// A call, with the chunks of the peer.
#[derive(Debug)]
pub struct Call {
    pub(crate) xid: u32,
    pub(crate) granted: u32,
    pub(crate) writes: Vec<Vec<Segment>>,
    pub(crate) reply: Option<Vec<Segment>>,
    pub(crate) invalidate: Option<Stag>,
    reads: Vec<Read>,
    fetch_bytes: u32,
    stream: Stream,
    chunks: Vec<Chunk>,
}

impl Call {
    /// Returns the transaction ID.
    #[must_use]
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// Returns the RDMA Reads that must complete before [`Self::reader`].
    #[must_use]
    pub fn reads(&self) -> &[Read] {
        &self.reads
    }

    /// Returns the length in bytes of the buffer that the RDMA Reads fill.
    #[must_use]
    pub fn fetch_bytes(&self) -> u32 {
        self.fetch_bytes
    }

    /// Returns the length in bytes of the part of the buffer that holds the payload stream, at its beginning. It is
    /// zero if the received message holds it.
    #[must_use]
    pub fn fetched_stream_bytes(&self) -> u32 {
        match self.stream {
            Stream::Message(_) => 0,
            Stream::Fetched(length) => length,
        }
    }

    /// Returns the bytes of the write chunks, which bound what a reply can return in them.
    #[must_use]
    pub fn write_chunk_bytes(&self, at: usize) -> Option<u64> {
        self.writes.get(at).map(|chunk| total(chunk))
    }

    /// Reads the payload stream. `message` is the received message, `fetched` at least
    /// [`Self::fetched_stream_bytes`] bytes of the filled buffer.
    ///
    /// # Errors
    /// [`Refusal::Xid`]: the payload stream does not begin with the XID of the header (RFC 8166 §4.5.2).
    pub fn reader<'a>(&'a self, message: &'a [u8], fetched: &'a [u8]) -> Result<Reader<'a>, Refusal> {
        let stream = match &self.stream {
            Stream::Message(range) => message.get(range.clone()),
            Stream::Fetched(length) => fetched.get(..*length as usize),
        };
        let reader = Reader::with_chunks(stream.unwrap_or_default(), &self.chunks);
        match reader.clone().u32() {
            Ok(xid) if xid == self.xid => Ok(reader),
            _ => Err(Refusal::Xid),
        }
    }
}

/// The responder of one connection.
#[derive(Debug)]
pub struct Responder {
    limits: Limits,
    /// Longest message that this side sends and the peer receives, in bytes.
    pub(crate) inline_max: usize,
    /// True if both sides support remote invalidation (RFC 8797 §4.1).
    pub(crate) may_invalidate: bool,
    in_flight: u32,
}

impl Responder {
    /// Returns the responder of a new connection between this side and a peer with these properties.
    #[must_use]
    pub fn new(limits: Limits, own: &PrivateData, peer: &PrivateData) -> Self {
        Self {
            limits,
            inline_max: own.send_bytes.min(peer.receive_bytes) as usize,
            may_invalidate: own.remote_invalidation && peer.remote_invalidation,
            in_flight: 0,
        }
    }

    /// Returns the number of calls that have not been answered.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Decides about a received message.
    pub fn receive(&mut self, message: &[u8], stats: &mut Stats) -> Received {
        if message.len() < LENGTH_MIN {
            count(&mut stats.discard_short);
            return Received::Discard;
        }
        let (header, payload) = match Header::parse(message, self.limits.segments_max) {
            Ok(parsed) => parsed,
            Err(error) => return refuse_header(message, error, stats),
        };
        let (lists, inline) = match header.body {
            Body::Msg(lists) => (lists, Some(payload)),
            Body::NoMsg(lists) => (lists, None),
            Body::Done | Body::Error(_) => {
                count(&mut stats.discard_procedure);
                return Received::Discard;
            }
        };
        if self.in_flight >= self.limits.credits.max(1) {
            count(&mut stats.closed_credits);
            return Received::Close;
        }
        let granted = header.credits.clamp(1, self.limits.credits.max(1));
        let start = message.len().saturating_sub(payload.len());
        let range = inline.map(|_| start..message.len());
        match self.plan(header.xid, granted, lists, range, stats) {
            Ok(call) if inline.is_some() && call.reader(message, &[]).is_err() => {
                count(&mut stats.refused_xid);
                Received::Answer(chunk_error(header.xid, granted))
            }
            Ok(call) => {
                count(&mut stats.calls);
                self.in_flight = self.in_flight.saturating_add(1);
                Received::Call(call)
            }
            Err(()) => Received::Answer(chunk_error(header.xid, granted)),
        }
    }

    /// Answers a call with ERR_CHUNK, and takes its credit back. Returns the message to send.
    pub fn refuse(&mut self, call: &Call, refusal: Refusal, stats: &mut Stats) -> Vec<u8> {
        match refusal {
            Refusal::Xid => count(&mut stats.refused_xid),
            Refusal::WriteChunk => count(&mut stats.refused_write_chunk),
            Refusal::ReplyChunk => count(&mut stats.refused_reply_chunk),
        }
        self.release();
        chunk_error(call.xid, call.granted)
    }

    /// Discards a message that is no RPC call, and takes its credit back.
    pub fn discard(&mut self, _: Call, stats: &mut Stats) {
        count(&mut stats.discard_no_call);
        self.release();
    }

    pub(crate) fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Assigns places in the buffer to the read chunks, in the order of their positions (RFC 8166 §3.4.5).
    fn plan(
        &self,
        xid: u32,
        granted: u32,
        mut lists: ChunkLists,
        inline: Option<Range<usize>>,
        stats: &mut Stats,
    ) -> Result<Call, ()> {
        let invalidate = lists.segments().next().map(|segment| segment.stag);
        lists.reads.sort_by_key(|read| read.position);
        let Some((reads, chunks, fetch_bytes)) = place(&lists.reads, self.limits.fetch_bytes_max) else {
            count(&mut stats.refused_bytes);
            return Err(());
        };
        let (zero, chunks): (Vec<_>, Vec<_>) = chunks.into_iter().partition(|chunk| chunk.position == 0);
        let stream = match (inline, zero.first()) {
            (Some(range), None) => Stream::Message(range),
            (None, Some(chunk)) => Stream::Fetched(chunk.length),
            // A payload stream twice, or none.
            _ => {
                count(&mut stats.refused_stream);
                return Err(());
            }
        };
        let ChunkLists { writes, reply, .. } = lists;
        Ok(Call { xid, granted, writes, reply, invalidate, reads, fetch_bytes, stream, chunks })
    }
}

/// Returns the bytes of a chunk.
pub(crate) fn total(chunk: &[Segment]) -> u64 {
    chunk.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.length.into()))
}

/// Returns the RDMA Reads, the chunks and the bytes of all, unless these exceed the limit.
fn place(segments: &[ReadSegment], bytes_max: u32) -> Option<(Vec<Read>, Vec<Chunk>, u32)> {
    let (mut reads, mut chunks, mut offset) = (Vec::with_capacity(segments.len()), Vec::new(), 0_u32);
    for ReadSegment { position, segment } in segments {
        if segment.length > 0 {
            reads.push(Read { source: *segment, offset });
        }
        match chunks.last_mut() {
            Some(Chunk { position: last, length, .. }) if last == position => {
                *length = length.checked_add(segment.length)?;
            }
            _ => chunks.push(Chunk { position: *position, offset, length: segment.length }),
        }
        offset = offset.checked_add(segment.length).filter(|bytes| *bytes <= bytes_max)?;
    }
    Some((reads, chunks, offset))
}

/// Counts a header that cannot be parsed, and answers it.
fn refuse_header(message: &[u8], error: HeaderError, stats: &mut Stats) -> Received {
    let counter = match error {
        HeaderError::Short => &mut stats.discard_short,
        HeaderError::Version => &mut stats.refused_version,
        HeaderError::Procedure(_) => &mut stats.refused_procedure,
        HeaderError::Segments => &mut stats.refused_segments,
        HeaderError::Wrapping => &mut stats.refused_wrapping,
        HeaderError::Xdr(_) => &mut stats.refused_malformed,
    };
    count(counter);
    let Some((xid, version)) = Header::xid_and_version(message) else { return Received::Discard };
    let body = match error {
        HeaderError::Version => RdmaError::Version { low: VERSION, high: VERSION },
        _ => RdmaError::Chunk,
    };
    // The error has the version of the failing message (RFC 8166 §4.5).
    Received::Answer(emit(&Header { xid, version, credits: 1, body: Body::Error(body) }))
}

fn chunk_error(xid: u32, credits: u32) -> Vec<u8> {
    emit(&Header { xid, version: VERSION, credits, body: Body::Error(RdmaError::Chunk) })
}

fn emit(header: &Header) -> Vec<u8> {
    let mut writer = Writer::new();
    header.emit(&mut writer);
    writer.into_bytes()
}
