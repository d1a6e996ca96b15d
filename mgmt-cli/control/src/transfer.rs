//! Bytes and descriptors over a Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::bounds::DESCRIPTORS_MAX;

/// Bytes up to which [`has_no_descriptors`] looks.
const PEEKED_MAX: usize = 1 << 16;

/// Sends bytes, and at most [`DESCRIPTORS_MAX`] descriptors with the first of them.
///
/// Returns how many bytes were taken, which may be fewer than given; the descriptors have gone with the
/// first, so the rest is sent without them.
///
/// # Errors
/// What `sendmsg` says; `EAGAIN` on a socket that is full and does not block. Raises no SIGPIPE.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::TOOBIG);
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })
}

/// Receives bytes, and the descriptors that came with them; returns 0 at the end of the stream.
///
/// The descriptors are closed on exec. More descriptors than [`DESCRIPTORS_MAX`] are closed by the kernel.
///
/// # Errors
/// What `recvmsg` says; `EAGAIN` if the socket's receive timeout ran out.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let length = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?
    .bytes;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    Ok((length, descriptors))
}

/// Returns true if only bytes wait in a socket whose receive side is shut down: closing it closes nothing else. Returns
/// false if descriptors wait there, or more than 64 KiB.
pub fn has_no_descriptors(socket: impl AsFd) -> bool {
    let queued = match rustix::io::ioctl_fionread(&socket).map(usize::try_from) {
        Ok(Ok(0)) => return true,
        Ok(Ok(queued)) if queued <= PEEKED_MAX => queued,
        _ => return false,
    };
    let mut bytes = vec![0; queued];
    // A receive ends before the first byte that came with descriptors, or with it and without room for them. They stay
    // in the socket.
    let peeked = recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut RecvAncillaryBuffer::default(),
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    );
    peeked.is_ok_and(|peeked| peeked.bytes == queued && !peeked.flags.contains(ReturnFlags::CTRUNC))
}
