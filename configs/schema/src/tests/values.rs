//! Values of the checked configuration: as written, and defaults.

use std::path::PathBuf;

use proptest::prelude::*;
use rdma::{CrcPolicy, OutOfOrderPolicy};

use tcp_stack::{Congestion, ConnOptions, Ecn, Keepalive, SynCookies, TcpConfig};

use crate::plan::HUGEPAGE;
use crate::*;

fn parse(text: &str) -> Config {
    Config::parse("t.toml", text).unwrap_or_else(|e| panic!("{}", e.short()))
}

fn port(lines: &str) -> Port {
    let config = parse(&format!("[[port]]\naddresses = [\"10.0.0.2/24\"]\n{lines}\n"));
    config.ports.into_iter().next().unwrap()
}

#[test]
fn every_driver_is_understood() {
    let interface = |name: &str| name.to_owned();
    let cases = [
        ("driver = \"pci\"\naddress = \"3B:00.1\"", Driver::Pci { address: "0000:3b:00.1".to_owned() }),
        ("driver = \"tap\"\ninterface = \"iw0\"", Driver::Tap { interface: interface("iw0") }),
        ("driver = \"pcap\"\ninterface = \"eth1\"", Driver::Pcap(Pcap::Interface(interface("eth1")))),
        (
            "driver = \"pcap\"\nrx_file = \"a.pcap\"\ntx_file = \"/b.pcap\"",
            Driver::Pcap(Pcap::Files { rx_file: PathBuf::from("a.pcap"), tx_file: PathBuf::from("/b.pcap") }),
        ),
        ("driver = \"ring\"", Driver::Ring),
        (
            "driver = \"memif\"\nrole = \"client\"\nid = 7\nsocket = \"/m.sock\"",
            Driver::Memif(Memif { id: 7, role: MemifRole::Client, socket: PathBuf::from("/m.sock") }),
        ),
        ("driver = \"af_packet\"\ninterface = \"e\"", Driver::AfPacket { interface: interface("e") }),
        (
            "driver = \"af_xdp\"\ninterface = \"e\"\nstart_queue = 2\nqueue_count = 3",
            Driver::AfXdp { interface: interface("e"), start_queue: 2, queue_count: 3 },
        ),
    ];
    for (text, expected) in cases {
        let port = port(text);
        assert_eq!(port.driver, expected);
        assert!(text.contains(&format!("\"{}\"", port.driver.name())));
    }
}

#[test]
fn sleeps_and_spins_of_workers() {
    let idle = |lines: &str| {
        parse(&format!("[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.0.2/24\"]\n[workers]\n{lines}\n"))
            .workers
            .idle
    };
    assert_eq!(idle(""), Idle::Spin);
    let both = "idle = \"adaptive\"\nidle_sleep_us_max = 7\nidle_spin_us_max = 0";
    assert_eq!(idle(both), Idle::Adaptive { sleep_us_max: 7, spin_us_max: 0 });
}

