//! Protection domains, memory regions and memory windows.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use iwarp_shared_verbs::methods::{AllocMemory, Memory, MemoryPart, RegMr, RegParts, SMALL_BYTES};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{Access, AddressBase, MemoryRegion as Region, MemoryWindow as Window, PdId, Sge, Stag};

use crate::backend::Registrable;
use crate::blocks::Piece;
use crate::context::{Context, Inner, map};
use crate::error::Error;
use crate::mapping::Mapping;
use crate::own_memory::Registration;

/// A protection domain (`ibv_pd`). Clones are handles of the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(pub(crate) Arc<PdInner>);

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) context: Arc<Inner>,
    pub(crate) id: PdId,
}

impl Context {
    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, Error> {
        let Response::Pd(id) = self.0.execute("alloc_pd", Request::AllocPd)? else {
            return Err(Error::Protocol("alloc_pd"));
        };
        Ok(ProtectionDomain(Arc::new(PdInner { context: Arc::clone(&self.0), id })))
    }
}

impl ProtectionDomain {
    /// Returns the handle of the domain.
    pub fn id(&self) -> PdId {
        self.0.id
    }
}

impl Inner {
    /// Frees memory that is not registered.
    pub(crate) fn free_memory(&self, memory: u32) {
        // Fails only if the daemon has ended, which frees it, too.
        let _ = self.call(|backend| backend.free_memory(memory));
    }

    /// Gives back a piece that is not registered, and with the last one the hugepage.
    fn give_back(&self, piece: &Piece) {
        if let Some(memory) = self.blocks.give_back(piece) {
            self.free_memory(memory);
        }
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Fails only if the daemon has ended: no object uses it any more.
        let _ = self.context.execute("dealloc_pd", Request::DeallocPd(self.id));
    }
}

/// A registered memory region (`ibv_mr`), and its memory: mapped into this process, or memory that the program has
/// registered. It is deregistered when dropped.
#[derive(Debug)]
pub struct Mr {
    pub(crate) pd: ProtectionDomain,
    pub(crate) region: Region,
    pub(crate) mapping: Mapping,
    pub(crate) memory: MrMemory,
}

/// Memory of an [`Mr`], and what is done with it when the memory region is deregistered.
#[derive(Debug)]
pub(crate) enum MrMemory {
    /// Memory of the daemon, which frees it; or memory that somebody else cares for.
    Daemon,
    /// A piece of a hugepage that small buffers share.
    Piece(Piece),
    /// The program's own memory.
    Own(Registration),
    /// No memory: the memory region is deregistered.
    Gone,
}

impl ProtectionDomain {
    /// Allocates memory, zeroed, on hugepages if there are any, maps it, and registers it with these rights. Small
    /// buffers of a context share a hugepage.
    ///
    /// # Errors
    /// There is not enough memory, a limit is reached, or the daemon has ended.
    pub fn alloc_mr(&self, bytes: u64, access: Access) -> Result<Mr, Error> {
        let context = &self.0.context;
        if let Some(piece) = context.blocks.cut(bytes) {
            return self.register_piece(piece, access);
        }
        let params = AllocMemory { bytes, exchange: false, shared: bytes <= SMALL_BYTES };
        let (memory, fd) = context.call(|backend| backend.alloc_memory(&params))?;
        if !params.shared || memory.bytes <= bytes {
            return self.register((memory, fd), access);
        }
        let whole = map(&fd, memory.bytes, memory.page_bytes);
        let piece = whole.and_then(|whole| {
            context.blocks.add(memory.memory, whole, bytes).ok_or(Error::Protocol("memory.alloc"))
        });
        match piece {
            Ok(piece) => self.register_piece(piece, access),
            Err(error) => {
                context.free_memory(memory.memory);
                Err(error)
            }
        }
    }

