//! The whole engine in memory, with an initiator across a link: what it serves, what it refuses, what it survives.
//!
//! Every run is a function of its seed, which a failing assertion names.

mod close;
mod crowd;
mod drain;
mod hostile;
mod notify;
mod output;
mod region;
mod reload;
mod services;
mod starve;

use tcp_stack::testutil::HeapBuf;
use tcp_stack::{ConnId, Duration};

use super::Service;
use crate::testutil::client::{self, Session};
use crate::testutil::lab::{self, CONNECTIONS, Lab};
use crate::transport::Conn;

const SECOND: Duration = Duration::from_secs(1);

/// Asserts that no connection leaves a buffer, an STag, a slot or a queued service.
fn assert_empty(lab: &mut Lab) {
    lab.run_deferred();
    let stats = lab.engine.stack().stats();
    assert_eq!((stats.connections, stats.send_buffers, stats.receive_buffers), (0, 0, 0), "{stats:?}");
    assert_eq!((lab.pool.live(), lab.pool.total()), (0, lab.pool.capacity()), "buffers of the engine");
    assert_eq!(lab.engine.stags(), 0, "STags");
    assert_eq!(lab.engine.connections(), 0, "entries of connections");
    assert_eq!((lab.conns(), lab.engine.tx_ready.len()), (0, 0), "connections, ready to send");
    lab.assert_frames_accounted();
}

/// Asserts that the engine's own queues are no longer than its connections are many.
fn assert_bounded(lab: &Lab) {
    let (ready, limits) = (lab.engine.tx_ready.len(), lab.engine.deadlines.len());
    assert!(
        ready <= CONNECTIONS as usize && limits <= CONNECTIONS as usize,
        "{ready} ready to send, {limits} time limits"
    );
}

/// Resets every connection of the client's, and lets the engine see it.
fn hang_up(lab: &mut Lab, conns: &[ConnId]) {
    for conn in conns {
        lab.client.stack.abort(lab.now, *conn);
    }
    lab.run_for(SECOND / 100);
}

/// Opens a TCP session and waits until it is established.
fn open_tcp(lab: &mut Lab, port: u16, session: Session) -> ConnId {
    let conn = lab.connect(port, session);
    lab.run_until("connect", SECOND * 5, |lab| lab.client.tcp(conn).connected);
    conn
}

/// Memory of a connection in the engine's table, in bytes, without the state of the TCP services.
#[test]
fn an_entry_of_a_connection_is_small() {
    let bytes = size_of::<Option<Conn<Service<HeapBuf>>>>();
    assert!(bytes <= 48, "{bytes}");
}
