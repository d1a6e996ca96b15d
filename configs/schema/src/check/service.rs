//! Tables `[[listener]]`, `[[region]]`, `[control]`, `[drain]` and `[privileges]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rdma::service::{PREFIXES_MAX, Token, parse_prefix};
use rdma::{Access, CrcPolicy};
use tcp_stack::ConnOptions;

use super::port::word;
use super::tcp::{CONNECTIONS_MAX, ListenerConn, Tcp, check_dctcp, check_share, conn_options};
use super::tuning::{CRC, Limits, Mpa};
use crate::keys::{
    By, Choice, Flag, Keys as _, Mode, Number, Optional, Required, Row, Size, Text, after, keys,
};
use crate::read::{Place, Report, Section, Value};
use crate::text::{RegionName, token_from_file, token_from_text};
use crate::types::Service;

/// Bytes of `sun_path` without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;

/// Maximum number of listening TCP ports.
const LISTENERS_MAX: usize = 64;

/// Maximum size in bytes of a region: 1 TiB.
const REGION_BYTES_MAX: u64 = 1 << 40;

const SERVICES: Choice<'_, Service> = Choice(
    &[
        ("region", Service::Region),
        ("echo", Service::Echo),
        ("discard", Service::Discard),
        ("chargen", Service::Chargen),
        ("daytime", Service::Daytime),
    ],
    "this is what answers",
);

impl Service {
    /// Returns the name of the service in the configuration file.
    pub fn name(self) -> &'static str {
        SERVICES.0.iter().find(|(_, service)| *service == self).map_or("", |(name, _)| name)
    }
}

keys! {
    /// Table `[[listener]]`: a TCP port and its service.
    pub struct Listener in listener(section, tcp: &Tcp, mpa: &Mpa) {
        /// TCP port, for both address families, on every DPDK port.
        port: u16 = 0,
            Required(Number(1..=65_535, "a TCP port"), "write a TCP port, e.g. port = 7400"), Live, "7400";
        /// Service that answers on the port.
        service: Service = Service::Region,
            Required(SERVICES, "write what answers, e.g. service = \"region\""), Live, "\"region\"";
        /// Maximum number of connections being opened.
        backlog: u16 = 128, Number(1..=65_535, "connections being opened"), Live;
        /// Maximum number of connections, per worker and port; default: `tcp.connections_max`.
        connections_max: u32 = tcp.connections_max,
            Number(1..=CONNECTIONS_MAX, "connections at a time"), Live;
        /// CRC policy of the region service; default: `mpa.crc`.
        crc: CrcPolicy = mpa.crc, CRC, Live;
    }
    with {
        /// Options of its connections: its own keys, and those of `[tcp]` for the others.
        conn: ConnOptions = conn_options(section, tcp);
    }
}

impl Listener {
    /// Returns a row for each key, those of connections too.
    pub(crate) fn all_rows(&self) -> Vec<Row> {
        after("connections_max", ListenerConn::rows(&self.conn), self.rows())
    }
}

keys! {
    /// Table `[[region]]`: memory that peers may access.
    pub struct Region in region(section, folder: &Path) {
        /// Name that peers request.
        name: RegionName = RegionName::missing(),
            Required(
                Text::new("1 to 63 bytes without control or format characters", RegionName::new),
                "write what peers ask for, e.g. name = \"lab\"",
            ), Live, "\"lab\"";
        /// Bytes that peers can address. Memory is allocated in whole pages.
        bytes as "size": u64 = 0,
            Required(
                Size(1..=REGION_BYTES_MAX, "the size of the region"),
                "write how large the region is, e.g. size = \"64M\"",
            ), Restart, "\"64M\"";
        /// Rights of peers, at least one.
        access: Access = Access::NONE,
            Required(
                By(access, Access::to_string, ""),
                "write what peers may do, e.g. access = [\"remote-read\"]",
            ), Live, "[\"remote-read\", \"remote-write\", \"remote-atomic\"]";
        /// Source prefixes or addresses of admitted peers.
        allow: Vec<IpNet> = Vec::new(), By(allow, sources, ""), Live, "[\"192.0.2.0/24\"]";
    }
    with {
        /// Token that peers must present, if any.
        token: Option<Token> = token(section, folder);
    }
}

keys! {
    /// Keys of table `[[region]]` for the token, which no text shows.
    struct TokenKeys of region {
        /// Token that peers must present; default: none.
        token: Option<Token> = None,
            Optional(Text("1 to 32 bytes: text, or `hex:` and digits", token_from_text, |_| String::new())), Live,
            "\"hex:00112233445566778899aabbccddeeff\"";
        /// File with the token, in place of `token`; relative to the folder of the configuration.
        token_file: Option<String> = None,
            Optional(Text::new("the path of a file", |path| Ok(path.to_owned()))), Live, "# \"lab.token\"";
    }
}

