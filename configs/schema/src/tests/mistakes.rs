//! One case per mistake: the text, and the place and message of the report.

use crate::{Config, ConfigErrors};

pub(super) const PORT: &str =
    "[[port]]\ndriver = \"tap\"\ninterface = \"iw0\"\naddresses = [\"10.77.0.2/24\", \"fd77::2/64\"]\n";
pub(super) const REGION: &str = "[[region]]\nname = \"r\"\nsize = \"1M\"\naccess = [\"remote-read\"]\n";

pub(super) fn errors(text: &str) -> ConfigErrors {
    Config::parse("t.toml", text).expect_err(text)
}

/// Expects exactly one mistake: at this key, with this in its message.
#[track_caller]
pub(super) fn one(text: &str, key: &str, message: &str) {
    let errors = errors(text);
    let [mistake] = errors.mistakes() else { panic!("not one mistake:\n{}", errors.short()) };
    assert_eq!(mistake.key, key, "{}", errors.short());
    assert!(mistake.message.contains(message), "{:?} lacks {message:?}", mistake.message);
    assert!(!mistake.help.is_empty() && mistake.line > 0 && mistake.column > 0);
}

/// Expects one mistake in a table beside a valid port.
#[track_caller]
pub(super) fn beside_port(table: &str, key: &str, message: &str) {
    one(&format!("{PORT}{table}"), key, message);
}

/// Expects one mistake in a line added to a valid port.
#[track_caller]
fn in_port(line: &str, key: &str, message: &str) {
    one(&format!("{PORT}{line}\n"), key, message);
}

/// Expects one mistake in a port of this driver.
#[track_caller]
fn driver(lines: &str, key: &str, message: &str) {
    one(&format!("[[port]]\naddresses = [\"10.0.0.2/24\"]\n{lines}\n"), key, message);
}

#[test]
fn place_is_line_column_and_caret() {
    let errors = errors(&format!("# a comment: ü\n{PORT}mtu = 99\n"));
    let [mistake] = errors.mistakes() else { panic!("{}", errors.short()) };
    assert_eq!((mistake.line, mistake.column), (6, 7));
    assert_eq!(mistake.allowed.as_deref(), Some("576 to 9600"));
    let shown = errors.render(false);
    for part in ["port[0].mtu", "t.toml:6:7", "mtu = 99", "allowed: 576 to 9600", "help:"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    assert!(errors.short().starts_with("t.toml:6:7: port[0].mtu: "), "{}", errors.short());
}

#[test]
fn columns_count_characters() {
    let errors =
        errors(&format!("{PORT}[log]\nlevel = \"ü\" # ä\n[mpa]\ncrc = 1\n[control]\ngroup = \"ä ö\"\n"));
    let places: Vec<_> = errors.mistakes().iter().map(|m| (m.line, m.column, m.key.as_str())).collect();
    assert_eq!(places, [(6, 9, "log.level"), (8, 7, "mpa.crc"), (10, 9, "control.group")]);
}

#[test]
fn all_mistakes_come_at_once_in_order() {
    let text = "[memory]\nhugepages = \"maybe\"\n[[port]]\ndriver = \"tap\"\nmtu = 99\n\
                addresses = [\"10.0.0.0/24\", 7]\nmtuu = 3\n[tcp]\nrto_min_ms = \"x\"\n[[listener]]\nport = 0\n\
                service = \"app\"\n[[region]]\nname = \"\"\n";
    let errors = errors(text);
    let keys: Vec<_> = errors.mistakes().iter().map(|m| m.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "memory.hugepages",
            "port[0].interface",
            "port[0].mtu",
            "port[0].addresses[0]",
            "port[0].addresses[1]",
            "port[0].mtuu",
            "tcp.rto_min_ms",
            "listener[0].port",
            "listener[0].service",
            "region[0].size",
            "region[0].access",
            "region[0].name",
        ]
    );
    assert_eq!(errors.to_string(), "12 mistakes in t.toml");
}

#[test]
fn json_is_a_bare_array_of_mistakes() {
    let json = serde_json::to_value(errors(&format!("{PORT}mtu = 99\n"))).unwrap();
    assert_eq!(
        json,
        serde_json::json!([{
            "file": "t.toml", "line": 5, "column": 7, "key": "port[0].mtu", "message": "the number is out of range",
            "allowed": "576 to 9600", "help": "this is the largest IP packet in bytes",
        }])
    );
}

