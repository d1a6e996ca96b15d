//! Formats replies of iwarp-nfsd.

use std::time::Duration;

use iwarp_control::nfs::{Clients, Export, Files, Reloaded, Stats, Status};
use iwarp_terminal::units;

use super::table::{pairs, table};
use super::{Width, list, yes_no};

/// Formats the state, a line per property.
pub(crate) fn status(status: &Status, width: Width) -> String {
    let time = |ms| units::duration(Duration::from_millis(ms));
    let tcp = status.tcp.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let mut rows = vec![
        ("version", status.version.clone()),
        ("pid", status.pid.to_string()),
        ("up", time(status.uptime_ms)),
        ("config", status.config.display().to_string()),
        ("rdma", format!("{}, {} connections", status.rdma, status.connections_rdma)),
        ("tcp", format!("{tcp}, {} connections", status.connections_tcp)),
        ("exports", status.exports.to_string()),
        ("clients", format!("{} of NFS 4.1, {} sessions", status.clients, status.sessions)),
        ("opens", status.opens.to_string()),
        ("locks", status.locks.to_string()),
        ("grace", yes_no(status.in_grace).to_owned()),
        ("calls", format!("{}, {} failed", status.calls, status.errors)),
        ("files", files(&status.files)),
    ];
    if let Some(error) = &status.reload_error {
        rows.push(("reload", error.clone()));
    }
    pairs(width, &rows)
}

/// Formats the access to files on one line.
fn files(files: &Files) -> String {
    let reason = files.reason.as_ref().map(|reason| format!(" (no io_uring: {reason})")).unwrap_or_default();
    format!(
        "{}{reason}, {} of {} in flight, {} waiting; {} done, {} waited, {} cached",
        files.access,
        files.in_flight,
        files.transfers_max,
        files.waiting,
        files.done,
        files.waited,
        files.cached
    )
}

/// Formats all exports, a line per prefix of clients.
pub(crate) fn exports(exports: &[Export], width: Width) -> String {
    let rows = exports.iter().flat_map(|export| {
        export.clients.iter().enumerate().map(|(at, clients)| {
            let mounts = if at == 0 { list(&export.mounts) } else { "-".to_owned() };
            vec![
                export.path.clone(),
                clients.prefix.to_string(),
                clients.access.clone(),
                if export.insecure { "any" } else { "<1024" }.to_owned(),
                clients.squash.clone(),
                format!("{}:{}", clients.anonuid, clients.anongid),
                export.content.clone(),
                mounts,
            ]
        })
    });
    let header = ["PATH", "CLIENTS", "ACCESS", "TCP PORTS", "SQUASH", "ANONYMOUS", "CONTENT", "MOUNTED BY"];
    table(width, &header, &["MOUNTED BY", "ANONYMOUS", "CONTENT", "TCP PORTS"], rows)
}

/// Formats the connections, and the clients of NFS 4.1.
pub(crate) fn clients(clients: &Clients, width: Width) -> String {
    let time = |ms| units::duration(Duration::from_millis(ms));
    let connections = clients.connections.iter().map(|client| {
        vec![
            client.address.to_string(),
            client.transport.clone(),
            time(client.age_ms),
            client.calls.to_string(),
        ]
    });
    let mut text = table(width, &["ADDRESS", "TRANSPORT", "AGE", "CALLS"], &["AGE"], connections);
    if !clients.nfs4.is_empty() {
        let rows = clients.nfs4.iter().map(|client| {
            let counts = [client.sessions, client.opens, client.locks].map(|count| count.to_string());
            let state = if client.confirmed { "confirmed" } else { "new" };
            [vec![state.to_owned(), time(client.silent_ms)], counts.to_vec(), vec![printable(&client.owner)]]
                .concat()
        });
        text += "\n";
        text += &table(width, &["NFS 4.1", "SILENT", "SESSIONS", "OPENS", "LOCKS", "OWNER"], &[], rows);
    }
    text
}

/// Replaces control characters: a client chooses its name.
fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// Formats the counters that are not zero.
pub(crate) fn stats(stats: &Stats, width: Width) -> String {
    let rows = stats.procedures.iter().map(|procedure| {
        vec![
            procedure.program.clone(),
            procedure.procedure.clone(),
            procedure.calls.to_string(),
            procedure.errors.to_string(),
            units::size(procedure.read_bytes),
            units::size(procedure.written_bytes),
            units::micros(procedure.mean_ns),
            units::micros(procedure.p99_ns),
            units::micros(procedure.max_ns),
        ]
    });
    let header = ["PROGRAM", "PROCEDURE", "CALLS", "ERRORS", "READ", "WRITTEN", "MEAN", "P99", "MAX"];
    let mut text = table(width, &header, &["P99", "MEAN", "ERRORS"], rows);
    if !stats.errors.is_empty() {
        let rows = stats.errors.iter().map(|error| {
            let status = error.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
            vec![error.program.clone(), status, error.count.to_string(), error.reason.clone()]
        });
        text += "\n";
        text += &table(width, &["PROGRAM", "STATUS", "COUNT", "REASON"], &[], rows);
    }
    let counters = stats.groups.iter().flat_map(|group| {
        let counted = group.counters.iter().filter(|row| row.value > 0);
        counted
            .map(|row| vec![group.group.clone(), row.name.clone(), row.value.to_string(), row.help.clone()])
    });
    let counters: Vec<_> = counters.collect();
    if !counters.is_empty() {
        text += "\n";
        text += &table(width, &["GROUP", "COUNTER", "COUNT", "MEANING"], &[], counters);
    }
    text
}

/// Formats the reply to `nfs reload`.
pub(crate) fn reloaded(reloaded: &Reloaded) -> String {
    format!("{} exports loaded\n", reloaded.exports)
}
