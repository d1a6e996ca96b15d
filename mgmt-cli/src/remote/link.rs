//! A connection to a peer's region.

use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use iwarp_control::Exit;
use rdma::service::{Grant, decode_reply, encode_request};
use rdma::{
    Access, CompletionStatus, ConnectRequest, CrcPolicy, Endpoint, EndpointConfig, Env, Event, LocalSlice,
    NegotiationConfig, PostError, RdmaStats, RegionId, StagTable, StreamId, VecMemory,
};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;

use super::chunk::{Chunk, Pool};
use super::outbox::Outbox;
use super::{Peer, nanoseconds, refusal};
use crate::args::{Crc, Link as Options, Target};
use crate::clock::Clock;
use crate::command::read_token;
use crate::failure::Failure;

/// Buffers received in a row before the socket is written to again.
const RECEIVES_PER_TURN: usize = 8;
/// RDMA Reads that we may have outstanding.
const READS_MAX: u16 = 128;
/// Work that can wait: the Reads, and what `put` posts.
const SEND_QUEUE: u16 = READS_MAX + 8;
/// How long a peer may overlook our first message before it is given a nudge.
const POKE_AFTER: Duration = Duration::from_millis(100);

/// A finished RDMA Write or Read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) wr_id: u64,
    pub(super) bytes: u32,
}

/// A part of the peer's region that lies inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// The tagged offset of its first octet.
    start: u64,
    pub(super) length: u64,
}

impl Reach {
    /// The tagged offset of an octet of it.
    pub(super) const fn at(&self, octet: u64) -> u64 {
        self.start.saturating_add(octet)
    }
}

/// A connection over which a region was granted.
pub(super) struct Link {
    wire: Wire,
    target: Target,
    grant: Grant,
    terms: Terms,
    connect: Duration,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug)]
struct Terms {
    rev: u8,
    crc: bool,
    ord: u16,
}

impl Link {
    /// Connects, and asks for the region with these rights. `window` octets of memory are kept for the work.
    pub(super) fn open(
        target: &Target,
        options: &Options,
        access: Access,
        window: u32,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let token = options.token_file.as_deref().map(read_token).transpose()?;
        let token = token.as_ref().map_or(&[][..], |token| token.as_bytes());
        let request = encode_request(&target.region, access, token)
            .ok_or_else(|| Failure::usage(format!("`{}` cannot be asked for", target.region)))?;
        let clock = Clock::start();
        let (socket, peer) = connect(target, patience)?;
        let mut wire = Wire::new(socket, peer, options, &request, window, patience)?;
        let (terms, grant) = wire.agree(target)?;
        Ok(Self { wire, target: target.clone(), grant, terms, connect: clock.now() })
    }

    /// Checks that so many octets from an offset lie inside the region.
    pub(super) fn reach(&self, offset: u64, length: u64) -> Result<Reach, Failure> {
        let bytes = self.grant.bytes;
        if offset.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(refusal::outside(&self.target, length, bytes));
        }
        Ok(Reach { start: self.grant.base_to.wrapping_add(offset), length })
    }

    /// All from an offset to the region's end.
    pub(super) fn reach_to_end(&self, offset: u64) -> Result<Reach, Failure> {
        self.reach(offset, self.grant.bytes.saturating_sub(offset))
    }

    /// Reads that may be outstanding.
    pub(super) fn reads_max(&self) -> u32 {
        self.terms.ord.into()
    }

    /// Octets of the window, fewer at its end.
    pub(super) fn window(&mut self, offset: u64, length: u32) -> &mut [u8] {
        self.wire.window(offset, length)
    }

    /// Posts an RDMA Write of octets of the window.
    pub(super) fn write(&mut self, wr_id: u64, offset: u64, length: u32, to: u64) -> Result<(), Failure> {
        let local = self.wire.slice(offset, length);
        self.wire.posted(|endpoint| endpoint.post_write(wr_id, local, self.grant.stag, to))
    }

    /// Posts an RDMA Read into octets of the window.
    pub(super) fn read(&mut self, wr_id: u64, offset: u64, length: u32, to: u64) -> Result<(), Failure> {
        let local = self.wire.slice(offset, length);
        self.wire.posted(|endpoint| endpoint.post_read(wr_id, local, self.grant.stag, to))
    }

    /// Waits for the next piece of work to be finished, in the order of posting.
    pub(super) fn completion(&mut self) -> Result<Done, Failure> {
        loop {
            match self.wire.next_event()? {
                Event::Completion { wr_id, status: CompletionStatus::Success, bytes, .. } => {
                    return Ok(Done { wr_id, bytes });
                }
                // Why it was not finished is said by an event behind it.
                _ => continue,
            }
        }
    }

    /// The peer, and what was agreed with it.
    pub(super) fn peer(&self, target: &Target) -> Peer {
        Peer {
            peer: self.wire.peer,
            region: target.region.clone(),
            mpa_revision: self.terms.rev,
            crc: self.terms.crc,
            connect_ns: nanoseconds(self.connect),
        }
    }

    /// Ends the connection, all work being done.
    pub(super) fn close(self) {
        // The peer may have closed first.
        let _ = self.wire.socket.shutdown(Shutdown::Both);
    }
}

/// The first address of the host that answers.
fn connect(target: &Target, patience: Duration) -> Result<(TcpStream, SocketAddr), Failure> {
    let unreachable = |error| refusal::unreachable(target, &error);
    let addresses = (target.host.as_str(), target.port).to_socket_addrs().map_err(unreachable)?;
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(socket) => {
                socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(unreachable)?;
                return Ok((socket, address));
            }
            Err(error) => last = error,
        }
    }
    Err(unreachable(last))
}

