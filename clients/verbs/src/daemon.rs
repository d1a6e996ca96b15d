//! The device of a context that the daemon has: requests go over its verbs socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use iwarp_control::{Client, ClientError, NoParams};
use iwarp_shared_verbs::Request;
use iwarp_shared_verbs::methods::{
    AllocMemory, AllocMemoryMethod, Execute, ExecuteMethod, Executed, FreeMemory, FreeMemoryMethod, Memory,
    OfferProcessMethod, Open, OpenMethod, OpenRegion, OpenRegionMethod, RegMr, RegMrMethod, RegPartsMethod,
};
use rdma::verbs::MemoryRegion;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::backend::{Backend, Opened, Posted, Registrable, Sleeper, poll_with};
use crate::bell::Bell;
use crate::context::{Inner, Words, lock, map};
use crate::error::Error;
use crate::exchange::OwnThread;
use crate::threads::start_thread;

/// A connection to the daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    client: Mutex<Client>,
    /// The socket, to notice that the daemon has ended.
    socket: OwnedFd,
    /// Event counter that wakes the worker.
    doorbell: OwnedFd,
    /// Ends the thread that watches the daemon.
    closing: OwnedFd,
}

impl Daemon {
    /// Opens a context over a new connection to the daemon.
    pub(crate) fn open(socket: impl AsRef<Path>, open: &Open) -> Result<(Opened, Arc<Self>), Error> {
        let mut client = Client::connect(socket)?;
        let (opened, fds) = client.call_with_fds::<OpenMethod>(open)?;
        let Ok([memory, completions, events, doorbell]) = <[OwnedFd; 4]>::try_from(fds) else {
            return Err(Error::Protocol("context.open"));
        };
        let words = Words(Arc::new(map(&memory, opened.bytes, 4096)?));
        let socket = client.as_fd().try_clone_to_owned().map_err(failed("dup"))?;
        let closing = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let closing = closing.map_err(|error| Error::System { call: "eventfd", cause: error.into() })?;
        let daemon = Arc::new(Self { client: Mutex::new(client), socket, doorbell, closing });
        let backend: Arc<dyn Backend> = Arc::<Self>::clone(&daemon);
        let (app, device, link_up) = (opened.app, opened.device, opened.link_up);
        let (completions, events) = (Bell::of_daemon(completions)?, Bell::of_daemon(events)?);
        Ok((Opened { backend, words, completions, events, app, device, link_up }, daemon))
    }

    /// Starts a thread that notices the end of the daemon, so that polling makes no system call for that.
    pub(crate) fn watch(&self, context: Weak<Inner>) -> Result<(), Error> {
        let socket = self.socket.try_clone().map_err(failed("dup"))?;
        let closing = self.closing.try_clone().map_err(failed("dup"))?;
        let watch = move || loop {
            let mut set = [PollFd::new(&socket, PollFlags::RDHUP), PollFd::new(&closing, PollFlags::IN)];
            match poll(&mut set, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let [socket, closing] = set.map(|fd| !fd.revents().is_empty());
            if socket && let Some(context) = context.upgrade() {
                context.lose();
            }
            if socket || closing {
                return;
            }
        };
        let run = move || {
            let _own = OwnThread::enter();
            watch();
        };
        start_thread("iwarp-verbs", run).map_err(failed("clone"))
    }

    /// Opens another descriptor of the socket.
    pub(crate) fn socket(&self) -> Result<OwnedFd, Error> {
        self.socket.try_clone().map_err(failed("dup"))
    }

    /// Calls a method of the daemon.
    pub(crate) fn call<T>(
        &self,
        call: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, Error> {
        call(&mut lock(&self.client)).map_err(|error| match error {
            ClientError::Lost { .. } => Error::Lost,
            other => other.into(),
        })
    }
}

fn failed(call: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |cause| Error::System { call, cause }
}

/// Takes the descriptor that came with memory.
fn with_fd((memory, fds): (Memory, Vec<OwnedFd>)) -> Result<(Memory, OwnedFd), Error> {
    let fd = fds.into_iter().next().ok_or(Error::Protocol("memory.alloc"))?;
    Ok((memory, fd))
}

impl Backend for Daemon {
    fn execute(&self, requests: &[Request]) -> Result<Executed, Error> {
        let params = Execute { requests: requests.to_vec() };
        self.call(|client| client.call::<ExecuteMethod>(&params))
    }

    fn alloc_memory(&self, asked: &AllocMemory) -> Result<(Memory, OwnedFd), Error> {
        self.call(|client| client.call_with_fds::<AllocMemoryMethod>(asked)).and_then(with_fd)
    }

    fn open_region(&self, name: &str) -> Result<(Memory, OwnedFd), Error> {
        let params = OpenRegion { name: name.to_owned() };
        self.call(|client| client.call_with_fds::<OpenRegionMethod>(&params)).and_then(with_fd)
    }

    fn register(&self, asked: RegMr) -> Result<MemoryRegion, Error> {
        self.call(|client| client.call::<RegMrMethod>(&asked))
    }

    fn register_parts(&self, asked: Registrable) -> Result<MemoryRegion, Error> {
        let asked = asked.into_parts();
        self.call(|client| client.call::<RegPartsMethod>(&asked))
    }

    fn offer_process(&self) -> Result<(), Error> {
        let memory = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem");
        let memory = memory.map_err(failed("open"))?;
        let fds = [memory.as_fd()];
        self.call(|client| client.call_sending_fds::<OfferProcessMethod>(&NoParams {}, &fds)).map(drop)
    }

    fn free_memory(&self, memory: u32) -> Result<(), Error> {
        self.call(|client| client.call::<FreeMemoryMethod>(&FreeMemory { memory })).map(drop)
    }

    #[cold]
    fn wake(&self, _: Posted) {
        // Fails only if the counter is at its maximum: the worker is to wake already.
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    fn wake_helper(&self) {}

    fn stops_helping(&self) {}

    fn sleep(
        &self,
        fds: &[BorrowedFd<'_>],
        ready: &mut [bool],
        time: Duration,
        _: Sleeper,
    ) -> Result<bool, Errno> {
        match poll_with(fds, ready, (self.socket.as_fd(), PollFlags::RDHUP), time) {
            Err(Errno::INTR) => Ok(false),
            slept => slept,
        }
    }

    fn close(&self) {
        let _ = rustix::io::write(&self.closing, &1_u64.to_ne_bytes());
    }

    fn is_here(&self) -> bool {
        false
    }

    fn run(&self) {}

    fn daemon(&self) -> Result<&Daemon, Error> {
        Ok(self)
    }

    fn has_waiting(&self) -> bool {
        false
    }

    fn has_posts(&self) -> bool {
        false
    }

    fn polled_in_vain(&self, _: u32) {}
}
