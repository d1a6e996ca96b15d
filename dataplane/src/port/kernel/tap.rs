//! TAPs (the kernel's Documentation/networking/tuntap.rst) with a header of virtio before each frame: making one,
//! reading and writing frames.
#![allow(unsafe_code, reason = "asks the kernel by ioctl(2), and passes addresses of packet buffers to it")]

use std::ffi::{c_int, c_uint};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use super::header::HEADER_BYTES;
use super::ifreq::{check, flags, flags_field, request};
use super::packet::{Messages, Received, Vector};

/// The file whose opening makes a queue.
const DEVICE: &str = "/dev/net/tun";
/// Segments and checksums that the kernel leaves to us: TCP over IPv4 and IPv6, also with CWR on the first segment.
const OFFLOADS: c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;

/// Makes the TAP `name`, or opens one that no process has open, and returns its queues. With `has_offloads` the kernel
/// passes super-frames and frames without checksums.
///
/// # Errors
/// EPERM without `CAP_NET_ADMIN`; EBUSY, somebody has it; EINVAL, an interface of another kind has the name, or a TAP
/// of one queue that is to have several.
pub(super) fn open(name: &str, queues: usize, has_offloads: bool) -> io::Result<Vec<OwnedFd>> {
    let mut opened = Vec::new();
    for _ in 0..queues {
        let multiple = queue(name, libc::IFF_MULTI_QUEUE);
        let queue = match multiple {
            // A TAP that was made before may have one queue for ever.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && queues == 1 => queue(name, 0)?,
            multiple => multiple?,
        };
        let offloads = if has_offloads { OFFLOADS } else { 0 };
        // SAFETY: a queue of a TAP; the argument is a number.
        check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) })?;
        opened.push(queue);
    }
    Ok(opened)
}

/// Opens one queue.
fn queue(name: &str, kind: c_int) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    let queue = OwnedFd::from(file);
    let mut request = request(name)?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | kind;
    request.ifr_ifru.ifru_flags = flags_field(flags);
    // SAFETY: an open file of the driver; the kernel reads and writes an `ifreq`.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let bytes = c_int::try_from(HEADER_BYTES).unwrap_or_default();
    // SAFETY: a queue of a TAP; the kernel reads an integer.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) })?;
    Ok(queue)
}

/// Sets the MTU of an interface of this network namespace, and brings it up.
///
/// # Errors
/// EINVAL: its driver has no such MTU.
pub(super) fn configure(name: &str, mtu: u16) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::]:0"))?;
    let mut of_mtu = request(name)?;
    of_mtu.ifr_ifru.ifru_mtu = mtu.into();
    // SAFETY: an open socket; the kernel reads an `ifreq`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFMTU, &raw const of_mtu) })?;
    let mut of_flags = request(name)?;
    of_flags.ifr_ifru.ifru_flags = flags_field(flags(&socket, name)? | libc::IFF_UP);
    // SAFETY: an open socket; the kernel reads an `ifreq`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const of_flags) }).map(drop)
}

/// Reads one frame. Its header goes into the first buffer.
///
/// # Safety
/// The buffers of `vector` are writable, and nobody else reads or writes them during the call.
///
/// # Errors
/// EAGAIN: no frame waits. EBADFD: the interface was deleted.
pub(super) unsafe fn receive(queue: BorrowedFd<'_>, vector: &mut Vector) -> io::Result<Received> {
    let buffers = vector.as_slice();
    let count = c_int::try_from(buffers.len()).unwrap_or(c_int::MAX);
    // SAFETY: the vector's buffers are writable, as the caller says.
    let read = unsafe { libc::readv(queue.as_raw_fd(), buffers.as_ptr(), count) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // A longer frame is cut without a word.
    let is_truncated = read >= buffers.iter().map(|buffer| buffer.iov_len).sum();
    Ok(Received { len: read.saturating_sub(HEADER_BYTES), is_truncated, tag: None })
}

/// Writes frames in order. Returns the number that the kernel took, which is at least one.
///
/// # Safety
/// The buffers of the vector that the messages were made of are readable and did not move since, nor did the vector.
///
/// # Errors
/// The error of the first frame. EIO: the interface is down. EBADFD: the interface was deleted.
pub(super) unsafe fn send(queue: BorrowedFd<'_>, messages: &Messages) -> io::Result<usize> {
    let mut sent = 0_usize;
    for (buffers, count) in messages.buffers() {
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        // SAFETY: as many buffers as said, which are readable, as the caller says.
        if unsafe { libc::writev(queue.as_raw_fd(), buffers, count) } < 0 {
            let error = io::Error::last_os_error();
            return if sent > 0 { Ok(sent) } else { Err(error) };
        }
        sent = sent.saturating_add(1);
    }
    Ok(sent)
}
