//! Received datagrams: a link keeps them for its device; a queue pair places them in its next buffer, behind a global
//! route header, which the device has put in front of the payload.

use super::payload::FpduPayload;
use crate::Env;
use crate::memory::Memory;
use crate::mpa::Fpdu;
use crate::qp::{Event, QueuePair, Stop, WcStatus};
use crate::stats::count;
use crate::terminate::StreamError;
use crate::wire::QueueNumber;
use crate::wire::datagram::{DATAGRAM_MAX, DatagramHeader};
use crate::wire::ddp::UntaggedHeader;

impl QueuePair {
    /// Processes a segment of a datagram, if this is an end of them. `rest` begins with its header. Apart from the
    /// other messages, which are more frequent.
    #[cold]
    #[inline(never)]
    pub(super) fn datagram<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        rest: &[u8],
        fpdu: &Fpdu<'_, C>,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        if !self.takes_datagrams() {
            return Err(StreamError::UnexpectedOpcode.into());
        }
        if header.queue != QueueNumber::DATAGRAM {
            return Err(StreamError::QueueNumber.into());
        }
        if self.arrived().is_none() {
            return self.place_datagram(rest, fpdu, env);
        }
        let len = fpdu.len().saturating_sub(UntaggedHeader::LEN);
        let most = DatagramHeader::LEN.saturating_add(DATAGRAM_MAX);
        self.in_sends.check_msn(header)?;
        self.in_sends.check_offset(header, len, most as u64)?;
        self.in_sends.advance(len, header.last);
        let taken = self.arrive(fpdu.pieces(UntaggedHeader::LEN), header.last);
        count(&mut env.stats.rdmap.in_datagrams, usize::from(header.last && taken));
        count(&mut env.stats.rdmap.datagrams_crowded_out, usize::from(header.last && !taken));
        Ok(())
    }

    /// Places a datagram. One without a buffer, or too long for it, is dropped: its sender does not learn of it.
    fn place_datagram<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        rest: &[u8],
        fpdu: &Fpdu<'_, C>,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let (header, _) = DatagramHeader::parse(rest).map_err(|_| StreamError::MessageOffset)?;
        let Some(buffer) = self.rq.front().copied() else {
            count(&mut env.stats.rdmap.datagrams_without_buffer, 1);
            return Ok(());
        };
        let skip = UntaggedHeader::LEN.saturating_add(DatagramHeader::LEN);
        let bytes = u32::try_from(fpdu.len().saturating_sub(skip)).unwrap_or(u32::MAX);
        if bytes > buffer.local.len() {
            count(&mut env.stats.rdmap.datagrams_too_long, 1);
            return Ok(());
        }
        if let Err(stop) = self.place_buffer(buffer.local, 0, FpduPayload { fpdu, skip }, env) {
            if let Stop::Fault(_) = stop {
                self.buffer_failed(WcStatus::LocalProtectionError);
            }
            return Err(stop);
        }
        self.rq.pop();
        let DatagramHeader { sender, solicited, immediate, .. } = header;
        let event = Event::Datagram { wr_id: buffer.wr_id, bytes, source: sender, solicited, immediate };
        self.events.push_back(event);
        Ok(())
    }
}