#[test]
fn syntax() {
    let errors = errors("[memory\nhugepages = \n= 3\n");
    assert!(errors.mistakes().len() >= 2, "{}", errors.short());
    assert_eq!(errors.mistakes()[0].line, 1);
    assert!(Config::parse("t", "").unwrap_err().mistakes()[0].message.contains("`port` is missing"));
}

#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let load =
        |name: &str| Config::load(&folder.path().join(name)).unwrap_err().mistakes()[0].message.clone();
    assert!(load("none.toml").contains("cannot read"));
    assert!(load("").contains("not a regular file"));
    std::fs::write(folder.path().join("latin1"), b"# \xFC\n").unwrap();
    assert!(load("latin1").contains("not UTF-8 at byte 2"));
    std::fs::write(folder.path().join("big"), vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(load("big").contains("larger than"));
    assert!(!Config::load(&folder.path().join("big")).unwrap_err().render(true).is_empty());
}

#[test]
fn unknown_keys_and_tables() {
    beside_port("[tcpp]\nx = 1\n", "tcpp", "unknown key");
    beside_port("[tcp]\nrto_minms = 1\n", "tcp.rto_minms", "unknown key");
    let help = |text: &str| errors(text).mistakes()[0].help.clone();
    assert_eq!(help(&format!("{PORT}[tcpp]\n")), "did you mean `tcp`?");
    assert_eq!(help(&format!("{PORT}[tcp]\nrto_minms = 1\n")), "did you mean `rto_min_ms`?");
    assert!(help(&format!("{PORT}[zebra]\n")).starts_with("remove it"));
    one("port = 3\n", "port", "type integer");
    one("port = [3]\n", "port[0]", "type integer");
    one("[port]\ndriver = \"ring\"\n", "port", "type table");
    beside_port("[[tcp]]\n", "tcp", "type array");
    // Keys of another driver are unknown to this one.
    in_port("socket = \"/x\"", "port[0].socket", "unknown key");
}

#[test]
fn memory() {
    beside_port("[memory]\nhugepages = \"maybe\"\n", "memory.hugepages", "not a choice");
    beside_port("[memory]\nhugepages = true\n", "memory.hugepages", "type boolean");
    beside_port("[memory]\npacket_buffers = 0\n", "memory.packet_buffers", "out of range");
    beside_port("[memory]\npacket_buffers = 4194305\n", "memory.packet_buffers", "out of range");
    beside_port("[memory]\npacket_buffers = 2864\n", "memory.packet_buffers", "cannot fill the queues");
    beside_port("[memory]\nfile_prefix = \"a/b\"\n", "memory.file_prefix", "cannot be part");
    beside_port("[memory]\nhugepage_limit = \"15M\"\n", "memory.hugepage_limit", "out of range");
    beside_port("[memory]\nhugepage_limit = 1.5\n", "memory.hugepage_limit", "type float");
    let text = format!("{PORT}[memory]\nhugepage_limit = \"96M\"\n{}", REGION.replace("1M", "64M"));
    one(&text, "memory.hugepage_limit", "takes 134M of hugepages");
    assert!(errors(&text).short().contains("29313 packet buffers of 2176 bytes: 70M, region r: 64M"));
}

/// Returns a port on the same device with addresses of its own.
fn another_port(number: u8) -> String {
    PORT.replace("10.77.0.2", &format!("10.77.{number}.2")).replace("fd77::", &format!("fd{number}::"))
}

#[test]
fn ports() {
    one("[log]\nlevel = \"info\"\n", "port", "missing");
    one("[[port]]\naddresses = [\"10.0.0.2/24\"]\ninterface = \"iw0\"\n", "port[0].driver", "missing");
    driver("driver = \"dpdk\"", "port[0].driver", "not a choice");
    one(
        &format!("{PORT}name = \"a\"\n{}name = \"a\"\n", another_port(1).replace("iw0", "iw1")),
        "port[1].name",
        "is taken",
    );
    one(&format!("{PORT}{}", another_port(1)), "port[1]", "already port `p0`");
    let many: String = (0..9).map(|i| another_port(i).replace("iw0", &format!("iw{i}"))).collect();
    one(&many, "port[8]", "too many ports");
    in_port("name = \"a b\"", "port[0].name", "does not fit");
    in_port("mtu = 9601", "port[0].mtu", "out of range");
    in_port("mtu = 1279", "port[0].mtu", "too small for IPv6");
    in_port("mtu = \"1500\"", "port[0].mtu", "type string");
    in_port("mtu = 999999999999999999999999999999999999999999999", "port[0].mtu", "out of range");
    in_port("vlan = 0", "port[0].vlan", "out of range");
    in_port("vlan = 4095", "port[0].vlan", "out of range");
    in_port("mac = \"02:00:00:00:00\"", "port[0].mac", "not a station address");
    in_port("mac = \"02:00:00:00:00:+1\"", "port[0].mac", "not a station address");
    in_port("mac = \"03:00:00:00:00:01\"", "port[0].mac", "group address");
    in_port("mac = \"00:00:00:00:00:00\"", "port[0].mac", "or zero");
    in_port("rx_descriptors = 1000", "port[0].rx_descriptors", "not a power of two");
    in_port("tx_descriptors = 32", "port[0].tx_descriptors", "out of range");
}

