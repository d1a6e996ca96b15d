//! The regions of the daemon, as it has listed them, and their memory.

mod daemon;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use iwarp_verbs::{Access, Mapping, Mr, OutOfBounds, Sge};
use rustix::io::Errno;

pub use daemon::DaemonRegions;

/// Memory of a region. Others may change it at any time.
pub trait Memory: fmt::Debug + Send + Sync {
    /// Returns the size in bytes, which stays as it is.
    fn bytes(&self) -> u64;

    /// Copies bytes out.
    ///
    /// # Errors
    /// The bytes are not all inside the memory.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds>;

    /// Copies bytes in.
    ///
    /// # Errors
    /// The bytes are not all inside the memory.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds>;

    /// Returns the list element of work requests for these bytes; `None` if the memory is not registered.
    fn element(&self, offset: u64, length: u32) -> Option<Sge>;

    /// Returns the memory as the kernel reads and writes it; `None` if it cannot.
    fn mapping(&self) -> Option<&Mapping> {
        None
    }
}

impl Memory for Mr {
    fn bytes(&self) -> u64 {
        self.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        (**self).read(offset, out)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        (**self).write(offset, bytes)
    }

    fn element(&self, offset: u64, length: u32) -> Option<Sge> {
        Some(self.sge(offset, length))
    }

    fn mapping(&self) -> Option<&Mapping> {
        Some(self)
    }
}

/// Memory that is not registered.
impl Memory for Mapping {
    fn bytes(&self) -> u64 {
        self.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.read(offset, out)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.write(offset, bytes)
    }

    fn element(&self, _: u64, _: u32) -> Option<Sge> {
        None
    }

    fn mapping(&self) -> Option<&Mapping> {
        Some(self)
    }
}

/// A region as the daemon lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Number of the registration, not zero: a later region of the same name has another one.
    pub instance: u64,
    /// Name of the region.
    pub name: String,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Rights that the region grants to peers.
    pub access: Access,
    /// True if any peer may use the region: without a token, from any address.
    pub is_public: bool,
}

/// The daemon that has the regions.
pub trait Source: fmt::Debug + Send {
    /// Lists all regions.
    ///
    /// # Errors
    /// The reason why the daemon does not answer.
    fn list(&mut self) -> Result<Vec<Listed>, String>;

    /// Maps and registers the memory of a region.
    ///
    /// # Errors
    /// The reason of the daemon.
    fn open(&mut self, name: &str) -> Result<Arc<dyn Memory>, String>;
}

/// A part of a region's memory. The memory stays registered as long as the value lives.
#[derive(Clone, Debug)]
pub struct Span {
    memory: Arc<dyn Memory>,
    offset: u64,
    length: u32,
}

impl Span {
    /// Returns bytes of memory; `None` if they are not all inside it.
    pub(crate) fn new(memory: Arc<dyn Memory>, offset: u64, length: u32) -> Option<Self> {
        let end = offset.checked_add(length.into())?;
        (end <= memory.bytes()).then_some(Self { memory, offset, length })
    }

    /// Returns a part of these bytes; `None` if it is not inside.
    pub fn part(&self, start: u32, length: u32) -> Option<Self> {
        let is_inside = start.checked_add(length)? <= self.length;
        let offset = self.offset.checked_add(start.into())?;
        is_inside.then(|| Self { memory: Arc::clone(&self.memory), offset, length })
    }

    /// Copies bytes to the beginning.
    ///
    /// # Errors
    /// They are more than these.
    pub fn fill(&self, bytes: &[u8]) -> Result<(), OutOfBounds> {
        if bytes.len() > self.length as usize {
            let (offset, length) = (0, bytes.len());
            return Err(OutOfBounds { offset, length, bytes: self.length.into() });
        }
        self.memory.write(self.offset, bytes)
    }

    /// Returns the offset in the memory behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.length.into())
    }

    /// Returns true if the kernel can read and write the bytes.
    pub(crate) fn is_mapped(&self) -> bool {
        self.memory.mapping().is_some()
    }

    /// Keeps the first `length` bytes, or all if there are fewer.
    pub(crate) fn truncate(&mut self, length: u32) {
        self.length = self.length.min(length);
    }

    /// Returns the place of the bytes behind the first `start`, for the kernel: the mapping, an offset there and a
    /// number of bytes. `None` if the kernel cannot access the memory.
    pub(crate) fn place(&self, start: usize) -> Option<(&Mapping, (u64, usize))> {
        let length = (self.length as usize).saturating_sub(start);
        Some((self.memory.mapping()?, (self.offset.saturating_add(start as u64), length)))
    }

    /// Returns the number of bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns true if both are the same bytes.
    pub fn is(&self, other: &Self) -> bool {
        let (one, two) = (Arc::as_ptr(&self.memory), Arc::as_ptr(&other.memory));
        std::ptr::addr_eq(one, two) && (self.offset, self.length) == (other.offset, other.length)
    }

    /// Returns the list element of a part of these bytes; `None` if the memory is not registered.
    pub fn element(&self, start: u64, length: u32) -> Option<Sge> {
        self.memory.element(self.offset.saturating_add(start), length)
    }

    /// Copies a part of these bytes.
    ///
    /// # Errors
    /// The part is not inside the memory.
    pub fn copy(&self, start: u64, length: u32) -> Result<Vec<u8>, OutOfBounds> {
        let mut bytes = vec![0; length as usize];
        self.memory.read(self.offset.saturating_add(start), &mut bytes)?;
        Ok(bytes)
    }
}

