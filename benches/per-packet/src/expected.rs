//! Times segments that header prediction accepts: lookup, prediction and queuing. The work that follows is not timed.

use std::time::Duration;

use tcp_stack::{Event, RxFrame};

use super::echo::Order;
use super::frames::Frame;
use super::lab::{Lab, fetch};
use super::{BURST, TcpError, thread_cpu_time};

/// Payload of a segment, bytes.
const BYTES: usize = 64;
/// Number of bursts timed together.
const BATCH: u64 = 32;

/// Connections whose peers send.
#[derive(Debug)]
pub struct Expected {
    lab: Lab,
    order: Order,
}

impl Expected {
    /// Establishes connections. They send in random order, so that each segment needs a lookup, unless there is only
    /// one.
    pub fn new(connections: usize) -> Result<Self, TcpError> {
        let mut lab = Lab::new(connections);
        lab.connect(connections)?;
        Ok(Self { lab, order: Order::new(connections) })
    }

    /// Returns the CPU time of this number of bursts.
    pub fn time(&mut self, bursts: u64) -> Duration {
        let (mut spent, mut left) = (Duration::ZERO, bursts);
        while left > 0 {
            let batch: Vec<_> = (0..left.min(BATCH)).map(|_| self.burst()).collect();
            left = left.saturating_sub(batch.len() as u64);
            let started = thread_cpu_time();
            for frames in batch {
                fetch(&frames);
                self.lab.take(frames);
            }
            spent += thread_cpu_time().saturating_sub(started);
            self.consume();
        }
        spent
    }

    fn burst(&mut self) -> Vec<RxFrame<Frame>> {
        (0..BURST).filter_map(|_| self.lab.next_segment(self.order.next(), BYTES)).collect()
    }

    fn consume(&mut self) {
        while let Some(event) = self.lab.stack.poll_event() {
            if let Event::Data { conn, segment, .. } = event {
                self.lab.stack.consumed(conn, segment.len());
            }
        }
        self.lab.drain(&mut |_| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_is_delivered() {
        let mut expected = Expected::new(3).unwrap();
        let before = expected.lab.stack.stats().tcp.bytes_in;
        expected.time(BATCH + 1);
        let bytes = expected.lab.stack.stats().tcp.bytes_in - before;
        assert_eq!(bytes, (BATCH + 1) * (BURST * BYTES) as u64);
    }
}
