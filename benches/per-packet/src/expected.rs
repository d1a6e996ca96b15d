//! Segments that are what their connections expect: found, predicted, kept. What follows from them is not timed.

use std::time::Duration;

use tcp_stack::{Event, RxFrame};

use super::echo::Order;
use super::frames::Frame;
use super::lab::{Lab, fetch};
use super::{BURST, TcpError, time_on_core};

/// Payload of a segment, bytes.
const BYTES: usize = 64;
/// Bursts that are timed together.
const TOGETHER: u64 = 32;

/// Connections whose peers send.
#[derive(Debug)]
pub struct Expected {
    lab: Lab,
    order: Order,
}

impl Expected {
    /// Established ones, so many. They send in an order that is random, so that the connection of each segment is looked
    /// up, unless there is one only.
    pub fn new(connections: usize) -> Result<Self, TcpError> {
        let mut lab = Lab::new(connections);
        lab.connect(connections)?;
        Ok(Self { lab, order: Order::new(connections) })
    }

    /// What so many bursts take, time on the core.
    pub fn time(&mut self, bursts: u64) -> Duration {
        let (mut spent, mut left) = (Duration::ZERO, bursts);
        while left > 0 {
            let together: Vec<_> = (0..left.min(TOGETHER)).map(|_| self.burst()).collect();
            left = left.saturating_sub(together.len() as u64);
            let started = time_on_core();
            for frames in together {
                fetch(&frames);
                self.lab.take(frames);
            }
            spent += time_on_core().saturating_sub(started);
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
    fn every_segment_is_taken() {
        let mut expected = Expected::new(3).unwrap();
        let before = expected.lab.stack.stats().tcp.bytes_in;
        expected.time(TOGETHER + 1);
        let bytes = expected.lab.stack.stats().tcp.bytes_in - before;
        assert_eq!(bytes, (TOGETHER + 1) * (BURST * BYTES) as u64);
    }
}
