//! The file or stream that `put` reads.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use iwarp_control::Exit;
use iwarp_terminal::Failure;

use super::session::RegionRange;

/// The file or stream to write.
pub(super) struct Source<'a> {
    pub(super) file: File,
    path: &'a Path,
    /// The length of a regular file in bytes; `None` for a stream: stdin, a pipe, a device.
    pub(super) length: Option<u64>,
}

impl<'a> Source<'a> {
    /// Opens a file, or stdin for `-`.
    pub(super) fn open(path: &'a Path) -> Result<Self, Failure> {
        let unreadable = |error| Failure::file(path, "read", &error);
        if path == Path::new("-") {
            let file = io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?.into();
            return Ok(Self { file, path, length: None });
        }
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            return Err(unreadable(ErrorKind::IsADirectory.into()));
        }
        let length = metadata.is_file().then_some(metadata.len());
        Ok(Self { file, path, length })
    }

    /// Reads the next bytes; returns fewer than `room` holds only at the end.
    pub(super) fn next(&mut self, room: &mut [u8], at: u64) -> Result<usize, Failure> {
        if self.length.is_some() {
            read(&self.file, self.path, room, at)?;
            return Ok(room.len());
        }
        let mut filled = 0;
        while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read(rest) {
                Ok(0) => break,
                Ok(more) => filled = filled.saturating_add(more),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::file(self.path, "read", &error)),
            }
        }
        Ok(filled)
    }

    /// Returns true if the stream has bytes left after the region is full.
    pub(super) fn has_more(&mut self, taken: u64, range: &RegionRange) -> Result<bool, Failure> {
        Ok(self.length.is_none() && taken == range.length && self.next(&mut [0], taken)? > 0)
    }
}

/// Reads bytes of a regular file at a position.
pub(super) fn read(file: &File, path: &Path, bytes: &mut [u8], at: u64) -> Result<(), Failure> {
    file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            Failure::new(Exit::Failed, "file", format!("{} is shorter than it was", path.display()))
        }
        _ => Failure::file(path, "read", &error),
    })
}
