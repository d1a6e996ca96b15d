//! Memory in a file of a FUSE server that goes silent: a program that reads it waits as long as the server likes.
//!
//! The server is another program, of root: this case is a program without rights that maps the server's file, registers
//! it, and has the daemon read and write it.
#![allow(unsafe_code, reason = "maps a file, and registers the mapping")]

use std::fs::OpenOptions;
use std::io::stdin;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use iwarp_verbs::{
    Access, AtomicOp, CompletionQueue, Context, Data, ProtectionDomain, QpOptions, SendFlags, SendOp, SendWr,
    Stag, WcStatus, WorkCompletion,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde_json::{Value, json};

use super::{Attack, Target, honest};

/// Bytes of the file, and of its part that the server answers for.
const FILE_BYTES: usize = 1 << 20;
const ANSWERED: usize = 64 << 10;
/// Bytes of each request.
const BYTES: usize = 64;
/// Longest time in which a request must fail: the daemon's limit, and time to spare.
pub(super) const FAILS_WITHIN: Duration = Duration::from_secs(4);

#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// File of the silent server
    #[arg(long)]
    file: PathBuf,
    /// Address of the daemon's port, and a free port number
    #[arg(long)]
    local: SocketAddr,
}

pub(super) fn run(options: &Options) -> Result<Attack> {
    let file = OpenOptions::new().read(true).write(true).open(&options.file)?;
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping, which lives as long as the program.
    let start = unsafe {
        mmap(std::ptr::null_mut(), FILE_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)?
    };
    let start = NonNull::new(start.cast::<u8>()).context("no mapping")?;
    let context = Context::open(&options.target.socket, None)?;
    let pd = context.alloc_pd()?;
    // SAFETY: inside the mapping.
    let silent = unsafe { start.add(ANSWERED * 4) };
    let connect = |port, memory| {
        let local = SocketAddr::new(options.local.ip(), options.local.port() + port);
        connected(&context, &pd, memory, local)
    };
    let answered = connect(0, start)?;
    let all = [connect(1, silent)?, connect(2, silent)?, connect(3, silent)?];
    // From here on the program maps and unmaps nothing: a copy that waits for the server locks its address space.
    let (status, _) = answered.request(&context, 0)?;
    ensure!(status == WcStatus::Success, "an answered page: {status:?}");
    let (mut failed, mut longest) = (0, Duration::ZERO);
    for (connection, kind) in all.iter().zip(0..) {
        let (status, took) = connection.request(&context, kind)?;
        ensure!(status != WcStatus::Success, "the server has answered for a silent page");
        ensure!(took < FAILS_WITHIN, "a request has failed after {took:?} only");
        (failed, longest) = (failed + 1, longest.max(took));
    }
    ensure!(longest > Duration::from_millis(500), "no request has waited for the server: {longest:?}");
    let report = json!({ "case": "fuse", "failed": failed, "longest_ms": longest.as_millis() });
    std::thread::sleep(options.target.end().saturating_duration_since(Instant::now()));
    Ok((report, Box::new((context, pd, file, answered, all))))
}

/// A connection of the program with itself, and memory at its other end.
pub(super) struct Connection {
    cq: CompletionQueue,
    pair: honest::Pair,
    addr: u64,
    rkey: Stag,
}

pub(super) fn connected(
    context: &Context,
    pd: &ProtectionDomain,
    memory: NonNull<u8>,
    local: SocketAddr,
) -> Result<Connection> {
    let cq = context.create_cq(16)?;
    let local_access = Access::LOCAL_READ | Access::LOCAL_WRITE;
    let remote_access = local_access | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let own = pd.alloc_mr(BYTES as u64, local_access)?;
    // SAFETY: the mapping lives as long as the program.
    let remote = unsafe { pd.reg_mr(memory, BYTES, remote_access)? };
    let qps = (pd.create_qp(&QpOptions::new(&cq))?, pd.create_qp(&QpOptions::new(&cq))?);
    let (addr, rkey) = (remote.addr(), remote.rkey());
    let pair = honest::connect(context, local, qps, (own, remote))?;
    Ok(Connection { cq, pair, addr, rkey })
}

