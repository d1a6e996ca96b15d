//! Memory of a program: allocated and registered in one call, and described to peers in twelve bytes.

use std::sync::Arc;

use iwarp_engine::memory::{OutOfBounds, RegionMemory};
use rdma::verbs::{AddressBase, MemoryRegion, PdId, SendOp, Sge};
use rdma::{Access, Stag};

use super::Node;

/// Memory that was allocated and registered by [`Node::alloc_mr`] (`ibv_mr`).
///
/// Peers may read and write it at any time, as far as its rights allow: what this program reads can change under it.
#[derive(Clone, Debug)]
pub struct Mr {
    /// Handle, keys, address and length of the registered memory.
    pub region: MemoryRegion,
    memory: Arc<RegionMemory>,
}

impl Mr {
    /// Copies `bytes` into the memory, at `offset`.
    ///
    /// # Errors
    /// The bytes are not inside the memory.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory.write(offset, bytes)
    }

    /// Copies the bytes at `offset` out of the memory.
    ///
    /// # Errors
    /// The bytes are not inside the memory.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.memory.read(offset, out)
    }

    /// Returns the scatter/gather element of `length` bytes at `offset` (`ibv_sge`). The device checks it when the
    /// request is executed.
    pub const fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.region.addr.wrapping_add(offset), length, lkey: self.region.lkey }
    }

    /// Returns what a peer needs to access the memory.
    pub const fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: self.region.addr, rkey: self.region.rkey }
    }
}

/// Address and key of memory of a peer. Programs exchange it in a message or in the private data of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub addr: u64,
    /// Key of the memory.
    pub rkey: Stag,
}

impl RemoteMemory {
    /// Length of the encoding, bytes.
    pub const LEN: usize = 12;

    /// Encodes address and key, big-endian.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (addr, rkey) = bytes.split_at_mut(size_of::<u64>());
        addr.copy_from_slice(&self.addr.to_be_bytes());
        rkey.copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes
    }

    /// Decodes the bytes of [`Self::to_bytes`]; `None` if there are fewer or more.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (rkey, []) = rest.split_first_chunk()? else { return None };
        Some(Self { addr: u64::from_be_bytes(*addr), rkey: Stag(u32::from_be_bytes(*rkey)) })
    }

    /// Returns the operation that writes to the memory, `offset` bytes behind its start.
    pub const fn write(self, offset: u64) -> SendOp {
        SendOp::RdmaWrite { remote_addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }

    /// Returns the operation that reads the memory, `offset` bytes behind its start.
    pub const fn read(self, offset: u64) -> SendOp {
        SendOp::RdmaRead { remote_addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

impl Node {
    /// Allocates zeroed memory on the pages that the configuration asks for, and registers all of it (`ibv_reg_mr`).
    /// Addresses begin at 0.
    ///
    /// # Errors
    /// There is not enough memory, `limits.regions_max` regions exist already, or [`reg_mr`] refuses.
    ///
    /// [`reg_mr`]: rdma::verbs::Device::reg_mr
    pub fn alloc_mr(&mut self, pd: PdId, bytes: u64, access: Access) -> anyhow::Result<Mr> {
        let (region, memory) = self.add_region("mr", bytes)?;
        let region = self.engine_mut().reg_mr(pd, (region, 0, bytes), AddressBase::Zero, access)?;
        Ok(Mr { region, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_survives_its_encoding() {
        for (addr, rkey) in [(0, 0), (1, 2), (u64::MAX, u32::MAX), (0x0102_0304_0506_0708, 0x090a_0b0c)] {
            let remote = RemoteMemory { addr, rkey: Stag(rkey) };
            assert_eq!(RemoteMemory::from_bytes(&remote.to_bytes()), Some(remote));
        }
        let bytes = RemoteMemory { addr: 0x0102_0304_0506_0708, rkey: Stag(0x090a_0b0c) }.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        for len in (0..RemoteMemory::LEN).chain([RemoteMemory::LEN + 1]) {
            assert_eq!(RemoteMemory::from_bytes(&[0; RemoteMemory::LEN + 1][..len]), None, "{len} bytes");
        }
    }
}
