//! An RDMA connection over the kernel's TCP, with a window of local memory.

use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use iwarp_control::Exit;
use iwarp_terminal::{Failure, clock::Clock};
use rdma::wire::mpa::RtrOptions;
use rdma::{
    ConnectRequest, Endpoint, EndpointConfig, Env, Event, LocalSlice, NegotiationConfig, PostError,
    RdmaStats, RegionId, Stag, StagTable, StreamId, VecMemory, WcStatus,
};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;

use super::chunk::{Chunk, Pool};
use super::outbox::Outbox;
use super::refusal;
use crate::options::{ConnectOptions, Target};

/// Buffers received in a row before the next send.
const RECEIVES_PER_POLL: usize = 8;
/// Silence of the peer after which the endpoint sends an empty RDMA Write (`docs/verbs.md`, soft-iWARP).
const POKE_AFTER: Duration = Duration::from_millis(100);

/// The ORD that the initiator requests: RDMA Reads in flight (RFC 6581 §3.2).
const READS_MAX: u16 = 128;
/// Work requests of the send queue: the Reads, and the Writes that `put` posts.
const SEND_QUEUE: u16 = READS_MAX + 8;

/// A connection to open.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRequest<'a> {
    /// The peer and the region.
    pub target: &'a Target,
    /// Options of the connection.
    pub options: &'a ConnectOptions,
    /// Private data of the MPA request: the request to the region service.
    pub private_data: &'a [u8],
    /// Bytes of the local memory that Writes read from and Reads place into.
    pub window_bytes: u32,
    /// The ready-to-receive messages to offer (RFC 6581 §9.2); `None` for the client-server model.
    pub rtr: Option<RtrOptions>,
    /// The longest silence of the peer.
    pub timeout: Duration,
}

/// The reply to an MPA request.
#[derive(Clone, Debug)]
pub struct ConnectReply {
    /// Private data of the reply: the answer of the region service.
    pub private_data: Box<[u8]>,
    /// The negotiated parameters; `None` if the peer rejected the connection.
    pub negotiated: Option<Negotiated>,
}

/// Parameters that MPA negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// The MPA revision: 1 or 2.
    pub rev: u8,
    /// True if FPDUs carry a CRC.
    pub crc: bool,
    /// RDMA Reads that may be in flight.
    pub ord: u16,
}

/// The completion of an RDMA Write or Read.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The identifier that it was posted with.
    pub wr_id: u64,
    /// Bytes written or read.
    pub bytes: u32,
}

/// Connects to the first address of the host that answers.
fn connect(target: &Target, timeout: Duration) -> Result<(TcpStream, SocketAddr), Failure> {
    let unreachable = |error: std::io::Error| refusal::unreachable(target, &error.to_string());
    let addresses = (target.host.as_str(), target.port).to_socket_addrs().map_err(unreachable)?;
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(socket) => {
                socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(unreachable)?;
                return Ok((socket, address));
            }
            Err(error) => last = error,
        }
    }
    Err(unreachable(last))
}

/// A socket, the RDMA endpoint on it, and the window. Every error ends the connection.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    peer: SocketAddr,
    endpoint: Endpoint<Chunk>,
    outbox: Outbox,
    pool: Pool,
    memory: VecMemory,
    region: RegionId,
    stags: StagTable,
    stats: RdmaStats,
    clock: Clock,
    /// Bytes received, which is the stream position of the next byte.
    received: u64,
    timeout: Duration,
    /// Time of the last byte sent or received.
    moved: Duration,
    /// The reason of the end of the TCP connection.
    over: Option<String>,
    /// True if the last poll moved no byte.
    idle: bool,
}

#[allow(clippy::missing_errors_doc, reason = "stated once, above")]
impl Connection {
    /// Opens a TCP connection and sends the MPA request.
    ///
    /// # Errors
    /// The peer is unreachable, or a local resource is missing.
    pub fn open(request: &ConnectionRequest<'_>) -> Result<Self, Failure> {
        let (socket, peer) = connect(request.target, request.timeout)?;
        Self::new(socket, peer, request)
    }

