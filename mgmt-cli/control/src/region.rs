//! Regions: memory that peers read and write by name.

use std::{fmt, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// One right that a region gives to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// RDMA Read.
    RemoteRead,
    /// RDMA Write.
    RemoteWrite,
    /// RDMA atomic operations.
    RemoteAtomic,
}

impl Access {
    /// Every right.
    pub const ALL: [Self; 3] = [Self::RemoteRead, Self::RemoteWrite, Self::RemoteAtomic];

    /// The right's name, the same in JSON and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RemoteRead => "remote-read",
            Self::RemoteWrite => "remote-write",
            Self::RemoteAtomic => "remote-atomic",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a right; the rights are remote-read, remote-write and remote-atomic")]
pub struct NotAnAccess;

impl FromStr for Access {
    type Err = NotAnAccess;

    fn from_str(text: &str) -> Result<Self, NotAnAccess> {
        Self::ALL.into_iter().find(|access| access.name() == text).ok_or(NotAnAccess)
    }
}

/// What a region's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Hugepages.
    Hugepages,
    /// Ordinary pages.
    Pages,
}

/// Who made a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The configuration.
    Config,
    /// A request over the control socket.
    Control,
}

/// Parameters of `region.register`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionRegister {
    /// The name peers ask for: 1 to [`crate::bounds::REGION_NAME_BYTES_MAX`] bytes of UTF-8.
    pub name: String,
    /// Its size in bytes; the daemon rounds the memory, not the region, up to whole pages.
    pub bytes: u64,
    /// What peers may do; at least one right.
    pub access: Vec<Access>,
    /// What a peer has to show, in hexadecimal: 1 to [`crate::bounds::TOKEN_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_hex: Option<String>,
    /// The prefixes ([`rdma::service::parse_prefix`]) that peers have to come from, at most
    /// [`crate::bounds::ALLOW_PREFIXES_MAX`]; empty admits all.
    #[serde(default, deserialize_with = "crate::prefix::list")]
    pub allow: Vec<IpNet>,
}

/// The token is a secret: it does not get into logs.
impl fmt::Debug for RegionRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, bytes, access, token_hex, allow } = self;
        f.debug_struct("RegionRegister")
            .field("name", name)
            .field("bytes", bytes)
            .field("access", access)
            .field("token_hex", &token_hex.as_ref().map(|_| "(secret)"))
            .field("allow", allow)
            .finish()
    }
}

/// Parameters of `region.show` and `region.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionName {
    /// The region's name.
    pub name: String,
}

/// Parameters of `region.deregister`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionDeregister {
    /// The region's name.
    pub name: String,
    /// Revoke the grants of peers that use it; without, such a region is refused as in use.
    #[serde(default)]
    pub force: bool,
}

/// A region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// What peers may do.
    pub access: Vec<Access>,
    /// What its memory is made of.
    pub backing: Backing,
    /// Bytes of one page of it.
    pub page_bytes: u64,
    /// Whether a peer has to show a token.
    pub token_required: bool,
    /// Where peers have to come from; empty admits all.
    pub allow: Vec<IpNet>,
    /// Who made it.
    pub origin: Origin,
    /// Grants that peers hold now.
    pub grants: u64,
    /// Bytes that peers have written.
    pub bytes_placed: u64,
    /// Bytes that peers have read.
    pub bytes_fetched: u64,
}

/// A region is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionDeregistered {
    /// The name it had.
    pub name: String,
    /// Grants that were revoked.
    pub grants_revoked: u64,
}

/// A region's memory; the memfd comes with the reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionAttached {
    /// The region's name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of one page; the memfd's length is a multiple of it.
    pub page_bytes: u64,
    /// What peers may do.
    pub access: Vec<Access>,
}
