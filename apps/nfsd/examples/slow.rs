//! A client of NFS version 3 over RDMA that writes a file of a frozen file system, and uses others meanwhile:
//!
//! ```text
//! slow VERBS-SOCKET RDMA-ADDRESS TCP-ADDRESS FOLDER SLOW-EXPORT FAST-EXPORT
//! ```
//! The first export has a file named `file`, the other one the files `0` to `127`. `FOLDER` is where the file system of
//! the first one is mounted, which fsfreeze(8) freezes: as a disk that answers nothing would, it delays a WRITE until
//! it is thawed.

mod client;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use client::{Client, DATA_AT, call, mount, result};
use iwarp_nfsd::Nfs3Proc;
use iwarp_rpc::header::ChunkLists;

/// Bytes of a READ or WRITE.
const BYTES: u32 = 200_000;
/// Files that are not slow. The kernel must not take one of them for the slow one: io-wq hashes files to 64 values.
const FILES: u32 = 128;
/// Time in which a call that waits for nothing is answered.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps a file system frozen until it is dropped.
struct Frozen<'a>(&'a str);

impl<'a> Frozen<'a> {
    fn new(folder: &'a str) -> Result<Self> {
        let status = Command::new("fsfreeze").args(["-f", folder]).status().context("fsfreeze")?;
        ensure!(status.success(), "fsfreeze -f {folder}: {status}");
        Ok(Self(folder))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").args(["-u", self.0]).status();
    }
}

#[allow(clippy::disallowed_methods, reason = "the time of calls is measured here")]
fn now() -> Instant {
    Instant::now()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verbs, rdma, tcp, folder, slow, fast] = &arguments[..] else {
        bail!("VERBS-SOCKET RDMA-ADDRESS TCP-ADDRESS FOLDER SLOW-EXPORT FAST-EXPORT");
    };
    let (rdma, tcp) = (rdma.parse()?, tcp.parse()?);
    let (slow_root, fast_root) = (mount(tcp, slow)?, mount(tcp, fast)?);
    let connect = || Client::connect(verbs, rdma, BYTES);
    let (mut waiting, mut other) = (connect()?, connect()?);
    let slow = waiting.lookup(&slow_root, "file")?;
    let fast = (0..FILES).map(|name| other.lookup(&fast_root, &name.to_string()));
    let fast = fast.collect::<Result<Vec<_>>>()?;
    let pattern = |seed: u32| (0..BYTES).map(|at| ((at ^ seed) % 251).to_le_bytes()[0]).collect::<Vec<u8>>();

    let frozen = Frozen::new(folder)?;
    waiting.mr.write(DATA_AT, &pattern(1))?;
    waiting.send_write(&slow, BYTES, 2)?;
    let mut slowest = Duration::ZERO;
    for (seed, fast) in (2..).zip(&fast) {
        let begin = now();
        other.mr.write(DATA_AT, &pattern(seed))?;
        other.send_write(fast, BYTES, seed % 3)?;
        ensure!(other.is_answered_within(PATIENCE)?, "a WRITE waits for another file");
        result(&other.reply()?)?;
        other.mr.write(DATA_AT, &pattern(0))?;
        ensure!(other.read(fast, BYTES)? == pattern(seed), "READ returns other bytes than were written");
        slowest = slowest.max(begin.elapsed());
    }
    println!("the slowest WRITE and READ of {FILES} other files: {slowest:?}");
    ensure!(!waiting.is_answered_within(Duration::ZERO)?, "the frozen file was written");
    drop(frozen);
    result(&waiting.reply()?)?;
    ensure!(waiting.read(&slow, BYTES)? == pattern(1), "the file has other bytes than were written");

    // A call that is no transfer waits in a system call of its own.
    let frozen = Frozen::new(folder)?;
    let mut setattr = call(waiting.xid, 100_003, Nfs3Proc::SETATTR);
    setattr.opaque(&slow);
    // The size, no other attribute, and no guard.
    [0, 0, 0, 1, 0, BYTES, 0, 0, 0].into_iter().for_each(|word| setattr.u32(word));
    waiting.send(&setattr, ChunkLists::default())?;
    let mut slowest = Duration::ZERO;
    for (seed, fast) in (2..).zip(&fast) {
        let begin = now();
        ensure!(other.read(fast, BYTES)? == pattern(seed), "READ returns other bytes");
        slowest = slowest.max(begin.elapsed());
    }
    println!("the slowest READ of {FILES} other files beside a SETATTR that waits: {slowest:?}");
    ensure!(slowest < PATIENCE, "a READ waits for a SETATTR");
    ensure!(!waiting.is_answered_within(Duration::ZERO)?, "the frozen file was changed");
    drop(frozen);
    result(&waiting.reply()?)?;

    // The connection ends while the call waits. A later WRITE of the same client must not be overtaken by it.
    let frozen = Frozen::new(folder)?;
    waiting.mr.write(DATA_AT, &pattern(30))?;
    waiting.send_write(&slow, BYTES, 0)?;
    ensure!(!waiting.is_answered_within(Duration::from_secs(1))?, "the frozen file was written");
    drop(waiting);
    let mut next = connect()?;
    next.mr.write(DATA_AT, &pattern(31))?;
    next.send_write(&slow, BYTES, 2)?;
    ensure!(!next.is_answered_within(Duration::from_secs(1))?, "the next WRITE does not wait");
    drop(frozen);
    result(&next.reply()?)?;
    ensure!(next.read(&slow, BYTES)? == pattern(31), "the former WRITE has overtaken the next one");
    println!("the WRITE of a connection that has ended comes before those of the next one");
    Ok(())
}
