//! The methods of the daemon: name, parameters, reply.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::app::{AppInfo, AppObjects, AppShow, CqInfo, MrInfo, QpInfo, UserInfo};
use crate::capture::{CaptureStart, Capturing};
use crate::conn::{ConnClose, ConnInfo, ConnShow, ConnsClosed};
use crate::counters::{DropRow, StatsReply};
use crate::error::{ErrorKind, ErrorObject};
use crate::event::{LogLevelChange, LogStatus, Monitoring};
use crate::lifecycle::{Drain, Drained, Reloaded};
use crate::port::{PortDetails, PortInfo, PortShow, PortStats, PortStatsRow};
use crate::region::{
    RegionAttached, RegionDeregister, RegionDeregistered, RegionInfo, RegionQuery, RegionRegister,
};
use crate::status::Status;

/// A method of the control socket.
pub trait Method {
    /// The name of the method on the wire.
    const NAME: &'static str;
    /// The type of its parameters.
    type Params: Serialize + DeserializeOwned;
    /// The type of its reply.
    type Reply: Serialize + DeserializeOwned;
}

/// The parameters of a method that takes none: `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// The reply to `hello`: the daemon and its versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The version of the messages, [`crate::bounds::API`].
    pub api: u32,
    /// The version of the daemon.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
}

/// Defines the methods of a socket, and `METHODS`, the list of their names.
#[macro_export]
macro_rules! methods {
    ($($(#[$meta:meta])* $name:ident = $wire:literal ($params:ty) -> $reply:ty;)+) => {
        $($(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl $crate::Method for $name {
            const NAME: &'static str = $wire;
            type Params = $params;
            type Reply = $reply;
        })+

        /// The names of all methods.
        pub const METHODS: &[&str] = &[$($wire),+];
    };
}

methods! {
    /// Returns the versions of the daemon and of the messages.
    Hello = "hello" (NoParams) -> HelloReply;
    /// Returns the state of the daemon on one screen.
    StatusMethod = "status" (NoParams) -> Status;
    /// Creates a region and offers it to peers.
    RegionRegisterMethod = "region.register" (RegionRegister) -> RegionInfo;
    /// Lists every region, by name.
    RegionListMethod = "region.list" (NoParams) -> Vec<RegionInfo>;
    /// Returns one region by name.
    RegionShowMethod = "region.show" (RegionQuery) -> RegionInfo;
    /// Revokes a region and frees it.
    RegionDeregisterMethod = "region.deregister" (RegionDeregister) -> RegionDeregistered;
    /// Returns the memory of a region as a descriptor, for a program that maps it.
    RegionAttachMethod = "region.attach" (RegionQuery) -> RegionAttached;
    /// Lists the connections, at most [`crate::bounds::CONNECTIONS_LISTED_MAX`].
    ConnListMethod = "conn.list" (NoParams) -> Vec<ConnInfo>;
    /// Returns one connection by number.
    ConnShowMethod = "conn.show" (ConnShow) -> ConnInfo;
    /// Resets one connection, those of a peer, or those of a listener.
    ConnCloseMethod = "conn.close" (ConnClose) -> ConnsClosed;
    /// Lists the applications, by number.
    AppListMethod = "app.list" (NoParams) -> Vec<AppInfo>;
    /// Returns one application by number.
    AppShowMethod = "app.show" (AppShow) -> AppInfo;
    /// Lists the users that have applications, with what they have of each limit.
    AppUsersMethod = "app.users" (NoParams) -> Vec<UserInfo>;
    /// Lists the queue pairs of applications, at most [`crate::bounds::OBJECTS_LISTED_MAX`].
    QpListMethod = "qp.list" (AppObjects) -> Vec<QpInfo>;
    /// Lists the completion queues of applications, at most [`crate::bounds::OBJECTS_LISTED_MAX`].
    CqListMethod = "cq.list" (AppObjects) -> Vec<CqInfo>;
    /// Lists the memory regions of applications, at most [`crate::bounds::OBJECTS_LISTED_MAX`].
    MrListMethod = "mr.list" (AppObjects) -> Vec<MrInfo>;
    /// Lists every port with its counters.
    PortListMethod = "port.list" (NoParams) -> Vec<PortInfo>;
    /// Returns one port in detail.
    PortShowMethod = "port.show" (PortShow) -> PortDetails;
    /// Returns the counters of the ports' hardware and drivers.
    PortStatsMethod = "port.stats" (PortStats) -> Vec<PortStatsRow>;
    /// Returns the counters by group, and the load of each worker.
    StatsMethod = "stats" (NoParams) -> StatsReply;
    /// Returns the drops and refusals by reason.
    DropsMethod = "drops" (NoParams) -> Vec<DropRow>;
    /// Begins to send an [`EventMessage`](crate::EventMessage) for each event, until the client disconnects.
    MonitorMethod = "monitor" (NoParams) -> Monitoring;
    /// Begins to send captured frames as a pcapng file, until the client disconnects.
    CaptureMethod = "capture" (CaptureStart) -> Capturing;
    /// Returns the level of the log, after it has set it if a level is given.
    LogLevelMethod = "log.level" (LogLevelChange) -> LogStatus;
    /// Reads the configuration file again, and applies all of its changes or none.
    ReloadMethod = "reload" (NoParams) -> Reloaded;
    /// Stops accepting connections, waits until the others have ended, and stops the daemon.
    DrainMethod = "drain" (Drain) -> Drained;
}

/// Decodes the parameters of a request; absent and null mean `{}`.
///
/// # Errors
/// A member is missing, unknown or of the wrong type: [`ErrorKind::InvalidParams`], which names it.
pub fn params<M: Method>(params: Value) -> Result<M::Params, ErrorObject> {
    let params = if params.is_null() { Value::Object(serde_json::Map::new()) } else { params };
    if !params.is_object() {
        let message = format!("{}: params must be an object with named members", M::NAME);
        return Err(ErrorObject::new(ErrorKind::InvalidParams, message));
    }
    serde_json::from_value(params)
        .map_err(|error| ErrorObject::new(ErrorKind::InvalidParams, format!("{}: {error}", M::NAME)))
}