impl Region {
    /// Returns a row for each key, those of the token too.
    pub(crate) fn all_rows(&self) -> Vec<Row> {
        after("access", TokenKeys::rows(), self.rows())
    }
}

pub(super) fn listeners(top: &mut Section<'_>, report: &Report, tcp: &Tcp, mpa: &Mpa) -> Vec<Listener> {
    let mut listeners: Vec<Listener> = Vec::new();
    let allowed = format!("0 to {LISTENERS_MAX}");
    for mut section in top.sections_at_most("listener", LISTENERS_MAX, allowed, "remove this table") {
        let listener = Listener::read(&mut section, tcp, mpa);
        check_listener(&mut section, report, tcp, &listener);
        if listeners.iter().any(|other| other.port == listener.port) && !section.is_wrong("port") {
            let message = format!("TCP port {} already has a listener", listener.port);
            report.at(&section.place_of("port"), message, "give each listener a port of its own");
        }
        section.finish();
        listeners.push(listener);
    }
    listeners
}

fn check_listener(section: &mut Section<'_>, report: &Report, tcp: &Tcp, listener: &Listener) {
    let Listener { connections_max, conn, .. } = listener;
    check_share(section, report, "connections_max", *connections_max, tcp.connections_max);
    if conn.congestion.is_some() || conn.ecn.is_some() {
        let congestion = conn.congestion.unwrap_or(tcp.stack.congestion);
        check_dctcp(section, report, congestion, conn.ecn.unwrap_or(tcp.stack.ecn));
    }
    if section.is_wrong("service") {
        return;
    }
    let of_region = listener.service == Service::Region;
    if !of_region && section.value("crc").is_some() && !section.is_wrong("crc") {
        let help = "remove this key: a CRC belongs to `region` only";
        report.at(&section.place_of("crc"), "this service does not speak MPA", help);
    }
    if of_region && conn.nagle {
        let message = "MPA hands down whole FPDUs, which must not wait";
        report.at(&section.place_of("nagle"), message, "remove this key");
    }
}

pub(super) fn regions(top: &mut Section<'_>, report: &Report, limits: &Limits, folder: &Path) -> Vec<Region> {
    let regions_max = usize::try_from(limits.regions_max).unwrap_or(usize::MAX);
    let allowed = format!("0 to {regions_max} regions");
    let mut regions: Vec<Region> = Vec::new();
    for mut section in top.sections_at_most("region", regions_max, allowed, "raise limits.regions_max") {
        let region = Region::read(&mut section, folder);
        if regions.iter().any(|other| other.name == region.name) && !section.is_wrong("name") {
            let message = format!("there already is a region `{}`", region.name);
            report.at(&section.place_of("name"), message, "give each region a name of its own");
        }
        section.finish();
        regions.push(region);
    }
    regions
}

fn access(section: &mut Section<'_>) -> Option<Access> {
    let report = section.report();
    let allowed = Access::REGION_NAMES.map(|name| format!("`{name}`")).join(", ");
    let list = section.list("access", "a list of access rights")?;
    if list.is_empty() {
        let help = "a region that nobody may use is no region";
        report.not_allowed(&section.place_of("access"), "no access right is given", &allowed, help);
    }
    let mut access = Access::NONE;
    for item in list {
        let Some(name) = item.text(report, &allowed) else { continue };
        match Access::from_region_name(name) {
            None => {
                let message = format!("`{name}` is not an access right");
                report.not_allowed(&item.place, message, &allowed, "write what peers may do");
            }
            Some(right) if access.contains(right) => {
                report.at(&item.place, format!("`{name}` is given twice"), "write it once");
            }
            Some(right) => access = access | right,
        }
    }
    Some(access)
}

/// Reads the token, from its key or from a file.
fn token(section: &mut Section<'_>, folder: &Path) -> Option<Token> {
    let (token, report) = (TokenKeys::token(section), section.report());
    let file = section.value("token_file").map(|file| file.place);
    if section.value("token").is_some() {
        if let Some(place) = file {
            report.at(&place, "`token` and `token_file` exclude each other", "remove one");
        }
        return token;
    }
    let (path, place) = TokenKeys::token_file(section).zip(file)?;
    let help = "name a readable file that holds the token, beside this one or absolute";
    token_from_file(&folder.join(path)).map_err(|message| report.at(&place, message, help)).ok()
}

fn allow(section: &mut Section<'_>) -> Option<Vec<IpNet>> {
    let report = section.report();
    let list = section.list("allow", "a list of prefixes")?;
    if !(1..=PREFIXES_MAX).contains(&list.len()) {
        let message = format!("{} prefixes are listed", list.len());
        let allowed = format!("1 to {PREFIXES_MAX} prefixes");
        let help = "remove the key to admit every source";
        report.not_allowed(&section.place_of("allow"), message, allowed, help);
    }
    Some(list.iter().filter_map(|item| prefix(item, report)).collect())
}

