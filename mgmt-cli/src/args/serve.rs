//! The command that serves regions without a daemon.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueHint};
use ipnet::IpNet;
use iwarp_control::parse_prefix;
use iwarp_terminal::examples;
use iwarp_verbs::REGION_PORT;
use rdma::Access;

use super::{region_name, right};
use crate::complete;

/// Command line of `iwarpctl serve`.
#[derive(Debug, ClapArgs)]
#[command(after_help = examples![
    "Reach the regions from any machine by `iwarpctl remote put`, `get` and `ping`. Data and tokens pass the network\n\
     as they are, without encryption. The server ends by SIGINT (Ctrl-C) or SIGTERM, with exit code 0.";
    "iwarpctl serve --region image=image.raw",
    "iwarpctl serve -r lab=64M --access remote-read,remote-write",
    "iwarpctl serve -r logs=log.bin -a remote-write --listen 10.77.0.2 --token-file logs.token",
    "iwarpctl serve -r a=a.raw -r b=b.raw --listen 0.0.0.0 --listen :: --allow 10.77.0.0/24 --allow fd77::/64",
])]
pub(crate) struct Serve {
    /// A region by its name, and its content: a file, or a size such as 64k, 64M or 1G for zeroed memory. A file whose
    /// name is a size is written with its folder: NAME=./64M. May be given more than once.
    #[arg(short, long = "region", required = true, value_name = "NAME=FILE|SIZE", value_parser = served,
          value_hint = ValueHint::Other)]
    pub(crate) regions: Vec<Served>,
    /// The rights of peers: remote-read, remote-write, remote-atomic, joined by commas. Files have no
    /// atomic operations.
    #[arg(short, long, default_value = "remote-read", value_delimiter = ',', value_name = "RIGHTS",
          value_parser = right, add = complete::rights())]
    pub(crate) access: Vec<Access>,
    /// An address to listen at, with port 7400 if none is given; may be given more than once. 0.0.0.0 and :: are all
    /// addresses of IPv4 and of IPv6, and the kernel selects the port for port 0.
    #[arg(short, long, default_value = "127.0.0.1", value_name = "ADDR[:PORT]", value_parser = listen)]
    pub(crate) listen: Vec<SocketAddr>,
    /// A file with the token that peers must present: text or hex:…, at most 32 bytes.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
    /// Admit peers from this address or prefix only; may be given more than once.
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', value_parser = parse_prefix)]
    pub(crate) allow: Vec<IpNet>,
}

/// A region to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) content: Content,
}

/// Content of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The bytes of a file.
    File(PathBuf),
    /// Zeroed memory of this many bytes.
    Memory(u64),
}

/// Parses a region: its name, `=`, and a size or a file.
fn served(text: &str) -> Result<Served, String> {
    let (name, content) = text.split_once('=').ok_or("write NAME=FILE or NAME=SIZE")?;
    let content = match iwarp_config::parse_size(content) {
        Ok(0) => return Err("a size must not be 0".to_owned()),
        Ok(bytes) => Content::Memory(bytes),
        Err(_) if content.is_empty() => return Err("the file or size is missing behind `=`".to_owned()),
        Err(_) => Content::File(content.into()),
    };
    Ok(Served { name: region_name(name)?, content })
}

/// Parses an address with a port or without, an IPv6 address in brackets or not.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, REGION_PORT));
    address
        .or_else(|_| text.parse())
        .map_err(|_| "write an IP address of this machine, as ADDR, ADDR:PORT or [ADDR]:PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_a_file_or_a_size() {
        let file = |path: &str| Content::File(path.into());
        for (text, name, content) in [
            ("lab=64k", "lab", Content::Memory(64 << 10)),
            ("lab=1", "lab", Content::Memory(1)),
            ("lab=./64k", "lab", file("./64k")),
            ("a/b+4k=x=y", "a/b+4k", file("x=y")),
            ("lab=64X", "lab", file("64X")),
        ] {
            assert_eq!(served(text), Ok(Served { name: name.to_owned(), content }), "{text}");
        }
        for text in ["", "lab", "=file", "lab=", "lab=0", "lab=0k", "l\u{202e}ab=1"] {
            assert!(served(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_has_a_port_or_the_usual_one() {
        for (text, address) in [
            ("10.0.0.2", "10.0.0.2:7400"),
            ("10.0.0.2:0", "10.0.0.2:0"),
            ("::1", "[::1]:7400"),
            ("[::1]", "[::1]:7400"),
            ("[fd77::2]:9", "[fd77::2]:9"),
        ] {
            assert_eq!(listen(text), Ok(address.parse().unwrap()), "{text}");
        }
        for text in ["", "host", ":7400", "10.0.0.2:", "10.0.0.2:70000", "[::1", "[::1]:"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
