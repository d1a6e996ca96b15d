//! Comparison with the machine: everything that it lacks is reported at once, at the key that requires it. The machine
//! is a folder of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::{Config, ConfigErrors, Machine, Source};

/// Returns a machine with CPUs 0 to 3 and 8, 100 free hugepages, a group, an Ethernet interface, a free TAP and one in
/// use.
fn machine() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let file = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    file("sys/devices/system/cpu/online", "0-3,8\n");
    file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "120\n");
    file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "110\n");
    file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "10\n");
    file("sys/class/net/eth0/mtu", "1500\n");
    file("sys/class/net/tap0/tun_flags", "0x1002\n");
    file("sys/class/net/tap1/tun_flags", "0x1002\n");
    file("sys/class/net/tap2/tun_flags", "0x1002\n");
    let drivers = [
        ("0.0", "vfio-pci"),
        ("0.2", "i40e"),
        ("0.3", "mlx5_core"),
        ("0.4", "mlx5-vfio-pci"),
        ("0.5", "virtio-pci"),
    ];
    for (function, driver) in drivers {
        file(&format!("sys/bus/pci/drivers/{driver}/bind"), "");
        file(&format!("sys/bus/pci/devices/0000:3b:0{function}/class"), "0x020000\n");
        let link = root.join(format!("sys/bus/pci/devices/0000:3b:0{function}/driver"));
        symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
    }
    file("sys/bus/pci/devices/0000:3b:00.1/class", "0x020000\n");
    file("sys/bus/pci/devices/0000:00:1f.2/class", "0x010601\n");
    file("dev/net/tun", "");
    file("etc/group", "root:x:0:\niwarp:x:77:\n");
    file("run/some", "");
    file("proc/4711/comm", "qemu\n");
    file("proc/4711/fdinfo/9", "pos:\t0\nflags:\t0104002\niff:\ttap1\n");
    fs::create_dir_all(root.join("proc/4711/fd")).unwrap();
    symlink("/dev/net/tun", root.join("proc/4711/fd/9")).unwrap();
    // The same device in another mount namespace.
    file("proc/4712/comm", "iwarpd\n");
    file("proc/4712/fdinfo/7", "pos:\t0\niff:\ttap2\n");
    fs::create_dir_all(root.join("proc/4712/fd")).unwrap();
    symlink("/net/tun", root.join("proc/4712/fd/7")).unwrap();
    folder
}

fn check(root: &Path, text: &str) -> Result<Config, ConfigErrors> {
    Config::parse_on("t.toml", text, &Machine::at(root))
}

/// Expects that exactly one thing is missing: at this key, with this message. Without a machine the text is valid.
#[track_caller]
fn lacks(text: &str, key: &str, message: &str) {
    let machine = machine();
    Config::parse("t.toml", text).unwrap_or_else(|errors| panic!("{}", errors.short()));
    let errors = check(machine.path(), text).expect_err(text);
    let [mistake] = errors.mistakes() else { panic!("not one:\n{}", errors.short()) };
    assert_eq!((mistake.key.as_str(), mistake.source), (key, Source::Machine), "{}", errors.short());
    assert!(mistake.message.contains(message), "{:?} lacks {message:?}", mistake.message);
    assert_eq!(errors.to_string(), "t.toml does not fit this machine");
    assert!(errors.only_of_the_machine() && !mistake.help.is_empty() && mistake.line > 0);
}

#[track_caller]
fn has(text: &str) {
    let machine = machine();
    check(machine.path(), text).unwrap_or_else(|errors| panic!("{}", errors.short()));
}

/// Returns a file with a port of this driver, and other tables.
fn port(lines: &str, tables: &str) -> String {
    format!(
        "[memory]\nhugepages = 'prefer'\n[[port]]\naddresses = ['10.0.0.2/24']\n{lines}\n{tables}\n\
         [[listener]]\nport = 7\nservice = 'echo'\n"
    )
}

const RING: &str = "driver = 'ring'";

#[test]
fn cores() {
    lacks(&port(RING, "[workers]\ncores = [1, 7]"), "workers.cores[1]", "CPU 7 is not online");
    lacks(
        &port(RING, "[workers]\ncores = [8]\ncontrol_core = 77"),
        "workers.control_core",
        "CPU 77 is not online",
    );
    has(&port(RING, "[workers]\ncores = [8, 0]\ncontrol_core = 3"));
    let machine = machine();
    fs::write(machine.path().join("sys/devices/system/cpu/online"), "0\n").unwrap();
    let errors = check(machine.path(), &port(RING, "")).expect_err("the default is core 1");
    assert_eq!(errors.mistakes()[0].key, "workers.cores");
}

