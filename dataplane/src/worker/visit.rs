//! Visits every counter of a worker's port in a fixed order, for [`Published`](super::Published).

use rdma::verbs::DeviceTimes;
use tcp_stack::{StackStats, State};

use super::{Visit, WorkerPort};

type Sink<'a> = &'a mut dyn FnMut(&'static str, &'static str, &'static str, u64);

impl Visit for WorkerPort {
    fn visit(&self, f: Sink<'_>) {
        queues(self, f);
        let engine = self.engine();
        stack(&engine.stack().stats(), f);
        engine.rdma_stats().visit(f);
        engine.rdma_cm_stats().visit(&mut |name, help, value| f("verbs", name, help, value));
        engine.device().stats().visit(&mut |name, help, value| f("verbs", name, help, value));
        times(engine.device().times(), f);
        engine.memory().kernel_stats().visit(&mut |name, help, value| f("mr", name, help, value));
        engine.notices().stats().visit(&mut |name, help, value| f("notices", name, help, value));
        engine.service_stats().visit(&mut |name, help, value| f("services", name, help, value));
    }
}

/// Names of the histograms. The values of each are rows of a group with its name.
const HANDSHAKE: &str = "handshake_seconds";
const COMPLETION: &str = "completion_seconds";

/// Returns true if the rows of a group are the values of a histogram.
pub fn is_histogram(group: &str) -> bool {
    [HANDSHAKE, COMPLETION].contains(&group)
}

fn times(times: &DeviceTimes, f: Sink<'_>) {
    let help =
        "From the established TCP connection, or from an application's connect, to the RDMA connection.";
    times.handshake.visit(&mut |part, value| f(HANDSHAKE, part, help, value));
    let help = "From the post of a send request of an application to its successful completion.";
    times.completion.visit(&mut |part, value| f(COMPLETION, part, help, value));
}

fn queues(port: &WorkerPort, f: Sink<'_>) {
    let (rx, tx) = port.queue_stats();
    rx.visit(&mut |name, help, value| f("rx_queue", name, help, value));
    tx.visit(&mut |name, help, value| f("tx_queue", name, help, value));
    let refused = port.pool().refused();
    f(
        "packet_pool",
        "data_refused",
        "Packet buffers refused to data to be sent: only the reserve was left.",
        refused,
    );
    port.loopback_stats().visit(&mut |name, help, value| f("loopback", name, help, value));
    port.capture_stats().visit(&mut |name, help, value| f("capture", name, help, value));
    port.steer_stats().visit(&mut |name, help, value| f("steering", name, help, value));
}

fn stack(stats: &StackStats, f: Sink<'_>) {
    stats.interface.visit(&mut |name, help, value| f("ip", name, help, value));
    stats.drops.visit(&mut |name, help, value| f("frame_drops", name, help, value));
    stats.tcp.visit(&mut |name, help, value| f("tcp", name, help, value));
    now(stats, f);
}

/// Name and help of the gauge of each connection state.
const STATES: [(State, &str, &str); 8] = [
    (State::SynSent, "syn_sent", "Connections in SYN-SENT now."),
    (State::SynReceived, "syn_received", "Connections in SYN-RECEIVED now, half-open ones included."),
    (State::Established, "established", "Connections in ESTABLISHED now."),
    (State::FinWait1, "fin_wait_1", "Connections in FIN-WAIT-1 now."),
    (State::FinWait2, "fin_wait_2", "Connections in FIN-WAIT-2 now."),
    (State::CloseWait, "close_wait", "Connections in CLOSE-WAIT now."),
    (State::Closing, "closing", "Connections in CLOSING now."),
    (State::LastAck, "last_ack", "Connections in LAST-ACK now."),
];

/// Visits the gauges: connections, buffers and bytes at this moment.
fn now(stack: &StackStats, f: Sink<'_>) {
    let count = u64::from;
    for (name, help, value) in [
        ("connections", "Connections now, half-open ones included.", count(stack.connections)),
        ("half_open", "Connections now that a peer opens and has not confirmed.", count(stack.half_open_now)),
        ("time_wait", "TIME-WAIT records now.", count(stack.time_wait_now)),
        ("send_buffers", "Packet buffers held for sending now.", count(stack.send_buffers)),
        ("receive_buffers", "Packet buffers of received segments held now.", count(stack.receive_buffers)),
        (
            "retained_buffers",
            "Packet buffers with received data that are retained now: behind gaps, and by the services.",
            count(stack.retained_buffers),
        ),
        (
            "retained_limit",
            "Packet buffers with received data that may be retained.",
            count(stack.retained_limit),
        ),
        (
            "kept_buffers",
            "Of the retained ones, those of incomplete FPDUs and of echo.",
            count(stack.kept_buffers),
        ),
        ("unread_bytes", "Bytes received in order that the services have not consumed.", stack.unread_bytes),
    ] {
        f("now", name, help, value);
    }
    for (state, name, help) in STATES {
        f("now", name, help, count(stack.states.get(state)));
    }
}
