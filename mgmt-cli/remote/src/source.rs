//! The files and the stream that `put` reads, as one sequence of bytes.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use iwarp_control::Exit;
use iwarp_terminal::Failure;

/// The files to write, one behind the other; the last one may be a stream.
pub(super) struct Sources<'a> {
    list: Vec<Source<'a>>,
    /// Bytes of all regular files.
    known: u64,
}

/// One file, or a stream.
struct Source<'a> {
    file: File,
    path: &'a Path,
    /// Bytes of the files before it.
    start: u64,
    /// The length of a regular file in bytes; `None` for a stream: stdin, a pipe, a device, a file that does not know
    /// its length.
    length: Option<u64>,
}

impl<'a> Sources<'a> {
    /// Opens all files; `-` is stdin.
    ///
    /// # Errors
    /// A file is unreadable, or another one follows a stream, whose end is unknown before it is written.
    pub(super) fn open(paths: &'a [PathBuf]) -> Result<Self, Failure> {
        let mut sources = Self { list: Vec::with_capacity(paths.len()), known: 0 };
        for path in paths {
            if let Some(stream) = sources.stream() {
                let message = format!("{} is a stream: it can only be the last file", stream.display());
                return Err(Failure::usage(message).with_help("`cat` joins files and pipes to one stream"));
            }
            let source = Source::open(path, sources.known)?;
            sources.known = sources.known.saturating_add(source.length.unwrap_or(0));
            sources.list.push(source);
        }
        Ok(sources)
    }

    /// Returns the path of the stream, if there is one.
    pub(super) fn stream(&self) -> Option<&'a Path> {
        self.list.last().filter(|last| last.length.is_none()).map(|last| last.path)
    }

    /// Returns the bytes of all regular files.
    pub(super) const fn known(&self) -> u64 {
        self.known
    }

    /// Reads the bytes at a position; returns fewer than `room` holds only at the end. A stream is at the position
    /// behind the bytes that it returned last.
    pub(super) fn next(&mut self, room: &mut [u8], at: u64) -> Result<usize, Failure> {
        let mut filled = 0;
        for source in &mut self.list {
            let rest = room.get_mut(filled..).unwrap_or_default();
            let from = at.saturating_add(filled as u64);
            filled = filled.saturating_add(source.read(rest, from)?);
        }
        Ok(filled)
    }

    /// Returns true if a stream has more bytes than those before position `at`.
    pub(super) fn has_more(&mut self, at: u64) -> Result<bool, Failure> {
        Ok(self.stream().is_some() && self.next(&mut [0], at)? > 0)
    }

    /// Returns path, position and length of each file, after `total` bytes were read.
    pub(super) fn parts(&self, total: u64) -> impl Iterator<Item = (&'a Path, u64, u64)> {
        self.list.iter().map(move |source| {
            (source.path, source.start, source.length.unwrap_or(total.saturating_sub(source.start)))
        })
    }

    /// Describes the place of a byte: its position in its file.
    pub(super) fn place(&self, at: u64) -> String {
        let holds = |source: &&Source<'_>| {
            at.checked_sub(source.start).is_some_and(|byte| source.length.is_none_or(|length| byte < length))
        };
        self.list.iter().find(holds).map_or_else(
            || format!("byte {at}"),
            |source| format!("byte {} of {}", at.saturating_sub(source.start), source.path.display()),
        )
    }
}

impl<'a> Source<'a> {
    fn open(path: &'a Path, start: u64) -> Result<Self, Failure> {
        let unreadable = |error| Failure::file(path, "read", &error);
        if path == Path::new("-") {
            let file = io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?.into();
            return Ok(Self { file, path, start, length: None });
        }
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            return Err(unreadable(ErrorKind::IsADirectory.into()));
        }
        let length = metadata.len();
        let known = metadata.is_file() && knows_length(&file, length).map_err(unreadable)?;
        Ok(Self { file, path, start, length: known.then_some(length) })
    }

    /// Reads the bytes of this file from position `at` of the sequence, as many as there are and `room` holds.
    fn read(&mut self, room: &mut [u8], at: u64) -> Result<usize, Failure> {
        match self.length {
            Some(length) => {
                let from = at.saturating_sub(self.start);
                let left = usize::try_from(length.saturating_sub(from)).unwrap_or(usize::MAX);
                let wanted = left.min(room.len());
                self.read_at(room.get_mut(..wanted).unwrap_or_default(), from)?;
                Ok(wanted)
            }
            None => self.read_stream(room),
        }
    }

    fn read_at(&self, bytes: &mut [u8], from: u64) -> Result<(), Failure> {
        self.file.read_exact_at(bytes, from).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                Failure::new(Exit::Failed, "file", format!("{} is shorter than it was", self.path.display()))
            }
            _ => Failure::file(self.path, "read", &error),
        })
    }

    fn read_stream(&mut self, room: &mut [u8]) -> Result<usize, Failure> {
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
}

