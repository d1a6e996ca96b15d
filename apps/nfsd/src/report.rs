//! The state of a server in the messages of the control socket.

use std::net::IpAddr;
use std::time::Duration;

use iwarp_server::counters::{group, value};
use iwarp_server::iwarp_control::nfs::{
    self, Clients, Connection, Errors, Export, ExportClients, Nfs4Client, Stats,
};

use crate::export::{Rule, Squash};
use crate::mount::Path;
use crate::procedure::Procedure;
use crate::server::Server;
use crate::stats::{Nfs4Stats, Row};

pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Server {
    /// Returns the exports with their mounts.
    pub(crate) fn exports_report(&self) -> Vec<Export> {
        let mounts = self.mounted();
        let exports = self.exports();
        let export_of = |path: &str| Path::new(path.as_bytes()).and_then(|path| Some(path.find(&exports)?.0));
        let mounts: Vec<_> = mounts.iter().map(|(client, path)| (*client, export_of(path))).collect();
        let report = exports.list().iter().map(|(number, export)| {
            let mounted = mounts.iter().filter(|(_, export)| *export == Some(*number));
            let mut mounts: Vec<IpAddr> = mounted.map(|(client, _)| *client).collect();
            mounts.sort_unstable();
            mounts.dedup();
            Export {
                path: export.path.clone(),
                content: export.backend.content(),
                clients: export.rules.iter().map(rights).collect(),
                insecure: export.insecure,
                mounts,
            }
        });
        report.collect()
    }

    /// Lists the connections, and the clients of NFS version 4.1.
    pub(crate) fn clients_report(&self) -> Clients {
        let connections = self.stats.connections.all();
        let connections = connections.iter().map(|peer| Connection {
            address: peer.address(),
            transport: peer.transport().to_owned(),
            age_ms: ms(peer.age()),
            calls: peer.answered(),
        });
        let mut nfs4: Vec<Nfs4Client> = self.nfs4.clients();
        nfs4.sort_unstable_by_key(|client| client.id);
        Clients { connections: connections.collect(), nfs4 }
    }

    /// Returns the number of open connections, of all transports.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.stats.connections.all().len()
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn stats_report(&self) -> Stats {
        let called = self.stats.rows.iter().filter(|(_, row)| value(&row.counters.calls) > 0);
        let procedures = called.map(|(called, row)| procedure(*called, row));
        let errors = self.stats.errors().into_iter().map(|((program, status, reason), count)| Errors {
            program: program.name().to_owned(),
            reason,
            status,
            count,
        });
        let nfs4 = Nfs4Stats { clients_evicted: self.nfs4.evicted() };
        let groups = vec![
            group("rpcrdma", |f| self.stats.rdma().visit(f)),
            group("rdma", |f| self.stats.connects.visit(f)),
            group("tcp", |f| self.stats.tcp.visit(f)),
            group("nfs4", |f| nfs4.visit(f)),
            group("payload", |f| self.stats.payload.visit(f)),
        ];
        Stats { procedures: procedures.collect(), errors: errors.collect(), groups }
    }

    /// Returns the calls executed, and those of them that failed.
    pub(crate) fn calls(&self) -> (u64, u64) {
        // A COMPOUND is a call; its operations have rows of their own.
        let rows = self.stats.rows.iter().filter(|(called, _)| !matches!(called, Procedure::Operation(_)));
        rows.fold((0, 0), |(calls, errors), (_, row)| {
            (
                u64::saturating_add(calls, value(&row.counters.calls)),
                u64::saturating_add(errors, value(&row.counters.errors)),
            )
        })
    }
}

fn rights(rule: &Rule) -> ExportClients {
    let squash = match rule.squash {
        Squash::None => "none",
        Squash::Root => "root",
        Squash::All => "all",
    };
    ExportClients {
        prefix: rule.clients,
        access: if rule.write { "rw" } else { "ro" }.to_owned(),
        squash: squash.to_owned(),
        anonuid: rule.anonymous.0,
        anongid: rule.anonymous.1,
    }
}

fn procedure(called: Procedure, row: &Row) -> nfs::Procedure {
    nfs::Procedure {
        program: called.program().name().to_owned(),
        procedure: called.name(),
        calls: value(&row.counters.calls),
        errors: value(&row.counters.errors),
        read_bytes: value(&row.counters.read_bytes),
        written_bytes: value(&row.counters.written_bytes),
        mean_ns: row.latency.mean_ns(),
        p99_ns: row.latency.p99_ns(),
        max_ns: row.latency.max_ns(),
    }
}
