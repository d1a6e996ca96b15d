//! Parses prefixes of peer addresses that may use a region, for the configuration, the command line and control
//! requests.

use core::fmt;
use core::net::IpAddr;

use ipnet::IpNet;

/// Maximum number of source prefixes of one region; they are searched sequentially when a peer asks.
pub const PREFIXES_MAX: usize = 64;

/// Reason why a text is not a valid prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// The text is neither an address nor an address with a length.
    NotAPrefix(String),
    /// The address has bits beyond the prefix length; the second field is the corrected prefix.
    BitsBeyond(String, IpNet),
}

impl PrefixError {
    /// Returns the suggested correction.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::NotAPrefix(_) => {
                "write an address, or a prefix such as \"10.77.0.0/24\" or \"fd77::/64\"".to_owned()
            }
            Self::BitsBeyond(_, net) => {
                format!("did you mean \"{net}\", or the address alone, \"{}\"?", self.address())
            }
        }
    }

    fn address(&self) -> &str {
        let (Self::NotAPrefix(text) | Self::BitsBeyond(text, _)) = self;
        text.split('/').next().unwrap_or(text)
    }
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPrefix(text) => write!(f, "`{text}` is not a prefix"),
            Self::BitsBeyond(text, _) => write!(f, "`{text}` has bits beyond its prefix"),
        }
    }
}

impl core::error::Error for PrefixError {}

/// Parses a prefix: `10.77.0.0/24`, `fd77::/64`, or an address, which matches only itself.
///
/// # Errors
/// The text is neither, or the address has bits beyond the prefix length: `10.77.0.99/24` could mean one host or its
/// whole network, and the difference decides who may use a region.
pub fn parse_prefix(text: &str) -> Result<IpNet, PrefixError> {
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let net = net.map_err(|_| PrefixError::NotAPrefix(text.to_owned()))?;
    if net == net.trunc() { Ok(net) } else { Err(PrefixError::BitsBeyond(text.to_owned(), net.trunc())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_addresses() {
        for (text, net) in [
            ("10.77.0.0/24", "10.77.0.0/24"),
            ("10.77.0.99/32", "10.77.0.99/32"),
            ("10.77.0.99", "10.77.0.99/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("fd77::/64", "fd77::/64"),
            ("fd77::1", "fd77::1/128"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(parse_prefix(text).map(|net| net.to_string()), Ok(net.to_owned()));
        }
    }

    /// For an address whose last bit is set, every length but the full one leaves that bit beyond the prefix.
    #[test]
    fn bits_beyond_the_length_are_refused() {
        for (address, full) in [("10.77.0.99", 32), ("fd77::99", 128)] {
            for length in 0..full {
                let error = parse_prefix(&format!("{address}/{length}")).unwrap_err();
                assert!(matches!(error, PrefixError::BitsBeyond(..)), "{address}/{length}");
                assert!(error.help().contains(&format!("\"{address}\"")), "{}", error.help());
            }
            assert!(parse_prefix(&format!("{address}/{full}")).is_ok());
            assert!(parse_prefix(&format!("{address}/{}", full + 1)).is_err());
        }
        for text in
            ["", "/", "lan", "10.77.0/24", "10.77.0.0/", "10.77.0.0/x", " 10.77.0.0/24", "fd77::%eth0"]
        {
            assert_eq!(parse_prefix(text), Err(PrefixError::NotAPrefix(text.to_owned())));
        }
    }
}
