//! The supplementary groups of a client: what the kernel noted when it connected.
#![allow(unsafe_code, reason = "no library asks for SO_PEERGROUPS")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Groups for which there is room at first: more than most users have.
const ROOM: usize = 64;
/// Bytes of a group's number.
const GROUP_BYTES: usize = size_of::<libc::gid_t>();

/// The supplementary groups that the process at the other end of a Unix socket had when it connected, whatever it
/// is or has by now.
///
/// # Errors
/// The socket is not connected, or not a Unix socket.
pub(super) fn of_peer(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = vec![0; ROOM];
    loop {
        let room = groups.len().saturating_mul(GROUP_BYTES);
        let mut bytes = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        let place = groups.as_mut_ptr().cast();
        // SAFETY: `place` has room for `bytes` bytes, in numbers of any value, and both live through the call, which
        // writes no more than that; `fd` is open as long as `socket` is borrowed.
        let result =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &raw mut bytes) };
        let count = usize::try_from(bytes).map_err(io::Error::other)? / GROUP_BYTES;
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel has said how many there are; the number is of the moment of connecting and does not change.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::process::Gid;

    use super::*;

    #[test]
    fn groups_are_those_of_the_moment_of_connecting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        for count in [0, 1, ROOM, ROOM + 1, 1000] {
            let wanted: Vec<u32> = (100..).take(count).collect();
            let groups: Vec<Gid> = wanted.iter().map(|group| Gid::from_raw(*group)).collect();
            let path = path.clone();
            // A thread has groups of its own, and /proc shows those of the first one. It is gone when it is asked about.
            let client = std::thread::spawn(move || {
                rustix::thread::set_thread_groups(&groups).expect("tests run as root");
                UnixStream::connect(path).unwrap()
            });
            let _client = client.join().unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(of_peer(&accepted).unwrap(), wanted);
        }
    }

    #[test]
    fn no_unix_socket_has_no_groups() {
        assert!(of_peer(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
