//! Each command: what it asks the daemon for, and what it makes of the answer.

use serde_json::json;

use crate::daemon::Daemon;
use crate::{Run, alone, iwarpctl, with_stdin};

fn ok(daemon: &Daemon, arguments: &[&str]) -> Run {
    let run = iwarpctl(daemon.socket(), arguments);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{arguments:?}: {}", run.stdout);
    run
}

fn lab(daemon: &Daemon) {
    ok(daemon, &["region", "register", "lab", "--size", "64M", "--access", "remote-read,remote-write"]);
}

#[test]
fn status_fits_one_screen() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["status"]).stdout;
    assert_eq!(
        text,
        "iwarpd 0.1.0  state ok  up 1h02m  pid 4711  dpdk 22.11.11  config /etc/iwarpd/iwarpd.toml\n\
         hugepages  200 of 256 free, 2 MiB each, required  resident 50 MiB\n\
         worker 0  core 1  adaptive  busy 12.3 %  12.50 packets/burst\n\
         port p0  net_tap net_tap0  up  mtu 1500  10.77.0.2/24,fd77::2/64  rx 1250 packets, 1 MiB  \
         tx 900 packets, 64 KiB  missed 0\n\
         connections  1 established, 0 opening, 0 closing, 2 time-wait, at most 4096\n\
         regions  0 of 256, 64 MiB\n\
         pool packets  1100 of 8192 buffers in use, 256 reserved, 2176 bytes each\n"
    );
    let status = ok(&daemon, &["-j", "status"]).json();
    assert_eq!(
        status["hugepages"],
        json!({"required": true, "page_bytes": 2_097_152, "total": 256, "free": 200})
    );
    assert_eq!(status["workers"][0]["busy_permille"], 123);
}

#[test]
fn a_degraded_daemon_has_its_own_exit_code() {
    let daemon = Daemon::start();
    daemon.memory.lock().unwrap().degraded.push("no hugepages: regions are on ordinary pages".into());
    let run = iwarpctl(daemon.socket(), &["status"]);
    assert_eq!(run.code, 6);
    assert!(run.stdout.contains("state degraded"));
    assert!(run.stdout.ends_with("! no hugepages: regions are on ordinary pages\n"));
    let run = iwarpctl(daemon.socket(), &["status", "--json"]);
    assert_eq!((run.code, &run.json()["state"]), (6, &json!("degraded")));
}

#[test]
fn a_region_lives_and_dies() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "open sesame\n").unwrap();
    let text = ok(
        &daemon,
        &[
            "region",
            "register",
            "lab",
            "--size",
            "64M",
            "--access",
            "remote-write,remote-read,remote-write",
            "--token-file",
            token.to_str().unwrap(),
            "--allow",
            "10.77.0.0/24,fd77::1",
        ],
    );
    assert_eq!(text.stdout, "region lab  64 MiB  remote-read,remote-write  hugepages of 2 MiB\n");
    assert_eq!(daemon.memory.lock().unwrap().tokens["lab"], "6f70656e20736573616d65");

    let regions = ok(&daemon, &["region", "list", "-j"]).json();
    assert_eq!(
        regions,
        json!([{
            "name": "lab", "bytes": 67_108_864, "access": ["remote-read", "remote-write"], "backing": "hugepages",
            "page_bytes": 2_097_152, "token_required": true, "allow": ["10.77.0.0/24", "fd77::1/128"],
            "origin": "control", "grants": 0, "bytes_placed": 0, "bytes_fetched": 0,
            "instance": 1
        }])
    );
    assert_eq!(
        ok(&daemon, &["region", "list"]).stdout,
        "NAME  SIZE    ACCESS                    TOKEN  ALLOW                     GRANTS  PLACED  FETCHED  \
         BACKING             ORIGIN\n\
         lab   64 MiB  remote-read,remote-write  yes    10.77.0.0/24,fd77::1/128  0       0 B     0 B      \
         hugepages of 2 MiB  control\n"
    );
    assert!(ok(&daemon, &["region", "show", "lab"]).stdout.contains("bytes           67108864 (64 MiB)\n"));

    daemon.memory.lock().unwrap().grant("lab", 4);
    let run = iwarpctl(daemon.socket(), &["region", "deregister", "lab"]);
    assert_eq!(run.code, 1);
    assert_eq!(run.stderr, "error: region lab is in use\n  help: --force revokes its grants\n");
    let run = ok(&daemon, &["region", "deregister", "lab", "--force"]);
    assert_eq!(run.stdout, "region lab is gone, 4 grants revoked\n");
    assert_eq!(ok(&daemon, &["region", "list", "-j"]).json(), json!([]));
    lab(&daemon);
    daemon.memory.lock().unwrap().grant("lab", 1);
    let run = ok(&daemon, &["region", "deregister", "lab", "--force"]);
    assert_eq!(run.stdout, "region lab is gone, 1 grant revoked\n");
}

