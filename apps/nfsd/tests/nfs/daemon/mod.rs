//! A daemon whose regions are bytes of the test.

use std::sync::{Arc, Mutex, MutexGuard};

use iwarp_nfsd::{Export, Regions, Selection, Server};
use iwarp_server::{Listed, Memory, RegionTable, Source};
use iwarp_verbs::{Access, OutOfBounds, Sge};
use nfs3_types::nfs3::nfs_fh3;
use tempfile::TempDir;

use crate::client::{Client, KEY, TRANSFER_MAX, rule};

/// Rights to read and to write.
pub const BOTH: Access =
    Access::from_bits(Access::REMOTE_READ.bits() | Access::REMOTE_WRITE.bits()).expect("rights of peers");

/// Memory of a region.
#[derive(Debug)]
pub struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    pub fn all(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }
}

impl Memory for Bytes {
    fn bytes(&self) -> u64 {
        self.all().len() as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let all = self.all();
        let (bytes, length, start) = (all.len() as u64, out.len(), usize::try_from(offset).unwrap());
        let part = all.get(start..start + length).ok_or(OutOfBounds { offset, length, bytes })?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let mut all = self.all();
        let (size, length, start) = (all.len() as u64, bytes.len(), usize::try_from(offset).unwrap());
        let part = all.get_mut(start..start + length).ok_or(OutOfBounds { offset, length, bytes: size })?;
        part.copy_from_slice(bytes);
        Ok(())
    }

    fn element(&self, _: u64, _: u32) -> Option<Sge> {
        None
    }
}

#[derive(Debug, Default)]
struct Inner {
    regions: Vec<(Listed, Arc<Bytes>)>,
    instances: u64,
    opens: usize,
    fails: bool,
}

/// The regions of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Daemon(Arc<Mutex<Inner>>);

impl Daemon {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Registers a region of zeros and returns its memory.
    pub fn register(&self, name: &str, bytes: usize, access: Access, is_public: bool) -> Arc<Bytes> {
        let mut inner = self.inner();
        // Not in the order of their registration, as random numbers are.
        inner.instances += 1;
        let instance = inner.instances.reverse_bits() >> 11;
        let listed = Listed { instance, name: name.to_owned(), bytes: bytes as u64, access, is_public };
        let memory = Arc::new(Bytes(Mutex::new(vec![0; bytes])));
        inner.regions.push((listed, Arc::clone(&memory)));
        memory
    }

    pub fn deregister(&self, name: &str) {
        self.inner().regions.retain(|(listed, _)| listed.name != name);
    }

    pub fn change(&self, name: &str, access: Access) {
        let mut inner = self.inner();
        inner.regions.iter_mut().find(|(listed, _)| listed.name == name).unwrap().0.access = access;
    }

    /// Makes it answer no more, or again.
    pub fn fail(&self, fails: bool) {
        self.inner().fails = fails;
    }

    /// Returns how often memory was opened.
    pub fn opens(&self) -> usize {
        self.inner().opens
    }
}

impl Source for Daemon {
    fn list(&mut self) -> Result<Vec<Listed>, String> {
        let inner = self.inner();
        if inner.fails {
            return Err("no answer".to_owned());
        }
        Ok(inner.regions.iter().map(|(listed, _)| listed.clone()).collect())
    }

    fn open(&mut self, name: &str) -> Result<Arc<dyn Memory>, String> {
        let mut inner = self.inner();
        inner.opens += 1;
        let found = inner.regions.iter().find(|(listed, _)| listed.name == name);
        let (_, memory) = found.filter(|_| !inner.fails).ok_or("no such region")?;
        let memory: Arc<dyn Memory> = Arc::<Bytes>::clone(memory);
        Ok(memory)
    }
}

/// Returns the table of a daemon's regions.
pub fn table(daemon: &Daemon) -> Arc<RegionTable> {
    Arc::new(RegionTable::new(Box::new(daemon.clone())).unwrap())
}

/// Returns a server of regions at `/data`.
pub fn server(table: &Arc<RegionTable>, selection: Selection, write: bool, verifier: u64) -> Server {
    let backend = Box::new(Regions::new("/data", Arc::clone(table), selection));
    let rules = vec![rule("0.0.0.0/0", write, iwarp_nfsd::Squash::Root)];
    let export = Export { path: "/data".to_owned(), backend, rules, insecure: false };
    Server::new(vec![export], KEY, verifier, TRANSFER_MAX).unwrap()
}

/// Returns a client that has mounted regions.
pub fn client(table: &Arc<RegionTable>, selection: Selection, write: bool) -> Client {
    let server = server(table, selection, write, 1);
    let address = "10.0.0.1".parse().unwrap();
    let (user, root) = ((1000, vec![1000]), nfs_fh3::default());
    let mut client = Client { server, folder: TempDir::new().unwrap(), address, user, root };
    client.root = client.mount("/data").expect("the export is mounted");
    client
}
