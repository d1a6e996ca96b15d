//! Checks `[[listener]]`, `[[region]]`, `[control]` and `[privileges]`.

use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rdma::service::{PREFIXES_MAX, Token, parse_prefix};
use rdma::{Access, CrcPolicy};

use super::port::word;
use super::tcp::{CONNECTIONS_MAX, Tcp, check_share, conn_options};
use super::tuning::CRC_HELP;
use crate::read::{Place, Report, Section};
use crate::text::{RegionName, token_from_file, token_from_text};
use crate::types::{Control, Drain, Limits, Listener, Mpa, Privileges, Region, Service};

/// Bytes of `sun_path` without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;

/// Maximum number of listening TCP ports.
const LISTENERS_MAX: usize = 64;

/// Maximum size in bytes of a region: 1 TiB.
const REGION_BYTES_MAX: u64 = 1 << 40;

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
    let crc = section.choice("crc", &CrcPolicy::NAMES, CRC_HELP);
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

pub(super) fn control(mut section: Section<'_>, report: &Report) -> Control {
    let socket = section.parsed("socket", "the absolute path of a Unix socket", socket_path);
    let control = Control {
        socket: socket.unwrap_or_else(|| PathBuf::from("/run/iwarpd/control.sock")),
        mode: mode(&mut section, report, &[0o600, 0o660]).unwrap_or(0o660),
        group: section.parsed("group", "the name or number of a group", group),
        clients_max: section.number("clients_max", 1..=1024, "control clients at a time").unwrap_or(64),
        idle_timeout_ms: section
            .number("idle_timeout_ms", 1000..=86_400_000, "how long a client may be silent")
            .unwrap_or(30_000),
    };
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

/// Reads one of the modes allowed: `"0660"`, or the TOML number `0o660`. The control socket allows no other users: its
/// clients control the daemon.
pub(super) fn mode(section: &mut Section<'_>, report: &Report, allowed: &[u32]) -> Option<u32> {
    let value = section.value("mode")?;
    let mode = match (value.value.as_str(), value.value.as_integer()) {
        (Some(text), _) if !text.starts_with('+') => u32::from_str_radix(text, 8).ok(),
        (_, Some(number)) if number.radix() == 8 => u32::from_str_radix(number.as_str(), 8).ok(),
        _ => None,
    };
    let mode = mode.filter(|mode| allowed.contains(mode));
    if mode.is_none() {
        let help = "0600 is for the daemon's own user, 0660 for the group of the socket too";
        let modes: Vec<String> = allowed.iter().map(|mode| format!("\"0{mode:o}\"")).collect();
        report.not_allowed(&value.place, "this is not a mode for the socket", modes.join(", "), help);
    }
    mode
}

pub(super) fn group(text: &str) -> Result<String, String> {
    let name = word(text, 32).ok().filter(|name| !name.starts_with('-'));
    name.ok_or_else(|| format!("`{text}` is not the name of a group"))
}

pub(super) fn drain(mut section: Section<'_>) -> Drain {
    let timeout_ms =
        section.number("timeout_ms", 0..=3_600_000, "how long SIGTERM waits for connections to end");
    section.finish();
    Drain { timeout_ms: timeout_ms.unwrap_or(2000) }
}

pub(super) fn privileges(mut section: Section<'_>) -> Privileges {
    let drop_capabilities = section.flag("drop_capabilities").unwrap_or(true);
    let filter_system_calls = section.flag("filter_system_calls").unwrap_or(true);
    section.finish();
    Privileges { drop_capabilities, filter_system_calls }
}
