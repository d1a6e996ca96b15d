//! Counters of a server: calls by procedure, errors by reason, connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nfs3_types::nfs3::nfsstat3;
use nfs3_types::xdr_codec::Unpack;

use crate::rdma::RdmaStats;
use crate::status::Status;
use crate::tcp::TcpStats;
use crate::waiting::TransferStats;

/// A program, as counters name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    Nfs3,
    Nfs4,
    Mount,
    /// No procedure has executed the call.
    Rpc,
}

impl Program {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nfs3 => "nfs3",
            Self::Nfs4 => "nfs4",
            Self::Mount => "mount",
            Self::Rpc => "rpc",
        }
    }

    /// Returns the name of a status. Those of MOUNT are a part of those of NFS version 3.
    pub(crate) fn status_name(self, status: u32) -> String {
        let nfs3 =
            || nfsstat3::unpack(&mut &status.to_be_bytes()[..]).map(|(status, _)| format!("{status:?}"));
        let name = if self == Self::Nfs4 { Status::name(status).map(str::to_owned) } else { nfs3().ok() };
        name.unwrap_or_else(|| format!("status {status}"))
    }

    /// Returns the names of the procedures by number; of NFS version 4, those of the operations.
    pub(crate) const fn procedures(self) -> &'static [&'static str] {
        match self {
            Self::Nfs3 => NFS3,
            Self::Nfs4 => NFS4,
            Self::Mount => MOUNT,
            Self::Rpc => &[],
        }
    }
}

