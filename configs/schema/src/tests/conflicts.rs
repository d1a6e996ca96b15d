//! Several mistakes in one file: all are reported, none causes a second report, and two ports share no device.

use super::mistakes::{PORT, beside_port, errors, one};
use crate::Config;

/// Returns the keys of all mistakes in a text.
fn keys(text: &str) -> Vec<String> {
    errors(text).mistakes().iter().map(|mistake| mistake.key.clone()).collect()
}

#[test]
fn a_mistake_in_a_table_hides_no_conflict_with_another_table() {
    let ports = "[[port]]\nname = 'a'\ndriver = 'tap'\ninterface = 'iw0'\naddresses = ['10.0.0.2/24']\nmtu = 99\n\
                 [[port]]\nname = 'a'\ndriver = 'tape'\naddresses = ['10.0.0.2/25']\n\
                 [[port]]\ndriver = 'af_packet'\ninterface = 'iw0'\naddresses = ['10.0.2.2/24']\nvlan = 0\n";
    assert_eq!(
        keys(ports),
        ["port[0].mtu", "port[1].name", "port[1].driver", "port[1].addresses", "port[2]", "port[2].vlan"]
    );
    let listeners = "[[listener]]\nport = 7\nservice = 'app'\n[[listener]]\nport = 7\nservice = 'echo'\n\
                     [[listener]]\nport = 7\nservice = 'ekko'\n";
    assert_eq!(
        keys(&format!("{PORT}{listeners}")),
        ["listener[0].service", "listener[1].port", "listener[2].port", "listener[2].service"]
    );
    let regions = "[[region]]\nname = 'r'\nsize = 0\naccess = ['remote-read']\n\
                   [[region]]\nname = 'r'\nsize = '1M'\naccess = ['remote-read']\n";
    assert_eq!(keys(&format!("{PORT}{regions}")), ["region[0].size", "region[1].name"]);
}

#[test]
fn one_mistake_makes_no_second_one() {
    beside_port("[workers]\nidle = 'lazy'\nidle_sleep_us_max = 50\n", "workers.idle", "not a choice");
    beside_port("[tcp]\ncongestion = 'dctcp'\necn = 'of'\n", "tcp.ecn", "not a choice");
    let gateway = "driver = 'ring'\naddresses = ['10.0.0.300/24']\ngateway = '10.0.0.1'\n";
    one(&format!("[[port]]\n{gateway}"), "port[0].addresses[0]", "not an address");
    // The memory sum is meaningless if one of its parts is wrong.
    beside_port("[workers]\ncores = []\n[memory]\npacket_buffers = 1\n", "workers.cores", "0 cores");
    beside_port("[tcp]\nrto_min_ms = 1000\nrto_max_ms = 'x'\n", "tcp.rto_max_ms", "of type");
}

#[test]
fn ports_share_neither_address_nor_device() {
    let two = |first: &str, second: &str| {
        let port = |lines: &str| format!("[[port]]\n{lines}\n");
        keys(&format!("{}{}", port(first), port(second)))
    };
    let ring = |addresses: &str| format!("driver = 'ring'\naddresses = [{addresses}]");
    assert_eq!(two(&ring("'10.0.0.2/24'"), &ring("'10.0.0.2/16'")), ["port[1].addresses"]);
    assert_eq!(
        two(&ring("'fd00::2/64', '10.0.0.2/24'"), &ring("'10.0.0.3/24', 'fd00::2/64'")),
        ["port[1].addresses"]
    );
    let on = |driver: &str, host: u8| {
        format!("driver = '{driver}'\ninterface = 'eth0'\naddresses = ['10.0.0.{host}/24']")
    };
    let drivers = ["tap", "pcap", "af_packet", "af_xdp"];
    for (first, second) in drivers.iter().flat_map(|first| drivers.map(|second| (first, second))) {
        assert_eq!(two(&on(first, 2), &on(second, 3)), ["port[1]"], "{first} and {second}");
    }
    let files = |tx: &str, host: u8| {
        format!("driver = 'pcap'\nrx_file = '/a'\ntx_file = '{tx}'\naddresses = ['10.0.0.{host}/24']")
    };
    assert_eq!(two(&files("/b", 2), &files("/b", 3)), ["port[1]"]);
    // Two ports may replay the same capture.
    let text = format!("[[port]]\n{}\n[[port]]\n{}\n", files("/b", 2), files("/c", 3));
    Config::parse("t.toml", &text).unwrap();
}

#[test]
fn each_socket_has_a_path_of_its_own() {
    beside_port(
        "[applications]\nsocket = '/run/iwarpd/control.sock'\n",
        "applications.socket",
        "the same path",
    );
    beside_port("[applications]\nmode = '0644'\n", "applications.mode", "not a mode");
    beside_port("[control]\nmode = '0666'\n", "control.mode", "not a mode");
    assert!(Config::parse("t.toml", &format!("{PORT}[applications]\nmode = '0666'\n")).is_ok());
}

#[test]
fn metrics_have_an_address_of_their_own() {
    let listen = |address: &str| format!("[metrics]\nlisten = '{address}'\n");
    for address in ["127.0.0.1:9464", "[::1]:1", "0.0.0.0:65535", "/run/iwarpd/metrics.sock"] {
        assert!(Config::parse("t.toml", &format!("{PORT}{}", listen(address))).is_ok(), "{address}");
    }
    for (address, message) in [
        ("localhost:9464", "not an IP address"),
        ("127.0.0.1", "not an IP address"),
        ("127.0.0.1:0", "port 0"),
        ("run/metrics.sock", "not an IP address"),
        ("/run/", "not the absolute path"),
        ("/run/iwarpd/control.sock", "control.socket has the same path"),
    ] {
        beside_port(&listen(address), "metrics.listen", message);
    }
    let text = format!("[applications]\n{}", listen("/run/iwarpd/verbs.sock"));
    beside_port(&text, "metrics.listen", "applications.socket has the same path");
    beside_port("[metrics]\nmode = '0644'\n", "metrics.mode", "not a mode");
}
