//! Each finding is proven on a machine that is a folder of files, with the fact that causes it and without.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use iwarp_config::Machine;

use super::*;

/// A configuration, and a machine of two NUMA nodes on which nothing is wrong with it.
struct Bench {
    folder: tempfile::TempDir,
    config: String,
}

const PCI: &str = "[memory]\npacket_buffers = 16384\n[workers]\ncores = [2, 3]\nidle = 'adaptive'\n\
                   [[port]]\ndriver = 'pci'\naddress = '0000:3b:00.0'\naddresses = ['10.0.0.2/24']\n\
                   [control]\ngroup = 'iwarp'\n[[listener]]\nport = 7400\nservice = 'region'\n";

const NODE: &str = "sys/devices/system/node";
const POOL: &str = "hugepages/hugepages-2048kB";
const CARD: &str = "sys/bus/pci/devices/0000:3b:00.0";

impl Bench {
    fn new(config: &str) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap(), config: config.to_owned() };
        bench.file("sys/devices/system/cpu/online", "0-3\n");
        bench.file("sys/devices/system/cpu/isolated", "2-3\n");
        for core in 0..4 {
            let cpu = format!("sys/devices/system/cpu/cpu{core}");
            bench.file(&format!("{cpu}/cpufreq/scaling_governor"), "performance\n");
            for (state, name, latency) in [(0, "POLL", 0), (1, "C1", 2)] {
                bench.file(&format!("{cpu}/cpuidle/state{state}/name"), name);
                bench.file(&format!("{cpu}/cpuidle/state{state}/latency"), &latency.to_string());
                bench.file(&format!("{cpu}/cpuidle/state{state}/disable"), "0\n");
            }
        }
        bench.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024\n");
        bench.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1024\n");
        bench.file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "0\n");
        for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
            bench.file(&format!("{NODE}/node{node}/cpulist"), cpus);
            bench.file(&format!("{NODE}/node{node}/{POOL}/nr_hugepages"), "512\n");
            bench.file(&format!("{NODE}/node{node}/{POOL}/free_hugepages"), "512\n");
        }
        bench.file("sys/kernel/iommu_groups/7/type", "DMA\n");
        bench.file("sys/bus/pci/drivers/vfio-pci/bind", "");
        bench.file("sys/bus/pci/drivers/ice/bind", "");
        bench.file(&format!("{CARD}/class"), "0x020000\n");
        bench.file(&format!("{CARD}/numa_node"), "1\n");
        bench.bind("vfio-pci");
        bench.file("sys/class/net/eth0/mtu", "1500\n");
        bench.file("sys/class/net/eth0/flags", "0x1003\n");
        bench.file("sys/class/net/eth0/carrier", "1\n");
        bench.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
        bench.file("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet\n");
        bench.file(
            "proc/self/limits",
            "Limit  Soft Limit\nMax open files            65536    65536    files\n",
        );
        bench.file("dev/net/tun", "");
        bench.file("proc/self/status", "CapEff:\t000001ffffffffff\n");
        bench.file("etc/group", "iwarp:x:77:\n");
        bench.file("run/x", "");
        bench.file("usr/lib/x86_64-linux-gnu/librte_eal.so.23", "");
        bench.file("usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_bus_pci.so.23", "");
        bench
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.folder.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    fn bind(&self, driver: &str) {
        let link = self.folder.path().join(CARD).join("driver");
        let _ = fs::remove_file(&link);
        symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
    }

    fn examine(&self) -> Examination {
        let file = self.folder.path().join("iwarpd.toml");
        fs::write(&file, &self.config).unwrap();
        examine(&file, &Machine::at(self.folder.path()), None)
    }

    /// Expects one finding that is not `ok`: of this check and level, with these words and this remedy.
    #[track_caller]
    fn finds(&self, check: &str, level: Level, message: &str, remedy: &str) {
        let examination = self.examine();
        let bad: Vec<_> = examination.findings.iter().filter(|finding| finding.level != Level::Ok).collect();
        let [finding] = bad[..] else { panic!("not one: {bad:#?}") };
        assert_eq!((finding.check, finding.level, examination.state), (check, level, level), "{finding:?}");
        assert!(finding.message.contains(message), "{:?} lacks {message:?}", finding.message);
        let helps = finding.remedy.clone().unwrap_or_default();
        assert!(helps.contains(remedy), "{helps:?} lacks {remedy:?}");
        let positive =
            examination.findings.iter().any(|other| other.check == check && other.level == Level::Ok);
        assert!(!positive || ["interfaces", "numa", "dpdk"].contains(&check), "{check} is well and not well");
    }

    #[track_caller]
    fn warns(&self, check: &str, message: &str, remedy: &str) {
        self.finds(check, Level::Warning, message, remedy);
    }

    #[track_caller]
    fn refuses(&self, check: &str, message: &str, remedy: &str) {
        self.finds(check, Level::Error, message, remedy);
    }
}