#[test]
fn everything_stated_is_kept() {
    let text = "
        [[port]]
        name = 'x'
        driver = 'ring'
        mtu = 9600
        mac = '02:00:00:00:00:Ff'
        vlan = 4094
        addresses = ['10.0.0.2/24', 'fd77::2/64']
        gateway = '10.0.0.1'
        gateway6 = 'fe80::1'
        rx_descriptors = 64
        tx_descriptors = 16384
        offloads = false
        [workers]
        cores = [3, 1]
        idle = 'adaptive'
        control_core = 0
        [mpa]
        crc = 'off'
        markers = 'receive'
        [placement]
        out_of_order = 'markers'
        last_segment = 'early'
        [[listener]]
        port = 7400
        service = 'region'
        backlog = 5
        connections_max = 9
        [[listener]]
        port = 7401
        service = 'region'
        crc = 'on'
        [[region]]
        name = 'Bär'
        size = 5
        access = ['remote-write', 'remote-atomic']
        token = 'hex:00fF'
        allow = ['10.0.0.0/8', '::/0']
        [control]
        mode = 0o600
        group = 'iwarp'
        [privileges]
        drop_capabilities = false
        [log]
        level = 'debug'
    ";
    let c = parse(text);
    let p = &c.ports[0];
    assert_eq!((p.name.as_str(), p.mtu, p.vlan), ("x", 9600, Some(4094)));
    assert_eq!(p.mac, Some([2, 0, 0, 0, 0, 255]));
    assert_eq!((p.rx_descriptors, p.tx_descriptors, p.offloads), (64, 16384, false));
    assert_eq!(p.gateway6, Some("fe80::1".parse().unwrap()));
    assert_eq!(c.data_room_bytes(), 9792, "9600 + 18 + 128, in lines of 64");
    assert_eq!(c.workers.cores, [3, 1]);
    let idle = Idle::Adaptive { sleep_us_max: 100, spin_us_max: 50 };
    assert_eq!((c.workers.idle, c.workers.control_core), (idle, Some(0)));
    let listeners: Vec<_> =
        c.listeners.iter().map(|l| (l.port, l.backlog, l.connections_max, l.crc)).collect();
    assert_eq!(listeners, [(7400, 5, 9, CrcPolicy::IfPeerAsks), (7401, 128, 4096, CrcPolicy::Required)]);
    let placement = (c.mpa.markers, c.placement.out_of_order, c.placement.last_out_of_order);
    assert_eq!(placement, (true, OutOfOrderPolicy::Markers, true));
    let r = &c.regions[0];
    assert_eq!((r.name.as_str(), r.bytes, r.access.bits()), ("Bär", 5, 0b110));
    assert_eq!(r.token.as_ref().unwrap().as_bytes(), [0, 255]);
    assert_eq!(r.allow.len(), 2);
    assert_eq!((c.control.mode, c.control.group.as_deref()), (0o600, Some("iwarp")));
    assert_eq!((c.privileges.drop_capabilities, c.privileges.filter_system_calls), (false, true));
    assert_eq!(c.log.level, LogLevel::Debug);
}

#[test]
fn the_time_of_a_drain_is_kept_as_stated() {
    let port = "[[port]]\ndriver = 'ring'\naddresses = ['10.0.0.1/24']\n";
    let parsed = |drain: &str| Config::parse("test.toml", &format!("{port}{drain}"));
    assert_eq!(parsed("").unwrap().drain.timeout_ms, 2000);
    assert_eq!(parsed("[drain]\ntimeout_ms = 0\n").unwrap().drain.timeout_ms, 0);
    let errors = parsed("[drain]\ntimeout_ms = 3600001\n").unwrap_err().short();
    assert!(errors.contains("out of range"), "{errors}");
}

#[test]
fn the_log_is_kept_as_stated() {
    let text = "[[port]]\naddresses = ['10.0.0.2/24']\ndriver = 'ring'\n[log]\nlevel = 'warn'\n\
                format = 'journald'\nevents_per_s_max = 7\ndrop_burst_per_s = 50\n";
    let log = parse(text).log;
    assert_eq!((log.level, log.format), (LogLevel::Warn, LogFormat::Journald));
    assert_eq!((log.events_per_s_max, log.drop_burst_per_s), (7, 50));
}

#[test]
fn a_token_file_is_found_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.0.2/24\"]\n[[region]]\nname = \"r\"\nsize = 1\n\
                access = [\"remote-read\"]\ntoken_file = \"t\"\n";
    let path = folder.path().join("c.toml");
    std::fs::write(&path, text).unwrap();
    for (content, expected) in [
        (&b"secret\n"[..], &b"secret"[..]),
        (b"secret\r\n", b"secret"),
        (b"hex:0001", &[0, 1]),
        (b"\xFF\n\n", b"\xFF\n"),
    ] {
        std::fs::write(folder.path().join("t"), content).unwrap();
        let config = Config::load(&path).unwrap_or_else(|e| panic!("{}", e.short()));
        assert_eq!(config.regions[0].token.as_ref().unwrap().as_bytes(), expected);
    }
    std::fs::write(folder.path().join("t"), b"\n").unwrap();
    assert!(Config::load(&path).unwrap_err().short().contains("this one has 0"));
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        ("1_000", 1000),
        ("0x1000", 4096),
        ("64k", 64 << 10),
        ("64K", 64 << 10),
        ("1KiB", 1024),
        ("64M", 64 << 20),
        (" 64 MiB ", 64 << 20),
        ("3G", 3 << 30),
        ("2T", 2 << 40),
        ("7B", 7),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for text in [
        "",
        "M",
        "-1",
        "+1",
        "_1",
        "0x",
        "0x+1",
        "1.5G",
        "1MB",
        "1iB",
        "64Q",
        "1 2",
        "18446744073709551616",
        "é",
    ] {
        assert!(parse_size(text).is_err(), "{text}");
    }
}

