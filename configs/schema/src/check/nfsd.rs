//! Checks the configuration file of `iwarp-nfsd`.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rdma::service::parse_prefix;

use super::service::{GROUP, SOCKET, check_folder, check_socket, socket_path};
use super::{finished, load_text, parse_with};
use crate::errors::ConfigErrors;
use crate::keys::{Kind as _, Mode};
use crate::machine::Machine;
use crate::nfsd::{
    Nfs, Nfsd, NfsdClients, NfsdContent, NfsdControl, NfsdExport, NfsdRdma, NfsdSquash, NfsdState, NfsdTcp,
};
use crate::read::{Report, Section};
use crate::text::RegionName;

/// Longest path of an export, in bytes (MNTPATHLEN, RFC 1813 §5.1.1).
const PATH_BYTES_MAX: usize = 1024;
/// Maximum number of exports.
const EXPORTS_MAX: usize = 256;
/// Maximum number of prefixes of an export.
const PREFIXES_MAX: usize = 64;
/// ID of the anonymous user and group.
const NOBODY: u32 = 65534;

impl Nfsd {
    /// Reads and checks a file of at most 1 MiB.
    ///
    /// # Errors
    /// All mistakes in the file, or the reason why it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        load_text(path).and_then(|text| finish(&path.display().to_string(), &text, None))
    }

    /// As [`load`](Self::load), and compares the file with a machine: the exported directories, the folder of the
    /// state and the group of the control socket must exist.
    ///
    /// # Errors
    /// All mistakes in the file, and everything that the machine lacks, together.
    pub fn load_on(path: &Path, machine: &Machine) -> Result<Self, ConfigErrors> {
        load_text(path).and_then(|text| finish(&path.display().to_string(), &text, Some(machine.clone())))
    }

    /// Checks the text of a file. `name` is the file's path, for the report.
    ///
    /// # Errors
    /// All mistakes in the text.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigErrors> {
        finish(name, text, None)
    }
}

fn finish(name: &str, text: &str, machine: Option<Machine>) -> Result<Nfsd, ConfigErrors> {
    finished(name, text, parse_with(text, machine, check_top))
}

/// Checks the complete file. The result is valid only if no mistake was reported.
pub(crate) fn check_top(mut top: Section<'_>, report: &Report) -> Nfsd {
    let rdma = rdma(top.section("rdma"), report);
    let tcp = tcp(top.section("tcp"));
    let nfs = nfs(top.section("nfs"), report);
    let state = state(top.section("state"), report);
    let control = control(top.section("control"), report, &rdma);
    let exports = exports(&mut top, report);
    top.finish();
    Nfsd { rdma, tcp, nfs, state, control, exports }
}

/// Reads the address to listen at, which has no default.
fn listen(section: &mut Section<'_>, help: &str) -> SocketAddr {
    let listen = section.parsed("listen", "an IP address with a port", |text| match text.parse() {
        Ok(address) if SocketAddr::port(&address) == 0 => Err("port 0 is not a port to listen on".to_owned()),
        Ok(address) => Ok(address),
        Err(_) => Err(format!("`{text}` is not an IP address with a port")),
    });
    if listen.is_none() && section.value("listen").is_none() {
        section.missing("listen", help);
    }
    listen.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)))
}

fn rdma(mut section: Section<'_>, report: &Report) -> NfsdRdma {
    let listen = listen(&mut section, "write the address of a port of iwarpd, e.g. \"10.77.0.2:20049\"");
    let socket = section.parsed("socket", "the absolute path of iwarpd's verbs socket", socket_path);
    let control = section.parsed("control", "the absolute path of iwarpd's control socket", socket_path);
    let inline_bytes: Option<u32> =
        section.size("inline", 1024..=(256 << 10), "the longest message sent inline");
    if let Some(bytes) = inline_bytes
        && !bytes.is_multiple_of(1024)
    {
        let message = format!("{bytes} bytes are not a multiple of 1024");
        report.at(&section.place_of("inline"), message, "write a multiple of 1k, e.g. \"4k\"");
    }
    let rdma = NfsdRdma {
        listen,
        socket: socket.unwrap_or_else(|| PathBuf::from("/run/iwarpd/verbs.sock")),
        control: control.unwrap_or_else(|| PathBuf::from("/run/iwarpd/control.sock")),
        connections_max: section.number("connections_max", 1..=1024, "connections at a time").unwrap_or(16),
        credits: section.number("credits", 1..=256, "calls of a connection in flight").unwrap_or(16),
        inline_bytes: inline_bytes.unwrap_or(4096),
        segments_max: section.number("segments_max", 3..=256, "memory segments of a call").unwrap_or(16),
        transfers_max: section
            .number("transfers_max", 1..=4096, "transfers of files in flight, of all connections")
            .unwrap_or(64),
    };
    section.finish();
    rdma
}

fn tcp(mut section: Section<'_>) -> Option<NfsdTcp> {
    if !section.is_there() {
        return None;
    }
    let tcp = NfsdTcp {
        listen: listen(&mut section, "write an address of this machine, e.g. \"192.0.2.2:20050\""),
        connections_max: section.number("connections_max", 1..=4096, "connections at a time").unwrap_or(64),
        idle_timeout_s: section
            .number("idle_timeout_s", 10..=86_400, "how long a client may be silent")
            .unwrap_or(360),
    };
    section.finish();
    Some(tcp)
}

