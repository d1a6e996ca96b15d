//! RDMAP (RFC 5040): the messages of a stream. [`QueuePair`](crate::qp::QueuePair) gains `receive` and `transmit`
//! here; the endpoint calls both.

mod ahead;
mod datagram;
mod local;
mod notify;
mod out_of_order;
mod payload;
mod receive;
mod rtr;
mod run;
mod segment;
mod transmit;

pub(crate) use segment::SendOutcome;