impl Connection {
    /// Reads from the memory (kind 0), writes to it (1) or adds to a number in it (2). Returns the status and the
    /// time that it took.
    pub(super) fn request(&self, context: &Context, kind: u8) -> Result<(WcStatus, Duration)> {
        let Self { cq, pair, addr, rkey } = self;
        let (remote_addr, rkey) = (*addr, *rkey);
        let began = Instant::now();
        let op = match kind {
            1 => SendOp::RdmaWrite { remote_addr, rkey },
            2 => SendOp::Atomic { remote_addr, rkey, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
            _ => SendOp::RdmaRead { remote_addr, rkey },
        };
        let length = if kind == 2 { 8 } else { u32::try_from(BYTES)? };
        let sge = [pair.memory.sge(0, length)];
        // A Read behind the Write completes only when the bytes are in memory.
        let read = SendOp::RdmaRead { remote_addr, rkey };
        let wr = |op| SendWr { wr_id: 0, op, data: Data::List(&sge), flags: SendFlags::SIGNALED };
        let requests = if kind == 1 { vec![wr(op), wr(read)] } else { vec![wr(op)] };
        let mut left = requests.len();
        cq.req_notify(false);
        pair.client.post_send(&requests).map_err(|(_, error)| anyhow!("post_send: {error:?}"))?;
        let mut status = WcStatus::Success;
        while left > 0 {
            let mut out = [WorkCompletion::default(); 4];
            let taken = cq.poll(&mut out).map_err(|error| anyhow!("poll: {error:?}"))?;
            for wc in out.iter().take(taken) {
                left = left.saturating_sub(1);
                if status == WcStatus::Success {
                    status = wc.status;
                }
            }
            if left > 0 && taken == 0 {
                cq.req_notify(false);
                context.wait_completion(Duration::from_millis(50))?;
                ensure!(began.elapsed() < FAILS_WITHIN * 2, "no completion after {:?}", began.elapsed());
            }
        }
        Ok((status, began.elapsed()))
    }
}

/// Serves a file system of one file over the descriptor of `/dev/fuse` that is standard input. Answers no READ behind
/// the first bytes of the file.
pub(super) fn serve() -> Result<Value> {
    let device = stdin();
    let mut buffer = vec![0; 1 << 20];
    let mut silent = 0_u64;
    loop {
        let length = match rustix::io::read(device.as_fd(), &mut buffer) {
            Ok(length) => length,
            // Unmounted.
            Err(rustix::io::Errno::NODEV) => return Ok(json!({ "case": "fuse-server", "silent": silent })),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let request = buffer.get(..length).context("a request")?;
        let answer = match word(request, 4)? {
            26 => Some(init()),
            1 if request.get(40..) == Some(b"file\0".as_slice()) => Some(entry()),
            1 => Some(Err(2)),
            3 => Some(Ok([&1_u64.to_ne_bytes()[..], &[0; 8], &attributes(node(request)?)].concat())),
            14 | 27 => Some(Ok(vec![0; 16])),
            15 => read(request)?,
            18 | 25 | 29 => Some(Ok(Vec::new())),
            // FORGET, BATCH_FORGET and INTERRUPT have no answer.
            2 | 36 | 42 => continue,
            _ => Some(Err(38)),
        };
        let Some(answer) = answer else {
            silent += 1;
            continue;
        };
        let (error, body) = answer.map_or_else(|error: i32| (-error, Vec::new()), |body| (0, body));
        let unique = request.get(8..16).context("a number")?;
        let total = u32::try_from(16 + body.len())?;
        let reply = [&total.to_ne_bytes()[..], &error.to_ne_bytes(), unique, &body].concat();
        match rustix::io::write(device.as_fd(), &reply) {
            // The request was interrupted meanwhile.
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => bail!("an answer to request {}: {error}", word(request, 4)?),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).context("a short request")?;
    Ok(u32::from_ne_bytes(*bytes))
}

fn node(request: &[u8]) -> Result<u64> {
    Ok(word(request, 16)?.into())
}

/// Answer to INIT (`fuse_init_out`): version 7.31, no read-ahead.
fn init() -> Result<Vec<u8>, i32> {
    let mut out = Vec::with_capacity(64);
    for value in [7_u32, 31, 0, 0, 0, 1 << 17, 1, 0] {
        out.extend(value.to_ne_bytes());
    }
    out.resize(64, 0);
    Ok(out)
}

/// Answer to LOOKUP of the file (`fuse_entry_out`).
fn entry() -> Result<Vec<u8>, i32> {
    let mut out = Vec::with_capacity(128);
    for value in [2_u64, 1, 1000, 1000, 0] {
        out.extend(value.to_ne_bytes());
    }
    out.extend(attributes(2));
    Ok(out)
}

/// Attributes (`fuse_attr`) of the directory, node 1, or the file.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size): (u32, u64) = if node == 1 { (0o040_755, 0) } else { (0o100_666, FILE_BYTES as u64) };
    let mut out = Vec::with_capacity(88);
    for value in [node, size, size / 512, 0, 0, 0] {
        out.extend(value.to_ne_bytes());
    }
    for value in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0_u32] {
        out.extend(value.to_ne_bytes());
    }
    out
}

/// Answer to READ: zeros at the start of the file, and none behind.
fn read(request: &[u8]) -> Result<Option<Result<Vec<u8>, i32>>> {
    let (offset, size) = (word(request, 48)? as usize, word(request, 56)? as usize);
    Ok((offset < ANSWERED).then(|| Ok(vec![0; size])))
}
