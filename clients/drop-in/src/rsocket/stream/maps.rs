//! Buffers of the program into which the peer may write (`riomap`), and those of the peer.

use std::ffi::c_int;

use iwarp_verbs::Mr;

use super::super::wire::{IOMAP_BYTES, IoMap, Message, Target};
use super::{Stream, next_length};

/// A buffer of the program into which the peer may write.
#[derive(Debug)]
pub(super) struct Mapped {
    mr: Mr,
    offset: u64,
    length: u32,
    announced: bool,
}

impl Stream {
    /// Maps a buffer for RDMA Writes of the peer at `offset`. Fails while the peer's private data have not come.
    pub(in super::super) fn map(&mut self, mr: Mr, length: u32, offset: u64) -> Result<(), c_int> {
        if self.remote.length == 0 {
            return Err(libc::ENOTCONN);
        }
        let place = self.maps.iter_mut().find(|place| place.is_none()).ok_or(libc::ENOMEM)?;
        *place = Some(Mapped { mr, offset, length, announced: false });
        Ok(())
    }

    /// Unmaps the buffer at this address.
    pub(in super::super) fn unmap(&mut self, address: u64, length: u32) -> Result<(), c_int> {
        let is_it = |mapped: &Mapped| mapped.mr.addr() == address && mapped.length == length;
        let place =
            self.maps.iter_mut().find(|place| place.as_ref().is_some_and(is_it)).ok_or(libc::EINVAL)?;
        *place = None;
        Ok(())
    }

    /// Writes the maps that the peer does not have yet, as far as is possible now. Returns true if none is left.
    pub(in super::super) fn announce_maps(&mut self) -> Result<bool, c_int> {
        for index in 0..self.maps.len() {
            let Some(Some(mapped)) = self.maps.get(index) else { continue };
            if mapped.announced {
                continue;
            }
            let target = Target { address: mapped.mr.addr(), key: mapped.mr.rkey().0, length: mapped.length };
            let map = IoMap { offset: mapped.offset, target };
            if !self.can_send() {
                return Ok(false);
            }
            let place = self.remote_maps.address.wrapping_add((index * IOMAP_BYTES) as u64);
            self.post_bytes(&map.to_bytes(), (place, self.remote_maps.key), Some(Message::Mapped))?;
            if let Some(Some(mapped)) = self.maps.get_mut(index) {
                mapped.announced = true;
            }
        }
        Ok(true)
    }

    /// Reads the peer's map of buffers, of which the message behind an RDMA Write says that it has changed: until then
    /// an entry may be half of an old buffer, and half of a new one.
    pub(super) fn read_map(&mut self) {
        self.peer_maps.clear();
        for index in 0..self.sizes.iomaps {
            let at = u64::from(self.sizes.maps_start()) + u64::from(index) * IOMAP_BYTES as u64;
            let mut bytes = [0; IOMAP_BYTES];
            // Within the memory.
            let _ = self.memory.read(at, &mut bytes);
            self.peer_maps.push(IoMap::from_bytes(&bytes));
        }
    }

    /// Returns the peer's buffer at an offset, from that offset on.
    fn mapped_at(&self, offset: u64) -> Option<Target> {
        self.peer_maps.iter().find_map(|IoMap { offset: start, target }| {
            let skipped =
                u32::try_from(offset.checked_sub(*start)?).ok().filter(|skip| *skip < target.length)?;
            let address = target.address.wrapping_add(skipped.into());
            Some(Target { address, key: target.key, length: target.length - skipped })
        })
    }

    /// Writes into the peer's buffers as much as is possible now, and returns its length; `None` if no buffer has the
    /// offset.
    pub(in super::super) fn write_mapped(
        &mut self,
        bytes: &[u8],
        offset: u64,
        length: &mut u32,
    ) -> Result<Option<usize>, c_int> {
        if !self.announce_maps()? {
            return Ok(Some(0));
        }
        let mut done = 0_usize;
        while done < bytes.len() && self.writable && self.can_send() {
            let Some(target) = self.mapped_at(offset.wrapping_add(done as u64)) else {
                return Ok(if done > 0 { Some(done) } else { None });
            };
            let now = next_length(bytes.len() - done, length).min(self.send_free).min(target.length);
            let part = bytes.get(done..done + now as usize).unwrap_or_default();
            self.post_bytes(part, (target.address, target.key), None)?;
            done += now as usize;
        }
        Ok(Some(done))
    }
}
