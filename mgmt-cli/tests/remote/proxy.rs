//! Something on the path that harms what passes.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// The impairment of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    None,
    /// It flips a bit of the byte at this position of the stream.
    Flip(u64),
    /// It closes both ways at this position.
    Cut(u64),
}

/// A proxy in front of `peer` that harms every connection alike; returns where it listens.
pub(crate) fn start(peer: SocketAddr, to_peer: Harm, from_peer: Harm) -> SocketAddr {
    run(peer, std::iter::repeat((to_peer, from_peer)))
}

/// A proxy that harms the first connections, each in its own way (to the peer, from the peer), and no later one.
pub(crate) fn start_with<const N: usize>(peer: SocketAddr, harms: [(Harm, Harm); N]) -> SocketAddr {
    run(peer, harms.into_iter().chain(std::iter::repeat((Harm::None, Harm::None))))
}

fn run(peer: SocketAddr, mut harms: impl Iterator<Item = (Harm, Harm)> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let (to_peer, from_peer) = harms.next().unwrap();
            let server = TcpStream::connect(peer).unwrap();
            let (client_too, server_too) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || carry(client, server, to_peer));
            std::thread::spawn(move || carry(server_too, client_too, from_peer));
        }
    });
    address
}

fn carry(mut from: TcpStream, mut to: TcpStream, harm: Harm) {
    let mut position = 0u64;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let end = position + length as u64;
        let mut bytes = &mut buffer[..length];
        let index = |at: u64| usize::try_from(at.saturating_sub(position)).unwrap();
        match harm {
            Harm::Flip(at) if (position..end).contains(&at) => bytes[index(at)] ^= 0x10,
            Harm::Cut(at) if at < end => bytes = &mut bytes[..index(at)],
            _ => {}
        }
        let cut = bytes.len() < length;
        if to.write_all(bytes).is_err() || cut {
            break;
        }
        position = end;
    }
    // Either may be gone already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
