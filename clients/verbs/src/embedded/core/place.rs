//! Number of this process among those that share the machine's addresses. The numbers of its queue pairs name it, so
//! that a peer who knows one of them knows the TCP port, too. The process has it from its first queue pair on; it
//! listens at the port once it connects a queue pair by number.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use iwarp_engine::kernel::Listening;
use rdma::verbs::{QP_WORKERS_MAX, RENDEZVOUS_PORT};

/// Place of the process.
#[derive(Debug, Default)]
pub(super) enum Place {
    /// None is needed yet.
    #[default]
    Free,
    /// This one, whose name no other process has while the socket is open.
    Taken(u8, #[expect(dead_code, reason = "holds the name")] UnixDatagram),
    /// All places are taken by others.
    Full,
}

impl Place {
    /// Takes the first place that is free. Names are those of the network namespace, as are TCP ports.
    pub(super) fn take() -> Self {
        (0..QP_WORKERS_MAX)
            .filter_map(|number| {
                let number = u8::try_from(number).ok()?;
                let name = SocketAddr::from_abstract_name(format!("ironwarp-queue-pairs-{number}")).ok()?;
                let socket = UnixDatagram::bind_addr(&name).ok()?;
                // Another service may have the port.
                let port = RENDEZVOUS_PORT.checked_add(number.into())?;
                Listening::is_free(port).then_some(Self::Taken(number, socket))
            })
            .next()
            .unwrap_or(Self::Full)
    }
}
