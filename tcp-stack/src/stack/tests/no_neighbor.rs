//! Tests of connections whose next hop does not answer, or does not exist.

use core::net::SocketAddr;
use core::time::Duration;

use super::super::*;
use super::{PEER, config, stack};
use crate::buf::TxFrame;
use crate::config::{ConnOptions, TcpConfig};
use crate::error::ConnectError;
use crate::testutil::{HeapBuf, HeapPool};

/// Returns a stack whose SYNs need a neighbor, or not.
fn stack_with(syn_needs_neighbor: bool) -> Stack<HeapBuf> {
    let StackConfig { tcp, .. } = config();
    stack(StackConfig { tcp: TcpConfig { syn_needs_neighbor, ..tcp }, ..config() })
}

/// Runs a stack alone until a connection is closed; returns the reason, and how long that took.
fn closed(stack: &mut Stack<HeapBuf>) -> (CloseReason, Duration) {
    let (mut pool, mut now) = (HeapPool::new(64, 8, 2048), Instant::ZERO);
    for _ in 0..1000 {
        stack.poll_transmit(now, &mut pool, &mut |_: TxFrame<HeapBuf>| (), 32);
        while let Some(event) = stack.poll_event() {
            if let Event::Closed { reason, .. } = event {
                return (reason, now - Instant::ZERO);
            }
        }
        if !stack.has_output() {
            now = now.max(stack.next_deadline().unwrap());
            stack.handle_timeouts(now);
        }
    }
    panic!("the connection is still there");
}

/// Three requests without an answer, a second apart, end a connection that is being opened, if it is configured so;
/// else the retries of the SYN do, after the three minutes of RFC 9293 §3.8.3.
#[test]
fn a_connection_to_a_silent_neighbor_ends_after_three_requests() {
    for (ends_early, seconds) in [(true, 3..5), (false, 180..400)] {
        let mut stack = stack_with(ends_early);
        stack.connect(Instant::ZERO, PEER, ConnOptions::default()).unwrap();
        let (reason, after) = closed(&mut stack);
        assert_eq!(reason, CloseReason::Unreachable);
        assert!(seconds.contains(&after.as_secs()), "{after:?}");
    }
}

#[test]
fn a_connection_without_a_gateway_ends_at_once() {
    let mut stack = stack_with(true);
    let far = SocketAddr::from(([192, 0, 2, 1], 7));
    assert_eq!(stack.resolve_neighbor(Instant::ZERO, far.ip()), Err(ConnectError::NoRoute));
    stack.connect(Instant::ZERO, far, ConnOptions::default()).unwrap();
    let (reason, after) = closed(&mut stack);
    assert_eq!(reason, CloseReason::Unreachable);
    assert!(after < Duration::from_millis(100), "{after:?}");
}

/// Asking starts the resolution, and sends nothing but requests.
#[test]
fn a_neighbor_is_resolved_without_a_connection() {
    let mut stack = stack(config());
    assert_eq!(stack.resolve_neighbor(Instant::ZERO, PEER.ip()), Ok(false));
    let (mut pool, mut frames) = (HeapPool::new(64, 8, 2048), 0);
    stack.poll_transmit(Instant::ZERO, &mut pool, &mut |_: TxFrame<HeapBuf>| frames += 1, 32);
    assert!(frames > 0 && stack.next_deadline().is_some());
    assert_eq!(stack.resolve_neighbor(Instant::ZERO, [10, 0, 0, 1].into()), Ok(true), "an address of ours");
    for none in [[0, 0, 0, 0], [224, 0, 0, 1], [255; 4]] {
        let refused = stack.resolve_neighbor(Instant::ZERO, none.into());
        assert_eq!(refused, Err(ConnectError::BadAddress));
    }
    assert_eq!(stack.resolve_neighbor(Instant::ZERO, "fd00::2".parse().unwrap()), Err(ConnectError::NoRoute));
}
