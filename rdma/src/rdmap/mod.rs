//! RDMAP: what the messages mean (RFC 5040).

mod local;
mod out_of_order;
mod receive;
mod rtr;
mod run;
mod segment;
mod transmit;

pub(crate) use segment::SendOutcome;
