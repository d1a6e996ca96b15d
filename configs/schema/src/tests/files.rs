//! Configuration files that are shipped in configs/.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::check::parse_parts;
use crate::document::{IWARPD, NFSD};
use crate::{Config, Driver, Hugepages, Idle, Nfsd, Service, memory_plan};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn load(name: &str) -> Config {
    Config::load(&folder().join(name)).unwrap_or_else(|e| panic!("{}", e.short()))
}

#[test]
fn every_file_loads_and_fits_its_own_limit() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        // That of iwarp-nfsd has tests of its own.
        if path.extension().is_some_and(|e| e == "toml") && !path.ends_with("nfsd.toml") {
            let config = Config::load(&path).unwrap_or_else(|e| panic!("{}", e.short()));
            let limit = config.memory.hugepage_limit_bytes.expect("each shipped file states a limit");
            assert!(memory_plan(&config).hugepage_bytes() <= limit, "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 7, "{seen} files");
}

/// Properties of tap.toml that people and scripts rely on.
#[test]
fn the_laboratory_is_as_promised() {
    let c = load("tap.toml");
    let [port] = c.ports.as_slice() else { panic!("one port") };
    assert_eq!(port.driver, Driver::Tap { interface: "iw0".to_owned() });
    assert_eq!(port.addresses.ipv4, Some("10.77.0.2/24".parse().unwrap()));
    assert_eq!(port.addresses.ipv6, Some("fd77::2/64".parse().unwrap()));
    assert_eq!(c.workers.cores.len(), 1);
    assert!(matches!(c.workers.idle, Idle::Adaptive { .. }));
    let listeners: BTreeMap<u16, Service> = c.listeners.iter().map(|l| (l.port, l.service)).collect();
    let expected = [
        (7, Service::Echo),
        (9, Service::Discard),
        (13, Service::Daytime),
        (19, Service::Chargen),
        (7400, Service::Region),
    ];
    assert_eq!(listeners, BTreeMap::from(expected));
    // One host can have a thousand connections on every service over each address family, and leaves room for others.
    let host = 1000 * u32::try_from(listeners.len()).unwrap();
    assert!(
        c.tcp.connections_per_source_max >= host && c.listeners.iter().all(|l| l.connections_max >= 2000)
    );
    assert!(c.tcp.connections_max - 2 * c.tcp.connections_per_source_max >= 1000);
    let regions: Vec<_> =
        c.regions.iter().map(|r| (r.name.as_str(), r.bytes, r.access.names().collect::<Vec<_>>())).collect();
    assert_eq!(
        regions,
        [
            ("lab", 64 << 20, vec!["remote-read", "remote-write"]),
            ("lab-ro", 1 << 20, vec!["remote-read"]),
            ("scratch", 1 << 20, vec!["remote-read", "remote-write", "remote-atomic"]),
        ]
    );
    assert_eq!(c.control.socket, Path::new("/run/iwarpd/control.sock"));
}

/// Files of the Debian package: iwarpd starts with its own on any machine, and peers get nothing that nobody chose.
#[test]
fn the_installed_files_offer_nothing() {
    let c = load("debian/iwarpd.toml");
    assert!(c.regions.is_empty() && c.applications.is_none() && c.metrics.is_none());
    assert!(c.listeners.iter().all(|listener| listener.service == Service::Region), "{:?}", c.listeners);
    assert!(matches!(c.ports.as_slice(), [port] if matches!(port.driver, Driver::Tap { .. })));
    assert_eq!((c.workers.cores.as_slice(), c.memory.hugepages), ([0].as_slice(), Hugepages::Prefer));
    let limit = c.memory.hugepage_limit_bytes.unwrap();
    assert!(memory_plan(&c).hugepage_bytes() + (256 << 20) <= limit, "room for regions");
    let errors = Nfsd::load(&folder().join("debian/nfsd.toml")).expect_err("it exports nothing");
    let [mistake] = errors.mistakes() else { panic!("{}", errors.short()) };
    assert!(mistake.key == "export" && !errors.only_of_the_machine(), "{}", errors.short());
}

/// A fresh machine may have no hugepages, and the region is registered while the daemon runs.
#[test]
fn the_demonstration_leaves_room_for_its_region() {
    for name in ["demo.toml", "tap.toml"] {
        let c = load(name);
        assert_eq!(c.memory.hugepages, Hugepages::Prefer);
        assert_eq!(c.memory.hugepage_limit_bytes, Some(512 << 20));
        let room = memory_plan(&c).region_room_bytes().unwrap();
        assert!(room >= 256 << 20, "{name} leaves {room} bytes");
    }
}

/// Removes the indices: `listener[0].port` → `listener.port`.
fn without_indices(path: &str) -> String {
    path.split('.')
        .map(|part| part.split_once('[').map_or(part, |(name, _)| name))
        .collect::<Vec<_>>()
        .join(".")
}

/// Returns the tables of a file and their keys, including those behind `#`.
pub(super) fn keys_of(text: &str) -> BTreeSet<String> {
    let (mut table, mut keys) = (String::new(), BTreeSet::new());
    for line in text.lines().map(|line| line.trim_start_matches(['#', ' '])) {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_start_matches('[').split(']').next().unwrap().to_owned();
            keys.insert(table.clone());
        } else if let Some((key, _)) = line.split_once('=') {
            keys.insert(format!("{table}.{}", key.trim()));
        }
    }
    keys
}

