//! Two programs that exchange data over queue pairs of `iwarpd`, and compare every byte.
//!
//! ```text
//! exchange --listen 10.0.0.2:7500                        one side
//! exchange --connect 10.0.0.2:7500 --connections 8       the other
//! ```
//! On each connection the client writes its pattern into the server's memory, the last part with Immediate Data. The
//! server compares it and answers with a Send. The client reads it back, and adds to a counter of the server. It then
//! binds a memory window and sends its key; the server writes through the window and invalidates it with its last Send.

mod simple;

use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use iwarp_verbs::{
    Access, AsyncEvent, AtomicOp, Bind, CmEventKind, CmId, CompletionQueue, ConnParam, Context, Data, Error,
    Event, Id, MemoryWindow, Mr, PostError, ProtectionDomain, QpCap, QpNum, QpOptions, QueuePair, RecvWr,
    SendFlags, SendOp, SendWr, Sge, SharedReceiveQueue, Stag, WcOpcode, WcStatus, WorkCompletion, inc_rkey,
};

/// Bytes of a message that names memory: address, key, length.
const MESSAGE: u32 = 16;
/// Parts in which a side writes its data.
const PARTS: u32 = 4;
/// Number that the client adds to the server's counter.
const ADDED: u64 = 3;

#[derive(Debug, Parser)]
struct Args {
    /// Verbs socket of the daemon.
    #[arg(long, default_value = iwarp_verbs::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Port of the daemon, by name; otherwise the first.
    #[arg(long, value_name = "PORT")]
    device: Option<String>,
    /// Address to listen at.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        required_unless_present = "connect",
        conflicts_with = "connect"
    )]
    listen: Option<SocketAddr>,
    /// Address of the server.
    #[arg(long, value_name = "ADDRESS:PORT")]
    connect: Option<SocketAddr>,
    /// Connections; a server ends after as many.
    #[arg(long, default_value_t = 1)]
    connections: u16,
    /// Bytes that each side writes per connection, at least 16.
    #[arg(long, default_value_t = 1 << 20)]
    size: u32,
    /// Region of the server, which is a region service, to write the bytes into and to read them back from.
    #[arg(long, requires = "connect")]
    region: Option<String>,
    /// Number to send as Immediate Data behind the Write into the region, for a program that watches it.
    #[arg(long, requires = "region")]
    immediate: Option<u64>,
    /// Connect to itself.
    #[arg(long, requires = "listen")]
    itself: bool,
    /// Writes and reads over the connection to itself, one pair after the other.
    #[arg(long, requires = "itself", default_value_t = 1)]
    rounds: u32,
    /// MPA revision that a client requests.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    mpa_revision: u8,
    /// Register memory of the program instead of memory that the daemon allocates.
    #[arg(long)]
    own: bool,
    /// Longest time for all, seconds.
    #[arg(long, default_value_t = 60)]
    timeout: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exchange: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
struct Remote {
    addr: u64,
    rkey: Stag,
    length: u32,
}

impl Remote {
    fn encode(self) -> [u8; MESSAGE as usize] {
        let mut bytes = [0; MESSAGE as usize];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let (addr, rest) = bytes.split_first_chunk().context("a message without an address")?;
        let (rkey, rest) = rest.split_first_chunk().context("a message without a key")?;
        let (length, _) = rest.split_first_chunk().context("a message without a length")?;
        Ok(Self {
            addr: u64::from_be_bytes(*addr),
            rkey: Stag(u32::from_be_bytes(*rkey)),
            length: u32::from_be_bytes(*length),
        })
    }
}

/// One connection, with memory for both patterns, a counter and messages.
#[derive(Debug)]
struct Conn {
    id: Id,
    qp: QueuePair,
    mr: Mr,
    window: MemoryWindow,
    /// Key that the window is bound with.
    bound: Stag,
    seed: u8,
    peer: Option<Remote>,
    done: bool,
    /// Requests posted and not completed.
    outstanding: Cell<u32>,
}

/// The objects that all connections share.
struct Program {
    args_size: u32,
    has_own_memory: bool,
    is_server: bool,
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    /// Receive buffers, 16 bytes each.
    buffers: Mr,
    conns: HashMap<QpNum, Conn>,
    by_id: HashMap<CmId, QpNum>,
    finished: u16,
    wanted: u16,
    /// Requests that were flushed.
    flushed: u32,
}

/// Registers allocated memory, which begins anywhere in a page.
#[allow(unsafe_code, reason = "registers memory that peers write; listed in UNSAFE.md")]
fn register_own(pd: &ProtectionDomain, length: usize, access: Access) -> Result<Mr> {
    // Never freed: a memory region may outlive this program's use of it. Aligned for the counter.
    let memory = vec![0_u64; length.div_ceil(8)].leak().as_mut_ptr();
    let address = NonNull::new(memory.cast()).context("memory")?;
    // SAFETY: allocated memory of this length, which nobody else knows, and which is not freed.
    Ok(unsafe { pd.reg_mr(address, length, access) }?)
}

