//! Values that are written as text: sizes, region names, tokens, rights.

use std::fmt;
use std::io::Read;
use std::path::Path;

/// Parses a size in bytes: `4096`, `0x1000`, `64k`, `64M`, `1G`, `2T`, also as `64KiB` or `64 MiB`. A unit is a
/// power of 1024.
///
/// # Errors
/// Description of the error in the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let wrong =
        || format!("`{text}` is not a size: write bytes, or a number with k, M, G or T, e.g. \"64M\"");
    let (digits, radix, unit) = match text.strip_prefix("0x") {
        Some(hex) => (hex, 16, ""),
        None => {
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
            let (digits, unit) = text.split_at(end);
            (digits, 10, unit.trim_start())
        }
    };
    if digits.starts_with(['+', '-', '_']) {
        return Err(wrong());
    }
    let number = u64::from_str_radix(&digits.replace('_', ""), radix).map_err(|_| wrong())?;
    let scale: u64 = match unit.strip_suffix("iB").unwrap_or(unit) {
        "" if unit.is_empty() => 1,
        "B" => 1,
        "k" | "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(scale).ok_or_else(|| format!("`{text}` is more than 64 bits can count"))
}

/// Name by which peers and local programs request a region, checked with [`rdma::service::check_name`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionName(String);

impl RegionName {
    /// Checks a name and creates a `RegionName`.
    ///
    /// # Errors
    /// Description of the error in the name.
    pub fn new(name: &str) -> Result<Self, String> {
        rdma::service::check_name(name).map_err(|error| error.to_string())?;
        Ok(Self(name.to_owned()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RegionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Token that a peer must present to be granted a region: 1 to 32 bytes. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    bytes: [u8; Self::BYTES_MAX],
    len: u8,
}

impl Token {
    /// Length in bytes of the longest token.
    pub const BYTES_MAX: usize = 32;

    /// Maximum size in bytes of a token file: several times `hex:` and 64 digits.
    const FILE_BYTES_MAX: u64 = 1024;

    /// Creates a token of these bytes.
    ///
    /// # Errors
    /// There are no bytes, or more than 32.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let mut padded = [0; Self::BYTES_MAX];
        let len = u8::try_from(bytes.len()).ok().filter(|&n| n > 0);
        match (len, padded.get_mut(..bytes.len())) {
            (Some(len), Some(place)) => {
                place.copy_from_slice(bytes);
                Ok(Self { bytes: padded, len })
            }
            _ => Err(format!("a token has 1 to {} bytes, this one has {}", Self::BYTES_MAX, bytes.len())),
        }
    }

    /// Parses a token: `hex:` and an even number of digits, or else the bytes of the text itself.
    ///
    /// # Errors
    /// Description of the error, which does not repeat the token.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let Some(hex) = text.strip_prefix("hex:") else {
            return Self::new(text.as_bytes());
        };
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(nibble(*high)?.checked_mul(16)?.checked_add(nibble(*low)?)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
        Self::new(&bytes.ok_or("after `hex:` a token has an even number of hexadecimal digits")?)
    }

    /// Reads a token from a regular file, as text in the format of [`from_text`](Self::from_text) or as raw bytes; one
    /// newline at the end is ignored.
    ///
    /// # Errors
    /// Description of the error in the file or the token.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let unreadable = |e: std::io::Error| format!("token file {}: {e}", path.display());
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(format!("token file {} is not a regular file", path.display()));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(Self::FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let token = match std::str::from_utf8(bytes) {
            Ok(text) => Self::from_text(text),
            Err(_) => Self::new(bytes),
        };
        token.map_err(|e| format!("token file {}: {e}", path.display()))
    }

    /// Returns the bytes of the token.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.len)
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => digit.checked_sub(b'0'),
        b'a'..=b'f' => digit.checked_sub(b'a').and_then(|d| d.checked_add(10)),
        b'A'..=b'F' => digit.checked_sub(b'A').and_then(|d| d.checked_add(10)),
        _ => None,
    }
}

/// Rights of peers to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// True if peers may read it with RDMA Read.
    pub remote_read: bool,
    /// True if peers may write it with RDMA Write.
    pub remote_write: bool,
    /// True if peers may perform atomic operations (RFC 7306).
    pub remote_atomic: bool,
}

impl Access {
    /// Names of the rights in files, on the command line and on the control socket.
    pub const NAMES: [&'static str; 3] = ["remote-read", "remote-write", "remote-atomic"];

    /// Returns the set of the rights named.
    ///
    /// # Errors
    /// The first unknown name.
    pub fn from_names(names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, String> {
        let mut access = Self::default();
        for name in names {
            let name = name.as_ref();
            let right = access
                .right_mut(name)
                .ok_or_else(|| format!("`{name}` is not an access right: use {}", Self::NAMES.join(", ")))?;
            *right = true;
        }
        Ok(access)
    }

    pub(crate) fn right_mut(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "remote-read" => Some(&mut self.remote_read),
            "remote-write" => Some(&mut self.remote_write),
            "remote-atomic" => Some(&mut self.remote_atomic),
            _ => None,
        }
    }

    /// Returns the names of the rights in the set, in the order of [`NAMES`](Self::NAMES).
    pub fn names(self) -> Vec<&'static str> {
        let given = [self.remote_read, self.remote_write, self.remote_atomic];
        Self::NAMES.into_iter().zip(given).filter_map(|(name, given)| given.then_some(name)).collect()
    }

    /// Returns the rights in the region service's wire format: bit 0 read, bit 1 write, bit 2 atomic.
    pub fn bits(self) -> u8 {
        u8::from(self.remote_read) | (u8::from(self.remote_write) << 1) | (u8::from(self.remote_atomic) << 2)
    }

    /// Returns true if the set is empty.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}