/// Returns true if a regular file has a byte where its `length` says that the last one is, and none if that is 0. A
/// file of /proc has content and length 0, one of /sys a page and less content.
fn knows_length(file: &File, length: u64) -> io::Result<bool> {
    loop {
        match file.read_at(&mut [0], length.saturating_sub(1)) {
            Ok(bytes) => return Ok((bytes > 0) == (length > 0)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_are_one_sequence() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [("a", "abc"), ("b", ""), ("c", "defgh")].map(|(name, content)| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            path
        });
        let mut sources = Sources::open(&paths).unwrap();
        assert_eq!((sources.known(), sources.stream()), (8, None));
        for (at, length, expected) in [(0, 8, "abcdefgh"), (2, 3, "cde"), (3, 9, "defgh"), (8, 1, "")] {
            let mut room = vec![0; length];
            let filled = sources.next(&mut room, at).unwrap();
            assert_eq!(&room[..filled], expected.as_bytes(), "{at}");
        }
        let parts: Vec<_> = sources.parts(8).map(|(_, start, length)| (start, length)).collect();
        assert_eq!(parts, [(0, 3), (3, 0), (3, 5)]);
        assert_eq!(sources.place(4), format!("byte 1 of {}", paths[2].display()));
        assert!(!sources.has_more(8).unwrap());
    }

    /// Reads all of the one source, by pieces of 7 bytes.
    fn whole(path: &Path) -> (Option<u64>, Vec<u8>) {
        let paths = [path.to_owned()];
        let mut sources = Sources::open(&paths).unwrap();
        let known = sources.stream().is_none().then(|| sources.known());
        let mut bytes = Vec::new();
        loop {
            let mut room = [0; 7];
            let filled = sources.next(&mut room, bytes.len() as u64).unwrap();
            bytes.extend(&room[..filled]);
            if filled < room.len() {
                return (known, bytes);
            }
        }
    }

    #[test]
    fn a_file_that_does_not_know_its_length_is_a_stream() {
        // st_size is 0 in /proc, and a page in /sys.
        for path in ["/proc/version", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            let (known, bytes) = whole(Path::new(path));
            assert_eq!(known, None, "{path}");
            assert!(!bytes.is_empty(), "{path}");
            if path != "/proc/self/status" {
                assert_eq!(bytes, fs::read(path).unwrap(), "{path}");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        assert_eq!(whole(&path), (Some(0), Vec::new()));
        // One without blocks, all of which reads as zeros.
        File::create(&path).unwrap().set_len(1000).unwrap();
        assert_eq!(whole(&path), (Some(1000), vec![0; 1000]));
    }

    #[test]
    fn a_file_that_grows_is_written_as_it_was_and_one_that_shrinks_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("file")];
        fs::write(&paths[0], "abc").unwrap();
        let mut sources = Sources::open(&paths).unwrap();
        fs::write(&paths[0], "abcde").unwrap();
        let mut room = [0; 8];
        assert_eq!((sources.known(), sources.next(&mut room, 0).unwrap()), (3, 3));
        fs::write(&paths[0], "ab").unwrap();
        assert!(sources.next(&mut room, 0).is_err());
    }

    #[test]
    fn a_fifo_is_a_stream() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || fs::write(path, "0123456789").unwrap()
        });
        assert_eq!(whole(&path), (None, b"0123456789".to_vec()));
        writer.join().unwrap();
    }

    #[test]
    fn nothing_follows_a_stream() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "abc").unwrap();
        let (zero, null) = (PathBuf::from("/dev/zero"), PathBuf::from("/dev/null"));
        assert!(Sources::open(&[zero.clone(), file.clone()]).is_err_and(|failure| failure.kind == "usage"));
        let paths = [file.clone(), zero];
        let mut sources = Sources::open(&paths).unwrap();
        let mut room = [1; 6];
        assert_eq!(sources.next(&mut room, 1).unwrap(), 6);
        assert_eq!(&room, b"bc\0\0\0\0");
        assert!(sources.has_more(7).unwrap());
        let paths = [file, null];
        let mut sources = Sources::open(&paths).unwrap();
        assert_eq!(sources.next(&mut room, 0).unwrap(), 3);
        assert!(!sources.has_more(3).unwrap());
    }
}
