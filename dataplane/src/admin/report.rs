//! Replies to the reporting methods: `status`, `stats`, `drops`, `port …` and `conn …`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use iwarp_control::bounds::CONNECTIONS_LISTED_MAX;
use iwarp_control::{
    ConnBbrInfo, ConnCounts, ConnInfo, ConnRdmaInfo, CounterGroup, CounterRow, DropRow, ErrorKind,
    ErrorObject, Idle, Link, MovedInterface, NamedCounters, PoolStatus, PortInfo, PortStatsRow, StatsReply,
    WorkerStatus,
};
use iwarp_engine::{ConnRow, ConnSelector};
use iwarp_shared_verbs::worker::ContextId;
use rdma::EndpointInfo;
use tcp_stack::Instant;
use tokio::sync::MutexGuard;

use super::regions::Regions;
use super::watch::PortEntry;
use super::worker_handle::WorkerHandle;
use crate::dpdk::{Mempool, worker_reserve};
use crate::port::Port;
use crate::worker::{Command, Gauges, Row, WorkerStats, is_histogram};

/// Names of what connections use.
#[derive(Debug)]
pub(super) struct Names<'a> {
    pub(super) regions: MutexGuard<'a, Regions>,
    /// Application by worker, port and context.
    pub(super) owners: HashMap<(usize, usize, ContextId), u32>,
}

/// Connections that a worker reports per command, between two poll iterations.
const CONN_PAGE: usize = 64;

/// Last sample of a worker's counters, and its load since the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    busy_ns: u64,
    total_ns: u64,
    permille: u32,
    /// Packet buffers refused to data to send.
    sent: Refusals,
    /// Packet buffers refused to received data.
    received: Refusals,
}

impl Load {
    /// Samples the worker's counters.
    pub(super) fn sample(&mut self, handle: &WorkerHandle) {
        let WorkerStats { busy_ns, total_ns, .. } = handle.published.worker();
        let (busy, total) = (busy_ns.saturating_sub(self.busy_ns), total_ns.saturating_sub(self.total_ns));
        let permille = (busy.saturating_mul(1000)).checked_div(total).unwrap_or(0);
        let tcp = handle.published.tcp();
        let received = tcp.held_refused.wrapping_add(tcp.keep_refused);
        let permille = u32::try_from(permille.min(1000)).unwrap_or(1000);
        let sent = self.sent.sample(handle.published.packet_pool().data_refused);
        *self = Self { busy_ns, total_ns, permille, sent, received: self.received.sample(received) };
    }
}

impl Load {
    /// Returns where packet buffers became short in the last second, with the number of those refused.
    pub(super) fn shortages(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let begun = [("received data", self.received.begun), ("data to be sent", self.sent.begun)];
        begun.into_iter().filter(|(_, refused)| *refused > 0)
    }
}

/// Number of samples, one per second, for which a refusal stays visible, so that an occasional reader sees it.
const REFUSALS_SHOWN: u8 = 10;

/// A count of refusals, and the number of samples for which it stays visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refusals {
    count: u64,
    shown: u8,
    /// Refusals of the last sample, if none was visible before it.
    begun: u64,
}

impl Refusals {
    fn sample(self, count: u64) -> Self {
        let shown = if count == self.count { self.shown.saturating_sub(1) } else { REFUSALS_SHOWN };
        let begun = if self.shown == 0 { count.saturating_sub(self.count) } else { 0 };
        Self { count, shown, begun }
    }
}

/// A reason for being degraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    /// The reason, the same as long as it lasts.
    pub(super) what: String,
    /// Numbers that change while it lasts.
    detail: String,
}

impl Reason {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), detail: String::new() }
    }

    pub(super) fn with_detail(self, detail: String) -> Self {
        Self { detail, ..self }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, detail } = self;
        write!(f, "{what}{detail}")
    }
}