/// Procedures of NFS version 3 (RFC 1813 §3.3).
const NFS3: &[&str] = &[
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];
/// Procedures of MOUNT version 3 (RFC 1813 §5.2).
const MOUNT: &[&str] = &["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];
/// Procedures of NFS version 4, and behind them the operations by number (RFC 8881 §16.2.3).
const NFS4: &[&str] = &[
    "NULL",
    "COMPOUND",
    "(2)",
    "ACCESS",
    "CLOSE",
    "COMMIT",
    "CREATE",
    "DELEGPURGE",
    "DELEGRETURN",
    "GETATTR",
    "GETFH",
    "LINK",
    "LOCK",
    "LOCKT",
    "LOCKU",
    "LOOKUP",
    "LOOKUPP",
    "NVERIFY",
    "OPEN",
    "OPENATTR",
    "OPEN_CONFIRM",
    "OPEN_DOWNGRADE",
    "PUTFH",
    "PUTPUBFH",
    "PUTROOTFH",
    "READ",
    "READDIR",
    "READLINK",
    "REMOVE",
    "RENAME",
    "RENEW",
    "RESTOREFH",
    "SAVEFH",
    "SECINFO",
    "SETATTR",
    "SETCLIENTID",
    "SETCLIENTID_CONFIRM",
    "VERIFY",
    "WRITE",
    "RELEASE_LOCKOWNER",
    "BACKCHANNEL_CTL",
    "BIND_CONN_TO_SESSION",
    "EXCHANGE_ID",
    "CREATE_SESSION",
    "DESTROY_SESSION",
    "FREE_STATEID",
    "GET_DIR_DELEGATION",
    "GETDEVICEINFO",
    "GETDEVICELIST",
    "LAYOUTCOMMIT",
    "LAYOUTGET",
    "LAYOUTRETURN",
    "SECINFO_NO_NAME",
    "SEQUENCE",
    "SET_SSV",
    "TEST_STATEID",
    "WANT_DELEGATION",
    "DESTROY_CLIENTID",
    "RECLAIM_COMPLETE",
];

/// Number of the procedure COMPOUND.
const COMPOUND: u32 = 1;
/// Times of a call are counted by the power of two that is not shorter, up to 2³⁹ ns (9 minutes).
const BUCKETS: usize = 40;

/// Counters of a procedure.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) calls: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    total_ns: AtomicU64,
    pub(crate) max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Row {
    fn default() -> Self {
        Self {
            calls: AtomicU64::default(),
            errors: AtomicU64::default(),
            read_bytes: AtomicU64::default(),
            written_bytes: AtomicU64::default(),
            total_ns: AtomicU64::default(),
            max_ns: AtomicU64::default(),
            buckets: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Returns the value of a counter.
pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Row {
    fn took(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&self.total_ns, ns);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        let power = ns.checked_next_power_of_two().map_or(BUCKETS, |power| power.trailing_zeros() as usize);
        if let Some(bucket) = self.buckets.get(power.min(BUCKETS.saturating_sub(1))) {
            add(bucket, 1);
        }
    }

    /// Returns the average time of a call in nanoseconds.
    pub(crate) fn mean_ns(&self) -> u64 {
        value(&self.total_ns).checked_div(value(&self.calls)).unwrap_or(0)
    }

    /// Returns the nanoseconds that 99 % of the calls did not exceed, rounded up to a power of two.
    pub(crate) fn p99_ns(&self) -> u64 {
        let counts: Vec<u64> = self.buckets.iter().map(value).collect();
        let all = counts.iter().copied().fold(0, u64::saturating_add);
        let wanted = all.saturating_sub(all.checked_div(100).unwrap_or(0));
        let mut so_far = 0_u64;
        let found = counts.iter().position(|count| {
            so_far = so_far.saturating_add(*count);
            so_far >= wanted
        });
        let power = found.and_then(|at| u32::try_from(at).ok()).unwrap_or(0);
        if all == 0 { 0 } else { 1_u64.checked_shl(power).unwrap_or(u64::MAX) }
    }
}

/// Bytes of payloads by their way. A byte that is copied here is copied once more between a packet and memory.
#[derive(Debug, Default)]
pub(crate) struct PayloadStats {
    read_direct: AtomicU64,
    read_copied: AtomicU64,
    write_direct: AtomicU64,
    write_copied: AtomicU64,
}

impl PayloadStats {
    /// Counts payload that a reply returns.
    pub(crate) fn read(&self, direct: u64, copied: u64) {
        add(&self.read_direct, direct);
        add(&self.read_copied, copied);
    }

    /// Counts payload of a WRITE.
    pub(crate) fn wrote(&self, is_direct: bool, bytes: u64) {
        add(if is_direct { &self.write_direct } else { &self.write_copied }, bytes);
    }

    /// Calls `f(name, help, value)` once per counter.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, u64)) {
        let rows = [
            (
                "read_direct",
                "Payload bytes sent from the memory of regions, not copied here.",
                &self.read_direct,
            ),
            ("read_copied", "Payload bytes sent from a buffer that they were copied to.", &self.read_copied),
            (
                "write_direct",
                "Bytes of WRITE placed in the memory of regions, not copied here.",
                &self.write_direct,
            ),
            (
                "write_copied",
                "Bytes of WRITE copied from a buffer that they were received in.",
                &self.write_copied,
            ),
        ];
        rows.into_iter().for_each(|(name, help, counter)| f(name, help, value(counter)));
    }
}

/// Reason of an error: the program, its status, and the status' name.
pub(crate) type Reason = (Program, Option<u32>, String);

/// Counters of a server.
#[derive(Debug)]
pub(crate) struct Stats {
    nfs3: Vec<Row>,
    nfs4: Vec<Row>,
    mount: Vec<Row>,
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
    connections: Mutex<Vec<Arc<Peer>>>,
}

impl Default for Stats {
    fn default() -> Self {
        let rows = |program: Program| program.procedures().iter().map(|_| Row::default()).collect();
        Self {
            nfs3: rows(Program::Nfs3),
            nfs4: rows(Program::Nfs4),
            mount: rows(Program::Mount),
            errors: Mutex::default(),
            rdma: Mutex::default(),
            tcp: TcpStats::default(),
            connects: RdmaStats::default(),
            payload: PayloadStats::default(),
            transfers: Arc::default(),
            connections: Mutex::default(),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stats {
    /// Returns the counters of a program's procedures, by number.
    pub(crate) fn rows(&self, program: Program) -> &[Row] {
        match program {
            Program::Nfs3 => &self.nfs3,
            Program::Nfs4 => &self.nfs4,
            Program::Mount => &self.mount,
            Program::Rpc => &[],
        }
    }

    /// Publishes the counters of RPC-over-RDMA.
    pub(crate) fn publish(&self, rdma: &iwarp_rpc::Stats) {
        *locked(&self.rdma) = *rdma;
    }

    /// Returns the counters of RPC-over-RDMA that were published last.
    pub(crate) fn rdma(&self) -> iwarp_rpc::Stats {
        *locked(&self.rdma)
    }

    fn row(&self, program: Program, procedure: u32) -> Option<&Row> {
        self.rows(program).get(procedure as usize)
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
    pub(crate) fn begin(self: &Arc<Self>, program: Program, procedure: u32) -> Measured {
        Measured { stats: Arc::clone(self), program, procedure, begun: Instant::now(), written: 0 }
    }

    /// Enters a connection, until the result is dropped.
    #[allow(clippy::disallowed_methods, reason = "the age of a connection is measured here")]
    pub(crate) fn connected(self: &Arc<Self>, address: IpAddr, transport: &'static str) -> Connected {
        let address = address.to_canonical();
        let peer = Arc::new(Peer { address, transport, since: Instant::now(), calls: AtomicU64::new(0) });
        locked(&self.connections).push(Arc::clone(&peer));
        Connected { stats: Arc::clone(self), peer }
    }

    /// Returns all connections, the oldest first.
    pub(crate) fn connections(&self) -> Vec<Arc<Peer>> {
        locked(&self.connections).clone()
    }
}

/// A call that is executed.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) stats: Arc<Stats>,
    pub(crate) program: Program,
    procedure: u32,
    begun: Instant,
    /// Payload bytes that the call has written.
    pub(crate) written: u64,
}

impl Measured {
    /// Counts the call, with the payload that its reply returns. `failed` is the status of an error, and its name.
    pub(crate) fn end(self, read: u64, failed: Option<(u32, String)>) {
        let Some(row) = self.stats.row(self.program, self.procedure) else { return };
        add(&row.calls, 1);
        add(&row.read_bytes, read);
        add(&row.written_bytes, self.written);
        row.took(self.begun.elapsed());
        if let Some((status, reason)) = failed {
            add(&row.errors, 1);
            // A COMPOUND fails for the reason of its operation.
            if (self.program, self.procedure) != (Program::Nfs4, COMPOUND) {
                self.stats.error(self.program, Some(status), reason);
            }
        }
    }
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) transport: &'static str,
    since: Instant,
    pub(crate) calls: AtomicU64,
}

impl Peer {
    /// Returns the time since the connection was accepted.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Keeps a connection in the list.
#[derive(Debug)]
pub(crate) struct Connected {
    stats: Arc<Stats>,
    peer: Arc<Peer>,
}

impl Connected {
    /// Counts a call that was answered.
    pub(crate) fn answered(&self) {
        add(&self.peer.calls, 1);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        locked(&self.stats.connections).retain(|peer| !Arc::ptr_eq(peer, &self.peer));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn times_are_averaged_and_rounded_up() {
        let row = Row::default();
        assert_eq!((row.mean_ns(), row.p99_ns()), (0, 0));
        for _ in 0..99 {
            add(&row.calls, 1);
            row.took(Duration::from_nanos(1000));
        }
        add(&row.calls, 1);
        row.took(Duration::from_micros(901));
        assert_eq!((row.mean_ns(), row.p99_ns(), value(&row.max_ns)), (10_000, 1024, 901_000));
        add(&row.calls, 1);
        row.took(Duration::from_secs(3600));
        assert_eq!(row.p99_ns(), 1 << 20, "99 of 101 are not 99 %");
        row.took(Duration::MAX);
    }

    #[test]
    fn calls_errors_and_connections_are_counted() {
        let stats = Arc::new(Stats::default());
        stats.begin(Program::Nfs3, 6).end(100, None);
        stats.begin(Program::Nfs3, 6).end(0, Some((70, "NFS3ERR_STALE".to_owned())));
        let row = &stats.rows(Program::Nfs3)[6];
        assert_eq!((value(&row.calls), value(&row.errors), value(&row.read_bytes)), (2, 1, 100));
        assert_eq!(stats.errors(), [((Program::Nfs3, Some(70), "NFS3ERR_STALE".to_owned()), 1)]);
        stats.begin(Program::Nfs4, 25).end(0, Some((70, "Stale".to_owned())));
        stats.begin(Program::Nfs4, 1).end(0, Some((70, "Stale".to_owned())));
        assert_eq!(value(&stats.rows(Program::Nfs4)[1].errors), 1);
        assert_eq!(stats.errors()[1..], [((Program::Nfs4, Some(70), "Stale".to_owned()), 1)]);
        // A procedure that does not exist has no row.
        stats.begin(Program::Nfs3, 22).end(0, None);
        let address = "::ffff:10.0.0.1".parse().unwrap();
        let first = stats.connected(address, "rdma");
        let second = stats.connected(address, "tcp");
        first.answered();
        drop(second);
        let [peer] = &stats.connections()[..] else { panic!("one connection") };
        assert_eq!((peer.address, peer.transport), ("10.0.0.1".parse().unwrap(), "rdma"));
        assert_eq!(value(&peer.calls), 1);
    }

    #[test]
    fn operations_have_the_names_of_their_numbers() {
        assert_eq!((NFS3.len(), MOUNT.len(), NFS4.len()), (22, 6, 59));
        assert_eq!((NFS3[6], NFS3[21], NFS4[25], NFS4[38]), ("READ", "COMMIT", "READ", "WRITE"));
        assert_eq!((NFS4[42], NFS4[53], NFS4[58]), ("EXCHANGE_ID", "SEQUENCE", "RECLAIM_COMPLETE"));
    }
}
