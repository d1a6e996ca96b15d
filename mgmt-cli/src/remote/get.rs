//! A peer's region into a file, by RDMA Reads.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rdma::Access;

use super::link::Link;
use super::{Transfer, WINDOW, progress, readback};
use crate::args::{Get, Global};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::output::Output;

pub(super) fn run(get: &Get, global: &Global, output: &Output) -> Result<Transfer, Failure> {
    let Get { target, file: path, length, link: options } = get;
    let mut destination = Destination::open(path)?;
    let mut link = Link::open(target, options, Access::REMOTE_READ, WINDOW, global.timeout)?;
    let reach = match length {
        Some(length) => link.reach(target.offset, *length)?,
        None => link.reach_to_end(target.offset)?,
    };
    let bar = progress::of_bytes(output, "get", reach.length);
    let clock = Clock::start();
    readback::each(&mut link, &reach, &mut |_, octets| {
        bar.inc(octets.len() as u64);
        destination.file.write_all(octets).map_err(|error| Failure::file(path, "write", &error))
    })?;
    bar.finish_and_clear();
    let transfer = Transfer::new("get", link.peer(target), target, reach.length, clock.now());
    link.close();
    destination.finish()?;
    Ok(transfer)
}

/// A file that appears under its name when it is whole, and not at all if it is not finished.
///
/// What is not a regular file (a device, a pipe) is written as it is.
struct Destination {
    file: File,
    path: PathBuf,
    /// Where the octets are until then.
    temporary: Option<PathBuf>,
}

impl Destination {
    fn open(path: &Path) -> Result<Self, Failure> {
        let unwritable = |error| Failure::file(path, "write", &error);
        // Through a symbolic link, so that its target is replaced and not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            let file = OpenOptions::new().write(true).open(&path).map_err(unwritable)?;
            return Ok(Self { file, path, temporary: None });
        }
        let name =
            path.file_name().ok_or_else(|| unwritable(std::io::Error::other("it has no file name")))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(unwritable)?;
        Ok(Self { file, path, temporary: Some(temporary) })
    }

    fn finish(mut self) -> Result<(), Failure> {
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path).map_err(|error| Failure::file(&self.path, "write", &error))?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The failure that led here is worth more than this one.
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        let mut destination = Destination::open(&path).unwrap();
        destination.file.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(destination);
        assert_eq!(names(dir.path()), [""; 0]);
        let mut destination = Destination::open(&path).unwrap();
        destination.file.write_all(b"whole").unwrap();
        destination.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
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
}
