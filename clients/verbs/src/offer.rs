//! Regions that a program offers to peers by name: `iwarpctl remote put`, `get` and `ping` of any machine reach them,
//! and so does [`connect_region`](crate::connect_region).
//!
//! The device in the program's process has the region service of the daemon: a peer names a region as it connects,
//! and is granted a key for it that is valid on its connection only.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use iwarp_engine::memory::FileMemory;
use rdma::Stag;
use rdma::service::{Prefix, Token};
use rdma::verbs::Access;

use crate::context::{Context, Inner};
use crate::error::Error;
use crate::mr::Mr;

/// TCP port of the region service, unless an address names another.
pub const REGION_PORT: u16 = 7400;

/// Address at which regions are served if a program names none: the loopback interface, which this machine alone
/// reaches.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), REGION_PORT);

/// Conditions under which peers may use a region.
#[derive(Clone, Debug)]
pub struct OfferOptions {
    /// Rights of the peers: some of `REMOTE_READ`, `REMOTE_WRITE` and `REMOTE_ATOMIC`.
    pub access: Access,
    /// Token that a peer must present, if any. It passes the network as it is.
    pub token: Option<Token>,
    /// Source prefixes that peers must come from; if empty, any address may.
    pub allow: Vec<Prefix>,
}

impl OfferOptions {
    /// Returns options that grant these rights to every peer.
    pub const fn new(access: Access) -> Self {
        Self { access, token: None, allow: Vec::new() }
    }

    /// Requires that peers present a token.
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }
}

/// Counters of a region that is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferStats {
    /// Connections that use the region.
    pub grants: u64,
    /// Bytes that peers have written.
    pub bytes_placed: u64,
    /// Bytes that peers have read.
    pub bytes_fetched: u64,
}

/// A region to offer.
#[derive(Debug)]
pub(crate) struct NewOffer {
    pub(crate) name: String,
    pub(crate) memory: OfferedMemory,
    pub(crate) options: OfferOptions,
}

/// Memory of a region.
#[derive(Debug)]
pub(crate) enum OfferedMemory {
    /// The memory region with this key.
    Registered(Stag),
    /// A file that is not mapped.
    File(Arc<FileMemory>),
}

/// The region service of a device.
pub(crate) trait Regions {
    /// Listens at addresses, and returns them with their ports.
    fn serve(&self, addresses: &[SocketAddr]) -> Result<Vec<SocketAddr>, Error>;

    /// Withdraws all regions, and ends listeners and connections.
    fn end(&self);

    /// Offers a region, and returns the number of its handle.
    fn offer(&self, new: NewOffer) -> Result<u64, Error>;

    /// Withdraws a region, if it is offered.
    fn withdraw(&self, number: u64);

    /// Returns the counters of a region; `None` if it is not offered.
    fn stats(&self, number: u64) -> Option<OfferStats>;
}

/// Listeners of the region service of a context, whose regions are all reached at each of them. Clones are handles of
/// the same one. When the last handle and the last [`Offer`] are dropped, the listeners and their connections end.
#[derive(Clone, Debug)]
pub struct RegionServer(Arc<Server>);

#[derive(Debug)]
struct Server {
    context: Arc<Inner>,
    addresses: Vec<SocketAddr>,
}

/// A region that peers reach by its name, until the handle is dropped or its memory region is deregistered. Both
/// revoke the grants of peers: their next access ends their connections, and nobody touches the memory any more.
#[derive(Debug)]
#[must_use = "a region is withdrawn when its handle is dropped"]
pub struct Offer {
    server: RegionServer,
    name: String,
    number: u64,
}

