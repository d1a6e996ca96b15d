//! RDMAP: what the messages mean (RFC 5040).

mod early;
mod local;
mod receive;
mod rtr;
mod run;
mod transmit;

pub(crate) use transmit::Step;
