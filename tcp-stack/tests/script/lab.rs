//! Runs one stack against a script that plays its peer and application.

use crate::line::{flags, number, parse_line};
use crate::net::Net;
use crate::path::fragments;
use crate::setup::{Setup, congestion};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;
use tcp_stack::testutil::{HeapPool, cut, hex};
use tcp_stack::wire::{EcnField, IpProtocol, SackRange, Sum, TcpFlags, TcpHeader, TcpOptions, Timestamps};
use tcp_stack::{
    Buf, BufClass, BufPool, ConnId, ConnOptions, Duration, Event, Instant, ListenOptions, ListenerId,
    RxChecksum, RxFrame, SeqNum, Stack, State, TxFrame, testutil::HeapBuf,
};

const PORT: u16 = 7;
/// Initial sequence number of the peer: its stream soon wraps.
const PEER_ISS: u32 = u32::MAX - 2000;
const TOLERANCE: Duration = Duration::from_millis(2);

fn pattern(offset: u64) -> u8 {
    u8::try_from(offset % 251).unwrap()
}

/// A segment that the stack sent, with its time.
#[derive(Debug)]
struct Sent {
    at: Instant,
    port: u16,
    ecn: EcnField,
    header: TcpHeader,
    options: TcpOptions,
    payload: Vec<u8>,
}

/// A stack, its pool and link, and the state of the script.
pub(crate) struct Lab {
    net: Net,
    stack: Stack<HeapBuf>,
    pool: HeapPool,
    now: Instant,
    sent: VecDeque<Sent>,
    events: VecDeque<String>,
    conns: Vec<ConnId>,
    listener: Option<ListenerId>,
    options: ConnOptions,
    consume: bool,
    our_port: u16,
    peer_port: u16,
    our_iss: Option<SeqNum>,
    /// Latest initial sequence number of the stack towards each port of the peer.
    our_isses: BTreeMap<u16, SeqNum>,
    peer_iss: SeqNum,
    sent_bytes: u64,
    last_tsval: u32,
    in_burst: bool,
    /// Payload bytes per fragment of the peer's packets, 0 for no fragmentation; and the next fragment to lose.
    cut: usize,
    lose: Option<usize>,
    identification: u16,
    named_tsvals: BTreeMap<String, u32>,
}