#[test]
fn a_token_is_never_printed() {
    let token = token_from_text("hunter2").unwrap();
    assert_eq!(format!("{token:?}"), "Token(…)");
    assert_eq!(token.as_bytes(), b"hunter2");
    assert_eq!(token_from_text(&"7".repeat(32)).unwrap().as_bytes(), [b'7'; 32]);
    assert!(token_from_text(&"7".repeat(33)).is_err() && token_from_text("").is_err());
}

/// The memory plan computed by hand: one worker, one port, all values at their defaults.
#[test]
fn the_plan_adds_up() {
    let text = "[memory]\nhugepage_limit = \"1G\"\n[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.0.2/24\"]\n\
                [[region]]\nname = \"r\"\nsize = 1\naccess = [\"remote-read\"]\n";
    let config = parse(text);
    // 2048 descriptors + 64 in bursts + 384 in the cache + 256 reserved + 256 KiB of fragments / 2304, and 16 × (⌈1
    // MiB / 1428⌉ + ⌈1280 KiB / 1428⌉).
    assert_eq!(config.memory.packet_buffers, 2048 + 64 + 384 + 256 + 113 + 16 * (735 + 918));
    // 2048 + 128; an object of 2432 bytes: 862 per page.
    assert_eq!(config.data_room_bytes(), 2176);
    let plan = memory_plan(&config);
    let huge: Vec<u64> =
        plan.items().iter().filter(|i| i.kind == Kind::Huge).map(|i| i.bytes / HUGEPAGE).collect();
    assert_eq!(huge, [29313u64.div_ceil(862), 1]);
    assert_eq!(plan.hugepages(), huge.iter().sum::<u64>());
    assert_eq!(plan.region_room_bytes(), Some((1 << 30) - plan.hugepage_bytes()));
    let heap: u64 = plan.items().iter().filter(|i| i.kind == Kind::Heap).map(|i| i.bytes).sum();
    assert_eq!(plan.heap_bytes(), heap);
    let connections = 4096 * (1344 + 12_288 + 128 * 56 + (66 << 10));
    let tables = 29313 * 120 + 8192 * 512 + 4096 * 128 + 1024 * 160 + 256 * 1024;
    let ip = 64 * 512 + 512 * 64 + 1024 * 160;
    let eal = (8 << 20) + 2048 * 128;
    assert_eq!(heap, (40 << 20) + eal + connections + tables + ip + (64 << 16));
}

/// Two workers: tables per worker, and the limits of one user. Without the table there is nothing of it.
#[test]
fn the_plan_counts_applications() {
    let text = "[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.0.2/24\"]\n[workers]\ncores = [0, 1]\n";
    let (without, with) =
        (memory_plan(&parse(text)), memory_plan(&parse(&format!("{text}[applications]\n"))));
    let tables = 2 * (1024 * 4096 + 1024 * (2 * 512 + 256));
    // One user's contexts each have a thread that copies through the kernel, with 1.5 MiB.
    let user = (1 << 20) * 192 + (1 << 30) + 32 * (3 << 19);
    assert_eq!(with.heap_bytes() - without.heap_bytes(), (64 << 16) + tables + user);
    assert_eq!(with.hugepages(), without.hugepages());
    let limits = "[applications]\ncontexts_max = 2\nqueue_pairs_max = 3\nmemory_regions_max = 5\n\
                  user_queue_entries_max = 7\nuser_memory = \"3M\"\n";
    let small = memory_plan(&parse(&format!("{text}{limits}")));
    let expected = (2 << 16) + 2 * (3 * 4096 + 5 * 1280) + 7 * 192 + (3 << 20) + (3 << 19);
    assert_eq!(small.heap_bytes() - without.heap_bytes(), expected);
}

