//! The file that keeps the clients with state over a restart (RFC 8881 §8.4.3): a line of hexadecimal digits each.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file with the owners of clients.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
}

impl Record {
    /// Reads the file, if there is one.
    pub(super) fn open(path: &Path) -> io::Result<(Self, BTreeSet<Vec<u8>>)> {
        let record = Self { path: path.to_owned() };
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                record.store(&BTreeSet::new())?;
                String::new()
            }
            other => other?,
        };
        let owners = text.lines().map(|line| decode(line).ok_or(io::ErrorKind::InvalidData.into()));
        Ok((record, owners.collect::<io::Result<_>>()?))
    }

    /// Replaces the file. It is durable when this returns.
    pub(super) fn store(&self, owners: &BTreeSet<Vec<u8>>) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let mut file = File::create(&temporary)?;
        for owner in owners {
            let digits: String = owner.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(file, "{digits}")?;
        }
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

fn decode(line: &str) -> Option<Vec<u8>> {
    let digits = line.as_bytes();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}
