//! Packet sockets (packet(7)) with a header of virtio before each frame: opening one, reading and sending frames.
#![allow(unsafe_code, reason = "passes addresses of packet buffers to recvmsg(2) and sendmmsg(2)")]

use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::header::HEADER_BYTES;
use super::ifreq::{check, flags};

/// Protocol number of every frame (linux/if_ether.h).
const ETH_P_ALL: u16 = 0x0003;
/// The kernel chooses the number of a new group.
const FANOUT_FLAG_UNIQUE_ID: u32 = 0x2000;
/// Bytes of ancillary data: one `tpacket_auxdata`.
const CONTROL_BYTES: usize = 64;

/// Opens a socket that receives every frame of an interface and none of its own. It blocks nobody.
///
/// # Errors
/// EPERM without `CAP_NET_RAW`; ENODEV without such an interface.
pub(super) fn open(interface: c_int, buffer_bytes: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed. Of protocol 0 it receives nothing before it is bound.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor was made by the call before, for the caller alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    let buffers = [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (forced, limited) in buffers {
        // Only CAP_NET_ADMIN may pass the limit of the system.
        set(&socket, libc::SOL_SOCKET, forced, buffer_bytes)
            .or_else(|_| set(&socket, libc::SOL_SOCKET, limited, buffer_bytes))?;
    }
    // SAFETY: integers and an array of them, for which zeros are valid.
    let mut address = unsafe { std::mem::zeroed::<libc::sockaddr_ll>() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or_default();
    address.sll_protocol = ETH_P_ALL.to_be();
    address.sll_ifindex = interface;
    let (pointer, len) = ((&raw const address).cast(), length_of(&address));
    // SAFETY: an address of this length, which is copied.
    check(unsafe { libc::bind(socket.as_raw_fd(), pointer, len) })?;
    Ok(socket)
}

/// Has the kernel divide the flows among several sockets of one interface. Returns the number of the group, for the
/// further ones.
///
/// # Errors
/// Those of `PACKET_FANOUT`.
pub(super) fn join(socket: &OwnedFd, group: Option<u16>) -> io::Result<u16> {
    let (number, flags) = group.map_or((0, FANOUT_FLAG_UNIQUE_ID), |group| (u32::from(group), 0));
    let kind = libc::PACKET_FANOUT_HASH | flags;
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, (number | kind << 16).cast_signed())?;
    let mut joined = [0];
    get(socket, libc::PACKET_FANOUT, &mut joined)?;
    Ok(u16::try_from(joined[0] & 0xffff).unwrap_or_default())
}

/// Receives multicast frames, and frames to a station address that is not the interface's.
///
/// # Errors
/// Those of `PACKET_ADD_MEMBERSHIP`.
pub(super) fn admit(socket: &OwnedFd, interface: c_int, address: Option<[u8; 6]>) -> io::Result<()> {
    let all = libc::packet_mreq {
        mr_ifindex: interface,
        mr_type: u16::try_from(libc::PACKET_MR_ALLMULTI).unwrap_or_default(),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    put(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)?;
    let Some([a, b, c, d, e, f]) = address else { return Ok(()) };
    let mr_type = u16::try_from(libc::PACKET_MR_UNICAST).unwrap_or_default();
    let one = libc::packet_mreq { mr_type, mr_alen: 6, mr_address: [a, b, c, d, e, f, 0, 0], ..all };
    put(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &one)
}

/// Returns the station address of a socket's interface; `None` if that is no Ethernet's, or gone.
pub(super) fn address(socket: &OwnedFd) -> Option<[u8; 6]> {
    // SAFETY: integers and an array of them, for which zeros are valid.
    let mut address = unsafe { std::mem::zeroed::<libc::sockaddr_ll>() };
    let mut len = length_of(&address);
    let pointer = (&raw mut address).cast();
    // SAFETY: the kernel writes as many bytes as `len` says at most.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), pointer, &raw mut len) }).ok()?;
    let is_ethernet = address.sll_hatype == libc::ARPHRD_ETHER && address.sll_halen == 6;
    address.sll_addr.first_chunk::<6>().copied().filter(|_| is_ethernet)
}

/// Returns true if an interface is up and has a carrier.
pub(super) fn is_running(socket: &OwnedFd, name: &str) -> bool {
    let wanted = libc::IFF_UP | libc::IFF_RUNNING;
    flags(socket, name).is_ok_and(|flags| flags & wanted == wanted)
}

/// Returns the frames that the kernel dropped since the last call, because the socket's buffer was full.
pub(super) fn take_drops(socket: &OwnedFd) -> u32 {
    // tpacket_stats: frames, and of these the dropped ones.
    let mut stats = [0_u32; 2];
    get(socket, libc::PACKET_STATISTICS, &mut stats).map_or(0, |()| stats[1])
}

/// The buffers of one frame to read, in order: the header first.
#[derive(Debug)]
pub(super) struct Vector(Vec<libc::iovec>);

// SAFETY: addresses of memory that the owner of the vector owns too, and used in its calls alone.
unsafe impl Send for Vector {}

impl Vector {
    /// Creates a vector with room for this number of buffers.
    pub(super) fn with_capacity(buffers: usize) -> Self {
        Self(Vec::with_capacity(buffers))
    }

    /// Forgets the buffers from an index on.
    pub(super) fn truncate(&mut self, buffers: usize) {
        self.0.truncate(buffers);
    }

    /// Adds a buffer that is read, or written, by the next call.
    pub(super) fn push(&mut self, bytes: *mut u8, len: usize) {
        self.0.push(libc::iovec { iov_base: bytes.cast(), iov_len: len });
    }

    /// Replaces the buffer at an index.
    pub(super) fn replace(&mut self, index: usize, bytes: *mut u8, len: usize) {
        if let Some(place) = self.0.get_mut(index) {
            *place = libc::iovec { iov_base: bytes.cast(), iov_len: len };
        }
    }

    /// Returns the buffers, in order.
    pub(super) fn as_slice(&self) -> &[libc::iovec] {
        &self.0
    }

    /// Returns the number of buffers.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A frame that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Bytes of the frame, without the header.
    pub(super) len: usize,
    /// True if the buffers were too short for it.
    pub(super) is_truncated: bool,
    /// The VLAN tag that the kernel has taken out.
    pub(super) tag: Option<u16>,
}

/// Reads one frame. Its header goes into the first buffer.
///
/// # Safety
/// The buffers of `vector` are writable, and nobody else reads or writes them during the call.
///
/// # Errors
/// EAGAIN: no frame waits. ENETDOWN: the interface went down. EINVAL: a frame of a kind that virtio does not know was
/// dropped.
pub(super) unsafe fn receive(socket: BorrowedFd<'_>, vector: &mut Vector) -> io::Result<Received> {
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: pointers and integers, for which zeros are valid.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    message.msg_iov = vector.0.as_mut_ptr();
    message.msg_iovlen = vector.len();
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_BYTES;
    // SAFETY: the vector's buffers are writable, as the caller says; `control` has as many bytes as said.
    let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    Ok(Received {
        len: read.saturating_sub(HEADER_BYTES),
        is_truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        tag: tag_of(&message),
    })
}

/// Ancillary data, aligned as the kernel writes them.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Finds the VLAN tag that belongs to a frame.
fn tag_of(message: &libc::msghdr) -> Option<u16> {
    // SAFETY: a message that the kernel has filled in.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a whole header within the ancillary data.
    let head = unsafe { first.as_ref() }?;
    if (head.cmsg_level, head.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: there is one entry, an auxdata, as its kind says.
    let data = unsafe { libc::CMSG_DATA(first) }.cast::<libc::tpacket_auxdata>();
    // SAFETY: as above; it is read at any alignment.
    let auxdata = unsafe { data.read_unaligned() };
    (auxdata.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some(auxdata.tp_vlan_tci)
}

/// Frames to send, each with its buffers in a [`Vector`].
#[derive(Debug)]
pub(super) struct Messages(Vec<libc::mmsghdr>);

// SAFETY: as for `Vector`.
unsafe impl Send for Messages {}

impl Messages {
    /// Creates a list with room for this number of frames.
    pub(super) fn with_capacity(frames: usize) -> Self {
        Self(Vec::with_capacity(frames))
    }

    /// Forgets all frames, to describe others.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a frame: a range of the buffers of a vector.
    pub(super) fn push(&mut self, vector: &mut Vector, buffers: Range<usize>) {
        // SAFETY: pointers and integers, for which zeros are valid.
        let mut message = unsafe { std::mem::zeroed::<libc::mmsghdr>() };
        let buffers = vector.0.get_mut(buffers).unwrap_or_default();
        message.msg_hdr.msg_iov = buffers.as_mut_ptr();
        message.msg_hdr.msg_iovlen = buffers.len();
        self.0.push(message);
    }

    /// Returns where the buffers of each frame lie, and how many there are.
    pub(super) fn buffers(&self) -> impl Iterator<Item = (*const libc::iovec, usize)> {
        self.0.iter().map(|message| (message.msg_hdr.msg_iov.cast_const(), message.msg_hdr.msg_iovlen))
    }
}

/// Sends frames in order. Returns the number that the kernel took, which is at least one.
///
/// # Safety
/// The buffers of the vector that the messages were made of are readable and did not move since, nor did the vector.
///
/// # Errors
/// The error of the first frame. EAGAIN: the socket's buffer is full. ENOBUFS: the kernel dropped the frame, because a
/// queue was full or the interface at the other end has a smaller MTU. ENETDOWN, ENXIO: the interface is down or gone.
pub(super) unsafe fn send(socket: BorrowedFd<'_>, messages: &mut Messages) -> io::Result<usize> {
    let count = u32::try_from(messages.0.len()).unwrap_or(u32::MAX);
    // SAFETY: as many messages as said, whose buffers are readable, as the caller says.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.0.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn set(socket: &OwnedFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    put(socket, level, option, &value)
}

/// Sets an option whose value has this form.
fn put<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let (pointer, len) = (std::ptr::from_ref(value).cast(), length_of(value));
    // SAFETY: a value of this length, which is copied.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, len) }).map(drop)
}

/// Reads an option of packet sockets that consists of integers.
fn get<const N: usize>(socket: &OwnedFd, option: c_int, value: &mut [u32; N]) -> io::Result<()> {
    let mut len = length_of(value);
    let pointer = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes as many bytes as `len` says at most.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, pointer, &raw mut len) })
        .map(drop)
}

fn length_of<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).unwrap_or_default()
}