#[test]
fn registering_twice_is_refused() {
    let daemon = Daemon::start();
    lab(&daemon);
    let run =
        iwarpctl(daemon.socket(), &["-j", "region", "register", "lab", "-s", "1k", "-a", "remote-read"]);
    assert_eq!(run.code, 1);
    assert_eq!(run.error(), json!({"kind": "exists", "message": "there is a region lab", "exit_code": 1}));
}

#[test]
fn objects_that_are_not_there() {
    let daemon = Daemon::start();
    for arguments in [&["region", "show", "x"][..], &["region", "deregister", "x"], &["conn", "show", "1"]] {
        let run = iwarpctl(daemon.socket(), arguments);
        assert_eq!(run.code, 4, "{arguments:?}");
        assert!(run.stderr.starts_with("error: "), "{}", run.stderr);
    }
    let run = iwarpctl(daemon.socket(), &["stats", "nothing"]);
    assert_eq!(run.code, 4);
    assert!(run.stderr.contains("the groups are: tcp, rdmap, ddp"), "{}", run.stderr);
}

#[test]
fn a_refusal_of_permission_has_its_own_exit_code() {
    let daemon = Daemon::start();
    let run = iwarpctl(daemon.socket(), &["call", "forbidden", "-j"]);
    assert_eq!((run.code, &run.error()["kind"]), (5, &json!("not_permitted")));
}

#[test]
fn connections() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["conn", "list"]).stdout;
    let row: Vec<&str> =
        text.lines().nth(1).unwrap().split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!(
        row,
        [
            "17",
            "ESTABLISHED",
            "10.77.0.2:7400",
            "[fd77::1]:40000",
            "region",
            "-",
            "lab",
            "1 MiB",
            "4 KiB",
            "42 µs",
            "2",
            "bbr",
            "1.50 s"
        ]
    );
    let shown = ok(&daemon, &["conn", "show", "17"]).stdout;
    for line in [
        "ssthresh_bytes   none",
        "wscale           7,10",
        "congestion       bbr",
        "ecn              off",
        "pacing           12.5 MB/s",
        "delivery         11 MB/s, limited by the application",
        "path_mtu         1500",
        "bbr.state        probe-bw",
        "bbr.bandwidth    12 MB/s",
        "bbr.pacing_gain  125 %",
        "rdma.region          lab",
        "rdma.last_terminate  -",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    let all = ok(&daemon, &["conn", "list", "-j"]).json();
    let one = ok(&daemon, &["conn", "show", "17", "-j"]).json();
    assert_eq!(all, json!([one]));
    assert_eq!((&one["rtt_us"], &one["rdma"]["ird"]), (&json!(42), &json!(128)));
}

#[test]
fn connections_are_filtered() {
    let daemon = Daemon::start();
    for (arguments, listed) in [
        (&[][..], true),
        (&["--state", "established"], true),
        (&["--state", "CLOSING,ESTABLISHED"], true),
        (&["--state", "fin-wait-1"], false),
        (&["--peer", "fd77::/64"], true),
        (&["--peer", "fd77::1"], true),
        (&["--peer", "10.77.0.0/24"], false),
        (&["--region", "lab"], true),
        (&["--region", "other"], false),
        (&["--app", "3"], false),
        (&["--region", "lab", "--peer", "fd78::/64"], false),
        (&["--region", "lab", "--peer", "fd77::/64", "--state", "established"], true),
    ] {
        let arguments = [&["-j", "conn", "list"][..], arguments].concat();
        let ids: Vec<_> = ok(&daemon, &arguments)
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|object| object["id"].clone())
            .collect();
        assert_eq!(ids == [17], listed, "{arguments:?}: {ids:?}");
    }
    for wrong in [["--state", "open"], ["--peer", "10.77.0.1/24"], ["--region", ""]] {
        assert_eq!(iwarpctl(daemon.socket(), &[&["conn", "list"][..], &wrong].concat()).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_connection_fits_one_line() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["conn", "list", "--oneline"]).stdout;
    assert_eq!(text.lines().count(), 1, "{text}");
    for pair in ["id 17 ", "state ESTABLISHED ", "remote [fd77::1]:40000 ", "wscale 7,10", "rdma.region lab"]
    {
        assert!(text.contains(pair), "{pair:?} is not in {text}");
    }
    assert!(!text.contains("null"), "{text}");
}

