//! Tables `[control]`, `[drain]` and `[privileges]`; checks `[[listener]]` and `[[region]]`.

use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rdma::Access;
use rdma::service::{PREFIXES_MAX, Token, parse_prefix};

use super::port::word;
use super::tcp::{CONNECTIONS_MAX, Tcp, check_share, conn_options};
use super::tuning::{CRC, Limits, Mpa};
use crate::keys::{Flag, Kind as _, Mode, Number, Optional, Text, keys};
use crate::read::{Place, Report, Section};
use crate::text::{RegionName, token_from_file, token_from_text};
use crate::types::{Listener, Region, Service};

/// Bytes of `sun_path` without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;

/// Maximum number of listening TCP ports.
const LISTENERS_MAX: usize = 64;

/// Maximum size in bytes of a region: 1 TiB.
const REGION_BYTES_MAX: u64 = 1 << 40;

keys! {
    /// Table `[[listener]]`: a TCP port and its service.
    fn listener_rows in "listener" {
        /// TCP port, for both address families, on every DPDK port.
        port = "7400", Live;
        /// Service that answers on the port: region, echo, discard, chargen, daytime.
        service = "\"region\"", Live;
        /// Maximum number of connections being opened, 1 to 65535.
        backlog = "128", Live;
        /// Maximum number of connections, per worker and port; default: `tcp.connections_max`.
        connections_max = "4096", Live;
        /// Congestion control; default of this and the next three keys: as in `[tcp]`.
        congestion = "\"cubic\"", Live;
        /// Explicit congestion notification, as in `[tcp]`.
        ecn = "\"accept\"", Live;
        /// Idle time before the first keepalive, seconds.
        keepalive_s = "600", Live;
        /// Time limit for unacknowledged data, ms.
        user_timeout_ms = "0", Live;
        /// Delay of short segments, to combine them; not for region.
        nagle = "false", Live;
        /// CRC policy of the region service; default: `mpa.crc`.
        crc = "\"on\"", Live;
    }
}

keys! {
    /// Table `[[region]]`: memory that peers may access.
    fn region_rows in "region" {
        /// Name that peers request: 1 to 63 bytes, without control and format characters.
        name = "\"lab\"", Live;
        /// Bytes that peers can address, 1 to 1T. Memory is allocated in whole pages.
        size = "\"64M\"", Restart;
        /// Rights of peers, at least one.
        access = "[\"remote-read\", \"remote-write\", \"remote-atomic\"]", Live;
        /// Token that peers must present, 1 to 32 bytes, text or hex; default: none.
        token = "\"hex:00112233445566778899aabbccddeeff\"", Live;
        /// File with the token, in place of `token`; relative to the folder of the configuration.
        token_file = "# \"lab.token\"", Live;
        /// Source prefixes or addresses of admitted peers; default: every source.
        allow = "[\"192.0.2.0/24\"]", Live;
    }
}

pub(super) fn listeners(top: &mut Section<'_>, report: &Report, tcp: &Tcp, mpa: &Mpa) -> Vec<Listener> {
    let (mut listeners, mut taken): (Vec<Listener>, Vec<u16>) = (Vec::new(), Vec::new());
    for (index, section) in top.sections("listener").into_iter().enumerate() {
        let place = section.place().clone();
        if index == LISTENERS_MAX {
            let allowed = format!("0 to {LISTENERS_MAX}");
            report.not_allowed(&place, "too many listeners", allowed, "remove this table");
        }
        let port_place = section.place_of("port");
        let Listened { port, listener } = listener(section, report, tcp, mpa);
        if let Some(port) = port {
            if taken.contains(&port) {
                let message = format!("TCP port {port} already has a listener");
                report.at(&port_place, message, "give each listener a port of its own");
            }
            taken.push(port);
        }
        listeners.extend(listener);
    }
    listeners
}

/// A listener, and its port even if another key is wrong: a port used twice is a mistake of its own.
struct Listened {
    port: Option<u16>,
    listener: Option<Listener>,
}

