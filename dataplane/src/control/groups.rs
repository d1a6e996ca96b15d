//! Reads the supplementary groups of a client, as recorded by the kernel when the client connected. `peer` calls it.
#![allow(unsafe_code, reason = "no library asks for SO_PEERGROUPS")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Initial capacity, groups: more than most users have.
const ROOM: usize = 64;
/// Bytes of one group number.
const GROUP_BYTES: usize = size_of::<libc::gid_t>();

/// Returns the supplementary groups that the process at the other end of a Unix socket had when it connected, whether
/// or not it still has them.
///
/// # Errors
/// The socket is not a connected Unix socket.
pub(super) fn of_peer(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = vec![0; ROOM];
    loop {
        let room = groups.len().saturating_mul(GROUP_BYTES);
        let mut bytes = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        let buffer = groups.as_mut_ptr().cast();
        // SAFETY: `buffer` has room for `bytes` bytes, in numbers of any value, and both live through the call, which
        // writes no more than that; `fd` is open as long as `socket` is borrowed.
        let result =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, buffer, &raw mut bytes) };
        let count = usize::try_from(bytes).map_err(io::Error::other)? / GROUP_BYTES;
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel has returned the number of groups, which cannot change after the connect.
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
            // A thread has its own groups, while /proc shows those of the first thread. The thread has ended when its
            // groups are read.
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
    fn a_socket_that_is_not_a_unix_socket_fails() {
        assert!(of_peer(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
