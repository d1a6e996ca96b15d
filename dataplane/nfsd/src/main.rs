//! `iwarp-nfsd`: serves directories by NFS versions 3 and 4.1, over RDMA through `iwarpd`, and over the kernel's TCP.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use ipnet::IpNet;
use iwarp_nfsd::{
    Directory, Export, RdmaLimits, RdmaServer, Rule, Server, Squash, StateLimits, TcpLimits, TcpServer,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// User and group that squashed users become.
const ANONYMOUS: (u32, u32) = (65534, 65534);
/// Bytes of a READ or WRITE, at most.
const TRANSFER_MAX: u32 = 256 << 10;

/// Serves directories by NFS versions 3 and 4.1 over RDMA.
#[derive(Debug, Parser)]
#[command(name = "iwarp-nfsd", version)]
struct Args {
    /// Verbs socket of iwarpd.
    #[arg(long, default_value = "/run/iwarpd/verbs.sock")]
    socket: String,
    /// Address of an iwarpd port to listen at.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Address of the kernel to serve MOUNT, and NFS over TCP, at.
    #[arg(long, value_name = "ADDRESS:PORT")]
    mount: SocketAddr,
    /// Directory to export, with its clients and their rights: ro or rw, and root to keep the rights of root.
    #[arg(long, value_name = "PATH=DIRECTORY,PREFIX,ro|rw[,root]", required = true)]
    export: Vec<String>,
    /// File with the key that file handles are sealed with; made if it is missing.
    #[arg(long, default_value = "/var/lib/iwarp-nfsd/key")]
    key: PathBuf,
    /// File that keeps the clients of NFS version 4.1 over a restart; made if it is missing.
    #[arg(long, default_value = "/var/lib/iwarp-nfsd/clients")]
    clients: PathBuf,
    /// Seconds after which a silent client of NFS version 4.1 loses its opens and locks.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(5..=3600))]
    lease_s: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwarp-nfsd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Reads an export as the command line has it.
fn export(text: &str) -> Result<Export> {
    let (path, rest) = text.split_once('=').context("no = behind the path")?;
    let mut parts = rest.split(',');
    let directory = Path::new(parts.next().unwrap_or_default());
    let clients: IpNet = parts.next().context("no prefix of clients")?.parse()?;
    let write = match parts.next() {
        Some("ro") => false,
        Some("rw") => true,
        other => bail!("{:?}: ro or rw is expected", other.unwrap_or_default()),
    };
    let squash = match parts.next() {
        None => Squash::Root,
        Some("root") => Squash::None,
        Some(other) => bail!("{other:?}: root, or nothing, is expected"),
    };
    let backend = Directory::open(directory).with_context(|| format!("directory {}", directory.display()))?;
    let rules = vec![Rule { clients, write, squash, anonymous: ANONYMOUS }];
    Ok(Export { path: path.to_owned(), backend: Box::new(backend), rules })
}

/// Returns the key of file handles.
fn key(path: &Path) -> Result<[u8; 16]> {
    let mut key = [0; 16];
    match File::open(path) {
        Ok(mut file) => file.read_exact(&mut key)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            getrandom::fill(&mut key).context("no random bytes")?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(&key)?;
            file.sync_all()?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(key)
}

/// Raises the limit of open files to the largest that is allowed: opens of NFS version 4.1 hold files.
fn allow_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("the limit of open files")
}

fn run(args: &Args) -> Result<()> {
    let exports = args.export.iter().map(|text| export(text).with_context(|| format!("--export {text}")));
    let exports = exports.collect::<Result<Vec<_>>>()?;
    let key = key(&args.key).with_context(|| format!("--key {}", args.key.display()))?;
    let verifier = getrandom::u64().context("no random bytes")?;
    let server = Server::new(exports, key, verifier, TRANSFER_MAX)?;
    let limits = StateLimits { lease: Duration::from_secs(args.lease_s), ..StateLimits::default() };
    let server = server.with_state(limits, &args.clients);
    let server = Arc::new(server.with_context(|| format!("--clients {}", args.clients.display()))?);
    allow_files()?;
    let limits = TcpLimits { connections_max: 64, idle_timeout: Duration::from_secs(360) };
    let tcp = TcpServer::start(Arc::clone(&server), args.mount, limits)
        .with_context(|| format!("--mount {}", args.mount))?;
    let limits = RdmaLimits { connections_max: 16, credits: 16, inline_bytes: 4096, segments_max: 16 };
    let mut rdma = RdmaServer::start(server, &args.socket, args.listen, limits)
        .with_context(|| format!("--listen {}", args.listen))?;
    println!("serving at {} (RDMA) and {} (TCP)", args.listen, tcp.address());
    rdma.run(&|| false)
}
