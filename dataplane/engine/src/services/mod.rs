//! Services of the daemon: echo, discard, chargen and daytime on plain TCP connections, and the region service on RDMA
//! connections. [`Engine`](crate::Engine) calls them.

mod chargen;
mod daytime;
mod echo;
mod region;
mod tcp;

pub(crate) use region::RegionResponder;
pub(crate) use tcp::{TcpService, TcpServices, clear_waits_for_buffers};

use rdma::EndpointConfig;

iwarp_counters::counters! {
    /// Counters of the services of a port.
    pub struct ServiceStats {
        /// Connections of the echo service.
        echo_connections,
        /// Connections of the discard service.
        discard_connections,
        /// Connections of the chargen service.
        chargen_connections,
        /// Connections of the daytime service.
        daytime_connections,
        /// Connections of the region service.
        region_connections,
        /// Bytes received by the discard service.
        discard_bytes,
        /// Times that echo copied queued bytes to ordinary memory, to free packet buffers.
        echo_copied_aside,
    }
}

/// Service that a listener offers.
#[derive(Clone, Debug)]
pub enum ListenerService {
    /// Echo service (RFC 862).
    Echo,
    /// Discard service (RFC 863).
    Discard,
    /// Character generator (RFC 864).
    Chargen,
    /// Daytime service (RFC 867).
    Daytime,
    /// The region service: MPA and RDMA.
    Region(EndpointConfig),
}