fn on_interface(config: &str) -> String {
    config.replace("driver = 'pci'\naddress = '0000:3b:00.0'", "driver = 'af_packet'\ninterface = 'eth0'")
}

#[test]
fn nothing_is_wrong_with_a_good_machine() {
    for config in [PCI.to_owned(), on_interface(PCI)] {
        let examination = Bench::new(&config).examine();
        assert_eq!((examination.state, examination.exit()), (Level::Ok, Exit::Ok), "{examination:#?}");
        assert!(examination.findings.iter().all(|finding| finding.remedy.is_none()));
        let checks: Vec<_> = examination.findings.iter().map(|finding| finding.check).collect();
        for check in [
            "config",
            "cores",
            "group",
            "folders",
            "hugepages",
            "numa",
            "iommu",
            "dpdk",
            "isolation",
            "c-states",
            "governor",
            "clock",
            "descriptors",
        ] {
            assert!(checks.contains(&check), "{check} is not in {checks:?}");
        }
    }
}

#[test]
fn hugepages() {
    let bench = Bench::new(PCI);
    bench.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1\n");
    bench.refuses("hugepages", "hugepages of 2 MiB are needed and 1 are free", "sysctl vm.nr_hugepages=");
    let prefers = Bench::new(&PCI.replace("[memory]\n", "[memory]\nhugepages = 'prefer'\n"));
    prefers.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1\n");
    prefers.warns("hugepages", "the rest goes to ordinary pages", "sysctl -w vm.nr_hugepages=");
}

#[test]
fn hugepages_of_the_numa_nodes() {
    let bench = Bench::new(PCI);
    // Nothing runs on node 0.
    bench.file(&format!("{NODE}/node0/{POOL}/nr_hugepages"), "0\n");
    assert_eq!(bench.examine().state, Level::Ok);
    bench.file(&format!("{NODE}/node1/{POOL}/nr_hugepages"), "0\n");
    bench.warns("numa", "NUMA node1: 512 of 0 hugepages", &format!("> /{NODE}/node1/{POOL}/nr_hugepages"));
}

#[test]
fn a_card_far_from_its_workers() {
    let bench = Bench::new(PCI);
    bench.file(&format!("{CARD}/numa_node"), "0\n");
    bench.warns(
        "numa",
        "the card 0000:3b:00.0 is at NUMA node 0",
        "workers.cores from those of the node: [0, 1]",
    );
    // A machine with one node says -1.
    bench.file(&format!("{CARD}/numa_node"), "-1\n");
    assert_eq!(bench.examine().state, Level::Ok);
}

#[test]
fn the_iommu() {
    let bench = Bench::new(PCI);
    bench.remove("sys/kernel/iommu_groups");
    bench.warns("iommu", "the IOMMU is off", "intel_iommu=on iommu=pt");
    let kernel = Bench::new(&on_interface(PCI));
    kernel.remove("sys/kernel/iommu_groups");
    assert_eq!(kernel.examine().state, Level::Ok, "without a card it is not needed");
}

