//! rsockets (`<rdma/rsocket.h>`): stream sockets over RDMA, wire-compatible with rdma-core on iWARP.
//!
//! | file | content |
//! |---|---|
//! | `wire.rs` | private data and messages |
//! | `sizes.rs` | sizes, and the layout of memory |
//! | `stream.rs` | the protocol over a queue pair |
//! | `socket.rs`, `listener.rs` | phases of a socket, and waits; connections of a listener |
//! | `poll.rs`, `options.rs` | `rpoll`, `rselect`; options |

mod completions;
mod listener;
mod options;
mod poll;
mod sizes;
mod socket;
mod stream;
mod wire;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use iwarp_verbs::Access;

pub(crate) use self::poll::PollEntry;
use self::socket::{Direction, Phase, Socket};
use self::stream::first_length;
use crate::abi_cm::encode;
use crate::context::{lock, number};
use crate::objects::Pd;
use crate::raw::{address, array, array_mut, bytes, bytes_mut, export_waiting, object, register};

/// Sockets by their descriptor.
static SOCKETS: Mutex<Option<HashMap<c_int, Arc<Socket>>>> = Mutex::new(None);

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoVec {
    base: *mut c_void,
    length: usize,
}

/// Returns the socket of a descriptor.
fn find(fd: c_int) -> Option<Arc<Socket>> {
    lock(&SOCKETS).as_ref()?.get(&fd).cloned()
}

fn socket(fd: c_int) -> Result<Arc<Socket>, c_int> {
    find(fd).ok_or(libc::EBADF)
}

fn add(socket: Socket) -> c_int {
    let fd = socket.fd();
    lock(&SOCKETS).get_or_insert_default().insert(fd, Arc::new(socket));
    fd
}

/// Sets `errno` if the call has failed, and returns what the program gets.
fn answer(result: Result<usize, c_int>) -> isize {
    match result {
        Ok(value) => isize::try_from(value).unwrap_or(isize::MAX),
        Err(number) => {
            errno::set_errno(errno::Errno(number));
            -1
        }
    }
}

fn done(result: Result<(), c_int>) -> c_int {
    if answer(result.map(|()| 0)) == 0 { 0 } else { -1 }
}

/// Writes an address for the program, as far as it has room.
fn put_address(found: Option<SocketAddr>, out: *mut c_void, length: Option<&mut u32>) -> Result<(), c_int> {
    let (Some(length), false) = (length, out.is_null()) else { return Ok(()) };
    let (encoded, used) = encode(found.ok_or(libc::ENOTCONN)?);
    bytes_mut(out, (*length).min(used) as usize).iter_mut().zip(encoded).for_each(|(to, from)| *to = from);
    *length = used;
    Ok(())
}

fn recv(fd: c_int, out: &mut [u8], flags: c_int) -> Result<usize, c_int> {
    let socket = socket(fd)?;
    // A stream has no urgent data, and no queue of errors.
    match flags {
        _ if flags & libc::MSG_OOB != 0 => return Err(libc::EINVAL),
        _ if flags & libc::MSG_ERRQUEUE != 0 => return Err(libc::EAGAIN),
        _ if flags & libc::MSG_TRUNC != 0 => return Err(libc::EOPNOTSUPP),
        _ => {}
    }
    let limit = socket.limit(flags, Direction::Receive);
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    if out.is_empty() {
        return Ok(0);
    }
    let mut read = 0_usize;
    let result = socket.until(limit, |stream| {
        let part = out.get_mut(read..).unwrap_or_default();
        read += stream.read(part, peek);
        let enough = read > 0 && (peek || !all || read == out.len());
        if enough || (!stream.readable && !stream.has_data()) {
            return if read == 0 && stream.error != 0 { Err(stream.error) } else { Ok(Some(())) };
        }
        Ok(None)
    });
    if read > 0 { Ok(read) } else { result.map(|()| 0) }
}

