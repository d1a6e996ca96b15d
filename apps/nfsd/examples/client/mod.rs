//! A client of NFS version 3 over RDMA, with one call at a time.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use iwarp_nfsd::{MountProc, Nfs3Proc};
use iwarp_rpc::header::{Body, ChunkLists, Header, ReadSegment, Segment, VERSION};
use iwarp_rpc::xdr::{Reader, Writer};
use iwarp_verbs::{
    Access, CmEventKind, CompletionQueue, ConnParam, Context, Data, Event, Id, Mr, QpCap, QpOptions,
    QueuePair, RecvWr, SendOp, SendWr, WcStatus, WorkCompletion,
};

/// Bytes of a message.
const INLINE: u32 = 4096;
/// Offset of the data of a call, behind a message to send and a received one.
pub(crate) const DATA_AT: u64 = 8192;

/// Returns a call without a credential, up to its arguments.
pub(crate) fn call(xid: u32, program: u32, procedure: impl Into<u32>) -> Writer {
    let mut out = Writer::new();
    [xid, 0, 2, program, 3, procedure.into(), 0, 0, 0, 0].into_iter().for_each(|word| out.u32(word));
    out
}

/// Returns the result of a call that was executed.
pub(crate) fn result(reply: &[u8]) -> Result<Reader<'_>> {
    let mut reader = Reader::new(reply.get(4..).context("a short reply")?);
    ensure!(
        reader.fixed(20)? == [0, 0, 0, 1].into_iter().chain([0; 16]).collect::<Vec<u8>>(),
        "not executed: {reply:?}"
    );
    let status = reader.u32()?;
    ensure!(status == 0, "status {status}");
    Ok(reader)
}

/// Mounts an export, over TCP.
pub(crate) fn mount(server: SocketAddr, export: &str) -> Result<Vec<u8>> {
    let mut out = call(1, 100_005, MountProc::MNT);
    out.opaque(export.as_bytes());
    let message = out.into_bytes();
    let mut tcp = TcpStream::connect(server)?;
    let mark = u32::try_from(message.len())? | 1 << 31;
    tcp.write_all(&[&mark.to_be_bytes(), &message[..]].concat())?;
    let mut mark = [0; 4];
    tcp.read_exact(&mut mark)?;
    let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    tcp.read_exact(&mut reply)?;
    Ok(result(&reply)?.opaque(64)?.to_vec())
}

/// A connection over RDMA.
pub(crate) struct Client {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    /// A message to send, a received one, and the data of a call.
    pub(crate) mr: Mr,
    _id: Id,
    pub(crate) xid: u32,
    /// Length of a reply that was not looked at yet.
    received: Option<u32>,
}

impl Client {
    pub(crate) fn connect(socket: &str, server: SocketAddr, bytes: u32) -> Result<Self> {
        Self::on(Context::open(socket, None)?, server, bytes)
    }