/// The references come from the tables of keys. `WRITE_REFERENCE=1 cargo test -p iwarp-config` writes them.
#[test]
fn the_references_are_generated() {
    for (name, file) in [("reference.toml", IWARPD), ("nfsd.toml", NFSD)] {
        let (path, text) = (folder().join(name), file.reference());
        if std::env::var_os("WRITE_REFERENCE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let help = "WRITE_REFERENCE=1 cargo test -p iwarp-config the_references_are_generated writes it";
        assert_eq!(std::fs::read_to_string(path).unwrap(), text, "configs/{name} is old: {help}");
    }
}

/// The manual pages name every key of the references, and every line of them is text or a known request.
#[test]
fn the_manual_pages_are_complete() {
    for ((name, page), file) in crate::manual_pages("Ironwarp 0").into_iter().zip([IWARPD, NFSD]) {
        for line in file.reference().lines() {
            let key =
                line.trim_start_matches("# ").split_once(" = ").map(|(key, _)| format!("\n\\fB{key}\\fR = "));
            assert!(key.is_none_or(|key| page.contains(&key)), "{name}: {line}");
        }
        let requests = [".TH ", ".SH ", ".SS ", ".TP", ".PP"];
        for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
            assert!(requests.iter().any(|request| line.starts_with(request)), "{name}: {line}");
        }
    }
}

/// The reference names every key that a check reads, and states the actual defaults.
#[test]
fn the_reference_is_complete_and_true() {
    let text = std::fs::read_to_string(folder().join("reference.toml")).unwrap();
    let (_, _, asked) = parse_parts("reference.toml", &text, None);
    let drivers = ["address", "rx_file", "tx_file", "role", "id", "socket", "start_queue", "queue_count"];
    let drivers = drivers.iter().map(|key| format!("port.{key}"));
    let keys: BTreeSet<String> = asked.iter().map(|path| without_indices(path)).chain(drivers).collect();
    let shown = keys_of(&text);
    for key in &keys {
        assert!(shown.contains(key), "`{key}` is not in reference.toml");
    }
    assert!(keys.len() > 100, "only {} keys were asked for", keys.len());

    let stated = load("reference.toml");
    let minimal = "[[port]]\ndriver = \"tap\"\ninterface = \"iw0\"\naddresses = [\"192.0.2.2/24\"]\n";
    let default = Config::parse("minimal.toml", minimal).unwrap();
    assert_eq!(format!("{:?}", stated.tcp), format!("{:?}", default.tcp));
    assert_eq!(format!("{:?}", stated.ip), format!("{:?}", default.ip));
    assert_eq!(format!("{:?}", stated.mpa), format!("{:?}", default.mpa));
    assert_eq!(format!("{:?}", stated.placement), format!("{:?}", default.placement));
    assert_eq!(format!("{:?}", stated.limits), format!("{:?}", default.limits));
    assert_eq!(format!("{:?}", stated.privileges), format!("{:?}", default.privileges));
    assert_eq!(format!("{:?}", stated.log), format!("{:?}", default.log));
    assert_eq!(stated.control.socket, default.control.socket);
    assert_eq!(stated.control.mode, default.control.mode);
    assert_eq!(stated.control.clients_max, default.control.clients_max);
    assert_eq!(stated.control.idle_timeout_ms, default.control.idle_timeout_ms);
    assert!(default.applications.is_none(), "applications are served on demand only");
    let default_applications = Config::parse("m.toml", &format!("{minimal}[applications]\n")).unwrap();
    let applications = |config: &Config| {
        let table = config.applications.clone().unwrap();
        let limits = (table.contexts_max, table.queue_pairs_max, table.memory_regions_max, table.user);
        let watches = (table.region_watches_max, table.watch_entries);
        (table.socket, table.mode, limits, watches)
    };
    assert_eq!(applications(&stated), applications(&default_applications));
    assert!(default.metrics.is_none(), "counters are served on demand only");
    let default_metrics = Config::parse("m.toml", &format!("{minimal}[metrics]\n")).unwrap();
    let metrics = |config: &Config| {
        let table = config.metrics.clone().unwrap();
        (table.listen, table.mode, table.clients_max, table.timeout_ms)
    };
    assert_eq!(metrics(&stated), metrics(&default_metrics));
    assert_eq!(stated.memory.packet_buffers, default.memory.packet_buffers);
    assert_eq!(stated.memory.file_prefix, default.memory.file_prefix);
    assert_eq!(stated.memory.hugepages, default.memory.hugepages);
    assert_eq!(stated.ports[0].name, default.ports[0].name);
    assert_eq!(stated.ports[0].mtu, default.ports[0].mtu);
    assert_eq!(stated.ports[0].rx_descriptors, default.ports[0].rx_descriptors);
    assert_eq!(stated.ports[0].tx_descriptors, default.ports[0].tx_descriptors);
    assert_eq!(stated.workers.cores, default.workers.cores);
}
