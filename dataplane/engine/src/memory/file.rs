//! Memory that is a file: bytes go to and from it by system calls, so that a file which others cut short ends
//! connections, and not the process, as a mapping of it would (SIGBUS).

use std::fs::File;
use std::io;

use rustix::fs::fstat;
use rustix::io::{Errno, pread, pwrite};

/// Bytes of a regular file, from its first one on. The file stays open as long as the value lives.
#[derive(Debug)]
pub struct FileMemory {
    file: File,
    /// Bytes that the file had at first.
    bytes: u64,
}

/// Reason why a file cannot be memory.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is a folder, a device or a pipe.
    #[error("it is not a regular file")]
    NotRegular,
    /// It has no bytes.
    #[error("it is empty, and a region has at least one byte")]
    Empty,
    /// The kernel does not describe it.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl FileMemory {
    /// Takes an open file, with its present length.
    ///
    /// # Errors
    /// The file is not a regular one, or is empty.
    pub fn new(file: File) -> Result<Self, FileError> {
        let found = file.metadata()?;
        match (found.is_file(), found.len()) {
            (false, _) => Err(FileError::NotRegular),
            (true, 0) => Err(FileError::Empty),
            (true, bytes) => Ok(Self { file, bytes }),
        }
    }

    /// Returns the number of bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if the bytes are inside the memory, and the file still has them.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes);
        let length = || fstat(&self.file).map_or(0, |found| u64::try_from(found.st_size).unwrap_or(0));
        end.is_some_and(|end| len == 0 || end <= length())
    }

    /// Writes bytes to the file. Returns false if the memory does not hold them, or the kernel refuses, because the
    /// disk is full for instance.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let (mut at, mut left) = (offset, bytes);
        let mut whole = self.holds(offset, bytes.len() as u64);
        while whole && !left.is_empty() {
            match pwrite(&self.file, left, at) {
                Ok(written @ 1..) => {
                    at = at.saturating_add(written as u64);
                    left = left.get(written..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => whole = false,
            }
        }
        whole
    }

    /// Reads bytes of the file. Returns false if the memory does not hold them, or the kernel cannot read them.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let (mut at, mut left) = (offset, &mut *out);
        let mut whole = self.holds(offset, left.len() as u64);
        while whole && !left.is_empty() {
            match pread(&self.file, &mut *left, at) {
                Ok(read @ 1..) => {
                    at = at.saturating_add(read as u64);
                    left = left.get_mut(read..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => whole = false,
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    /// Returns a file of these bytes, and another descriptor of it.
    fn file(bytes: &[u8]) -> (FileMemory, File) {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(pwrite(&file, bytes, 0), Ok(bytes.len()));
        (FileMemory::new(file.try_clone().unwrap()).unwrap(), file)
    }

    #[test]
    fn bytes_go_to_the_file_and_come_from_it() {
        let (memory, other) = file(b"0123456789");
        assert!(memory.write(3, b"abc"));
        let mut out = [0; 10];
        assert!(memory.read(0, &mut out));
        assert_eq!(&out, b"012abc6789");
        let mut seen = [0; 10];
        assert_eq!(pread(&other, &mut seen, 0), Ok(10));
        assert_eq!(seen, out);
        assert!(memory.read(10, &mut []) && memory.write(10, &[]));
        for offset in [8, 10, u64::MAX] {
            assert!(!memory.write(offset, b"xyz") && !memory.read(offset, &mut [0; 3]), "{offset}");
        }
    }

    #[test]
    fn a_file_holds_no_more_than_others_leave_of_it() {
        let (memory, other) = file(&[7; 10_000]);
        other.set_len(5000).unwrap();
        assert!(memory.read(0, &mut [0; 5000]) && !memory.read(4999, &mut [0; 2]));
        assert!(memory.write(4999, &[8]) && !memory.write(4999, &[9, 9]) && !memory.write(9000, &[9]));
        assert!(memory.holds(0, 5000) && !memory.holds(1, 5000) && memory.holds(10_000, 0));
        assert_eq!(other.metadata().unwrap().len(), 5000);
        // A longer file is no larger memory.
        other.set_len(20_000).unwrap();
        assert!(memory.holds(0, 10_000) && !memory.holds(0, 10_001) && !memory.write(10_000, &[9]));
    }

    #[test]
    fn folders_devices_and_empty_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &str| FileMemory::new(File::open(path).unwrap()).unwrap_err();
        assert!(matches!(refused(folder.path().to_str().unwrap()), FileError::NotRegular));
        assert!(matches!(refused("/dev/zero"), FileError::NotRegular));
        assert!(matches!(FileMemory::new(tempfile::tempfile().unwrap()), Err(FileError::Empty)));
    }

    #[test]
    fn a_file_that_is_open_for_reading_takes_no_bytes() {
        let named = tempfile::NamedTempFile::new().unwrap();
        named.as_file().set_len(100).unwrap();
        let memory = FileMemory::new(OpenOptions::new().read(true).open(named.path()).unwrap()).unwrap();
        assert!(memory.read(0, &mut [1; 100]) && !memory.write(0, b"x"));
    }
}
