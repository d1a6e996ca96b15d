//! Functions shared by the commands that use the kernel's TCP.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

/// Bytes per read or write.
pub(crate) const PIECE: usize = 64 << 10;

/// Runs a future to its end on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("runtime")?.block_on(work)
}

/// Completes on SIGTERM or SIGINT.
pub(crate) fn ended() -> Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// Raises the limit of open files to the maximum.
pub(crate) fn many_files() -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("open files")
}

/// Sets the kernel's congestion control of a socket, and of the connections that a listener accepts.
pub(crate) fn use_congestion(socket: &impl AsFd, congestion: &str) -> Result<()> {
    let socket = SockRef::from(socket);
    socket
        .set_tcp_congestion(congestion.as_bytes())
        .with_context(|| format!("congestion control {congestion}"))
}

/// Opens a connection, from a given local port if there is one.
pub(crate) async fn connect(host: IpAddr, port: u16, from: Option<u16>) -> Result<TcpStream> {
    let (socket, any) = match host {
        IpAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::from([0; 4])),
        IpAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::from([0; 16])),
    };
    if let Some(from) = from {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(any, from)).with_context(|| format!("port {from}"))?;
    }
    let to = SocketAddr::new(host, port);
    socket.connect(to).await.with_context(|| format!("connection to {to}"))
}

/// Returns bytes of RFC 864's pattern as `iwarpd` and [`serve`](crate::serve) send it, from its start: lines of 72
/// characters, each line starting one character later.
pub(crate) fn chargen_byte(position: u64) -> u8 {
    let (line, column) = (position / 74, position % 74);
    match column {
        72 => b'\r',
        73 => b'\n',
        // Below 95: it fits.
        _ => b' ' + u8::try_from((line + column) % 95).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_pattern_is_that_of_rfc_864() {
        let text: Vec<u8> = (0..3 * 74).map(super::chargen_byte).collect();
        assert!(text.starts_with(b" !\"#$%&'()*+,-./0123456789"));
        assert_eq!(text[72..76], *b"\r\n!\"");
        assert_eq!(super::chargen_byte(95 * 74), b' ');
    }
}