fn pattern(seed: u8, size: u32) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(31) ^ (at >> 9)).to_le_bytes()[0].wrapping_add(seed)).collect()
}

#[allow(clippy::disallowed_methods, reason = "a program with a time limit reads the clock")]
fn run(args: &Args) -> Result<()> {
    ensure!(args.size >= MESSAGE, "--size: at least {MESSAGE}");
    let until = Instant::now() + Duration::from_secs(args.timeout);
    let queue_bytes = (1 << 20) + (u64::from(args.connections) << 16);
    let context = Context::open_sized(&args.socket, args.device.as_deref(), Some(queue_bytes))?;
    if let (Some(peer), Some(region)) = (args.connect, &args.region) {
        return simple::exchange_with_region(&context, (peer, region), args.immediate, args.size);
    }
    if let (Some(local), true) = (args.listen, args.itself) {
        return simple::exchange_with_itself(&context, local, args.size, args.rounds);
    }
    let mut program = Program::new(context, args)?;
    let param = ConnParam { revision: args.mpa_revision, ..ConnParam::default() };
    let mut listener = None;
    if let Some(local) = args.listen {
        let id = program.context.create_id(Some(local))?;
        id.listen(NonZeroU16::new(1024).context("a backlog")?, &param)?;
        println!("listening on {local}");
        listener = Some(id);
    } else if let Some(peer) = args.connect {
        for number in 0..args.connections {
            let id = program.context.create_id(None)?;
            let conn = program.conn(id, number.to_le_bytes()[0])?;
            let remote = conn.remote(args.size).encode();
            conn.id.connect(&conn.qp, peer, &ConnParam { private_data: &remote, ..param })?;
            program.add(conn);
        }
    }
    program.cq.req_notify(false);
    while program.finished < program.wanted {
        ensure!(Instant::now() < until, "{} of {} connections in time", program.finished, program.wanted);
        let mut busy = false;
        while let Some(event) = program.context.poll_event() {
            busy = true;
            program.event(event)?;
        }
        if program.conns.len() + usize::from(program.finished) == usize::from(program.wanted) {
            // No more connections; those that are open do not need the listener.
            drop(listener.take());
        }
        busy |= program.completions()?;
        if !busy {
            program.cq.req_notify(false);
            if !program.completions()? {
                program.context.wait(Duration::from_secs(1))?;
            }
        }
    }
    println!("{} connections, {} bytes each way and back, compared", program.finished, args.size);
    Ok(())
}

/// Returns the error of a call that posts requests, with its name.
fn posted(result: Result<(), (usize, PostError)>, call: &str) -> Result<()> {
    result.map_err(|(_, error)| anyhow::anyhow!("{call}: {error:?}"))
}

impl Program {
    fn new(context: Context, args: &Args) -> Result<Self> {
        let wanted = args.connections;
        let pd = context.alloc_pd()?;
        let depth = wanted.saturating_mul(4).max(64);
        let cq = context.create_cq(u32::from(depth) * 8)?;
        let srq = pd.create_srq(depth, 1)?;
        let length = u64::from(depth) * u64::from(MESSAGE);
        let buffers = pd.alloc_mr(length, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let program = Self {
            args_size: args.size,
            has_own_memory: args.own,
            is_server: args.listen.is_some(),
            context,
            pd,
            cq,
            srq,
            buffers,
            conns: HashMap::new(),
            by_id: HashMap::new(),
            finished: 0,
            wanted,
            flushed: 0,
        };
        for slot in 0..depth {
            program.post_recv(slot.into())?;
        }
        Ok(program)
    }

    /// Posts a receive buffer again.
    fn post_recv(&self, slot: u64) -> Result<()> {
        let sge = [self.buffers.sge(slot * u64::from(MESSAGE), MESSAGE)];
        posted(self.srq.post_recv(&[RecvWr { wr_id: slot, sg_list: &sge }]), "post_recv")
    }

    fn conn(&self, id: Id, seed: u8) -> Result<Conn> {
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 8, max_inline_data: 16, ..QpCap::default() };
        let options = QpOptions { srq: Some(&self.srq), cap, ..QpOptions::new(&self.cq) };
        let qp = self.pd.create_qp(&options)?;
        let all = [
            Access::LOCAL_READ,
            Access::LOCAL_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_ATOMIC,
            Access::WINDOW_BIND,
        ];
        let access = all.into_iter().fold(Access::NONE, |all, one| all | one);
        // Two patterns, then the counter and the result of an atomic operation.
        let length = counter_at(self.args_size) + 16;
        let mr = if self.has_own_memory {
            register_own(&self.pd, usize::try_from(length)?, access)?
        } else {
            self.pd.alloc_mr(length, access)?
        };
        let window = self.pd.alloc_mw()?;
        Ok(Conn {
            id,
            qp,
            mr,
            bound: window.window().rkey,
            window,
            seed,
            peer: None,
            done: false,
            outstanding: Cell::new(0),
        })
    }

