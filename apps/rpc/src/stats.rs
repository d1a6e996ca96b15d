//! Counters of the responders of one server.

iwarp_counters::counters! {
    /// Counters of RPC-over-RDMA messages, of all connections of a server.
    pub struct Stats {
        /// Calls received whole, or with chunks to read.
        calls,
        /// Replies sent inline, as part of a Send.
        replies_inline,
        /// Replies sent in a reply chunk.
        replies_chunk,
        /// Data items returned in write chunks.
        items_written,
        /// Data items returned inline.
        items_inline,
        /// Replies that invalidate an STag of the peer.
        invalidations,
        /// Messages discarded: shorter than a header.
        discard_short,
        /// Messages discarded: RDMA_DONE, or RDMA_ERROR, that a requester must not send.
        discard_procedure,
        /// Messages discarded by the program: no RPC call.
        discard_no_call,
        /// Calls refused with ERR_VERS: another version of the protocol.
        refused_version,
        /// Calls refused with ERR_CHUNK: an unknown or retired procedure, RDMA_MSGP among them.
        refused_procedure,
        /// Calls refused with ERR_CHUNK: the chunk lists end before their last field, or a field has no valid value.
        refused_malformed,
        /// Calls refused with ERR_CHUNK: more segments than the limit.
        refused_segments,
        /// Calls refused with ERR_CHUNK: a segment wraps at the end of the tagged offsets.
        refused_wrapping,
        /// Calls refused with ERR_CHUNK: chunks with more bytes than the limit.
        refused_bytes,
        /// Calls refused with ERR_CHUNK: the read chunks do not form a payload stream.
        refused_stream,
        /// Calls refused with ERR_CHUNK: the XID of the header is not that of the RPC message.
        refused_xid,
        /// Replies replaced by ERR_CHUNK: a write chunk is too small for its data item.
        refused_write_chunk,
        /// Replies replaced by ERR_CHUNK: the reply fits neither the reply chunk nor the peer's inline threshold.
        refused_reply_chunk,
        /// Connections closed: the peer sent more calls than it was granted credits.
        closed_credits,
    }
}

/// Adds one to a counter.
pub(crate) fn count(counter: &mut u64) {
    add(counter, 1);
}

/// Adds to a counter, which wraps.
pub(crate) fn add(counter: &mut u64, amount: u64) {
    *counter = counter.wrapping_add(amount);
}
