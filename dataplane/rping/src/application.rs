//! Verbs of a context of the daemon: the program is one of its applications.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use iwarp_engine::Clock;
use iwarp_verbs::{CompletionQueue, Context, Event, Id, Mr, ProtectionDomain, QpOptions, QueuePair};
use rdma::verbs::{
    Access, AsyncEvent, CmEvent, CmEventKind, CmId, ConnParam, CqId, MemoryRegion, MrId, PdId, PostError,
    QpCap, QpNum, RecvWr, SendWr, VerbsError, WorkCompletion,
};
use tcp_stack::Instant;

use crate::error::Error;
use crate::verbs::{TextMemory, Verbs};

/// Longest sleep, after which the program looks at its time limits and its signals.
const SLEEP: Duration = Duration::from_millis(20);

/// A context of the daemon, and the objects that the program has there.
#[derive(Debug)]
pub struct Application {
    ids: HashMap<CmId, Id>,
    qps: HashMap<QpNum, QueuePair>,
    cqs: HashMap<CqId, CompletionQueue>,
    mrs: HashMap<MrId, Mr>,
    pds: HashMap<PdId, ProtectionDomain>,
    cm_events: VecDeque<CmEvent>,
    async_events: VecDeque<AsyncEvent>,
    /// True if there was an event or a completion.
    busy: bool,
    clock: Clock,
    context: Context,
}

impl From<iwarp_verbs::Error> for Error {
    fn from(error: iwarp_verbs::Error) -> Self {
        match error {
            iwarp_verbs::Error::Refused { cause, .. } => Self::Object(cause),
            other => Self::Daemon(other.to_string()),
        }
    }
}

fn find<'a, K: std::hash::Hash + Eq, T>(objects: &'a HashMap<K, T>, key: &K) -> Result<&'a T, Error> {
    objects.get(key).ok_or(Error::Object(VerbsError::NoSuchObject))
}

fn take<K: std::hash::Hash + Eq, T>(objects: &mut HashMap<K, T>, key: &K) -> Result<(), Error> {
    objects.remove(key).map(drop).ok_or(Error::Object(VerbsError::NoSuchObject))
}

impl Application {
    /// Opens a context at the daemon's verbs socket.
    ///
    /// # Errors
    /// The daemon cannot be reached, or refuses.
    pub fn open(socket: &Path) -> Result<Self, Error> {
        let context = Context::open(socket, None)?;
        Ok(Self {
            ids: HashMap::new(),
            qps: HashMap::new(),
            cqs: HashMap::new(),
            mrs: HashMap::new(),
            pds: HashMap::new(),
            cm_events: VecDeque::new(),
            async_events: VecDeque::new(),
            busy: false,
            clock: Clock::start(),
            context,
        })
    }

    /// Returns the time since the context was opened.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Calls `program` until it breaks. Sleeps while there is neither an event nor a completion.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn run<T>(&mut self, mut program: impl FnMut(&mut Self) -> ControlFlow<T>) -> Result<T, Error> {
        let mut armed = false;
        loop {
            self.busy = false;
            if let ControlFlow::Break(end) = program(self) {
                return Ok(end);
            }
            if self.busy {
                armed = false;
            } else if !armed {
                // Another poll finds the completions that came before the queues were armed.
                self.cqs.values().for_each(|cq| cq.req_notify(false));
                armed = true;
            } else {
                self.context.wait(SLEEP)?;
                armed = false;
            }
        }
    }

    /// Sorts the context's events.
    fn receive(&mut self) {
        while let Some(event) = self.context.poll_event() {
            self.busy = true;
            match event {
                Event::Cm(event) => {
                    if let CmEventKind::ConnectRequest { .. } = event.kind {
                        self.ids.insert(event.id, self.context.id(event.id));
                    }
                    self.cm_events.push_back(event);
                }
                Event::Async(event) => self.async_events.push_back(event),
                // Connections live on while the link is down; the next wait reports the end of the daemon.
                Event::PortActive | Event::PortDown | Event::DeviceFatal => {}
            }
        }
    }
}

