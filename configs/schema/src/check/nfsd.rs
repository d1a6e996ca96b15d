//! Checks the configuration file of `iwarp-nfsd`.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::service::{GROUP, SOCKET, check_folder, check_socket, listen_address, prefix, socket_path};
use super::{finished, load_text, parse_with, plain};
use crate::errors::ConfigErrors;
use crate::keys::{
    By, Choice, Flag, Keys as _, Mode, Number, Optional, Required, Row, Size, Text, after, keys,
};
use crate::machine::Machine;
use crate::nfsd::{Nfsd, NfsdContent, NfsdSquash};
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
    let tcp = top.section("tcp");
    let tcp = tcp.is_there().then(|| plain(tcp, NfsdTcp::read));
    let nfs = nfs(top.section("nfs"), report);
    let state = state(top.section("state"), report);
    let control = control(top.section("control"), report, &rdma);
    let exports = exports(&mut top, report);
    top.finish();
    Nfsd { rdma, tcp, nfs, state, control, exports }
}

/// Address to listen at, which has no default, with the advice for a table without it.
const fn listen(help: &'static str) -> Required<Text<SocketAddr>> {
    Required(Text::new("an IP address with a port", listen_address), help)
}

/// Address of a table without a valid one, whose mistake is reported.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// ID of the anonymous user or group. The highest one stands for none (chown(2)).
const fn id(what: &'static str) -> Number<u32> {
    Number(0..=u32::MAX - 1, what)
}

const ACCESS: Choice<'_, bool> = Choice(&[("ro", false), ("rw", true)], "clients read, or read and write");

const SQUASH: Choice<'_, NfsdSquash> = Choice(
    &[("none", NfsdSquash::None), ("root", NfsdSquash::Root), ("all", NfsdSquash::All)],
    "these users become the anonymous one",
);

keys! {
    /// Table `[rdma]`: NFS over RDMA, through `iwarpd`.
    #[derive(Eq)]
    pub struct NfsdRdma in rdma(section) {
        /// Address of a port of the daemon, and the TCP port to listen on; 20049 is registered for NFS over RDMA.
        listen: SocketAddr = NO_ADDRESS,
            listen("write the address of a port of iwarpd, e.g. \"10.77.0.2:20049\""), Restart, "\"10.77.0.2:20049\"";
        /// Verbs socket of the daemon, its `applications.socket`.
        socket: PathBuf = PathBuf::from("/run/iwarpd/verbs.sock"),
            Text::path("the absolute path of iwarpd's verbs socket", socket_path), Restart;
        /// Control socket of the daemon, its `control.socket`, for exports of its regions.
        control: PathBuf = PathBuf::from("/run/iwarpd/control.sock"),
            Text::path("the absolute path of iwarpd's control socket", socket_path), Restart;
        /// Maximum number of connections at a time; for another one, an idle one is closed.
        connections_max: u16 = 16, Number(1..=1024, "connections at a time"), Restart;
        /// Calls of a connection in flight; each has a buffer of 2 transfers and more.
        credits: u16 = 16, Number(1..=256, "calls of a connection in flight"), Restart;
        /// Bytes of the longest message sent without chunks: a multiple of 1024 (RFC 8797 §4.1).
        inline_bytes as "inline": u32 = 4096, Size(1024..=(256 << 10), "the longest message sent inline"), Restart;
        /// Maximum number of memory segments of all chunk lists of a call.
        segments_max: u16 = 16, Number(3..=256, "memory segments of a call"), Restart;
        /// Maximum number of READs, WRITEs and COMMITs of all connections that wait for a disk at a time; others wait
        /// for these.
        transfers_max: u16 = 64,
            Number(1..=4096, "transfers of files in flight, of all connections"), Restart;
        /// Maximum number of threads that execute calls over RDMA, started as they are needed. A client has a further
        /// one only if it has fewer than are free: one whose files answer nothing keeps half of them at most.
        threads_max: u16 = 16, Number(1..=256, "threads that execute calls"), Restart;
    }
}

keys! {
    /// Table `[tcp]`: MOUNT, which NFS 3 needs, and NFS over the kernel's TCP; without the table, clients mount by NFS
    /// 4.1 over RDMA only.
    #[derive(Eq)]
    pub struct NfsdTcp in tcp(section) {
        /// Address of the kernel's stack, and the TCP port to listen on.
        listen: SocketAddr = NO_ADDRESS,
            listen("write an address of this machine, e.g. \"192.0.2.2:20050\""), Restart, "\"192.0.2.2:20050\"";
        /// Maximum number of connections at a time; for another one, an idle one is closed.
        connections_max: u16 = 64, Number(1..=4096, "connections at a time"), Restart;
        /// Time after which a silent connection is closed, seconds.
        idle_timeout_s: u32 = 360, Number(10..=86_400, "how long a client may be silent"), Restart;
    }
}

