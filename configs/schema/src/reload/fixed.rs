//! Keys that are read at the start only: rows of a table say so.

use super::Line;
use crate::check::{TcpPath, TcpStack};
use crate::keys::{Class, Keys as _, Row, differing};
use crate::plan::{packet_buffers_default, receive_memory_default, received_buffers_default};
use crate::{Applications, Config, Port, Region};

const RESTART: &str = "takes effect at a restart only";

/// Returns every difference between `old` and `new` that needs a restart. `started` is the configuration of the start.
pub(super) fn refusals(started: &Config, old: &Config, new: &Config) -> Vec<Line> {
    let Config {
        memory,
        ports,
        workers,
        ip,
        tcp,
        mpa,
        placement,
        limits,
        listeners: _,
        regions,
        control,
        drain,
        applications,
        privileges,
        metrics,
        log,
    } = old;
    let mut lines = Vec::new();
    refuse(&mut lines, memory.rows(), new.memory.rows());
    refuse_ports(&mut lines, ports, &new.ports);
    refuse(&mut lines, workers.rows(), new.workers.rows());
    refuse(&mut lines, ip.rows(), new.ip.rows());
    refuse(&mut lines, tcp.rows(), new.tcp.rows());
    refuse(&mut lines, TcpStack::rows(&tcp.stack), TcpStack::rows(&new.tcp.stack));
    refuse(&mut lines, TcpPath::rows(&tcp.stack), TcpPath::rows(&new.tcp.stack));
    refuse_dependent(&mut lines, old, new);
    refuse(&mut lines, mpa.rows(), new.mpa.rows());
    refuse(&mut lines, placement.rows(), new.placement.rows());
    refuse(&mut lines, limits.rows(), new.limits.rows());
    refuse_above(&mut lines, started.limits.rows(), new.limits.rows());
    refuse_regions(&mut lines, regions, &new.regions);
    refuse(&mut lines, control.rows(), new.control.rows());
    refuse(&mut lines, drain.rows(), new.drain.rows());
    match (applications, &new.applications) {
        (Some(old), Some(new)) => {
            refuse(&mut lines, old.all_rows(), new.all_rows());
            let started = started.applications.as_ref().map_or_else(Vec::new, Applications::rows);
            refuse_above(&mut lines, started, new.rows());
        }
        (None, None) => {}
        _ => lines.push(Line::new("applications", RESTART)),
    }
    refuse(&mut lines, privileges.rows(), new.privileges.rows());
    match (metrics, &new.metrics) {
        (Some(old), Some(new)) => refuse(&mut lines, old.rows(), new.rows()),
        (None, None) => {}
        _ => lines.push(Line::new("metrics", RESTART)),
    }
    refuse(&mut lines, log.rows(), new.log.rows());
    lines
}

/// Refuses other values of the keys that need a restart.
fn refuse(lines: &mut Vec<Line>, old: Vec<Row>, new: Vec<Row>) {
    let differing = differing(old, new).filter(|(old, _)| old.class == Class::Restart);
    lines.extend(differing.map(|(old, _)| Line::new(old.path, RESTART)));
}

/// As [`refuse`], for one table of an array. `object` names the table.
fn refuse_of(lines: &mut Vec<Line>, object: &str, old: Vec<Row>, new: Vec<Row>) {
    let differing = differing(old, new).filter(|(old, _)| old.class == Class::Restart);
    lines.extend(differing.map(|(old, _)| Line::new(format!("{object}.{}", old.key()), RESTART)));
}

/// Refuses limits above those that the tables were allocated for.
fn refuse_above(lines: &mut Vec<Line>, started: Vec<Row>, new: Vec<Row>) {
    let bounded = differing(started, new).filter(|(started, _)| started.class == Class::UpToStart);
    for (Row { path, shown: most, .. }, Row { shown: new, .. }) in bounded {
        if new.parse::<u64>().ok() > most.parse().ok() {
            let change = format!("its table was allocated for {most} at the start; more {RESTART}");
            lines.push(Line::new(path, change));
        }
    }
}

fn refuse_ports(lines: &mut Vec<Line>, old: &[Port], new: &[Port]) {
    let find = |ports: &[Port], name: &str| ports.iter().find(|port| port.name == name).cloned();
    for port in old {
        let object = format!("port {}", port.name);
        match find(new, &port.name) {
            Some(after) => {
                refuse_of(lines, &object, port.rows(), after.rows());
                if port.neighbors != after.neighbors {
                    lines.push(Line::new(format!("{object}.neighbor"), RESTART));
                }
                if port.driver != after.driver {
                    lines.push(Line::new(object, format!("another driver or device; this {RESTART}")));
                }
            }
            None => lines.push(Line::new(object, format!("removed; this {RESTART}"))),
        }
    }
    for port in new.iter().filter(|port| find(old, &port.name).is_none()) {
        lines.push(Line::new(format!("port {}", port.name), format!("added; this {RESTART}")));
    }
    if lines.is_empty() && old != new {
        lines.push(Line::new("port", format!("another order; this {RESTART}")));
    }
}

/// Refuses other values of the keys whose defaults depend on other keys, unless both files have the default: the keys
/// that it follows have lines of their own then.
fn refuse_dependent(lines: &mut Vec<Line>, old: &Config, new: &Config) {
    let values = |config: &Config| {
        let Config { memory, ports, workers, ip, tcp, .. } = config;
        let cores = u64::try_from(workers.cores.len()).unwrap_or(u64::MAX);
        [
            (memory.packet_buffers.into(), packet_buffers_default(ports, cores, ip, tcp).into()),
            (tcp.receive_memory_bytes, receive_memory_default(memory, ports, cores)),
            (tcp.received_buffers_max.into(), received_buffers_default(memory, ports, cores).into()),
        ]
    };
    let keys = ["memory.packet_buffers", "tcp.receive_memory_bytes", "tcp.received_buffers_max"];
    for ((key, old), new) in keys.into_iter().zip(values(old)).zip(values(new)) {
        let follows = old.0 == old.1 && new.0 == new.1;
        if old.0 != new.0 && !follows {
            lines.push(Line::new(key, RESTART));
        }
    }
}

/// Refuses another size: the memory of a region is mapped by programs.
fn refuse_regions(lines: &mut Vec<Line>, old: &[Region], new: &[Region]) {
    for Region { name, bytes, .. } in new {
        if let Some(before) =
            old.iter().find(|region| region.name == *name).filter(|before| before.bytes != *bytes)
        {
            let change = format!(
                "{} -> {bytes} bytes: the size of a region cannot change; remove the region by one reload and add \
                 it by the next",
                before.bytes
            );
            lines.push(Line::new(format!("region {name}.size"), change));
        }
    }
}
