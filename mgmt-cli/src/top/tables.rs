//! The tables of `top`: columns, and a row for each object.

use std::cmp::Ordering;
use std::time::Duration;

use iwarp_control::{AppInfo, ConnInfo, PortInfo, RegionInfo, WorkerStatus};
use iwarp_terminal::units;

use super::rates::{Key, Rates};
use super::sample::Sample;
use crate::args::Tab;
use crate::render;

/// Columns of a sparkline in a table.
const SPARKLINE: usize = 10;

/// All tables, in the order of their keys.
pub(super) const TABS: [Tab; 5] =
    [Tab::Workers, Tab::Ports, Tab::Connections, Tab::Regions, Tab::Applications];

/// The columns of a table.
#[derive(Debug)]
pub(super) struct Columns {
    /// The name of the table.
    pub(super) title: &'static str,
    pub(super) header: &'static [&'static str],
    /// Columns that a narrow terminal does without, the first one first.
    pub(super) spare: &'static [&'static str],
    /// The column to sort by at first, and true for the highest first.
    pub(super) sort: (&'static str, bool),
}

/// A cell: its text, and its number if it is sorted by one.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    number: Option<f64>,
}

impl Cell {
    fn text(text: &(impl ToString + ?Sized)) -> Self {
        Self { text: text.to_string(), number: None }
    }

    fn number(value: u64) -> Self {
        Self::scaled(value.to_string(), value as f64)
    }

    fn scaled(text: String, value: f64) -> Self {
        Self { text, number: Some(value) }
    }

    /// A quantity that is not known, or not yet, is less than every other.
    fn maybe(value: Option<f64>, text: impl Fn(f64) -> String) -> Self {
        Self { text: value.map_or_else(|| "-".to_owned(), text), number: Some(value.unwrap_or(-1.0)) }
    }

    fn duration(milliseconds: u64) -> Self {
        Self::scaled(units::duration(Duration::from_millis(milliseconds)), milliseconds as f64)
    }

    /// Compares two cells of one column.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// Returns the columns of a table.
pub(super) const fn columns(tab: Tab) -> &'static Columns {
    match tab {
        Tab::Workers => &WORKERS,
        Tab::Ports => &PORTS,
        Tab::Connections => &CONNECTIONS,
        Tab::Regions => &REGIONS,
        Tab::Applications => &APPLICATIONS,
    }
}

const WORKERS: Columns = Columns {
    title: "workers",
    header: &["WORKER", "CORE", "IDLE", "BUSY", "ACTIVITY", "RX", "TX", "PACKETS/BURST", "POLLS", "SLEEPS"],
    spare: &["SLEEPS", "POLLS", "PACKETS/BURST", "IDLE", "ACTIVITY", "CORE"],
    sort: ("WORKER", false),
};

const PORTS: Columns = Columns {
    title: "ports",
    header: &[
        "NAME",
        "LINK",
        "SPEED",
        "RX",
        "RX PACKETS",
        "TX",
        "TX PACKETS",
        "ACTIVITY",
        "MISSED",
        "ERRORS",
        "MTU",
        "DRIVER",
        "ADDRESSES",
    ],
    spare: &[
        "ADDRESSES",
        "DRIVER",
        "MTU",
        "SPEED",
        "ERRORS",
        "ACTIVITY",
        "MISSED",
        "TX PACKETS",
        "RX PACKETS",
    ],
    sort: ("NAME", false),
};

const CONNECTIONS: Columns = Columns {
    title: "connections",
    header: &[
        "ID",
        "STATE",
        "REMOTE",
        "LOCAL",
        "SERVICE",
        "REGION",
        "APP",
        "IN",
        "OUT",
        "ACTIVITY",
        "RTT",
        "RETRANSMITS",
        "CWND",
        "WORKER",
        "AGE",
    ],
    spare: &[
        "CWND",
        "WORKER",
        "LOCAL",
        "SERVICE",
        "AGE",
        "RETRANSMITS",
        "RTT",
        "APP",
        "STATE",
        "ACTIVITY",
        "REGION",
    ],
    sort: ("ACTIVITY", true),
};

const REGIONS: Columns = Columns {
    title: "regions",
    header: &[
        "NAME", "SIZE", "GRANTS", "WRITTEN", "READ", "ACTIVITY", "PLACED", "FETCHED", "TOKEN", "ORIGIN",
        "ACCESS",
    ],
    spare: &["ACCESS", "ORIGIN", "TOKEN", "FETCHED", "PLACED", "ACTIVITY", "SIZE"],
    sort: ("ACTIVITY", true),
};

