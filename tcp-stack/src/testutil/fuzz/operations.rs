//! Fuzz targets [`operations`] and [`prediction`]: sequences of application calls, peer segments and pauses on one
//! connection.
//!
//! The peer tracks the stack's sequence numbers and sends segments in order, slightly off, or at random. The byte at a
//! sequence number is always the same, so that delivered bytes can be verified; the same holds for the stack's stream.

use super::Input;
use super::bench::{Bench, IPV4, IPV6, PORT, config};
use super::neighbor::{answer, questions};
use super::peer::{Peer, text};
use crate::buf::{Buf, BufClass, BufPool, RxChecksum};
use crate::testutil::{Watch, WireSegment, pattern_byte};
use crate::time::Duration;
use crate::wire::{EcnField, TcpFlags, TcpHeader, TcpOptions};
use crate::{Congestion, ConnId, ConnOptions, Ecn, Event, Keepalive, ListenOptions, StackConfig, State};
use core::net::{IpAddr, SocketAddr};

/// Limit of operations per run.
const OPERATIONS_MAX: usize = 400;
/// Key of the stack's byte stream.
const OUR_KEY: u64 = 2;
const PEER_PORT: u16 = 9;

/// The application's side of one connection.
#[derive(Clone, Copy, Debug)]
struct App {
    conn: ConnId,
    sent: u64,
    received: u64,
    unread: usize,
}

#[derive(Debug)]
struct Run {
    bench: Bench,
    options: ConnOptions,
    peer: Peer,
    watch: Watch,
    app: Option<App>,
}

/// Runs a sequence of operations: the first bytes choose the configuration, then each operation is a byte and its
/// arguments.
pub fn operations(data: &[u8]) {
    let mut input = Input(data);
    let mut run = Run::new(&mut input);
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        run.operate(&mut input);
        run.bench.check();
    }
    run.bench.end();
}

/// As [`operations`], with three stacks that get the same input in bursts: one with header prediction, one that also
/// looks ahead in a burst, and one with neither. All three must behave the same.
pub fn prediction(data: &[u8]) {
    let mut inputs = [Input(data), Input(data), Input(data)];
    let mut runs = inputs.each_mut().map(Run::new);
    let [_, ahead, general] = &mut runs;
    ahead.bench.stack.set_prefetch_from(0);
    general.bench.stack.predict(false);
    for run in &mut runs {
        run.bench.burst = 3;
    }
    for step in 0..OPERATIONS_MAX {
        for (run, input) in runs.iter_mut().zip(&mut inputs) {
            run.operate(input);
            run.bench.check();
        }
        let [short, ahead, general] = runs.each_ref().map(|run| run.bench.stack.facts());
        assert!(short == general, "after operation {step}\nthe short way: {short}\nthe other: {general}");
        assert!(ahead == general, "after operation {step}\nwith a look ahead: {ahead}\nwithout: {general}");
        let [short, ahead, general] = runs.each_ref().map(|run| &run.bench.sent);
        assert!(short == general && ahead == general, "after operation {step} other frames were sent");
        if inputs.iter().any(Input::is_empty) {
            break;
        }
    }
    for run in runs {
        run.bench.end();
    }
}

fn choose_config(input: &mut Input<'_>) -> StackConfig {
    let mut config = config();
    let bits = input.byte();
    config.tcp.sack = bits & 1 == 0;
    config.tcp.timestamps = bits & 2 == 0;
    config.tcp.window_scale = bits & 4 == 0;
    config.tcp.congestion = input.pick(Congestion::ALL, Congestion::default());
    config.tcp.ecn = if bits & 8 == 0 { Ecn::On } else { Ecn::Accept };
    let sizes = input.byte();
    config.receive_window_bytes = if sizes & 1 == 0 { 32 << 10 } else { 3_000 };
    config.send_buffer_bytes = if sizes & 2 == 0 { 32 << 10 } else { 3_000 };
    config.buffers_max = if sizes & 4 == 0 { 64 } else { 8 };
    config.tcp.pacing = sizes & 8 != 0;
    config.tcp.data_retries = 3;
    config
}