/// Properties of a region that change.
#[derive(Debug)]
struct Now {
    /// Time of modification that was stated to a client last.
    stated: SystemTime,
    access: Access,
    is_public: bool,
    /// Memory, once a client has opened the region.
    memory: Option<Arc<dyn Memory>>,
    is_gone: bool,
}

/// A region of the daemon.
#[derive(Debug)]
pub struct Region {
    instance: u64,
    name: String,
    bytes: u64,
    now: Mutex<Now>,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Region {
    fn new(listed: Listed) -> Self {
        let Listed { instance, name, bytes, access, is_public } = listed;
        Self {
            instance,
            name,
            bytes,
            now: Mutex::new(Now { stated: now(), access, is_public, memory: None, is_gone: false }),
        }
    }

    /// Returns the number of the registration.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Returns the name of the region.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the rights of peers.
    pub fn access(&self) -> Access {
        lock(&self.now).access
    }

    /// Returns true if any peer may use the region.
    pub fn is_public(&self) -> bool {
        lock(&self.now).is_public
    }

    /// Returns the time of modification: the present, because peers and programs change the bytes without notice, and a
    /// client must not take those that it has for the present ones.
    pub fn modified(&self) -> SystemTime {
        let mut state = lock(&self.now);
        state.stated = now();
        state.stated
    }

    /// Returns the time of modification as it was stated last, or the present if that was `repeated_s` or more seconds
    /// of the clock ago: for replies that move data, so that a client does not discard what it has just moved.
    pub fn last_modified(&self, repeated_s: u64) -> SystemTime {
        let mut state = lock(&self.now);
        let now = now();
        if seconds(now).saturating_sub(seconds(state.stated)) >= repeated_s {
            state.stated = now;
        }
        state.stated
    }

    /// Returns the memory for an access of this kind.
    fn memory(&self, right: Access) -> Result<Arc<dyn Memory>, Errno> {
        let now = lock(&self.now);
        if now.is_gone {
            return Err(Errno::STALE);
        }
        if !now.access.contains(right) {
            return Err(Errno::ACCESS);
        }
        now.memory.clone().ok_or(Errno::AGAIN)
    }

    /// Returns the bytes that a read returns: fewer than `length` at the end of the region.
    ///
    /// # Errors
    /// `STALE`: the region is gone; `ACCESS`: its rights do not allow reads; `AGAIN`: nobody has opened it.
    pub fn readable(&self, offset: u64, length: u32) -> Result<Span, Errno> {
        let memory = self.memory(Access::REMOTE_READ)?;
        let left = self.bytes.saturating_sub(offset);
        let length = u32::try_from(left.min(length.into())).unwrap_or(length);
        Ok(Span { memory, offset: offset.min(self.bytes), length })
    }

    /// Returns the bytes that a write changes: fewer than `length` at the end of the region, but not none.
    ///
    /// # Errors
    /// `STALE`: the region is gone; `ACCESS`: its rights do not allow writes; `AGAIN`: nobody has opened it; `NOSPC`:
    /// it ends at `offset` or before.
    pub fn writable(&self, offset: u64, length: u32) -> Result<Span, Errno> {
        let memory = self.memory(Access::REMOTE_WRITE)?;
        let left = self.bytes.saturating_sub(offset);
        if left == 0 && length > 0 {
            return Err(Errno::NOSPC);
        }
        let length = u32::try_from(left.min(length.into())).unwrap_or(length);
        Ok(Span { memory, offset: offset.min(self.bytes), length })
    }

    /// Reads until the buffer is full or the region ends. Returns the bytes read.
    ///
    /// # Errors
    /// As for [`Self::readable`]; `IO`: the memory is shorter than the region.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<u32, Errno> {
        let wanted = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let span = self.readable(offset, wanted)?;
        let part = buffer.get_mut(..span.length as usize).unwrap_or_default();
        span.memory.read(span.offset, part).map_err(|_| Errno::IO)?;
        Ok(span.length)
    }

    /// Writes all bytes, or as many as fit. Returns the bytes written.
    ///
    /// # Errors
    /// As for [`Self::writable`]; `IO`: the memory is shorter than the region.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<u32, Errno> {
        let span = self.writable(offset, u32::try_from(data.len()).unwrap_or(u32::MAX))?;
        let part = data.get(..span.length as usize).unwrap_or_default();
        span.memory.write(span.offset, part).map_err(|_| Errno::IO)?;
        Ok(span.length)
    }
}

#[derive(Debug)]
struct State {
    /// Regions that exist, by their instance.
    regions: BTreeMap<u64, Arc<Region>>,
    /// Time of the latest region that came or went.
    changed: SystemTime,
    /// The reason why the latest attempt to list or to open regions failed.
    error: Option<String>,
}

