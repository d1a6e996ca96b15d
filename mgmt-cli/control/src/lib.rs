//! The control socket's messages, and a client for it.
//!
//! ```text
//!  program ──► Client::call::<M>(params) ── one line of JSON ──► control socket ──► iwarpd
//!          ◄── M::Reply (and a descriptor) ◄── one line of JSON ── (SCM_RIGHTS) ◄──
//! ```
//!
//! The protocol is JSON-RPC 2.0, one object per line, on a Unix stream socket. Each method of the
//! daemon is a type that implements [`Method`]; its parameters and its reply are the types named
//! there, and both ends use the same ones. Fields are only added, never renamed; integers are in base
//! units and carry the unit in their name. What a refusal means to a script is its [`Exit`] code.
//!
//! Lengths are bounded by the constants of [`bounds`] before anything is allocated.
#![forbid(unsafe_code)]

mod access;
mod acl;
mod app;
pub mod bounds;
mod capture;
mod client;
mod conn;
mod counters;
mod error;
mod event;
mod exit;
mod lifecycle;
mod message;
mod method;
pub mod nfs;
mod port;
mod prefix;
mod region;
pub mod socket;
mod status;
#[cfg(feature = "testutil")]
#[allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]
pub mod testutil;
pub mod transfer;
mod worker;

pub use app::{AppInfo, AppObjects, AppShow, CqInfo, MrInfo, MrKind, QpInfo, UsageInfo, UserInfo, WatchInfo};
pub use capture::{CaptureStart, Capturing, FILTER_TERMS_MAX, Filter, FilterError, Term, Test};
pub use client::{Client, ClientError};
pub use conn::{ConnBbrInfo, ConnClose, ConnClosed, ConnInfo, ConnRdmaInfo, ConnShow, ConnsClosed};
pub use counters::{CounterGroup, CounterRow, DropRow, NamedCounters, StatsReply};
pub use error::{ErrorData, ErrorKind, ErrorObject};
pub use event::{
    EventMessage, EventNotification, EventRecord, LogLevel, LogLevelChange, LogStatus, Monitoring,
};
pub use exit::Exit;
pub use lifecycle::{ConfigChange, Drain, Drained, Reloaded};
pub use message::{BadLine, Id, Request, Response, Version};
pub use method::{
    AppListMethod, AppShowMethod, AppUsersMethod, CaptureMethod, ConnCloseMethod, ConnListMethod,
    ConnShowMethod, CqListMethod, DrainMethod, DropsMethod, Hello, HelloReply, LogLevelMethod, METHODS,
    Method, MonitorMethod, MrListMethod, NoParams, PortListMethod, PortShowMethod, PortStatsMethod,
    QpListMethod, RegionAttachMethod, RegionDeregisterMethod, RegionListMethod, RegionRegisterMethod,
    RegionShowMethod, ReloadMethod, StatsMethod, StatusMethod, params,
};
pub use port::{
    Interrupts, KernelSide, Link, LinkChange, MovedInterface, PortDetails, PortInfo, PortShow, PortStats,
    PortStatsRow, Sharing, SuperFrames,
};
pub use prefix::parse_prefix;
pub use region::{
    Backing, Origin, RegionAttached, RegionDeregister, RegionDeregistered, RegionInfo, RegionQuery,
    RegionRegister,
};
pub use status::{ConnCounts, Draining, Hugepages, PoolStatus, RegionTotals, State, Status};
pub use worker::{Idle, WorkerStatus};
