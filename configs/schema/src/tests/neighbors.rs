//! Checks of the `[[port.neighbor]]` tables.

use super::mistakes::{PORT, one};
use crate::Config;

#[test]
fn neighbors_are_kept_in_their_order() {
    let mac = "02:00:00:00:00:Ff";
    let text = format!(
        "{PORT}[[port.neighbor]]\naddress = \"10.77.0.1\"\nmac = \"{mac}\"\n[[port.neighbor]]\n\
         address = \"fe80::1\"\nmac = \"{mac}\"\n"
    );
    let config = Config::parse("t.toml", &text).unwrap();
    let neighbors: Vec<_> = config.ports[0]
        .neighbors
        .iter()
        .map(|neighbor| (neighbor.address.to_string(), neighbor.mac))
        .collect();
    let mac = [2, 0, 0, 0, 0, 255];
    assert_eq!(neighbors, [("10.77.0.1".to_owned(), mac), ("fe80::1".to_owned(), mac)]);
}

#[test]
fn a_neighbor_is_another_host_on_the_link() {
    let table =
        |address: &str, mac: &str| format!("{PORT}[[port.neighbor]]\naddress = {address}\nmac = {mac}\n");
    let mac = "\"02:00:00:00:00:01\"";
    for good in ["10.77.0.1", "10.77.0.254", "fd77::1", "fe80::1"] {
        assert!(Config::parse("t", &table(&format!("\"{good}\""), mac)).is_ok(), "{good}");
    }
    let key = "port[0].neighbor[0].address";
    for (address, message) in [
        ("10.77.0.2", "not another host"),
        ("10.77.0.0", "not another host"),
        ("10.77.0.255", "not another host"),
        ("10.78.0.1", "not another host"),
        ("fd77::2", "not another host"),
        ("fd78::1", "not another host"),
        ("224.0.0.1", "cannot be the address of a neighbor"),
        ("ff02::1", "cannot be the address of a neighbor"),
        ("::ffff:10.77.0.1", "cannot be the address of a neighbor"),
        ("10.77.0.0/24", "is not an address"),
    ] {
        one(&table(&format!("\"{address}\""), mac), key, message);
    }
    one(&table("7", mac), key, "");
    let mac_key = "port[0].neighbor[0].mac";
    one(&table("\"10.77.0.1\"", "\"03:00:00:00:00:01\""), mac_key, "group address");
    one(&format!("{PORT}[[port.neighbor]]\naddress = \"10.77.0.1\"\n"), mac_key, "missing");
    one(&format!("{PORT}[[port.neighbor]]\nmac = {mac}\n"), key, "missing");
    one(&(table("\"10.77.0.1\"", mac) + "port = 1\n"), "port[0].neighbor[0].port", "unknown key");
    let twice = table("\"10.77.0.1\"", mac) + &table("\"10.77.0.1\"", mac).replace(PORT, "");
    one(&twice, "port[0].neighbor[1].address", "already");
    let many =
        (1..=1025_u32).map(|n| format!("[[port.neighbor]]\naddress = \"fd77::1:{n:x}\"\nmac = {mac}\n"));
    one(&(PORT.to_owned() + &many.collect::<String>()), "port[0].neighbor[1024]", "too many");
    let no_ipv4 = "[[port]]\ndriver = \"ring\"\naddresses = [\"fd77::2/64\"]\n";
    one(&table("\"10.77.0.1\"", mac).replace(PORT, no_ipv4), key, "not another host");
}
