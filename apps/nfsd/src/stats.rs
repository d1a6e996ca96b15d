//! Counters of a server: calls by procedure, errors by reason, connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use iwarp_server::counters::{TransferStats, add};
use iwarp_server::iwarp_counters::counters;
use iwarp_server::{Connections, Latency};

use crate::procedure::{Nfs4Proc, Procedure, Program};

counters! {
    /// Counters of a procedure.
    pub(crate) atomic struct ProcedureStats {
        /// Calls executed, those with an error included.
        calls,
        /// Calls that ended with an error.
        errors,
        /// Payload bytes that replies returned.
        read_bytes,
        /// Payload bytes of WRITE.
        written_bytes,
    }
}

counters! {
    /// Counters of the TCP side.
    pub atomic struct TcpStats {
        /// Connections accepted, those closed at once included.
        connections,
        /// Calls answered, those with an error included.
        calls,
        /// Connections closed at once: no export has the client's address.
        closed_address,
        /// Connections closed at once: too many, all of them in use.
        closed_limit,
        /// Idle connections closed to make room for others.
        closed_idlest,
        /// Calls refused: the client's port is not below 1024, and the export is not `insecure`.
        refused_port,
        /// Connections closed: a record was too long, or empty.
        closed_record,
        /// Connections closed: a record held no RPC call.
        closed_no_call,
        /// Connections closed: silent, or not reading replies, for too long.
        closed_idle,
    }
}

counters! {
    /// Counters of connections over RDMA.
    pub(crate) atomic struct RdmaStats {
        /// Connections accepted.
        accepted,
        /// Connections rejected: no export has the client's address.
        rejected_address,
        /// Connections rejected: too many, or too little memory of iwarpd, and all in use.
        rejected_limit,
        /// Idle connections closed to make room for others.
        closed_idlest,
    }
}

counters! {
    /// Bytes of payloads by their way. The daemon copies each byte once more, between packet and registered memory.
    pub(crate) atomic struct PayloadStats {
        /// Payload bytes sent from the memory of regions, not copied here.
        read_direct,
        /// Payload bytes that the kernel copied from a file to the registered memory that they are sent from.
        read_placed,
        /// Payload bytes that this program copied to the registered memory, or that left by TCP.
        read_copied,
        /// Bytes of WRITE placed in the memory of regions, not copied here.
        write_direct,
        /// Bytes of WRITE that the kernel copied to a file from the registered memory that they were received in.
        write_placed,
        /// Bytes of WRITE that this program copied from where they were received.
        write_copied,
    }
}

counters! {
    /// Counters of the state of NFS version 4.1.
    pub(crate) struct Nfs4Stats {
        /// Clients without opens removed to make room for others.
        clients_evicted,
    }
}

/// Way of payload between a connection and a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The memory of a region is registered: nobody copies here.
    Direct,
    /// The kernel copies between the file and registered memory.
    Placed,
    /// This program copies the bytes itself.
    Copied,
}

/// Counters of a procedure, and the times of its calls.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) counters: ProcedureStats,
    pub(crate) latency: Latency,
}

impl PayloadStats {
    /// Counts payload that a reply returns.
    pub(crate) fn read(&self, way: Way, bytes: u64) {
        let counter = match way {
            Way::Direct => &self.read_direct,
            Way::Placed => &self.read_placed,
            Way::Copied => &self.read_copied,
        };
        add(counter, bytes);
    }

    /// Counts payload of a WRITE.
    pub(crate) fn wrote(&self, way: Way, bytes: u64) {
        let counter = match way {
            Way::Direct => &self.write_direct,
            Way::Placed => &self.write_placed,
            Way::Copied => &self.write_copied,
        };
        add(counter, bytes);
    }
}

/// Reason of an error: the program, its status, and the status' name.
pub(crate) type Reason = (Program, Option<u32>, String);