/// A PCI device accesses its descriptors by DMA, so they are in hugepages. The other heap items are the same.
#[test]
fn descriptors_of_a_card_are_in_hugepages() {
    let port = |driver: &str| format!("[[port]]\n{driver}\naddresses = [\"10.0.0.2/24\"]\n");
    let card = memory_plan(&parse(&port("driver = \"pci\"\naddress = \"0000:3b:00.0\"")));
    let ring = memory_plan(&parse(&port("driver = \"ring\"")));
    assert_eq!(card.hugepages(), ring.hugepages() + 5);
    assert_eq!(card.heap_bytes() + (8 << 20) + 2048 * 128, ring.heap_bytes());
}

/// The kernel reserves 256 bytes of an AF_XDP buffer: 128 more are needed if the frame does not fit beside them.
#[test]
fn buffers_of_af_xdp_have_room_for_what_the_kernel_keeps_free() {
    for (mtu, room) in [(576, 2176), (1500, 2176), (1774, 2176), (1775, 2240), (3000, 3456), (3438, 3840)] {
        let port = "driver = \"af_xdp\"\ninterface = \"e\"";
        let text = format!("[[port]]\n{port}\naddresses = [\"10.0.0.2/24\"]\nmtu = {mtu}\n");
        assert_eq!(parse(&text).data_room_bytes(), room, "MTU {mtu}");
    }
}

/// A driver that does not find room for its own beside the longest frame refuses to start.
#[test]
fn buffers_of_a_card_have_room_for_what_its_driver_wants() {
    for (mtu, room) in
        [(576, 2176), (1500, 2176), (2010, 2176), (2011, 2240), (4000, 4224), (9000, 9216), (9600, 9792)]
    {
        let port = "driver = \"pci\"\naddress = \"0000:3b:00.0\"";
        let text = format!("[[port]]\n{port}\naddresses = [\"10.0.0.2/24\"]\nmtu = {mtu}\n");
        let data_room = parse(&text).data_room_bytes();
        assert_eq!(data_room, room, "MTU {mtu}");
        assert!(u32::from(data_room) >= 128 + mtu + 14 + 2 * 4 + 4 + 12, "MTU {mtu}");
    }
}

/// Two workers on two ports: four pools, each of whole pages.
#[test]
fn pools_are_per_worker_and_port() {
    let ring = |n: u8| format!("[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.{n}.2/24\"]\n");
    let text = format!("[memory]\npacket_buffers = 16384\n[workers]\ncores = [1, 2]\n{}{}", ring(0), ring(1));
    let plan = memory_plan(&parse(&text));
    assert_eq!(plan.items()[0].bytes, 4 * 4096u64.div_ceil(862) * HUGEPAGE);
    // 8192 descriptors and four times 64 + 384 + 256 + 113.
    let least = text.replace("16384", "11459");
    assert!(Config::parse("t", &least).is_err_and(|e| e.short().contains("11460 to")));
}

/// All pools have the same size: that of the port with the longest queues.
#[test]
fn every_pool_fills_the_longest_queues() {
    let ring = |n: u8, descriptors: u32| {
        format!(
            "[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.{n}.2/24\"]\nrx_descriptors = {descriptors}\n"
        )
    };
    let config = parse(&format!("{}{}", ring(0, 16384), ring(1, 64)));
    assert!(config.memory.packet_buffers / 2 >= 16384 + 1024 + 64 + 384 + 256);
}

const RING: &str = "[[port]]\ndriver = \"ring\"\naddresses = [\"10.0.0.2/24\"]\n";

/// Returns the options of a listener's connections, for these lines and this `[tcp]`.
fn conn(tcp: &str, listener: &str) -> ConnOptions {
    let listener = format!("[[listener]]\nport = 7\nservice = 'echo'\n{listener}\n");
    parse(&format!("{RING}[tcp]\n{tcp}\n{listener}")).listeners[0].conn
}