#[test]
fn addresses() {
    let with = |list: &str| format!("[[port]]\ndriver = \"ring\"\naddresses = {list}\n");
    one("[[port]]\ndriver = \"ring\"\n", "port[0].addresses", "missing");
    one(&with("[]"), "port[0].addresses", "needs an address");
    one(&with("\"10.0.0.2/24\""), "port[0].addresses", "type string");
    one(&with("[1]"), "port[0].addresses[0]", "type integer");
    one(&with("[\"10.0.0.2\"]"), "port[0].addresses[0]", "not an address with a prefix");
    one(&with("[\"10.0.0.2/33\"]"), "port[0].addresses[0]", "not an address with a prefix");
    one(&with("[\"10.0.0.2/24\", \"10.1.0.2/24\"]"), "port[0].addresses[1]", "second address");
    for wrong in ["10.0.0.0/24", "10.0.0.255/24", "127.0.0.1/8", "224.0.0.1/4", "0.1.2.3/8"] {
        one(&with(&format!("[\"{wrong}\"]")), "port[0].addresses[0]", "cannot be the address");
    }
    for wrong in ["::1/128", "::/0", "ff02::1/64", "::ffff:10.0.0.1/96"] {
        one(&with(&format!("[\"{wrong}\"]")), "port[0].addresses[0]", "cannot be the address");
    }
    one(&with("[\"fe80::1/64\"]"), "port[0].addresses[0]", "link-local");
    assert!(Config::parse("t", &with("[\"10.0.0.0/31\"]")).is_ok(), "RFC 3021");
    in_port("gateway = \"10.78.0.1\"", "port[0].gateway", "cannot be this port's gateway");
    in_port("gateway = \"10.77.0.2\"", "port[0].gateway", "cannot be this port's gateway");
    in_port("gateway = \"gw\"", "port[0].gateway", "not an IPv4 address");
    in_port("gateway6 = \"fd78::1\"", "port[0].gateway6", "cannot be this port's gateway");
    in_port("gateway6 = \"10.77.0.1\"", "port[0].gateway6", "not an IPv6 address");
    one(&(with("[\"10.0.0.2/24\"]") + "gateway6 = \"fe80::1\"\n"), "port[0].gateway6", "cannot be");
    assert!(Config::parse("t", &format!("{PORT}gateway6 = \"fe80::1\"\n")).is_ok());
}

/// A provider's host address, whose gateway no prefix contains.
#[test]
fn a_gateway_of_a_host_address_is_outside_of_it() {
    let base = "[[port]]\ndriver = 'ring'\naddresses = ['10.0.0.5/32', '2001:db8::5/128']\n";
    let parse = |rest: &str| Config::parse("t", &format!("{base}{rest}\n"));
    for gateways in [
        "gateway = '172.31.1.1'",
        "gateway6 = '2001:db8:ffff::1'",
        "gateway6 = 'fe80::1'",
        "gateway = '172.31.1.1'\n[[port.neighbor]]\naddress = '172.31.1.1'\nmac = '02:00:00:00:00:01'",
        "gateway6 = '2001:db8::1'\n[[port.neighbor]]\naddress = '2001:db8::1'\nmac = '02:00:00:00:00:01'",
    ] {
        assert!(parse(gateways).is_ok(), "{gateways}: {:?}", parse(gateways).err());
    }
    for (wrong, key) in [
        ("gateway = '10.0.0.5'", "port[0].gateway"),
        ("gateway = '127.0.0.1'", "port[0].gateway"),
        ("gateway = '224.0.0.1'", "port[0].gateway"),
        ("gateway = '255.255.255.255'", "port[0].gateway"),
        ("gateway6 = '2001:db8::5'", "port[0].gateway6"),
        ("gateway6 = '::1'", "port[0].gateway6"),
        ("gateway6 = 'ff02::1'", "port[0].gateway6"),
    ] {
        one(&format!("{base}{wrong}\n"), key, "cannot be this port's gateway");
    }
    let stranger =
        "gateway = '172.31.1.1'\n[[port.neighbor]]\naddress = '172.31.1.2'\nmac = '02:00:00:00:00:01'";
    one(
        &format!("{base}{stranger}\n"),
        "port[0].neighbor[0].address",
        "not another host on this port's link",
    );
}