#[test]
fn connections_are_closed_by_number_peer_or_listener() {
    let daemon = Daemon::start();
    let asked = || serde_json::to_value(daemon.memory.lock().unwrap().close_asked.take().unwrap()).unwrap();
    for (arguments, params) in [
        (&["17"][..], json!({"id": 17})),
        (&["--peer", "fd77::1"], json!({"peer": "fd77::1/128"})),
        (&["--peer", "fd77::/64"], json!({"peer": "fd77::/64"})),
        (&["--listener", "7400"], json!({"listener": 7400})),
    ] {
        let arguments = [&["conn", "close"][..], arguments].concat();
        assert_eq!(
            ok(&daemon, &arguments).stdout,
            "ID  LOCAL           REMOTE           SERVICE\n\
             17  10.77.0.2:7400  [fd77::1]:40000  region\n\
             1 connection closed\n"
        );
        assert_eq!(asked(), params);
        let closed = ok(&daemon, &[&arguments[..], &["--json"]].concat()).json();
        let row =
            json!({"id": 17, "local": "10.77.0.2:7400", "remote": "[fd77::1]:40000", "service": "region"});
        assert_eq!(closed, json!({"count": 1, "closed": [row]}));
    }
    for arguments in [&["18"][..], &["--peer", "10.77.0.0/24"], &["--listener", "7"]] {
        let run = iwarpctl(daemon.socket(), &[&["conn", "close"][..], arguments].concat());
        assert_eq!((run.code, run.stderr.as_str()), (4, "error: there is no such connection\n"));
    }
    asked();
    for arguments in [
        &[][..],
        &["17", "--peer", "fd77::1"],
        &["--peer", "fd77::1", "--listener", "7400"],
        &["--peer", "nobody"],
        &["--listener", "0"],
        &["--listener", "65536"],
    ] {
        let run = iwarpctl(daemon.socket(), &[&["conn", "close"][..], arguments].concat());
        assert_eq!(run.code, 2, "{arguments:?}");
    }
    assert_eq!(daemon.memory.lock().unwrap().close_asked, None, "a wrong command line closes nothing");
}

#[test]
fn ports() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["port", "list"]).stdout;
    assert!(text.starts_with("NAME  DRIVER   DEVICE    LINK  SPEED    MAC"), "{text}");
    assert!(text.contains("p0    net_tap  net_tap0  up    10 Gb/s  02:00:00:00:00:01"), "{text}");
    assert_eq!(
        ok(&daemon, &["port", "stats"]).stdout,
        "p0 statistics:\n     rx_good_packets: 5\n     imissed: 0\n"
    );
    assert_eq!(
        ok(&daemon, &["port", "stats", "p0", "--nonzero"]).stdout,
        "p0 statistics:\n     rx_good_packets: 5\n"
    );
    assert_eq!(
        ok(&daemon, &["port", "stats", "-j"]).stdout,
        "[{\"name\":\"p0\",\"counters\":{\"rx_good_packets\":5,\"imissed\":0}}]\n"
    );
}

