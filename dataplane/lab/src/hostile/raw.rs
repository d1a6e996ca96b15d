//! The verbs socket and the shared memory of a context, without the library, which keeps a program from misbehaving.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use iwarp_control::{Client, ClientError, ErrorKind, ErrorObject, Method};
use iwarp_shared_queues::{DOORBELL_QUEUES_MAX, Doorbells, LINE_WORDS, RingShape, encode_recv};
use iwarp_shared_verbs::methods::{
    AllocMemory, AllocMemoryMethod, Execute, ExecuteMethod, Open, OpenMethod, REQUESTS_MAX,
};
use iwarp_shared_verbs::{CqPlace, QpPlaces, QueuePlace, Request, Response};
use iwarp_verbs::Mapping;
use rdma::verbs::{CqId, PdId, QpCap, QpInit, QpNum, QpState, RecvWr, VerbsError};

/// Bytes of a word of shared memory.
const WORD: u64 = 8;
/// Words of the doorbells: the summary, and the bitmap behind it.
const SUMMARY: usize = LINE_WORDS * 2;
const BITMAP: usize = SUMMARY + 1;
/// Time within which a worker has posted what a program has rung for.
const POSTED_WITHIN: Duration = Duration::from_secs(5);

/// A context, whose memory the program maps.
pub(super) struct Raw {
    client: Client,
    memory: Mapping,
    /// Descriptors on which a program sleeps until there is a completion, and until there is an event.
    bells: [OwnedFd; 2],
    /// Ends the sleep of the worker.
    doorbell: OwnedFd,
}

impl Raw {
    /// Opens a context with this many bytes of memory for queues.
    pub(super) fn open(socket: &Path, queue_bytes: u64) -> Result<Self> {
        let mut client = Client::connect(socket)?;
        let open = Open { device: None, queue_bytes: Some(queue_bytes) };
        let (opened, fds) = client.call_with_fds::<OpenMethod>(&open)?;
        let fds = <[OwnedFd; 4]>::try_from(fds);
        let [memory, completions, events, doorbell] =
            fds.map_err(|fds| anyhow::anyhow!("{} descriptors", fds.len()))?;
        // Before the first request: the daemon then closes the file.
        let memory = Mapping::of_descriptor(&memory, opened.bytes)?;
        Ok(Self { client, memory, bells: [completions, events], doorbell })
    }

    /// Calls a method of the verbs socket.
    pub(super) fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Reply, ClientError> {
        self.client.call::<M>(params)
    }

    /// Allocates memory. Returns its number and descriptor.
    pub(super) fn alloc(&mut self, bytes: u64, exchange: bool) -> Result<(u32, OwnedFd), ClientError> {
        let asked = AllocMemory { bytes, exchange, shared: false };
        let (memory, fds) = self.client.call_with_fds::<AllocMemoryMethod>(&asked)?;
        let fd = fds.into_iter().next();
        let fd = fd.ok_or_else(|| ErrorObject::new(ErrorKind::Internal, "memory without a descriptor"))?;
        Ok((memory.memory, fd))
    }

    /// Has requests executed, as many at a time as a call takes.
    pub(super) fn execute(&mut self, requests: &[Request]) -> Result<Vec<Result<Response, VerbsError>>> {
        let mut results = Vec::with_capacity(requests.len());
        for some in requests.chunks(REQUESTS_MAX) {
            results.extend(self.client.call::<ExecuteMethod>(&Execute { requests: some.to_vec() })?.results);
        }
        Ok(results)
    }

    /// Has requests executed that must all succeed.
    pub(super) fn succeed(&mut self, requests: &[Request]) -> Result<Vec<Response>> {
        let all = self.execute(requests)?.into_iter().zip(requests);
        all.map(|(result, request)| result.with_context(|| format!("{request:?}"))).collect()
    }

    /// Creates a protection domain and a completion queue.
    pub(super) fn objects(&mut self, cqe: u32) -> Result<(PdId, CqId, CqPlace)> {
        match self.succeed(&[Request::AllocPd, Request::CreateCq(cqe)])?.as_slice() {
            [Response::Pd(pd), Response::Cq(cq, place)] => Ok((*pd, *cq, *place)),
            other => bail!("{other:?}"),
        }
    }

