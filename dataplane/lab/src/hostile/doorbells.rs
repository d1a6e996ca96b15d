//! As many contexts as one user may have beside another one, all of whose doorbells ring all the time, and whose rings
//! always have entries.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use iwarp_shared_verbs::QueuePlace;
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

const CONTEXTS: usize = 31;
const QUEUE_PAIRS: usize = 32;
/// Entries of each receive queue, a power of two: a ring's entries are posted again and again.
const BUFFERS: u16 = 64;

/// A context, and the places of its receive queues with the entries that were posted to each.
struct Ringing {
    raw: Raw,
    queues: Vec<(QueuePlace, u64)>,
}

impl Ringing {
    fn open(target: &Target) -> Result<Self> {
        let mut raw = Raw::open(&target.socket, 1 << 20)?;
        let (pd, cq, _) = raw.objects(64)?;
        let pairs = raw.queue_pairs((pd, cq), BUFFERS, QUEUE_PAIRS)?;
        let places = raw.flush_buffers(&pairs, BUFFERS.into())?;
        let queues = places.into_iter().map(|place| (place, BUFFERS.into())).collect();
        Ok(Self { raw, queues })
    }

    /// Refills each ring that the worker has emptied, and rings. Returns the number of entries.
    fn ring(&mut self) -> Result<u64> {
        let mut entries = 0;
        for (place, produced) in &mut self.queues {
            if self.raw.taken(place)? == *produced {
                *produced += u64::from(BUFFERS);
                entries += u64::from(BUFFERS);
                self.raw.produce(place, *produced)?;
            }
        }
        self.raw.ring_all()?;
        Ok(entries)
    }
}

pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut contexts = (0..CONTEXTS).map(|_| Ringing::open(target)).collect::<Result<Vec<_>>>()?;
    let (until, mut rounds, mut entries) = (target.end(), 0_u64, 0);
    while Instant::now() < until {
        for context in &mut contexts {
            entries += context.ring()?;
        }
        contexts.first().context("a context")?.raw.wake()?;
        rounds += 1;
    }
    ensure!(entries > 10_000, "the worker has taken {entries} entries only");
    Ok((json!({ "case": "doorbells", "rounds": rounds, "entries": entries }), Box::new(contexts)))
}