/// Returns a reason for each worker that refuses packet buffers, or did so recently.
pub(super) fn refusals(workers: &[WorkerHandle], loads: &[Load]) -> Vec<Reason> {
    let messages = |((handle, load), worker): ((&WorkerHandle, &Load), usize)| {
        let now = handle.published.gauges();
        let retained = format!("{} of {}", now.retained_buffers, now.retained_limit);
        let received = (load.received.shown > 0).then(|| {
            Reason::new(format!("worker {worker}: received data is not kept"))
                .with_detail(format!(": it retains {retained} packet buffers"))
        });
        let sent = (load.sent.shown > 0).then(|| {
            let queued = now.send_buffers;
            Reason::new(format!("worker {worker}: no packet buffers for data to be sent")).with_detail(
                format!(": {queued} are queued or in flight, and received data retains {retained}"),
            )
        });
        received.into_iter().chain(sent)
    };
    workers.iter().zip(loads).zip(0..).flat_map(messages).collect()
}

/// Returns the status of each worker.
pub(super) fn worker_status(workers: &[WorkerHandle], loads: &[Load], idle: Idle) -> Vec<WorkerStatus> {
    workers
        .iter()
        .zip(loads)
        .zip(0..)
        .map(|((handle, load), worker)| {
            let (own, rx) = (handle.published.worker(), handle.published.rx_queue());
            let rx_bursts = rx.polls.saturating_sub(rx.polls_empty);
            let rx_packets = rx.frames;
            WorkerStatus {
                worker,
                core: u32::from(handle.core),
                idle,
                iterations: own.iterations,
                busy_permille: load.permille,
                rx_bursts,
                rx_packets_per_burst_x100: rx_packets.saturating_mul(100).checked_div(rx_bursts).unwrap_or(0),
                rx_packets,
                tx_packets: handle.published.tx_queue().frames,
                sleeps: own.sleeps,
                spins_paid: own.spins_paid,
                wake_up_ns: own.woken_late_ns.checked_div(own.sleeps_timed_out).unwrap_or(0),
            }
        })
        .collect()
}

/// Returns all counters, summed over workers and ports. The histograms are left out: the exporter has them.
fn sums(workers: &[WorkerHandle]) -> impl Iterator<Item = (Row, u64)> {
    let mut sums: Vec<(Row, u64)> = Vec::new();
    for handle in workers {
        let totals = handle.published.totals();
        if sums.is_empty() {
            sums = totals;
        } else {
            // Every worker has every port, and so the same counters in the same order.
            for ((_, sum), (_, value)) in sums.iter_mut().zip(totals) {
                *sum = sum.wrapping_add(value);
            }
        }
    }
    sums.into_iter().filter(|(row, _)| !is_histogram(row.group))
}

/// Composes the reply to `stats`.
pub(super) fn stats(
    workers: &[WorkerHandle],
    loads: &[Load],
    idle: Idle,
    own: Vec<CounterGroup>,
) -> StatsReply {
    let mut groups: Vec<CounterGroup> = Vec::new();
    for (row, value) in sums(workers) {
        let counter = CounterRow { name: row.name.to_owned(), help: row.help.trim().to_owned(), value };
        match groups.iter_mut().find(|group| group.group == row.group) {
            Some(group) => group.counters.push(counter),
            None => groups.push(CounterGroup { group: row.group.to_owned(), counters: vec![counter] }),
        }
    }
    groups.extend(own);
    StatsReply { groups, workers: worker_status(workers, loads, idle) }
}

/// Composes the reply to `drops`: counters of dropped or refused input.
pub(super) fn drops(workers: &[WorkerHandle], own: Vec<CounterGroup>) -> Vec<DropRow> {
    let dropped = sums(workers).filter(|(row, _)| is_drop(row.group, row.name)).map(|(row, count)| DropRow {
        layer: row.group.to_owned(),
        reason: row.name.strip_prefix("drop_").unwrap_or(row.name).to_owned(),
        help: row.help.trim().to_owned(),
        count,
    });
    let own = own.into_iter().flat_map(|CounterGroup { group, counters }| {
        let refused = counters.into_iter().filter(|row| is_drop(&group, &row.name)).collect::<Vec<_>>();
        let row = move |row: CounterRow| DropRow {
            layer: group.clone(),
            reason: row.name,
            help: row.help,
            count: row.value,
        };
        refused.into_iter().map(row)
    });
    dropped.chain(own).collect()
}