    /// Creates queue pairs that complete to one queue, with `max_recv_wr` receive buffers each.
    pub(super) fn queue_pairs(
        &mut self,
        (pd, cq): (PdId, CqId),
        max_recv_wr: u16,
        count: usize,
    ) -> Result<Vec<(QpNum, QpPlaces)>> {
        let cap = QpCap { max_send_wr: 1, max_recv_wr, ..QpCap::default() };
        let init = QpInit { cap, ..QpInit::new(pd, cq) };
        let made = self.succeed(&vec![Request::CreateQp(init); count])?.into_iter().map(|made| match made {
            Response::Qp(qp, places) => Ok((qp, places)),
            other => bail!("{other:?}"),
        });
        made.collect()
    }

    /// Posts the first `count` receive buffers, without bytes, to the ring of a receive queue.
    pub(super) fn post(&self, place: &QueuePlace, count: u32) -> Result<()> {
        let mut entry = vec![0; usize::try_from(place.shape.entry_words())?];
        encode_recv(&RecvWr { wr_id: 0, sg_list: &[] }, &mut entry)?;
        let entries = entry.repeat(usize::try_from(count)?);
        self.store(place.start + RingShape::HEADER_WORDS, &entries)?;
        self.produce(place, u64::from(count))
    }

    /// Shows the worker that a ring has had this many entries.
    pub(super) fn produce(&self, place: &QueuePlace, count: u64) -> Result<()> {
        self.store(place.start, &[count])
    }

    /// Returns the number of entries that the worker has taken from a ring.
    pub(super) fn taken(&self, place: &QueuePlace) -> Result<u64> {
        self.load(place.start + LINE_WORDS)
    }

    /// Rings the doorbells of all queues, of those too that are not there.
    pub(super) fn ring_all(&self) -> Result<()> {
        let words = Doorbells::words(DOORBELL_QUEUES_MAX) - (BITMAP - LINE_WORDS);
        self.store(BITMAP, &vec![u64::MAX; words.min(64)])?;
        self.store(SUMMARY, &[u64::MAX])
    }

    /// Ends the sleep of the worker.
    pub(super) fn wake(&self) -> Result<()> {
        rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    /// Posts `count` receive buffers to each queue pair, in error, so that each completes at once. Returns the places
    /// of the receive queues, once the worker has taken all buffers.
    pub(super) fn flush_buffers(
        &mut self,
        pairs: &[(QpNum, QpPlaces)],
        count: u32,
    ) -> Result<Vec<QueuePlace>> {
        let errors: Vec<_> = pairs.iter().map(|(qp, _)| Request::ModifyQp(*qp, QpState::Error)).collect();
        self.succeed(&errors)?;
        let queues = pairs.iter().map(|(_, places)| receive_queue(places)).collect::<Result<Vec<_>>>()?;
        self.post_all(&queues, count)?;
        Ok(queues)
    }

    /// Posts `count` receive buffers to each queue, and waits until the worker has taken all.
    fn post_all(&self, queues: &[QueuePlace], count: u32) -> Result<()> {
        for place in queues {
            self.post(place, count)?;
        }
        let until = Instant::now() + POSTED_WITHIN;
        for place in queues {
            while self.taken(place)? < u64::from(count) {
                ensure!(Instant::now() < until, "the worker does not take the entries of {place:?}");
                self.ring_all()?;
                self.wake()?;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Returns the descriptors that the daemon makes readable, for completions and for events.
    pub(super) fn bells(&self) -> &[OwnedFd; 2] {
        &self.bells
    }

    /// Arms a completion queue for its next completion.
    pub(super) fn arm(&self, place: &CqPlace) -> Result<()> {
        self.store(place.start, &[2])
    }

    /// Takes all completions of a queue.
    pub(super) fn take_completions(&self, place: &CqPlace) -> Result<()> {
        let produced = self.completions(place)?;
        self.store(place.start + LINE_WORDS * 2, &[produced])
    }

    /// Returns true once the completion queue has overrun: its ring and the worker's queue were full.
    pub(super) fn has_overrun(&self, place: &CqPlace) -> Result<bool> {
        Ok(self.load(place.start + 2)? == 1)
    }

    /// Returns the completions in the ring of a completion queue, of which this program takes none.
    pub(super) fn completions(&self, place: &CqPlace) -> Result<u64> {
        self.load(place.start + LINE_WORDS)
    }

    fn load(&self, word: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read(u64::try_from(word)? * WORD, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn store(&self, word: usize, values: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Ok(self.memory.write(u64::try_from(word)? * WORD, &bytes)?)
    }
}

/// Returns the place of a receive queue.
pub(super) fn receive_queue(places: &QpPlaces) -> Result<QueuePlace> {
    places.recv.context("a queue pair without a receive queue")
}
