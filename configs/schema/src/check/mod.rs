//! Checks the text of a configuration file and builds the [`Config`]. Each submodule checks one part of the file.

mod access;
mod applications;
mod link;
mod log;
mod memory;
mod metrics;
pub(crate) mod nfsd;
mod port;
mod service;
mod tcp;
mod tuning;

pub use applications::{Applications, UserLimits};
pub use link::Neighbor;
pub use log::Log;
pub use memory::Memory;
pub use metrics::Metrics;
pub(crate) use port::DriverKeys;
pub use port::Port;
pub use service::{Control, Drain, Listener, Privileges, Region};
pub use tcp::{Ip, Tcp};
pub(crate) use tcp::{Path as TcpPath, Profile as TcpProfile, Stack as TcpStack};
pub(crate) use tuning::IdleKeys;
pub use tuning::{Limits, Mpa, Placement, Workers};

use std::io::Read;
use std::path::Path;

use toml::de::DeTable;

use crate::errors::{ConfigErrors, Found, Source};
use crate::machine::Machine;
use crate::plan;
use crate::read::{Place, Report, Section};
use crate::types::Config;

/// Maximum size in bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Config {
    /// Reads and checks a file of at most 1 MiB. Relative token files are resolved in the file's own folder.
    ///
    /// # Errors
    /// All mistakes in the file, or the reason why it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        load(path, None)
    }

    /// Checks the text of a file. `name` is the file's path: the report names it, and relative token files are
    /// resolved beside it.
    ///
    /// # Errors
    /// All mistakes in the text.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigErrors> {
        parse(name, text, None)
    }

    /// As [`load`](Self::load), and compares the file with a machine: cores must be online, interfaces, PCI devices,
    /// groups and folders must exist, TAPs must be free, and required hugepages available.
    ///
    /// # Errors
    /// All mistakes in the file, and everything that the machine lacks, together.
    pub fn load_on(path: &Path, machine: &Machine) -> Result<Self, ConfigErrors> {
        load(path, Some(machine.clone()))
    }

    /// As [`parse`](Self::parse), and compares the text with a machine.
    ///
    /// # Errors
    /// As [`load_on`](Self::load_on).
    pub fn parse_on(name: &str, text: &str, machine: &Machine) -> Result<Self, ConfigErrors> {
        parse(name, text, Some(machine.clone()))
    }

    /// Returns the bytes of one packet buffer's data room, headroom included, for `rte_pktmbuf_pool_create`. It holds
    /// a complete frame of any port, so that a received frame is never split.
    pub fn data_room_bytes(&self) -> u16 {
        plan::data_room_bytes(&self.ports)
    }
}

fn load(path: &Path, machine: Option<Machine>) -> Result<Config, ConfigErrors> {
    load_text(path).and_then(|text| parse(&path.display().to_string(), &text, machine))
}

/// Reads the text of a file.
fn load_text(path: &Path) -> Result<String, ConfigErrors> {
    let name = path.display().to_string();
    let unreadable = |e: std::io::Error| {
        ConfigErrors::unreadable(&name, format!("cannot read {name}: {e}"), "name a readable TOML file")
    };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        let message = format!("{name} is not a regular file");
        return Err(ConfigErrors::unreadable(&name, message, "name a readable TOML file"));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX) {
        let message = format!("{name} is larger than {FILE_BYTES_MAX} bytes");
        return Err(ConfigErrors::unreadable(&name, message, "a configuration is a few kilobytes"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let message = format!("{name} is not UTF-8 at byte {}", e.utf8_error().valid_up_to());
        ConfigErrors::unreadable(&name, message, "save the file as UTF-8")
    })
}

fn parse(name: &str, text: &str, machine: Option<Machine>) -> Result<Config, ConfigErrors> {
    finished(name, text, parse_parts(name, text, machine))
}

/// A configuration, its mistakes, and the keys that were read.
type Parts<T> = (Option<T>, Vec<Found>, Vec<String>);

/// Returns the configuration, unless there are mistakes.
fn finished<T>(name: &str, text: &str, (config, found, _): Parts<T>) -> Result<T, ConfigErrors> {
    match config {
        Some(config) if found.is_empty() => Ok(config),
        _ => Err(ConfigErrors::new(name, text, found)),
    }
}

/// Checks the text of a file of iwarpd.
pub(crate) fn parse_parts(name: &str, text: &str, machine: Option<Machine>) -> Parts<Config> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    parse_with(text, machine, |top, report| check_top(top, report, folder))
}

/// Passes the table of a text to `check`, unless the text is no TOML.
pub(crate) fn parse_with<T>(
    text: &str,
    machine: Option<Machine>,
    check: impl FnOnce(Section<'_>, &Report) -> T,
) -> Parts<T> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // The text after a syntax error may be misread, so it is not checked.
        let found = errors.iter().map(syntax).collect();
        return (None, found, Vec::new());
    }
    let report = Report::new(machine);
    let top = Section::new(&report, Some(table.get_ref()), Place { key: String::new(), span: 0..0 });
    let config = check(top, &report);
    let (found, asked) = report.into_parts();
    (Some(config), found, asked)
}

fn syntax(error: &toml::de::Error) -> Found {
    Found {
        span: error.span().unwrap_or(0..0),
        key: String::new(),
        message: error.message().to_owned(),
        allowed: None,
        help: "the file is TOML (https://toml.io): correct this, then check again for what follows"
            .to_owned(),
        source: Source::File,
    }
}

/// Reads a table whose keys do not depend on each other.
fn plain<'a, T>(mut section: Section<'a>, read: impl FnOnce(&mut Section<'a>) -> T) -> T {
    let table = read(&mut section);
    section.finish();
    table
}

/// Checks the complete file. The result is valid only if no mistake was reported.
fn check_top(mut top: Section<'_>, report: &Report, folder: &Path) -> Config {
    let mut memory_section = top.section("memory");
    let mut memory = Memory::read(&mut memory_section);
    let ports = port::read_all(&mut top, report);
    let workers = tuning::workers(top.section("workers"), report);
    let mut tcp = tcp::tcp(top.section("tcp"), report);
    let ip = tcp::ip(top.section("ip"), report, &ports, &mut tcp.stack);
    let mpa = plain(top.section("mpa"), Mpa::read);
    let placement = plain(top.section("placement"), Placement::read);
    let limits = plain(top.section("limits"), Limits::read);
    let listeners = service::listeners(&mut top, report, &tcp, &mpa);
    let regions = service::regions(&mut top, report, &limits, folder);
    let control = service::control(top.section("control"), report);
    let drain = plain(top.section("drain"), Drain::read);
    let applications = applications::read(top.section("applications"), report, &control);
    let privileges = plain(top.section("privileges"), Privileges::read);
    let metrics = metrics::read(top.section("metrics"), report, &control, applications.as_ref());
    let log = plain(top.section("log"), Log::read);
    memory::resolve(&mut memory, &ports, &workers, &ip, &tcp);
    tcp::resolve(&mut tcp, &memory, &ports, workers.cores.len() as u64);
    let config = Config {
        memory,
        ports,
        workers,
        ip,
        tcp,
        mpa,
        placement,
        limits,
        listeners,
        regions,
        control,
        drain,
        applications,
        privileges,
        metrics,
        log,
    };
    memory::check_plan(&memory_section, report, &config);
    memory_section.finish();
    top.finish();
    config
}