    /// Connects by a device, with memory for this many bytes of data.
    pub(crate) fn on(context: Context, server: SocketAddr, bytes: u32) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16)?;
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
        let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(&cq) })?;
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = pd.alloc_mr(u64::from(INLINE) * 2 + u64::from(bytes), local | remote)?;
        let id = context.create_id(None)?;
        id.connect(&qp, server, &ConnParam::default())?;
        loop {
            match context.wait_event(Duration::from_secs(20))?.context("no answer")? {
                Event::Cm(event) if matches!(event.kind, CmEventKind::Established { .. }) => break,
                Event::PortActive => {}
                other => bail!("{other:?}"),
            }
        }
        Ok(Self { context, cq, qp, mr, _id: id, xid: 10, received: None })
    }

    /// Returns the memory of a call's data, as a chunk names it.
    pub(crate) fn chunk(&self, length: u32) -> Segment {
        Segment { stag: self.mr.rkey(), length, offset: self.mr.addr() + DATA_AT }
    }

    /// Finds a name in a directory.
    pub(crate) fn lookup(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>> {
        let mut lookup = call(self.xid, 100_003, Nfs3Proc::LOOKUP);
        lookup.opaque(directory);
        lookup.opaque(name.as_bytes());
        let reply = self.exchange(&lookup, ChunkLists::default())?;
        Ok(result(&reply)?.opaque(64)?.to_vec())
    }

    /// Sends a WRITE of the data at the start of a file, which is in the client's memory. `stable` is that of RFC 1813
    /// §3.3.7: 0, or 2 for data that is on disk when it is answered.
    pub(crate) fn send_write(&mut self, file: &[u8], bytes: u32, stable: u32) -> Result<()> {
        let mut write = call(self.xid, 100_003, Nfs3Proc::WRITE);
        write.opaque(file);
        write.u64(0);
        [bytes, stable, bytes].into_iter().for_each(|word| write.u32(word));
        let read = ReadSegment { position: u32::try_from(write.position())?, segment: self.chunk(bytes) };
        self.send(&write, ChunkLists { reads: vec![read], ..ChunkLists::default() })
    }

    /// Reads the start of a file.
    pub(crate) fn read(&mut self, file: &[u8], bytes: u32) -> Result<Vec<u8>> {
        let mut read = call(self.xid, 100_003, Nfs3Proc::READ);
        read.opaque(file);
        read.u64(0);
        read.u32(bytes);
        let lists = ChunkLists { writes: vec![vec![self.chunk(bytes)]], ..ChunkLists::default() };
        let reply = self.exchange(&read, lists)?;
        result(&reply)?;
        let mut returned = vec![0; bytes as usize];
        self.mr.read(DATA_AT, &mut returned)?;
        Ok(returned)
    }

    /// Sends a call and returns the reply's payload stream.
    pub(crate) fn exchange(&mut self, stream: &Writer, lists: ChunkLists) -> Result<Vec<u8>> {
        self.send(stream, lists)?;
        self.reply()
    }

    /// Sends a call.
    pub(crate) fn send(&mut self, stream: &Writer, lists: ChunkLists) -> Result<()> {
        let mut message = Writer::new();
        Header { xid: self.xid, version: VERSION, credits: 1, body: Body::Msg(lists) }.emit(&mut message);
        message.fixed(stream.bytes());
        self.mr.write(0, message.bytes())?;
        let buffer = RecvWr { wr_id: 1, sg_list: &[self.mr.sge(INLINE.into(), INLINE)] };
        self.qp.post_recv(&[buffer]).map_err(|(_, error)| anyhow::anyhow!("post_recv: {error:?}"))?;
        let sge = [self.mr.sge(0, u32::try_from(message.position())?)];
        let send = SendWr { data: Data::List(&sge), ..SendWr::new(0, SendOp::SEND, &[]) };
        self.qp.post_send(&[send]).map_err(|(_, error)| anyhow::anyhow!("post_send: {error:?}"))
    }

    /// Returns true if the call that was sent is answered within this time.
    pub(crate) fn is_answered_within(&mut self, time: Duration) -> Result<bool> {
        if self.received.is_none() {
            self.received = self.receive(time)?;
        }
        Ok(self.received.is_some())
    }

    /// Waits for the reply to the call that was sent, and returns its payload stream.
    pub(crate) fn reply(&mut self) -> Result<Vec<u8>> {
        self.is_answered_within(Duration::MAX)?;
        let length = self.received.take().context("no reply")?;
        let mut reply = vec![0; length as usize];
        self.mr.read(INLINE.into(), &mut reply)?;
        let (header, stream) = Header::parse(&reply, 16).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        ensure!(header.xid == self.xid && matches!(header.body, Body::Msg(_)), "{header:?}");
        self.xid += 1;
        Ok(stream.to_vec())
    }

    /// Returns the length of the next message.
    #[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
    fn receive(&self, time: Duration) -> Result<Option<u32>> {
        let mut out = [WorkCompletion::default(); 4];
        let begin = Instant::now();
        loop {
            self.cq.req_notify(false);
            let polled = self.cq.poll(&mut out).map_err(|error| anyhow::anyhow!("poll: {error:?}"))?;
            for wc in &out[..polled] {
                ensure!(wc.status == WcStatus::Success, "{wc:?}");
                if wc.wr_id == 1 {
                    return Ok(Some(wc.byte_len));
                }
            }
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if polled == 0 {
                self.context.wait(left.min(Duration::from_secs(1)))?;
            }
        }
    }
}