impl Verbs for Application {
    fn alloc_pd(&mut self) -> Result<PdId, Error> {
        let pd = self.context.alloc_pd()?;
        let id = pd.id();
        self.pds.insert(id, pd);
        Ok(id)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Error> {
        take(&mut self.pds, &pd)
    }

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, Error> {
        let cq = self.context.create_cq(cqe)?;
        let id = cq.id();
        self.cqs.insert(id, cq);
        Ok(id)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        take(&mut self.cqs, &cq)
    }

    fn create_qp(&mut self, pd: PdId, cq: CqId, cap: QpCap) -> Result<QpNum, Error> {
        let options = QpOptions { cap, sq_sig_all: true, ..QpOptions::new(find(&self.cqs, &cq)?) };
        let qp = find(&self.pds, &pd)?.create_qp(&options)?;
        let num = qp.num();
        self.qps.insert(num, qp);
        Ok(num)
    }

    fn destroy_qp(&mut self, qp: QpNum) -> Result<(), Error> {
        take(&mut self.qps, &qp)
    }

    fn reg_mr(
        &mut self,
        pd: PdId,
        _: TextMemory,
        (_, length): (u64, u64),
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let mr = find(&self.pds, &pd)?.alloc_mr(length, access)?;
        let region = mr.region();
        self.mrs.insert(region.id, mr);
        Ok(region)
    }

    fn dereg_mr(&mut self, mr: MrId) -> Result<(), Error> {
        take(&mut self.mrs, &mr)
    }

    fn store(&mut self, _: TextMemory, mr: &MemoryRegion, bytes: &[u8]) -> bool {
        self.mrs.get(&mr.id).is_some_and(|mr| mr.write(0, bytes).is_ok())
    }

    fn load(&self, _: TextMemory, mr: &MemoryRegion, bytes: &mut [u8]) -> bool {
        self.mrs.get(&mr.id).is_some_and(|mr| mr.read(0, bytes).is_ok())
    }

    fn create_id(&mut self, local: Option<SocketAddr>) -> Result<CmId, Error> {
        let id = self.context.create_id(local)?;
        let handle = id.handle();
        self.ids.insert(handle, id);
        Ok(handle)
    }

    fn destroy_id(&mut self, id: CmId) -> Result<(), Error> {
        take(&mut self.ids, &id)
    }

    fn listen(&mut self, id: CmId, backlog: NonZeroU16, param: &ConnParam<'_>) -> Result<(), Error> {
        Ok(find(&self.ids, &id)?.listen(backlog, param)?)
    }

    fn connect(&mut self, id: CmId, qp: QpNum, peer: SocketAddr, param: &ConnParam<'_>) -> Result<(), Error> {
        Ok(find(&self.ids, &id)?.connect(find(&self.qps, &qp)?, peer, param)?)
    }

    fn accept(&mut self, id: CmId, qp: QpNum) -> Result<(), Error> {
        Ok(find(&self.ids, &id)?.accept(find(&self.qps, &qp)?, &[])?)
    }

    fn reject(&mut self, id: CmId, private_data: &[u8]) -> Result<(), Error> {
        Ok(find(&self.ids, &id)?.reject(private_data)?)
    }

    fn disconnect(&mut self, id: CmId, _: Instant) {
        // Fails only if the daemon has ended, which the next wait reports.
        let _ = find(&self.ids, &id).map(Id::disconnect);
    }

    fn peer(&self, id: CmId) -> Option<SocketAddr> {
        self.ids.get(&id)?.addresses().ok()?.1
    }

    fn poll_cm_event(&mut self) -> Option<CmEvent> {
        self.receive();
        self.cm_events.pop_front()
    }

    fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.receive();
        self.async_events.pop_front()
    }

    fn post_send(&mut self, qp: QpNum, wr: &SendWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.get(&qp).ok_or(PostError::NoSuchObject)?;
        qp.post_send(&[*wr]).map_err(|(_, error)| error)
    }

    fn post_recv(&mut self, qp: QpNum, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.get(&qp).ok_or(PostError::NoSuchObject)?;
        qp.post_recv(&[*wr]).map_err(|(_, error)| error)
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        let polled = self.cqs.get(&cq)?.poll(&mut out);
        self.busy |= polled == Ok(1);
        (polled == Ok(1)).then_some(out).map(|[wc]| wc)
    }
}