#[test]
fn a_silent_peer_is_probed_unless_the_file_says_not_to() {
    let keepalive = |idle_ms, interval_ms, probes| Some(Keepalive { idle_ms, interval_ms, probes });
    for (tcp, listener, expected) in [
        ("", "", keepalive(600_000, 30_000, 5)),
        (
            "keepalive_s = 7200\nkeepalive_interval_s = 75\nkeepalive_probes = 9",
            "",
            keepalive(7_200_000, 75_000, 9),
        ),
        ("", "keepalive_s = 5", keepalive(5000, 5000, 5)),
        ("keepalive_s = 0", "", None),
        ("", "keepalive_s = 0", None),
        ("keepalive_s = 0", "keepalive_s = 60", keepalive(60_000, 30_000, 5)),
    ] {
        assert_eq!(conn(tcp, listener).keepalive, expected, "{tcp} {listener}");
    }
}

#[test]
fn a_listener_chooses_for_its_connections() {
    assert_eq!(conn("", ""), ConnOptions { keepalive: conn("", "").keepalive, ..ConnOptions::default() });
    let own = conn("", "congestion = 'bbr'\necn = 'on'\nnagle = true\nuser_timeout_ms = 5000");
    assert_eq!((own.congestion, own.ecn, own.nagle), (Some(Congestion::Bbr), Some(Ecn::On), true));
    assert_eq!(own.user_timeout_ms, Some(5000));
    assert_eq!(conn("user_timeout_ms = 7000", "").user_timeout_ms, Some(7000));
    assert_eq!(conn("user_timeout_ms = 7000", "user_timeout_ms = 0").user_timeout_ms, None);
}

#[test]
fn tcp_is_what_the_file_says() {
    let text = "profile = 'internet'\nrto_min_ms = 10\nrto_max_ms = 9000\nsyn_retries = 3\ndata_retries = 4\n\
                time_wait_ms = 5\nzero_window_ms = 8\nchallenge_acks_max = 20\nchallenge_interval_ms = 900\n\
                fin_wait_2_ms = 0\ndelayed_ack_ms = 6\npeer_delayed_ack_ms = 7\n\
                congestion = 'dctcp'\necn = 'on'\ndctcp_ect_control = false\npacing = true\nbbr_loss_percent = 10\n\
                sack = false\n\
                timestamps = false\ninitial_window_segments = 4\ninitial_window_bytes = 8000\nhalf_open_max = 64\n\
                give_way_after_ms = 2500\nsyn_cookies = 'always'\n\
                [ip]\npath_mtu_min = 1000\npath_mtu_age_s = 300\nblack_hole_timeouts = 4\n";
    let stack = parse(&format!("{RING}[tcp]\n{text}")).tcp.stack;
    let expected = TcpConfig {
        rto_min_ms: 10,
        rto_max_ms: 9000,
        syn_retries: 3,
        syn_needs_neighbor: true,
        data_retries: 4,
        time_wait_ms: 5,
        zero_window_ms: 8,
        challenge_acks_max: 20,
        challenge_interval_ms: 900,
        fin_wait_2_ms: 0,
        delayed_ack_ms: 6,
        peer_delayed_ack_ms: 7,
        congestion: Congestion::Dctcp,
        ecn: Ecn::On,
        dctcp_ect_control: false,
        pacing: true,
        bbr_loss_percent: 10,
        sack: false,
        timestamps: false,
        initial_window_segments: 4,
        initial_window_bytes: 8000,
        half_open_max: 64,
        give_way_after_ms: 2500,
        syn_cookies: SynCookies::Always,
        path_mtu_min: 1000,
        path_mtu_age_s: 300,
        black_hole_timeouts: 4,
        ..TcpConfig::default()
    };
    assert_eq!(stack, expected);
    for (word, congestion) in
        [("newreno", Congestion::NewReno), ("cubic", Congestion::Cubic), ("bbr", Congestion::Bbr)]
    {
        let tcp = parse(&format!("{RING}[tcp]\ncongestion = '{word}'\n")).tcp;
        assert_eq!(tcp.stack.congestion, congestion);
    }
}

/// A profile sets several keys together; a key in the file overrides it. There are at most as many half-open
/// connections as connections.
#[test]
fn a_profile_gives_way_to_keys() {
    let tcp = |lines: &str| parse(&format!("{RING}[tcp]\n{lines}\n")).tcp.stack;
    let stated = TcpConfig {
        syn_retries: 6,
        syn_needs_neighbor: true,
        time_wait_ms: 60_000,
        initial_window_bytes: 10 * 8960,
        ..TcpConfig::data_center()
    };
    assert_eq!(tcp("profile = 'data-center'"), stated);
    assert_eq!(tcp("profile = 'data-center'\nrto_min_ms = 20"), TcpConfig { rto_min_ms: 20, ..stated });
    assert_eq!(tcp("connections_max = 100").half_open_max, 100);
}

