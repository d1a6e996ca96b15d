//! Counts how often received payload is copied and how much is held, over a link that reorders.
//!
//! `cargo test -p iwarp-engine --test copies -- --nocapture` prints the table of docs/copies.md.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use iwarp_engine::testutil::CLEAN;
use iwarp_engine::testutil::client::{Session, fill};
use iwarp_engine::testutil::lab::{Lab, REGION, Setup};
use rdma::{Access, CrcPolicy, MpaStats, OutOfOrderPolicy};
use tcp_stack::Duration;
use tcp_stack::testutil::LinkConfig;

const PIECE: u32 = 1 << 20;
const PIECES: u64 = 64;
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// A link on which five frames of a hundred arrive late.
const REORDERED: LinkConfig = LinkConfig { reorder: 50_000, hold: Duration::from_micros(100), ..CLEAN };

struct Row {
    name: &'static str,
    mpa: MpaStats,
    payload: u64,
    /// Segments received, those received out of order, and of these the ones placed at once.
    segments: u64,
    behind: u64,
    taken: u64,
}

impl Row {
    /// Returns the bytes of `part` per 10000 bytes of payload.
    fn share(&self, part: u64) -> u64 {
        part * 10_000 / self.payload
    }
}

/// Writes 64 MiB into a region and returns the counters.
fn measure(name: &'static str, setup: Setup) -> Row {
    let mut lab = Lab::new(setup);
    let conn = lab.connect(REGION, Session::region("lab", Access::REMOTE_WRITE, b"", setup.crc));
    lab.run_until("a grant", TIME_LIMIT, |lab| lab.client.rdma(conn).answer.is_some());
    let mut source = vec![0; PIECE as usize];
    fill(7, &mut source);
    let local = lab.client.memory.add(source.clone()).unwrap();
    for nth in 0..PIECES {
        lab.run_until("room", TIME_LIMIT, |lab| lab.client.established(conn).1.info().work_pending < 8);
        lab.client.write(conn, (local, 0), PIECE, u64::from(PIECE) * (nth % 4));
    }
    lab.run_until("all work", TIME_LIMIT, |lab| lab.engine.rdma_stats().rdmap.in_rdma_writes == PIECES);
    assert!(lab.region_bytes().chunks(source.len()).all(|piece| piece == source), "{name}");
    let (stats, tcp) = (*lab.engine.rdma_stats(), lab.engine.stack().stats().tcp);
    // Each segment holds one FPDU.
    let segments = stats.mpa.fpdus_in;
    assert_eq!(stats.rdmap.payload_bytes_placed, PIECES * u64::from(PIECE), "{name}: placed once");
    Row {
        name,
        mpa: stats.mpa,
        payload: stats.rdmap.payload_bytes_placed,
        segments,
        behind: tcp.held_segments,
        taken: tcp.taken_segments,
    }
}

fn print(rows: &[Row]) {
    println!("| 64 MiB of RDMA Writes, MTU 1500 | copied | segments behind a gap | placed at once | held |");
    println!("|---|---|---|---|---|");
    for row in rows {
        let copied = row.mpa.bytes_copied * 10_000 / row.payload;
        let percent =
            |part: u64| format!("{}.{:02} %", part * 100 / row.segments, part * 10_000 / row.segments % 100);
        println!(
            "| {} | {}.{:04} × | {} | {} | {} |",
            row.name,
            copied / 10_000,
            copied % 10_000,
            percent(row.behind),
            percent(row.taken),
            percent(row.behind - row.taken),
        );
    }
}

#[test]
fn a_received_byte_is_copied_once() {
    let setup = Setup { link: REORDERED, seed: 11, ..Setup::default() };
    let off = OutOfOrderPolicy::Off;
    let rows = [
        measure("in order, CRC", Setup { link: CLEAN, ..setup }),
        measure("5 % reordered, markers, CRC", Setup { markers: true, ..setup }),
        measure("5 % reordered, alignment, CRC", setup),
        measure(
            "5 % reordered, markers, no CRC",
            Setup { markers: true, crc: CrcPolicy::IfPeerAsks, ..setup },
        ),
        measure("5 % reordered, neither", Setup { crc: CrcPolicy::IfPeerAsks, ..setup }),
        measure("5 % reordered, markers, placement off", Setup { markers: true, out_of_order: off, ..setup }),
    ];
    print(&rows);
    for row in &rows {
        assert_eq!(row.mpa.bytes_copied, row.payload, "{}: once, and no byte more", row.name);
    }
    let [in_order, recovered @ .., neither, disabled] = &rows;
    assert_eq!((in_order.behind, in_order.mpa.bytes_held), (0, 0));
    for row in recovered {
        assert!(row.behind > 1000, "{}: {}", row.name, row.behind);
        assert!(
            row.share(row.mpa.bytes_held) < 200,
            "{}: {} of 10000",
            row.name,
            row.share(row.mpa.bytes_held)
        );
        assert!(row.mpa.bytes_placed_early > row.payload / 50, "{}", row.name);
    }
    // TCP holds them in the frames that they arrived in, and they are still copied once.
    assert_eq!((neither.taken, neither.mpa.bytes_placed_early), (0, 0));
    assert!(neither.share(neither.mpa.bytes_held) > 500);
    assert_eq!((disabled.taken, disabled.mpa.early_tried), (0, 0));
    assert!(disabled.behind > 1000);
}
