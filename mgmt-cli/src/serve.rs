//! `iwarpctl serve`: regions of files and of memory, over the kernel's TCP, by a device in this process.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use iwarp_control::Exit;
use iwarp_remote::read_token;
use iwarp_terminal::{Failure, Output};
use iwarp_verbs::{Context, Error, Mr, Offer, OfferOptions, Prefix, VerbsError};
use rdma::Access;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{Content, Serve, Served};
use crate::render;

/// A server that is ready.
#[derive(Debug, Serialize)]
pub(crate) struct Serving {
    /// Addresses that peers connect to.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) regions: Vec<ServedRegion>,
}

/// A region that peers reach.
#[derive(Debug, Serialize)]
pub(crate) struct ServedRegion {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Names of the peers' rights.
    pub(crate) access: Vec<&'static str>,
    pub(crate) token_required: bool,
    /// Source prefixes of permitted peers; empty: any peer.
    pub(crate) allow: Vec<IpNet>,
    /// File that has the bytes; `None` for memory.
    pub(crate) file: Option<PathBuf>,
}

/// Serves the regions until SIGINT or SIGTERM.
pub(crate) fn run(options: &Serve, output: &Output) -> Result<(), Failure> {
    // From here on, a signal ends the server in order.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
        Failure::new(Exit::Failed, "signals", format!("cannot wait for signals: {error}"))
    })?;
    let access = options.access.iter().fold(Access::NONE, |all, right| all | *right);
    check(&options.regions, access)?;
    let token = options.token_file.as_deref().map(read_token).transpose()?;
    let prefixes = options.allow.iter().filter_map(|net| Prefix::new(net.addr(), net.prefix_len()));
    let offered = OfferOptions { access, token, allow: prefixes.collect() };
    let context = Context::embedded().map_err(failed)?;
    let pd = context.alloc_pd().map_err(failed)?;
    let mut memory = Vec::new();
    let mut files = Vec::new();
    for Served { name, content } in &options.regions {
        match content {
            Content::File(path) => files.push((name, path, open(path, access)?)),
            Content::Memory(bytes) => {
                let mr = pd.alloc_mr(*bytes, local(access)).map_err(|error| {
                    let failure = failed(error);
                    Failure { message: format!("region `{name}`: {}", failure.message), ..failure }
                })?;
                memory.push((name, mr));
            }
        }
    }
    // Behind files and memory, which take time: a peer that connects before its region is offered finds none.
    let server = context.serve_regions(&options.listen).map_err(failed)?;
    let row = |name: &str, bytes, file| ServedRegion {
        name: name.to_owned(),
        bytes,
        access: access.names().collect(),
        token_required: offered.token.is_some(),
        allow: options.allow.clone(),
        file,
    };
    let (mut offers, mut regions) = (Vec::new(), Vec::new());
    for (name, mr) in &memory {
        offers.push(server.offer(name, mr, &offered).map_err(failed)?);
        regions.push(row(name, Mr::region(mr).length, None));
    }
    for (name, path, (file, bytes)) in files {
        offers.push(server.offer_file(name, file, &offered).map_err(failed)?);
        regions.push(row(name, bytes, Some(path.clone())));
    }
    regions.sort_by(|a, b| a.name.cmp(&b.name));
    let addresses = server.addresses().to_vec();
    output
        .result(&Serving { addresses, regions }, |serving| render::serve::ready(serving, output.width()))?;
    signals.forever().next();
    if output.is_text() {
        offers.sort_by(|a, b| a.name().cmp(b.name()));
        let rows = offers.iter().map(|offer| (offer.name(), Offer::stats(offer).unwrap_or_default()));
        output.text(&render::serve::ended(rows, output.width()))?;
    }
    Ok(())
}

/// Checks regions against each other and against the rights.
fn check(regions: &[Served], access: Access) -> Result<(), Failure> {
    let mut names = BTreeSet::new();
    for Served { name, content } in regions {
        if !names.insert(name) {
            return Err(Failure::usage(format!("region `{name}` is named twice")));
        }
        if let (Content::File(path), true) = (content, access.contains(Access::REMOTE_ATOMIC)) {
            let message = format!("region `{name}`: the file {} has no atomic operations", path.display());
            return Err(
                Failure::usage(message).with_help("leave remote-atomic out, or give the region a size")
            );
        }
    }
    Ok(())
}

/// Returns the rights of a memory region whose peers have these: each needs the local one.
fn local(access: Access) -> Access {
    access | Access::LOCAL_READ | Access::LOCAL_WRITE
}

/// Opens a file for what peers may do with it. Returns also its length.
fn open(path: &Path, access: Access) -> Result<(File, u64), Failure> {
    let writes = access.contains(Access::REMOTE_WRITE);
    let cannot = |error: &std::io::Error| {
        let failure = Failure::file(path, "open", error);
        match error.kind() {
            ErrorKind::NotFound => failure.with_help(
                "a region is NAME=FILE with a file that exists, or NAME=SIZE with a size such as 64k, 64M or 1G",
            ),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem if writes => {
                failure.with_help("peers may write (--access remote-write), so the file must be writable")
            }
            _ => failure,
        }
    };
    // Not by opening: that of a pipe waits for its other end.
    let found = std::fs::metadata(path).map_err(|error| cannot(&error))?;
    let unfit = match (found.is_file(), found.len()) {
        (false, _) => Some("it is not a regular file"),
        (true, 0) => Some("it is empty, and a region has at least one byte"),
        (true, _) => None,
    };
    if let Some(reason) = unfit {
        let message = format!("cannot serve {}: {reason}", path.display());
        return Err(Failure::new(Exit::Failed, "file", message)
            .with_help("`truncate -s SIZE FILE` makes a file of a size, and NAME=SIZE serves memory"));
    }
    let file = File::options().read(true).write(writes).open(path).map_err(|error| cannot(&error))?;
    let bytes = file.metadata().map_err(|error| cannot(&error))?.len();
    Ok((file, bytes))
}

/// Returns the failure of a call of the library.
#[allow(clippy::needless_pass_by_value, reason = "the error of `map_err`")]
fn failed(error: Error) -> Failure {
    match &error {
        Error::Listen { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => {
            Failure::new(Exit::Permission, "not_permitted", error.to_string())
        }
        Error::Listen { .. } => Failure::new(Exit::Failed, "listen", error.to_string()),
        Error::File { .. } => Failure::new(Exit::Failed, "file", error.to_string()),
        Error::Refused { cause: VerbsError::NoResources, reason, .. } => {
            let message = reason.clone().unwrap_or_else(|| error.to_string());
            Failure::new(Exit::Failed, "no_resources", message)
        }
        Error::Refused { reason: Some(reason), .. } => Failure::new(Exit::Failed, "refused", reason.clone()),
        _ => Failure::new(Exit::Failed, "device", error.to_string()),
    }
}