/// Returns an error for flags of a send that would change what it does, and do not.
fn check_send(flags: c_int) -> Result<(), c_int> {
    if flags & (libc::MSG_OOB | libc::MSG_FASTOPEN) == 0 { Ok(()) } else { Err(libc::EOPNOTSUPP) }
}

fn send(fd: c_int, data: &[u8], flags: c_int) -> Result<usize, c_int> {
    let socket = socket(fd)?;
    check_send(flags)?;
    let limit = socket.limit(flags, Direction::Send);
    let (mut sent, mut length) = (0_usize, first_length());
    let result = socket.until(limit, |stream| {
        if !stream.writable {
            return Err(stream.send_error());
        }
        sent += stream.send(data.get(sent..).unwrap_or_default(), &mut length)?;
        Ok((sent == data.len()).then_some(()))
    });
    if sent > 0 { Ok(sent) } else { result.map(|()| 0) }
}

/// Sends several buffers in order, until one is not sent whole.
fn send_all(fd: c_int, vectors: &[IoVec], flags: c_int) -> Result<usize, c_int> {
    let mut sent = 0_usize;
    for vector in vectors {
        match send(fd, bytes(vector.base, vector.length), flags) {
            Ok(count) => {
                sent += count;
                if count < vector.length {
                    break;
                }
            }
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sent)
}

/// Receives into the first buffer that has room.
fn recv_first(fd: c_int, vectors: &[IoVec], flags: c_int) -> Result<usize, c_int> {
    let first = vectors.iter().find(|vector| vector.length > 0);
    first.map_or(Ok(0), |vector| recv(fd, bytes_mut(vector.base, vector.length), flags))
}

fn map(fd: c_int, start: *mut c_void, length: usize, protection: c_int, offset: i64) -> Result<u64, c_int> {
    let socket = socket(fd)?;
    let start = NonNull::new(start.cast::<u8>()).ok_or(libc::EINVAL)?;
    let bytes = u32::try_from(length).map_err(|_| libc::EINVAL)?;
    if protection & libc::PROT_WRITE == 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let iova = start.as_ptr().expose_provenance() as u64;
    let offset = if offset == -1 { iova } else { offset.cast_unsigned() };
    let mut inner = lock(&socket.inner);
    let inner = &mut *inner;
    let id = inner.endpoint.id()?;
    let pd = object::<Pd>(id.head.pd.load(std::sync::atomic::Ordering::Acquire)).ok_or(libc::EINVAL)?;
    // A connection that was accepted may still open.
    let (Phase::Open(stream) | Phase::Opening(stream)) = &mut inner.phase else { return Err(libc::ENOTCONN) };
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = register(&pd.pd, start, length, iova, access).map_err(|error| number(&error))?;
    stream.map(mr, bytes, offset)?;
    // What cannot be announced now goes with the next data.
    if stream.connected {
        stream.announce_maps()?;
    }
    Ok(offset)
}

fn write_mapped(fd: c_int, data: &[u8], offset: u64, flags: c_int) -> Result<usize, c_int> {
    let socket = socket(fd)?;
    check_send(flags)?;
    let limit = socket.limit(flags, Direction::Send);
    let (mut written, mut length) = (0_usize, first_length());
    let result = socket.until(limit, |stream| {
        if !stream.writable {
            return Err(stream.send_error());
        }
        let part = data.get(written..).unwrap_or_default();
        let Some(count) = stream.write_mapped(part, offset.wrapping_add(written as u64), &mut length)? else {
            return Ok(Some(()));
        };
        written += count;
        Ok((written == data.len()).then_some(()))
    });
    if written > 0 { Ok(written) } else { result.map(|()| 0) }
}

/// Returns the local address of a socket, or its peer's.
fn address_of(fd: c_int, peer: bool) -> Result<Option<SocketAddr>, c_int> {
    let socket = socket(fd)?;
    let inner = lock(&socket.inner);
    let head = &inner.endpoint.id()?.head;
    if peer {
        return Ok(head.dst.get());
    }
    let any: IpAddr = if inner.domain == libc::AF_INET6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    Ok(Some(head.src.get().unwrap_or(SocketAddr::new(any, 0))))
}

/// `struct msghdr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MsgHdr {
    name: *mut c_void,
    name_length: u32,
    vectors: *const IoVec,
    vector_count: usize,
    control: *mut c_void,
    control_length: usize,
    flags: c_int,
}

