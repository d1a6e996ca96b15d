//! Walks over the segments of a connection, for tests. `stack/audit` compares them with the counts.

use alloc::collections::BTreeMap;

use super::short::size_of;
use super::{Reassembly, RxNode};
use crate::buf::Buf;
use crate::pool::{NIL, Pool};

impl Reassembly {
    /// Returns the number of pool nodes that it owns.
    pub(crate) fn nodes<B: Buf>(&self, pool: &Pool<RxNode<B>>) -> u32 {
        let (mut index, mut ready) = (self.ready_head, 0_u32);
        while let Some(node) = pool.get(index) {
            ready = ready.saturating_add(1);
            index = node.next;
        }
        let slabs = u32::try_from(self.walk(pool).1.len()).unwrap_or(u32::MAX);
        ready.saturating_add(self.held_segments()).saturating_add(slabs)
    }

    /// Counts the payloads of the held segments and the true size of their buffers, by a walk. Returns `None` if a slab
    /// counts its payloads wrong.
    pub(crate) fn count<B: Buf>(&self, pool: &Pool<RxNode<B>>) -> Option<(u32, u32)> {
        let (own, slabs) = self.walk(pool);
        let (mut payloads, mut bytes) = own;
        for (at, packed) in slabs {
            let slab = pool.get(at).filter(|slab| slab.len == packed)?;
            payloads = payloads.saturating_add(packed.into());
            bytes = bytes.saturating_add(size_of(slab.buf.as_ref()?));
        }
        Some((payloads, bytes))
    }

    /// Returns the number of held segments with a buffer of their own and the true size of these, and the slabs with
    /// the number of payloads in each.
    fn walk<B: Buf>(&self, pool: &Pool<RxNode<B>>) -> ((u32, u32), BTreeMap<u32, u16>) {
        let (mut run, mut own, mut slabs) = (self.first_run, (0_u32, 0_u32), BTreeMap::new());
        while let Some(first) = pool.get(run) {
            let mut index = run;
            while let Some(node) = pool.get(index) {
                if let Some(buf) = &node.buf {
                    own = (own.0.saturating_add(1), own.1.saturating_add(size_of(buf)));
                }
                if node.slab != NIL {
                    let payloads = slabs.entry(node.slab).or_insert(0_u16);
                    *payloads = payloads.saturating_add(1);
                }
                index = node.next;
            }
            run = first.next_run;
        }
        (own, slabs)
    }
}
