//! Formats replies about applications and their objects.

use std::time::Duration;

use iwarp_control::{AppInfo, CqInfo, MrInfo, MrKind, QpInfo, UsageInfo, UserInfo, WatchInfo};
use iwarp_terminal::units;

use super::{Width, list as names, number_or_dash, pairs, table};

/// Formats all applications in columns.
pub(crate) fn list(apps: &[AppInfo], width: Width) -> String {
    let rows = apps.iter().map(|app| {
        vec![
            app.app.to_string(),
            app.pid.to_string(),
            app.uid.to_string(),
            or_dash(&app.command),
            or_dash(app.device.as_deref().unwrap_or_default()),
            number_or_dash(app.worker),
            app.queue_pairs.to_string(),
            app.completion_queues.to_string(),
            app.memory_regions.to_string(),
            units::size(app.registered_bytes),
            app.work_requests.to_string(),
            app.completions.to_string(),
            app.errors.to_string(),
            age(app),
        ]
    });
    let header = [
        "ID",
        "PID",
        "UID",
        "COMMAND",
        "DEVICE",
        "WORKER",
        "QPS",
        "CQS",
        "MRS",
        "REGISTERED",
        "REQUESTS",
        "COMPLETIONS",
        "ERRORS",
        "AGE",
    ];
    let spare = ["WORKER", "CQS", "COMPLETIONS", "AGE", "UID", "DEVICE", "REQUESTS", "REGISTERED", "MRS"];
    table(width, &header, &spare, rows)
}

/// Formats what each user has of each limit.
pub(crate) fn users(users: &[UserInfo], width: Width) -> String {
    let row = |uid: u32, usage: &UsageInfo| {
        let number = |number: u64| match usage.key.as_str() {
            "applications.user_memory" => units::size(number),
            _ => number.to_string(),
        };
        let place = if usage.per_device { " per worker and port" } else { "" };
        vec![
            uid.to_string(),
            format!("{}{place}", usage.what),
            number(usage.used),
            number(usage.max),
            usage.key.clone(),
        ]
    };
    let rows = users.iter().flat_map(|user| user.usage.iter().map(move |usage| row(user.uid, usage)));
    table(width, &["UID", "OBJECTS", "USED", "MAX", "KEY"], &["KEY"], rows)
}

/// Formats one application, a line per property.
pub(crate) fn show(app: &AppInfo, width: Width) -> String {
    let watches = app.watches.iter().map(|WatchInfo { region, notifications, lost }| {
        let value = format!("{notifications} notifications, {lost} lost");
        (format!("watch {region}"), value)
    });
    let watches: Vec<(String, String)> = watches.collect();
    let watches = watches.iter().map(|(name, value)| (name.as_str(), value.clone()));
    let properties = [
        ("app", app.app.to_string()),
        ("pid", app.pid.to_string()),
        ("uid", app.uid.to_string()),
        ("command", or_dash(&app.command)),
        ("device", or_dash(app.device.as_deref().unwrap_or_default())),
        ("worker", number_or_dash(app.worker)),
        ("age", age(app)),
        ("queue_pairs", app.queue_pairs.to_string()),
        ("completion_queues", app.completion_queues.to_string()),
        ("shared_receive_queues", app.shared_receive_queues.to_string()),
        ("memory_regions", app.memory_regions.to_string()),
        ("registered_bytes", bytes(app.registered_bytes)),
        ("queue_bytes", bytes(app.queue_bytes)),
        ("work_requests", app.work_requests.to_string()),
        ("completions", app.completions.to_string()),
        ("errors", app.errors.to_string()),
    ];
    pairs(width, &properties.into_iter().chain(watches).collect::<Vec<_>>())
}

/// Formats queue pairs in columns.
pub(crate) fn queue_pairs(qps: &[QpInfo], width: Width) -> String {
    let rows = qps.iter().map(|qp| {
        vec![
            qp.app.to_string(),
            qp.number.to_string(),
            qp.state.clone(),
            qp.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string()),
            format!("{}/{}", qp.send_slots_used, qp.send_slots),
            format!("{}/{}", qp.recv_slots_used, qp.recv_slots),
            number_or_dash(qp.shared_receive_queue),
        ]
    });
    let header = ["APP", "NUMBER", "STATE", "PEER", "SEND", "RECV", "SRQ"];
    table(width, &header, &["SRQ", "RECV", "SEND"], rows)
}

/// Formats completion queues in columns.
pub(crate) fn completion_queues(cqs: &[CqInfo], width: Width) -> String {
    let rows = cqs.iter().map(|cq| {
        [u64::from(cq.app), cq.number.into(), cq.entries.into(), cq.events, cq.completions, cq.errors]
            .map(|value| value.to_string())
            .to_vec()
    });
    let header = ["APP", "NUMBER", "ENTRIES", "EVENTS", "COMPLETIONS", "ERRORS"];
    table(width, &header, &["COMPLETIONS", "EVENTS", "ERRORS"], rows)
}

/// Formats memory regions in columns.
pub(crate) fn memory_regions(mrs: &[MrInfo], width: Width) -> String {
    let rows = mrs.iter().map(|mr| {
        vec![mr.app.to_string(), mr.number.to_string(), units::size(mr.bytes), kind(mr), names(&mr.access)]
    });
    table(width, &["APP", "NUMBER", "SIZE", "KIND", "ACCESS"], &[], rows)
}

fn kind(mr: &MrInfo) -> String {
    match mr.kind {
        MrKind::Hugepages => "hugepages".to_owned(),
        MrKind::Pages => "pages".to_owned(),
        MrKind::Region => format!("region {}", mr.region.as_deref().unwrap_or("-")),
        MrKind::Shared => "shared".to_owned(),
        MrKind::SharedAndKernel => format!("shared, {} by kernel", units::size(mr.kernel_bytes)),
        MrKind::Kernel => "kernel".to_owned(),
    }
}

fn age(app: &AppInfo) -> String {
    units::duration(Duration::from_millis(app.age_ms))
}

fn bytes(bytes: u64) -> String {
    format!("{bytes} ({})", units::size(bytes))
}

pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}
