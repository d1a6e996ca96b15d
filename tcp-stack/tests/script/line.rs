//! Parses the lines of a script.

use tcp_stack::wire::{EcnField, TcpFlags};

/// The segment that a line describes.
#[derive(Default)]
pub(crate) struct Line<'a> {
    pub(crate) flags: &'a str,
    pub(crate) seq: u32,
    /// True if the sequence number is absolute.
    pub(crate) absolute: bool,
    pub(crate) len: usize,
    pub(crate) ack: Option<u32>,
    pub(crate) win: Option<u16>,
    pub(crate) urg: u16,
    pub(crate) ecn: Option<EcnField>,
    pub(crate) options: Option<&'a str>,
}

/// Parses the part of a line after its direction.
pub(crate) fn parse_line(text: &str) -> Line<'_> {
    let (text, options) = match text.split_once('<') {
        Some((text, options)) => (text, Some(options.trim().strip_suffix('>').unwrap())),
        None => (text, None),
    };
    let mut words = text.split_whitespace();
    let flags = words.next().unwrap();
    let place = words.next().unwrap_or("0(0)");
    let (seq, len) = place.strip_suffix(')').and_then(|place| place.split_once('(')).unwrap();
    let mut line = Line { flags, options, ..Line::default() };
    line.absolute = seq.starts_with('=');
    line.seq = relative(seq.trim_start_matches('='));
    line.len = number(len);
    while let Some(key) = words.next() {
        let value = words.next().unwrap();
        match key {
            "ack" => line.ack = Some(relative(value)),
            "win" => line.win = Some(number(value)),
            "urg" => line.urg = number(value),
            "ecn" => line.ecn = Some(ecn(value)),
            _ => panic!("unknown word {key}"),
        }
    }
    line
}

/// Returns the ECN field of its name.
fn ecn(text: &str) -> EcnField {
    match text {
        "none" => EcnField::NotEct,
        "ect0" => EcnField::Ect0,
        "ect1" => EcnField::Ect1,
        "ce" => EcnField::Ce,
        _ => panic!("unknown ECN field {text}"),
    }
}

/// Returns the control bits that letters stand for.
pub(crate) fn flags(text: &str) -> TcpFlags {
    text.chars().fold(TcpFlags::NONE, |flags, letter| {
        flags
            | match letter {
                'S' => TcpFlags::SYN,
                'F' => TcpFlags::FIN,
                'R' => TcpFlags::RST,
                'P' => TcpFlags::PSH,
                '.' => TcpFlags::ACK,
                'U' => TcpFlags::URG,
                'E' => TcpFlags::ECE,
                'W' => TcpFlags::CWR,
                // AE is not in the same byte; only the peer sends it.
                'A' => TcpFlags::NONE,
                '-' => TcpFlags::NONE,
                _ => panic!("unknown flag {letter}"),
            }
    })
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"))
}

/// Parses a relative sequence number, which may be negative.
fn relative(text: &str) -> u32 {
    u32::try_from(number::<i64>(text).rem_euclid(1 << 32)).unwrap()
}
