//! The configuration of iwarp-nfsd: the shipped file, and one case per mistake.

use std::path::Path;

use super::files::keys_of;
use crate::check::{nfsd, parse_with};
use crate::{Machine, Nfsd, NfsdContent, NfsdSquash, RegionName, Source};

const RDMA: &str = "[rdma]\nlisten = \"10.77.0.2:20049\"\n";
const CLIENT: &str = "[[export.client]]\nprefix = \"10.77.0.0/24\"\n";

/// A file with one export, and these lines in front of the export.
fn with(lines: &str) -> String {
    format!("{RDMA}{lines}\n[[export]]\npath = \"/data\"\ndirectory = \"/srv/data\"\n{CLIENT}")
}

/// Expects exactly one mistake: at this key, with this in its message.
#[track_caller]
fn one(text: &str, key: &str, message: &str) {
    let errors = Nfsd::parse("nfsd.toml", text).expect_err(text);
    let [mistake] = errors.mistakes() else { panic!("not one mistake:\n{}", errors.short()) };
    assert_eq!(mistake.key, key, "{}", errors.short());
    assert!(mistake.message.contains(message), "{:?} lacks {message:?}", mistake.message);
    assert!(!mistake.help.is_empty() && mistake.line > 0 && mistake.column > 0);
}

fn shipped() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../nfsd.toml")).unwrap()
}

/// The shipped file names every key that a check reads, and states the actual defaults.
#[test]
fn the_shipped_file_is_complete_and_true() {
    let text = shipped();
    let (_, found, asked) = parse_with(&text, None, nfsd::check_top);
    assert!(found.is_empty(), "{found:?}");
    let shown = keys_of(&text);
    for key in &asked {
        assert!(shown.contains(key), "`{key}` is not in nfsd.toml");
    }
    assert!(asked.len() > 30, "only {} keys were asked for", asked.len());
    let stated = Nfsd::parse("nfsd.toml", &text).unwrap();
    let default = Nfsd::parse("nfsd.toml", &with("[tcp]\nlisten = \"192.0.2.2:20050\"")).unwrap();
    assert_eq!((&stated.rdma, &stated.tcp, &stated.nfs), (&default.rdma, &default.tcp, &default.nfs));
    assert_eq!(stated.state, default.state);
    assert_eq!(
        (&stated.control.socket, stated.control.mode),
        (&default.control.socket, default.control.mode)
    );
    let [stated, default] = [stated, default].map(|config| config.exports[0].clone());
    assert_eq!((stated.clients[0].write, default.clients[0].write), (true, false), "read-only by default");
    let anonymous = [stated, default].map(|export| (export.clients[0].squash, export.clients[0].anonuid));
    assert_eq!(anonymous, [(NfsdSquash::Root, 65534); 2]);
    assert!(Nfsd::parse("nfsd.toml", &with("")).unwrap().tcp.is_none(), "TCP is served on demand only");
}

#[test]
fn all_mistakes_come_at_once_in_order() {
    let text = "[rdma]\nlisten = \"here\"\ninline = 1000\n[nfs]\nlease = 3\ngrace_s = 5\n[[export]]\n\
                path = \"data\"\n[[export.client]]\nprefix = \"10.77.0.9/24\"\naccess = \"wr\"\nanonuid = -1\n";
    let errors = Nfsd::parse("nfsd.toml", text).unwrap_err();
    let places: Vec<_> = errors
        .mistakes()
        .iter()
        .map(|mistake| (mistake.line, mistake.column, mistake.key.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            (2, 10, "rdma.listen"),
            (3, 10, "rdma.inline"),
            (5, 1, "nfs.lease"),
            (6, 11, "nfs.grace_s"),
            (7, 1, "export[0].directory"),
            (8, 8, "export[0].path"),
            (10, 10, "export[0].client[0].prefix"),
            (11, 10, "export[0].client[0].access"),
            (12, 11, "export[0].client[0].anonuid"),
        ],
        "{}",
        errors.short()
    );
}

#[test]
fn addresses_sizes_and_times_have_ranges() {
    one(&with("").replace(":20049", ":0"), "rdma.listen", "port 0");
    one(&with("inline = \"5000\""), "rdma.inline", "multiple of 1024");
    one(&with("credits = 257"), "rdma.credits", "out of range");
    one(&with("segments_max = 2"), "rdma.segments_max", "out of range");
    one(&with("transfers_max = 0"), "rdma.transfers_max", "out of range");
    one(&with("transfers_max = 4097"), "rdma.transfers_max", "out of range");
    one(&with("threads_max = 0"), "rdma.threads_max", "out of range");
    one(&with("threads_max = 257"), "rdma.threads_max", "out of range");
    one(&with("[tcp]"), "tcp.listen", "missing");
    one(&with("[nfs]\ntransfer = 10000"), "nfs.transfer", "multiple of 4096");
    one(&with("[nfs]\ntransfer = \"2M\""), "nfs.transfer", "out of range");
    one(&with("[nfs]\nlease_s = 60\ngrace_s = 59"), "nfs.grace_s", "shorter than the lease of 60 s");
    one(&with("[state]\ndirectory = \"here\""), "state.directory", "not an absolute path");
    one(&with("[control]\nmode = \"0666\""), "control.mode", "not a mode");
    one(&with("[control]\nsocket = \"/run/iwarpd/verbs.sock\""), "control.socket", "same path");
    one(&with("[control]\nsocket = \"/run/iwarpd/control.sock\""), "control.socket", "rdma.control");
    one(&with("control = \"here\""), "rdma.control", "");
    let config = Nfsd::parse("nfsd.toml", &with("[nfs]\nlease_s = 30")).unwrap();
    assert_eq!((config.nfs.lease_s, config.nfs.grace_s), (30, 30), "the grace period is a lease time");
}

