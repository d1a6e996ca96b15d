//! Exchanges with a region service, and of a program with itself: one connection, Writes and Reads.

use std::cell::Cell;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use iwarp_verbs::{
    Access, CmEvent, CmEventKind, CompletionQueue, ConnParam, Context, Data, Event, Mr, QpCap, QpOptions,
    QueuePair, RecvWr, SendFlags, SendOp, SendWr, Stag, WcOpcode, WcStatus, WorkCompletion,
};

use super::{pattern, posted};

/// Objects of a connection that only Writes and Reads.
struct Simple {
    cq: CompletionQueue,
    qp: QueuePair,
    mr: Mr,
    size: u32,
    /// Number of messages that have arrived.
    received: Cell<usize>,
}

impl Simple {
    fn new(context: &Context, size: u32) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16)?;
        let cap = QpCap { max_send_wr: 8, ..QpCap::default() };
        let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(&cq) })?;
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = pd.alloc_mr(u64::from(size) * 2, local | remote)?;
        Ok(Self { cq, qp, mr, size, received: Cell::new(0) })
    }

    /// Returns the number of requests that have completed, and counts the messages received.
    fn poll(&self) -> Result<usize> {
        let mut out = [WorkCompletion::default(); 2];
        let polled = self.cq.poll(&mut out).map_err(|error| anyhow::anyhow!("poll: {error:?}"))?;
        ensure!(out[..polled].iter().all(|wc| wc.status == WcStatus::Success), "{out:?}");
        let received = out[..polled].iter().filter(|wc| wc.opcode == WcOpcode::Recv).count();
        self.received.set(self.received.get() + received);
        Ok(polled - received)
    }

    /// Writes a pattern into remote memory, reads it back and compares it.
    fn write_and_read(&self, remote_addr: u64, rkey: Stag, immediate: Option<u64>) -> Result<()> {
        self.mr.write(0, &pattern(7, self.size))?;
        let write = match immediate.map(u64::to_be_bytes) {
            Some(imm_data) => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data },
            None => SendOp::RdmaWrite { remote_addr, rkey },
        };
        let read = SendOp::RdmaRead { remote_addr, rkey };
        for (op, offset) in [(write, 0), (read, self.size)] {
            let sge = [self.mr.sge(offset.into(), self.size)];
            let wr = SendWr { wr_id: 0, op, data: Data::List(&sge), flags: SendFlags::SIGNALED };
            posted(self.qp.post_send(&[wr]), "post_send")?;
        }
        let mut done = 0;
        while done < 2 {
            done += self.poll()?;
        }
        let mut bytes = vec![0; self.size as usize];
        self.mr.read(self.size.into(), &mut bytes)?;
        ensure!(bytes == pattern(7, self.size), "other bytes come back");
        Ok(())
    }
}

fn cm_event(context: &Context) -> Result<CmEvent> {
    match context.wait_event(Duration::from_secs(20))?.context("no event")? {
        Event::Cm(event) => Ok(event),
        other => bail!("{other:?}"),
    }
}

/// Connects to a region service, with a request for remote read and write (docs/region-service.md).
pub(super) fn exchange_with_region(
    context: &Context,
    (peer, region): (SocketAddr, &str),
    immediate: Option<u64>,
    size: u32,
) -> Result<()> {
    let simple = Simple::new(context, size)?;
    let request = [b"IWR1".as_slice(), &[3, u8::try_from(region.len())?, 0, 0], region.as_bytes()].concat();
    let id = context.create_id(None)?;
    id.connect(&simple.qp, peer, &ConnParam { private_data: &request, ..ConnParam::default() })?;
    let event = cm_event(context)?;
    let CmEventKind::Established { private_data: reply, .. } = event.kind else { bail!("{event:?}") };
    let word = |at: usize| reply.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let (rkey, remote_addr) = word(8).zip(word(16)).context("a short reply")?;
    simple.write_and_read(remote_addr, Stag(u32::try_from(rkey >> 32)?), immediate)?;
    println!("{size} bytes written and read back, compared");
    Ok(())
}

/// Connects two queue pairs of this program with each other.
pub(super) fn exchange_with_itself(
    context: &Context,
    local: SocketAddr,
    size: u32,
    rounds: u32,
) -> Result<()> {
    let (client, server) = (Simple::new(context, size)?, Simple::new(context, size)?);
    let (listener, id) = (context.create_id(Some(local))?, context.create_id(None)?);
    listener.listen(NonZeroU16::MIN, &ConnParam::default())?;
    id.connect(&client.qp, local, &ConnParam::default())?;
    let event = cm_event(context)?;
    ensure!(matches!(event.kind, CmEventKind::ConnectRequest { .. }), "{event:?}");
    let accepted = context.id(event.id);
    let buffer = RecvWr { wr_id: 0, sg_list: &[client.mr.sge(0, 0)] };
    posted(client.qp.post_recv(&[buffer]), "post_recv")?;
    accepted.accept(&server.qp, b"")?;
    // A responder may post at once. The message follows the initiator's first one.
    let hello = SendWr::new(0, SendOp::SEND, &[]);
    posted(server.qp.post_send(&[hello]), "post_send")?;
    let mut established = None;
    while established != Some(id.handle()) {
        let event = cm_event(context)?;
        ensure!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
        established = Some(event.id);
    }
    for _ in 0..rounds {
        client.write_and_read(server.mr.addr(), server.mr.rkey(), None)?;
    }
    while client.received.get() == 0 {
        client.poll()?;
    }
    println!("{size} bytes written and read back, compared, {rounds} times");
    Ok(())
}
