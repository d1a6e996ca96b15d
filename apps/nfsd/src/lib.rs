//! NFS versions 3 (RFC 1813) and 4.1 (RFC 8881), and MOUNT version 3, without a transport, over queue pairs of
//! `iwarpd`, and over the kernel's TCP.
//!
//! [`Server::call`] executes the call behind a reader, and returns its [`Reply`]. The payload of READ and WRITE does
//! not pass the XDR codec: a WRITE takes its data where the transport has it, and a READ returns a [`Payload`] beside
//! the stream of the reply, with its position there.
//!
//! The memory of a region ([`Regions`]) is the payload itself: a transport that has it registered sends a
//! [`Span`](iwarp_server::Span) of it, and places the data of a WRITE where [`Server::place`] says, before it executes
//! the call.
//!
//! An [`Export`] binds a name to a [`Backend`], with rules per client. File handles are sealed with a key, so that a
//! client can only use those that the server has issued: they lead to nothing outside of an export.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

pub mod args;
mod attributes;
mod backend;
mod call;
mod clients;
mod codec;
pub mod daemon;
mod directory;
mod export;
mod exports;
mod file;
mod methods;
mod mount;
mod nfs3;
mod nfs4;
mod procedure;
mod rdma;
mod regions;
mod reply;
mod report;
mod running;
mod server;
mod state;
mod stats;
mod status;
mod tcp;
mod tree;

pub use attributes::{Attributes, NewAttributes, SetTime, Time};
pub use backend::{Backend, Entry, New, Space};
pub use codec::HANDLE_MAX;
pub use directory::Directory;
pub use export::{Export, ExportError, Rule, Squash};
pub use file::File;
pub use procedure::{MountProc, Nfs3Proc, Nfs4Op, Nfs4Proc};
pub use rdma::{RdmaDevice, RdmaLimits, RdmaServer};
pub use regions::{Regions, Selection};
pub use reply::{Payload, Reply};
pub use server::{CopyOut, Server};
pub use state::StateLimits;
pub use stats::TcpStats;
pub use tcp::{TcpLimits, TcpServer};
