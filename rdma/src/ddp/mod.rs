//! DDP: cutting messages into segments, and the sequence of untagged messages (RFC 5041).

mod segment;
mod untagged;

pub(crate) use segment::{Segment, cut};
pub(crate) use untagged::UntaggedQueue;