    /// Returns the peer's address and port.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Waits for the MPA reply.
    pub fn wait_reply(&mut self) -> Result<ConnectReply, Failure> {
        loop {
            match self.next_event()? {
                Event::Established { private_data, rev, crc, ord, .. } => {
                    return Ok(ConnectReply { private_data, negotiated: Some(Negotiated { rev, crc, ord }) });
                }
                Event::Rejected { private_data } => {
                    return Ok(ConnectReply { private_data, negotiated: None });
                }
                _ => {}
            }
        }
    }

    /// Posts an RDMA Write of a part of the window (offset, length) to an STag and tagged offset.
    pub fn post_write(
        &mut self,
        wr_id: u64,
        (offset, length): (u64, u32),
        to: (Stag, u64),
    ) -> Result<(), Failure> {
        let local = self.slice(offset, length);
        self.post(|endpoint| endpoint.post_write(wr_id, local, to.0, to.1))
    }

    /// Posts an RDMA Read from an STag and tagged offset into a part of the window (offset, length).
    pub fn post_read(
        &mut self,
        wr_id: u64,
        (offset, length): (u64, u32),
        from: (Stag, u64),
    ) -> Result<(), Failure> {
        let local = self.slice(offset, length);
        self.post(|endpoint| endpoint.post_read(wr_id, local, from.0, from.1))
    }

    /// Posts Immediate Data (RFC 7306 §6).
    pub fn post_immediate(&mut self, wr_id: u64, data: [u8; 8]) -> Result<(), Failure> {
        self.post(|endpoint| endpoint.post_immediate(wr_id, data, false))
    }

    /// Waits for the next completion; completions come in the order of posting.
    pub fn wait_completion(&mut self) -> Result<Completion, Failure> {
        loop {
            match self.next_event()? {
                Event::Completion { wr_id, status: WcStatus::Success, bytes, .. } => {
                    return Ok(Completion { wr_id, bytes });
                }
                // An event that follows gives the reason of a failed completion.
                _ => continue,
            }
        }
    }