    fn add(&mut self, conn: Conn) {
        self.by_id.insert(conn.id.handle(), conn.qp.num());
        self.conns.insert(conn.qp.num(), conn);
    }

    fn event(&mut self, event: Event) -> Result<()> {
        let event = match event {
            Event::Cm(event) => event,
            // A queue pair with a shared receive queue has ended; a link that is down may come up again.
            Event::Async(AsyncEvent::QpLastWqeReached(_)) | Event::PortActive | Event::PortDown => {
                return Ok(());
            }
            Event::Async(event) => bail!("{event:?}"),
            Event::DeviceFatal => return self.ended(),
        };
        match event.kind {
            CmEventKind::ConnectRequest { private_data, .. } => {
                let id = self.context.id(event.id);
                let mut conn = self.conn(id, 0)?;
                conn.peer = Some(Remote::decode(&private_data)?);
                let remote = conn.remote(self.args_size).encode();
                conn.id.accept(&conn.qp, &remote)?;
                self.add(conn);
            }
            CmEventKind::Established { private_data, .. } if !self.is_server => {
                let size = self.args_size;
                let conn = self.conn_of(event.id)?;
                conn.peer = Some(Remote::decode(&private_data)?);
                conn.write_pattern(size)?;
            }
            CmEventKind::Established { .. } => {}
            CmEventKind::Disconnected => {
                let conn = self.conn_of(event.id)?;
                ensure!(conn.done, "the peer has closed the connection before its end");
                let num = conn.qp.num();
                self.by_id.remove(&event.id);
                self.conns.remove(&num);
                self.finished += 1;
            }
            other => bail!("{other:?}"),
        }
        Ok(())
    }

    /// Checks that all work has completed and that no request is served any more.
    fn ended(&mut self) -> Result<()> {
        while self.completions()? {}
        let left: u32 = self.conns.values().map(|conn| conn.outstanding.get()).sum();
        ensure!(left == 0, "iwarpd has ended, and {left} requests have not completed");
        ensure!(matches!(self.context.alloc_pd(), Err(Error::Lost)), "a request after the end of iwarpd");
        bail!("iwarpd has ended: {} requests were flushed", self.flushed)
    }

    fn conn_of(&mut self, id: CmId) -> Result<&mut Conn> {
        let qp = self.by_id.get(&id).context("an event of an unknown connection")?;
        self.conns.get_mut(qp).context("an event of an unknown queue pair")
    }

    /// Handles all completions. Returns true if there was one.
    fn completions(&mut self) -> Result<bool> {
        let mut out = [WorkCompletion::default(); 32];
        let polled = self.cq.poll(&mut out).map_err(|error| anyhow::anyhow!("poll: {error:?}"))?;
        for wc in &out[..polled] {
            self.completion(wc)?;
        }
        Ok(polled > 0)
    }

    fn completion(&mut self, wc: &WorkCompletion) -> Result<()> {
        let size = self.args_size;
        let mut message = [0; MESSAGE as usize];
        if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) && wc.status == WcStatus::Success {
            self.buffers.read(wc.wr_id * u64::from(MESSAGE), &mut message)?;
            self.post_recv(wc.wr_id)?;
        }
        let is_server = self.is_server;
        let Some(conn) = self.conns.get_mut(&wc.qp_num) else { return Ok(()) };
        if !matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            conn.outstanding.set(conn.outstanding.get().saturating_sub(1));
        }
        if wc.status == WcStatus::WrFlushError {
            // An event tells why.
            self.flushed += 1;
            return Ok(());
        }
        ensure!(wc.status == WcStatus::Success, "{wc:?}");
        match wc.opcode {
            WcOpcode::RecvRdmaWithImm => conn.verify_and_answer(wc, size),
            WcOpcode::Recv if is_server => conn.write_through_window(Remote::decode(&message)?, size),
            WcOpcode::Recv if wc.invalidated.is_some() => {
                ensure!(wc.invalidated == Some(conn.bound), "another key was invalidated: {wc:?}");
                conn.compare(0, conn.seed.wrapping_add(1), size)?;
                conn.done = true;
                Ok(conn.id.disconnect()?)
            }
            WcOpcode::Recv => conn.read_back(size),
            WcOpcode::RdmaRead => conn.compare(u64::from(size), conn.seed, size),
            WcOpcode::BindMw => {
                let key = Remote { addr: conn.mr.addr(), rkey: conn.bound, length: size };
                conn.send(&key.encode(), None)
            }
            WcOpcode::FetchAdd => conn.bind_window(size),
            _ => Ok(()),
        }
    }
}