fn nfs(mut section: Section<'_>, report: &Report) -> Nfs {
    let transfer: Option<u32> =
        section.size("transfer", 4096..=(1 << 20), "the most bytes of a READ or WRITE");
    if let Some(bytes) = transfer
        && !bytes.is_multiple_of(4096)
    {
        let message = format!("{bytes} bytes are not a multiple of 4096");
        report.at(&section.place_of("transfer"), message, "write whole pages, e.g. \"256k\"");
    }
    let lease_s = section
        .number("lease_s", 5..=3600, "the time after which a silent client loses its state")
        .unwrap_or(90);
    let grace_s = section.number("grace_s", 5..=7200, "the time to reclaim state after a restart");
    if let Some(grace_s) = grace_s
        && grace_s < lease_s
    {
        let message = format!("the grace period is shorter than the lease of {lease_s} s");
        report.at(&section.place_of("grace_s"), message, "clients notice a restart only within a lease");
    }
    let nfs = Nfs {
        transfer_bytes: transfer.unwrap_or(256 << 10),
        lease_s,
        grace_s: grace_s.unwrap_or(lease_s),
        clients_max: section.number("clients_max", 1..=65_536, "clients of NFS 4.1 at a time").unwrap_or(256),
        sessions_max: section.number("sessions_max", 1..=64, "sessions of a client").unwrap_or(8),
        slots_max: section.number("slots_max", 1..=1024, "calls of a session in flight").unwrap_or(64),
        opens_max: section.number("opens_max", 1..=65_536, "opens of a client").unwrap_or(1024),
        locks_max: section.number("locks_max", 2..=1 << 20, "locked ranges of a client").unwrap_or(4096),
        cached_reply_bytes: section
            .size("cached_reply", 1024..=(64 << 10), "the longest reply kept for a repeated call")
            .unwrap_or(4096),
    };
    section.finish();
    nfs
}

fn state(mut section: Section<'_>, report: &Report) -> NfsdState {
    let directory = section.parsed("directory", "the absolute path of a folder", absolute);
    let directory = directory.unwrap_or_else(|| PathBuf::from("/var/lib/iwarp-nfsd"));
    // A file in it: the folder itself must be there.
    check_folder(report, &section.place_of("directory"), &directory.join("key"), 1);
    section.finish();
    NfsdState { directory }
}

fn control(mut section: Section<'_>, report: &Report, rdma: &NfsdRdma) -> NfsdControl {
    let socket = SOCKET.read(&mut section, "socket");
    let control = NfsdControl {
        socket: socket.unwrap_or_else(|| PathBuf::from("/run/iwarp-nfsd/control.sock")),
        mode: Mode(&[0o600, 0o660]).read(&mut section, "mode").unwrap_or(0o660),
        group: GROUP.read(&mut section, "group").flatten(),
    };
    let of_iwarpd = [("rdma.socket", &rdma.socket), ("rdma.control", &rdma.control)];
    for (key, _) in of_iwarpd.into_iter().filter(|(_, path)| **path == control.socket) {
        let message = format!("{key}, which is iwarpd's, has the same path");
        report.at(&section.place_of("socket"), message, "give each socket a path of its own");
    }
    check_socket(&section, report, "socket", control.group.as_deref(), &control.socket);
    section.finish();
    control
}

fn exports(top: &mut Section<'_>, report: &Report) -> Vec<NfsdExport> {
    let sections = top.sections("export");
    let place = top.place_of("export");
    if !(1..=EXPORTS_MAX).contains(&sections.len()) {
        let message = format!("the file has {} exports", sections.len());
        let help = "write `[[export]]` with a path, a directory and at least one `[[export.client]]`";
        report.not_allowed(&place, message, format!("1 to {EXPORTS_MAX} exports"), help);
    }
    let mut paths = HashSet::new();
    let mut exports = Vec::with_capacity(sections.len());
    for mut section in sections {
        let path = section.parsed("path", "an absolute path, e.g. \"/data\"", export_path);
        match &path {
            Some(path) if !paths.insert(path.clone()) => {
                let message = format!("another export has the path `{path}`");
                report.at(&section.place_of("path"), message, "give each export a path of its own");
            }
            None if section.value("path").is_none() => section.missing("path", "write what clients mount"),
            _ => {}
        }
        let content = content(&mut section, report);
        let insecure = section.flag("insecure").unwrap_or(false);
        let clients = clients(&mut section, report);
        section.finish();
        let content = content.unwrap_or(NfsdContent::PublicRegions);
        exports.push(NfsdExport { path: path.unwrap_or_default(), content, insecure, clients });
    }
    exports
}

