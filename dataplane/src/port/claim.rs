//! The right to a device: one process has it, and the kernel takes it back when that process ends, however it ends.
//!
//! A claim is a Unix socket with an abstract name. Such names belong to the network namespace, as interfaces do.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use iwarp_config::{Driver, MemifRole, Pcap, Port};
use rustix::net::sockopt::socket_peercred;

/// Bytes of an abstract name: `sun_path` without its leading zero.
const NAME_BYTES_MAX: usize = 107;

/// Devices that nobody else can claim while this lives.
#[derive(Debug, Default)]
pub struct Claims(Vec<UnixListener>);

/// Why a device cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process has it.
    #[error("port {port}: {what} is in use by {owner}: stop that, or change this configuration")]
    Taken {
        /// The name of the port.
        port: String,
        /// The resource that both claim.
        what: String,
        /// The process that holds it.
        owner: String,
    },
    /// The system refused the claim.
    #[error("port {port}: {what} cannot be claimed")]
    System {
        /// The name of the port.
        port: String,
        /// The resource to claim.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

impl Claims {
    /// Claims what the ports must have to themselves.
    ///
    /// # Errors
    /// Another process has one of them; none is claimed then.
    pub fn take(ports: &[Port]) -> Result<Self, ClaimError> {
        let mut claims = Self::default();
        for port in ports {
            for what in exclusive(port) {
                claims.0.push(claim(&port.name, what)?);
            }
        }
        Ok(claims)
    }
}

/// Returns the resources that two daemons cannot share: a TAP, the queues of AF_XDP, an end of a memif; on a shared
/// interface, an address.
fn exclusive(port: &Port) -> Vec<String> {
    let whole = |driver: &str, interface: &str| vec![format!("the {driver} {interface}")];
    let addresses = |interface: &str| {
        if port.addresses.are_kernels {
            return vec![format!("the kernel's addresses on {interface}")];
        }
        port.addresses.nets().map(|net| format!("{} on {interface}", net.addr())).collect::<Vec<_>>()
    };
    match &port.driver {
        Driver::Tap { interface } | Driver::DpdkTap { interface } => whole("TAP", interface),
        Driver::AfXdp { interface, .. } => {
            [whole("AF_XDP interface", interface), addresses(interface)].concat()
        }
        Driver::AfPacket { interface }
        | Driver::DpdkAfPacket { interface }
        | Driver::Pcap(Pcap::Interface(interface)) => addresses(interface),
        Driver::Memif(memif) => {
            let role = match memif.role {
                MemifRole::Server => "server",
                MemifRole::Client => "client",
            };
            vec![format!("memif {}, id {}, {role}", memif.socket.display(), memif.id)]
        }
        // The kernel gives a PCI device to one process only; files and rings are nobody else's.
        Driver::Pci { .. } | Driver::Pcap(Pcap::Files { .. }) | Driver::Ring => Vec::new(),
    }
}

fn claim(port: &str, what: String) -> Result<UnixListener, ClaimError> {
    let name = format!("iwarpd: {what}");
    // Long names differ at their end: of a path, and the id and the role behind that.
    let name = name.as_bytes();
    let name = name.get(name.len().saturating_sub(NAME_BYTES_MAX)..).unwrap_or(name);
    let port = port.to_owned();
    let address = match SocketAddr::from_abstract_name(name) {
        Ok(address) => address,
        Err(source) => return Err(ClaimError::System { port, what, source }),
    };
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(ClaimError::Taken { port, what, owner: owner(&address) })
        }
        Err(source) => Err(ClaimError::System { port, what, source }),
    }
}

/// Who has claimed a name: the kernel noted it when the socket began to listen.
fn owner(address: &SocketAddr) -> String {
    let credentials = UnixStream::connect_addr(address).ok().and_then(|stream| socket_peercred(&stream).ok());
    let Some(credentials) = credentials else { return "another process".to_owned() };
    let pid = credentials.pid.as_raw_nonzero();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim_end())
}

#[cfg(test)]
mod tests {
    use iwarp_config::Config;

    use super::*;

    fn ports(lines: &str) -> Vec<Port> {
        let text = format!("[[port]]\n{lines}\naddresses = ['10.0.0.2/24', 'fd00::2/64']\n");
        Config::parse("t.toml", &text).unwrap().ports
    }

    /// Names that no other test process has.
    fn unique(name: &str) -> String {
        format!("{name}{}", std::process::id())
    }

    #[test]
    fn what_one_has_the_other_is_refused_until_it_ends() {
        let interface = unique("c");
        for driver in ["tap", "dpdk-tap", "af_xdp", "af_packet", "dpdk-af_packet", "pcap"] {
            let ports = ports(&format!("driver = '{driver}'\ninterface = '{interface}'"));
            let first = Claims::take(&ports).unwrap();
            let refused = Claims::take(&ports).unwrap_err().to_string();
            let owner = format!("process {} (", std::process::id());
            assert!(refused.contains(&interface) && refused.contains(&owner), "{refused}");
            drop(first);
            Claims::take(&ports).unwrap();
        }
    }

    #[test]
    fn an_interface_can_be_shared_with_other_addresses_and_a_memif_by_its_two_ends() {
        let on = |host: u8| {
            let text = format!(
                "[[port]]\ndriver = 'af_packet'\ninterface = '{}'\naddresses = ['10.0.0.{host}/24']\n",
                unique("d")
            );
            Config::parse("t.toml", &text).unwrap().ports
        };
        let (_two, _three) = (Claims::take(&on(2)).unwrap(), Claims::take(&on(3)).unwrap());
        assert!(Claims::take(&on(2)).is_err());
        let memif = |role: &str, path: &str| {
            ports(&format!("driver = 'memif'\nrole = '{role}'\nsocket = '/{}/{path}'", unique("m")))
        };
        for path in ["s".to_owned(), "long/".repeat(17) + "s"] {
            let _server = Claims::take(&memif("server", &path)).unwrap();
            let _client = Claims::take(&memif("client", &path)).unwrap();
            assert!(Claims::take(&memif("server", &path)).is_err(), "{path}");
        }
    }
}