fn is_drop(group: &str, name: &str) -> bool {
    let prefixed =
        ["drop_", "refused_", "startup_", "bad_", "evicted_"].iter().any(|prefix| name.starts_with(prefix));
    let named =
        matches!(name, "crc_errors" | "fpdus_fragmented" | "stream_gaps" | "replies_limited" | "lines_lost");
    prefixed || named || group.ends_with("_drops") || (group == "region_service" && name != "granted")
}

fn unanswered(port: &Port, error: &crate::dpdk::DpdkError) -> ErrorObject {
    ErrorObject::new(ErrorKind::Internal, format!("port {}: {error}", port.name()))
}

/// Returns the interface of a TAP that was renamed or moved.
pub(super) fn moved(port: &Port) -> Option<MovedInterface> {
    port.moved().map(|moved| MovedInterface { name: moved.name, namespace: moved.namespace })
}

/// Composes one row of `port list`.
///
/// # Errors
/// A port does not answer.
pub(super) fn port(entry: &PortEntry) -> Result<PortInfo, ErrorObject> {
    let PortEntry { port, addresses, queues, .. } = entry;
    let stats = port.stats().map_err(|error| unanswered(port, &error))?;
    let link = port.link().map_err(|error| unanswered(port, &error))?;
    let offloads = port.offloads().named().into_iter().chain([("rss", port.rss().is_some())]);
    let [a, b, c, d, e, f] = port.mac();
    Ok(PortInfo {
        name: port.name().to_owned(),
        driver: port.driver().name().to_owned(),
        device: port.info().driver.clone(),
        mac: format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
        mtu: u32::from(port.mtu()),
        link: match (port.is_gone(), link.up) {
            (true, _) => Link::Gone,
            (false, true) => Link::Up,
            (false, false) => Link::Down,
        },
        interface: moved(port),
        speed_mbps: link.megabits_per_second.map_or(0, u64::from),
        addresses: addresses.clone(),
        rx_queues: *queues,
        tx_queues: *queues,
        offloads: offloads.filter(|(_, on)| *on).map(|(name, _)| name.to_owned()).collect(),
        rx_packets: stats.rx_frames,
        tx_packets: stats.tx_frames,
        rx_bytes: stats.rx_bytes,
        tx_bytes: stats.tx_bytes,
        rx_missed: stats.rx_missed,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        rx_nombuf: stats.rx_no_buffer,
    })
}

/// Composes the reply to `port stats`.
///
/// # Errors
/// There is no such port, or the device does not report.
pub(super) fn port_stats(ports: &[PortEntry], name: Option<&str>) -> Result<Vec<PortStatsRow>, ErrorObject> {
    let chosen: Vec<&Port> = ports
        .iter()
        .map(|entry| &entry.port)
        .filter(|port| name.is_none_or(|name| port.name() == name))
        .collect();
    if let (true, Some(name)) = (chosen.is_empty(), name) {
        return Err(ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no port `{name}`"))
            .with_help("`iwarpctl port list` shows those there are"));
    }
    let row = |port: &Port| {
        let counters = port.extended_stats().map_err(|error| unanswered(port, &error))?;
        Ok(PortStatsRow { name: port.name().to_owned(), counters: NamedCounters(counters) })
    };
    chosen.into_iter().map(row).collect()
}

/// Returns the packet buffer pools of every worker and port.
pub(super) fn pools(ports: &[PortEntry]) -> Vec<PoolStatus> {
    let of_port = |entry: &PortEntry| {
        let status = |(worker, pool): (usize, &Arc<Mempool>)| PoolStatus {
            name: format!("{}.{worker}", entry.port.name()),
            buffers: u64::from(pool.capacity()),
            // Empty ones that the driver has ready count as free.
            in_use: u64::from(pool.in_use().saturating_sub(entry.port.armed_buffers(worker))),
            reserve: u64::from(worker_reserve(pool.capacity())),
            data_room_bytes: u32::from(pool.data_room()),
        };
        entry.pools.iter().enumerate().map(status).collect::<Vec<_>>()
    };
    ports.iter().flat_map(of_port).collect()
}