impl Lab {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut lab = Self {
            net: Net::new(setup),
            stack: Stack::new(setup.stack.clone(), [7; 32]),
            pool: HeapPool::new(
                setup.pool,
                16.min(setup.pool / 4),
                usize::from(setup.stack.mtu).max(1500) + 100,
            ),
            now: Instant::from_millis(1000),
            sent: VecDeque::new(),
            events: VecDeque::new(),
            conns: Vec::new(),
            listener: None,
            options: setup.options,
            consume: setup.consume,
            our_port: PORT,
            peer_port: 40_000,
            our_iss: None,
            our_isses: BTreeMap::new(),
            peer_iss: SeqNum::new(PEER_ISS),
            sent_bytes: 0,
            last_tsval: 0,
            in_burst: false,
            cut: 0,
            lose: None,
            identification: 0,
            named_tsvals: BTreeMap::new(),
        };
        let greeting = lab.net.greeting();
        lab.frame(&greeting);
        lab
    }

    fn frame(&mut self, bytes: &[u8]) {
        let buf = HeapBuf::with_room(bytes, 2048);
        let frame = RxFrame { buf, checksum: RxChecksum::Unknown };
        self.stack.handle_frames(self.now, [frame]);
        if !self.in_burst {
            self.settle();
        }
    }

    fn ip(&mut self, protocol: IpProtocol, ecn: EcnField, payload: &[u8]) {
        let packet = self.net.packet(protocol, ecn, payload);
        if self.cut == 0 {
            return self.frame(&packet);
        }
        // The last fragment first, as over several routes.
        self.identification += 1;
        let lose = self.lose.take();
        for (index, part) in fragments(&packet, self.cut, self.identification).iter().enumerate().rev() {
            if lose != Some(index) {
                self.frame(part);
            }
        }
    }

    /// Takes events, then the frames that the stack sends.
    fn settle(&mut self) {
        while let Some(event) = self.stack.poll_event() {
            self.take_event(event);
        }
        let (net, now, sent) = (self.net, self.now, &mut self.sent);
        let mut asked = false;
        let mut take = |frame: TxFrame<HeapBuf>| {
            for bytes in cut(&frame) {
                asked |= net.asks(&bytes);
                sent.extend(parse(net, now, &bytes));
            }
        };
        self.stack.poll_transmit(now, &mut self.pool, &mut take, usize::MAX);
        for segment in sent {
            if segment.header.flags.contains(TcpFlags::SYN) && segment.at == now {
                self.our_iss = Some(segment.header.seq);
                self.our_isses.insert(segment.port, segment.header.seq);
            }
            self.last_tsval = segment.options.timestamps.map_or(self.last_tsval, |ts| ts.value);
        }
        self.check_states();
        if asked {
            let answer = self.net.link_address();
            self.frame(&answer);
        }
    }

    fn take_event(&mut self, event: Event<HeapBuf>) {
        let text = match event {
            Event::Accepted { conn, listener } => {
                assert_eq!(Some(listener), self.listener);
                self.begin(conn);
                "accepted".into()
            }
            Event::Connected { .. } => "connected".into(),
            Event::OutOfOrder { conn } => {
                let mut text = String::from("out-of-order");
                self.stack.offer_out_of_order(conn, &mut |offset, bytes| {
                    assert!(
                        (offset..).zip(bytes).all(|(at, byte)| *byte == pattern(at)),
                        "bytes at {offset}"
                    );
                    text.push_str(&format!(" {offset}+{}", bytes.len()));
                    true
                });
                text
            }
            Event::Data { conn, offset, segment } if segment.was_taken() => {
                self.stack.consumed(conn, segment.len());
                format!("taken {offset} {}", segment.len())
            }
            Event::Data { conn, offset, segment } => {
                for (i, byte) in segment.bytes().iter().enumerate() {
                    assert_eq!(*byte, pattern(offset + i as u64), "byte {} of the stream", offset + i as u64);
                }
                if self.consume {
                    self.stack.consumed(conn, segment.len());
                }
                format!("data {offset} {}", segment.len())
            }
            Event::Urgent { end, .. } => format!("urgent {end}"),
            Event::PeerClosed { .. } => "peer-closed".into(),
            Event::Writable { .. } => "writable".into(),
            Event::Reclaim { .. } => "reclaim".into(),
            Event::EmssChanged { emss, .. } => format!("emss {emss}"),
            Event::Closed { reason, .. } => format!("closed {}", reason.as_str()),
        };
        self.events.push_back(text);
    }

    /// Advances the time from timer to timer until `until`, or until a segment was sent if `stop` is set.
    fn advance(&mut self, until: Instant, stop: bool) {
        for _ in 0..100_000 {
            if stop && !self.sent.is_empty() {
                return;
            }
            let next = self.stack.next_deadline().filter(|next| *next <= until).unwrap_or(until);
            self.now = self.now.max(next);
            self.stack.handle_timeouts(self.now);
            self.settle();
            if self.now >= until && self.stack.next_deadline().is_none_or(|next| next > until) {
                return;
            }
        }
        panic!("timers do not come to rest");
    }

    /// Makes this connection the subject of the following lines.
    fn begin(&mut self, conn: ConnId) {
        self.conns.push(conn);
        self.sent_bytes = 0;
    }

    fn conn(&self) -> ConnId {
        *self.conns.last().unwrap()
    }
}

/// Returns the TCP segment in a frame.
fn parse(net: Net, at: Instant, frame: &[u8]) -> Option<Sent> {
    let (ecn, segment) = net.segment(frame)?;
    let (header, options, payload) = TcpHeader::parse(segment).unwrap();
    let port = header.dst_port;
    Some(Sent { at, port, ecn, header, options: TcpOptions::parse(options), payload: payload.to_vec() })
}