#[test]
fn interfaces() {
    for driver in ["af_packet", "af_xdp", "pcap"] {
        let on = |name: &str, mtu: u32| {
            port(&format!("driver = '{driver}'\ninterface = '{name}'\nmtu = {mtu}"), "")
        };
        lacks(&on("eth7", 1500), "port[0].interface", "there is no interface eth7");
        lacks(&on("eth0", 1501), "port[0].mtu", "MTU 1501 is more than that of the interface eth0, 1500");
        has(&on("eth0", 1500));
    }
}

#[test]
fn taps() {
    let tap = |name: &str| port(&format!("driver = 'tap'\ninterface = '{name}'"), "");
    lacks(&tap("eth0"), "port[0].interface", "exists and is not a TAP");
    lacks(&tap("tap1"), "port[0].interface", "in use by process 4711 (qemu)");
    lacks(&tap("tap2"), "port[0].interface", "in use by process 4712 (iwarpd)");
    has(&tap("tap0"));
    has(&tap("new"));
}

/// Without the check, the start would fail with an error of DPDK.
#[test]
fn a_tap_takes_a_device_and_a_capability() {
    let tap = port("driver = 'tap'\ninterface = 'new'", "");
    let lacking = |machine: &tempfile::TempDir| {
        let errors = check(machine.path(), &tap).expect_err("it lacks something");
        assert!(errors.only_of_the_machine());
        errors.short()
    };
    let machine = machine();
    fs::remove_file(machine.path().join("dev/net/tun")).unwrap();
    let said = lacking(&machine);
    assert!(
        said.contains("/dev/net/tun, by which the daemon makes a TAP, cannot be opened: No such file"),
        "{said}"
    );
    fs::write(machine.path().join("dev/net/tun"), "").unwrap();
    let status = machine.path().join("proc/self/status");
    fs::create_dir_all(status.parent().unwrap()).unwrap();
    let capabilities = |set: u64| fs::write(&status, format!("Name:\tx\nCapEff:\t{set:016x}\n")).unwrap();
    capabilities(!(1 << 12));
    let said = lacking(&machine);
    assert!(
        said.contains("takes CAP_NET_ADMIN, which this process lacks") && said.contains(".interface"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    capabilities(1 << 12);
    check(machine.path(), &tap).unwrap();
    // The daemon that runs has what it needs, also if another user asks.
    capabilities(0);
    Config::parse_on("t.toml", &tap, &Machine::at(machine.path()).beside(4711)).unwrap();
}

#[test]
fn drivers_of_interfaces_take_capabilities() {
    let machine = machine();
    let status = machine.path().join("proc/self/status");
    fs::create_dir_all(status.parent().unwrap()).unwrap();
    fs::write(&status, "CapEff:\t0000000000000000\n").unwrap();
    for (driver, names) in [
        ("af_packet", vec!["CAP_NET_RAW"]),
        ("dpdk-af_packet", vec!["CAP_NET_ADMIN", "CAP_NET_RAW"]),
        ("pcap", vec!["CAP_NET_RAW"]),
        ("af_xdp", vec!["CAP_NET_ADMIN", "CAP_NET_RAW"]),
    ] {
        let text = port(&format!("driver = '{driver}'\ninterface = 'eth0'"), "");
        let errors = check(machine.path(), &text).expect_err(driver);
        let said: Vec<_> = errors.mistakes().iter().map(|mistake| mistake.message.as_str()).collect();
        assert_eq!(said.len(), names.len(), "{said:?}");
        assert!(said.iter().zip(names).all(|(said, name)| said.contains(name)), "{said:?}");
    }
    check(machine.path(), &port(RING, "")).unwrap();
}

#[test]
fn pci_devices() {
    let pci = |address: &str| port(&format!("driver = 'pci'\naddress = '{address}'"), "");
    lacks(&pci("3b:00.1"), "port[0].address", "no kernel driver is bound to the PCI device 0000:3b:00.1");
    lacks(&pci("3b:00.2"), "port[0].address", "the kernel driver i40e owns the PCI device 0000:3b:00.2");
    lacks(&pci("3b:00.5"), "port[0].address", "the kernel driver virtio-pci owns the PCI device");
    // mlx5 keeps its kernel driver; a card's own variant of vfio-pci hands it over.
    for ready in ["3b:00.0", "3b:00.3", "3b:00.4"] {
        has(&pci(ready));
    }
}

/// A wrong address is answered with those that there are, an unbound card with the commands that bind it.
#[test]
fn what_to_do_about_a_pci_device_is_said() {
    let machine = machine();
    let help = |address: &str| {
        let text = port(&format!("driver = 'pci'\naddress = '{address}'"), "");
        check(machine.path(), &text).expect_err("it lacks something").render(false)
    };
    let devices = help("0000:3b:00.7");
    assert!(devices.contains("no PCI device 0000:3b:00.7"), "{devices}");
    assert!(
        devices.contains("0000:3b:00.1 (no driver)") && devices.contains("0000:3b:00.2 (i40e)"),
        "{devices}"
    );
    assert!(!devices.contains("1f.2"), "a disk: {devices}");
    for (address, unbind) in [("0000:3b:00.1", 0), ("0000:3b:00.2", 1)] {
        let commands = help(address);
        for part in ["modprobe vfio-pci", "driver_override", "drivers_probe", "uio_pci_generic"] {
            assert!(commands.contains(part), "{address}, {part}: {commands}");
        }
        assert_eq!(commands.matches("driver/unbind").count(), unbind, "{commands}");
        // A command is copied from one line.
        let probe = format!("echo {address} > /sys/bus/pci/drivers_probe");
        assert!(commands.lines().any(|line| line.trim().ends_with(&probe)), "{commands}");
    }
}

#[test]
fn files_and_folders() {
    let memif = |path: &str| port(&format!("driver = 'memif'\nsocket = '{path}'"), "");
    lacks(&memif("/run/none/m.sock"), "port[0].socket", "no folder /run/none");
    has(&memif("/run/m.sock"));
    let pcap = |rx: &str, tx: &str| port(&format!("driver = 'pcap'\nrx_file = '{rx}'\ntx_file = '{tx}'"), "");
    lacks(&pcap("/run/none", "/run/out"), "port[0].rx_file", "no file /run/none");
    lacks(&pcap("/run/some", "/none/out"), "port[0].tx_file", "no folder /none");
    has(&pcap("/run/some", "/run/out"));
    let control = |lines: &str| port(RING, &format!("[control]\n{lines}"));
    lacks(&control("socket = '/none/iwarpd/s'"), "control.socket", "no folder /none");
    // The daemon creates the socket's own folder.
    has(&control("socket = '/run/iwarpd/s'"));
    has(&control("socket = '/run/s'"));
}

#[test]
fn groups() {
    let group = |name: &str| port(RING, &format!("[control]\ngroup = '{name}'"));
    lacks(&group("nobody-here"), "control.group", "no group `nobody-here`");
    has(&group("iwarp"));
    has(&group("1234"));
}

#[test]
fn hugepages() {
    let text = |hugepages: &str, size: &str| {
        format!(
            "[memory]\nhugepages = '{hugepages}'\npacket_buffers = 4096\n\
             [[port]]\naddresses = ['10.0.0.2/24']\n{RING}\n\
             [[region]]\nname = 'r'\nsize = '{size}'\naccess = ['remote-read']\n"
        )
    };
    lacks(&text("require", "1G"), "memory.hugepages", "hugepages of 2 MiB are needed and 100 are free");
    has(&text("prefer", "1G"));
    has(&text("require", "16M"));
}

/// While the daemon runs, what it holds is not missing; what others hold is.
#[test]
fn what_the_running_daemon_holds_counts_as_free() {
    let machine = machine();
    fs::write(
        machine.path().join("proc/4711/smaps_rollup"),
        "Rss: 9 kB\nShared_Hugetlb:     40960 kB\nPrivate_Hugetlb:     2048 kB\n",
    )
    .unwrap();
    let here = Machine::at(machine.path());
    assert_eq!((here.hugepages_free(), here.clone().beside(4711).hugepages_free()), (100, 121));
    assert_eq!(here.clone().beside(1).hugepages_free(), 100);
    assert_eq!(here.holder("tap1").map(|(pid, _)| pid), Some(4711));
    assert_eq!(here.clone().beside(4711).holder("tap1"), None);
    assert!(here.beside(1).holder("tap1").is_some());
}

/// The report for a first-time user: everything that is missing, with the mistakes of the file.
#[test]
fn everything_is_told_at_once() {
    let machine = machine();
    let text = "[[port]]\ndriver = 'af_packet'\ninterface = 'eth7'\naddresses = ['10.0.0.2/24']\n\
                [[port]]\ndriver = 'pci'\naddress = '3b:00.7'\naddresses = ['10.0.1.2/24']\nmtu = 99\n\
                [workers]\ncores = [64]\ncontrol_core = 77\n\
                [control]\ngroup = 'nobody-here'\nsocket = '/none/iwarpd/s'\n";
    let errors = check(machine.path(), text).expect_err("nothing fits");
    let keys: Vec<_> = errors.mistakes().iter().map(|mistake| mistake.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "port[0].interface",
            "port[1].address",
            "port[1].mtu",
            "workers.cores[0]",
            "workers.control_core",
            "control.group",
            "control.socket",
        ]
    );
    assert!(!errors.only_of_the_machine());
    assert!(errors.short().lines().count() == keys.len() && errors.short().starts_with("t.toml:3:13: "));
}

#[test]
fn this_machine_has_a_core_and_a_loopback_interface() {
    let machine = Machine::this();
    assert!(!machine.cores().is_empty());
    assert!(machine.interface("lo").is_some_and(|lo| !lo.tap) && machine.interface("no-such-if").is_none());
    assert!(machine.has_group("root") && machine.has_folder(Path::new("/proc")));
}
