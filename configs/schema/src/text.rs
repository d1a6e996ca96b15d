//! Values that are written as text: sizes, region names, tokens.

use std::fmt;
use std::io::Read;
use std::path::Path;

use rdma::service::{TOKEN_MAX, Token};

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

    /// Returns the name of a region without a valid one, whose mistake is reported.
    pub(crate) const fn missing() -> Self {
        Self(String::new())
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

/// Largest size in bytes of a token file: several times `hex:` and 64 digits.
const TOKEN_FILE_BYTES_MAX: u64 = 1024;

fn token(bytes: &[u8]) -> Result<Token, String> {
    Token::new(bytes)
        .ok_or_else(|| format!("a token has 1 to {TOKEN_MAX} bytes, this one has {}", bytes.len()))
}

/// Parses a token: `hex:` and an even number of digits, or else the bytes of the text itself.
///
/// # Errors
/// Description of the error, which does not repeat the token.
pub fn token_from_text(text: &str) -> Result<Token, String> {
    let Some(hex) = text.strip_prefix("hex:") else {
        return token(text.as_bytes());
    };
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(nibble(*high)?.checked_mul(16)?.checked_add(nibble(*low)?)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
    token(&bytes.ok_or("after `hex:` a token has an even number of hexadecimal digits")?)
}

/// Reads a token from a regular file, as text in the format of [`token_from_text`] or as raw bytes; one newline at
/// the end is ignored.
///
/// # Errors
/// Description of the error in the file or the token.
pub fn token_from_file(path: &Path) -> Result<Token, String> {
    let unreadable = |e: std::io::Error| format!("token file {}: {e}", path.display());
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("token file {} is not a regular file", path.display()));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(TOKEN_FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let token = match std::str::from_utf8(bytes) {
        Ok(text) => token_from_text(text),
        Err(_) => token(bytes),
    };
    token.map_err(|e| format!("token file {}: {e}", path.display()))
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => digit.checked_sub(b'0'),
        b'a'..=b'f' => digit.checked_sub(b'a').and_then(|d| d.checked_add(10)),
        b'A'..=b'F' => digit.checked_sub(b'A').and_then(|d| d.checked_add(10)),
        _ => None,
    }
}
