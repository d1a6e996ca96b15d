//! Out-of-order receive: bytes that the transport holds behind a gap.

use core::time::Duration;

use super::{Endpoint, stream_error};
use crate::Env;
use crate::memory::Memory;
use crate::mpa::{Deframer, OutOfOrderPolicy, OutOfOrderRefusal, PlacedRun};
use crate::qp::{QueuePair, StreamState};
use crate::stats::count;
use crate::terminate::Fault;

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Examines the bytes at stream position `offset`, which lie behind a gap: places their RDMA Writes now, and
    /// delivers them when the gap has closed.
    ///
    /// Returns true if all of them are placed. The transport may then drop them, and calls [`Self::receive_placed`]
    /// when the stream reaches them. Otherwise it holds them, and passes them to [`Self::receive`] later.
    ///
    /// A transport may also discard bytes that it holds behind a gap: bytes placed here are ignored when they are
    /// retransmitted.
    pub fn receive_out_of_order<M: Memory>(
        &mut self,
        offset: u64,
        bytes: &[u8],
        env: &mut Env<'_, M>,
    ) -> bool {
        let Self { deframer: Some(deframer), qp, config, .. } = self else { return false };
        let may_place = qp.state == StreamState::ReadyToSend && !qp.is_stalled();
        if !may_place || config.out_of_order == OutOfOrderPolicy::Off {
            return false;
        }
        count(&mut env.stats.mpa.early_tried, 1);
        let refused = place(deframer, qp, (offset, bytes), config.last_out_of_order, env).err();
        let whole = deframer.is_placed(offset, bytes.len());
        if !whole {
            count(&mut env.stats.mpa.bytes_held, bytes.len());
            if let Some(refusal) = refused {
                env.stats.mpa.count_out_of_order_refusal(refusal);
            }
        }
        whole
    }

    /// Advances the stream by the `len` bytes at position `offset`, for which [`Self::receive_out_of_order`] returned
    /// true.
    pub fn receive_placed<M: Memory>(
        &mut self,
        now: Duration,
        offset: u64,
        len: usize,
        env: &mut Env<'_, M>,
    ) {
        let Self { deframer: Some(deframer), qp, .. } = self else {
            count(&mut env.stats.drops.after_error, 1);
            return;
        };
        if let Err(error) = deframer.push_placed(offset, len, &mut env.stats.mpa) {
            qp.fail(&Fault::bare(stream_error(error)), env.stats);
        }
        self.deliver(env);
        self.watch_fpdu(now);
        self.apply_state(now);
    }
}

/// Places the FPDUs found, in order, up to the first that must not be placed.
fn place<C: AsRef<[u8]>, M: Memory>(
    deframer: &mut Deframer<C>,
    qp: &mut QueuePair,
    (offset, bytes): (u64, &[u8]),
    last_out_of_order: bool,
    env: &mut Env<'_, M>,
) -> Result<(), OutOfOrderRefusal> {
    let mut fpdus = deframer.out_of_order_fpdus(offset, bytes)?;
    let start = fpdus.position();
    let mut run = PlacedRun { start, end: start, ..PlacedRun::default() };
    let refused = loop {
        let fpdu = match fpdus.next_fpdu::<C>(&mut env.stats.mpa) {
            None => break Ok(()),
            Some(Err(refusal)) => break Err(refusal),
            Some(Ok(fpdu)) => fpdu,
        };
        match qp.place_out_of_order(&fpdu, last_out_of_order, env) {
            Ok(last) => {
                run.end = fpdus.position();
                run.fpdus = run.fpdus.saturating_add(1);
                run.ulpdu_bytes = run.ulpdu_bytes.saturating_add(fpdu.len() as u64);
                run.writes = run.writes.saturating_add(last.into());
            }
            Err(refusal) => break Err(refusal),
        }
    };
    deframer.placed(run);
    refused
}