/// The socket, the endpoint that speaks over it, and the memory that it works on.
struct Wire {
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
    /// Octets received: the stream position of the next.
    received: u64,
    patience: Duration,
    /// When octets last moved.
    moved: Duration,
    /// Why the connection is over, once it is.
    over: Option<String>,
    /// The last turn moved nothing.
    idle: bool,
}

impl Wire {
    fn new(
        socket: TcpStream,
        peer: SocketAddr,
        options: &Options,
        request: &[u8],
        window: u32,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let crc = match options.crc {
            Crc::On => CrcPolicy::Required,
            Crc::Off => CrcPolicy::IfPeerAsks,
        };
        let mut memory = VecMemory::new();
        let octets = vec![0; usize::try_from(window).unwrap_or(usize::MAX)];
        let region = memory.add(octets).ok_or_else(|| Failure::new(Exit::Failed, "internal", "no window"))?;
        let clock = Clock::start();
        let mpa = NegotiationConfig { crc, timeout: patience, ..NegotiationConfig::default() };
        let config = EndpointConfig {
            mpa,
            send_queue: SEND_QUEUE,
            poke_after: Some(POKE_AFTER),
            ..EndpointConfig::default()
        };
        let request = ConnectRequest {
            private_data: request,
            revision: options.mpa_revision,
            ird: 0,
            ord: READS_MAX,
            rtr: None,
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
            // Nobody may touch our memory: there is no STag to guess, and so the seed is no secret.
            stags: StagTable::new(1, [0; 32]),
            stats,
            clock,
            received: 0,
            patience,
            moved: Duration::ZERO,
            over: None,
            idle: false,
        })
    }

    /// Waits until the peer has granted the region.
    fn agree(&mut self, target: &Target) -> Result<(Terms, Grant), Failure> {
        loop {
            match self.next_event()? {
                Event::Established { private_data, rev, crc, ord, .. } => {
                    let grant = decode_reply(&private_data)
                        .map_err(|error| refusal::rejected(error, target, self.peer))?;
                    return Ok((Terms { rev, crc, ord }, grant));
                }
                Event::Rejected { private_data } => {
                    let error = match decode_reply(&private_data) {
                        Err(error) => error,
                        Ok(_) => rdma::service::ServiceError::NotAnAnswer,
                    };
                    return Err(refusal::rejected(error, target, self.peer));
                }
                _ => {}
            }
        }
    }

    fn window(&mut self, offset: u64, length: u32) -> &mut [u8] {
        let octets = self.memory.bytes_mut(self.region).unwrap_or_default();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(octets.len());
        let (_, from) = octets.split_at_mut(start);
        let length = from.len().min(length as usize);
        let (window, _) = from.split_at_mut(length);
        window
    }

    const fn slice(&self, offset: u64, len: u32) -> LocalSlice {
        LocalSlice { region: self.region, offset, len }
    }

    /// Hands work to the endpoint.
    fn posted(
        &mut self,
        post: impl FnOnce(&mut Endpoint<Chunk>) -> Result<(), PostError>,
    ) -> Result<(), Failure> {
        self.idle = false;
        match post(&mut self.endpoint) {
            // The stream has ended: an event that waits says why.
            Ok(()) | Err(PostError::NotReady) => Ok(()),
            Err(error @ (PostError::Full | PostError::NoReads | PostError::Length)) => {
                Err(Failure::new(Exit::Failed, "protocol", format!("{}: {error}", self.peer)))
            }
        }
    }

    /// The next event that is not the end of the connection; that one is a failure.
    fn next_event(&mut self) -> Result<Event, Failure> {
        loop {
            match self.endpoint.poll_event() {
                Some(Event::TerminateReceived { code, .. }) => {
                    return Err(refusal::terminated(self.peer, code));
                }
                Some(Event::TerminateSent { code, .. }) => {
                    // Whether the peer still learns it changes nothing for us.
                    let _ = self.outbox.flush(&self.socket);
                    return Err(refusal::offended(self.peer, code));
                }
                // The connection's own end says more.
                Some(Event::Failed { .. }) => continue,
                Some(Event::Close { .. }) => return Err(self.ended()),
                Some(event) => return Ok(event),
                None => {}
            }
            if self.idle {
                self.wait()?;
            }
            self.idle = !self.turn();
        }
    }

    fn ended(&self) -> Failure {
        match &self.over {
            Some(why) => refusal::lost(self.peer, why),
            None if self.clock.now() >= self.patience => refusal::silent(self.peer, self.patience),
            None => refusal::no_agreement(self.peer, "its MPA reply is missing or wrong"),
        }
    }

    /// Sends and receives what can be sent and received now; says whether that was anything.
    fn turn(&mut self) -> bool {
        let now = self.clock.now();
        let before = self.received;
        self.endpoint.handle_timeout(now, &mut self.stats);
        let sent = self.transmit(now);
        for _ in 0..RECEIVES_PER_TURN {
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
            // What the peer said before it broke the connection is still to be read.
            Err(error) => {
                self.outbox.clear();
                self.over.get_or_insert_with(|| error.to_string());
                false
            }
        }
    }

    /// Takes one buffer from the socket, if there is anything; says whether there may be more.
    fn receive(&mut self, now: Duration) -> bool {
        let mut chunk = self.pool.take();
        let why = match recv(&self.socket, spare_capacity(chunk.octets_mut()), RecvFlags::DONTWAIT) {
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

    /// Sleeps until the socket is ready or a deadline comes.
    fn wait(&mut self) -> Result<(), Failure> {
        let now = self.clock.now();
        let silent_at = self.moved.saturating_add(self.patience);
        if let Some(why) = &self.over {
            return Err(refusal::lost(self.peer, why));
        }
        if now >= silent_at {
            return Err(refusal::silent(self.peer, self.patience));
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