const APPLICATIONS: Columns = Columns {
    title: "applications",
    header: &[
        "ID",
        "PID",
        "UID",
        "COMMAND",
        "DEVICE",
        "QPS",
        "MRS",
        "REGISTERED",
        "REQUESTS",
        "COMPLETIONS",
        "ACTIVITY",
        "ERRORS",
        "WORKER",
        "AGE",
    ],
    spare: &["WORKER", "UID", "DEVICE", "MRS", "AGE", "REGISTERED", "ACTIVITY", "QPS", "REQUESTS", "PID"],
    sort: ("ACTIVITY", true),
};

/// Returns a row for each object of a table, in the daemon's order.
pub(super) fn rows(tab: Tab, sample: &Sample, rates: &Rates) -> Vec<Vec<Cell>> {
    let of = |object: &dyn ToString| Object { tab, object: object.to_string(), rates };
    match tab {
        Tab::Workers => sample.status.workers.iter().map(|row| worker(row, &of(&row.worker))).collect(),
        Tab::Ports => sample.status.ports.iter().map(|row| port(row, &of(&row.name))).collect(),
        Tab::Connections => sample.conns.iter().map(|row| conn(row, &of(&row.id))).collect(),
        Tab::Regions => sample.regions.iter().map(|row| region(row, &of(&row.name))).collect(),
        Tab::Applications => sample.apps.iter().map(|row| app(row, &of(&row.app))).collect(),
    }
}

/// Takes every quantity of a sample that a table has a rate or a sparkline of.
pub(super) fn measure(sample: &Sample, rates: &mut Rates) {
    let Sample { status, conns, regions, apps, drops } = sample;
    let mut busiest = 0;
    for worker in &status.workers {
        let key = |quantity| Key::of(Tab::Workers, &worker.worker, quantity);
        busiest = busiest.max(worker.busy_permille);
        rates.gauge(key("activity"), worker.busy_permille.into());
        for (quantity, value) in [
            ("rx", worker.rx_packets),
            ("tx", worker.tx_packets),
            ("polls", worker.iterations),
            ("sleeps", worker.sleeps),
        ] {
            rates.count(key(quantity), value);
        }
    }
    let mut totals = [("rx", 0_u64), ("tx", 0), ("rx packets", 0), ("tx packets", 0), ("drops", *drops)];
    for port in &status.ports {
        let key = |quantity| Key::of(Tab::Ports, &port.name, quantity);
        let values = [port.rx_bytes, port.tx_bytes, port.rx_packets, port.tx_packets];
        for ((quantity, total), value) in totals.iter_mut().zip(values) {
            rates.count(key(quantity), value);
            *total = total.saturating_add(value);
        }
        rates.count(key("activity"), port.rx_bytes.saturating_add(port.tx_bytes));
    }
    rates.gauge(Key::total("busy"), busiest.into());
    totals.into_iter().for_each(|(quantity, value)| rates.count(Key::total(quantity), value));
    let mut pair = |tab, object: &dyn ToString, [(first, one), (second, two)]: [(&'static str, u64); 2]| {
        let key = |quantity| Key::of(tab, &object.to_string(), quantity);
        rates.count(key(first), one);
        rates.count(key(second), two);
        rates.count(key("activity"), one.saturating_add(two));
    };
    for conn in conns {
        pair(Tab::Connections, &conn.id, [("in", conn.bytes_in), ("out", conn.bytes_out)]);
    }
    for region in regions {
        pair(Tab::Regions, &region.name, [("written", region.bytes_placed), ("read", region.bytes_fetched)]);
    }
    for app in apps {
        pair(
            Tab::Applications,
            &app.app,
            [("requests", app.work_requests), ("completions", app.completions)],
        );
    }
}

/// The rates of one object.
struct Object<'a> {
    tab: Tab,
    object: String,
    rates: &'a Rates,
}

impl Object<'_> {
    fn key(&self, quantity: &'static str) -> Key {
        Key::of(self.tab, &self.object, quantity)
    }

    fn rate(&self, quantity: &'static str, text: impl Fn(f64) -> String) -> Cell {
        Cell::maybe(self.rates.latest(&self.key(quantity)), text)
    }

    /// The sparkline of the object's activity, which is sorted by the latest value.
    fn activity(&self, full: Option<f64>) -> Cell {
        let key = self.key("activity");
        let latest = self.rates.latest(&key).unwrap_or(-1.0);
        Cell::scaled(self.rates.sparkline(&key, SPARKLINE, full), latest)
    }
}

