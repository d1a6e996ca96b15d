//! MPA, DDP and RDMAP, verbs and memory protection: the crate from outside, one connection or a few at a time. These
//! tests are one program, because each program would compile the crate's generic code again.
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "lengths are small, and a test may panic"
)]

mod deferred;
mod disconnect;
mod faults;
mod flows;
mod fuzz;
mod hostile;
mod incomplete;
mod mpa_fpdu;
mod mpa_markers;
mod mpa_negotiate;
mod notify;
mod out_of_order;
mod out_of_order_hostile;
mod page;
mod rfc5042;
mod rfc7306;
mod rtr;
mod streams;
mod terminate;
mod terminate_codes;
mod terminate_initiator;
mod verbs_alloc;
mod verbs_bounded;
mod verbs_connection;
mod verbs_datagrams;
mod verbs_datagrams_model;
mod verbs_looped;
mod verbs_model;
mod verbs_numbered;
mod verbs_numbered_model;
mod verbs_queues;
mod verbs_service;
mod verbs_sizes;
mod verbs_work;
mod wire_headers;
mod wire_mpa;
mod wire_terminate;
