//! Disk transfers, admission, regions, control socket and reports of servers over verbs: all but their protocols.
//!
//! - **Threads.** A [`Crew`] moves the messages of a [`Service`] and executes its calls; one that waits in a system
//!   call keeps its thread only.
//! - **Disks.** [`Tasks`] are calls as futures; one that reads, writes or syncs a file by its [`Io`] waits, while the
//!   threads execute others, until [`Disks`] (io_uring, and threads for the rest) have done it.
//! - **Admission.** [`makes_room`] chooses who gives way in a table that is full, so that an address takes nothing from
//!   one that has less.
//! - **Regions.** A [`RegionTable`] follows the regions of the daemon, and registers the memory of those that are used.
//! - **Service.** [`control`] is the socket that `iwarpctl` asks; [`service`] has signals, the service manager, the key
//!   file, and the start of the program.
//! - **Reports.** [`Latency`], [`Connections`], and [`counters`] that threads share.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod admission;
mod connections;
pub mod control;
pub mod counters;
mod crew;
mod identity;
pub mod kernel;
mod latency;
mod region;
mod ring;
mod room;
pub mod service;
mod tasks;
mod threads;
mod transfer;

pub use admission::{Entry, Peer, keep_latest, makes_room};
pub use connections::{Connected, Connection, Connections};
pub use crew::{Crew, Service, Wait};
pub use identity::{User, with_rights};
pub use kernel::Durability;
pub use latency::Latency;
pub use region::{DaemonRegions, Listed, Memory, Region, RegionTable, Source, Span};
pub use room::Room;
pub use tasks::{Content, Disks, Execution, Io, Key, Tasks, Written, at_once};

/// Crates whose types and macros a server meets here, so that of ours it depends on this one, and on the verbs.
pub use {iwarp_config, iwarp_control, iwarp_counters, iwarp_terminal};