    /// Registers a piece of a hugepage that small buffers share.
    fn register_piece(&self, (piece, mapping): (Piece, Mapping), access: Access) -> Result<Mr, Error> {
        let context = &self.0.context;
        let address = mapping.address().as_ptr() as u64;
        let Piece { memory, offset, .. } = piece;
        let parts = vec![MemoryPart::Exchanged { memory, offset: offset as u64, bytes: mapping.len() }];
        let params = RegParts { pd: self.0.id, address, parts, access };
        let pieces = Registrable::of_device(params).ok_or(Error::Protocol("reg_mr"))?;
        match context.call(|backend| backend.register_parts(pieces)) {
            Ok(region) => Ok(Mr { pd: self.clone(), region, mapping, memory: MrMemory::Piece(piece) }),
            Err(error) => {
                context.give_back(&piece);
                Err(error)
            }
        }
    }

    /// Maps a region of the daemon, and registers it with these rights. The program must be admitted to the control
    /// socket.
    ///
    /// # Errors
    /// There is no such region, the program may not open it, a limit is reached, or the daemon has ended.
    pub fn reg_region(&self, name: &str, access: Access) -> Result<Mr, Error> {
        let memory = self.0.context.call(|backend| backend.open_region(name))?;
        self.register(memory, access)
    }

    /// Maps memory of the daemon and registers it at the address of the mapping.
    fn register(&self, (memory, fd): (Memory, OwnedFd), access: Access) -> Result<Mr, Error> {
        let context = &self.0.context;
        let made = map(&fd, memory.bytes, memory.page_bytes).and_then(|mapping| {
            let base = AddressBase::At(mapping.address().as_ptr() as u64);
            let params = RegMr { memory: memory.memory, pd: self.0.id, base, access };
            let region = context.call(|backend| backend.register(params))?;
            Ok(Mr { pd: self.clone(), region, mapping, memory: MrMemory::Daemon })
        });
        if made.is_err() {
            context.free_memory(memory.memory);
        }
        made
    }

    /// Allocates an unbound memory window (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn alloc_mw(&self) -> Result<MemoryWindow, Error> {
        let Response::Mw(window) = self.0.context.execute("alloc_mw", Request::AllocMw(self.0.id))? else {
            return Err(Error::Protocol("alloc_mw"));
        };
        Ok(MemoryWindow { pd: self.clone(), window })
    }
}

impl Mr {
    /// Returns the key for local work requests.
    pub fn lkey(&self) -> Stag {
        self.region.lkey
    }

    /// Returns the key for the peer.
    pub fn rkey(&self) -> Stag {
        self.region.rkey
    }

    /// Returns the address of the first byte, in this process and for work requests.
    pub fn addr(&self) -> u64 {
        self.region.addr
    }

    /// Returns the number, the address and the keys of the memory region.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Deregisters the memory region (`ibv_dereg_mr`), as dropping it does. Its keys are invalid from here on.
    ///
    /// # Errors
    /// `Busy`: a memory window is bound to it. Nothing has changed then.
    pub fn deregister(&mut self) -> Result<(), Error> {
        if matches!(self.memory, MrMemory::Gone) {
            return Ok(());
        }
        match self.pd.0.context.execute("dereg_mr", Request::DeregMr(self.region.id)) {
            Ok(_) | Err(Error::Lost) => {}
            Err(error) => return Err(error),
        }
        // No worker accesses it any more.
        match std::mem::replace(&mut self.memory, MrMemory::Gone) {
            MrMemory::Daemon | MrMemory::Gone => {}
            MrMemory::Piece(piece) => self.pd.0.context.give_back(&piece),
            MrMemory::Own(own) => own.release(),
        }
        Ok(())
    }

    /// Returns a list element for `length` bytes at `offset`. The device checks it when it is used.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.region.addr.wrapping_add(offset), length, lkey: self.region.lkey }
    }
}

impl Deref for Mr {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Fails only if a memory window is bound to it: the region and its memory live as long as the context.
        let _ = self.deregister();
    }
}

/// A memory window (`ibv_mw`).
#[derive(Debug)]
pub struct MemoryWindow {
    pd: ProtectionDomain,
    window: Window,
}

impl MemoryWindow {
    /// Returns the window, with the key to bind it with.
    pub fn window(&self) -> Window {
        self.window
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // Fails only if the daemon has ended.
        let _ = self.pd.0.context.execute("dealloc_mw", Request::DeallocMw(self.window.id));
    }
}
