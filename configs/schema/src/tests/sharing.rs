//! Checks of ports with the addresses of the kernel.

use crate::{Config, PortRange};

fn parse(lines: &str) -> Result<Config, String> {
    let text = format!("[[port]]\naddresses = \"kernel\"\n{lines}\n");
    Config::parse("t.toml", &text).map_err(|errors| errors.short())
}

const PACKET: &str = "driver = \"af_packet\"\ninterface = \"eth0\"";

#[test]
fn the_kernels_addresses_are_not_known_yet() {
    let config = parse(PACKET).unwrap();
    let addresses = config.ports[0].addresses;
    assert!(addresses.are_kernels && addresses.nets().next().is_none());
    assert_eq!((addresses.to_string().as_str(), config.ports[0].source_ports), ("kernel", None));
    assert!(parse(&format!("{PACKET}\nmtu = 9000\nsource_ports = \"65000-65000\"")).is_ok());
}

#[test]
fn what_is_the_interfaces_or_the_kernels_is_not_set_here() {
    for (lines, message) in [
        ("mac = \"02:00:00:00:00:01\"", "no `mac` of its own"),
        ("vlan = 7", "no `vlan` of its own"),
        ("gateway = \"10.0.0.1\"", "no `gateway` of its own"),
        ("gateway6 = \"fe80::1\"", "no `gateway6` of its own"),
        ("source_ports = \"1-5000\"", "5000 ports are too many to reserve"),
        ("[[port.neighbor]]\naddress = \"10.0.0.1\"\nmac = \"02:00:00:00:00:01\"", "no neighbors of its own"),
    ] {
        let report = parse(&format!("{PACKET}\n{lines}")).unwrap_err();
        assert!(report.contains(message), "{report}");
        assert_eq!(report.lines().count(), 1, "{report}");
    }
    for driver in ["tap", "dpdk-af_packet", "af_xdp", "pcap"] {
        let report = parse(&format!("driver = \"{driver}\"\ninterface = \"eth0\"")).unwrap_err();
        assert!(report.contains(&format!("the driver {driver} cannot share")), "{report}");
    }
    assert!(parse("driver = \"ring\"").is_err());
}

#[test]
fn ranges_of_ports() {
    for (text, range) in [("1-65535", (1, 65_535)), ("7-7", (7, 7)), (" 40000 - 40015 ", (40_000, 40_015))] {
        let (first, last) = range;
        assert_eq!(PortRange::parse(text), Ok(PortRange { first, last }), "{text}");
    }
    for text in ["", "-", "7", "0-7", "8-7", "1-65536", "1-2-3", "a-b", "-1-7"] {
        assert!(PortRange::parse(text).is_err(), "{text}");
    }
    let own = "[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.0.2/24\"]\nsource_ports = \"1-65535\"\n";
    assert!(Config::parse("t.toml", own).is_ok(), "only those of the kernel are reserved");
}
