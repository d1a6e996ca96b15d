//! Options of sockets, and flags of their descriptors.

use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;
use std::time::Duration;

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

// Options of this library at level `SOL_RDMA`, for its preload library: bytes that the program can read (`FIONREAD`),
// and bytes that were sent and are not acknowledged (`SIOCOUTQ`).
const UNREAD: c_int = 0x100;
const UNACKNOWLEDGED: c_int = 0x101;

/// Options that are accepted and returned, because they are so anyway: addresses may be shared until one listens, the
/// daemon's configuration has keepalives, and no data are urgent. What would change something fails instead.
const KEPT: [(c_int, c_int); 4] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
];

/// Options that can be off only.
const OFF: [(c_int, c_int); 3] = [
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];

/// Reads a `struct timeval`; no time at all is no limit.
fn timeout(value: &[u8]) -> Result<Option<Duration>, c_int> {
    let (seconds, rest) = value.split_first_chunk().ok_or(libc::EINVAL)?;
    let microseconds = i64::from_ne_bytes(*rest.first_chunk().ok_or(libc::EINVAL)?);
    let microseconds =
        u32::try_from(microseconds).ok().filter(|number| *number < 1_000_000).ok_or(libc::EDOM)?;
    // Below zero, a call does not wait: the kernel makes it the shortest time.
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok();
    let whole = seconds
        .map_or(Duration::from_nanos(1), |seconds| Duration::new(seconds, microseconds.saturating_mul(1000)));
    Ok(Some(whole).filter(|time| !time.is_zero()))
}

/// Writes a `struct timeval`.
fn time_value(timeout: Option<Duration>) -> Vec<u8> {
    let time = timeout.unwrap_or_default();
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    [seconds, i64::from(time.subsec_micros())].iter().flat_map(|part| part.to_ne_bytes()).collect()
}

fn limited(value: u32, range: &RangeInclusive<u16>) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX).clamp(*range.start(), *range.end())
}

/// Sets an option (`rsetsockopt`). Sizes beyond what a stream can have become the nearest that it can.
pub(super) fn set(socket: &Socket, (level, name): (c_int, c_int), value: &[u8]) -> Result<(), c_int> {
    let mut inner = lock(&socket.inner);
    let is_new = matches!(inner.phase, Phase::New | Phase::Listening(_));
    let number = value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(libc::EINVAL);
    let Inner { sizes, options, phase, endpoint, .. } = &mut *inner;
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
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => options.receive_timeout = timeout(value)?,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => options.send_timeout = timeout(value)?,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = value.get(4..).and_then(<[u8]>::first_chunk).ok_or(libc::EINVAL)?;
            let seconds = u64::try_from(c_int::from_ne_bytes(*seconds)).unwrap_or(u64::MAX);
            options.linger = (number? != 0).then_some(Duration::from_secs(seconds));
        }
        // Data are never held back.
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => _ = number?,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            let one_family = number? != 0;
            if !matches!(phase, Phase::New) {
                return Err(libc::EINVAL);
            }
            lock(&endpoint.id()?.state.inner).one_family = one_family;
            options.numbers.insert((level, name), one_family.into());
        }
        option if OFF.contains(&option) => {
            let value = value
                .first_chunk()
                .map_or(value.first().copied().map(c_int::from), |value| Some(c_int::from_ne_bytes(*value)));
            if value.ok_or(libc::EINVAL)? != 0 {
                return Err(libc::ENOPROTOOPT);
            }
        }
        option if KEPT.contains(&option) => {
            options.numbers.insert(option, (number? != 0).into());
        }
        _ => return Err(libc::ENOPROTOOPT),
    }
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
    let value = value_of(socket, (level, name))?;
    let room = usize::try_from(*length).unwrap_or(0).min(value.len());
    bytes_mut(out, room).iter_mut().zip(value).for_each(|(to, from)| *to = from);
    *length = u32::try_from(room).unwrap_or(0);
    Ok(())
}

/// Returns the bytes of an option.
fn value_of(socket: &Socket, (level, name): (c_int, c_int)) -> Result<Vec<u8>, c_int> {
    let mut inner = lock(&socket.inner);
    socket.progress(&mut inner);
    let Inner { sizes, options, phase, error, domain, .. } = &mut *inner;
    let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    let value = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let of_stream =
                if let Phase::Open(stream) = phase { std::mem::take(&mut stream.error) } else { 0 };
            std::mem::take(error).max(of_stream)
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(time_value(options.receive_timeout)),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(time_value(options.send_timeout)),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds =
                options.linger.map_or(0, |time| c_int::try_from(time.as_secs()).unwrap_or(c_int::MAX));
            let parts = [c_int::from(options.linger.is_some()), seconds];
            return Ok(parts.iter().flat_map(|part| part.to_ne_bytes()).collect());
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => *domain,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(phase, Phase::Listening(_)).into(),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(sizes.send_bytes),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(sizes.recv_bytes),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => 1,
        (SOL_RDMA, SEND_QUEUE) => sizes.send_queue.into(),
        (SOL_RDMA, RECV_QUEUE) => sizes.recv_queue.into(),
        (SOL_RDMA, INLINE) => sizes.inline.into(),
        (SOL_RDMA, IOMAPS) => sizes.iomaps.into(),
        (SOL_RDMA, UNREAD | UNACKNOWLEDGED) => match phase {
            Phase::Listening(_) => return Err(libc::EINVAL),
            Phase::Open(stream) if name == UNREAD => number(stream.unread()),
            Phase::Open(stream) => number(stream.unacknowledged()),
            _ => 0,
        },
        option if OFF.contains(&option) => 0,
        option if KEPT.contains(&option) || option == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            options.numbers.get(&option).copied().unwrap_or(0)
        }
        _ => return Err(libc::ENOPROTOOPT),
    };
    Ok(value.to_ne_bytes().to_vec())
}

/// Returns or sets the flags of a descriptor (`rfcntl`).
pub(super) fn control(socket: &Socket, command: c_int, value: c_int) -> Result<c_int, c_int> {
    let mut inner = lock(&socket.inner);
    match command {
        libc::F_GETFL => return Ok(inner.flags),
        libc::F_SETFL if value & libc::O_ASYNC != 0 => return Err(libc::EINVAL),
        libc::F_SETFL => inner.flags = libc::O_RDWR | value & libc::O_NONBLOCK,
        libc::F_GETFD => return Ok(inner.descriptor_flags),
        libc::F_SETFD => inner.descriptor_flags = value & libc::FD_CLOEXEC,
        _ => return Err(libc::EOPNOTSUPP),
    }
    Ok(0)
}