impl MsgHdr {
    fn vectors(&self) -> Result<&[IoVec], c_int> {
        if !self.control.is_null() && self.control_length > 0 {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(array(self.vectors, c_int::try_from(self.vector_count).unwrap_or(0)))
    }
}

export_waiting! {
    fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let domains = [libc::AF_INET, libc::AF_INET6];
        let made = if !domains.contains(&domain) || ![0, libc::IPPROTO_TCP].contains(&protocol) {
            Err(libc::EAFNOSUPPORT)
        } else if kind & 0xf != libc::SOCK_STREAM {
            // Datagrams need unreliable queue pairs, which iWARP does not have.
            Err(libc::EOPNOTSUPP)
        } else {
            Socket::new(domain)
        };
        match made {
            Ok(socket) => {
                if kind & libc::SOCK_NONBLOCK != 0 {
                    lock(&socket.inner).flags |= libc::O_NONBLOCK;
                }
                add(socket)
            }
            Err(error) => done(Err(error)),
        }
    }

    fn rbind(fd: c_int, local: *const u8, _length: u32) -> c_int {
        done(socket(fd).and_then(|socket| socket.bind(address(local).ok_or(libc::EINVAL)?)))
    }

    fn rlisten(fd: c_int, backlog: c_int) -> c_int {
        done(socket(fd).and_then(|socket| socket.listen(backlog)))
    }

    fn raccept(fd: c_int, peer: *mut c_void, length: Option<&mut u32>) -> c_int {
        let accepted = socket(fd).and_then(|socket| socket.accept()).map(add);
        match accepted {
            Ok(fd) => {
                // An accepted connection has a peer.
                let _ = put_address(address_of(fd, true).unwrap_or_default(), peer, length);
                fd
            }
            Err(error) => done(Err(error)),
        }
    }

    fn rconnect(fd: c_int, peer: *const u8, _length: u32) -> c_int {
        done(socket(fd).and_then(|socket| socket.connect(address(peer).ok_or(libc::EINVAL)?)))
    }

    fn rshutdown(fd: c_int, how: c_int) -> c_int {
        done(socket(fd).and_then(|socket| socket.shutdown(how)))
    }

    fn rclose(fd: c_int) -> c_int {
        let removed = lock(&SOCKETS).as_mut().and_then(|sockets| sockets.remove(&fd));
        done(removed.map(|socket| socket.close()).ok_or(libc::EBADF))
    }

    fn rrecv(fd: c_int, out: *mut c_void, length: usize, flags: c_int) -> isize {
        answer(recv(fd, bytes_mut(out, length), flags))
    }

    fn rrecvfrom(
        fd: c_int,
        out: *mut c_void,
        length: usize,
        flags: c_int,
        peer: *mut c_void,
        peer_length: Option<&mut u32>,
    ) -> isize {
        let received = recv(fd, bytes_mut(out, length), flags);
        if received.is_ok_and(|count| count > 0) {
            let _ = put_address(address_of(fd, true).unwrap_or_default(), peer, peer_length);
        }
        answer(received)
    }

    fn rrecvmsg(fd: c_int, message: Option<&MsgHdr>, flags: c_int) -> isize {
        let received = message.ok_or(libc::EINVAL).and_then(|message| recv_first(fd, message.vectors()?, flags));
        answer(received)
    }

    fn rread(fd: c_int, out: *mut c_void, length: usize) -> isize {
        answer(recv(fd, bytes_mut(out, length), 0))
    }

