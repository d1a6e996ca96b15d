//! One startup frame in memory: collects a received frame, and holds a sent one until TCP has taken it.

use super::Refusal;
use crate::wire::mpa::{ConnectionData, FrameHeader, FrameKind, PRIVATE_DATA_MAX};

const FRAME_MAX: usize = FrameHeader::LEN + PRIVATE_DATA_MAX;

/// Bytes of a frame, and the number of them that TCP has taken.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    bytes: [u8; FRAME_MAX],
    len: usize,
    taken: usize,
}

/// Contents of a received frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parsed {
    pub(super) header: FrameHeader,
    pub(super) connection: Option<ConnectionData>,
}

impl Frame {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; FRAME_MAX], len: 0, taken: 0 }
    }

    /// Composes a frame to send. The caller has checked that the private data fits.
    pub(super) fn compose(
        header: FrameHeader,
        connection: Option<ConnectionData>,
        private_data: &[u8],
    ) -> Self {
        let mut frame = Self::new();
        let enhanced = if connection.is_some() { ConnectionData::LEN } else { 0 };
        let total = private_data.len().saturating_add(enhanced);
        let private_data_len = u16::try_from(total).unwrap_or(u16::MAX);
        let mut fixed = [0; FrameHeader::LEN];
        FrameHeader { private_data_len, enhanced: connection.is_some(), ..header }.emit(&mut fixed);
        frame.append(&fixed, FRAME_MAX);
        if let Some(connection) = connection {
            let mut bytes = [0; ConnectionData::LEN];
            connection.emit(&mut bytes);
            frame.append(&bytes, FRAME_MAX);
        }
        frame.append(private_data, FRAME_MAX);
        frame
    }

    /// Appends bytes up to a total of `until`, and returns the number appended.
    fn append(&mut self, bytes: &[u8], until: usize) -> usize {
        let part = bytes.len().min(until.min(FRAME_MAX).saturating_sub(self.len));
        let end = self.len.saturating_add(part);
        if let (Some(to), Some(from)) = (self.bytes.get_mut(self.len..end), bytes.get(..part)) {
            to.copy_from_slice(from);
            self.len = end;
        }
        part
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns the bytes that TCP has not taken.
    pub(super) fn unsent(&self) -> &[u8] {
        self.bytes().get(self.taken..).unwrap_or_default()
    }

    /// Marks `bytes` more as taken by TCP, and returns true if those were the last.
    pub(super) fn advance(&mut self, bytes: usize) -> bool {
        self.taken = self.taken.saturating_add(bytes).min(self.len);
        self.taken == self.len
    }

    /// Takes bytes of the stream, at most to the end of the frame. Returns the number taken, and the frame once it is
    /// complete. Each field is checked as soon as it has arrived.
    pub(super) fn gather(
        &mut self,
        bytes: &[u8],
        expected: FrameKind,
    ) -> (usize, Result<Option<Parsed>, Refusal>) {
        let mut taken = self.append(bytes, FrameHeader::LEN);
        if let Err(refusal) = self.check_key(expected) {
            return (taken, Err(refusal));
        }
        let Ok((header, _)) = FrameHeader::parse(self.bytes()) else {
            return (taken, Ok(None));
        };
        if let Err(refusal) = check_header(&header) {
            return (taken, Err(refusal));
        }
        let total = FrameHeader::LEN.saturating_add(usize::from(header.private_data_len));
        taken = taken.saturating_add(self.append(bytes.get(taken..).unwrap_or_default(), total));
        if self.len < total {
            return (taken, Ok(None));
        }
        (taken, self.parse(header).map(Some))
    }

    /// RFC 5044 §7.1.2 rule 5: "If a received "Key" does not match the expected value […] the TCP/DDP connection MUST
    /// be closed". The first wrong byte ends the check.
    fn check_key(&self, expected: FrameKind) -> Result<(), Refusal> {
        let seen = self.bytes().get(..expected.key().len()).unwrap_or(self.bytes());
        let other = match expected {
            FrameKind::Request => FrameKind::Reply,
            FrameKind::Reply => FrameKind::Request,
        };
        if expected.key().starts_with(seen) {
            Ok(())
        } else if other.key().starts_with(seen) {
            Err(Refusal::Role)
        } else {
            Err(Refusal::Key)
        }
    }

    fn parse(&self, header: FrameHeader) -> Result<Parsed, Refusal> {
        let private_data = self.bytes().get(FrameHeader::LEN..).unwrap_or_default();
        let connection = match ConnectionData::parse(private_data) {
            _ if !is_enhanced(&header) => None,
            Ok((connection, _)) => Some(connection),
            // Linux soft-iWARP leaves S set in a Reply that rejects and has no private data.
            Err(_) if header.reject => None,
            Err(_) => return Err(Refusal::Enhanced),
        };
        Ok(Parsed { header, connection })
    }

    /// Returns the ULP's private data of a complete frame; empty before.
    pub(super) fn private_data(&self) -> &[u8] {
        let Ok((header, private_data)) = FrameHeader::parse(self.bytes()) else {
            return &[];
        };
        if private_data.len() < usize::from(header.private_data_len) {
            return &[];
        }
        let skip = if is_enhanced(&header) { ConnectionData::LEN } else { 0 };
        private_data.get(skip..).unwrap_or_default()
    }
}

/// RFC 6581 §6: "To use any enhanced connection establishment feature, this MUST be set to two or higher";
/// in revision 1 the bit S is reserved and ignored.
const fn is_enhanced(header: &FrameHeader) -> bool {
    header.enhanced && header.revision >= 2
}

fn check_header(header: &FrameHeader) -> Result<(), Refusal> {
    // RFC 5044 §7.1.1: "If the MPA receiver cannot interoperate with the received version, then it MUST close
    // the connection and report an error locally."
    if !(1..=2).contains(&header.revision) {
        return Err(Refusal::Revision);
    }
    // RFC 5044 §7.1.1: "if the length of the Private Data field exceeds 512 octets, the receiver MUST close the
    // connection".
    if usize::from(header.private_data_len) > PRIVATE_DATA_MAX {
        return Err(Refusal::PrivateData);
    }
    Ok(())
}