impl Lab {
    fn options(&self, text: &str) -> (TcpOptions, Option<Vec<u8>>) {
        let mut options = TcpOptions::NONE;
        let ours = self.our_iss.unwrap_or_default();
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let words: Vec<&str> = option.split_whitespace().collect();
            match words.as_slice() {
                ["raw", digits] => return (options, Some(hex(digits))),
                ["mss", mss] => options.mss = Some(number(mss)),
                ["ws", shift] => options.window_scale = Some(number(shift)),
                ["sackok"] => options.sack_permitted = true,
                ["ts", value, echo] => {
                    let named = self.named_tsvals.get(*echo).copied();
                    let echo = if *echo == "last" { Some(self.last_tsval) } else { named };
                    let echo = echo.unwrap_or_else(|| number(words[2]));
                    options.timestamps = Some(Timestamps { value: number(value), echo });
                }
                ["sack", ranges @ ..] => {
                    for range in ranges {
                        let (start, end) = range.split_once('-').unwrap();
                        let at = |text: &str| ours + number::<u32>(text);
                        assert!(options.sack.push(SackRange { start: at(start), end: at(end) }));
                    }
                }
                _ => panic!("unknown option {option}"),
            }
        }
        (options, None)
    }

    /// Delivers a segment of the peer.
    fn inject(&mut self, text: &str) {
        let line = parse_line(text);
        let ours = self.our_iss.unwrap_or_default();
        let flags = flags(line.flags);
        let header = TcpHeader {
            src_port: self.peer_port,
            dst_port: self.our_port,
            seq: self.peer_iss + line.seq,
            ack: if flags.contains(TcpFlags::ACK) { ours + line.ack.unwrap() } else { SeqNum::new(0) },
            flags,
            window: line.win.unwrap_or(65_535),
            urgent: line.urg,
        };
        let (options, raw) = self.options(line.options.unwrap_or(""));
        let mut segment = vec![0; TcpHeader::len_with(&options)];
        assert!(header.emit(&options, &mut segment));
        if let Some(raw) = raw {
            assert_eq!(raw.len() % 4, 0);
            segment.truncate(TcpHeader::LEN);
            segment[12] = u8::try_from((TcpHeader::LEN + raw.len()) / 4).unwrap() << 4;
            segment.extend_from_slice(&raw);
        }
        // AE (RFC 9768) is the lowest of the formerly reserved bits.
        segment[12] |= u8::from(line.flags.contains('A'));
        let first = u64::from(line.seq.wrapping_sub(1));
        segment.extend((0..line.len as u64).map(|i| pattern(first.wrapping_add(i) & 0xffff_ffff)));
        let sum = Sum::pseudo_header(self.net.peer, self.net.us, IpProtocol::TCP, segment.len());
        assert!(TcpHeader::set_checksum(&mut segment, sum));
        self.ip(IpProtocol::TCP, line.ecn.unwrap_or_default(), &segment);
    }

    /// Returns a sent segment in the notation of a script.
    fn describe(&self, sent: &Sent) -> String {
        let ours = self.our_iss.unwrap_or_default();
        let seq = sent.header.seq.offset_from(ours);
        let mut text = format!("{:?} {seq}({})", sent.header.flags, sent.payload.len());
        if sent.header.flags.contains(TcpFlags::ACK) {
            write!(text, " ack {}", sent.header.ack.offset_from(self.peer_iss)).unwrap();
        }
        write!(
            text,
            " ecn {:?} win {} <{}>",
            sent.ecn,
            sent.header.window,
            self.describe_options(&sent.options)
        )
        .unwrap();
        text
    }

    fn describe_options(&self, options: &TcpOptions) -> String {
        let mut list = Vec::new();
        list.extend(options.mss.map(|mss| format!("mss {mss}")));
        list.extend(options.window_scale.map(|shift| format!("ws {shift}")));
        list.extend(options.sack_permitted.then(|| "sackok".into()));
        list.extend(options.timestamps.map(|ts| format!("ts * {}", ts.echo)));
        if !options.sack.is_empty() {
            let place = |seq: SeqNum| seq.offset_from(self.peer_iss);
            let ranges = options.sack.as_slice().iter();
            let ranges: Vec<_> = ranges.map(|r| format!("{}-{}", place(r.start), place(r.end))).collect();
            list.push(format!("sack {}", ranges.join(" ")));
        }
        list.join(", ")
    }

    /// Expects the stack to send a segment.
    fn expect(&mut self, after: Duration, text: &str) {
        let due = self.now + after;
        if after > TOLERANCE {
            self.advance(due - TOLERANCE, true);
            self.expect_silence();
        }
        self.advance(due + TOLERANCE, true);
        let Some(sent) = self.sent.pop_front() else { panic!("nothing was sent") };
        let line = parse_line(text);
        let described = self.describe(&sent);
        assert_eq!(sent.port, self.peer_port, "{described}");
        let ours = self.our_iss.unwrap_or_default();
        let same = sent.header.flags == flags(line.flags)
            && sent.header.seq == if line.absolute { SeqNum::new(line.seq) } else { ours + line.seq }
            && sent.payload.len() == line.len
            && line.ack.is_none_or(|ack| sent.header.ack == self.peer_iss + ack)
            && line.ecn.is_none_or(|ecn| sent.ecn == ecn)
            && line.win.is_none_or(|win| sent.header.window == win)
            && (line.urg == 0 || sent.header.urgent == line.urg)
            && line.options.is_none_or(|options| options == self.describe_options(&sent.options));
        assert!(same, "sent:     {described}\nexpected: {text}");
        let first = u64::from(line.seq.wrapping_sub(1));
        for (i, byte) in sent.payload.iter().enumerate() {
            assert_eq!(*byte, pattern(first + i as u64), "byte {i} of {described}");
        }
    }

    fn expect_silence(&self) {
        if let Some(sent) = self.sent.front() {
            panic!("sent at {} us: {}", sent.at.as_micros(), self.describe(sent));
        }
    }

    fn expect_event(&mut self, text: &str) {
        assert_eq!(self.events.pop_front().as_deref(), Some(text));
    }

    /// Performs an action of the application.
    fn act(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["listen"] => self.listen(128),
            ["listen", backlog] => self.listen(number(backlog)),
            ["unlisten"] => assert!(self.stack.unlisten(self.listener.unwrap()).is_some()),
            ["connect"] => {
                let remote = SocketAddr::new(self.net.peer, self.peer_port);
                let conn = self.stack.connect(self.now, remote, self.options).unwrap();
                self.our_port = self.stack.info(conn).unwrap().local.port();
                self.begin(conn);
            }
            ["send", lens @ ..] => lens.iter().for_each(|len| assert!(self.send(number(len)), "refused")),
            ["refused", len] => assert!(!self.send(number(len)), "not refused"),
            ["append", len] => self.append(number(len)),
            ["urgent"] => assert!(self.stack.mark_urgent(self.conn()), "nothing is urgent"),
            ["notify"] => self.stack.notify_writable(self.conn()),
            ["consume", bytes] => self.stack.consumed(self.conn(), number(bytes)),
            ["close"] => self.stack.close(self.now, self.conn()),
            ["abort"] => self.stack.abort(self.now, self.conn()),
            ["port", port] => {
                self.peer_port = number(port);
                self.our_iss = self.our_isses.get(&self.peer_port).copied().or(self.our_iss);
            }
            ["iss", offset] => self.peer_iss = SeqNum::new(PEER_ISS) + number::<u32>(offset),
            ["flood", count, bounds, ..] => {
                let segment = text.splitn(4, char::is_whitespace).last().unwrap();
                self.flood(number(count), bounds, segment);
            }
            ["icmp", kind, seq] => self.icmp(kind, number(seq), 1500),
            ["icmp", kind, seq, len] => self.icmp(kind, number(seq), number(len)),
            ["congestion", name] => self.options.congestion = Some(congestion(name)),
            ["moves"] => {
                self.net.move_peer();
                let announcement = self.net.announcement();
                self.frame(&announcement);
            }
            ["moves", "silently"] => self.net.move_peer(),
            ["forged"] => {
                let claim = self.net.forged();
                self.frame(&claim);
            }
            ["vlan", vlan] => self.net.peer_vlan = Some(number(vlan)),
            ["cut", size] => self.cut = number(size),
            ["lose", index] => self.lose = Some(number(index)),
            _ => panic!("unknown action {text}"),
        }
        self.settle();
    }

    fn listen(&mut self, backlog: u32) {
        let options = ListenOptions { backlog, conn: self.options, ..ListenOptions::default() };
        self.listener = Some(self.stack.listen(PORT, options).unwrap());
    }

    /// Delivers a segment `count` times; the number of acknowledgments in answer must be within `bounds`, `LOW-HIGH`.
    fn flood(&mut self, count: usize, bounds: &str, segment: &str) {
        for _ in 0..count {
            self.inject(segment);
        }
        let (least, most) = bounds.split_once('-').unwrap();
        let answers = self.sent.drain(..);
        let answers = answers.inspect(|sent| assert_eq!(sent.header.flags, TcpFlags::ACK)).count();
        assert!((number(least)..=number(most)).contains(&answers), "{answers} answers");
    }

    fn send(&mut self, len: usize) -> bool {
        let mut buf = self.pool.alloc(BufClass::Data).unwrap();
        for (i, byte) in buf.append(len).unwrap().iter_mut().enumerate() {
            *byte = pattern(self.sent_bytes + i as u64);
        }
        let sent = self.stack.send(self.now, self.conn(), buf).is_ok();
        self.sent_bytes += if sent { len as u64 } else { 0 };
        sent
    }

    fn append(&mut self, len: usize) {
        let first = self.sent_bytes;
        let done = self.stack.append(self.conn(), len, &mut |bytes| {
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = pattern(first + i as u64);
            }
        });
        assert!(done, "not appended");
        self.sent_bytes += len as u64;
    }

    /// Delivers an ICMP error about a segment of the stack whose packet had `len` bytes.
    fn icmp(&mut self, kind: &str, seq: u32, len: usize) {
        let [a, b] = self.our_port.to_be_bytes();
        let [c, d] = self.peer_port.to_be_bytes();
        let [e, f, g, h] = (self.our_iss.unwrap() + seq).get().to_be_bytes();
        let error = self.net.error(kind, [a, b, c, d, e, f, g, h], len);
        self.frame(&error);
    }

    /// Checks that the stack's count of connections per state is correct.
    fn check_states(&self) {
        let stats = self.stack.stats();
        let (states, half_open) = (stats.states, stats.half_open_now);
        for state in State::ALL {
            let infos = self.stack.connections_from(0).filter_map(|conn| self.stack.info(conn));
            let count = u32::try_from(infos.filter(|info| info.state == state).count()).unwrap();
            let records = if state == State::SynReceived { half_open } else { 0 };
            assert_eq!(states.get(state), count + records, "{}", state.as_str());
        }
        assert_eq!(states.total(), stats.connections);
    }

    /// Returns the value of a property that a script can check.
    fn look(&self, text: &str) {
        let (key, value) = text.split_once(' ').unwrap();
        let info = || self.stack.info(self.conn()).unwrap();
        let stats = self.stack.stats();
        let mut counters = BTreeMap::new();
        stats.tcp.visit(&mut |name, _, value| {
            counters.insert(name, value);
        });
        stats.interface.visit(&mut |name, _, value| {
            counters.insert(name, value);
        });
        stats.drops.visit(&mut |name, _, value| {
            counters.insert(name, value);
        });
        if let Some(least) = value.strip_prefix(">=") {
            let least: u64 = number(least.trim());
            assert!(counters.get(key).is_some_and(|seen| *seen >= least), "{key} {:?}", counters.get(key));
            return;
        }
        let seen = match key {
            "state" => info().state.as_str().to_lowercase(),
            "ecn" => info().ecn.as_str().into(),
            "cwnd" => info().cwnd.to_string(),
            "ssthresh" => info().ssthresh.to_string(),
            "in_flight" => info().in_flight.to_string(),
            "lost" => info().lost_bytes.to_string(),
            "sacked" => info().sacked_bytes.to_string(),
            "held" => info().held_segments.to_string(),
            "send_window" => info().send_window.to_string(),
            "soft_error" => info().soft_error.to_string(),
            "attempts" => info().attempts.to_string(),
            "urgent" => info().urgent_bytes.to_string(),
            "window" => info().receive_window.to_string(),
            "unread" => info().unread_bytes.to_string(),
            // RFC 9293 §3.7.1: the default for a peer without the MSS option.
            "emss" if value == "default" => {
                assert_eq!(info().emss, if self.net.us.is_ipv4() { 536 } else { 1220 });
                return;
            }
            "emss" => info().emss.to_string(),
            "congestion" => info().congestion.into(),
            "pacing_rate" => info().pacing_rate.map_or("none".into(), |rate| rate.to_string()),
            "delivery_rate" => info().delivery_rate.map_or("none".into(), |rate| rate.to_string()),
            "app_limited" => info().delivery_app_limited.to_string(),
            "bbr_state" => info().bbr.map_or("none", |bbr| bbr.state).into(),
            "rto" => info().rto.as_millis().to_string(),
            "srtt_us" => info().srtt.map_or("none".into(), |srtt| srtt.as_micros().to_string()),
            "reordering" => info().reordering_seen.to_string(),
            "half_open" => stats.half_open_now.to_string(),
            "connections" => stats.connections.to_string(),
            "time_wait" => stats.time_wait_now.to_string(),
            "send_buffers" => stats.send_buffers.to_string(),
            "receive_buffers" => stats.receive_buffers.to_string(),
            "events" => self.events.len().to_string(),
            "capacity" => self.stack.send_capacity(self.conn()).to_string(),
            _ => counters.get(key).unwrap_or_else(|| panic!("unknown key {key}")).to_string(),
        };
        assert_eq!(seen, value, "{key}");
    }

    /// Runs one line of the script.
    pub(crate) fn step(&mut self, line: &str) {
        if let Some(event) = line.strip_prefix("* ") {
            return self.expect_event(event.trim());
        }
        if let Some(name) = line.strip_prefix("= ") {
            self.named_tsvals.insert(name.into(), self.last_tsval);
            return;
        }
        if let Some(look) = line.strip_prefix("? ") {
            return self.look(look.trim());
        }
        let (time, rest) = line.split_once(char::is_whitespace).unwrap_or((line, "-"));
        let after = Duration::from_millis(number(time.strip_prefix('+').unwrap()));
        let rest = rest.trim();
        if let Some(expected) = rest.strip_prefix("> ") {
            return self.expect(after, expected);
        }
        if !core::mem::take(&mut self.in_burst) {
            self.advance(self.now + after, true);
            self.expect_silence();
        }
        if let Some(segment) = rest.strip_prefix("<+ ") {
            self.in_burst = true;
            self.inject(segment);
        } else if let Some(segment) = rest.strip_prefix("< ") {
            self.inject(segment);
        } else if let Some(action) = rest.strip_prefix("! ") {
            self.act(action);
        } else {
            assert_eq!(rest, "-");
        }
    }

    /// Ends the script: no segment or event may be left.
    pub(crate) fn finish(self) {
        self.expect_silence();
        assert!(self.events.is_empty(), "not in the script: {:?}", self.events);
        let stats = self.stack.stats();
        let (interface, dropped) = (stats.interface, stats.drops.total());
        assert_eq!(interface.rx_frames, interface.rx_delivered + dropped, "a frame was not accounted for");
        let Self { stack, pool, .. } = self;
        drop(stack);
        assert_eq!(pool.live(), 0, "buffers were lost");
    }
}
