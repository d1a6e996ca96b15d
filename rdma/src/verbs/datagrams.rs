//! Queue pairs that send datagrams (`IBV_QPT_UD`): to any other, without a connection, and without a promise that one
//! arrives.
//!
//! ```text
//!   post_send ──▶ send queue ──▶ transmit_to_itself ──┬──▶ link ── TCP ──▶ link ──┐ deliver_datagrams
//!                                (reads the bytes)    │                           ▼
//!                                                     └── same worker ──▶ receive queue (places them)
//! ```
//! Such a queue pair has an endpoint without a transport, as one that is connected with itself: it checks and reads the
//! memory of what is sent, and checks and writes that of what has arrived. A [link](super::datagram_links) carries the
//! datagrams of all queue pairs of a worker to another one.

use core::net::IpAddr;
use core::time::Duration;

use super::connection::Details;
use super::datagram_links::{DatagramLinks, Ends};
use super::deferred::HeldSegments;
use super::ids::{CmId, QpNum};
use super::queue_pair::{QpState, QpType};
use super::rendezvous::gid;
use super::{Device, VerbsError};
use crate::endpoint::{Env, LoopedSegment, Sink};
use crate::memory::Memory;
use crate::mpa::LENGTH_LEN;
use crate::qp::{PostError, WorkOp};
use crate::stats::count;
use crate::wire::datagram::{DatagramHeader, global_route};
use crate::wire::ddp::{self, UntaggedHeader};
use crate::wire::rdmap::{ControlField, Opcode};
use crate::wire::{MessageOffset, Msn, QueueNumber};

/// Datagrams that a queue pair sends per call of [`Device::transmit_to_itself`], before others have their turn.
const DATAGRAMS_MAX: usize = 32;
/// Datagrams that wait at a queue pair whose buffers another thread fills, and at all of them: programs expect that
/// their buffers are used, and may post thousands. Those beyond are dropped.
const HELD_MAX: usize = 4096;
const HELD_OF_ALL_MAX: usize = 4 * HELD_MAX;
/// Q_Keys with this bit stand for the sender's own one (InfiniBand Architecture Specification, volume 1, §10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// Receiver of a datagram (`struct ibv_ah`, `remote_qpn`, `remote_qkey`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Local address of the sender.
    pub local: IpAddr,
    /// Address of the receiver, of the same family.
    pub remote: IpAddr,
    /// Queue pair of the receiver.
    pub qp_num: QpNum,
    /// Key that the receiver must have; with the highest bit set, the sender's own one is used.
    pub qkey: u32,
}

/// Takes the ULPDU of one datagram.
#[derive(Debug)]
struct OneSegment<'a> {
    fpdu: &'a mut Vec<u8>,
    most: usize,
}

impl OneSegment<'_> {
    /// Returns the payload, behind the DDP header.
    fn payload(&self) -> Option<&[u8]> {
        let (length, ulpdu) = self.fpdu.split_first_chunk::<LENGTH_LEN>()?;
        ulpdu.get(UntaggedHeader::LEN..usize::from(u16::from_be_bytes(*length)))
    }
}