#[test]
fn a_port_in_detail() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["port", "show", "p0"]).stdout;
    let has = |name: &str, value: &str| {
        text.lines().any(|line| {
            line.split_once(char::is_whitespace).is_some_and(|(n, v)| n == name && v.trim() == value)
        })
    };
    for (name, value) in [
        ("driver", "pci, net_e1000_igb"),
        ("bus_address", "0000:01:00.0"),
        ("kernel_driver", "vfio-pci"),
        ("firmware", "3.16, 0x0"),
        ("numa_node", "1"),
        ("offloads_requested", "rx-tcp-checksum,tx-segmentation"),
        ("offloads_granted", "rx-tcp-checksum"),
        ("queues", "1 receive, 1 transmit, at most 8"),
        ("rss_functions", "ipv4-tcp,ipv6-tcp"),
        ("interrupts", "one per receive queue"),
        (
            "sharing",
            "the kernel has the addresses, too: 66 ports reserved, source ports 65472-65535, 1 refused",
        ),
        ("super_frames", "received 10 of 44.1 segments (2 cut elsewhere, 1 too long), sent none"),
        ("kernel_side", "rx on, tx on, tso on, gro off; segments of the interface; receive buffer 416 KiB"),
        ("link_history", "down 9.00 s ago,up 1.50 s ago"),
    ] {
        assert!(has(name, value), "{name}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&ok(&daemon, &["port", "show", "p0", "-j"]).stdout).unwrap();
    assert_eq!((&json["numa_node"], &json["interrupts"]), (&1.into(), &"per_queue".into()));
    assert_eq!(json["link_history"][1], serde_json::json!({"age_ms": 1500, "link": "up"}));
    assert_eq!(iwarpctl(daemon.socket(), &["port", "show", "p9"]).code, 4);
}

#[test]
fn counters() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["stats"]).stdout;
    assert_eq!(
        text,
        "worker 0  core 1  adaptive  busy 12.3 %  12.50 packets/burst\n\
         GROUP  COUNTER         VALUE\n\
         tcp    segments_out    800\n\
         tcp    resets_in       0\n\
         rdmap  in_rdma_writes  10\n\
         ddp    bad_stag        0\n"
    );
    let text = ok(&daemon, &["stats", "tcp", "ddp", "--nonzero", "--details"]).stdout;
    assert!(text.contains("tcp    segments_out  800    tcpOutSegs  About segments_out."), "{text}");
    assert!(!text.contains("resets_in") && !text.contains("ddp") && !text.contains("rdmap"), "{text}");
    let stats = ok(&daemon, &["stats", "-j"]).json();
    assert_eq!(stats["groups"][1]["counters"][0]["name"], "in_rdma_writes");
    assert_eq!(stats["workers"][0]["rx_packets_per_burst_x100"], 1250);
}

#[test]
fn counters_are_watched() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["stats", "rdmap", "--watch", "--interval", "0.05", "--count", "3"]).stdout;
    let reports: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(reports.len(), 3);
    assert!(!reports[0].contains("RATE") && reports[1].contains("RATE"), "{text}");
    assert!(reports[2].contains("rdmap  in_rdma_writes  30"), "{text}");
    // Ten writes in at least 50 ms are at most 200 a second.
    let rate: f64 = reports[2].lines().nth(2).unwrap().split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(rate > 0.0 && rate <= 200.0, "{rate}");
    let lines = ok(&daemon, &["-j", "stats", "-w", "--interval=0.01", "--count=4"]).stdout;
    let reports: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counters = reports.iter().map(|stats| &stats["groups"][1]["counters"][0]);
    let values: Vec<u64> = counters.clone().map(|counter| counter["value"].as_u64().unwrap()).collect();
    assert_eq!(values, [40, 50, 60, 70]);
    assert!(
        reports[0].get("elapsed_ms").is_none()
            && counters.clone().next().unwrap().get("per_second").is_none()
    );
    let mut earlier = 0;
    for (stats, counter) in reports.iter().zip(counters).skip(1) {
        // Ten writes in the time that the line has, which is rounded to a millisecond.
        let (elapsed_ms, rate) =
            (stats["elapsed_ms"].as_f64().unwrap(), counter["per_second"].as_f64().unwrap());
        assert!(rate <= 10_000.0 / elapsed_ms && rate >= 10_000.0 / (elapsed_ms + 1.0) - 0.001, "{stats}");
        let time_ms = stats["time_ms"].as_u64().unwrap();
        let time: humantime::Timestamp = stats["time"].as_str().unwrap().parse().unwrap();
        assert_eq!(time.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis(), time_ms.into());
        assert!(time_ms >= earlier, "{stats}");
        earlier = time_ms;
    }
}

#[test]
fn drops() {
    let daemon = Daemon::start();
    let text = ok(&daemon, &["drops"]).stdout;
    assert_eq!(
        text,
        "LAYER  REASON        COUNT  MEANING\nip     bad_checksum  3      Frames with bad_checksum.\n"
    );
    assert!(ok(&daemon, &["drops", "--all"]).stdout.contains("no_listener"));
    assert_eq!(ok(&daemon, &["drops", "-j"]).json().as_array().unwrap().len(), 2);
}