    /// Closes the connection after the last completion.
    pub fn close(self) {
        // The peer may have closed the connection first.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn new(socket: TcpStream, peer: SocketAddr, request: &ConnectionRequest<'_>) -> Result<Self, Failure> {
        let ConnectionRequest { options, timeout, window_bytes, rtr, .. } = *request;
        let mut memory = VecMemory::new();
        let bytes = vec![0; usize::try_from(window_bytes).unwrap_or(usize::MAX)];
        let region = memory.add(bytes).ok_or_else(|| Failure::new(Exit::Failed, "internal", "no window"))?;
        let clock = Clock::start();
        let mpa = NegotiationConfig { crc: options.crc, timeout, ..NegotiationConfig::default() };
        let config = EndpointConfig {
            mpa,
            send_queue: SEND_QUEUE,
            poke_after: Some(POKE_AFTER),
            ..EndpointConfig::default()
        };
        let request = ConnectRequest {
            private_data: request.private_data,
            revision: options.mpa_revision,
            ird: 0,
            ord: READS_MAX,
            rtr,
        };
        let mut stats = RdmaStats::default();
        let endpoint = Endpoint::initiator(config, StreamId(0), &request, clock.now(), &mut stats)
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self {
            socket,
            peer,
            endpoint,
            outbox: Outbox::new(),
            pool: Pool::default(),
            memory,
            region,
            // No STag is ever granted, so the seed need not be secret.
            stags: StagTable::new(1, [0; 32]),
            stats,
            clock,
            received: 0,
            timeout,
            moved: Duration::ZERO,
            over: None,
            idle: false,
        })
    }

    /// Returns `length` bytes of the window from `offset`, or fewer at the window's end.
    pub fn window(&mut self, offset: u64, length: u32) -> &mut [u8] {
        let bytes = self.memory.bytes_mut(self.region).unwrap_or_default();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let (_, from) = bytes.split_at_mut(start);
        let length = from.len().min(length as usize);
        let (window, _) = from.split_at_mut(length);
        window
    }

    const fn slice(&self, offset: u64, len: u32) -> LocalSlice {
        LocalSlice { region: self.region, offset, len }
    }

    /// Posts a work request to the endpoint.
    fn post(
        &mut self,
        post: impl FnOnce(&mut Endpoint<Chunk>) -> Result<(), PostError>,
    ) -> Result<(), Failure> {
        self.idle = false;
        match post(&mut self.endpoint) {
            // The stream has ended; an event that is queued gives the reason.
            Ok(()) | Err(PostError::State) => Ok(()),
            Err(error) => Err(Failure::new(Exit::Failed, "protocol", format!("{}: {error}", self.peer))),
        }
    }

    /// Waits for the next event; the end of the connection is a failure.
    fn next_event(&mut self) -> Result<Event, Failure> {
        loop {
            match self.endpoint.poll_event() {
                Some(Event::TerminateReceived { code, .. }) => {
                    return Err(refusal::terminated(self.peer, code));
                }
                Some(Event::TerminateSent { code, .. }) => {
                    // The Terminate is sent if the socket still takes it.
                    let _ = self.outbox.flush(&self.socket);
                    return Err(refusal::offended(self.peer, code));
                }
                // The event of the end itself carries the reason.
                Some(Event::Failed { .. }) => continue,
                Some(Event::Close { .. }) => return Err(self.ended()),
                Some(event) => return Ok(event),
                None => {}
            }
            if self.idle {
                self.wait()?;
            }
            self.idle = !self.poll();
        }
    }

    fn ended(&self) -> Failure {
        match &self.over {
            Some(why) => refusal::lost(self.peer, why),
            None if self.clock.now() >= self.timeout => refusal::silent(self.peer, self.timeout),
            None => refusal::no_agreement(self.peer, "its MPA reply is missing or wrong"),
        }
    }

    /// Sends and receives without blocking; returns true if a byte moved.
    fn poll(&mut self) -> bool {
        let now = self.clock.now();
        let before = self.received;
        self.endpoint.handle_timeout(now, &mut self.stats);
        let sent = self.transmit(now);
        for _ in 0..RECEIVES_PER_POLL {
            if !self.receive(now) {
                break;
            }
        }
        let moved = sent || self.received != before;
        if moved {
            self.moved = now;
        }
        moved
    }

    fn transmit(&mut self, now: Duration) -> bool {
        if let Ok(mss) = SockRef::from(&self.socket).tcp_mss() {
            self.outbox.set_mss(usize::try_from(mss).unwrap_or(usize::MAX));
        }
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        self.endpoint.poll_transmit(now, &mut env, &mut self.outbox);
        match self.outbox.flush(&self.socket) {
            Ok(sent) => sent > 0,
            // Data that the peer sent before it broke the connection is still readable.
            Err(error) => {
                self.outbox.clear();
                self.over.get_or_insert_with(|| error.to_string());
                false
            }
        }
    }

    /// Receives one buffer; returns true if there may be more.
    fn receive(&mut self, now: Duration) -> bool {
        let mut chunk = self.pool.take();
        let why = match recv(&self.socket, spare_capacity(chunk.bytes_mut()), RecvFlags::DONTWAIT) {
            Ok((0, _)) => "the peer closed it".to_owned(),
            Ok((length, _)) => {
                let offset = self.received;
                self.received = offset.saturating_add(length as u64);
                let mut env =
                    Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
                self.endpoint.receive(now, offset, chunk, &mut env);
                return true;
            }
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => return true,
            Err(error) => error.to_string(),
        };
        self.over.get_or_insert(why);
        self.endpoint.peer_closed(now, &mut self.stats);
        false
    }

    /// Sleeps until the socket is ready or the next deadline.
    fn wait(&mut self) -> Result<(), Failure> {
        let now = self.clock.now();
        let silent_at = self.moved.saturating_add(self.timeout);
        if let Some(why) = &self.over {
            return Err(refusal::lost(self.peer, why));
        }
        if now >= silent_at {
            return Err(refusal::silent(self.peer, self.timeout));
        }
        let until = self.endpoint.next_deadline().map_or(silent_at, |deadline| deadline.min(silent_at));
        let pause = until.saturating_sub(now);
        let timeout = Timespec::try_from(pause).ok();
        let mut flags = PollFlags::IN;
        if !self.outbox.is_empty() {
            flags |= PollFlags::OUT;
        }
        match poll(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(refusal::lost(self.peer, &error.to_string())),
        }
    }
}