/// All regions of the daemon. Any number of users share the memory of each.
#[derive(Debug)]
pub struct RegionTable {
    source: Mutex<Box<dyn Source>>,
    state: Mutex<State>,
}

impl RegionTable {
    /// Lists the regions for the first time.
    ///
    /// # Errors
    /// The reason why the daemon does not answer.
    pub fn new(mut source: Box<dyn Source>) -> Result<Self, String> {
        let listed = source.list()?;
        let state = State { regions: BTreeMap::new(), changed: now(), error: None };
        let table = Self { source: Mutex::new(source), state: Mutex::new(state) };
        table.update(listed);
        Ok(table)
    }

    /// Lists the regions again. If the daemon does not answer, they stay as they are.
    pub fn refresh(&self) {
        let mut source = lock(&self.source);
        match source.list() {
            Ok(listed) => self.update(listed),
            Err(error) => lock(&self.state).error = Some(error),
        }
    }

    fn update(&self, listed: Vec<Listed>) {
        let mut state = lock(&self.state);
        let mut former = std::mem::take(&mut state.regions);
        let mut is_new = false;
        for region in listed {
            let instance = region.instance;
            let kept = former.remove(&instance);
            is_new |= kept.is_none();
            let kept = kept.unwrap_or_else(|| Arc::new(Region::new(region.clone())));
            {
                let mut now = lock(&kept.now);
                (now.access, now.is_public) = (region.access, region.is_public);
            }
            state.regions.insert(instance, kept);
        }
        if is_new || !former.is_empty() {
            state.changed = now();
        }
        state.error = None;
        drop(state);
        former.values().for_each(|region| retire(region));
    }

    /// Returns the region of an instance.
    pub fn find(&self, instance: u64) -> Option<Arc<Region>> {
        lock(&self.state).regions.get(&instance).map(Arc::clone)
    }

    /// Returns all regions, by instance.
    pub fn all(&self) -> Vec<Arc<Region>> {
        lock(&self.state).regions.values().map(Arc::clone).collect()
    }

    /// Returns the time of the latest region that came or went.
    pub fn changed(&self) -> SystemTime {
        lock(&self.state).changed
    }

    /// Returns the reason why the latest attempt to list or to open regions failed.
    pub fn error(&self) -> Option<String> {
        lock(&self.state).error.clone()
    }

    /// Maps and registers the memory of a region, unless that has been done.
    ///
    /// # Errors
    /// `STALE`: the region is gone; `AGAIN`: the daemon does not answer, or refuses; `IO`: the memory is shorter than
    /// the region, so that offsets of clients would be outside of it.
    pub fn open(&self, region: &Arc<Region>) -> Result<(), Errno> {
        let is_open = || {
            let now = lock(&region.now);
            if now.is_gone { Err(Errno::STALE) } else { Ok(now.memory.is_some()) }
        };
        if is_open()? {
            return Ok(());
        }
        let mut source = lock(&self.source);
        if is_open()? {
            return Ok(());
        }
        let opened = source.open(&region.name).and_then(|memory| Ok((memory, source.list()?)));
        let (memory, listed) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                lock(&self.state).error = Some(format!("region {}: {error}", region.name));
                // It may be gone: the next list says so. Else the client tries again.
                return Err(Errno::AGAIN);
            }
        };
        // The name had this instance before and has it now: so the memory is that of this instance.
        self.update(listed);
        let mut now = lock(&region.now);
        if now.is_gone {
            return Err(Errno::STALE);
        }
        if memory.bytes() < region.bytes {
            let (has, wants) = (memory.bytes(), region.bytes);
            let error = format!("region {}: its memory has {has} bytes, fewer than its {wants}", region.name);
            lock(&self.state).error = Some(error);
            return Err(Errno::IO);
        }
        now.memory = Some(memory);
        Ok(())
    }
}

/// Gives the memory of a region back. Transfers that have begun end with it.
fn retire(region: &Region) {
    let mut now = lock(&region.now);
    now.is_gone = true;
    let memory = now.memory.take();
    drop(now);
    // Deregisters it, which takes a request to the daemon.
    drop(memory);
}

impl Drop for RegionTable {
    fn drop(&mut self) {
        // Others may hold regions longer than the table is used.
        self.all().iter().for_each(|region| retire(region));
    }
}

/// Returns the present time.
#[allow(clippy::disallowed_methods, reason = "times of a region are those of the clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Returns the seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(crate) mod testing {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    /// Returns memory that the kernel reads and writes.
    pub(crate) fn memory(bytes: u64) -> Arc<dyn Memory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("memory", flags).unwrap();
        ftruncate(&file, bytes.next_multiple_of(4096)).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        Arc::new(Mapping::of_descriptor(&file, bytes).unwrap())
    }

    /// Returns bytes of such memory behind the first `start`.
    pub(crate) fn span(start: u64, length: u32) -> Span {
        Span::new(memory(start + u64::from(length) + 1), start, length).unwrap()
    }
}
