//! Reads a file of an NFS 3 server again and again, and prints rate and CPU time: over RDMA with write chunks, over
//! RDMA with reply chunks, or over TCP. `make nfs-figures`.
//!
//! ```text
//! reader --tcp 10.78.0.2:20050 --path /data --file big --by write-chunk --rdma 10.77.0.2:20049 --socket verbs.sock
//! ```
//! With write chunks, the server places the data where the client wants it (RFC 8166 §3.4.6). With a reply chunk, data
//! and results arrive as one message, out of which the client copies the data, as it does without RDMA. Over TCP, the
//! client receives each reply's results first, so that the kernel copies the data to where it is wanted.

mod rdma;
mod rpc;
mod tcp;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};

use rpc::Target;

/// How the data of a READ reaches the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// RDMA Writes to the memory that the data is wanted in.
    WriteChunk,
    /// RDMA Writes of the whole reply, and a copy of the data out of it.
    ReplyChunk,
    /// The stream of a TCP connection.
    Tcp,
}

#[derive(Debug, Parser)]
#[command(about = "Measures READ of NFS 3")]
struct Args {
    /// Address of MOUNT and NFS over TCP
    #[arg(long)]
    tcp: SocketAddr,
    /// Address of NFS over RDMA
    #[arg(long)]
    rdma: Option<SocketAddr>,
    /// Verbs socket of the client's daemon
    #[arg(long, default_value = iwarp_verbs::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Path of the export
    #[arg(long)]
    path: String,
    /// Name of the file in it
    #[arg(long)]
    file: String,
    /// How the data reaches the client
    #[arg(long, value_enum)]
    by: By,
    /// Number of bytes of a READ
    #[arg(long, default_value_t = 262_144)]
    size: u32,
    /// Number of READs at a time
    #[arg(long, default_value_t = 8)]
    depth: u32,
    /// Length of the measurement in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The same file on this machine, to compare the data with before it is measured
    #[arg(long)]
    same_as: PathBuf,
    /// Process of the server, once for each
    #[arg(long, value_name = "PID")]
    server: Vec<u32>,
    /// Process of the client besides this one, once for each
    #[arg(long, value_name = "PID")]
    client: Vec<u32>,
}

/// A connection that READs are sent on, several at a time.
trait Transport {
    /// Sends a READ of the whole slot's size at an offset.
    fn send(&mut self, slot: u32, offset: u64) -> Result<()>;
    /// Waits for the reply to any READ. Returns its slot and the number of bytes that it has brought.
    fn reply(&mut self) -> Result<(u32, u32)>;
    /// Returns the data of the slot's latest READ.
    fn data(&self, slot: u32, length: u32) -> Result<Vec<u8>>;
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("reader: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<String> {
    ensure!(args.size >= 4096 && args.depth >= 1, "a READ of 4096 bytes at least, and one at a time");
    let mut control = tcp::Rpc::connect(args.tcp)?;
    let target = control.find(&args.path, &args.file)?;
    ensure!(target.bytes >= u64::from(args.size), "the file is shorter than a READ");
    let mut transport: Box<dyn Transport> = match args.by {
        By::Tcp => Box::new(tcp::Reads::new(control, target.clone(), args.size, args.depth)),
        by => {
            let address = args.rdma.context("--rdma is missing")?;
            let whole = by == By::ReplyChunk;
            Box::new(rdma::Reads::connect(
                &args.socket,
                address,
                target.clone(),
                args.size,
                args.depth,
                whole,
            )?)
        }
    };
    compare(transport.as_mut(), args, &target)?;
    measure(transport.as_mut(), args, &target)
}

/// Number of READs of the whole size that a file has.
fn reads(args: &Args, target: &Target) -> u64 {
    target.bytes.checked_div(args.size.into()).unwrap_or(0)
}

/// Reads the file once, and compares every byte.
fn compare(transport: &mut dyn Transport, args: &Args, target: &Target) -> Result<()> {
    let expected = std::fs::read(&args.same_as)?;
    for read in 0..reads(args, target) {
        let offset = read.saturating_mul(args.size.into());
        transport.send(0, offset)?;
        let (slot, length) = transport.reply()?;
        ensure!(length == args.size, "a short READ: {length} bytes at {offset}");
        let start = usize::try_from(offset)?;
        let end = start.saturating_add(length as usize);
        ensure!(
            expected.get(start..end) == Some(&transport.data(slot, length)?[..]),
            "wrong data at {offset}"
        );
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Keeps `depth` READs in flight until the time has passed; returns a line of JSON.
fn measure(transport: &mut dyn Transport, args: &Args, target: &Target) -> Result<String> {
    let mut offsets = (0..reads(args, target)).map(|read| read.saturating_mul(args.size.into())).cycle();
    let mut next = || offsets.next().unwrap_or(0);
    let mut own = args.client.clone();
    own.push(std::process::id());
    let before = (cpu_ticks(&args.server)?, cpu_ticks(&own)?);
    let begin = now();
    let length = Duration::from_secs_f64(args.seconds);
    for slot in 0..args.depth {
        transport.send(slot, next())?;
    }
    let (mut in_flight, mut bytes) = (args.depth, 0_u64);
    while in_flight > 0 {
        let (slot, length_read) = transport.reply()?;
        ensure!(length_read == args.size, "a short READ");
        bytes = bytes.saturating_add(length_read.into());
        if begin.elapsed() < length {
            transport.send(slot, next())?;
        } else {
            in_flight = in_flight.saturating_sub(1);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let server = seconds_of(cpu_ticks(&args.server)?.saturating_sub(before.0));
    let client = seconds_of(cpu_ticks(&own)?.saturating_sub(before.1));
    let gib = bytes as f64 / f64::from(1 << 30);
    Ok(format!(
        "{{\"by\":\"{:?}\",\"size\":{},\"depth\":{},\"bytes\":{bytes},\"seconds\":{seconds:.3},\"mb_per_s\":{:.1},\
         \"server_cpu_s_per_gib\":{:.3},\"client_cpu_s_per_gib\":{:.3}}}",
        args.by,
        args.size,
        args.depth,
        bytes as f64 / seconds / 1e6,
        server / gib,
        client / gib,
    ))
}

/// Clock ticks that processes have run, in user mode and in the kernel (`utime` and `stime` of proc(5)).
fn cpu_ticks(processes: &[u32]) -> Result<u64> {
    let ticks = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
        // The second field is the name in parentheses, which may have spaces.
        let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
        let times = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
        times.sum::<Result<u64, _>>().context("no times in stat")
    };
    processes.iter().map(ticks).sum()
}

/// Clock ticks per second in proc(5): USER_HZ, which is 100 on x86-64.
const TICKS_PER_S: f64 = 100.0;

fn seconds_of(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_S
}
