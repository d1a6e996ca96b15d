//! Arguments and results of both programs.
//!
//! Items of fixed length are decoded by `nfs3_types`; its decoders of variable-length items allocate as many bytes as a
//! peer claims, so these are read here, within their limits.

use iwarp_rpc::xdr::{Reader, Writer, XdrError};
use nfs3_types::xdr_codec::{Pack, Unpack};

/// Longest file handle of NFS version 3, in bytes (RFC 1813 §2.4).
pub const HANDLE_MAX: usize = 64;
/// Longest name in a directory, in bytes; a longer one gets NFS3ERR_NAMETOOLONG.
const NAME_MAX: usize = 1024;
/// Longest path, in bytes.
pub(crate) const PATH_MAX: usize = 4096;

/// Reads an item of fixed length.
pub(crate) fn fixed<T: Unpack>(reader: &mut Reader<'_>) -> Result<T, XdrError> {
    T::unpack(reader).map(|(item, _)| item).map_err(|_| XdrError::Truncated)
}

/// Reads a file handle.
pub(crate) fn handle<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], XdrError> {
    reader.opaque(HANDLE_MAX)
}

/// Reads a directory and a name in it.
pub(crate) fn place<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8]), XdrError> {
    Ok((handle(reader)?, reader.opaque(NAME_MAX)?))
}

/// Appends a result to a reply.
pub(crate) fn put(writer: &mut Writer, result: &impl Pack) {
    // A writer in memory takes everything; an item of 4 GiB does not occur.
    let _ = result.pack(writer);
}
