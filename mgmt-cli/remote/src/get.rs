//! Reads a peer's region into a file by RDMA Reads.

use iwarp_terminal::{Failure, clock::Clock};
use rdma::Access;

use super::destination::Destination;
use super::report::Transfer;
use super::session::RegionSession;
use super::{Context, WINDOW_BYTES, progress, readback};
use crate::options::Get;

pub(super) fn run(get: &Get, context: &mut Context<'_>) -> Result<Transfer, Failure> {
    let output = context.output;
    let Get { target, file: path, length, connect: options } = get;
    let mut destination = Destination::open(path)?;
    let mut session = RegionSession::open(target, options, Access::REMOTE_READ, WINDOW_BYTES, context)?;
    let range = match length {
        Some(length) => session.range(target.offset, *length)?,
        None => session.range_to_end(target.offset)?,
    };
    let bar = progress::of_bytes(output, "get", range.length);
    let clock = Clock::start();
    readback::each(&mut session, &range, &mut |_, bytes| {
        bar.inc(bytes.len() as u64);
        destination.write(bytes)
    })?;
    bar.finish_and_clear();
    let transfer = Transfer::new("get", session.peer(target), target, range.length, clock.now());
    session.close();
    destination.finish()?;
    Ok(transfer)
}
