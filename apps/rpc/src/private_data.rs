//! Private data of connection setup (RFC 8797).

/// Format identifier (RFC 8797 §4).
const FORMAT: [u8; 4] = [0xf6, 0xab, 0x0e, 0x18];
/// Version of the format.
const FORMAT_VERSION: u8 = 1;
/// Bit of the flags: remote invalidation is supported (RFC 8797 §4.1).
const REMOTE_INVALIDATION: u8 = 1;
/// Unit of the sizes, and the smallest inline threshold, in bytes (RFC 8797 §4.2).
pub const INLINE_UNIT: u32 = 1024;
/// Largest inline threshold in bytes.
pub const INLINE_MAX: u32 = 256 * INLINE_UNIT;

/// Properties that a peer states when it connects. The default is that of a peer that states none (RFC 8797 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// True if the peer supports remote invalidation.
    pub remote_invalidation: bool,
    /// Most bytes that the peer sends in one Send: a multiple of 1024, at most 262144.
    pub send_bytes: u32,
    /// Most bytes that the peer receives in one Send: a multiple of 1024, at most 262144.
    pub receive_bytes: u32,
}

impl Default for PrivateData {
    fn default() -> Self {
        Self { remote_invalidation: false, send_bytes: INLINE_UNIT, receive_bytes: INLINE_UNIT }
    }
}

impl PrivateData {
    /// Finds the properties in private data, at any offset. Returns the default if there are none, or of another
    /// version (RFC 8797 §5.2).
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Self {
        let size = |size: u8| u32::from(size).saturating_add(1).saturating_mul(INLINE_UNIT);
        let at = private_data.windows(FORMAT.len()).position(|bytes| bytes == FORMAT);
        let found = at.and_then(|at| private_data.get(at..)).and_then(<[u8]>::first_chunk::<8>);
        match found {
            Some([_, _, _, _, FORMAT_VERSION, flags, send, receive]) => Self {
                remote_invalidation: flags & REMOTE_INVALIDATION != 0,
                send_bytes: size(*send),
                receive_bytes: size(*receive),
            },
            _ => Self::default(),
        }
    }

    /// Returns the properties as private data. Sizes are rounded down to the unit, and limited to what can be stated.
    #[must_use]
    pub fn emit(&self) -> [u8; 8] {
        let size = |bytes: u32| {
            let units = bytes.checked_div(INLINE_UNIT).unwrap_or(1).clamp(1, 256);
            u8::try_from(units.saturating_sub(1)).unwrap_or(u8::MAX)
        };
        let [a, b, c, d] = FORMAT;
        let flags = if self.remote_invalidation { REMOTE_INVALIDATION } else { 0 };
        [a, b, c, d, FORMAT_VERSION, flags, size(self.send_bytes), size(self.receive_bytes)]
    }
}
