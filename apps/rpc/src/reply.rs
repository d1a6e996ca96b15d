//! Replies: data items go to write chunks, long messages to the reply chunk, the rest inline (RFC 8166 §3.5, §4.3).

use core::ops::Range;

use rdma::Stag;

use crate::header::{Body, ChunkLists, Header, Segment, VERSION};
use crate::responder::{Call, Refusal, Responder};
use crate::stats::{Stats, add};
use crate::xdr::{Writer, padding};

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A range of [`Reply::bytes`].
    Bytes(Range<usize>),
    /// Bytes of a data item.
    Item {
        /// Number of the item, in the order given to [`Responder::reply`].
        item: usize,
        /// Range of bytes of the item.
        range: Range<usize>,
    },
}

/// RDMA Write to post, before the Send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Key of the peer's memory.
    pub stag: Stag,
    /// Tagged offset of the first byte written.
    pub offset: u64,
    /// Bytes to write; not empty.
    pub source: Piece,
}

/// Operations that answer a call: the Writes in order, then one Send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The header, and the payload stream without data items.
    pub bytes: Vec<u8>,
    /// RDMA Writes to post first.
    pub writes: Vec<Write>,
    /// Pieces of the message to send, in order; it is no longer than the inline threshold.
    pub send: Vec<Piece>,
    /// STag for Send with Invalidate. It comes from this call's chunks.
    pub invalidate: Option<Stag>,
}

impl Piece {
    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no piece is empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(range) | Self::Item { range, .. } => range.len(),
        }
    }

    /// Splits the first `length` bytes off.
    fn split(&mut self, length: usize) -> Self {
        let mut first = self.clone();
        let (Self::Bytes(head) | Self::Item { range: head, .. }) = &mut first;
        let (Self::Bytes(tail) | Self::Item { range: tail, .. }) = self;
        head.end = head.start.saturating_add(length).min(head.end);
        tail.start = head.end;
        first
    }
}

/// A data item of a result that may be reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Offset in the given payload stream at which the item's bytes belong, behind their count.
    pub position: usize,
    /// Length in bytes, without XDR padding.
    pub length: u32,
}

impl Responder {
    /// Answers a call, and takes its credit back. `stream` is the RPC reply without the bytes and the padding of
    /// `items`, which are in the order of their positions. Each item goes to the next write chunk; one without a
    /// chunk, or with an empty one, goes inline. If the peer has offered a reply chunk, the message goes there.
    ///
    /// # Errors
    /// The chunks are too small for the reply. The call is not answered: [`Responder::refuse`] does that.
    pub fn reply(
        &mut self,
        call: &Call,
        stream: &[u8],
        items: &[Item],
        stats: &mut Stats,
    ) -> Result<Reply, Refusal> {
        let mut draft = Draft::default();
        let mut lists = ChunkLists { writes: unused(&call.writes), ..ChunkLists::default() };
        let inline = draft.reduce(call, &mut lists, items)?;
        let header = |lists: ChunkLists, body: fn(ChunkLists) -> Body| {
            let mut writer = Writer::new();
            let body = body(lists);
            Header { xid: call.xid, version: VERSION, credits: call.granted, body }.emit(&mut writer);
            writer.into_bytes()
        };
        let payload = inline
            .iter()
            .map(|item| padded(item.1.length as usize))
            .fold(stream.len(), usize::saturating_add);
        let room = call.reply.as_ref().filter(|chunk| crate::responder::total(chunk) >= payload as u64);
        if let Some(chunk) = room {
            let mut used = chunk.clone();
            let mut pieces = Vec::new();
            // The stream comes first in the bytes, the header behind it.
            draft.bytes.extend_from_slice(stream);
            draft.stream(0, stream.len(), &inline, &mut pieces);
            draft.scatter(&mut used, pieces);
            lists.reply = Some(used);
            let head = header(lists, Body::NoMsg);
            let start = draft.bytes.len();
            draft.bytes.extend_from_slice(&head);
            draft.send.push(Piece::Bytes(start..draft.bytes.len()));
        } else {
            draft.bytes = header(lists, Body::Msg);
            let start = draft.bytes.len();
            draft.bytes.extend_from_slice(stream);
            let mut pieces = vec![Piece::Bytes(0..start)];
            draft.stream(start, stream.len(), &inline, &mut pieces);
            draft.send = pieces;
        }
        let length = draft.send.iter().map(Piece::len).fold(0, usize::saturating_add);
        if length > self.inline_max {
            return Err(Refusal::ReplyChunk);
        }
        self.release();
        count(stats, room.is_some(), items.len(), inline.len());
        let invalidate = call.invalidate.filter(|_| self.may_invalidate);
        add(&mut stats.invalidations, u64::from(invalidate.is_some()));
        let Draft { bytes, writes, send } = draft;
        Ok(Reply { bytes, writes, send, invalidate })
    }
}

