//! RDMA state that all connections of one port and worker share. `Engine` passes its parts to the RDMA crate with each
//! call.

use rdma::{Env, RdmaStats, StagTable};

/// STags, the memory that they name, and the counters.
#[derive(Debug)]
pub(crate) struct RdmaState<M> {
    /// Table of valid STags.
    pub(crate) stags: StagTable,
    /// Memory of the regions, by [`rdma::RegionId`].
    pub(crate) memory: M,
    /// Counters of MPA, DDP, RDMAP and of the region service.
    pub(crate) stats: RdmaStats,
}

impl<M> RdmaState<M> {
    /// Allocates a table of `stags_max` STags, whose keys derive from `seed`.
    pub(crate) fn new(stags_max: u32, seed: [u8; 32], memory: M) -> Self {
        Self { stags: StagTable::new(stags_max as usize, seed), memory, stats: RdmaStats::default() }
    }

    /// Borrows every part for one call into the RDMA crate.
    pub(crate) fn env(&mut self) -> Env<'_, M> {
        Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats }
    }
}