/// Composes the reply to `conn list`.
///
/// # Errors
/// A worker does not answer.
pub(super) async fn conns(
    workers: &[WorkerHandle],
    names: &Names<'_>,
    now: Instant,
) -> Result<Vec<ConnInfo>, ErrorObject> {
    let mut all = Vec::new();
    for (worker, handle) in workers.iter().enumerate() {
        let mut from = Some((0, 0));
        while let Some(at) = from
            && all.len() < CONNECTIONS_LISTED_MAX
        {
            let rows = Vec::with_capacity(CONN_PAGE);
            let page = handle.ask(|reply| Command::Conns { from: at, rows, reply }).await?;
            all.extend(page.rows.into_iter().map(|(port, row)| conn_info(worker, port, &row, names, now)));
            from = page.next;
        }
    }
    Ok(all)
}

/// Composes the reply to `conn show`.
///
/// # Errors
/// There is no such connection, or its worker does not answer.
pub(super) async fn conn(
    workers: &[WorkerHandle],
    names: &Names<'_>,
    now: Instant,
    id: u64,
) -> Result<ConnInfo, ErrorObject> {
    let none = || {
        ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no connection {id}"))
            .with_help("`iwarpctl conn list` shows those there are")
    };
    let ConnNumber { worker, port, index, .. } = unpack(id);
    let handle = workers.get(worker).ok_or_else(none)?;
    let row = handle.ask(|reply| Command::Conn { port, index, reply }).await?.ok_or_else(none)?;
    let info = conn_info(worker, port, &row, names, now);
    if info.id == id { Ok(info) } else { Err(none()) }
}

/// A connection's number: worker (8 bits), port (4), slab index (20), generation (20). It fits the 53 bits that
/// every JSON reader keeps exactly.
pub(super) fn pack(worker: usize, port: usize, index: u32, generation: u32) -> u64 {
    (worker as u64 & 0xff) << 44
        | (port as u64 & 0xf) << 40
        | u64::from(index & 0xf_ffff) << 20
        | u64::from(generation & ConnSelector::GENERATION_MASK)
}

/// Components of a connection's number.
pub(super) struct ConnNumber {
    pub(super) worker: usize,
    pub(super) port: usize,
    pub(super) index: u32,
    pub(super) generation: u32,
}

pub(super) fn unpack(id: u64) -> ConnNumber {
    let part = |shift: u32, mask: u64| u32::try_from(id >> shift & mask).unwrap_or_default();
    ConnNumber {
        worker: part(44, 0xff) as usize,
        port: part(40, 0xf) as usize,
        index: part(20, 0xf_ffff),
        generation: part(0, ConnSelector::GENERATION_MASK.into()),
    }
}

