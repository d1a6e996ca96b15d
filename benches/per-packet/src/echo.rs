//! `tcp-echo`: small requests over many connections, each answered with its own bytes.

use serde::Serialize;
use tcp_stack::{Buf, Event, RxFrame};

use super::frames::Frame;
use super::lab::{Lab, fetch};
use super::{BURST, Cost, TcpError, Watch};

/// Command-line flags of `tcp-echo`.
#[derive(Clone, Copy, Debug, clap::Args, Serialize)]
pub struct EchoOptions {
    /// Connections; each sends once per random permutation of all
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 18))]
    pub connections: u32,
    /// Payload of a request, bytes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1448))]
    pub bytes: u32,
    /// Requests per lap, built before it is timed
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(32..=1 << 20))]
    pub requests: u32,
    /// Timed laps; the median counts
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u32).range(1..))]
    pub laps: u32,
}

impl Default for EchoOptions {
    fn default() -> Self {
        Self { connections: 64, bytes: 1, requests: 8192, laps: 101 }
    }
}

/// The result of `tcp-echo`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EchoReport {
    /// Number of established connections.
    pub connections: u32,
    /// Payload of a request, bytes.
    pub bytes: u32,
    /// Cost of a request: its frame received, the event, the answer's frame transmitted.
    pub request: Cost,
}

/// Measures the requests; fails if the stack does not answer all of them.
pub fn run(options: &EchoOptions) -> Result<EchoReport, TcpError> {
    let mut lab = Lab::new(options.connections as usize);
    lab.connect(options.connections as usize)?;
    let mut order = Order::new(options.connections as usize);
    let mut watch = Watch::new();
    // After the warm-up every connection has answered, and its congestion window is stable.
    let warm_up = options.connections.saturating_mul(3) / options.requests.max(1) + 3;
    for lap in 0..options.laps.saturating_add(warm_up) {
        let mut requests = make(&mut lab, &mut order, options);
        let (count, before) = (requests.len() as u64, lab.new_segments());
        watch.start();
        while !requests.is_empty() {
            serve(&mut lab, &mut requests);
        }
        if lap >= warm_up {
            watch.stop(count);
        }
        TcpError::unless_all("answered", "requests", lab.new_segments().wrapping_sub(before), count)?;
    }
    let request = watch.cost();
    Ok(EchoReport { connections: options.connections, bytes: options.bytes, request })
}

/// Builds the requests of a lap, last first. Each acknowledges the answers of the bursts before its own.
fn make(lab: &mut Lab, order: &mut Order, options: &EchoOptions) -> Vec<RxFrame<Frame>> {
    let mut requests = Vec::with_capacity(options.requests as usize);
    let mut burst = Vec::with_capacity(BURST);
    for _ in 0..options.requests {
        let peer = order.next();
        burst.push(peer);
        requests.extend(lab.next_segment(peer, options.bytes as usize));
        if burst.len() == BURST {
            for peer in burst.drain(..) {
                if let Some(peer) = lab.peers.get_mut(peer) {
                    peer.ack += options.bytes;
                }
            }
        }
    }
    for peer in burst {
        if let Some(peer) = lab.peers.get_mut(peer) {
            peer.ack += options.bytes;
        }
    }
    requests.reverse();
    requests
}

/// Runs one poll iteration with the last burst of `requests`; returns the number of answers sent, those of loss probes
/// among them: a peer that has two requests in one burst acknowledges their answers with its next request, which may
/// come later than two round trips (RFC 8985 §7.2).
#[inline]
pub(super) fn serve(lab: &mut Lab, requests: &mut Vec<RxFrame<Frame>>) -> u64 {
    let first = requests.len().saturating_sub(BURST);
    fetch(requests.get(first..).unwrap_or_default());
    lab.take(requests.drain(first..).rev());
    while let Some(event) = lab.stack.poll_event() {
        if let Event::Data { conn, segment, .. } = event {
            let len = segment.len();
            lab.stack.consumed(conn, len);
            // The answer reuses the request's buffer.
            if let Ok(answer) = segment.into_tail(len) {
                let _refused = lab.stack.send(lab.now, conn, answer);
            }
        }
    }
    let mut answers = 0_u64;
    lab.drain(&mut |frame| answers = answers.wrapping_add(u64::from(frame.buf.is_shared())));
    answers
}

/// Random permutations of all peers, one after the other.
#[derive(Debug)]
pub(super) struct Order {
    peers: Vec<usize>,
    at: usize,
    random: u64,
}

impl Order {
    pub(super) fn new(peers: usize) -> Self {
        Self { peers: (0..peers).collect(), at: peers, random: 1 }
    }

    pub(super) fn next(&mut self) -> usize {
        if self.at >= self.peers.len() {
            self.at = 0;
            for last in (1..self.peers.len()).rev() {
                let other = self.random_below(last.wrapping_add(1));
                self.peers.swap(last, other);
            }
        }
        let peer = self.peers.get(self.at).copied().unwrap_or(0);
        self.at = self.at.wrapping_add(1);
        peer
    }

    /// Returns a random number by Marsaglia's xorshift, the same in every run.
    fn random_below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % (limit as u64).max(1)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_probe_is_no_answer() {
        let options = EchoOptions { connections: 1000, bytes: 64, requests: 1024, laps: 400 };
        let mut lab = Lab::new(1000);
        lab.connect(1000).unwrap();
        let mut order = Order::new(1000);
        let (mut requests, mut answered, mut sent) = (0, 0, lab.new_segments());
        for _ in 0..options.laps {
            let mut lap = make(&mut lab, &mut order, &options);
            requests += lap.len() as u64;
            while !lap.is_empty() {
                answered += serve(&mut lab, &mut lap);
            }
        }
        sent = lab.new_segments() - sent;
        let probes = lab.stack.stats().tcp.loss_probes;
        assert!(probes > 0, "no peer was slow enough");
        assert_eq!((sent, answered), (requests, requests + probes));
        run(&options).unwrap();
    }
}