#[test]
fn drivers() {
    driver("driver = \"pci\"", "port[0].address", "missing");
    for wrong in ["0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "3b:0.0", "x000:3b:00.0", "0000:3b:00.0,a=b"]
    {
        driver(&format!("driver = \"pci\"\naddress = \"{wrong}\""), "port[0].address", "not a PCI address");
    }
    driver("driver = \"tap\"", "port[0].interface", "missing");
    for wrong in ["", "..", "a/b", "a,b", "sixteen-letters-"] {
        driver(
            &format!("driver = \"tap\"\ninterface = \"{wrong}\""),
            "port[0].interface",
            "not an interface name",
        );
        driver(
            &format!("driver = \"pcap\"\ninterface = \"{wrong}\""),
            "port[0].interface",
            "not an interface name",
        );
    }
    driver("driver = \"pcap\"\ninterface = 1", "port[0].interface", "type integer");
    driver("driver = \"pcap\"\nrx_file = \"a\"", "port[0].tx_file", "missing");
    driver(
        "driver = \"pcap\"\nrx_file = \"a,b\"\ntx_file = \"c\"",
        "port[0].rx_file",
        "not a path that DPDK takes",
    );
    driver("driver = \"pcap\"\ninterface = \"e\"\nrx_file = \"a\"", "port[0].rx_file", "exclude each other");
    driver("driver = \"memif\"", "port[0].socket", "missing");
    driver("driver = \"memif\"\nsocket = \"m.sock\"", "port[0].socket", "not the absolute path");
    driver(
        &format!("driver = \"memif\"\nsocket = \"/{}\"", "x".repeat(107)),
        "port[0].socket",
        "at most 107",
    );
    driver("driver = \"memif\"\nsocket = \"/m\"\nrole = \"x\"", "port[0].role", "not a choice");
    driver("driver = \"memif\"\nsocket = \"/m\"\nid = -1", "port[0].id", "out of range");
    driver("driver = \"af_packet\"", "port[0].interface", "missing");
    driver("driver = \"af_xdp\"\ninterface = \"e\"\nqueue_count = 0", "port[0].queue_count", "out of range");
    driver(
        "driver = \"af_xdp\"\ninterface = \"e\"\nstart_queue = 1024",
        "port[0].start_queue",
        "out of range",
    );
}

#[test]
fn workers() {
    beside_port("[workers]\ncores = []\n", "workers.cores", "0 cores");
    beside_port("[workers]\ncores = 1\n", "workers.cores", "type integer");
    beside_port("[workers]\ncores = [1, 1]\n", "workers.cores[1]", "listed twice");
    beside_port("[workers]\ncores = [1024]\n", "workers.cores[0]", "not a core");
    beside_port("[workers]\ncores = [-1]\n", "workers.cores[0]", "not a core");
    beside_port("[workers]\ncores = [\"1\"]\n", "workers.cores[0]", "not a core");
    let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
    beside_port(&format!("[workers]\ncores = [{}]\n", many.join(",")), "workers.cores", "65 cores");
    beside_port("[workers]\nidle = \"lazy\"\n", "workers.idle", "not a choice");
    beside_port("[workers]\nidle_sleep_us_max = 5\n", "workers.idle_sleep_us_max", "does not sleep");
    beside_port("[workers]\nidle_spin_us_max = 5\n", "workers.idle_spin_us_max", "does not sleep");
    let adaptive = "[workers]\nidle = \"adaptive\"\nidle_sleep_us_max = 10001\n";
    beside_port(adaptive, "workers.idle_sleep_us_max", "out of range");
    beside_port("[workers]\ncontrol_core = 1\n", "workers.control_core", "a worker's");
    beside_port("[workers]\ncontrol_core = 1024\n", "workers.control_core", "out of range");
}

/// Numbers just outside their range, at both ends if there are two: table, key, value.
const OUT_OF_RANGE: &[(&str, &str, &str)] = &[
    ("tcp", "connections_max", "0"),
    ("tcp", "connections_max", "1048577"),
    ("tcp", "rto_min_ms", "4"),
    ("tcp", "rto_min_ms", "10001"),
    ("tcp", "rto_max_ms", "999"),
    ("tcp", "rto_max_ms", "240001"),
    ("tcp", "syn_retries", "0"),
    ("tcp", "syn_retries", "17"),
    ("tcp", "data_retries", "2"),
    ("tcp", "data_retries", "33"),
    ("tcp", "time_wait_ms", "0"),
    ("tcp", "time_wait_ms", "240001"),
    ("tcp", "delayed_ack_ms", "-1"),
    ("tcp", "delayed_ack_ms", "501"),
    ("tcp", "fin_wait_2_ms", "-1"),
    ("tcp", "fin_wait_2_ms", "86400001"),
    ("tcp", "zero_window_ms", "86400001"),
    ("tcp", "challenge_acks_max", "0"),
    ("tcp", "challenge_acks_max", "256"),
    ("tcp", "challenge_interval_ms", "99"),
    ("tcp", "challenge_interval_ms", "600001"),
    ("tcp", "receive_window_initial_bytes", "4095"),
    ("tcp", "receive_memory_bytes", "\"63k\""),
    ("tcp", "receive_memory_bytes", "\"2T\""),
    ("tcp", "received_buffers_max", "63"),
    ("tcp", "received_buffers_max", "4194305"),
    ("tcp", "peer_delayed_ack_ms", "501"),
    ("tcp", "connections_per_source_max", "0"),
    ("tcp", "connections_per_source_max", "1048577"),
    ("tcp", "give_way_after_ms", "99"),
    ("tcp", "give_way_after_ms", "600001"),
    ("tcp", "half_open_max", "0"),
    ("tcp", "half_open_max", "1048577"),
    ("tcp", "initial_window_segments", "0"),
    ("tcp", "initial_window_segments", "11"),
    ("tcp", "initial_window_bytes", "0"),
    ("tcp", "initial_window_bytes", "655351"),
    ("tcp", "user_timeout_ms", "86400001"),
    ("tcp", "keepalive_interval_s", "0"),
    ("tcp", "keepalive_interval_s", "3601"),
    ("tcp", "keepalive_probes", "0"),
    ("tcp", "keepalive_probes", "33"),
    ("ip", "hop_limit", "0"),
    ("ip", "hop_limit", "256"),
    ("ip", "fragments_datagrams_max", "1025"),
    ("ip", "fragments_bytes_max", "\"63k\""),
    ("ip", "fragments_bytes_max", "\"2G\""),
    ("ip", "fragments_timeout_ms", "999"),
    ("ip", "fragments_timeout_ms", "120001"),
    ("ip", "path_mtu_entries_max", "1048577"),
    ("ip", "path_mtu_min", "67"),
    ("ip", "path_mtu_min", "9601"),
    ("ip", "path_mtu_age_s", "86401"),
    ("ip", "black_hole_timeouts", "16"),
    ("tcp", "keepalive_s", "-1"),
    ("tcp", "keepalive_s", "86401"),
    ("tcp", "receive_window_bytes", "4095"),
    ("tcp", "receive_window_bytes", "\"1G\""),
    ("tcp", "send_buffer_bytes", "\"8k\""),
    ("tcp", "held_bytes_max", "1"),
    ("tcp", "held_bytes_max", "\"4G\""),
    ("tcp", "held_segments_max", "7"),
    ("tcp", "held_segments_max", "65536"),
    ("mpa", "handshake_timeout_ms", "99"),
    ("mpa", "handshake_timeout_ms", "600001"),
    ("mpa", "disconnect_timeout_ms", "99"),
    ("mpa", "disconnect_timeout_ms", "600001"),
    ("mpa", "fpdu_timeout_ms", "999"),
    ("mpa", "fpdu_timeout_ms", "3600001"),
    ("mpa", "ird_max", "0"),
    ("mpa", "ird_max", "1025"),
    ("mpa", "ord_max", "0"),
    ("limits", "regions_max", "0"),
    ("limits", "regions_max", "4097"),
    ("limits", "grants_max", "0"),
    ("limits", "grants_max", "1048577"),
    ("limits", "neighbors_max", "15"),
    ("limits", "neighbors_max", "65537"),
    ("control", "clients_max", "0"),
    ("control", "clients_max", "1025"),
    ("control", "idle_timeout_ms", "999"),
    ("control", "idle_timeout_ms", "86400001"),
    ("applications", "contexts_max", "0"),
    ("applications", "contexts_max", "1025"),
    ("applications", "queue_pairs_max", "0"),
    ("applications", "queue_pairs_max", "16385"),
    ("applications", "memory_regions_max", "0"),
    ("applications", "memory_regions_max", "16385"),
    ("applications", "kernel_copy_ms_max", "9"),
    ("applications", "kernel_copy_ms_max", "60001"),
    ("applications", "user_share", "0"),
    ("applications", "user_share", "101"),
    ("applications", "user_contexts_max", "0"),
    ("applications", "user_queue_pairs_max", "0"),
    ("applications", "user_queue_entries_max", "0"),
    ("applications", "user_memory", "\"1K\""),
    ("applications", "region_watches_max", "65"),
    ("applications", "watch_entries", "0"),
    ("applications", "watch_entries", "65537"),
    ("applications", "user_watches_max", "1025"),
    ("metrics", "clients_max", "0"),
    ("metrics", "clients_max", "65"),
    ("metrics", "timeout_ms", "99"),
    ("metrics", "timeout_ms", "60001"),
];

#[test]
fn numbers_out_of_range() {
    for (table, key, wrong) in OUT_OF_RANGE {
        beside_port(&format!("[{table}]\n{key} = {wrong}\n"), &format!("{table}.{key}"), "out of range");
    }
}

#[test]
fn a_user_with_more_than_all_users() {
    let totals = "[applications]\ncontexts_max = 10\nqueue_pairs_max = 100\n";
    for (key, more) in [("user_contexts_max", 11), ("user_queue_pairs_max", 101)] {
        let line = format!("{totals}{key} = {more}\n");
        beside_port(&line, &format!("applications.{key}"), "allows all users");
        let most = format!("{PORT}{totals}{key} = {}\n", more - 1);
        assert!(Config::parse("t", &most).is_ok());
    }
}

#[test]
fn ports_that_are_not_privileged() {
    for (list, index) in [("[22, 1024]", 1), ("[0]", 0), ("[-1]", 0), ("[65558]", 0), ("[\"ssh\"]", 0)] {
        let table = format!("[applications]\nprivileged_ports = {list}\n");
        beside_port(&table, &format!("applications.privileged_ports[{index}]"), "not a privileged port");
    }
    beside_port("[applications]\nprivileged_ports = 22\n", "applications.privileged_ports", "type integer");
}

#[test]
fn tcp_and_mpa() {
    beside_port("[tcp]\nrto_min_ms = 2000\nrto_max_ms = 1000\n", "tcp.rto_max_ms", "less than rto_min_ms");
    beside_port("[tcp]\nwindow_scale = false\n", "tcp.receive_window_bytes", "needs window scaling");
    beside_port("[tcp]\nsack = 1\n", "tcp.sack", "type integer");
    beside_port("[tcp]\ntimestamps = \"yes\"\n", "tcp.timestamps", "type string");
    beside_port("[tcp]\ncongestion = \"vegas\"\n", "tcp.congestion", "not a choice");
    beside_port("[tcp]\nsend_buffer_bytes = \"1X\"\n", "tcp.send_buffer_bytes", "not a size");
    let initial = "[tcp]\nreceive_window_bytes = \"32k\"\nreceive_window_initial_bytes = \"33k\"\n";
    beside_port(initial, "tcp.receive_window_initial_bytes", "grows up to receive_window_bytes, 32k");
    beside_port("[tcp]\nprofile = \"lan\"\n", "tcp.profile", "not a choice");
    beside_port("[tcp]\necn = true\n", "tcp.ecn", "type boolean");
    beside_port("[tcp]\npacing = \"bbr\"\n", "tcp.pacing", "type string");
    beside_port("[tcp]\ndctcp_ect_control = 1\n", "tcp.dctcp_ect_control", "type integer");
    beside_port("[tcp]\ncongestion = \"dctcp\"\necn = \"off\"\n", "tcp.ecn", "need ECN");
    beside_port("[tcp]\nsyn_cookies = \"on\"\n", "tcp.syn_cookies", "not a choice");
    beside_port("[tcp]\nconnections_max = 100\nhalf_open_max = 101\n", "tcp.half_open_max", "100 at most");
    let source = "[tcp]\nconnections_max = 100\nconnections_per_source_max = 101\n";
    beside_port(source, "tcp.connections_per_source_max", "100 connections altogether");
    beside_port("[mpa]\ncrc = \"maybe\"\n", "mpa.crc", "not a choice");
    beside_port("[mpa]\nmarkers = \"send\"\n", "mpa.markers", "not a choice");
    beside_port("[placement]\nout_of_order = true\n", "placement.out_of_order", "type boolean");
    beside_port("[placement]\nlast_segment = \"late\"\n", "placement.last_segment", "not a choice");
}

#[test]
fn ip() {
    beside_port("[ip]\npath_mtu_min = 1501\n", "ip.path_mtu_min", "`p0` has an MTU of 1500");
    beside_port("[ip]\npath_mtu_age_s = 299\n", "ip.path_mtu_age_s", "within five minutes");
    beside_port("[ip]\nblack_hole_timeouts = 2\n", "ip.black_hole_timeouts", "everyday loss");
    let none = "[ip]\nfragments_datagrams_max = 0\npath_mtu_age_s = 0\nblack_hole_timeouts = 0\n";
    assert!(Config::parse("t", &format!("{PORT}{none}")).is_ok());
}

/// The keys of a listener for its own connections are checked like those of `[tcp]`.
#[test]
fn options_of_a_listener() {
    let echo = |line: &str, key: &str, message: &str| {
        let text = format!("[[listener]]\nport = 7\nservice = \"echo\"\n{line}\n");
        beside_port(&text, &format!("listener[0].{key}"), message);
    };
    echo("congestion = \"vegas\"", "congestion", "not a choice");
    echo("ecn = \"maybe\"", "ecn", "not a choice");
    echo("congestion = \"dctcp\"\necn = \"off\"", "ecn", "need ECN");
    echo("nagle = 1", "nagle", "type integer");
    echo("keepalive_s = 86401", "keepalive_s", "out of range");
    echo("user_timeout_ms = -1", "user_timeout_ms", "out of range");
    echo("connections_max = 0", "connections_max", "out of range");
    echo("connections_max = 4097", "connections_max", "4096 connections altogether");
    let region = "[[listener]]\nport = 7400\nservice = \"region\"\n";
    beside_port(&format!("{region}nagle = true\n"), "listener[0].nagle", "must not wait");
    let off = format!("[tcp]\necn = \"off\"\n{region}congestion = \"dctcp\"\n");
    beside_port(&off, "listener[0].ecn", "need ECN");
}

#[test]
fn listeners() {
    beside_port("[[listener]]\nservice = \"echo\"\n", "listener[0].port", "missing");
    beside_port("[[listener]]\nport = 7\n", "listener[0].service", "missing");
    beside_port("[[listener]]\nport = 65536\nservice = \"echo\"\n", "listener[0].port", "out of range");
    beside_port("[[listener]]\nport = 7\nservice = \"app\"\n", "listener[0].service", "not a choice");
    beside_port(
        "[[listener]]\nport = 7\nservice = \"echo\"\nbacklog = 0\n",
        "listener[0].backlog",
        "out of range",
    );
    beside_port(
        "[[listener]]\nport = 7\nservice = \"echo\"\ncrc = \"on\"\n",
        "listener[0].crc",
        "not speak MPA",
    );
    beside_port(&"[[listener]]\nport = 7\nservice = \"echo\"\n".repeat(2), "listener[1].port", "already has");
    let many: String = (1..=65).map(|p| format!("[[listener]]\nport = {p}\nservice = \"echo\"\n")).collect();
    beside_port(&many, "listener[64]", "too many listeners");
}

#[test]
fn regions() {
    let region = |name: &str, size: &str, access: &str| {
        format!("[[region]]\nname = \"{name}\"\nsize = {size}\naccess = {access}\n")
    };
    let read = "[\"remote-read\"]";
    beside_port(&region("", "1", read), "region[0].name", "must not be empty");
    beside_port(&region(&"x".repeat(64), "1", read), "region[0].name", "64 bytes");
    beside_port(&region("a\\u0007", "1", read), "region[0].name", "control characters");
    beside_port(&region("a\\u202E", "1", read), "region[0].name", "U+202E");
    beside_port(&region("r", "0", read), "region[0].size", "out of range");
    beside_port(&region("r", "\"2T\"", read), "region[0].size", "out of range");
    beside_port(&region("r", "\"64Q\"", read), "region[0].size", "not a size");
    beside_port(&region("r", "\"99999999T\"", read), "region[0].size", "64 bits");
    beside_port(&region("r", "1", "[]"), "region[0].access", "no access right");
    beside_port(&region("r", "1", "\"remote-read\""), "region[0].access", "type string");
    beside_port(&region("r", "1", "[\"read\"]"), "region[0].access[0]", "not an access right");
    beside_port(
        &region("r", "1", "[\"remote-read\", \"remote-read\"]"),
        "region[0].access[1]",
        "given twice",
    );
    beside_port(&format!("{REGION}{REGION}"), "region[1].name", "already is a region");
    for key in ["name", "size", "access"] {
        let lines: Vec<&str> = REGION.lines().filter(|line| !line.starts_with(key)).collect();
        beside_port(&lines.join("\n"), &format!("region[0].{key}"), "missing");
    }
    let two = format!("[limits]\nregions_max = 1\n{REGION}{}", REGION.replace("\"r\"", "\"s\""));
    beside_port(&two, "region[1]", "too many regions");
    beside_port(&format!("{REGION}allow = []\n"), "region[0].allow", "0 prefixes");
    beside_port(&format!("{REGION}allow = [\"10.0.0.1/24\"]\n"), "region[0].allow[0]", "beyond its prefix");
    beside_port(&format!("{REGION}allow = [\"lan\"]\n"), "region[0].allow[0]", "not a prefix");
    beside_port(&format!("{REGION}allow = [7]\n"), "region[0].allow[0]", "type integer");
    let many = vec!["\"10.0.0.0/8\""; 65].join(",");
    beside_port(&format!("{REGION}allow = [{many}]\n"), "region[0].allow", "65 prefixes");
}

#[test]
fn tokens() {
    beside_port(&format!("{REGION}token = \"\"\n"), "region[0].token", "this one has 0");
    beside_port(&format!("{REGION}token = \"{}\"\n", "x".repeat(33)), "region[0].token", "this one has 33");
    beside_port(&format!("{REGION}token = \"hex:abc\"\n"), "region[0].token", "even number");
    beside_port(&format!("{REGION}token = \"hex:zz\"\n"), "region[0].token", "hexadecimal");
    beside_port(&format!("{REGION}token = 7\n"), "region[0].token", "type integer");
    beside_port(&format!("{REGION}token_file = \"/nonexistent\"\n"), "region[0].token_file", "No such file");
    beside_port(
        &format!("{REGION}token_file = \"/dev/zero\"\n"),
        "region[0].token_file",
        "not a regular file",
    );
    let both = format!("{REGION}token = \"a\"\ntoken_file = \"b\"\n");
    beside_port(&both, "region[0].token_file", "exclude each other");
    let secret = errors(&format!("{PORT}{REGION}token = \"hex:secret\"\n"));
    assert!(!secret.short().contains("secret"), "a token is not repeated");
}

#[test]
fn control_and_log() {
    for wrong in ["control.sock", "/run/", ""] {
        beside_port(&format!("[control]\nsocket = \"{wrong}\"\n"), "control.socket", "not the absolute path");
    }
    let long = "x".repeat(107);
    beside_port(&format!("[control]\nsocket = \"/{long}\"\n"), "control.socket", "at most 107");
    for wrong in ["\"0666\"", "\"0440\"", "\"+660\"", "660", "\"rw\"", "0o777", "true"] {
        beside_port(&format!("[control]\nmode = {wrong}\n"), "control.mode", "not a mode");
    }
    beside_port("[control]\ngroup = \"a b\"\n", "control.group", "not the name of a group");
    beside_port("[privileges]\ndrop_capabilities = 1\n", "privileges.drop_capabilities", "of type");
    beside_port("[log]\nlevel = \"trace\"\n", "log.level", "not a choice");
    beside_port("[log]\nformat = \"syslog\"\n", "log.format", "not a choice");
    beside_port("[log]\nevents_per_s_max = 0\n", "log.events_per_s_max", "out of range");
    beside_port("[log]\ndrop_burst_per_s = 1000000001\n", "log.drop_burst_per_s", "out of range");
}