/// Reads a prefix of addresses.
pub(super) fn prefix(value: &Value<'_>, report: &Report) -> Option<IpNet> {
    let text = value.text(report, "a prefix, e.g. \"10.77.0.0/24\"")?;
    parse_prefix(text).map_err(|error| report.at(&value.place, error.to_string(), error.help())).ok()
}

/// Formats prefixes for people.
fn sources(allow: &Vec<IpNet>) -> String {
    match allow.as_slice() {
        [] => "every source".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

/// Path of a Unix socket.
pub(super) const SOCKET: Text<PathBuf> = Text::path("the absolute path of a Unix socket", socket_path);

/// Group that may use a socket.
pub(super) const GROUP: Optional<Text<String>> = Optional(Text::new("the name or number of a group", group));

keys! {
    /// Table `[control]`: the control socket.
    pub struct Control in control(section) {
        /// Unix socket for control; its path has at most 107 bytes.
        socket: PathBuf = PathBuf::from("/run/iwarpd/control.sock"), SOCKET, Restart;
        /// File mode of the socket. No other users: its clients control the daemon.
        mode: u32 = 0o660, Mode(&[0o600, 0o660]), Live;
        /// Group that owns the socket and may use it, besides root; default: the daemon's. Its existence is checked at
        /// start.
        group: Option<String> = None, GROUP, Live, "\"root\"";
        /// Maximum number of clients at a time; one more for root; a user other than root may have half.
        clients_max: u16 = 64, Number(1..=1024, "control clients at a time"), Live;
        /// Time without a complete line after which a client is disconnected, ms.
        idle_timeout_ms: u32 = 30_000, Number(1000..=86_400_000, "how long a client may be silent"), Live;
    }
}

pub(super) fn control(mut section: Section<'_>, report: &Report) -> Control {
    let control = Control::read(&mut section);
    check_socket(&section, report, "socket", control.group.as_deref(), &control.socket);
    section.finish();
    control
}

/// Checks that the machine has the group, and a folder in which the folder of the socket can be created. `key` names
/// the socket.
pub(super) fn check_socket(
    section: &Section<'_>,
    report: &Report,
    key: &str,
    group: Option<&str>,
    socket: &Path,
) {
    let Some(machine) = report.machine() else { return };
    if let Some(group) = group
        && !machine.has_group(group)
    {
        let help = "make it with `groupadd --system`, or name another";
        report.lacks(&section.place_of("group"), format!("there is no group `{group}`"), help);
    }
    check_folder(report, &section.place_of(key), socket, 2);
}

/// Checks that the folder of a file exists; or, if the daemon creates that, the one above (`levels` = 2).
pub(super) fn check_folder(report: &Report, place: &Place, file: &Path, levels: usize) {
    let Some(machine) = report.machine() else { return };
    let folders: Vec<&Path> = file.ancestors().skip(1).take(levels).collect();
    if let Some(folder) = folders.last()
        && !folder.as_os_str().is_empty()
        && !folders.iter().any(|folder| machine.has_folder(folder))
    {
        let help = "make it, or choose a path in a folder that exists";
        report.lacks(place, format!("there is no folder {}", folder.display()), help);
    }
}

/// Parses a path that fits into a socket address.
pub(super) fn socket_path(text: &str) -> Result<PathBuf, String> {
    if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
        return Err(format!("`{text}` is not the absolute path of a socket"));
    }
    if text.len() > SOCKET_PATH_MAX {
        return Err(format!(
            "the path of a socket has at most {SOCKET_PATH_MAX} bytes, this one {}",
            text.len()
        ));
    }
    Ok(PathBuf::from(text))
}

/// Parses an address of the kernel's stack, with a port other than 0.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("port 0 is not a port to listen on".to_owned()),
        Ok(address) => Ok(address),
        Err(_) => Err(format!("`{text}` is not an IP address with a port")),
    }
}

fn group(text: &str) -> Result<String, String> {
    let name = word(text, 32).ok().filter(|name| !name.starts_with('-'));
    name.ok_or_else(|| format!("`{text}` is not the name of a group"))
}

keys! {
    /// Table `[drain]`: the end of connections before the daemon stops.
    #[derive(Copy, Eq)]
    pub struct Drain in drain(section) {
        /// Time that SIGTERM gives connections in use to end, ms; with 0 it resets them at once.
        timeout_ms: u32 = 2000, Number(0..=3_600_000, "how long SIGTERM waits for connections to end"), Live;
    }
}

keys! {
    /// Table `[privileges]`: capabilities and system calls that the daemon gives up when it starts.
    #[derive(Copy, Eq)]
    pub struct Privileges in privileges(section) {
        /// The daemon drops the capabilities that its drivers do not need (capabilities(7)); the log names the others.
        drop_capabilities: bool = true, Flag, Restart;
        /// The daemon filters its own system calls (seccomp(2)): it refuses those that it and its workers do not make.
        filter_system_calls: bool = true, Flag, Restart;
    }
}
