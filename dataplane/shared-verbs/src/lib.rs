//! Verbs of a program in another process. The program posts work requests and polls completions in memory that it
//! shares with the daemon's worker; it creates objects and connections by requests, which the daemon passes to the
//! worker.
//!
//! ```text
//!   program                               worker
//!   Request ──────── verbs socket ───────▶ Contexts::execute ──▶ Device: objects, connections
//!   SendQueue, RecvQueue ── rings ───────▶ Contexts::post ─────▶ Device::post_send, post_recv
//!   CompletionQueue ◀────── rings ──────── Contexts::deliver ◀── Device::poll_cq_slots
//!   Events ◀─────────────── ring ───────── Contexts::cm_event ◀─ Device: connection and asynchronous events
//! ```
//! The [`worker`] side checks all that it reads: a program that writes anything anywhere in its shared memory ends its
//! own queue pairs, and delays no other program. Work per iteration is bounded. The [`program`] side does not trust the
//! worker either.
//!
//! The crate has no unsafe code and does no I/O. Who maps the memory passes it as `AsRef<[AtomicU64]>`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod event;
mod layout;
pub mod methods;
mod notification;
pub mod program;
mod request;
#[cfg(any(test, feature = "testutil"))]
#[allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "tests may end their process")]
pub mod testutil;
pub mod worker;

pub use event::Event;
pub use iwarp_shared_queues::RingShape;
pub use layout::{CqPlace, QueuePlace, words_min};
pub use notification::{Content, Notification, notification_ring, notification_ring_words};
pub use request::{NextHop, QpPlaces, Request, Response};