/// Formats bytes per second of a port as bits per second, the unit of its speed.
pub(super) fn bits(bytes_per_second: f64) -> String {
    units::bit_rate(bytes_per_second * 8.0)
}

fn worker(worker: &WorkerStatus, of: &Object<'_>) -> Vec<Cell> {
    vec![
        Cell::number(worker.worker.into()),
        Cell::number(worker.core.into()),
        Cell::text(render::worker::idle(worker.idle)),
        Cell::scaled(units::permille(worker.busy_permille), worker.busy_permille.into()),
        of.activity(Some(1000.0)),
        of.rate("rx", units::event_rate),
        of.rate("tx", units::event_rate),
        Cell::scaled(render::worker::packets_per_burst(worker), worker.rx_packets_per_burst_x100 as f64),
        of.rate("polls", units::event_rate),
        of.rate("sleeps", units::event_rate),
    ]
}

fn port(port: &PortInfo, of: &Object<'_>) -> Vec<Cell> {
    let errors = port.rx_errors.saturating_add(port.tx_errors).saturating_add(port.rx_nombuf);
    vec![
        Cell::text(&port.name),
        Cell::text(render::port::word(port.link)),
        Cell::scaled(render::port::speed(port), port.speed_mbps as f64),
        of.rate("rx", bits),
        of.rate("rx packets", units::event_rate),
        of.rate("tx", bits),
        of.rate("tx packets", units::event_rate),
        of.activity(None),
        Cell::number(port.rx_missed),
        Cell::number(errors),
        Cell::number(port.mtu.into()),
        Cell::text(&port.driver),
        Cell::text(&render::list(&port.addresses)),
    ]
}

fn conn(conn: &ConnInfo, of: &Object<'_>) -> Vec<Cell> {
    let region = conn.rdma.as_ref().and_then(|rdma| rdma.region.as_deref());
    vec![
        Cell::number(conn.id),
        Cell::text(&conn.state),
        Cell::text(&conn.remote),
        Cell::text(&conn.local),
        Cell::text(&conn.service),
        Cell::text(region.unwrap_or("-")),
        Cell::maybe(conn.app.map(f64::from), |app| app.to_string()),
        of.rate("in", units::byte_rate),
        of.rate("out", units::byte_rate),
        of.activity(None),
        Cell::scaled(format!("{} µs", conn.rtt_us), conn.rtt_us as f64),
        Cell::number(conn.retransmits),
        Cell::scaled(units::size(conn.cwnd_bytes), conn.cwnd_bytes as f64),
        Cell::number(conn.worker.into()),
        Cell::duration(conn.age_ms),
    ]
}

fn region(region: &RegionInfo, of: &Object<'_>) -> Vec<Cell> {
    let size = |bytes: u64| Cell::scaled(units::size(bytes), bytes as f64);
    vec![
        Cell::text(&region.name),
        size(region.bytes),
        Cell::number(region.grants),
        of.rate("written", units::byte_rate),
        of.rate("read", units::byte_rate),
        of.activity(None),
        size(region.bytes_placed),
        size(region.bytes_fetched),
        Cell::text(render::yes_no(region.token_required)),
        Cell::text(render::region::origin(region.origin)),
        Cell::text(&render::region::rights(region.access)),
    ]
}

fn app(app: &AppInfo, of: &Object<'_>) -> Vec<Cell> {
    vec![
        Cell::number(app.app.into()),
        Cell::number(app.pid.into()),
        Cell::number(app.uid.into()),
        Cell::text(&render::app::or_dash(&app.command)),
        Cell::text(&render::app::or_dash(app.device.as_deref().unwrap_or_default())),
        Cell::number(app.queue_pairs),
        Cell::number(app.memory_regions),
        Cell::scaled(units::size(app.registered_bytes), app.registered_bytes as f64),
        of.rate("requests", units::event_rate),
        of.rate("completions", units::event_rate),
        of.activity(None),
        Cell::number(app.errors),
        Cell::maybe(app.worker.map(f64::from), |worker| worker.to_string()),
        Cell::duration(app.age_ms),
    ]
}
