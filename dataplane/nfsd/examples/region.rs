//! A client of NFS version 3 over RDMA that writes a region as a file, reads it back, and compares both with the
//! memory:
//!
//! ```text
//! region VERBS-SOCKET CONTROL-SOCKET RDMA-ADDRESS TCP-ADDRESS EXPORT NAME BYTES
//! ```
//! It is a program of the same daemon as the server. WRITE and READ move `BYTES` bytes, each in one chunk.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use iwarp_rpc::header::{Body, ChunkLists, Header, ReadSegment, Segment, VERSION};
use iwarp_rpc::xdr::{Reader, Writer};
use iwarp_verbs::{
    Access, CmEventKind, CompletionQueue, ConnParam, Context, Data, Event, Id, Mr, QpCap, QpOptions,
    QueuePair, RecvWr, SendOp, SendWr, WcStatus, WorkCompletion,
};

/// Bytes of a message.
const INLINE: u32 = 4096;
/// Offset of the data of a call, behind a message to send and a received one.
const DATA_AT: u64 = 8192;

/// Returns a call without a credential, up to its arguments.
fn call(xid: u32, program: u32, procedure: u32) -> Writer {
    let mut out = Writer::new();
    [xid, 0, 2, program, 3, procedure, 0, 0, 0, 0].into_iter().for_each(|word| out.u32(word));
    out
}

/// Returns the result of a call that was executed.
fn result(reply: &[u8]) -> Result<Reader<'_>> {
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
fn mount(server: SocketAddr, export: &str) -> Result<Vec<u8>> {
    let mut out = call(1, 100_005, 1);
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

/// A connection over RDMA, with one call at a time.
struct Client {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    /// A message to send, a received one, and the data of a call.
    mr: Mr,
    _id: Id,
    xid: u32,
}

impl Client {
    fn connect(socket: &str, server: SocketAddr, bytes: u32) -> Result<Self> {
        let context = Context::open(socket, None)?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16)?;
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
        let qp = pd.create_qp(&QpOptions { cap, ..QpOptions::new(&cq) })?;
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = pd.alloc_mr(u64::from(INLINE) * 2 + u64::from(bytes), local | remote)?;
        let id = context.create_id(None)?;
        id.connect(&qp, server, &ConnParam::default())?;
        match context.wait_event(Duration::from_secs(20))?.context("no answer")? {
            Event::Cm(event) if matches!(event.kind, CmEventKind::Established { .. }) => {}
            other => bail!("{other:?}"),
        }
        Ok(Self { context, cq, qp, mr, _id: id, xid: 10 })
    }

    /// Returns the memory of a call's data, as a chunk names it.
    fn chunk(&self, length: u32) -> Segment {
        Segment { stag: self.mr.rkey(), length, offset: self.mr.addr() + DATA_AT }
    }

    /// Sends a call and returns the reply's payload stream.
    fn exchange(&mut self, stream: &Writer, lists: ChunkLists) -> Result<Vec<u8>> {
        let mut message = Writer::new();
        Header { xid: self.xid, version: VERSION, credits: 1, body: Body::Msg(lists) }.emit(&mut message);
        message.fixed(stream.bytes());
        self.mr.write(0, message.bytes())?;
        let buffer = RecvWr { wr_id: 1, sg_list: &[self.mr.sge(INLINE.into(), INLINE)] };
        self.qp.post_recv(&[buffer]).map_err(|(_, error)| anyhow::anyhow!("post_recv: {error:?}"))?;
        let sge = [self.mr.sge(0, u32::try_from(message.position())?)];
        let send = SendWr { data: Data::List(&sge), ..SendWr::new(0, SendOp::SEND, &[]) };
        self.qp.post_send(&[send]).map_err(|(_, error)| anyhow::anyhow!("post_send: {error:?}"))?;
        let length = self.receive()?;
        let mut reply = vec![0; length as usize];
        self.mr.read(INLINE.into(), &mut reply)?;
        let (header, stream) = Header::parse(&reply, 16).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        ensure!(header.xid == self.xid && matches!(header.body, Body::Msg(_)), "{header:?}");
        self.xid += 1;
        Ok(stream.to_vec())
    }

    fn receive(&self) -> Result<u32> {
        let mut out = [WorkCompletion::default(); 4];
        loop {
            self.cq.req_notify(false);
            let polled = self.cq.poll(&mut out).map_err(|error| anyhow::anyhow!("poll: {error:?}"))?;
            for wc in &out[..polled] {
                ensure!(wc.status == WcStatus::Success, "{wc:?}");
                if wc.wr_id == 1 {
                    return Ok(wc.byte_len);
                }
            }
            if polled == 0 {
                self.context.wait(Duration::from_secs(1))?;
            }
        }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verbs, control, rdma, tcp, export, name, bytes] = &arguments[..] else {
        bail!("VERBS-SOCKET CONTROL-SOCKET RDMA-ADDRESS TCP-ADDRESS EXPORT NAME BYTES");
    };
    let bytes: u32 = bytes.parse()?;
    let root = mount(tcp.parse()?, export)?;
    let mut client = Client::connect(verbs, rdma.parse()?, bytes)?;
    let mut lookup = call(client.xid, 100_003, 3);
    lookup.opaque(&root);
    lookup.opaque(name.as_bytes());
    let reply = client.exchange(&lookup, ChunkLists::default())?;
    let file = result(&reply)?.opaque(64)?.to_vec();

    let data: Vec<u8> = (0..bytes).map(|at| (at % 251).to_le_bytes()[0]).collect();
    client.mr.write(DATA_AT, &data)?;
    let mut write = call(client.xid, 100_003, 7);
    write.opaque(&file);
    write.u64(0);
    [bytes, 0, bytes].into_iter().for_each(|word| write.u32(word));
    let read = ReadSegment { position: u32::try_from(write.position())?, segment: client.chunk(bytes) };
    client
        .exchange(&write, ChunkLists { reads: vec![read], ..ChunkLists::default() })
        .map(|reply| result(&reply).map(|_| ()))??;
    let region = iwarp_verbs::attach(control, name)?;
    let mut memory = vec![0; bytes as usize];
    region.read(0, &mut memory)?;
    ensure!(memory == data, "the region has other bytes than were written");

    // Changed without NFS, and read by NFS.
    memory.reverse();
    region.write(0, &memory)?;
    let mut read = call(client.xid, 100_003, 6);
    read.opaque(&file);
    read.u64(0);
    read.u32(bytes);
    let lists = ChunkLists { writes: vec![vec![client.chunk(bytes)]], ..ChunkLists::default() };
    let reply = client.exchange(&read, lists)?;
    result(&reply)?;
    let mut returned = vec![0; bytes as usize];
    client.mr.read(DATA_AT, &mut returned)?;
    ensure!(returned == memory, "READ returns other bytes than the region has");
    println!("{bytes} bytes written and read");
    Ok(())
}
