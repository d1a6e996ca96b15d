//! Calls of MOUNT 3 and NFS 3, and the results of READ (RFC 1813).

use anyhow::{Result, ensure};
use iwarp_nfsd::Nfs3Proc;
use iwarp_rpc::xdr::{Reader, Writer};

/// Number of the program NFS (RFC 1813 §3).
pub(crate) const NFS: u32 = 100_003;
/// Number of the program MOUNT (RFC 1813 §5.1).
pub(crate) const MOUNT: u32 = 100_005;
/// Bytes of a reply to READ before its data: the RPC header, status, attributes and three words.
pub(crate) const READ_HEAD: u32 = 24 + 4 + 4 + 84 + 12;
/// Bytes of `fattr3` before and behind the size of the file.
const FATTR_SIZE_AT: usize = 20;
const FATTR_BEHIND_SIZE: usize = 56;

/// A file of the server.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) handle: Vec<u8>,
    pub(crate) bytes: u64,
}

/// Returns a call by root (RFC 5531 §9), to which the caller appends the arguments.
pub(crate) fn call(xid: u32, program: u32, procedure: impl Into<u32>) -> Writer {
    let mut writer = Writer::new();
    [xid, 0, 2, program, 3, procedure.into()].into_iter().for_each(|word| writer.u32(word));
    // AUTH_SYS: stamp, name of the machine, user, group, no further groups; no verifier.
    let mut credential = Writer::new();
    credential.u32(0);
    credential.opaque(b"reader");
    [0, 0, 0].into_iter().for_each(|word| credential.u32(word));
    writer.u32(1);
    writer.opaque(credential.bytes());
    writer.u32(0);
    writer.u32(0);
    writer
}

/// Skips the header of a reply whose call was executed (RFC 5531 §9).
pub(crate) fn executed(reader: &mut Reader<'_>, xid: u32) -> Result<()> {
    let mut words = [0; 6];
    for word in &mut words {
        *word = reader.u32()?;
    }
    ensure!(words == [xid, 1, 0, 0, 0, 0], "the call was not executed: {words:?}");
    Ok(())
}

/// Returns a READ with its arguments.
pub(crate) fn read(xid: u32, target: &Target, offset: u64, count: u32) -> Vec<u8> {
    let mut writer = call(xid, NFS, Nfs3Proc::READ);
    writer.opaque(&target.handle);
    writer.u64(offset);
    writer.u32(count);
    writer.into_bytes()
}

/// Reads the results of READ up to its data, and returns the length of that.
pub(crate) fn read_results(head: &[u8], xid: u32) -> Result<u32> {
    let mut reader = Reader::new(head);
    executed(&mut reader, xid)?;
    let status = reader.u32()?;
    ensure!(status == 0 && reader.bool()?, "READ: status {status}, or no attributes");
    size(&mut reader)?;
    let (count, _, length) = (reader.u32()?, reader.bool()?, reader.u32()?);
    ensure!(count == length, "READ: {count} bytes, of which {length} are there");
    Ok(length)
}

/// Reads `fattr3` and returns the size of the file.
pub(crate) fn size(reader: &mut Reader<'_>) -> Result<u64> {
    reader.fixed(FATTR_SIZE_AT)?;
    let size = reader.u64()?;
    reader.fixed(FATTR_BEHIND_SIZE)?;
    Ok(size)
}
