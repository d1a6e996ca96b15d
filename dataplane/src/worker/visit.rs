//! Every counter of a worker, in one fixed order.

use super::{Lane, Visit};

type Sink<'a> = &'a mut dyn FnMut(&'static str, &'static str, &'static str, u64);

impl Visit for Lane {
    fn visit(&self, f: Sink<'_>) {
        let (rx, tx) = self.queues();
        let (rx, tx) = (
            rx.map(|queue| *queue.stats()).unwrap_or_default(),
            tx.map(|queue| *queue.stats()).unwrap_or_default(),
        );
        rx.visit(&mut |name, help, value| f("rx_queue", name, help, value));
        tx.visit(&mut |name, help, value| f("tx_queue", name, help, value));
        self.steer_stats().visit(&mut |name, help, value| f("steering", name, help, value));
        let engine = self.engine();
        let stack = engine.stack().stats();
        stack.interface.visit(&mut |name, help, value| f("ip", name, help, value));
        stack.drops.visit(&mut |name, help, value| f("frame_drops", name, help, value));
        stack.tcp.visit(&mut |name, help, value| f("tcp", name, help, value));
        for (name, help, value) in [
            ("connections", "Connections now, half-open ones included.", stack.connections),
            ("time_wait", "TIME-WAIT records now.", stack.time_wait_now),
            ("send_buffers", "Packet buffers held for sending now.", stack.send_buffers),
            ("receive_buffers", "Packet buffers of received segments held now.", stack.receive_buffers),
        ] {
            f("now", name, help, u64::from(value));
        }
        engine.rdma_stats().visit(f);
        engine.service_stats().visit(&mut |name, help, value| f("services", name, help, value));
    }
}
