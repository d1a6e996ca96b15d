//! Connections that begin: those that the kernel has accepted for a listener, and the end of the handshake of others.

use rustix::io::Errno;
use socket2::Socket;
use tcp_stack::{ConnId, ConnOptions, Event, ListenerId};

use super::KernelTcp;
use super::conn::{Stage, reason};
use super::socket::{canonical, number, set_options, spare};

/// Connections accepted from a listener per poll.
const ACCEPTS_PER_POLL: usize = 16;

impl KernelTcp {
    /// Handles the end of an outgoing connection's handshake.
    pub(super) fn connected(&mut self, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        let error = match conn.socket.take_error() {
            Ok(None) if conn.socket.peer_addr().is_ok() => None,
            // The event of a socket that has only just begun to connect.
            Ok(None) => return,
            Ok(Some(error)) | Err(error) => Some(error),
        };
        match error {
            None => {
                self.opened(id);
                self.events.push_back(Event::Connected { conn: id });
                self.queue_unsent(id);
            }
            Some(error) => self.end(id, reason(number(&error))),
        }
    }

    /// Accepts connections that wait.
    pub(super) fn accept(&mut self, at: usize) {
        for _ in 0..ACCEPTS_PER_POLL {
            if self.is_full() {
                return;
            }
            let Some(Some(listener)) = self.listeners.get_mut(at) else { return };
            let (id, options) = (listener.id, listener.options);
            // Non-blocking, as Linux does not inherit it.
            match rustix::net::accept_with(
                &listener.socket,
                rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
            ) {
                Ok(socket) => self.accepted(socket.into(), id, &options),
                Err(Errno::AGAIN) => {
                    listener.has_waiting = false;
                    return;
                }
                Err(Errno::MFILE | Errno::NFILE) => {
                    self.spare = None;
                    // The kernel looks for a descriptor before it looks for a connection: there may be none.
                    listener.has_waiting = rustix::net::accept(&listener.socket).is_ok();
                    self.spare = spare().ok();
                    return;
                }
                // The connection has ended already.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                // The next connection tries again.
                Err(_) => {
                    listener.has_waiting = false;
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, socket: Socket, listener: ListenerId, options: &ConnOptions) {
        let ends = socket.local_addr().ok().and_then(|local| local.as_socket()).map(canonical);
        let ends = ends.zip(socket.peer_addr().ok().and_then(|peer| peer.as_socket()).map(canonical));
        let Some(ends) = ends else { return };
        set_options(&socket, options, ends.0.ip());
        let Some(id) = self.insert(socket, Stage::Open, ends, Some(listener)) else { return };
        self.opened(id);
        self.events.push_back(Event::Accepted { conn: id, listener });
        // This poll reads what the peer has sent, before connections that are accepted next count it as silent.
        if let Some(conn) = self.get_mut(id) {
            conn.may_read = true;
        }
        self.queue_readable(id);
    }
}