#[test]
fn exports_are_distinct_and_have_clients() {
    one(RDMA, "export", "0 exports");
    one(&with("").replace(CLIENT, ""), "export[0].client", "0 tables of clients");
    one(&(with("") + CLIENT), "export[0].client[1].prefix", "another table for 10.77.0.0/24");
    one(&(with("") + "[[export.client]]\n"), "export[0].client[1].prefix", "missing");
    let again = with("") + &with("").replace(RDMA, "");
    one(&again, "export[1].path", "another export has the path `/data`");
    for path in ["data", "/data/", "//data", "/a/../b", "/./a", "", "/a\\u0000b"] {
        one(&with("").replace("\"/data\"", &format!("\"{path}\"")), "export[0].path", "`");
    }
    let directory = "directory = \"/srv/data\"\n";
    let insecure = |line: &str| with("").replace(directory, &format!("{directory}{line}\n"));
    let parsed = |line| Nfsd::parse("nfsd.toml", &insecure(line)).unwrap().exports[0].insecure;
    assert_eq!((parsed(""), parsed("insecure = true"), parsed("insecure = false")), (false, true, false));
    one(&insecure("insecure = 1"), "export[0].insecure", "of type integer");
    let root = Nfsd::parse("nfsd.toml", &with("").replace("\"/data\"", "\"/\"")).unwrap();
    assert_eq!(root.exports[0].path, "/");
}

#[test]
fn an_export_has_a_directory_or_regions() {
    let content = |lines: &str| with("").replace("directory = \"/srv/data\"", lines);
    let parsed = |lines| Nfsd::parse("nfsd.toml", &content(lines)).unwrap().exports[0].content.clone();
    assert_eq!(parsed("directory = \"/srv\""), NfsdContent::Directory("/srv".into()));
    assert_eq!(parsed("regions = \"*\""), NfsdContent::PublicRegions);
    let names = ["a", "b"].map(|name| RegionName::new(name).unwrap());
    assert_eq!(parsed("regions = [\"b\", \"a\"]"), NfsdContent::Regions(names.into_iter().collect()));
    one(&content(""), "export[0].directory", "missing");
    one(&content("directory = \"/srv\"\nregions = \"*\""), "export[0].regions", "`directory`, too");
    one(&content("regions = \"lab\""), "export[0].regions", "`lab` is not");
    one(&content("regions = 7"), "export[0].regions", "of type integer");
    one(&content("regions = []"), "export[0].regions", "empty");
    one(&content("regions = [\"a\", 7]"), "export[0].regions[1]", "of type integer");
    one(&content("regions = [\"a\", \"a\"]"), "export[0].regions[1]", "twice");
    for name in ["", "a/b", ".", "..", "a\\u0000b"] {
        one(&content(&format!("regions = [\"{name}\"]")), "export[0].regions[0]", "");
    }
}

#[test]
fn the_machine_must_have_the_folders_and_the_group() {
    let machine = tempfile::tempdir().unwrap();
    let file = machine.path().join("nfsd.toml");
    std::fs::write(&file, with("[control]\ngroup = \"operators\"")).unwrap();
    Nfsd::load(&file).unwrap();
    let errors = Nfsd::load_on(&file, &Machine::at(machine.path())).unwrap_err();
    let keys: Vec<_> =
        errors.mistakes().iter().map(|mistake| (mistake.key.as_str(), mistake.source)).collect();
    let machine_lacks =
        ["state", "control", "control.group", "export[0].directory"].map(|key| (key, Source::Machine));
    assert_eq!(keys.len(), 4, "{}", errors.short());
    assert!(
        machine_lacks.iter().all(|lack| keys.iter().any(|key| key.1 == lack.1 && key.0.starts_with(lack.0)))
    );
    assert!(errors.only_of_the_machine());
    for folder in ["srv/data", "var/lib/iwarp-nfsd", "run/iwarp-nfsd", "etc"] {
        std::fs::create_dir_all(machine.path().join(folder)).unwrap();
    }
    std::fs::write(machine.path().join("etc/group"), "operators:x:7:\n").unwrap();
    Nfsd::load_on(&file, &Machine::at(machine.path())).unwrap_or_else(|errors| panic!("{}", errors.short()));
}