fn count(stats: &mut Stats, in_chunk: bool, items: usize, inline: usize) {
    add(&mut stats.replies_chunk, u64::from(in_chunk));
    add(&mut stats.replies_inline, u64::from(!in_chunk));
    add(&mut stats.items_inline, inline as u64);
    add(&mut stats.items_written, items.saturating_sub(inline) as u64);
}

fn padded(length: usize) -> usize {
    length.saturating_add(padding(length))
}

/// Returns the chunks with all lengths zero: unused write chunks (RFC 8166 §4.3.2.2).
fn unused(chunks: &[Vec<Segment>]) -> Vec<Vec<Segment>> {
    let empty = |segment: &Segment| Segment { length: 0, ..*segment };
    chunks.iter().map(|chunk| chunk.iter().map(empty).collect()).collect()
}

/// A reply in the making.
#[derive(Default)]
struct Draft {
    bytes: Vec<u8>,
    writes: Vec<Write>,
    send: Vec<Piece>,
}

impl Draft {
    /// Puts items into write chunks. Returns those that go inline, with their numbers.
    fn reduce(
        &mut self,
        call: &Call,
        lists: &mut ChunkLists,
        items: &[Item],
    ) -> Result<Vec<(usize, Item)>, Refusal> {
        let mut inline = Vec::new();
        let mut chunks = call.writes.iter().zip(&mut lists.writes);
        for (number, item) in items.iter().enumerate() {
            match chunks.next() {
                Some((offered, returned)) if !offered.is_empty() => {
                    if crate::responder::total(offered) < item.length.into() {
                        return Err(Refusal::WriteChunk);
                    }
                    returned.clone_from(offered);
                    let range = 0..item.length as usize;
                    self.scatter(returned, vec![Piece::Item { item: number, range }]);
                }
                _ => inline.push((number, *item)),
            }
        }
        Ok(inline)
    }

    /// Cuts the payload stream, `length` bytes from `start` of the bytes, at its items, and appends the padding of
    /// these to the bytes.
    fn stream(&mut self, start: usize, length: usize, items: &[(usize, Item)], pieces: &mut Vec<Piece>) {
        let end = start.saturating_add(length);
        let zeros = self.bytes.len()..self.bytes.len().saturating_add(3);
        if !items.is_empty() {
            self.bytes.resize(zeros.end, 0);
        }
        let mut at = start;
        for (number, item) in items {
            let position = start.saturating_add(item.position).clamp(at, end);
            let length = item.length as usize;
            let pad = zeros.start..zeros.start.saturating_add(padding(length));
            pieces.push(Piece::Bytes(at..position));
            pieces.push(Piece::Item { item: *number, range: 0..length });
            pieces.push(Piece::Bytes(pad));
            at = position;
        }
        pieces.push(Piece::Bytes(at..end));
        pieces.retain(|piece| piece.len() > 0);
    }

    /// Distributes pieces over the segments of a chunk, and sets the segments' lengths to the bytes written. The caller
    /// has checked that they fit.
    fn scatter(&mut self, chunk: &mut [Segment], pieces: Vec<Piece>) {
        let mut pieces = pieces.into_iter();
        let mut rest = pieces.next();
        for segment in chunk {
            let mut used = 0_u32;
            while let Some(piece) = &mut rest {
                let room = segment.length.saturating_sub(used) as usize;
                if piece.len() == 0 {
                    rest = pieces.next();
                    continue;
                }
                if room == 0 {
                    break;
                }
                let source = piece.split(room);
                let offset = segment.offset.saturating_add(used.into());
                used = used.saturating_add(u32::try_from(source.len()).unwrap_or(u32::MAX));
                self.writes.push(Write { stag: segment.stag, offset, source });
            }
            segment.length = used;
        }
    }
}
