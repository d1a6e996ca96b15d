//! DDP (RFC 5041): segmentation of messages, and message order in the untagged queues. RDMAP calls it.

mod segment;
mod untagged;

pub(crate) use segment::{Segment, cut};
pub(crate) use untagged::UntaggedQueue;
