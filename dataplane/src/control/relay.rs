//! Relays the bytes of a client whose protocol has no descriptors, so that only a thread of the client receives any.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use iwarp_control::transfer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::threads::{NOBODY, Threads};

/// Bytes of a read from either side.
const CHUNK: usize = 4096;

/// Clients whose bytes are relayed, each by a thread.
#[derive(Debug, Default)]
pub(crate) struct Relays(Threads);

impl Relays {
    /// Relays a client, of which at most `clients_max` are relayed at a time. Returns the other end, on which no
    /// descriptor arrives. `time_limit` is the longest time to write to the client.
    ///
    /// # Errors
    /// There are as many clients as allowed, or no resources. The socket is closed elsewhere.
    pub(crate) fn start(
        &self,
        client: tokio::net::UnixStream,
        clients_max: usize,
        time_limit: Duration,
    ) -> io::Result<tokio::net::UnixStream> {
        let uid = client.peer_cred().map_or(NOBODY, |peer| peer.uid());
        let client = Arc::new(client.into_std()?);
        self.try_start(&client, uid, clients_max, time_limit).inspect_err(|_| self.0.close(uid, client))
    }

    fn try_start(
        &self,
        client: &Arc<UnixStream>,
        uid: u32,
        clients_max: usize,
        time_limit: Duration,
    ) -> io::Result<tokio::net::UnixStream> {
        let (relayed, _) = self.0.count(uid);
        if relayed >= clients_max {
            return Err(io::Error::other("as many clients as configured are connected"));
        }
        rustix::net::sockopt::set_socket_oobinline(client, true)?;
        client.set_nonblocking(false)?;
        client.set_write_timeout(Some(time_limit))?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = tokio::net::UnixStream::from_std(ours)?;
        let client = Arc::clone(client);
        self.0.start(uid, move || {
            // Either side has gone, or the client does not read.
            let _ = relay(&client, &theirs);
            drop(theirs);
            let _ = rustix::net::shutdown(&*client, Shutdown::Both);
            client
        })?;
        Ok(ours)
    }
}

/// Passes bytes in both directions until the server's side ends. Descriptors of the client are closed here.
fn relay(mut client: &UnixStream, mut server: &UnixStream) -> io::Result<()> {
    let mut chunk = [0; CHUNK];
    let mut client_sends = true;
    loop {
        let from_client = if client_sends { PollFlags::IN } else { PollFlags::empty() };
        let mut watched = [PollFd::new(&client, from_client), PollFd::new(&server, PollFlags::IN)];
        match poll(&mut watched, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let [of_client, of_server] = watched.map(|fd| fd.revents());
        if client_sends && !of_client.is_empty() {
            let (received, _) = transfer::receive(client, &mut chunk)?;
            client_sends = received > 0;
            if client_sends {
                server.write_all(chunk.get(..received).unwrap_or_default())?;
            } else {
                server.shutdown(std::net::Shutdown::Write)?;
            }
        } else if of_client.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Ok(());
        }
        if !of_server.is_empty() {
            let read = server.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            client.write_all(chunk.get(..read).unwrap_or_default())?;
        }
    }
}
