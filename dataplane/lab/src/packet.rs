//! Sends and receives frames on a kernel interface, in batches.
//!
//! JUSTIFICATION: the standard library and `socket2` cannot bind a packet socket, set its options, or move many
//! frames with one system call.
#![allow(unsafe_code, reason = "packet sockets: bind, options, recvmmsg, sendmmsg")]
#![allow(clippy::cast_possible_truncation, reason = "sizes of small structures, counts up to BATCH")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};

/// Most frames per system call.
pub(crate) const BATCH: usize = 64;
/// Longest frame, bytes: an MTU of 9600 bytes, Ethernet header with VLAN tag.
pub(crate) const FRAME_MAX: usize = 9600 + 18;
/// Kernel buffer for each direction, bytes.
const SOCKET_BUFFER: usize = 64 << 20;

/// Packet socket on a kernel interface, which receives copies of its frames.
#[derive(Debug)]
pub(crate) struct Port {
    socket: Socket,
}

/// Buffers for a batch of received frames.
pub(crate) struct Batch {
    room: Vec<[u8; FRAME_MAX]>,
    lens: [usize; BATCH],
    count: usize,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { room: vec![[0; FRAME_MAX]; BATCH], lens: [0; BATCH], count: 0 }
    }

    /// Returns the frames of the last receive.
    pub(crate) fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.room.iter().zip(self.lens).take(self.count).filter_map(|(room, len)| room.get(..len))
    }
}

impl Port {
    /// Opens an interface by name, non-blocking. Receives the frames that arrive on it, not those sent through it.
    pub(crate) fn open(interface: &str) -> io::Result<Self> {
        // Protocol 0 receives nothing until `bind` names the interface.
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
        sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER)?;
        sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER)?;
        let port = Self { socket };
        port.set_option(libc::PACKET_IGNORE_OUTGOING)?;
        port.set_option(libc::PACKET_QDISC_BYPASS)?;
        let index = rustix::net::netdevice::name_to_index(&port.socket, interface)?;
        port.bind(index)?;
        Ok(port)
    }

    fn bind(&self, index: u32) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: i32::try_from(index).map_err(io::Error::other)?,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address is a whole sockaddr_ll that outlives the call, and `len` is its size.
        let result = unsafe { libc::bind(self.socket.as_raw_fd(), ptr::from_ref(&address).cast(), len) };
        check(result).map(|_| ())
    }

    /// Sets an option of level SOL_PACKET to one.
    fn set_option(&self, option: i32) -> io::Result<()> {
        let (on, len) = (1_i32, size_of::<i32>() as u32);
        let (fd, value) = (self.socket.as_raw_fd(), ptr::from_ref(&on).cast());
        // SAFETY: the value is an int that outlives the call, and `len` is its size.
        let result = unsafe { libc::setsockopt(fd, libc::SOL_PACKET, option, value, len) };
        check(result).map(|_| ())
    }

    /// Receives the waiting frames, at most [`BATCH`]. Returns their number.
    pub(crate) fn receive(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        for (part, room) in parts.iter_mut().zip(&mut batch.room) {
            *part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        }
        let mut messages = parts.each_mut().map(message);
        let (fd, first) = (self.socket.as_raw_fd(), messages.as_mut_ptr());
        // SAFETY: BATCH messages, each with one part that covers a buffer of `batch`, which is borrowed for the call.
        let result = unsafe { libc::recvmmsg(fd, first, BATCH as u32, libc::MSG_DONTWAIT, ptr::null_mut()) };
        batch.count = match check(result) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        for (len, message) in batch.lens.iter_mut().zip(&messages) {
            *len = message.msg_len as usize;
        }
        Ok(batch.count)
    }

    /// Sends at most [`BATCH`] frames. Returns the number that the interface accepted; the others are lost, as on a
    /// full link.
    pub(crate) fn send(&self, frames: &[impl AsRef<[u8]>]) -> usize {
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        let all = frames.len().min(BATCH);
        for (part, frame) in parts.iter_mut().zip(frames) {
            let frame = frame.as_ref();
            *part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        }
        let mut messages = parts.each_mut().map(message);
        let (mut taken, mut tried) = (0, 0);
        while let Some(rest) = messages.get_mut(tried..all).filter(|rest| !rest.is_empty()) {
            let (fd, first, count) = (self.socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32);
            // SAFETY: `count` messages, each with one part that covers a frame, which are borrowed for the call and
            // only read.
            let result = unsafe { libc::sendmmsg(fd, first, count, libc::MSG_DONTWAIT) };
            // An error concerns the first frame: it is lost, and the next one is tried.
            let sent = check(result).unwrap_or(0);
            taken += sent;
            tried += sent.max(1);
        }
        taken
    }

    /// Returns the frames lost since the last call because the kernel's buffer was full.
    pub(crate) fn missed(&self) -> io::Result<u32> {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as u32;
        let (fd, value) = (self.socket.as_raw_fd(), ptr::from_mut(&mut stats).cast());
        // SAFETY: the value is a whole tpacket_stats that outlives the call, and `len` is its size.
        let result =
            unsafe { libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, value, &mut len) };
        check(result).map(|_| stats.tp_drops)
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Builds a message header with one buffer.
fn message(part: &mut libc::iovec) -> libc::mmsghdr {
    let msg_hdr = libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: part,
        msg_iovlen: 1,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    libc::mmsghdr { msg_hdr, msg_len: 0 }
}

/// Converts the result of a system call that returns a count.
fn check(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