    fn rreadv(fd: c_int, vectors: *const IoVec, count: c_int) -> isize {
        answer(recv_first(fd, array(vectors, count), 0))
    }

    fn rsend(fd: c_int, data: *const c_void, length: usize, flags: c_int) -> isize {
        answer(send(fd, bytes(data, length), flags))
    }

    fn rsendto(
        fd: c_int,
        data: *const c_void,
        length: usize,
        flags: c_int,
        peer: *const u8,
        _peer_length: u32,
    ) -> isize {
        answer(if peer.is_null() { send(fd, bytes(data, length), flags) } else { Err(libc::EISCONN) })
    }

    fn rsendmsg(fd: c_int, message: Option<&MsgHdr>, flags: c_int) -> isize {
        answer(message.ok_or(libc::EINVAL).and_then(|message| send_all(fd, message.vectors()?, flags)))
    }

    fn rwrite(fd: c_int, data: *const c_void, length: usize) -> isize {
        answer(send(fd, bytes(data, length), 0))
    }

    fn rwritev(fd: c_int, vectors: *const IoVec, count: c_int) -> isize {
        answer(send_all(fd, array(vectors, count), 0))
    }

    fn rgetpeername(fd: c_int, out: *mut c_void, length: Option<&mut u32>) -> c_int {
        done(address_of(fd, true).and_then(|found| put_address(found, out, length)))
    }

    fn rgetsockname(fd: c_int, out: *mut c_void, length: Option<&mut u32>) -> c_int {
        done(address_of(fd, false).and_then(|found| put_address(found, out, length)))
    }

    fn riomap(
        fd: c_int,
        start: *mut c_void,
        length: usize,
        protection: c_int,
        _flags: c_int,
        offset: i64,
    ) -> i64 {
        match map(fd, start, length, protection, offset) {
            Ok(offset) => offset.cast_signed(),
            Err(error) => done(Err(error)).into(),
        }
    }

    fn riounmap(fd: c_int, start: *mut c_void, length: usize) -> c_int {
        done(socket(fd).and_then(|socket| {
            let mut inner = lock(&socket.inner);
            let (Phase::Open(stream) | Phase::Opening(stream)) = &mut inner.phase else {
                return Err(libc::EINVAL);
            };
            stream.unmap(start.addr() as u64, u32::try_from(length).map_err(|_| libc::EINVAL)?)
        }))
    }

    fn riowrite(fd: c_int, data: *const c_void, length: usize, offset: i64, flags: c_int) -> isize {
        answer(write_mapped(fd, bytes(data, length), offset.cast_unsigned(), flags))
    }

    fn rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: Option<&mut u32>) -> c_int {
        done(socket(fd).and_then(|socket| options::get(&socket, (level, name), value, length)))
    }

    fn rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int {
        done(socket(fd).and_then(|socket| options::set(&socket, (level, name), bytes(value, length as usize))))
    }

    // The third argument of the variadic call comes as that of any other.
    fn rfcntl(fd: c_int, command: c_int, value: c_int) -> c_int {
        match socket(fd).and_then(|socket| options::control(&socket, command, value)) {
            Ok(value) => value,
            Err(error) => done(Err(error)),
        }
    }

    fn rpoll(fds: *mut PollEntry, count: u64, timeout_ms: c_int) -> c_int {
        match poll::poll(array_mut(fds, count), timeout_ms) {
            Ok(ready) => ready,
            Err(error) => done(Err(error)),
        }
    }

    fn rselect(
        count: c_int,
        read: Option<&mut poll::Set>,
        write: Option<&mut poll::Set>,
        except: Option<&mut poll::Set>,
        timeout: Option<&libc::timeval>,
    ) -> c_int {
        match poll::select(count, [read, write, except], timeout) {
            Ok(ready) => ready,
            Err(error) => done(Err(error)),
        }
    }
}
