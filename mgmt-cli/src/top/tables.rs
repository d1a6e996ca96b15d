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
        Tab::Workers => sample.status.workers.iter().map(|it| worker(it, &of(&it.worker))).collect(),
        Tab::Ports => sample.status.ports.iter().map(|it| port(it, &of(&it.name))).collect(),
        Tab::Connections => sample.conns.iter().map(|it| conn(it, &of(&it.id))).collect(),
        Tab::Regions => sample.regions.iter().map(|it| region(it, &of(&it.name))).collect(),
        Tab::Applications => sample.apps.iter().map(|it| app(it, &of(&it.app))).collect(),
    }
}

/// Takes every quantity of a sample that a table has a rate or a sparkline of.
pub(super) fn measure(sample: &Sample, rates: &mut Rates) {
    let Sample { status, conns, regions, apps, drops } = sample;
    let mut busiest = 0;
    for it in &status.workers {
        let key = |quantity| Key::of(Tab::Workers, &it.worker, quantity);
        busiest = busiest.max(it.busy_permille);
        rates.gauge(key("activity"), it.busy_permille.into());
        for (quantity, value) in
            [("rx", it.rx_packets), ("tx", it.tx_packets), ("polls", it.iterations), ("sleeps", it.sleeps)]
        {
            rates.count(key(quantity), value);
        }
    }
    let mut totals = [("rx", 0_u64), ("tx", 0), ("rx packets", 0), ("tx packets", 0), ("drops", *drops)];
    for it in &status.ports {
        let key = |quantity| Key::of(Tab::Ports, &it.name, quantity);
        let values = [it.rx_bytes, it.tx_bytes, it.rx_packets, it.tx_packets];
        for ((quantity, total), value) in totals.iter_mut().zip(values) {
            rates.count(key(quantity), value);
            *total = total.saturating_add(value);
        }
        rates.count(key("activity"), it.rx_bytes.saturating_add(it.tx_bytes));
    }
    rates.gauge(Key::total("busy"), busiest.into());
    totals.into_iter().for_each(|(quantity, value)| rates.count(Key::total(quantity), value));
    let mut pair = |tab, object: &dyn ToString, [(first, one), (second, two)]: [(&'static str, u64); 2]| {
        let key = |quantity| Key::of(tab, &object.to_string(), quantity);
        rates.count(key(first), one);
        rates.count(key(second), two);
        rates.count(key("activity"), one.saturating_add(two));
    };
    for it in conns {
        pair(Tab::Connections, &it.id, [("in", it.bytes_in), ("out", it.bytes_out)]);
    }
    for it in regions {
        pair(Tab::Regions, &it.name, [("written", it.bytes_placed), ("read", it.bytes_fetched)]);
    }
    for it in apps {
        pair(Tab::Applications, &it.app, [("requests", it.work_requests), ("completions", it.completions)]);
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

fn worker(it: &WorkerStatus, of: &Object<'_>) -> Vec<Cell> {
    vec![
        Cell::number(it.worker.into()),
        Cell::number(it.core.into()),
        Cell::text(render::worker::idle(it.idle)),
        Cell::scaled(units::permille(it.busy_permille), it.busy_permille.into()),
        of.activity(Some(1000.0)),
        of.rate("rx", units::event_rate),
        of.rate("tx", units::event_rate),
        Cell::scaled(render::worker::packets_per_burst(it), it.rx_packets_per_burst_x100 as f64),
        of.rate("polls", units::event_rate),
        of.rate("sleeps", units::event_rate),
    ]
}

fn port(it: &PortInfo, of: &Object<'_>) -> Vec<Cell> {
    let errors = it.rx_errors.saturating_add(it.tx_errors).saturating_add(it.rx_nombuf);
    vec![
        Cell::text(&it.name),
        Cell::text(render::port::word(it.link)),
        Cell::scaled(render::port::speed(it), it.speed_mbps as f64),
        of.rate("rx", bits),
        of.rate("rx packets", units::event_rate),
        of.rate("tx", bits),
        of.rate("tx packets", units::event_rate),
        of.activity(None),
        Cell::number(it.rx_missed),
        Cell::number(errors),
        Cell::number(it.mtu.into()),
        Cell::text(&it.driver),
        Cell::text(&render::list(&it.addresses)),
    ]
}

fn conn(it: &ConnInfo, of: &Object<'_>) -> Vec<Cell> {
    let region = it.rdma.as_ref().and_then(|rdma| rdma.region.as_deref());
    vec![
        Cell::number(it.id),
        Cell::text(&it.state),
        Cell::text(&it.remote),
        Cell::text(&it.local),
        Cell::text(&it.service),
        Cell::text(region.unwrap_or("-")),
        Cell::maybe(it.app.map(f64::from), |app| app.to_string()),
        of.rate("in", units::byte_rate),
        of.rate("out", units::byte_rate),
        of.activity(None),
        Cell::scaled(format!("{} µs", it.rtt_us), it.rtt_us as f64),
        Cell::number(it.retransmits),
        Cell::scaled(units::size(it.cwnd_bytes), it.cwnd_bytes as f64),
        Cell::number(it.worker.into()),
        Cell::duration(it.age_ms),
    ]
}

fn region(it: &RegionInfo, of: &Object<'_>) -> Vec<Cell> {
    let size = |bytes: u64| Cell::scaled(units::size(bytes), bytes as f64);
    vec![
        Cell::text(&it.name),
        size(it.bytes),
        Cell::number(it.grants),
        of.rate("written", units::byte_rate),
        of.rate("read", units::byte_rate),
        of.activity(None),
        size(it.bytes_placed),
        size(it.bytes_fetched),
        Cell::text(render::yes_no(it.token_required)),
        Cell::text(render::region::origin(it.origin)),
        Cell::text(&render::region::rights(it.access)),
    ]
}

fn app(it: &AppInfo, of: &Object<'_>) -> Vec<Cell> {
    vec![
        Cell::number(it.app.into()),
        Cell::number(it.pid.into()),
        Cell::number(it.uid.into()),
        Cell::text(&render::app::or_dash(&it.command)),
        Cell::text(&render::app::or_dash(it.device.as_deref().unwrap_or_default())),
        Cell::number(it.queue_pairs),
        Cell::number(it.memory_regions),
        Cell::scaled(units::size(it.registered_bytes), it.registered_bytes as f64),
        of.rate("requests", units::event_rate),
        of.rate("completions", units::event_rate),
        of.activity(None),
        Cell::number(it.errors),
        Cell::maybe(it.worker.map(f64::from), |worker| worker.to_string()),
        Cell::duration(it.age_ms),
    ]
}
