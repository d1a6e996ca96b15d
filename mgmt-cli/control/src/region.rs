//! Messages about regions: memory that peers read and write by name.

use std::fmt;

use ipnet::IpNet;
use rdma::Access;
use serde::{Deserialize, Serialize};

/// The kind of pages behind a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Hugepages of the machine.
    Hugepages,
    /// Ordinary pages, because hugepages were short.
    Pages,
}

/// The creator of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The configuration file created it.
    Config,
    /// A request over the control socket created it.
    Control,
}

/// The parameters of `region.register`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionRegister {
    /// The name that peers request: 1 to [`crate::bounds::REGION_NAME_BYTES_MAX`] bytes of UTF-8.
    pub name: String,
    /// The size in bytes; the daemon rounds the memory, not the region, up to whole pages.
    pub bytes: u64,
    /// The rights of peers, at least one; in JSON a list of [`Access::REGION_NAMES`].
    #[serde(with = "crate::access")]
    pub access: Access,
    /// The token that a peer must present, in hexadecimal: 1 to [`crate::bounds::TOKEN_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_hex: Option<String>,
    /// The source prefixes of admitted peers ([`rdma::service::parse_prefix`]), at most
    /// [`crate::bounds::ALLOW_PREFIXES_MAX`]; empty admits all.
    #[serde(default, deserialize_with = "crate::prefix::list")]
    pub allow: Vec<IpNet>,
}

/// Omits the token, which is a secret and must not reach a log.
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

/// The parameters of `region.show` and `region.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionQuery {
    /// The name of the region.
    pub name: String,
}

/// The parameters of `region.deregister`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionDeregister {
    /// The name of the region.
    pub name: String,
    /// True to revoke the grants of peers; otherwise a region in use is refused.
    #[serde(default)]
    pub force: bool,
}

/// A region and its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionInfo {
    /// The name of the region.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The rights of peers.
    #[serde(with = "crate::access")]
    pub access: Access,
    /// The kind of pages behind it.
    pub backing: Backing,
    /// Bytes of one page.
    pub page_bytes: u64,
    /// True if a peer must present a token.
    pub token_required: bool,
    /// The source prefixes of admitted peers; empty admits all.
    pub allow: Vec<IpNet>,
    /// The creator of the region.
    pub origin: Origin,
    /// Grants that peers hold.
    pub grants: u64,
    /// Bytes that peers have written.
    pub bytes_placed: u64,
    /// Bytes that peers have read.
    pub bytes_fetched: u64,
    /// Random number of this registration, at most 2^53: a later region of the same name has another one. 0: the daemon
    /// is older than the number.
    #[serde(default)]
    pub instance: u64,
}

/// The reply to `region.deregister`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionDeregistered {
    /// The name that the region had.
    pub name: String,
    /// Grants that were revoked.
    pub grants_revoked: u64,
}

/// The reply to `region.attach`; the memfd comes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionAttached {
    /// The name of the region.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// Bytes of one page; the memfd's length is a multiple of it.
    pub page_bytes: u64,
    /// The rights of peers.
    #[serde(with = "crate::access")]
    pub access: Access,
}
