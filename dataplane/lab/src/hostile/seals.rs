//! Memory that a program seals before the daemon does, so that it can free pages that the daemon accesses.

use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use iwarp_control::ClientError;
use iwarp_shared_verbs::methods::{FreeMemory, FreeMemoryMethod, MemoryPart, RegMr, RegMrMethod};
use iwarp_shared_verbs::methods::{RegParts, RegPartsMethod};
use rdma::verbs::{Access, AddressBase, PdId};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals};
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

const QUEUE_BYTES: u64 = 1 << 20;
/// Sizes of memory, bytes, and true for memory that takes the place of the program's pages.
const MEMORIES: [(u64, bool); 5] =
    [(1, false), (8192, false), (3 << 20, false), (4096, true), (1 << 20, true)];

/// Seals memory of all kinds and sizes, and registers it; each must be refused.
pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut raw = Raw::open(&target.socket, QUEUE_BYTES)?;
    let (pd, _, _) = raw.objects(16)?;
    let (until, mut refused) = (target.end(), 0_u32);
    while refused == 0 || Instant::now() < until {
        for (bytes, exchange) in MEMORIES {
            // Others may have all the hugepages that there are.
            let (memory, fd) = raw.alloc(bytes, exchange)?;
            fcntl_add_seals(&fd, SealFlags::SEAL).context("F_SEAL_SEAL")?;
            match register(&mut raw, pd, (memory, bytes), exchange) {
                Err(ClientError::Refused(_)) => refused += 1,
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let punched = fallocate(&fd, flags, 0, bytes.next_multiple_of(2 << 20));
                    bail!("registered, and a hole in it gives {punched:?}");
                }
            }
            raw.call::<FreeMemoryMethod>(&FreeMemory { memory })?;
        }
    }
    ensure!(refused > 0, "nothing was tried");
    Ok((json!({ "case": "seals", "refused": refused }), Box::new(raw)))
}

fn register(raw: &mut Raw, pd: PdId, (memory, bytes): (u32, u64), exchange: bool) -> Result<(), ClientError> {
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
    if exchange {
        let parts = vec![MemoryPart::Exchanged { memory, offset: 0, bytes }];
        return raw.call::<RegPartsMethod>(&RegParts { pd, address: 0x1000, parts, access }).map(|_| ());
    }
    raw.call::<RegMrMethod>(&RegMr { memory, pd, base: AddressBase::Zero, access }).map(|_| ())
}