/// Reads what an export has: a directory, or regions.
fn content(section: &mut Section<'_>, report: &Report) -> Option<NfsdContent> {
    let directory = section.parsed("directory", "the absolute path of a directory", absolute);
    if let Some(directory) = &directory {
        check_folder(report, &section.place_of("directory"), &directory.join("any"), 1);
    }
    let regions = regions(section, report);
    match (section.value("directory").is_some(), section.value("regions").is_some()) {
        (true, true) => {
            let message = "the export has `directory`, too";
            report.at(
                &section.place_of("regions"),
                message,
                "write one of them, and another export for the other",
            );
        }
        (false, false) => {
            section.missing("directory", "write which directory is exported, or which regions of iwarpd");
        }
        _ => {}
    }
    regions.or(directory.map(NfsdContent::Directory))
}

/// Reads `regions`: `"*"`, or a list of names.
fn regions(section: &mut Section<'_>, report: &Report) -> Option<NfsdContent> {
    const WHAT: &str = "\"*\", or a list of names of regions";
    let value = section.value("regions")?;
    if let Some(text) = value.value.as_str() {
        if text != "*" {
            let message = format!("`{text}` is not \"*\"");
            report.at(
                &value.place,
                message,
                format!("write a list, [\"{text}\"], or \"*\" for all public regions"),
            );
            return None;
        }
        return Some(NfsdContent::PublicRegions);
    }
    let list = section.list("regions", WHAT)?;
    if list.is_empty() {
        report.at(&value.place, "the list is empty", "write names of regions, or \"*\"");
    }
    let mut names = BTreeSet::new();
    for value in list {
        let Some(text) = value.text(report, "the name of a region") else { continue };
        let usable = RegionName::new(text).and_then(|name| match text {
            "." | ".." => Err(format!("`{text}` is no name of a file")),
            _ if text.contains('/') => Err(format!("`{text}` has a `/`, which no name of a file has")),
            _ => Ok(name),
        });
        match usable {
            Ok(name) if !names.insert(name.clone()) => {
                report.at(&value.place, format!("the list has `{name}` twice"), "write each region once");
            }
            Ok(_) => {}
            Err(error) => {
                report.at(&value.place, error, "write the name of a region: `iwarpctl region list`")
            }
        }
    }
    Some(NfsdContent::Regions(names))
}

fn clients(export: &mut Section<'_>, report: &Report) -> Vec<NfsdClients> {
    let sections = export.sections("client");
    if !(1..=PREFIXES_MAX).contains(&sections.len()) {
        let message = format!("the export has {} tables of clients", sections.len());
        let help = "write `[[export.client]]` with the prefix of those who may mount it";
        report.not_allowed(&export.place_of("client"), message, format!("1 to {PREFIXES_MAX}"), help);
    }
    let mut seen = HashSet::new();
    let mut clients = Vec::with_capacity(sections.len());
    for mut section in sections {
        let prefix = section.value("prefix").and_then(|value| {
            let text = value.text(report, "a prefix, e.g. \"10.77.0.0/24\"")?;
            parse_prefix(text).map_err(|error| report.at(&value.place, error.to_string(), error.help())).ok()
        });
        match prefix {
            Some(prefix) if !seen.insert(prefix) => {
                let message = format!("the export has another table for {prefix}");
                report.at(&section.place_of("prefix"), message, "write one table for each prefix");
            }
            None if section.value("prefix").is_none() => {
                section.missing("prefix", "write the addresses of clients; 0.0.0.0/0 is every one of IPv4");
            }
            _ => {}
        }
        let access = [("ro", false), ("rw", true)];
        let squashes = [("none", NfsdSquash::None), ("root", NfsdSquash::Root), ("all", NfsdSquash::All)];
        clients.push(NfsdClients {
            prefix: prefix.unwrap_or_default(),
            write: section.choice("access", &access, "clients read, or read and write").unwrap_or(false),
            squash: section
                .choice("squash", &squashes, "these users become the anonymous one")
                .unwrap_or(NfsdSquash::Root),
            anonuid: id(&mut section, "anonuid", "the anonymous user"),
            anongid: id(&mut section, "anongid", "the anonymous group"),
        });
        section.finish();
    }
    clients
}

/// Reads the ID of a user or group. The highest one stands for none (chown(2)).
fn id(section: &mut Section<'_>, key: &'static str, what: &str) -> u32 {
    section.number(key, 0..=u32::MAX.saturating_sub(1), what).unwrap_or(NOBODY)
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(PathBuf::from(text))
    } else {
        Err(format!("`{text}` is not an absolute path"))
    }
}

/// Checks the path of an export: NFS version 4.1 makes directories of its components (RFC 8881 §7.3).
fn export_path(text: &str) -> Result<String, String> {
    let components = || text.strip_prefix('/').unwrap_or_default().split('/');
    if !text.starts_with('/') || text.chars().any(char::is_control) {
        return Err(format!("`{text}` is not an absolute path"));
    }
    if text.len() > PATH_BYTES_MAX {
        return Err(format!("the path has {} bytes, more than {PATH_BYTES_MAX}", text.len()));
    }
    if text != "/" && components().any(|part| matches!(part, "" | "." | "..") || part.len() > 255) {
        return Err(format!("`{text}` has an empty part, `.`, `..`, or a part of more than 255 bytes"));
    }
    Ok(text.to_owned())
}