/// By default one source may have three quarters of the connections.
#[test]
fn a_source_has_a_part_of_the_connections() {
    let tcp = |lines: &str| parse(&format!("{RING}[tcp]\n{lines}\n")).tcp.connections_per_source_max;
    assert_eq!(tcp(""), 3072);
    for (all, part) in [(1, 1), (2, 2), (4, 3), (101, 76), (1_048_576, 786_432)] {
        assert_eq!(tcp(&format!("connections_max = {all}")), part);
    }
    assert_eq!(tcp("connections_max = 100\nconnections_per_source_max = 100"), 100);
}

/// By default one connection fills 100 Mbit/s over 100 ms, also with several ports; the report states the rate that
/// small pools allow.
#[test]
fn one_connection_fills_a_long_path() {
    let ports: String =
        (1..=3).map(|n| format!("[[port]]\ndriver = 'ring'\naddresses = ['10.{n}.0.2/24']\n")).collect();
    for text in [
        RING.to_owned(),
        format!("{RING}[memory]\npacket_buffers = 16384"),
        format!("[memory]\npacket_buffers = 16384\n{ports}"),
    ] {
        let config = parse(&text);
        assert!(connection_window_bytes(&config) >= 100_000_000 / 8 / 10, "{text}");
        assert!(
            connection_window_line(&config).contains("104 Mbit/s"),
            "{}",
            connection_window_line(&config)
        );
    }
    let small = parse(&format!("{RING}[memory]\npacket_buffers = 2865"));
    assert_eq!(connection_window_bytes(&small), 1432 * 1428 / 2);
    assert!(connection_window_line(&small).contains("81 Mbit/s"), "{}", connection_window_line(&small));
}

/// The receive memory follows from the number of packet buffers, and windows begin small.
#[test]
fn receive_memory_follows_the_packet_buffers() {
    let tcp = |lines: &str| parse(&format!("{RING}{lines}\n")).tcp;
    // Half of the 29,313 buffers, with 1428 bytes each.
    assert_eq!(tcp("").receive_memory_bytes, 14_656 * 1428);
    assert_eq!(tcp("[memory]\npacket_buffers = 2865").receive_memory_bytes, 1432 * 1428);
    assert_eq!(tcp("[tcp]\nreceive_memory_bytes = '1G'").receive_memory_bytes, 1 << 30);
    assert_eq!(tcp("").receive_window_initial_bytes, 64 << 10);
    assert_eq!(tcp("[tcp]\nreceive_window_bytes = '16k'").receive_window_initial_bytes, 16 << 10);
}

#[test]
fn ip_is_what_the_file_says() {
    let ip = "hop_limit = 9\nfragments_datagrams_max = 3\nfragments_bytes_max = '1M'\n\
              fragments_timeout_ms = 5000\npath_mtu_entries_max = 7\n";
    let ip = parse(&format!("{RING}[ip]\n{ip}")).ip;
    assert_eq!((ip.hop_limit, ip.fragments_datagrams_max, ip.fragments_bytes_max), (9, 3, 1 << 20));
    assert_eq!((ip.fragments_timeout_ms, ip.path_mtu_entries_max), (5000, 7));
}

proptest! {
    #[test]
    fn a_whole_number_of_units_reads_back(
        n in 0u64..1 << 20,
        unit in prop::sample::select(vec![("", 0), ("k", 10), ("M", 20), ("G", 30)]),
    ) {
        prop_assert_eq!(parse_size(&format!("{n}{}", unit.0)), Ok(n << unit.1));
        prop_assert_eq!(parse_size(&read::show_size(n << unit.1)), Ok(n << unit.1));
    }

    #[test]
    fn sizes_and_tokens_never_panic(text in ".{0,80}") {
        let _ = parse_size(&text);
        if let Ok(token) = token_from_text(&text) {
            prop_assert!((1..=32).contains(&token.as_bytes().len()));
        }
    }
}