#[test]
fn the_driver_of_a_card() {
    let bench = Bench::new(PCI);
    bench.bind("ice");
    bench.refuses(
        "pci",
        "the kernel driver ice owns the PCI device 0000:3b:00.0",
        "echo 0000:3b:00.0 > /sys/bus/pci/drivers_probe",
    );
    bench.remove(CARD);
    bench.refuses("pci", "no PCI device 0000:3b:00.0", "");
}

#[test]
fn cores_and_their_isolation() {
    let bench = Bench::new(PCI);
    bench.file("sys/devices/system/cpu/isolated", "3\n");
    bench.warns(
        "isolation",
        "the workers' cores 2 are not isolated",
        "isolcpus=2,3 nohz_full=2,3 rcu_nocbs=2,3",
    );
    let absent = Bench::new(&PCI.replace("[2, 3]", "[2, 3, 9]"));
    absent.file("sys/devices/system/cpu/isolated", "2,3,9\n");
    absent.file(&format!("{NODE}/node1/cpulist"), "2-3,9\n");
    absent.refuses("cores", "CPU 9 is not online", "lscpu -e");
}

#[test]
fn c_states() {
    let bench = Bench::new(PCI);
    let state = "sys/devices/system/cpu/cpu3/cpuidle/state2";
    bench.file(&format!("{state}/name"), "C6\n");
    bench.file(&format!("{state}/latency"), "133\n");
    bench.file(&format!("{state}/disable"), "0\n");
    bench.warns("c-states", "C6 of core 3 (133 µs)", "cpupower -c 2,3 idle-set -D 10");
    bench.file(&format!("{state}/disable"), "1\n");
    assert_eq!(bench.examine().state, Level::Ok);
    bench.file(&format!("{state}/disable"), "0\n");
    let spins = Bench { folder: bench.folder, config: PCI.replace("adaptive", "spin") };
    assert_eq!(spins.examine().state, Level::Ok, "a core that polls never idles");
}

#[test]
fn the_governor() {
    let bench = Bench::new(PCI);
    bench.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    assert_eq!(bench.examine().state, Level::Ok, "core 0 has no worker");
    bench.file("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave\n");
    bench.warns("governor", "cores 2 is powersave", "cpupower -c 2 frequency-set -g performance");
}

#[test]
fn the_clock_source() {
    let bench = Bench::new(PCI);
    let folder = "sys/devices/system/clocksource/clocksource0";
    bench.file(&format!("{folder}/current_clocksource"), "hpet\n");
    bench.warns("clock", "the clock source is hpet", &format!("echo tsc > /{folder}/current_clocksource"));
    bench.file(&format!("{folder}/available_clocksource"), "hpet acpi_pm\n");
    bench.warns("clock", "the clock source is hpet", "tsc=reliable");
}

#[test]
fn interfaces_and_mtu() {
    let bench = Bench::new(&on_interface(PCI));
    bench.file("sys/class/net/eth0/flags", "0x1002\n");
    bench.warns("interfaces", "the interface eth0 is down", "ip link set eth0 up");
    bench.file("sys/class/net/eth0/flags", "0x1003\n");
    bench.file("sys/class/net/eth0/carrier", "0\n");
    bench.warns("interfaces", "the interface eth0 has no link", "ethtool eth0");
    bench.remove("sys/class/net/eth0");
    bench.refuses("interfaces", "there is no interface eth0", "");
    let long = Bench::new(&on_interface(PCI).replace("driver =", "mtu = 9000\ndriver ="));
    let examination = long.examine();
    let mtu = examination.findings.iter().find(|finding| finding.check == "mtu").unwrap();
    assert_eq!((mtu.level, examination.exit()), (Level::Error, Exit::Failed));
    assert!(mtu.message.contains("MTU 9000 is more than that of the interface eth0, 1500"), "{mtu:?}");
}

#[test]
fn limits_of_packet_sockets() {
    let bench = Bench::new(&on_interface(PCI));
    bench.file("proc/sys/net/core/rmem_max", "212992\n");
    assert_eq!(bench.examine().state, Level::Ok, "root passes the limit");
    bench.file("proc/self/status", "CapEff:\t0000000000002000\n");
    bench.warns("receive-buffer", "gives 212992 bytes of receive buffer, not 4194304", "rmem_max=4194304");
    bench.file("proc/sys/net/core/rmem_max", "4194304\n");
    assert_eq!(bench.examine().state, Level::Ok, "{:#?}", bench.examine());
}

