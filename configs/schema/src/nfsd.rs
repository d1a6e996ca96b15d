//! Configuration of `iwarp-nfsd`: checked values, with every default filled in.
//!
//! The structs are `non_exhaustive`: only this crate creates them, from a file that passed every check.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::RegionName;
use crate::check::nfsd::{Nfs, NfsdControl, NfsdExport, NfsdRdma, NfsdState, NfsdTcp};

/// A complete, checked configuration file of `iwarp-nfsd`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nfsd {
    /// Table `[rdma]`: NFS over RDMA, through `iwarpd`.
    pub rdma: NfsdRdma,
    /// Table `[tcp]`: MOUNT and NFS over the kernel's TCP; `None`: the server is reached over RDMA only.
    pub tcp: Option<NfsdTcp>,
    /// Table `[nfs]`: transfers, and the state of NFS version 4.1.
    pub nfs: Nfs,
    /// Table `[state]`: what outlives a restart.
    pub state: NfsdState,
    /// Table `[control]`: the control socket.
    pub control: NfsdControl,
    /// Tables `[[export]]`, at least one, with distinct paths.
    pub exports: Vec<NfsdExport>,
}

/// Content of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsdContent {
    /// A directory of this machine: `directory = "/…"`.
    Directory(PathBuf),
    /// The regions of the daemon that any peer may use, without a token and from any address: `regions = "*"`.
    PublicRegions,
    /// Regions of the daemon by name, at least one: `regions = ["…"]`.
    Regions(BTreeSet<RegionName>),
}

/// Users that become the anonymous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsdSquash {
    /// Nobody, except callers without a credential.
    None,
    /// The user and the group 0.
    Root,
    /// All users, whatever their number.
    All,
}
