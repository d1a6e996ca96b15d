//! A file into a peer's region: RDMA Writes, then an RDMA Read that proves that they were placed.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use iwarp_control::Exit;
use rdma::Access;

use super::link::{Link, Reach};
use super::{Transfer, Way, progress, readback};
use crate::args::Put;
use crate::clock::Clock;
use crate::failure::Failure;
use crate::output::Output;

/// Octets of one RDMA Write.
const PIECE: u32 = 512 << 10;
/// Writes whose octets wait in the window.
const PIECES: u32 = 4;

pub(super) fn run(put: &Put, way: &mut Way<'_>) -> Result<Transfer, Failure> {
    let output = way.output;
    let Put { file: path, target, verify, link: options } = put;
    let (file, length) = open(path)?;
    let access = if *verify { Access::REMOTE_WRITE | Access::REMOTE_READ } else { Access::REMOTE_WRITE };
    let window = if *verify { super::WINDOW } else { PIECE * PIECES };
    let mut link = Link::open(target, options, access, window, way)?;
    let reach = link.reach(target.offset, length)?;
    let clock = Clock::start();
    write(&mut link, &file, path, &reach, output)?;
    // RFC 5040 §5.5 rule 12: "RDMA Read Request Messages, including zero-length RDMA Read Requests, MUST NOT start
    // processing at the Remote Peer until they have been Delivered to RDMAP by DDP", and so not before the Writes
    // that went ahead of them were placed.
    link.read(PIECES.into(), 0, 0, reach.at(0))?;
    link.completion()?;
    let mut transfer = Transfer::new("put", link.peer(target), target, length, clock.now());
    if *verify {
        readback::verify(&mut link, &reach, &file, path, output)?;
        transfer.verified = Some(true);
    }
    link.close();
    Ok(transfer)
}

fn open(path: &Path) -> Result<(File, u64), Failure> {
    let unreadable = |error| Failure::file(path, "read", &error);
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(std::io::Error::other("not a regular file")));
    }
    Ok((file, metadata.len()))
}

/// Reads octets of the file, which has been found long enough.
pub(super) fn read(file: &File, path: &Path, octets: &mut [u8], at: u64) -> Result<(), Failure> {
    file.read_exact_at(octets, at).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            Failure::new(Exit::Failed, "file", format!("{} is shorter than it was", path.display()))
        }
        _ => Failure::file(path, "read", &error),
    })
}

/// Posts Writes as long as there is a free piece of the window, and reads the file into pieces that are free.
fn write(
    link: &mut Link<'_>,
    file: &File,
    path: &Path,
    reach: &Reach,
    output: &Output,
) -> Result<(), Failure> {
    let bar = progress::of_bytes(output, "put", reach.length);
    let mut free: Vec<u32> = (0..PIECES).collect();
    let mut at = 0;
    while at < reach.length || free.len() < PIECES as usize {
        let left = u32::try_from(reach.length.saturating_sub(at)).unwrap_or(PIECE).min(PIECE);
        match free.pop() {
            Some(piece) if left > 0 => {
                let offset = u64::from(piece) * u64::from(PIECE);
                link.fill(offset, left, &mut |octets| read(file, path, octets, at))?;
                link.write(piece.into(), offset, left, reach.at(at))?;
                at = at.saturating_add(left.into());
            }
            taken => {
                free.extend(taken);
                let done = link.completion()?;
                free.extend(u32::try_from(done.wr_id));
                bar.inc(done.bytes.into());
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}