#[test]
fn source_ports_beside_those_of_the_kernel() {
    let of_kernel = |more: &str| {
        let config = on_interface(PCI);
        let (before, after) = config.split_once("addresses = ").unwrap();
        let after = after.split_once('\n').unwrap().1;
        format!("{before}addresses = 'kernel'\n{more}\n{after}")
    };
    let bench = Bench::new(&of_kernel(""));
    bench.file("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
    assert_eq!(bench.examine().state, Level::Ok, "{:#?}", bench.examine());
    bench.file("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n");
    bench.warns("source-ports", "to programs, too (1024-65535)", "ip_local_reserved_ports=65472-65535");
    let bench = Bench::new(&of_kernel("source_ports = '60000-61000'"));
    bench.file("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
    bench.warns("source-ports", "60000-61000 to programs, too", "outside of that range");
}

/// Without them the start fails with an error of DPDK.
#[test]
fn device_and_capability_of_a_tap() {
    let tap = PCI.replace("driver = 'pci'\naddress = '0000:3b:00.0'", "driver = 'tap'\ninterface = 'iw0'");
    let bench = Bench::new(&tap);
    assert_eq!(bench.examine().state, Level::Ok, "{:#?}", bench.examine());
    bench.file("proc/self/status", "CapEff:\t0000000000000000\n");
    bench.refuses("interfaces", "takes CAP_NET_ADMIN, which this process lacks", "--cap-add NET_ADMIN");
    bench.file("proc/self/status", "CapEff:\t0000000000001000\n");
    bench.remove("dev/net/tun");
    bench.refuses(
        "interfaces",
        "/dev/net/tun, by which the daemon makes a TAP, cannot be opened",
        "modprobe tun",
    );
}

#[test]
fn groups_and_folders() {
    let bench = Bench::new(PCI);
    bench.file("etc/group", "root:x:0:\n");
    bench.refuses("group", "no group `iwarp`", "");
    let bench = Bench::new(&PCI.replace("[control]\n", "[control]\nsocket = '/none/iwarpd/s'\n"));
    bench.refuses("folders", "no folder /none", "");
}

#[test]
fn descriptors() {
    let bench = Bench::new(&format!("{PCI}[limits]\nregions_max = 2000\n"));
    bench.file(
        "proc/self/limits",
        "Max open files            1024                 4096                 files\n",
    );
    bench.warns("descriptors", "may open 1024 files; regions and clients can take 2192", "LimitNOFILE=2192");
}

#[test]
fn dpdk_and_its_drivers() {
    let bench = Bench::new(PCI);
    bench.remove("usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_bus_pci.so.23");
    bench.warns("dpdk", "librte_bus_pci is not installed", "apt-get install librte-meta-bus");
    bench.remove("usr/lib/x86_64-linux-gnu/librte_eal.so.23");
    bench.warns("dpdk", "DPDK's libraries are not where", "apt-get install");
    bench.file("usr/lib64/librte_eal.so.21", "");
    bench.warns("dpdk", "DPDK 20.11 is too old", "22.11 or newer");
    let bench = Bench::new(&on_interface(PCI));
    assert_eq!(bench.examine().state, Level::Ok, "our own driver: {:#?}", bench.examine());
    let bench = Bench::new(&on_interface(PCI).replace("'af_packet'", "'dpdk-af_packet'"));
    bench.warns("dpdk", "librte_net_af_packet is not installed", "apt-get install");
}

/// A worker that always polls leaves its core to nobody.
#[test]
fn pollers_on_every_core() {
    let on = |cores: &str, idle: &str| {
        Bench::new(&PCI.replace("[2, 3]", cores).replace("'adaptive'", idle)).examine().findings
    };
    let of =
        |findings: Vec<Finding>| findings.into_iter().find(|finding| finding.check == "pollers").unwrap();
    assert_eq!(of(on("[2, 3]", "'spin'")).level, Level::Ok);
    assert_eq!(of(on("[0, 1, 2, 3]", "'adaptive'")).level, Level::Ok);
    let finding = of(on("[0, 1, 2, 3]", "'spin'"));
    assert_eq!(finding.level, Level::Warning);
    assert!(finding.message.contains("on each of the 4 cores"), "{finding:?}");
}

/// Of the ports of a daemon that runs.
#[test]
fn frames_of_many_segments() {
    let bench = Bench::new(PCI);
    let machine = Machine::at(bench.folder.path());
    let details = |too_long: u64, [rx, tx, tso, gro]: [bool; 4]| -> PortDetails {
        serde_json::from_value(serde_json::json!({
            "port": { "name": "p0", "driver": "af_packet", "device": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500,
                "link": "up", "interface": null, "speed_mbps": 0, "addresses": [], "rx_queues": 1, "tx_queues": 1,
                "offloads": [], "rx_packets": 0, "tx_packets": 0, "rx_bytes": 0, "tx_bytes": 0, "rx_missed": 0,
                "rx_errors": 0, "tx_errors": 0, "rx_nombuf": 0 },
            "device_name": "eth0", "firmware": null, "bus_address": null, "kernel_driver": null, "numa_node": null,
            "offloads_requested": [], "offloads_granted": [], "queues_max": 64, "rss_functions": [],
            "interrupts": "per_queue", "link_history": [],
            "super_frames": { "rx_frames": 0, "rx_segments": 0, "rx_guesses_missed": 0, "rx_too_long": too_long,
                "tx_frames": 0, "tx_segments": 0 },
            "kernel_side": { "receive_buffer_bytes": null, "rx_checksum": rx, "rx_merging": gro, "tx_checksum": tx,
                "tx_segmentation": tso },
        }))
        .unwrap()
    };
    let warnings = |details: PortDetails| -> Vec<(&str, String)> {
        let findings = traffic::examine(&[details], &machine);
        assert!(findings.len() >= 2, "{findings:?}");
        let bad = findings.into_iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.check, finding.message + ": " + &finding.remedy.unwrap())).collect()
    };
    let has = |found: &[(&str, String)], check: &str, words: &str| {
        found.iter().any(|(of, text)| *of == check && text.contains(words))
    };
    assert_eq!(warnings(details(0, [true; 4])), []);
    let found = warnings(details(3, [true; 4]));
    assert!(found.len() == 1 && has(&found, "frame-length", "gso_max_size 65536"), "{found:?}");
    // A virtual interface: its other end merges.
    let found = warnings(details(0, [false, true, false, false]));
    assert!(found.len() == 1 && has(&found, "offloads", "ethtool -K eth0 tso on"), "{found:?}");
    // Without checksums there is no segmentation either.
    let found = warnings(details(0, [true, false, false, true]));
    assert!(found.len() == 1 && has(&found, "offloads", "ethtool -K eth0 tx on"), "{found:?}");
    bench.file("sys/class/net/eth0/device/vendor", "0x8086\n");
    let found = warnings(details(0, [false, true, true, false]));
    assert!(found.len() == 2 && has(&found, "offloads", "eth0 gro on"), "{found:?}");
}

/// A file with mistakes is reported as a whole; nothing else can be said.
#[test]
fn a_wrong_configuration() {
    let bench = Bench::new("[[port]]\nmtu = 1\nbogus = 2\n");
    let examination = bench.examine();
    assert_eq!(examination.exit(), Exit::Failed);
    assert!(examination.findings.len() > 1, "{examination:#?}");
    for finding in &examination.findings {
        assert_eq!((finding.check, finding.level), ("config", Level::Error));
        assert!(finding.remedy.as_ref().is_some_and(|remedy| !remedy.is_empty()), "{finding:?}");
        assert!(finding.message.contains("iwarpd.toml:"), "{finding:?}");
    }
    let missing = examine(Path::new("/none/iwarpd.toml"), &Machine::at(bench.folder.path()), None);
    assert_eq!((missing.exit(), missing.findings.len()), (Exit::Failed, 1));
}