fn listener(mut section: Section<'_>, report: &Report, tcp: &Tcp, mpa: &Mpa) -> Listened {
    let services = [
        ("region", Service::Region),
        ("echo", Service::Echo),
        ("discard", Service::Discard),
        ("chargen", Service::Chargen),
        ("daytime", Service::Daytime),
    ];
    let port = section.number("port", 1..=65_535, "a TCP port");
    if section.value("port").is_none() {
        section.missing("port", "write a TCP port, e.g. port = 7400");
    }
    let service = section.choice("service", &services, "this is what answers");
    if section.value("service").is_none() {
        section.missing("service", "write what answers, e.g. service = \"region\"");
    }
    let backlog = section.number("backlog", 1..=65_535, "connections being opened").unwrap_or(128);
    let connections_max = section
        .number("connections_max", 1..=CONNECTIONS_MAX, "connections at a time")
        .unwrap_or(tcp.connections_max);
    check_share(&section, report, "connections_max", connections_max, tcp.connections_max);
    let crc = CRC.read(&mut section, "crc");
    if crc.is_some() && service.is_some_and(|service| service != Service::Region) {
        let place = section.place_of("crc");
        report.at(
            &place,
            "this service does not speak MPA",
            "remove this key: a CRC belongs to `region` only",
        );
    }
    let conn = conn_options(&mut section, report, tcp);
    if conn.nagle && service == Some(Service::Region) {
        let place = section.place_of("nagle");
        report.at(&place, "MPA hands down whole FPDUs, which must not wait", "remove this key");
    }
    section.finish();
    let crc = crc.unwrap_or(mpa.crc);
    let whole = port.zip(service);
    let listener =
        whole.map(|(port, service)| Listener { port, service, backlog, connections_max, conn, crc });
    Listened { port, listener }
}

pub(super) fn regions(top: &mut Section<'_>, report: &Report, limits: &Limits, folder: &Path) -> Vec<Region> {
    let regions_max = usize::try_from(limits.regions_max).unwrap_or(usize::MAX);
    let (mut regions, mut taken): (Vec<Region>, Vec<RegionName>) = (Vec::new(), Vec::new());
    for (index, section) in top.sections("region").into_iter().enumerate() {
        if index == regions_max {
            let allowed = format!("0 to {regions_max} regions");
            report.not_allowed(section.place(), "too many regions", allowed, "raise limits.regions_max");
        }
        let name_place = section.place_of("name");
        let Named { name, region } = region(section, report, folder);
        if let Some(name) = name {
            if taken.contains(&name) {
                let message = format!("there already is a region `{name}`");
                report.at(&name_place, message, "give each region a name of its own");
            }
            taken.push(name);
        }
        regions.extend(region);
    }
    regions
}

/// A region, and its name even if another key is wrong.
struct Named {
    name: Option<RegionName>,
    region: Option<Region>,
}

fn region(mut section: Section<'_>, report: &Report, folder: &Path) -> Named {
    let name = section.parsed("name", "1 to 63 bytes without control or format characters", RegionName::new);
    let bytes = section.size("size", 1..=REGION_BYTES_MAX, "the size of the region");
    for (key, help) in [
        ("name", "write what peers ask for, e.g. name = \"lab\""),
        ("size", "write how large the region is, e.g. size = \"64M\""),
        ("access", "write what peers may do, e.g. access = [\"remote-read\"]"),
    ] {
        if section.value(key).is_none() {
            section.missing(key, help);
        }
    }
    let access = access(&mut section, report);
    let token = token(&mut section, report, folder);
    let allow = allow(&mut section, report);
    section.finish();
    let parts = name.clone().zip(bytes).zip(access);
    let region = parts.map(|((name, bytes), access)| Region { name, bytes, access, token, allow });
    Named { name, region }
}

fn access(section: &mut Section<'_>, report: &Report) -> Option<Access> {
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

fn token(section: &mut Section<'_>, report: &Report, folder: &Path) -> Option<Token> {
    let what = "1 to 32 bytes: text, or `hex:` and digits";
    let token = section.parsed("token", what, token_from_text);
    let has_token = section.value("token").is_some();
    let Some(file) = section.value("token_file") else { return token };
    if has_token {
        report.at(&file.place, "`token` and `token_file` exclude each other", "remove one");
        return token;
    }
    let path = file.text(report, "the path of a file")?;
    let help = "name a readable file that holds the token, beside this one or absolute";
    token_from_file(&folder.join(path)).map_err(|message| report.at(&file.place, message, help)).ok()
}

fn allow(section: &mut Section<'_>, report: &Report) -> Vec<IpNet> {
    let Some(list) = section.list("allow", "a list of prefixes") else { return Vec::new() };
    if !(1..=PREFIXES_MAX).contains(&list.len()) {
        let message = format!("{} prefixes are listed", list.len());
        let help = "remove the key to admit every source";
        report.not_allowed(
            &section.place_of("allow"),
            message,
            format!("1 to {PREFIXES_MAX} prefixes"),
            help,
        );
    }
    let mut prefixes = Vec::new();
    for item in list {
        let Some(text) = item.text(report, "a prefix, e.g. \"10.77.0.0/24\"") else { continue };
        match parse_prefix(text) {
            Ok(net) => prefixes.push(net),
            Err(error) => report.at(&item.place, error.to_string(), error.help()),
        }
    }
    prefixes
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