/// Counters of a server.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Counters of each procedure and operation.
    pub(crate) rows: BTreeMap<Procedure, Row>,
    errors: Mutex<BTreeMap<Reason, u64>>,
    /// Counters of RPC-over-RDMA, as the thread that serves it has published them.
    rdma: Mutex<iwarp_rpc::Stats>,
    /// Counters of the TCP side.
    pub(crate) tcp: TcpStats,
    /// Counters of connections over RDMA.
    pub(crate) connects: RdmaStats,
    pub(crate) payload: PayloadStats,
    /// Counters of transfers that calls over RDMA wait for.
    pub(crate) transfers: Arc<TransferStats>,
    /// Connections that are open.
    pub(crate) connections: Arc<Connections>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            rows: Procedure::all().map(|procedure| (procedure, Row::default())).collect(),
            errors: Mutex::default(),
            rdma: Mutex::default(),
            tcp: TcpStats::default(),
            connects: RdmaStats::default(),
            payload: PayloadStats::default(),
            transfers: Arc::default(),
            connections: Arc::default(),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stats {
    /// Publishes the counters of RPC-over-RDMA.
    pub(crate) fn publish(&self, rdma: &iwarp_rpc::Stats) {
        *locked(&self.rdma) = *rdma;
    }

    /// Returns the counters of RPC-over-RDMA that were published last.
    pub(crate) fn rdma(&self) -> iwarp_rpc::Stats {
        *locked(&self.rdma)
    }

    /// Counts an error by its reason.
    pub(crate) fn error(&self, program: Program, status: Option<u32>, reason: String) {
        let mut errors = locked(&self.errors);
        let count = errors.entry((program, status, reason)).or_default();
        *count = count.saturating_add(1);
    }

    /// Returns the errors by reason.
    pub(crate) fn errors(&self) -> Vec<(Reason, u64)> {
        locked(&self.errors).iter().map(|(reason, count)| (reason.clone(), *count)).collect()
    }

    /// Begins to measure a call.
    #[allow(clippy::disallowed_methods, reason = "the time of a call is measured here")]
    pub(crate) fn begin(self: &Arc<Self>, procedure: Procedure) -> Measured {
        Measured { stats: Arc::clone(self), procedure, begun: Instant::now(), written: 0 }
    }
}

/// A call that is executed.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) stats: Arc<Stats>,
    pub(crate) procedure: Procedure,
    begun: Instant,
    /// Payload bytes that the call has written.
    pub(crate) written: u64,
}

impl Measured {
    /// Counts the call, with the payload that its reply returns. `failed` is the status of an error, and its name.
    pub(crate) fn end(self, read: u64, failed: Option<(u32, String)>) {
        let Some(row) = self.stats.rows.get(&self.procedure) else { return };
        let ProcedureStats { calls, errors, read_bytes, written_bytes } = &row.counters;
        add(calls, 1);
        add(read_bytes, read);
        add(written_bytes, self.written);
        row.latency.record(self.begun.elapsed());
        if let Some((status, reason)) = failed {
            add(errors, 1);
            // A COMPOUND fails for the reason of its operation.
            if self.procedure != Procedure::Nfs4(Nfs4Proc::COMPOUND) {
                self.stats.error(self.procedure.program(), Some(status), reason);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iwarp_server::counters::value;

    use super::*;
    use crate::procedure::{Nfs3Proc, Nfs4Op};

    #[test]
    fn calls_and_errors_are_counted() {
        let stats = Arc::new(Stats::default());
        let read = Procedure::Nfs3(Nfs3Proc::READ);
        stats.begin(read).end(100, None);
        stats.begin(read).end(0, Some((70, "NFS3ERR_STALE".to_owned())));
        let row = &stats.rows[&read].counters;
        assert_eq!((value(&row.calls), value(&row.errors), value(&row.read_bytes)), (2, 1, 100));
        assert_eq!(stats.errors(), [((Program::Nfs3, Some(70), "NFS3ERR_STALE".to_owned()), 1)]);
        let compound = Procedure::Nfs4(Nfs4Proc::COMPOUND);
        stats.begin(Procedure::Operation(Nfs4Op::READ)).end(0, Some((70, "Stale".to_owned())));
        stats.begin(compound).end(0, Some((70, "Stale".to_owned())));
        assert_eq!(value(&stats.rows[&compound].counters.errors), 1);
        assert_eq!(stats.errors()[1..], [((Program::Nfs4, Some(70), "Stale".to_owned()), 1)]);
        // An operation that does not exist has no row.
        stats.begin(Procedure::Operation(Nfs4Op::ILLEGAL)).end(0, None);
    }
}
