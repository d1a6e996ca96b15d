//! A peer's region into a file, by RDMA Reads.

use rdma::Access;

use super::destination::Destination;
use super::link::Link;
use super::{Transfer, WINDOW, Way, progress, readback};
use crate::args::Get;
use crate::clock::Clock;
use crate::failure::Failure;

pub(super) fn run(get: &Get, way: &mut Way<'_>) -> Result<Transfer, Failure> {
    let output = way.output;
    let Get { target, file: path, length, link: options } = get;
    let mut destination = Destination::open(path)?;
    let mut link = Link::open(target, options, Access::REMOTE_READ, WINDOW, way)?;
    let reach = match length {
        Some(length) => link.reach(target.offset, *length)?,
        None => link.reach_to_end(target.offset)?,
    };
    let bar = progress::of_bytes(output, "get", reach.length);
    let clock = Clock::start();
    readback::each(&mut link, &reach, &mut |_, bytes| {
        bar.inc(bytes.len() as u64);
        destination.write(bytes)
    })?;
    bar.finish_and_clear();
    let transfer = Transfer::new("get", link.peer(target), target, reach.length, clock.now());
    link.close();
    destination.finish()?;
    Ok(transfer)
}
