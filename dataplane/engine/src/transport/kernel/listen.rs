//! Sockets that listen, and their place among the listeners.

use std::io;
use std::net::SocketAddr;

use rustix::event::epoll;
use socket2::Socket;
use tcp_stack::{ListenError, ListenOptions, ListenScope, ListenerId};

use super::socket::listening;
use super::{KernelTcp, LISTENER, Listener};

/// A socket that listens, before a [`KernelTcp`] has it.
#[derive(Debug)]
pub struct Listening {
    pub(super) socket: Socket,
    pub(super) port: u16,
}

impl Listening {
    /// Listens at an address, or, at an unspecified one, at all addresses of its family. The kernel selects a port for
    /// port 0.
    ///
    /// # Errors
    /// As of `bind(2)`: the address is in use or not of this machine, or the port is for a user with a privilege.
    pub fn at(local: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let socket = listening(ListenScope::of(local.ip()), local.port(), options)?;
        let port = socket.local_addr()?.as_socket().map_or(0, |local| local.port());
        Ok(Self { socket, port })
    }

    /// Returns true if nobody listens at a port of any address.
    pub fn is_free(port: u16) -> bool {
        listening(ListenScope::Any, port, &ListenOptions::default()).is_ok()
    }

    /// Returns the TCP port.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl KernelTcp {
    /// Accepts the connections of a socket.
    ///
    /// # Errors
    /// `TooMany`: there are as many listeners as [`KernelTcpConfig`](super::KernelTcpConfig) allows, or the kernel has
    /// no memory.
    pub(crate) fn listen_on(
        &mut self,
        Listening { socket, port }: Listening,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        let at = self.listeners.iter().position(Option::is_none).unwrap_or(self.listeners.len());
        if at >= self.config.listeners_max as usize {
            return Err(ListenError::TooMany);
        }
        let index = u32::try_from(at).map_err(|_| ListenError::TooMany)?;
        let id = ListenerId::new(index, self.listeners_made);
        let data = epoll::EventData::new_u64(LISTENER | u64::from(index));
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
            .map_err(|_| ListenError::TooMany)?;
        self.listeners_made = self.listeners_made.checked_add(1).unwrap_or(std::num::NonZeroU32::MIN);
        if at == self.listeners.len() {
            self.listeners.push(None);
        }
        if let Some(place) = self.listeners.get_mut(at) {
            *place = Some(Listener { socket, id, port, options: options.conn, has_waiting: false });
        }
        Ok(id)
    }
}
