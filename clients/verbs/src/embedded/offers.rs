//! The region service of a device in this process, for its context.

use std::net::SocketAddr;

use iwarp_engine::kernel::Listening;
use rdma::verbs::VerbsError;
use tcp_stack::{ConnOptions, Keepalive, ListenOptions};

use super::Embedded;
use super::core::refused;
use crate::error::Error;
use crate::offer::{NewOffer, OfferStats, Regions};

/// Connections that may wait for the engine, as far as the kernel allows.
const BACKLOG: u32 = 1024;

/// Options of the service's connections: a peer that has vanished is given up after two minutes, and its grant with it.
fn options() -> ListenOptions {
    let keepalive = Keepalive { idle_ms: 60_000, interval_ms: 10_000, probes: 6 };
    let conn =
        ConnOptions { keepalive: Some(keepalive), user_timeout_ms: Some(120_000), ..ConnOptions::default() };
    ListenOptions { conn, backlog: BACKLOG, ..ListenOptions::default() }
}

impl Regions for Embedded {
    fn serve(&self, addresses: &[SocketAddr]) -> Result<Vec<SocketAddr>, Error> {
        let options = options();
        let mut sockets = Vec::with_capacity(addresses.len());
        for address in addresses {
            let failed = |cause| Error::Listen { address: *address, cause };
            let socket = Listening::at(*address, &options).map_err(failed)?;
            let local = SocketAddr::new(address.ip(), socket.port());
            sockets.push((socket, local));
        }
        let served: Vec<SocketAddr> = sockets.iter().map(|(_, local)| *local).collect();
        self.with(|core| {
            if core.serves_regions() {
                let reason = "this context serves regions already: offer more there, or open another context";
                return Err(refused("serve_regions", VerbsError::Busy, Some(reason.to_owned())));
            }
            core.serve_regions(sockets, options)
        })?;
        Ok(served)
    }

    fn end(&self) {
        self.with(|core| core.end_regions());
    }

    fn offer(&self, new: NewOffer) -> Result<u64, Error> {
        self.with(|core| core.offer(new))
    }

    fn withdraw(&self, number: u64) {
        self.with(|core| core.withdraw(number));
    }

    fn stats(&self, number: u64) -> Option<OfferStats> {
        self.look(|core| core.offer_stats(number))
    }
}
