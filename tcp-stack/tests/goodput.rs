//! Goodput of each congestion control over loss, delay and reordering, as a committed table: a change of it is a change
//! to review.
//!
//! Time is virtual and everything follows from seeds, so the table is the same on every machine and at any load.

#![allow(clippy::unwrap_used, reason = "what a test builds is right")]

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};
use tcp_stack::testutil::{ConnPlan, LinkConfig, Plan, Scenario, Simulation};
use tcp_stack::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr};
use tcp_stack::{Congestion, ConnOptions, Duration, EvictionPolicy, StackConfig};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goodput.txt");

const RATE: u64 = 100_000_000;
/// Frames lost out of a million, each way.
const LOSSES: [u32; 5] = [0, 100, 1_000, 10_000, 30_000];
/// Round trip, microseconds, and length of the transfer, milliseconds.
const PATHS: [(u64, u64); 4] = [(100, 500), (1_000, 1_000), (20_000, 3_000), (100_000, 8_000)];
/// Frames delayed out of a million, each way.
const REORDERINGS: [u32; 3] = [0, 10_000, 50_000];

const HEADER: &str = "\
Goodput of one bulk transfer, Mbit/s of payload, over a link of 100 Mbit/s in a simulator.

Columns: frames lost, each way.  Rows: round trip, and frames held back, each way, by half a round trip or 1 ms,
whichever is longer: behind later ones, that is. The queue holds one bandwidth-delay product, or 64 KiB if that is
more. The time includes the handshake and slow start: 0.5, 1, 3 and 8 s for the four round trips. Each figure is the
mean of a transfer over IPv4, where the link can carry 94.1, and one over IPv6, where it can carry 92.8.

Time is virtual and chance is seeded: the test `goodput` expects exactly these figures. To renew them after a change
that is meant:  UPDATE_GOODPUT=1 cargo test -p tcp-stack --test goodput
";

#[derive(Clone, Copy, Debug)]
struct Cell {
    congestion: Congestion,
    loss: u32,
    rtt_us: u64,
    time_ms: u64,
    reorder: u32,
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for &congestion in Congestion::ALL {
        for (rtt_us, time_ms) in PATHS {
            for reorder in REORDERINGS {
                for loss in LOSSES {
                    cells.push(Cell { congestion, loss, rtt_us, time_ms, reorder });
                }
            }
        }
    }
    cells
}

fn host(number: u8, congestion: Congestion) -> StackConfig {
    let mut config = StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, number]),
        ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, number), 24),
        ipv6: Ipv6Cidr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()), 64),
        connections_max: 4,
        neighbors_max: 4,
        buffers_max: 8192,
        held_segments_max: 4096,
        held_bytes_max: 16 << 20,
        send_buffer_bytes: 4 << 20,
        receive_window_bytes: 4 << 20,
        ..StackConfig::default()
    };
    config.tcp.congestion = congestion;
    config
}

/// Returns the goodput of a cell in hundredths of Mbit/s.
fn goodput(cell: &Cell, ipv6: bool) -> u64 {
    let link = LinkConfig {
        rate: RATE,
        delay: Duration::from_micros(cell.rtt_us / 2),
        reorder: cell.reorder,
        hold: Duration::from_micros((cell.rtt_us / 2).max(1_000)),
        loss: cell.loss,
        queue: (RATE / 8 * cell.rtt_us / 1_000_000).max(64 << 10),
        ..LinkConfig::CLEAN
    };
    let conn = ConnPlan {
        at: Duration::ZERO,
        from: 0,
        to: 1,
        ipv6,
        simultaneous: false,
        opener: Plan::bulk(1 << 40),
        listener: Plan::sink(),
        shares_listener_of: None,
        eviction: EvictionPolicy::Never,
    };
    let scenario = Scenario {
        hosts: vec![host(1, cell.congestion), host(2, cell.congestion)],
        link,
        link_back: None,
        switched: false,
        conns: vec![conn],
        conn_options: ConnOptions::default(),
        listener_connections_max: u32::MAX,
        buffers: 16_384,
        further_buffers: 0,
        poll_interval: Duration::ZERO,
        abort_at: Some(Duration::from_millis(cell.time_ms)),
        attack: None,
        liar: None,
        wraps: false,
        hostile: false,
        steps_max: 30_000_000,
    };
    let report = Simulation::new(&scenario, 1).unwrap().run().unwrap();
    let [_, listener] = report.outcomes[0];
    // Bits per microsecond are Mbit/s.
    listener.received * 8 * 100 / (cell.time_ms * 1_000)
}

fn percent(per_million: u32) -> String {
    let text = format!("{}.{:02}", per_million / 10_000, per_million / 100 % 100);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

fn print(cells: &[Cell], goodputs: &[u64]) -> String {
    let mut text = HEADER.to_owned();
    let per_control = PATHS.len() * REORDERINGS.len() * LOSSES.len();
    for (cells, goodputs) in cells.chunks(per_control).zip(goodputs.chunks(per_control)) {
        write!(text, "\n{:<32}", format!("{:?}", cells[0].congestion)).unwrap();
        for loss in LOSSES {
            write!(text, "{:>9}", percent(loss)).unwrap();
        }
        text.push('\n');
        for (cells, goodputs) in cells.chunks(LOSSES.len()).zip(goodputs.chunks(LOSSES.len())) {
            let (rtt_us, reorder) = (cells[0].rtt_us, cells[0].reorder);
            let rtt = format!("{}.{}", rtt_us / 1_000, rtt_us / 100 % 10);
            let held =
                if reorder == 0 { "in order".into() } else { format!("{} held back", percent(reorder)) };
            write!(text, "  {:>5} ms, {held:<20}", rtt.trim_end_matches(".0")).unwrap();
            for goodput in goodputs {
                write!(text, "{:>9}", format!("{}.{:02}", goodput / 100, goodput % 100)).unwrap();
            }
            text.push('\n');
        }
    }
    text
}

#[test]
fn the_table() {
    let cells = cells();
    let goodputs = Mutex::new(vec![0; cells.len()]);
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let goodput = (goodput(cell, false) + goodput(cell, true)) / 2;
                    let index = cells.iter().position(|other| std::ptr::eq(other, cell)).unwrap();
                    goodputs.lock().unwrap()[index] = goodput;
                }
            });
        }
    });
    let table = print(&cells, &goodputs.into_inner().unwrap());
    if env::var_os("UPDATE_GOODPUT").is_some() {
        fs::write(TABLE, table).unwrap();
        return;
    }
    let kept = fs::read_to_string(TABLE).unwrap_or_default();
    let mut changed: Vec<String> = Vec::new();
    changed.extend(
        kept.lines().filter(|old| !table.lines().any(|new| new == *old)).map(|old| format!("- {old}")),
    );
    changed.extend(
        table.lines().filter(|new| !kept.lines().any(|old| old == *new)).map(|new| format!("+ {new}")),
    );
    assert!(
        table == kept,
        "tests/goodput.txt is not what this stack does:\n{}\n\n\
         If that is meant: UPDATE_GOODPUT=1 cargo test -p tcp-stack --test goodput",
        changed.join("\n"),
    );
}