/// Returns the offset of the counter, behind two patterns.
fn counter_at(size: u32) -> u64 {
    (u64::from(size) * 2).next_multiple_of(8)
}

impl Conn {
    fn remote(&self, size: u32) -> Remote {
        Remote { addr: self.mr.addr(), rkey: self.mr.rkey(), length: size }
    }

    fn post(&self, op: SendOp, data: Data<'_>) -> Result<()> {
        let wr = SendWr { wr_id: 0, op, data, flags: SendFlags::SIGNALED };
        posted(self.qp.post_send(&[wr]), "post_send")?;
        self.outstanding.set(self.outstanding.get() + 1);
        Ok(())
    }

    fn send(&self, bytes: &[u8], invalidate: Option<Stag>) -> Result<()> {
        self.post(SendOp::Send { invalidate }, Data::Inline(bytes))
    }

    fn peer(&self) -> Result<Remote> {
        self.peer.context("no memory of the peer")
    }

    /// Writes a pattern into the first part of the memory, and that to the peer in parts, the last with Immediate Data.
    fn write_pattern(&self, size: u32) -> Result<()> {
        let peer = self.peer()?;
        self.mr.write(0, &pattern(self.seed, size))?;
        let part = size.div_ceil(PARTS);
        for start in (0..size).step_by(part as usize) {
            let length = part.min(size - start);
            let sge = [self.mr.sge(start.into(), length)];
            let (remote_addr, rkey) = (peer.addr + u64::from(start), peer.rkey);
            let op = if start + length == size {
                SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: u64::from(self.seed).to_be_bytes() }
            } else {
                SendOp::RdmaWrite { remote_addr, rkey }
            };
            self.post(op, Data::List(&sge))?;
        }
        Ok(())
    }

    fn compare(&self, offset: u64, seed: u8, size: u32) -> Result<()> {
        let mut bytes = vec![0; size as usize];
        self.mr.read(offset, &mut bytes)?;
        let expected = pattern(seed, size);
        let wrong = bytes.iter().zip(&expected).position(|(is, should)| is != should);
        ensure!(wrong.is_none(), "byte {wrong:?} of {size} is wrong");
        Ok(())
    }

    fn verify_and_answer(&mut self, wc: &WorkCompletion, size: u32) -> Result<()> {
        let [.., seed] = wc.imm_data.context("no Immediate Data")?;
        self.seed = seed;
        self.compare(0, seed, size)?;
        self.send(b"as expected", None)
    }

    /// Reads the peer's memory back, and adds to its counter behind that.
    fn read_back(&self, size: u32) -> Result<()> {
        let Remote { addr, rkey, .. } = self.peer()?;
        let sge = [self.mr.sge(size.into(), size)];
        self.post(SendOp::RdmaRead { remote_addr: addr, rkey }, Data::List(&sge))?;
        let counter = addr + counter_at(size);
        let op = AtomicOp::FetchAdd { add: ADDED, mask: 0 };
        let result: [Sge; 1] = [self.mr.sge(counter_at(size) + 8, 8)];
        self.post(SendOp::Atomic { remote_addr: counter, rkey, op }, Data::List(&result))
    }

    fn bind_window(&mut self, size: u32) -> Result<()> {
        let mut original = [0xff; 8];
        self.mr.read(counter_at(size) + 8, &mut original)?;
        ensure!(original == [0; 8], "the counter was {original:?}");
        self.bound = inc_rkey(self.bound);
        let bind = Bind {
            lkey: self.mr.lkey(),
            address: self.mr.addr(),
            len: size.into(),
            zero_based: false,
            access: Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE,
        };
        self.post(SendOp::BindMw { mw: self.window.window().id, rkey: self.bound, bind }, Data::List(&[]))
    }

    /// The client's atomic operation came before this message.
    fn write_through_window(&mut self, window: Remote, size: u32) -> Result<()> {
        let mut counter = [0; 8];
        self.mr.read(counter_at(size), &mut counter)?;
        ensure!(u64::from_ne_bytes(counter) == ADDED, "the counter is {counter:?}");
        self.mr.write(u64::from(size), &pattern(self.seed.wrapping_add(1), size))?;
        let sge = [self.mr.sge(size.into(), window.length)];
        self.post(SendOp::RdmaWrite { remote_addr: window.addr, rkey: window.rkey }, Data::List(&sge))?;
        self.done = true;
        self.send(b"written", Some(window.rkey))
    }
}
