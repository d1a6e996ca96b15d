//! Memory of a program, accessed through the kernel: for memory that the daemon cannot map.
//!
//! The program opens `/proc/self/mem` and passes the descriptor. The descriptor names an address space, not a process
//! number: once the program has ended or has executed another, every access fails, also if the number is in use again.
//! The daemon needs no right of its own to the program's memory.
//!
//! Every access may block as long as the program, or the server of its memory, likes. A [`Copier`](super::Copier) makes
//! them, in a thread of its own.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::OFlags;

/// Type of the `proc` file system (`PROC_SUPER_MAGIC`).
const PROC_MAGIC: u64 = 0x9fa0;

/// Error of [`ProcessMemory::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessMemoryError {
    /// The descriptor is of another file.
    #[error("the descriptor is not of /proc/self/mem")]
    AnotherFile,
    /// The descriptor is not open for reading and writing.
    #[error("the descriptor of /proc/self/mem is not open for reading and writing")]
    Mode,
}

/// The address space of a program.
#[derive(Debug)]
pub struct ProcessMemory {
    file: OwnedFd,
}

impl ProcessMemory {
    /// Takes a program's descriptor of its `/proc/self/mem`.
    ///
    /// # Errors
    /// The descriptor is of another file, or not open for reading and writing.
    pub fn new(file: OwnedFd) -> Result<Self, ProcessMemoryError> {
        let other = |_| ProcessMemoryError::AnotherFile;
        let system = rustix::fs::fstatfs(&file).map_err(other)?;
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = rustix::fs::readlink(link, Vec::new()).map_err(other)?;
        if u64::try_from(system.f_type) != Ok(PROC_MAGIC) || !is_memory(path.to_bytes()) {
            return Err(ProcessMemoryError::AnotherFile);
        }
        let flags = rustix::fs::fcntl_getfl(&file).map_err(other)?;
        if flags & OFlags::RWMODE != OFlags::RDWR {
            return Err(ProcessMemoryError::Mode);
        }
        Ok(Self { file })
    }

    /// Copies the bytes at an address of the program to `out`. Returns false if they are not all there.
    #[must_use]
    pub fn read(&self, address: u64, mut out: &mut [u8]) -> bool {
        let mut at = address;
        while !out.is_empty() {
            match rustix::io::pread(&self.file, &mut *out, at) {
                Ok(0) => return false,
                Ok(count) => {
                    at = at.wrapping_add(count as u64);
                    out = out.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Copies bytes to an address of the program. Returns false if it does not take them all.
    #[must_use]
    pub fn write(&self, address: u64, mut bytes: &[u8]) -> bool {
        let mut at = address;
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.file, bytes, at) {
                Ok(0) => return false,
                Ok(count) => {
                    at = at.wrapping_add(count as u64);
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Updates the eight bytes at an address, a number in native byte order, by `update`. Returns the value before;
    /// `None` if the bytes cannot be accessed.
    ///
    /// The caller orders updates, so that they are atomic for the streams of this daemon; they are not for the program
    /// itself (`IBV_ATOMIC_HCA`).
    #[must_use]
    pub fn update(&self, address: u64, update: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut bytes = [0; 8];
        if !self.read(address, &mut bytes) {
            return None;
        }
        let before = u64::from_ne_bytes(bytes);
        let done = update(before).is_none_or(|after| self.write(address, &after.to_ne_bytes()));
        done.then_some(before)
    }
}

/// Returns true for the path of a process's `mem`: `/proc/NUMBER/mem`, or `/NUMBER/mem` from another mount namespace.
fn is_memory(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    let (name, process) = (parts.next(), parts.next());
    name == Some(b"mem") && process.is_some_and(|p| !p.is_empty() && p.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    fn own() -> ProcessMemory {
        let file = OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
        ProcessMemory::new(file.into()).unwrap()
    }

    #[test]
    fn bytes_of_a_program_are_read_and_written() {
        let memory = own();
        let bytes = vec![7_u8; 10_000];
        let address = bytes.as_ptr() as u64;
        let mut out = vec![0; 10_000];
        assert!(memory.read(address, &mut out));
        assert_eq!(out, bytes);
        assert!(memory.write(address + 5000, b"placed"));
        assert_eq!(&std::hint::black_box(&bytes)[4999..5007], b"\x07placed\x07");
        assert!(!memory.read(8, &mut out) && !memory.write(8, b"nobody"), "nothing is mapped there");
    }

    #[test]
    fn an_update_returns_the_value_before() {
        let memory = own();
        let number = Box::new(40_u64);
        let address = std::ptr::from_ref(&*number) as u64;
        assert_eq!(memory.update(address, |value| Some(value + 2)), Some(40));
        assert_eq!(memory.update(address, |_| None), Some(42));
        assert_eq!(*std::hint::black_box(number), 42);
        assert_eq!(memory.update(8, |_| Some(1)), None);
    }

    /// A process that has ended has no memory, whatever has its number.
    #[test]
    fn the_memory_of_a_process_ends_with_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let address = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let path = format!("/proc/{}/mem", child.id());
        let memory =
            ProcessMemory::new(OpenOptions::new().read(true).write(true).open(path).unwrap().into()).unwrap();
        let mut out = [0; 4];
        assert!(memory.read(address, &mut out));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!memory.read(address, &mut out) && !memory.write(address, &out));
    }

    #[test]
    fn other_files_are_refused() {
        let refused = |file: std::fs::File| ProcessMemory::new(file.into()).unwrap_err();
        for path in ["/dev/null", "/proc/self/maps", "/proc/meminfo", "/"] {
            let file = std::fs::File::open(path).unwrap();
            assert_eq!(refused(file), ProcessMemoryError::AnotherFile, "{path}");
        }
        assert_eq!(refused(std::fs::File::open("/proc/self/mem").unwrap()), ProcessMemoryError::Mode);
        let named = tempfile::tempdir().unwrap();
        std::fs::create_dir(named.path().join("1")).unwrap();
        let path = named.path().join("1/mem");
        std::fs::write(&path, b"no memory").unwrap();
        assert_eq!(refused(std::fs::File::open(path).unwrap()), ProcessMemoryError::AnotherFile);
    }
}