impl Context {
    /// Listens for peers that ask for regions, at these addresses; without one, at `127.0.0.1:7400`. An unspecified
    /// address stands for all of its family, and the kernel selects a port for port 0. Only a device inside the
    /// program ([`Context::embedded`]) serves regions itself, and a context has one such server at a time.
    ///
    /// # Errors
    /// [`Error::Listen`]: an address is not of this machine, in use, or for a user with a privilege.
    /// [`Error::Refused`]: the context has a server, or its device is the daemon's, which offers regions by
    /// `iwarpctl region register`.
    pub fn serve_regions(&self, addresses: &[SocketAddr]) -> Result<RegionServer, Error> {
        let addresses = if addresses.is_empty() { &[DEFAULT_ADDRESS] } else { addresses };
        let addresses = self.0.call(|backend| backend.regions()?.serve(addresses))?;
        Ok(RegionServer(Arc::new(Server { context: Arc::clone(&self.0), addresses })))
    }
}

impl RegionServer {
    /// Returns the addresses that peers connect to, with the ports that the kernel has selected.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    /// Offers all of a memory region under a name. The memory region must be registered with the rights of the offer.
    /// It may be offered under several names, with other rights each.
    ///
    /// # Errors
    /// [`Error::Refused`]: the name is taken or not a name ([`check_name`](rdma::service::check_name)), the memory
    /// region lacks a right or is of another context, or there are too many regions.
    pub fn offer(&self, name: &str, memory: &Mr, options: &OfferOptions) -> Result<Offer, Error> {
        self.0.context.owns("offer", &memory.pd.0.context)?;
        self.add(name, OfferedMemory::Registered(memory.rkey()), options)
    }

    /// Offers a file under a name, with its present length: peers read it, and their Writes change it. The file is not
    /// mapped but read and written by system calls, so that others may cut it short: an access beyond its end then ends
    /// the connection, and so does a full disk. The bytes are the kernel's to bring to the disk (`fsync`), and
    /// their order is not defined. A slow disk delays all connections of the device.
    ///
    /// # Errors
    /// As [`Self::offer`]. [`Error::File`]: the file is not a regular one, is empty, or is not open for reading, and
    /// for writing if peers may write. Atomic operations are refused.
    pub fn offer_file(&self, name: &str, file: File, options: &OfferOptions) -> Result<Offer, Error> {
        let unfit = |reason: String| Error::File { name: name.to_owned(), reason };
        let flags = rustix::fs::fcntl_getfl(&file);
        let flags = flags.map_err(|cause| Error::System { call: "fcntl", cause: cause.into() })?;
        let mode = flags & rustix::fs::OFlags::ACCMODE;
        if mode == rustix::fs::OFlags::WRONLY {
            return Err(unfit("it is open for writing only".to_owned()));
        }
        if options.access.contains(Access::REMOTE_WRITE) && mode != rustix::fs::OFlags::RDWR {
            return Err(unfit("it is open for reading only, and peers are to write".to_owned()));
        }
        let memory = FileMemory::new(file).map_err(|error| unfit(error.to_string()))?;
        self.add(name, OfferedMemory::File(Arc::new(memory)), options)
    }

    fn add(&self, name: &str, memory: OfferedMemory, options: &OfferOptions) -> Result<Offer, Error> {
        let new = NewOffer { name: name.to_owned(), memory, options: options.clone() };
        let number = self.0.context.call(|backend| backend.regions()?.offer(new))?;
        Ok(Offer { server: self.clone(), name: name.to_owned(), number })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only in a child of the process, which has no device.
        let _ = self.context.call(|backend| {
            backend.regions()?.end();
            Ok(())
        });
    }
}

impl Offer {
    /// Returns the name that peers ask for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the server of the region.
    pub const fn server(&self) -> &RegionServer {
        &self.server
    }

    /// Returns the counters of the region; `None` once its memory region is deregistered.
    pub fn stats(&self) -> Option<OfferStats> {
        self.server.0.context.call(|backend| Ok(backend.regions()?.stats(self.number))).ok().flatten()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // Fails only in a child of the process, which has no device.
        let _ = self.server.0.context.call(|backend| {
            backend.regions()?.withdraw(self.number);
            Ok(())
        });
    }
}
