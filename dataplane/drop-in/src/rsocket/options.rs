//! Options of sockets, and flags of their descriptors.

use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;

use super::socket::{Inner, Phase, Socket};
use super::wire::{scale, unscale};
use crate::context::lock;
use crate::raw::bytes_mut;

/// `SOL_RDMA`, the level of the options of rsockets.
const SOL_RDMA: c_int = 0x10000;
// Options of `SOL_RDMA`.
const SEND_QUEUE: c_int = 0;
const RECV_QUEUE: c_int = 1;
const INLINE: c_int = 2;
const IOMAPS: c_int = 3;

/// Requests or messages of a queue.
const QUEUE: RangeInclusive<u16> = 16..=4096;
/// Bytes of inline data.
const INLINE_BYTES: RangeInclusive<u16> = 16..=512;
/// Bytes of a buffer.
const BUFFER: RangeInclusive<u32> = 4096..=1 << 26;

/// Options that are accepted and returned, and change nothing: the daemon's configuration decides.
const KEPT: [(c_int, c_int); 14] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

fn limited(value: u32, range: &RangeInclusive<u16>) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX).clamp(*range.start(), *range.end())
}

/// Sets an option (`rsetsockopt`). Sizes beyond what a stream can have become the nearest that it can.
pub(super) fn set(socket: &Socket, (level, name): (c_int, c_int), value: &[u8]) -> Result<(), c_int> {
    let mut inner = lock(&socket.inner);
    let is_new = matches!(inner.phase, Phase::New | Phase::Listening);
    let number = value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(libc::EINVAL);
    let Inner { sizes, options, .. } = &mut *inner;
    if level == SOL_RDMA || matches!((level, name), (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF)) {
        let wanted = u32::try_from(number?).map_err(|_| libc::EINVAL)?;
        if !is_new {
            // The kernel's sockets change the size of a buffer at any time; a stream keeps its buffers.
            return if level == SOL_RDMA { Err(libc::EINVAL) } else { Ok(()) };
        }
        // Even, because the receive buffer is granted by halves.
        let buffer = wanted.saturating_mul(2).clamp(*BUFFER.start(), *BUFFER.end()) & !15;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_bytes = buffer,
            (libc::SOL_SOCKET, _) => sizes.recv_bytes = buffer,
            (_, SEND_QUEUE) => sizes.send_queue = limited(wanted, &QUEUE),
            (_, RECV_QUEUE) => sizes.recv_queue = limited(wanted, &QUEUE),
            (_, INLINE) => sizes.inline = limited(wanted, &INLINE_BYTES),
            (_, IOMAPS) => sizes.iomaps = unscale(scale(u16::try_from(wanted).unwrap_or(0x7fff))),
            _ => return Err(libc::ENOPROTOOPT),
        }
        return Ok(());
    }
    if !KEPT.contains(&(level, name)) {
        return Err(libc::ENOPROTOOPT);
    }
    options.insert((level, name), number.unwrap_or(0));
    Ok(())
}

/// Writes an option for the program (`rgetsockopt`).
pub(super) fn get(
    socket: &Socket,
    (level, name): (c_int, c_int),
    out: *mut c_void,
    length: Option<&mut u32>,
) -> Result<(), c_int> {
    let (Some(length), false) = (length, out.is_null()) else { return Err(libc::EFAULT) };
    let mut inner = lock(&socket.inner);
    let sizes = inner.sizes;
    let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    let value = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let of_stream = if let Phase::Open(stream) = &mut inner.phase {
                std::mem::take(&mut stream.error)
            } else {
                0
            };
            std::mem::take(&mut inner.error).max(of_stream)
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(sizes.send_bytes),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(sizes.recv_bytes),
        (SOL_RDMA, SEND_QUEUE) => sizes.send_queue.into(),
        (SOL_RDMA, RECV_QUEUE) => sizes.recv_queue.into(),
        (SOL_RDMA, INLINE) => sizes.inline.into(),
        (SOL_RDMA, IOMAPS) => sizes.iomaps.into(),
        option if KEPT.contains(&option) => inner.options.get(&option).copied().unwrap_or(0),
        _ => return Err(libc::ENOPROTOOPT),
    };
    let room = usize::try_from(*length).unwrap_or(0).min(size_of::<c_int>());
    bytes_mut(out, room).iter_mut().zip(value.to_ne_bytes()).for_each(|(to, from)| *to = from);
    *length = u32::try_from(room).unwrap_or(0);
    Ok(())
}

/// Returns or sets the flags of a descriptor (`rfcntl`).
pub(super) fn control(socket: &Socket, command: c_int, value: c_int) -> Result<c_int, c_int> {
    let mut inner = lock(&socket.inner);
    match command {
        libc::F_GETFL => return Ok(inner.flags),
        libc::F_SETFL => inner.flags = libc::O_RDWR | value & libc::O_NONBLOCK,
        libc::F_GETFD => return Ok(inner.descriptor_flags),
        libc::F_SETFD => inner.descriptor_flags = value & libc::FD_CLOEXEC,
        _ => return Err(libc::EOPNOTSUPP),
    }
    Ok(0)
}