keys! {
    /// Table `[nfs]`: transfers, and the state of NFS version 4.1.
    #[derive(Eq)]
    pub struct Nfs in nfs(section) {
        /// Maximum bytes of a READ or WRITE: a multiple of 4096.
        transfer_bytes as "transfer": u32 = 256 << 10,
            Size(4096..=(1 << 20), "the most bytes of a READ or WRITE"), Restart;
        /// Time after which a silent client loses its opens and locks, seconds.
        lease_s: u32 = 90, Number(5..=3600, "the time after which a silent client loses its state"), Restart;
        /// Time in which clients reclaim their opens and locks after a restart, seconds; default, and at least:
        /// `lease_s`.
        grace_s: u32 = lease_s, Number(5..=7200, "the time to reclaim state after a restart"), Restart;
        /// Maximum number of clients at a time; for another one, one without opens goes.
        clients_max: u32 = 256, Number(1..=65_536, "clients of NFS 4.1 at a time"), Restart;
        /// Maximum number of sessions of a client.
        sessions_max: u32 = 8, Number(1..=64, "sessions of a client"), Restart;
        /// Maximum number of slots of a session: calls of a client in flight.
        slots_max: u32 = 64, Number(1..=1024, "calls of a session in flight"), Restart;
        /// Maximum number of opens of a client; each holds at most two file descriptors.
        opens_max: u32 = 1024, Number(1..=65_536, "opens of a client"), Restart;
        /// Maximum number of byte ranges that a client has locked, and of its lock owners.
        locks_max: u32 = 4096, Number(2..=1 << 20, "locked ranges of a client"), Restart;
        /// Maximum bytes of a reply that is kept for a repeated call.
        cached_reply_bytes as "cached_reply": u32 = 4096,
            Size(1024..=(64 << 10), "the longest reply kept for a repeated call"), Restart;
    }
}

keys! {
    /// Table `[state]`: what outlives a restart.
    #[derive(Eq)]
    pub struct NfsdState in state(section) {
        /// Folder with the key of file handles and the record of clients; secret, and kept over restarts.
        directory: PathBuf = PathBuf::from("/var/lib/iwarp-nfsd"),
            Text::path("the absolute path of a folder", absolute), Restart;
    }
}

keys! {
    /// Table `[control]`: the control socket, for `iwarpctl nfs`.
    #[derive(Eq)]
    pub struct NfsdControl in control(section) {
        /// Path of the socket.
        socket: PathBuf = PathBuf::from("/run/iwarp-nfsd/control.sock"), SOCKET, Restart;
        /// File mode of the socket.
        mode: u32 = 0o660, Mode(&[0o600, 0o660]), Restart;
        /// Group that owns the socket, by name or number; default: the server's.
        group: Option<String> = None, GROUP, Restart, "\"root\"";
    }
}

keys! {
    /// Table `[[export]]`: a directory or regions of the daemon, and the clients that may mount it; 1 to 256.
    #[derive(Eq)]
    pub struct NfsdExport in export(section) {
        /// Path of the export: clients mount it, or a directory below it. It is absolute, and does not end with `/`.
        path: String = String::new(),
            Required(Text::new("an absolute path, e.g. \"/data\"", export_path), "write what clients mount"), Live,
            "\"/data\"";
        /// True if clients over TCP may have ports from 1024 on, which any user of theirs can have.
        insecure: bool = false, Flag, Live;
    }
    with {
        /// Content of the export.
        content: NfsdContent = content(section).unwrap_or(NfsdContent::PublicRegions);
        /// Tables `[[export.client]]`, at least one, with distinct prefixes.
        clients: Vec<NfsdClients> = clients(section);
    }
}

keys! {
    /// Keys of table `[[export]]` for its content.
    struct ContentKeys of export {
        /// Directory that is exported.
        directory: Option<PathBuf> = None,
            Optional(Text::path("the absolute path of a directory", absolute)), Live, "\"/srv/data\"";
        /// Regions of the daemon that are exported as files, in place of a directory: by name, or all without token and
        /// prefixes.
        regions: Option<NfsdContent> = None,
            Optional(By(regions, |_| String::new(), REGIONS)), Live,
            "# [\"lab\", \"scratch\"]";
    }
}

impl NfsdExport {
    /// Returns a row for each key, those of the content too.
    pub(crate) fn all_rows(&self) -> Vec<Row> {
        after("path", ContentKeys::rows(), self.rows())
    }
}

keys! {
    /// Table `[[export.client]]`: rights of the clients in a prefix; 1 to 64. The longest prefix that contains a client
    /// counts; others have no access.
    #[derive(Copy, Eq)]
    pub struct NfsdClients in client(section) {
        /// Addresses of the clients. An address of iwarpd, for programs of this machine, has the prefix /32 or /128.
        prefix: IpNet = IpNet::default(),
            Required(
                By(client_prefix, IpNet::to_string, "a prefix, e.g. \"10.77.0.0/24\""),
                "write the addresses of clients; 0.0.0.0/0 is every one of IPv4",
            ), Live, "\"10.77.0.0/24\"";
        /// Right of the clients: they read, or they write, too.
        write as "access": bool = false, ACCESS, Live, "\"rw\"";
        /// Users that become the anonymous one: nobody, the user and the group 0, or all.
        squash: NfsdSquash = NfsdSquash::Root, SQUASH, Live;
        /// User that squashed callers become.
        anonuid: u32 = NOBODY, id("the anonymous user"), Live;
        /// Group that squashed callers become.
        anongid: u32 = NOBODY, id("the anonymous group"), Live;
    }
}