fn conn_info(worker: usize, port: usize, row: &ConnRow, names: &Names<'_>, now: Instant) -> ConnInfo {
    let ConnRow { id, tcp, service, rdma, region, context } = row;
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ConnInfo {
        id: pack(worker, port, id.index(), id.generation()),
        worker: u32::try_from(worker).unwrap_or(u32::MAX),
        local: tcp.local,
        remote: tcp.remote,
        state: tcp.state.as_str().to_owned(),
        service: (*service).to_owned(),
        app: context.and_then(|context| names.owners.get(&(worker, port, context)).copied()),
        age_ms: micros(now.saturating_since(tcp.opened_at)) / 1000,
        bytes_in: tcp.bytes_in,
        bytes_out: tcp.bytes_acked,
        segments_in: tcp.segments_in,
        segments_out: tcp.segments_out,
        retransmits: tcp.segments_retransmitted,
        rtt_us: tcp.srtt.map_or(0, micros),
        rttvar_us: micros(tcp.rttvar),
        min_rtt_us: tcp.min_rtt.map_or(0, micros),
        rto_ms: micros(tcp.rto) / 1000,
        attempts: u32::from(tcp.attempts),
        soft_error: tcp.soft_error,
        timeouts: u64::from(tcp.timeouts),
        recoveries: u64::from(tcp.recoveries),
        congestion: tcp.congestion.to_owned(),
        ecn: tcp.ecn.as_str().to_owned(),
        pacing_bytes_per_s: tcp.pacing_rate,
        delivery_bytes_per_s: tcp.delivery_rate,
        delivery_app_limited: tcp.delivery_app_limited,
        bbr: tcp.bbr.map(|bbr| ConnBbrInfo {
            state: bbr.state.to_owned(),
            bandwidth_bytes_per_s: bbr.bandwidth,
            min_rtt_us: bbr.min_rtt.map_or(0, micros),
            pacing_gain_percent: bbr.pacing_gain_percent,
            cwnd_gain_percent: bbr.cwnd_gain_percent,
        }),
        cwnd_bytes: u64::from(tcp.cwnd),
        ssthresh_bytes: u64::from(tcp.ssthresh),
        in_flight_bytes: u64::from(tcp.in_flight),
        mss: u32::from(tcp.emss),
        path_mtu: u32::from(tcp.path_mtu),
        snd_wnd: u64::from(tcp.send_window),
        rcv_wnd: u64::from(tcp.receive_window),
        unread_bytes: u64::from(tcp.unread_bytes),
        urgent_bytes: tcp.urgent_bytes,
        held_bytes: u64::from(tcp.held_bytes),
        sack: tcp.sack,
        timestamps: tcp.timestamps,
        wscale: [tcp.send_window_scale, tcp.receive_window_scale],
        rdma: rdma
            .as_ref()
            .map(|rdma| rdma_info(rdma, region.and_then(|region| names.regions.name_of(region)))),
    }
}

fn rdma_info(rdma: &EndpointInfo, region: Option<String>) -> ConnRdmaInfo {
    ConnRdmaInfo {
        mpa_revision: rdma.rev,
        crc: rdma.crc,
        ird: rdma.ird,
        ord: rdma.ord,
        region,
        state: format!("{:?}", rdma.state),
        in_writes: rdma.counters.in_writes,
        in_reads: rdma.counters.in_reads,
        bytes_placed: rdma.counters.bytes_placed,
        bytes_fetched: rdma.counters.bytes_fetched,
        last_terminate: rdma.terminate.map(|code| code.to_string()),
    }
}