impl Run {
    fn new(input: &mut Input<'_>) -> Self {
        let bits = input.byte();
        let options = ConnOptions {
            nagle: bits & 1 != 0,
            keepalive: (bits & 2 != 0).then_some(Keepalive { idle_ms: 1_000, interval_ms: 500, probes: 3 }),
            user_timeout_ms: (bits & 4 != 0).then_some(4_000),
            out_of_order: bits & 16 != 0,
            ..ConnOptions::default()
        };
        let mut bench = Bench::new(choose_config(input));
        let listened =
            bench.stack.listen(PORT, ListenOptions { backlog: 4, conn: options, ..ListenOptions::default() });
        assert!(listened.is_ok(), "{listened:?}");
        let [local, remote]: [IpAddr; 2] =
            if bits & 8 == 0 { IPV4.map(IpAddr::from) } else { IPV6.map(IpAddr::from) };
        let peer = Peer::new(input, SocketAddr::new(remote, PEER_PORT), SocketAddr::new(local, PORT));
        for question in questions() {
            bench.receive(&question, RxChecksum::Unknown);
        }
        bench.transmit(8);
        Self { bench, options, peer, watch: Watch::default(), app: None }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        // A tick of RFC 6528's clock: no two connections have the same initial sequence number.
        self.bench.now += Duration::from_micros(4);
        match input.byte() % 16 {
            0 => self.send(input),
            1 => self.append(input),
            2 => self.consume(input),
            3 => self.for_app(|bench, conn| bench.stack.close(bench.now, conn)),
            4 => self.for_app(|bench, conn| bench.stack.abort(bench.now, conn)),
            5 => {
                let pause = input.pick(&[0, 1, 10, 39, 41, 199, 201, 1_000, 5_000, 61_000], 1);
                self.peer.clock = self.peer.clock.wrapping_add(u32::try_from(pause).unwrap_or(0));
                self.bench.wait(Duration::from_millis(pause));
            }
            6 => self.connect(),
            7 => self.transmit(1),
            8 | 9 => self.in_order(input),
            10 => self.acknowledge(input),
            11 => self.crafted(input),
            12 => self.open(input),
            13 => self.crafted_open(input),
            _ => {
                // The stack's answer to a SYN shows where the peer's stream begins.
                self.transmit(32);
                self.take_events();
                self.transmit(32);
            }
        }
    }

    fn for_app(&mut self, act: impl FnOnce(&mut Bench, ConnId)) {
        if let Some(app) = self.app {
            act(&mut self.bench, app.conn);
        }
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let wanted = usize::from(input.u16() % 1461);
        let Some(app) = &mut self.app else { return };
        let stack = &mut self.bench.stack;
        let len = wanted.min(stack.emss(app.conn));
        let Some(mut buf) = self.bench.pool.alloc(BufClass::Data) else { return };
        let Some(bytes) = buf.append(len) else { return };
        fill(bytes, app.sent);
        if stack.send(self.bench.now, app.conn, buf).is_ok() {
            app.sent += u64::try_from(len).unwrap_or(0);
        }
    }

    fn append(&mut self, input: &mut Input<'_>) {
        let len = usize::from(input.byte());
        let Some(app) = &mut self.app else { return };
        let sent = app.sent;
        if self.bench.stack.append(app.conn, len, &mut |bytes| fill(bytes, sent)) {
            app.sent += u64::try_from(len).unwrap_or(0);
        }
    }

    fn consume(&mut self, input: &mut Input<'_>) {
        let wanted = usize::from(input.u16());
        let Some(app) = &mut self.app else { return };
        let bytes = wanted.min(app.unread);
        app.unread -= bytes;
        self.bench.stack.consumed(app.conn, bytes);
    }

    /// Opens a connection to the peer, unless one exists.
    fn connect(&mut self) {
        let stats = self.bench.stack.stats();
        if stats.connections > 0 || stats.half_open_now > 0 {
            return;
        }
        let Self { bench, peer, options, .. } = self;
        let Ok(conn) = bench.stack.connect(bench.now, peer.local, *options) else { return };
        let Some(info) = bench.stack.info(conn) else { return };
        peer.remote = info.local;
        peer.begin();
        self.app = Some(App { conn, sent: 0, received: 0, unread: 0 });
    }

    fn take_events(&mut self) {
        while let Some(event) = self.bench.stack.poll_event() {
            match event {
                Event::Accepted { conn, .. } => {
                    assert!(self.app.is_none(), "two connections of one flow");
                    self.app = Some(App { conn, sent: 0, received: 0, unread: 0 });
                }
                Event::Data { conn, offset, segment } => {
                    let Some(app) = self.app.as_mut().filter(|app| app.conn == conn) else { continue };
                    assert_eq!(offset, app.received, "bytes out of order");
                    let numbers = self.bench.stack.initial_sequences(conn);
                    let Some((_, irs)) = numbers else { panic!("bytes of no connection") };
                    let first = irs + 1 + u32::try_from(offset).unwrap_or(0);
                    let right = text(first).zip(segment.bytes()).all(|(right, byte)| *byte == right);
                    assert!(right && !segment.is_empty(), "other bytes than were sent, at {offset}");
                    app.received += u64::try_from(segment.len()).unwrap_or(0);
                    app.unread += segment.len();
                }
                Event::Closed { conn, .. } => {
                    assert!(self.app.is_none_or(|app| app.conn == conn), "closed, and unknown");
                    self.app = None;
                    self.peer.remote.set_port(PORT);
                    self.peer.begin();
                }
                Event::OutOfOrder { conn } => {
                    let app = self.app.filter(|app| app.conn == conn);
                    let received = app.map_or(0, |app| app.received);
                    self.bench.stack.offer_out_of_order(conn, &mut |offset, _| offset >= received);
                }
                Event::Connected { .. }
                | Event::Reclaim { .. }
                | Event::PeerClosed { .. }
                | Event::Writable { .. }
                | Event::Urgent { .. }
                | Event::EmssChanged { .. } => {}
            }
        }
    }

