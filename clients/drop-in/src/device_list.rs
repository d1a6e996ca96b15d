//! Devices: the ports of the daemon, or the network interfaces of a device inside this process.

use std::ffi::{c_char, c_int};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Mutex, OnceLock};

use iwarp_verbs::{ClientError, DEFAULT_SOCKET, DeviceInfo, Error};

use crate::abi;
use crate::context::lock;

// `IBV_NODE_CA`, and `IBV_NODE_RNIC`
const NODE_CA: c_int = 1;
const NODE_RNIC: c_int = 4;
// `IBV_TRANSPORT_IB`, and `IBV_TRANSPORT_IWARP`
const TRANSPORT_IB: c_int = 0;
const TRANSPORT_IWARP: c_int = 1;

/// A port of the daemon, or a network interface (`struct ibv_device`). Devices are never freed: programs keep pointers
/// to them.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) head: abi::Device,
    /// Name and addresses. Those of an interface may change; what they were before is not freed.
    info: Mutex<&'static DeviceInfo>,
    pub(crate) index: u32,
}

impl Device {
    fn new(index: u32, info: DeviceInfo) -> Self {
        let head = abi::Device {
            ops: [0; 2],
            node_type: if is_roce() { NODE_CA } else { NODE_RNIC },
            transport_type: if is_roce() { TRANSPORT_IB } else { TRANSPORT_IWARP },
            name: chars(&format!("iwarp{index}")),
            dev_name: chars(&format!("uverbs{index}")),
            dev_path: chars(""),
            ibdev_path: chars(&folder_of(index)),
        };
        Self { head, info: Mutex::new(Box::leak(Box::new(info))), index }
    }

    pub(crate) fn info(&self) -> &'static DeviceInfo {
        *lock(&self.info)
    }

    fn update(&self, info: DeviceInfo) {
        let mut now = lock(&self.info);
        if **now != info {
            *now = Box::leak(Box::new(info));
        }
    }

    /// Returns the number of the port, in network byte order.
    pub(crate) fn guid(&self) -> u64 {
        self.info().guid().to_be()
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.info().addresses.iter().map(|prefix| prefix.addr())
    }
}

/// Returns the folder with the files of a device, if `iwarp-run --roce` has made one.
fn folder_of(index: u32) -> String {
    let folder = format!("/sys/class/infiniband/iwarp{index}");
    if is_roce() && std::path::Path::new(&folder).is_dir() { folder } else { String::new() }
}

/// Returns a string as an array that ends with a zero.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    out
}

/// Devices that were found, and the last list, whose last element is null.
static DEVICES: Mutex<(Vec<&'static Device>, &'static [Option<&'static Device>])> =
    Mutex::new((Vec::new(), &[None]));

/// Returns the path of the daemon's verbs socket.
pub(crate) fn socket() -> std::path::PathBuf {
    std::env::var_os("IWARP_VERBS_SOCKET").unwrap_or_else(|| DEFAULT_SOCKET.into()).into()
}

/// Returns true if the device is inside this process: `iwarp-run` says so, or a program that it has not started finds
/// no daemon. A program that changes its environment later keeps its device.
pub(crate) fn is_embedded() -> bool {
    static EMBEDDED: OnceLock<bool> = OnceLock::new();
    let nobody_listens = || {
        let found = iwarp_verbs::Context::devices(DEFAULT_SOCKET);
        let Err(Error::Daemon(ClientError::Unreachable { cause, .. })) = found else { return false };
        matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
    };
    *EMBEDDED.get_or_init(|| match std::env::var_os("IWARP_EMBEDDED") {
        Some(value) => value == "1",
        // Plain sockets of a program stay the kernel's without a daemon.
        None => std::env::var_os("IWARP_VERBS_SOCKET").is_none() && !is_preloaded() && nobody_listens(),
    })
}

/// Returns true if messages are to wait for receive buffers, also on connections of librdmacm: if the variable says so,
/// or the devices are to look like those of RoCE v2.
pub(crate) fn awaits_buffers() -> bool {
    static AWAITS: OnceLock<bool> = OnceLock::new();
    *AWAITS.get_or_init(|| std::env::var_os("IWARP_AWAIT_BUFFERS").map_or_else(is_roce, |value| value == "1"))
}

/// Returns true if the devices are to look like those of RoCE v2.
pub(crate) fn is_roce() -> bool {
    static ROCE: OnceLock<bool> = OnceLock::new();
    *ROCE.get_or_init(|| std::env::var_os("IWARP_ROCE").is_some_and(|value| value == "1"))
}

/// Returns true if the program's plain sockets are to be rsockets.
fn is_preloaded() -> bool {
    std::env::var("LD_PRELOAD").is_ok_and(|libraries| libraries.contains("librspreload.so"))
}

/// Returns the devices of the daemon, or the interfaces of a device inside this process. The last element is null.
/// Without a daemon there are none.
pub(crate) fn devices() -> &'static [Option<&'static Device>] {
    let found = if is_embedded() {
        iwarp_verbs::Context::embedded_devices()
    } else {
        iwarp_verbs::Context::devices(socket())
    };
    let mut table = lock(&DEVICES);
    let Some(found) = found.ok().or_else(|| (!is_embedded()).then(Vec::new)) else {
        // The kernel does not tell the addresses, for want of a descriptor: they are the last ones.
        return table.1;
    };
    let (known, list) = &mut *table;
    let mut now = Vec::new();
    for (index, info) in (0..).zip(found) {
        // An interface keeps its number, whatever comes before it later.
        let is_same = |device: &&&Device| match is_embedded() {
            true => device.info().name == info.name,
            false => device.index == index && *device.info() == info,
        };
        let device = match known.iter().find(is_same).copied() {
            Some(old) => {
                old.update(info);
                old
            }
            None => {
                let unused = if is_embedded() { u32::try_from(known.len()).unwrap_or(index) } else { index };
                let new: &'static Device = Box::leak(Box::new(Device::new(unused, info)));
                known.push(new);
                new
            }
        };
        now.push(Some(device));
    }
    now.push(None);
    let same = |(a, b): (&Option<&Device>, &Option<&Device>)| match (a, b) {
        (Some(a), Some(b)) => std::ptr::eq(*a, *b),
        (a, b) => a.is_none() && b.is_none(),
    };
    if now.len() != list.len() || !now.iter().zip(list.iter()).all(same) {
        *list = now.leak();
    }
    list
}

/// Returns the last list of [`devices`], without a look at what there is now.
pub(crate) fn known_devices() -> &'static [Option<&'static Device>] {
    lock(&DEVICES).1
}
