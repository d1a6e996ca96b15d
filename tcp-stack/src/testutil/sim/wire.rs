//! The path of a frame from a stack to the links: offload, trace, checks, translation and a liar's changes.

use super::host::Host;
use super::{BURST, SimEvent, Simulation};
use crate::buf::TxFrame;
use crate::testutil::trace::{describe, digest};
use crate::testutil::{HeapBuf, WireSegment, cut};
use crate::time::{Duration, Instant};
use crate::wire::EthernetHeader;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

impl Simulation {
    pub(super) fn transmit(&mut self, index: usize) -> Result<(), String> {
        loop {
            let host = self.hosts.get_mut(index).ok_or("no such host")?;
            let mut frames = Vec::new();
            let Host { stack, pool, .. } = host;
            let sent = stack.poll_transmit(self.now, pool, &mut |frame| frames.push(frame), BURST);
            if sent != frames.len() || sent > BURST {
                return Err(format!("{} frames sent, {sent} reported", frames.len()));
            }
            for frame in frames {
                self.send(index, frame)?;
            }
            if sent < BURST {
                return Ok(());
            }
        }
    }

    /// Sends the packets into which the port cuts a frame, and holds its buffers until all of them are sent.
    fn send(&mut self, from: usize, frame: TxFrame<HeapBuf>) -> Result<(), String> {
        let mut sent_at = self.now;
        for bytes in cut(&frame) {
            sent_at = sent_at.max(self.put_on_wire(from, &bytes)?);
        }
        if let Some(host) = self.hosts.get_mut(from) {
            host.sending.push_back(frame.buf);
        }
        self.schedule(sent_at, SimEvent::Sent { host: from });
        Ok(())
    }

    /// Traces, checks and sends one packet; returns the time at which it will have been sent.
    fn put_on_wire(&mut self, from: usize, bytes: &[u8]) -> Result<Instant, String> {
        let now = self.now;
        self.trace = digest(self.trace, now, from, bytes);
        let seen = WireSegment::parse(bytes)?;
        if self.log_max > 0 {
            let text = seen.as_ref().map_or_else(|| "other".into(), describe);
            self.note(format!("{:>9} h{from} > {text}", now.as_micros()));
        }
        let mtu = self.scenario.hosts.get(from).map_or(0, |host| usize::from(host.mtu));
        let (_, packet) = EthernetHeader::parse(bytes).map_err(|error| format!("{error:?}"))?;
        if packet.len() > mtu {
            return Err(format!("a packet of {} bytes, the MTU being {mtu}", packet.len()));
        }
        self.progress.count_frame();
        match seen {
            Some(seen) => self.put_segment(from, seen, bytes),
            None => self.carry(from, bytes),
        }
    }

    fn put_segment(&mut self, from: usize, mut seen: WireSegment, bytes: &[u8]) -> Result<Instant, String> {
        if let Some(host) = self.hosts.get_mut(from) {
            host.pure_acks = host.pure_acks.saturating_add(u64::from(seen.is_pure_ack()));
        }
        let translated = self.translate_out(from, &seen, bytes);
        let bytes = translated.as_deref().unwrap_or(bytes);
        if translated.is_some() {
            seen = WireSegment::parse(bytes)?.ok_or("no segment any more")?;
        }
        let liar = self.scenario.liar.as_ref().filter(|liar| liar.host == from);
        let Some(liar) = liar else {
            if !self.scenario.hostile {
                self.watch.check(&seen)?;
            }
            return self.carry(from, bytes);
        };
        let sent = self.watch.snd_end(seen.dst, seen.src);
        let iss = self.watch.iss(seen.src, seen.dst);
        let replaced = liar.replace(&mut self.random, &seen, bytes, sent, iss);
        let frames = replaced.unwrap_or_else(|| vec![bytes.to_vec()]);
        let mut sent_at = self.now;
        self.progress.allow(2 * u64::try_from(frames.len()).unwrap_or(0));
        for frame in frames {
            self.watch.note_unchecked(&WireSegment::parse(&frame)?.ok_or("no segment any more")?);
            sent_at = sent_at.max(self.carry(from, &frame)?);
        }
        Ok(sent_at)
    }

    /// Puts a frame on the links to its receivers; returns the time at which it will have been sent.
    fn carry(&mut self, from: usize, bytes: &[u8]) -> Result<Instant, String> {
        let now = self.now;
        let (ethernet, _) = EthernetHeader::parse(bytes).map_err(|error| format!("{error:?}"))?;
        let mut arrivals = Vec::new();
        let mut sent_at = now;
        for to in (0..self.hosts.len()).filter(|to| *to != from) {
            let mac = self.scenario.hosts.get(to).map(|host| host.mac);
            if !ethernet.dst.is_group() && mac != Some(ethernet.dst) {
                continue;
            }
            // Behind a switch, the link from one host stands for those from all.
            let row = if self.scenario.switched { usize::from(to == 0) } else { from };
            let link = self.links.get_mut(row).and_then(|row| row.get_mut(to)).ok_or("no such link")?;
            link.send(now, bytes, &mut |at, frame| arrivals.push((at, to, frame)));
            arrivals.extend(link.too_big(bytes).map(|error| (now + Duration::from_micros(50), from, error)));
            sent_at = sent_at.max(link.busy_until(now));
        }
        for (at, to, frame) in arrivals {
            self.schedule(at, SimEvent::Arrival { host: to, frame });
        }
        Ok(sent_at)
    }
}
