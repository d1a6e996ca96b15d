//! The file that `get` writes to.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use iwarp_terminal::Failure;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};

/// A file that appears under its name when it is complete, and never if it stays incomplete.
///
/// A destination that is not a regular file (stdout, a device, a pipe) is written directly.
#[derive(Debug)]
pub(super) struct Destination {
    file: File,
    path: PathBuf,
    until: Until,
}

/// The place of the bytes until the file is complete.
#[derive(Debug)]
enum Until {
    /// The final place: the file itself, or a device.
    Placed,
    /// A file without a name (`O_TMPFILE`): nothing of it remains, however this program ends.
    Nameless,
    /// A file of another name, on a file system without `O_TMPFILE`.
    Named(PathBuf),
}

/// Returns true if the bytes go to stdout, where no report may be written then.
pub(super) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-") || path == Path::new("/dev/stdout")
}

impl Destination {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let unwritable = |error| Failure::file(path, "write", &error);
        if is_stdout(path) {
            let file = io::stdout().as_fd().try_clone_to_owned().map_err(unwritable)?.into();
            return Ok(Self { file, path: path.to_path_buf(), until: Until::Placed });
        }
        // Follows a symbolic link: its target is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let there = fs::metadata(&path).ok();
        if there.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            let file = OpenOptions::new().write(true).open(&path).map_err(unwritable)?;
            return Ok(Self { file, path, until: Until::Placed });
        }
        let temporary = hidden(&path).ok_or_else(|| unwritable(io::Error::other("it has no file name")))?;
        let destination = match nameless(&path) {
            Some(file) => Self { file, path, until: Until::Nameless },
            None => {
                let file =
                    OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(unwritable)?;
                Self { file, path, until: Until::Named(temporary) }
            }
        };
        // The new file has the mode of the file that it replaces, which may be secret.
        if let Some(metadata) = there {
            destination.file.set_permissions(metadata.permissions()).map_err(unwritable)?;
        }
        Ok(destination)
    }

    /// Appends bytes to the file.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe if is_stdout(&self.path) => Failure::pipe_closed(),
            _ => Failure::file(&self.path, "write", &error),
        })
    }

    /// Gives the file its name; all bytes are written.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let path = self.path.clone();
        self.appear().map_err(|error| Failure::file(&path, "write", &error))
    }

    fn appear(&mut self) -> io::Result<()> {
        if let Until::Nameless = self.until {
            // linkat does not replace an existing file, rename does.
            let temporary = hidden(&self.path).ok_or(ErrorKind::InvalidInput)?;
            linkat(CWD, in_proc(&self.file), CWD, &temporary, AtFlags::SYMLINK_FOLLOW)?;
            self.until = Until::Named(temporary);
        }
        if let Until::Named(temporary) = &self.until {
            fs::rename(temporary, &self.path)?;
        }
        self.until = Until::Placed;
        Ok(())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Until::Named(temporary) = &self.until {
            // The failure that led here is the one to report.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Opens a file without a name in the folder of `path`; `None` where the file system or /proc forbids it.
fn nameless(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = Mode::from_raw_mode(0o666);
    let file =
        File::from(rustix::fs::open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode).ok()?);
    fs::exists(in_proc(&file)).is_ok_and(|exists| exists).then_some(file)
}

/// Returns the path of the file in /proc, through which linkat names it (open(2), O_TMPFILE).
fn in_proc(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Returns a hidden name beside `path`; `None` if `path` has no file name.
fn hidden(path: &Path) -> Option<PathBuf> {
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name()?);
    hidden.push(format!(".{}.part", std::process::id()));
    Some(path.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Creates the destination of a file system without `O_TMPFILE`.
    fn named(path: &Path) -> Destination {
        let temporary = hidden(path).unwrap();
        let file = File::create_new(&temporary).unwrap();
        Destination { file, path: path.to_path_buf(), until: Until::Named(temporary) }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        for open in [|path: &Path| Destination::open(path).unwrap(), named] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("copy");
            let mut destination = open(&path);
            destination.write(b"half").unwrap();
            assert!(!path.exists());
            drop(destination);
            assert_eq!(names(dir.path()), [""; 0]);
            for content in [&b"whole"[..], b"new"] {
                let mut destination = open(&path);
                destination.write(content).unwrap();
                destination.finish().unwrap();
                assert_eq!(fs::read(&path).unwrap(), content);
                assert_eq!(names(dir.path()), ["copy"]);
            }
        }
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Destination::open(&path).unwrap().finish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_appear_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        let destination = Destination::open(&path).unwrap();
        // Another program creates a folder of that name meanwhile.
        fs::create_dir_all(path.join("full")).unwrap();
        assert!(destination.finish().is_err());
        assert_eq!(names(dir.path()), ["copy"]);
    }

    #[test]
    fn a_link_stays_a_link_and_a_device_a_device() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, b"old").unwrap();
        symlink(&real, &link).unwrap();
        Destination::open(&link).unwrap().finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"");
        Destination::open(Path::new("/dev/null")).unwrap().finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(Destination::open(dir.path()).is_err());
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut destination = Destination::open(Path::new("/dev/full")).unwrap();
        let failure = destination.write(b"bytes").unwrap_err();
        assert_eq!((failure.kind, failure.exit), ("file", iwarp_control::Exit::Failed));
    }
}