    fn transmit(&mut self, budget: usize) {
        let mut frames = self.bench.transmit(budget);
        if let Some(answer) = frames.iter().find_map(|frame| answer(frame)) {
            // Frames that waited for the neighbor leave before the next operation.
            self.bench.receive(&answer, RxChecksum::Unknown);
            frames.extend(self.bench.transmit(32));
        }
        for frame in frames {
            if let Ok(Some(seen)) = WireSegment::parse(&frame) {
                self.receive(&seen, &frame);
            }
        }
    }

    /// Delivers a segment of the stack to the peer.
    fn receive(&mut self, seen: &WireSegment, frame: &[u8]) {
        let header = &seen.header;
        if header.flags.contains(TcpFlags::RST) {
            return;
        }
        if header.flags.contains(TcpFlags::SYN) {
            self.peer.remote = seen.src;
            self.peer.irs = header.seq;
            self.peer.seen = seen.end();
        }
        if let Some(syn) = self.peer.answered(header) {
            self.synchronize(&syn);
        }
        if let Err(error) = self.watch.check(seen) {
            panic!("{error}");
        }
        self.peer.seen = self.peer.seen.max(seen.end());
        self.peer.echo = seen.options.timestamps.map_or(self.peer.echo, |timestamps| timestamps.value);
        let len = usize::try_from(seen.payload_len).unwrap_or(0);
        let payload = frame.get(frame.len().saturating_sub(len)..).unwrap_or_default();
        // If two SYNs were answered, the connection determines which one it began with.
        let numbers = self.app.and_then(|app| self.bench.stack.initial_sequences(app.conn));
        let iss = numbers.map_or(self.peer.irs, |(iss, _)| iss);
        let offset = header.seq.distance_from(iss + 1);
        let right = (u64::from(offset)..).zip(payload).all(|(at, byte)| *byte == pattern_byte(OUR_KEY, at));
        assert!(right, "sends other bytes than it was given, at {offset}");
    }
}

impl Run {
    /// Delivers a segment of the peer to the stack.
    fn deliver(&mut self, header: TcpHeader, options: &TcpOptions, len: usize) {
        if header.flags.contains(TcpFlags::SYN) || !self.peer.syns.is_empty() {
            // Output of an earlier connection belongs to another stream, and answers leave first.
            self.transmit(32);
            self.take_events();
        }
        let frame = self.peer.frame(header, options, len);
        let called = self.state() == Some(State::SynSent);
        self.bench.receive(&frame, RxChecksum::Unknown);
        if header.flags.contains(TcpFlags::SYN) {
            self.bench.hand_over();
        }
        let Ok(Some(seen)) = WireSegment::parse(&frame) else { return };
        if !header.flags.contains(TcpFlags::SYN) {
            self.watch.note_unchecked(&seen);
        } else if called && self.state().is_some_and(|state| !matches!(state, State::SynSent | State::Closed))
        {
            self.synchronize(&seen);
        } else {
            self.peer.syns.push(seen);
        }
    }

    fn state(&self) -> Option<State> {
        Some(self.bench.stack.info(self.app?.conn)?.state)
    }

    /// Notes that the stack has accepted the peer's SYN.
    fn synchronize(&mut self, syn: &WireSegment) {
        self.watch.note_unchecked(syn);
        self.peer.nxt = syn.header.seq + 1;
    }

    /// Sends data, or a FIN, at RCV.NXT.
    fn in_order(&mut self, input: &mut Input<'_>) {
        let len = usize::from(input.u16() % 1461);
        let bits = input.byte();
        let fin = if bits < 8 { TcpFlags::FIN } else { TcpFlags::NONE };
        self.peer.ecn = EcnField::of(bits >> 6 & bits);
        let header = self.peer.header(TcpFlags::ACK | fin, u16::MAX);
        let options = self.peer.options();
        self.deliver(header, &options, len);
        let len = u32::try_from(len).unwrap_or(0);
        self.peer.nxt += len.wrapping_add(u32::from(fin != TcpFlags::NONE));
    }

    /// Sends an acknowledgment of all that the stack has sent.
    fn acknowledge(&mut self, input: &mut Input<'_>) {
        let header = self.peer.header(TcpFlags::ACK, input.u16());
        let options = self.peer.options();
        self.deliver(header, &options, 0);
    }

    /// Sends a segment with random fields.
    fn crafted(&mut self, input: &mut Input<'_>) {
        let (header, options, len) = self.peer.crafted(input);
        self.deliver(header, &options, len);
    }

    /// Sends a SYN, or a SYN-ACK if the stack has sent a SYN.
    fn open(&mut self, input: &mut Input<'_>) {
        let (header, options) = self.peer.open(input, self.app.is_some());
        self.deliver(header, &options, 0);
    }

    /// Sends a SYN with wrong numbers or with data.
    fn crafted_open(&mut self, input: &mut Input<'_>) {
        let (mut header, options) = self.peer.open(input, self.app.is_some());
        header.seq += u32::from(input.byte());
        header.ack += u32::from(input.byte() / 128);
        self.deliver(header, &options, usize::from(input.byte()));
    }
}

fn fill(bytes: &mut [u8], offset: u64) {
    for (at, byte) in (offset..).zip(bytes) {
        *byte = pattern_byte(OUR_KEY, at);
    }
}
