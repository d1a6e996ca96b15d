//! The daemon's methods: a name, what it takes, what it returns.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::conn::{ConnClose, ConnInfo, ConnShow, ConnsClosed};
use crate::counters::{DropRow, StatsReply};
use crate::error::{ErrorKind, ErrorObject};
use crate::port::{PortInfo, PortStats, PortStatsRow};
use crate::region::{
    RegionAttached, RegionDeregister, RegionDeregistered, RegionInfo, RegionName, RegionRegister,
};
use crate::status::Status;

/// One method of the control socket.
pub trait Method {
    /// Its name on the wire.
    const NAME: &'static str;
    /// What it takes.
    type Params: Serialize + DeserializeOwned;
    /// What it returns.
    type Reply: Serialize + DeserializeOwned;
}

/// No parameters: `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The version of the messages, [`crate::bounds::API`].
    pub api: u32,
    /// The daemon's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
}

macro_rules! methods {
    ($($(#[$meta:meta])* $name:ident = $wire:literal ($params:ty) -> $reply:ty;)+) => {
        $($(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl Method for $name {
            const NAME: &'static str = $wire;
            type Params = $params;
            type Reply = $reply;
        })+

        /// The names of all methods.
        pub const METHODS: &[&str] = &[$($wire),+];
    };
}

methods! {
    /// Who answers, and in which version.
    Hello = "hello" (NoParams) -> HelloReply;
    /// The daemon's state on one screen.
    StatusMethod = "status" (NoParams) -> Status;
    /// Makes a region and offers it to peers.
    RegionRegisterMethod = "region.register" (RegionRegister) -> RegionInfo;
    /// Every region.
    RegionListMethod = "region.list" (NoParams) -> Vec<RegionInfo>;
    /// One region.
    RegionShowMethod = "region.show" (RegionName) -> RegionInfo;
    /// Takes a region away from peers and frees it.
    RegionDeregisterMethod = "region.deregister" (RegionDeregister) -> RegionDeregistered;
    /// A region's memory as a descriptor, for a program that maps it.
    RegionAttachMethod = "region.attach" (RegionName) -> RegionAttached;
    /// Every connection, at most [`crate::bounds::CONNECTIONS_LISTED_MAX`].
    ConnListMethod = "conn.list" (NoParams) -> Vec<ConnInfo>;
    /// One connection.
    ConnShowMethod = "conn.show" (ConnShow) -> ConnInfo;
    /// Resets one connection, those of a peer, or those of a listener.
    ConnCloseMethod = "conn.close" (ConnClose) -> ConnsClosed;
    /// Every port.
    PortListMethod = "port.list" (NoParams) -> Vec<PortInfo>;
    /// The counters of the ports' hardware and drivers.
    PortStatsMethod = "port.stats" (PortStats) -> Vec<PortStatsRow>;
    /// The daemon's counters by group, and how busy its workers are.
    StatsMethod = "stats" (NoParams) -> StatsReply;
    /// What was dropped or refused, by reason.
    DropsMethod = "drops" (NoParams) -> Vec<DropRow>;
}

/// A method's parameters out of a request; absent and null mean `{}`.
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
