//! TCP/IP as a pure function of frames, time and seed.
//!
//! ```text
//!            frames                                                         frames
//!   port ──handle_frames──▶ iface ──▶ conn::table ──▶ conn ──▶ poll_transmit ──▶ port
//!                             │            │            │ ▲
//!                  ARP, NDP,  │   TIME-WAIT│   timer::wheel
//!                  ping       ▼   LISTEN   ▼            │ handle_timeouts(now)
//!                                                       ▼
//!                                  poll_event ◀── in-order payload, in the frames it came in
//! ```
//!
//! One [`Stack`] belongs to one worker and shares nothing. It does no I/O, reads no clock, and has no lock; its
//! memory is reserved when it is made. Its methods are of four kinds:
//!
//! * `handle_…` takes input: a burst of frames, the passing of time;
//! * `poll_…` returns output: events for the application, frames for the port;
//! * commands — `listen`, `connect`, `send`, `append`, `consumed`, `close`, `abort` — act for the application;
//! * the others only read.
//!
//! Received payload is delivered in the frame that it came in ([`Segment`]). Sent payload stays in the buffer that
//! the application filled ([`Buf`]) until it is acknowledged, and is retransmitted from there.
//!
//! # What it is not
//! No sockets, no blocking, no copying of buffers, no IP forwarding, no UDP. Addresses and gateways are configured:
//! no DHCP, no router discovery, no duplicate address detection. Nothing is sent in fragments, IP options are
//! ignored. No data on a SYN (RFC 7413), no MD5 or TCP-AO, no Accurate ECN.
//! One VLAN and one address per family.
//!
#![cfg_attr(feature = "testutil", doc = include_str!("example.md"))]
#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]
// Overflow and an index out of bounds end the process: no peer must be able to cause them.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod accounts;
mod budget;
mod buf;
mod cc;
mod config;
mod conn;
mod entropy;
mod error;
mod event;
mod four_tuple;
mod iface;
mod our_ports;
mod pool;
mod recovery;
mod seq;
mod set;
mod stack;
mod state;
mod stats;
#[cfg(any(test, feature = "testutil"))]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests may end their process")]
pub mod testutil;
mod time;
mod timer;
pub mod wire;

pub use buf::{Buf, BufClass, BufPool, HEADROOM, RxChecksum, RxFrame, TxFrame, TxOffload};
pub use cc::BbrInfo;
pub use config::{
    Congestion, ConnOptions, Ecn, EvictionPolicy, Keepalive, ListenOptions, ListenScope, Segmentation,
    StackConfig, SynCookies, TcpConfig,
};
pub use error::{CloseReason, ConnectError, ListenError, SendError};
pub use event::{ConnId, ConnInfo, EcnState, Event, ListenerId, Segment};
pub use iface::{DropReason, Drops, InterfaceStats};
pub use our_ports::OurPorts;
pub use seq::SeqNum;
pub use stack::{SEND_LEAST, Stack};
pub use state::State;
pub use stats::{StackStats, StateCounts, TcpStats};
pub use time::{Duration, Instant};
pub use wire::{Flow, Ipv4Cidr, Ipv6Cidr, MacAddr, Rss, flow_hash, peek_flow};