fn rdma(mut section: Section<'_>, report: &Report) -> NfsdRdma {
    let rdma = NfsdRdma::read(&mut section);
    if !rdma.inline_bytes.is_multiple_of(1024) {
        let message = format!("{} bytes are not a multiple of 1024", rdma.inline_bytes);
        report.at(&section.place_of("inline"), message, "write a multiple of 1k, e.g. \"4k\"");
    }
    section.finish();
    rdma
}

fn nfs(mut section: Section<'_>, report: &Report) -> Nfs {
    let nfs = Nfs::read(&mut section);
    let Nfs { transfer_bytes, lease_s, grace_s, .. } = nfs;
    if !transfer_bytes.is_multiple_of(4096) {
        let message = format!("{transfer_bytes} bytes are not a multiple of 4096");
        report.at(&section.place_of("transfer"), message, "write whole pages, e.g. \"256k\"");
    }
    if grace_s < lease_s {
        let message = format!("the grace period is shorter than the lease of {lease_s} s");
        report.at(&section.place_of("grace_s"), message, "clients notice a restart only within a lease");
    }
    section.finish();
    nfs
}

fn state(mut section: Section<'_>, report: &Report) -> NfsdState {
    let state = NfsdState::read(&mut section);
    // A file in it: the folder itself must be there.
    check_folder(report, &section.place_of("directory"), &state.directory.join("key"), 1);
    section.finish();
    state
}

fn control(mut section: Section<'_>, report: &Report, rdma: &NfsdRdma) -> NfsdControl {
    let control = NfsdControl::read(&mut section);
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
        let export = NfsdExport::read(&mut section);
        if !section.is_wrong("path") && !paths.insert(export.path.clone()) {
            let message = format!("another export has the path `{}`", export.path);
            report.at(&section.place_of("path"), message, "give each export a path of its own");
        }
        section.finish();
        exports.push(export);
    }
    exports
}

/// Reads what an export has: a directory, or regions.
fn content(section: &mut Section<'_>) -> Option<NfsdContent> {
    let report = section.report();
    let directory = ContentKeys::directory(section);
    if let Some(directory) = &directory {
        check_folder(report, &section.place_of("directory"), &directory.join("any"), 1);
    }
    let regions = ContentKeys::regions(section);
    match (section.value("directory").is_some(), section.value("regions").is_some()) {
        (true, true) => {
            let help = "write one of them, and another export for the other";
            report.at(&section.place_of("regions"), "the export has `directory`, too", help);
        }
        (false, false) => {
            section.missing("directory", "write which directory is exported, or which regions of iwarpd");
        }
        _ => {}
    }
    regions.or(directory.map(NfsdContent::Directory))
}

const REGIONS: &str = "\"*\", or a list of names of regions";

/// Reads `regions`: `"*"`, or a list of names.
fn regions(section: &mut Section<'_>) -> Option<NfsdContent> {
    let (report, value) = (section.report(), section.value("regions")?);
    if let Some(text) = value.value.as_str() {
        if text != "*" {
            let help = format!("write a list, [\"{text}\"], or \"*\" for all public regions");
            report.at(&value.place, format!("`{text}` is not \"*\""), help);
            return None;
        }
        return Some(NfsdContent::PublicRegions);
    }
    let list = section.list("regions", REGIONS)?;
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

fn clients(export: &mut Section<'_>) -> Vec<NfsdClients> {
    let (sections, report) = (export.sections("client"), export.report());
    if !(1..=PREFIXES_MAX).contains(&sections.len()) {
        let message = format!("the export has {} tables of clients", sections.len());
        let help = "write `[[export.client]]` with the prefix of those who may mount it";
        report.not_allowed(&export.place_of("client"), message, format!("1 to {PREFIXES_MAX}"), help);
    }
    let mut seen = HashSet::new();
    let mut all = Vec::with_capacity(sections.len());
    for mut section in sections {
        let clients = NfsdClients::read(&mut section);
        if !section.is_wrong("prefix") && !seen.insert(clients.prefix) {
            let message = format!("the export has another table for {}", clients.prefix);
            report.at(&section.place_of("prefix"), message, "write one table for each prefix");
        }
        section.finish();
        all.push(clients);
    }
    all
}

fn client_prefix(section: &mut Section<'_>) -> Option<IpNet> {
    let value = section.value("prefix")?;
    prefix(&value, section.report())
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
