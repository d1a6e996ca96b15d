//! Reads the kernel's state of a TCP connection.
//!
//! JUSTIFICATION: neither the standard library nor `socket2` reads TCP_INFO.
#![allow(unsafe_code, reason = "getsockopt(TCP_INFO)")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// Bytes of `struct tcp_info` read: up to `tcpi_bytes_acked`.
const LEN: u32 = 128;
/// Offset of `tcpi_bytes_acked` (linux/tcp.h: 8 bytes, 24 words, two pacing rates).
const BYTES_ACKED: usize = 120;

/// Returns the bytes that the peer has acknowledged; the SYN and the FIN count as one each.
pub(crate) fn bytes_acked(socket: &impl AsFd) -> io::Result<u64> {
    let (mut info, mut len) = ([0_u8; LEN as usize], LEN);
    let (fd, value) = (socket.as_fd().as_raw_fd(), ptr::from_mut(&mut info).cast());
    // SAFETY: the value is an array of `len` bytes that outlives the call; the kernel writes no more than that.
    let result = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, value, &mut len) };
    match (result, info.get(BYTES_ACKED..).and_then(|rest| rest.first_chunk())) {
        (0, Some(bytes)) if len == LEN => Ok(u64::from_ne_bytes(*bytes)),
        (0, _) => Err(io::Error::other("this kernel does not count acknowledged bytes")),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn bytes_read_by_the_peer_are_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 5000]).unwrap();
        server.read_exact(&mut [0; 5000]).unwrap();
        // The acknowledgment may be delayed; a reply carries it.
        server.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
        let acked = super::bytes_acked(&client).unwrap();
        assert!((5000..=5001).contains(&acked), "{acked} bytes");
    }
}