#[test]
fn any_method_can_be_called() {
    let daemon = Daemon::start();
    lab(&daemon);
    let run = ok(&daemon, &["-j", "call", "region.show", "{\"name\":\"lab\"}"]);
    assert_eq!(run.json()["bytes"], 67_108_864);
    let run = with_stdin(daemon.socket(), &["call", "region.show", "-"], b"{\"name\": \"lab\"}\n");
    assert_eq!((run.code, &run.json()["name"]), (0, &json!("lab")));
    let run = iwarpctl(daemon.socket(), &["call", "no.such"]);
    assert_eq!((run.code, run.stderr.as_str()), (1, "error: no method no.such\n"));
    let run = iwarpctl(daemon.socket(), &["call", "status", "{"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("not JSON"), "{}", run.stderr);
}

const CONFIG: &str = r#"
[memory]
hugepages = "prefer"
[[port]]
name = "p0"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.2/24"]
[workers]
cores = [0]
[[listener]]
port = 7400
service = "region"
"#;

#[test]
fn a_good_configuration_says_what_it_costs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("good.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let file = file.to_str().unwrap();
    let run = alone(&["config", "check", file]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.starts_with(&format!("{file}: ok\nMEMORY")), "{}", run.stdout);
    let checked = alone(&["config", "check", file, "-j"]).json();
    assert_eq!((&checked["valid"], &checked["file"]), (&json!(true), &json!(file)));
    let sum: u64 = checked["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["kind"] == "hugepages")
        .map(|item| item["bytes"].as_u64().unwrap())
        .sum();
    assert!(sum > 0);
    assert_eq!(checked["hugepage_bytes"], sum);
}

#[test]
fn a_wrong_configuration_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wrong.toml");
    std::fs::write(&file, CONFIG.replace("name = \"p0\"", "name = \"p0\"\nmtu = 99").replace("7400", "0"))
        .unwrap();
    let file = file.to_str().unwrap();
    let run = alone(&["config", "check", file]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("mtu = 99") && run.stderr.contains("port = 0"), "{}", run.stderr);
    let run = alone(&["config", "check", file, "-j"]);
    let error = run.error();
    assert_eq!((&error["kind"], &error["exit_code"]), (&json!("invalid_config"), &json!(1)));
    let lines: Vec<u64> = error["mistakes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mistake| mistake["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [6, 13]);
    let run = alone(&["config", "check", "--format", "short", file]);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.lines().count()), (1, "", 2), "{}", run.stderr);
    for (mistake, line) in run.stderr.lines().zip(lines) {
        assert!(mistake.starts_with(&format!("{file}:{line}:")), "{mistake}");
    }
    assert_eq!(alone(&["config", "check", "/nonexistent.toml"]).code, 1);
}

#[test]
fn hugepages_are_reserved_on_the_machine_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
    std::fs::create_dir_all(&pool).unwrap();
    for (name, pages) in [("nr", "900\n"), ("free", "800\n"), ("resv", "0\n")] {
        std::fs::write(pool.join(format!("{name}_hugepages")), pages).unwrap();
    }
    let file = folder.path().join("iwarpd.toml");
    std::fs::write(&file, "[[port]]\ndriver = 'ring'\naddresses = ['10.0.0.2/24']\n").unwrap();
    let (file, root) = (file.to_str().unwrap(), folder.path().to_str().unwrap());
    let run = alone(&["config", "reserve", file, "--root", root]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains(" are needed and 800 are free; the pool has 900\n"), "{}", run.stdout);
    let json = alone(&["-j", "config", "reserve", file, "--root", root]).json();
    assert_eq!((json["pool_before"].as_u64(), json["pool"].as_u64()), (Some(900), Some(900)));
    std::fs::write(pool.join("free_hugepages"), "1\n").unwrap();
    let run = alone(&["-j", "config", "reserve", file, "--root", root]);
    assert_eq!((run.code, run.error()["kind"].as_str()), (1, Some("hugepages")));
    let raised: u64 = std::fs::read_to_string(pool.join("nr_hugepages")).unwrap().trim().parse().unwrap();
    assert_eq!(raised, 900 + json["needed"].as_u64().unwrap() - 1);
}