/// Returns the number of connections in each phase, as last published by the workers.
pub(super) fn conn_counts(workers: &[WorkerHandle], max: u64) -> ConnCounts {
    let mut now = Gauges::default();
    workers.iter().for_each(|worker| now.add(&worker.published.gauges()));
    ConnCounts {
        established: now.established,
        opening: now.syn_sent + now.syn_received,
        closing: now.fin_wait_1 + now.fin_wait_2 + now.close_wait + now.closing + now.last_ack,
        time_wait: now.time_wait,
        max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Published, Visit, command_ring};

    #[test]
    fn a_connection_number_round_trips() {
        let number = pack(200, 13, 0xabcde, 0x1234_5678);
        assert!(number < 1 << 53);
        let ConnNumber { worker, port, index, generation } = unpack(number);
        assert_eq!((worker, port, index, generation), (200, 13, 0xabcde, 0x4_5678));
    }

    #[test]
    fn a_refusal_is_shown_for_a_while() {
        let mut refusals = Refusals::default().sample(0);
        assert_eq!(refusals.shown, 0);
        refusals = refusals.sample(7);
        for left in (1..=REFUSALS_SHOWN).rev() {
            assert_eq!((refusals.shown, refusals.count), (left, 7));
            refusals = refusals.sample(7);
        }
        assert_eq!(refusals.shown, 0);
        assert_eq!(refusals.sample(8).sample(9).shown, REFUSALS_SHOWN);
        assert_eq!((refusals.sample(8).begun, refusals.sample(8).sample(9).begun), (1, 0));
    }

    /// The counters of a worker that loads, messages and drops are made of.
    #[derive(Default)]
    struct Counters {
        tcp: tcp_stack::TcpStats,
        data_refused: u64,
    }

    impl Visit for Counters {
        fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
            self.tcp.visit(&mut |name, help, value| f("tcp", name, help, value));
            f("packet_pool", "data_refused", "Refused.", self.data_refused);
            f("now", "retained_buffers", "Retained.", 3000);
            f("now", "retained_limit", "Limit.", 4000);
            f("now", "send_buffers", "Queued.", 50);
        }
    }

    fn worker(counters: &Counters) -> WorkerHandle {
        let published = Arc::new(Published::new(counters));
        WorkerHandle::new(0, published, command_ring(1).unwrap().0)
    }

    /// Returns the messages of worker 1 of two after each of these states of its counters, a sample apart.
    fn told(states: &[Counters]) -> Vec<Vec<String>> {
        let workers = [worker(&Counters::default()), worker(&Counters::default())];
        let mut loads = [Load::default(); 2];
        let tell = |counters: &Counters| {
            workers[1].published.publish(counters);
            loads.iter_mut().zip(&workers).for_each(|(load, handle)| load.sample(handle));
            refusals(&workers, &loads).iter().map(Reason::to_string).collect()
        };
        states.iter().map(tell).collect()
    }

    #[test]
    fn a_worker_that_refuses_packet_buffers_is_a_reason_to_be_degraded() {
        let refused = |held_refused, keep_refused, data_refused| Counters {
            tcp: tcp_stack::TcpStats { held_refused, keep_refused, ..Default::default() },
            data_refused,
        };
        let received = "worker 1: received data is not kept: it retains 3000 of 4000 packet buffers";
        let sent = "worker 1: no packet buffers for data to be sent: 50 are queued or in flight, and received data \
                    retains 3000 of 4000";
        for (counters, expected) in [
            (refused(1, 0, 0), vec![received]),
            (refused(0, 1, 0), vec![received]),
            (refused(0, 0, 1), vec![sent]),
            (refused(9, 9, 9), vec![received, sent]),
        ] {
            assert_eq!(told(&[Counters::default(), counters]), [vec![], expected]);
        }
        // It ends some time after the last refusal.
        let states: Vec<Counters> = (0..=REFUSALS_SHOWN).map(|_| refused(1, 0, 0)).collect();
        assert_eq!(told(&states).last(), Some(&vec![]));
    }

    /// `iwarpctl stats` and `iwarpctl drops` have the same names for the layers.
    #[test]
    fn the_layer_of_a_drop_is_a_group_of_counters() {
        let workers = [worker(&Counters::default())];
        let own = || {
            let row = CounterRow { name: "refused_too_many".into(), help: "Refused.".into(), value: 1 };
            vec![CounterGroup { group: "control".into(), counters: vec![row] }]
        };
        let groups = stats(&workers, &[Load::default()], Idle::Spin, own()).groups;
        let rows = drops(&workers, own());
        assert!(rows.iter().any(|row| row.layer == "tcp") && rows.iter().any(|row| row.layer == "control"));
        for row in rows {
            assert!(groups.iter().any(|group| group.group == row.layer), "{} is no group", row.layer);
        }
    }

    #[test]
    fn drop_counters_are_recognized() {
        assert!(is_drop("frame_drops", "drop_tcp_checksum"));
        assert!(is_drop("mpa", "refused_key") && is_drop("mpa", "crc_errors"));
        assert!(is_drop("region_service", "malformed") && !is_drop("region_service", "granted"));
        assert!(is_drop("tcp", "evicted_table_full") && is_drop("frame_drops", "drop_tcp_source_full"));
        assert!(!is_drop("tcp", "segments_out"));
    }
}