impl Sink for OneSegment<'_> {
    fn fpdu_max(&self) -> usize {
        self.most
    }

    fn room(&self) -> usize {
        if self.fpdu.is_empty() { self.most } else { 0 }
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let has_room = len <= self.room();
        if has_room {
            self.fpdu.resize(len, 0);
            build(self.fpdu);
        }
        has_room
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Changes a queue pair of [`QpType::Ud`] to RTR, with the key that datagrams to it must have; or changes that key.
    /// It sends, too, once it is in state `Rts`, as connected ones.
    ///
    /// # Errors
    /// `NoSuchObject`. `NotPermitted`: the device has no datagrams. `Invalid`: a queue pair of another type. `State`:
    /// it is not `Idle`, or in error.
    pub fn ready_for_datagrams(&mut self, number: QpNum, qkey: u32) -> Result<(), VerbsError> {
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        if qp.init.qp_type != QpType::Ud {
            return Err(VerbsError::Invalid);
        }
        if !self.links.is_on() {
            return Err(VerbsError::NotPermitted);
        }
        if qp.id.is_some() {
            qp.qkey = Some(qkey);
            return Ok(());
        }
        if qp.state != QpState::Idle {
            return Err(VerbsError::State);
        }
        self.request_loop(number, Details::NONE).ok_or(VerbsError::NoResources)?;
        if let Some(qp) = self.qps.get_mut(number.0) {
            qp.qkey = Some(qkey);
        }
        Ok(())
    }

    /// Returns the link and the Q_Key of a datagram.
    #[cold]
    #[inline(never)]
    pub(super) fn datagram_route(
        &mut self,
        number: QpNum,
        to: &Destination,
    ) -> Result<(u32, u32), PostError> {
        let qp = self.qps.get(number.0).ok_or(PostError::NoSuchObject)?;
        if qp.init.qp_type != QpType::Ud {
            return Err(PostError::Operation);
        }
        let Destination { local, remote, qp_num, qkey } = *to;
        let qkey = if qkey & OWN_QKEY == 0 { qkey } else { qp.qkey.unwrap_or(qkey) };
        let client = qp.client;
        let link = self.datagram_link(Ends { local, remote, worker: qp_num.worker() }, client);
        Ok((link, qkey))
    }

    /// Sends output of a queue pair that has no transport, up to a limit: to itself, or datagrams. `is_local` tells
    /// whether an address is this port's. Returns true if more is to be sent.
    pub fn transmit_to_itself<M: Memory>(
        &mut self,
        id: CmId,
        now: Duration,
        env: &mut Env<'_, M>,
        is_local: impl Fn(IpAddr) -> bool,
    ) -> bool {
        let number = self.qp_of(id);
        let is_datagrams =
            |number: QpNum| self.qps.get(number.0).is_some_and(|qp| qp.init.qp_type == QpType::Ud);
        let Some(number) = number.filter(|number| is_datagrams(*number)) else {
            self.transmit_looped(id, id, now, env);
            self.drain(id);
            // One that waits for a buffer goes on when it has one.
            return self.has_output(id) && !self.is_stalled(id);
        };
        // One that waits for a link, or for a copy, goes on when it may.
        let goes_on = (0..DATAGRAMS_MAX).all(|_| self.send_datagram(id, number, now, env, &is_local));
        self.drain(id);
        goes_on && self.has_output(id)
    }

    /// Sends the next datagram of a queue pair. Returns false if there is none at the moment.
    fn send_datagram<M: Memory>(
        &mut self,
        id: CmId,
        number: QpNum,
        now: Duration,
        env: &mut Env<'_, M>,
        is_local: &impl Fn(IpAddr) -> bool,
    ) -> bool {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_deref_mut());
        let op = endpoint.and_then(|endpoint| endpoint.queue_pair().sq.peek_next().map(|work| work.op));
        if let Some(WorkOp::Datagram { link, .. }) = op
            && !self.may_send_over(link, id, now)
        {
            return false;
        }
        let mut fpdu = core::mem::take(&mut self.datagrams.sent);
        fpdu.clear();
        let most = DatagramLinks::FPDU_MAX;
        let mut sink = OneSegment { fpdu: &mut fpdu, most };
        self.transmit(id, now, env, &mut sink);
        let payload = sink.payload();
        if let (Some(payload), Some(WorkOp::Datagram { link, dest, qkey, immediate, solicited })) =
            (payload, op)
        {
            let header = DatagramHeader { receiver: dest, sender: number.0, qkey, immediate, solicited };
            count(&mut self.stats.datagrams_out, 1);
            match self.use_datagram_link(link, now) {
                Some(Ends { local, remote, worker }) if local == remote && worker == number.worker() => {
                    if is_local(local) {
                        self.deliver_datagram(&header, (remote, local), payload, now, env);
                    } else {
                        count(&mut self.stats.datagrams_unreached, 1);
                    }
                }
                Some(_) => self.send_over(link, &header, payload),
                None => count(&mut self.stats.datagrams_unreached, 1),
            }
        }
        let is_sent = payload.is_some();
        self.datagrams.sent = fpdu;
        is_sent
    }

    /// Returns true if datagrams have arrived that [`Self::deliver_datagrams`] has not taken.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        !self.datagrams.arrived.is_empty()
    }

    /// Passes the datagrams that have arrived at links to their queue pairs. The adapter calls it once per poll.
    pub fn deliver_datagrams<M: Memory>(&mut self, now: Duration, env: &mut Env<'_, M>) {
        while let Some(id) = self.datagrams.arrived.pop() {
            let Some(ends) = self.ends_of(id) else { continue };
            let mut taken = core::mem::take(&mut self.datagrams.taken);
            self.swap_arrived(id, &mut taken);
            for message in taken.iter() {
                if let Ok((header, payload)) = DatagramHeader::parse(message) {
                    self.deliver_datagram(&header, ends, payload, now, env);
                }
            }
            taken.clear();
            // An incomplete datagram goes on at the link.
            self.swap_arrived(id, &mut taken);
            self.datagrams.taken = taken;
        }
    }

    /// Passes a datagram from `remote` to its queue pair; drops it if that does not take it.
    fn deliver_datagram<M: Memory>(
        &mut self,
        header: &DatagramHeader,
        (remote, local): (IpAddr, IpAddr),
        payload: &[u8],
        now: Duration,
        env: &mut Env<'_, M>,
    ) {
        let qp = self.qps.get(header.receiver).filter(|_| header.sender != 0);
        let Some((id, qkey)) = qp.and_then(|qp| qp.id.zip(qp.qkey)) else {
            return count(&mut self.stats.datagrams_no_qp, 1);
        };
        if qkey != header.qkey {
            return count(&mut self.stats.datagrams_wrong_qkey, 1);
        }
        count(&mut self.stats.datagrams_in, 1);
        let mut ulpdu = core::mem::take(&mut self.datagrams.placed);
        ulpdu.clear();
        let ddp = UntaggedHeader {
            last: true,
            version: ddp::VERSION,
            ulp_control: ControlField::new(Opcode::Datagram).emit(),
            ulp_word: 0,
            queue: QueueNumber::DATAGRAM,
            msn: Msn::FIRST,
            offset: MessageOffset(0),
        };
        let mut head = [0; UntaggedHeader::LEN];
        ddp.emit(&mut head);
        ulpdu.extend_from_slice(&head);
        ulpdu.extend_from_slice(&header.emit());
        ulpdu.extend_from_slice(&global_route(payload.len(), gid(remote), gid(local)));
        ulpdu.extend_from_slice(payload);
        let mut is_taken = false;
        if !self.has_stalled() || !self.is_stalled(id) {
            self.deliver(id, |endpoint| {
                is_taken = endpoint.receive_looped(now, LoopedSegment::Ulpdu(&ulpdu), env);
                endpoint.chunks()
            });
        }
        if !is_taken {
            self.hold_datagram(id, &ulpdu);
        }
        self.datagrams.placed = ulpdu;
    }

    /// Keeps a datagram for a queue pair that waits for deferred copies.
    #[cold]
    fn hold_datagram(&mut self, id: CmId, ulpdu: &[u8]) {
        let of_all: usize = self.held.iter().map(|(_, held)| held.len()).sum();
        match self.held.iter_mut().find(|(of, _)| *of == id) {
            _ if of_all >= HELD_OF_ALL_MAX => count(&mut self.stats.datagrams_congested, 1),
            Some((_, held)) if held.len() < HELD_MAX => held.push_back(ulpdu.into()),
            Some(_) => count(&mut self.stats.datagrams_congested, 1),
            None => self.hold_segments(id, HeldSegments::from([ulpdu.into()])),
        }
    }
}
