//! Handles `conn close`: resets the connections that an operator selects.

use iwarp_control::bounds::CONNECTIONS_LISTED_MAX;
use iwarp_control::{ConnClose, ConnClosed, ConnsClosed, ErrorKind, ErrorObject};
use iwarp_engine::{ConnRow, ConnSelector};

use super::report::{ConnNumber, pack, unpack};
use super::worker_handle::WorkerHandle;
use crate::worker::Command;

/// Connections that a worker resets per command; their RSTs fit the stack's queue of replies.
const PAGE: usize = 64;

/// The connections that a request selects.
#[derive(Clone, Copy, Debug)]
pub(super) struct CloseTarget {
    selector: ConnSelector,
    /// Index of the only worker that can have the connection, if there is only one.
    worker: Option<usize>,
    asked: ConnClose,
}

impl CloseTarget {
    /// Converts a request to a selector.
    ///
    /// # Errors
    /// Not exactly one member of the request is given.
    pub(super) fn new(asked: &ConnClose) -> Result<Self, ErrorObject> {
        let invalid = |what: String| ErrorObject::new(ErrorKind::InvalidParams, what);
        let (selector, worker) = match *asked {
            ConnClose { id: Some(id), peer: None, listener: None } => {
                let ConnNumber { worker, port, index, generation } = unpack(id);
                (ConnSelector::One { port, index, generation }, Some(worker))
            }
            ConnClose { id: None, peer: Some(peer), listener: None } => (ConnSelector::Peer(peer), None),
            ConnClose { id: None, peer: None, listener: Some(tcp_port) } => {
                (ConnSelector::Listener(tcp_port), None)
            }
            _ => {
                let what = "conn.close: exactly one of `id`, `peer` and `listener` says which connections";
                return Err(invalid(what.to_owned()));
            }
        };
        Ok(Self { selector, worker, asked: *asked })
    }

    fn none(&self) -> ErrorObject {
        let what = match self.asked {
            ConnClose { id: Some(id), .. } => format!("there is no connection {id}"),
            ConnClose { peer: Some(peer), .. } => format!("there is no connection from {peer}"),
            ConnClose { listener, .. } => {
                format!("there is no connection of a listener on port {}", listener.unwrap_or_default())
            }
        };
        ErrorObject::new(ErrorKind::NoSuchObject, what)
            .with_help("`iwarpctl conn list` shows those there are")
    }
}

/// Resets the connections that a request selects. When this returns, their grants are revoked.
///
/// # Errors
/// There is no such connection, or a worker does not answer.
pub(super) async fn conns(workers: &[WorkerHandle], which: &CloseTarget) -> Result<ConnsClosed, ErrorObject> {
    let mut done = ConnsClosed { count: 0, closed: Vec::new() };
    for (worker, handle) in workers.iter().enumerate() {
        if which.worker.is_some_and(|only| only != worker) {
            continue;
        }
        let mut from = Some(match which.selector {
            ConnSelector::One { port, index, .. } => (port, index),
            ConnSelector::Peer(_) | ConnSelector::Listener(_) => (0, 0),
        });
        while let Some(at) = from {
            let (selector, rows) = (which.selector, Vec::with_capacity(PAGE));
            let page = handle.ask(|reply| Command::ConnsClose { selector, from: at, rows, reply }).await?;
            done.count = done.count.saturating_add(page.rows.len() as u64);
            let room = CONNECTIONS_LISTED_MAX.saturating_sub(done.closed.len());
            done.closed.extend(page.rows.iter().take(room).map(|(port, row)| closed(worker, *port, row)));
            from = page.next.filter(|_| !matches!(which.selector, ConnSelector::One { .. }));
        }
    }
    if done.count == 0 {
        return Err(which.none());
    }
    tracing::info!(connections = done.count, asked = ?which.asked, "connections closed on request");
    Ok(done)
}

fn closed(worker: usize, port: usize, row: &ConnRow) -> ConnClosed {
    ConnClosed {
        id: pack(worker, port, row.id.index(), row.id.generation()),
        local: row.tcp.local,
        remote: row.tcp.remote,
        service: row.service.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use iwarp_control::{ConnCloseMethod, params};
    use serde_json::json;

    use super::*;

    fn which(asked: serde_json::Value) -> Result<CloseTarget, ErrorObject> {
        CloseTarget::new(&params::<ConnCloseMethod>(asked)?)
    }

    #[test]
    fn a_close_request_has_exactly_one_member() {
        let id = pack(3, 1, 70, 5);
        let one = which(json!({ "id": id })).unwrap();
        assert_eq!(one.selector, ConnSelector::One { port: 1, index: 70, generation: 5 });
        assert_eq!(one.worker, Some(3));
        for asked in [json!({"peer": "10.0.0.0/8"}), json!({"peer": "fd77::/64"}), json!({"listener": 7})] {
            assert_eq!(which(asked).unwrap().worker, None);
        }
        for asked in [
            json!({}),
            json!({"id": 1, "peer": "10.0.0.0/8"}),
            json!({"id": 1, "listener": 7}),
            json!({"peer": "10.0.0.0/8", "listener": 7}),
            json!({"peer": "10.77.0.99/24"}),
            json!({"peer": "fd77::1/64"}),
        ] {
            let error = which(asked.clone()).unwrap_err();
            assert_eq!(error.data.kind, ErrorKind::InvalidParams, "{asked}");
        }
        let error = which(json!({"peer": "10.77.0.99/24"})).unwrap_err().to_string();
        assert!(error.contains("did you mean \"10.77.0.0/24\""), "{error}");
    }
}
