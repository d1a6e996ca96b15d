//! Visits every counter of a worker's port in a fixed order, for [`Published`].

use rdma::verbs::DeviceTimes;
use tcp_stack::{StackStats, State};

use super::{Published, Visit, WorkerPort};

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
        engine.notices().stats().visit(&mut |name, help, value| f(Published::NOTICES, name, help, value));
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
    rx.visit(&mut |name, help, value| f(Published::RX_QUEUE, name, help, value));
    tx.visit(&mut |name, help, value| f(Published::TX_QUEUE, name, help, value));
    PacketPoolStats { data_refused: port.pool().refused() }
        .visit(&mut |name, help, value| f(Published::PACKET_POOL, name, help, value));
    port.loopback_stats().visit(&mut |name, help, value| f("loopback", name, help, value));
    port.capture_stats().visit(&mut |name, help, value| f("capture", name, help, value));
    port.steer_stats().visit(&mut |name, help, value| f("steering", name, help, value));
}

fn stack(stats: &StackStats, f: Sink<'_>) {
    stats.interface.visit(&mut |name, help, value| f("ip", name, help, value));
    stats.drops.visit(&mut |name, help, value| f("frame_drops", name, help, value));
    stats.tcp.visit(&mut |name, help, value| f(Published::TCP, name, help, value));
    Gauges::of(stats).visit(&mut |name, help, value| f(Published::GAUGES, name, help, value));
}

iwarp_counters::counters! {
    /// Gauges of a port on one worker: connections, buffers and bytes at this moment.
    pub struct Gauges {
        /// Connections now, half-open ones included.
        connections,
        /// Connections now that a peer opens and has not confirmed.
        half_open,
        /// TIME-WAIT records now.
        time_wait,
        /// Packet buffers held for sending now.
        send_buffers,
        /// Packet buffers of received segments held now.
        receive_buffers,
        /// Packet buffers with received data that are retained now: behind gaps, and by the services.
        retained_buffers,
        /// Packet buffers with received data that may be retained.
        retained_limit,
        /// Of the retained ones, those of incomplete FPDUs and of echo.
        kept_buffers,
        /// Bytes received in order that the services have not consumed.
        unread_bytes,
        /// Connections in SYN-SENT now.
        syn_sent,
        /// Connections in SYN-RECEIVED now, half-open ones included.
        syn_received,
        /// Connections in ESTABLISHED now.
        established,
        /// Connections in FIN-WAIT-1 now.
        fin_wait_1,
        /// Connections in FIN-WAIT-2 now.
        fin_wait_2,
        /// Connections in CLOSE-WAIT now.
        close_wait,
        /// Connections in CLOSING now.
        closing,
        /// Connections in LAST-ACK now.
        last_ack,
    }
}

impl Gauges {
    fn of(stack: &StackStats) -> Self {
        let state = |state| u64::from(stack.states.get(state));
        Self {
            connections: stack.connections.into(),
            half_open: stack.half_open_now.into(),
            time_wait: stack.time_wait_now.into(),
            send_buffers: stack.send_buffers.into(),
            receive_buffers: stack.receive_buffers.into(),
            retained_buffers: stack.retained_buffers.into(),
            retained_limit: stack.retained_limit.into(),
            kept_buffers: stack.kept_buffers.into(),
            unread_bytes: stack.unread_bytes,
            syn_sent: state(State::SynSent),
            syn_received: state(State::SynReceived),
            established: state(State::Established),
            fin_wait_1: state(State::FinWait1),
            fin_wait_2: state(State::FinWait2),
            close_wait: state(State::CloseWait),
            closing: state(State::Closing),
            last_ack: state(State::LastAck),
        }
    }
}

iwarp_counters::counters! {
    /// Counters of a worker's packet pool.
    pub struct PacketPoolStats {
        /// Packet buffers refused to data to be sent: only the reserve was left.
        data_refused,
    }
}
