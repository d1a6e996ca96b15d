//! A client of another implementation: its arguments and results are encoded and decoded by `nfs3_types`.

use std::net::IpAddr;
use std::path::Path;

use iwarp_nfsd::{Directory, Export, MountProc, Reply, Rule, Server, Squash};
use iwarp_rpc::xdr::{Reader, Writer};
use iwarp_server::Peer;
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{auth_unix, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use tempfile::TempDir;

/// Key that the handles of a test are sealed with.
pub const KEY: [u8; 16] = *b"sixteen bytes...";
/// Most bytes of a transfer.
pub const TRANSFER_MAX: u32 = 64 << 10;

/// A rule for clients in a prefix.
pub fn rule(clients: &str, write: bool, squash: Squash) -> Rule {
    Rule { clients: clients.parse().unwrap(), write, squash, anonymous: (65534, 65534) }
}

pub struct Client {
    pub server: Server,
    pub folder: TempDir,
    pub address: IpAddr,
    /// User, and its groups.
    pub user: (u32, Vec<u32>),
    pub root: nfs_fh3,
}

/// Opens the server of a folder.
pub fn server(folder: &Path, key: [u8; 16], verifier: u64, rules: Vec<Rule>) -> Server {
    let backend = Box::new(Directory::open(folder).unwrap());
    let export = Export { path: "/data".to_owned(), backend, rules, insecure: false };
    Server::new(vec![export], key, verifier, TRANSFER_MAX).unwrap()
}

pub fn call_bytes(program: u32, version: u32, procedure: impl Into<u32>, user: &(u32, Vec<u32>)) -> Vec<u8> {
    let groups = user.1.clone();
    let name = Opaque::borrowed(b"client");
    let cred = auth_unix { stamp: 1, machinename: name, uid: user.0, gid: groups[0], gids: groups };
    let body = call_body {
        rpcvers: 2,
        prog: program,
        vers: version,
        proc: procedure.into(),
        cred: opaque_auth::auth_unix(&cred),
        verf: opaque_auth::default(),
    };
    let mut bytes = Vec::new();
    rpc_msg { xid: 77, body: msg_body::CALL(body) }.pack(&mut bytes).unwrap();
    bytes
}

impl Client {
    /// A server over an empty folder, and the user 0 that is not squashed.
    pub fn new() -> Self {
        Self::with(vec![rule("0.0.0.0/0", true, Squash::None)])
    }

    /// A server over an empty folder of tmpfs, whose files can have every size.
    pub fn in_memory() -> Self {
        Self::over(TempDir::new_in("/dev/shm").unwrap(), vec![rule("0.0.0.0/0", true, Squash::None)])
    }

    pub fn with(rules: Vec<Rule>) -> Self {
        Self::over(TempDir::new().unwrap(), rules)
    }

    pub fn over(folder: TempDir, rules: Vec<Rule>) -> Self {
        let server = server(folder.path(), KEY, 1, rules);
        let address = "10.0.0.1".parse().unwrap();
        let mut client = Self { server, folder, address, user: (0, vec![0]), root: nfs_fh3::default() };
        client.root = client.mount("/data").expect("the export is mounted");
        client
    }

    /// Sends a call and returns the whole reply.
    pub fn exchange(&self, message: &[u8]) -> Vec<u8> {
        let reply = self
            .server
            .call(Peer::rdma(self.address), Reader::new(message), &|_| panic!("no chunk"))
            .unwrap();
        whole(&reply)
    }

    /// Sends a call that must be executed, and returns its result.
    pub fn raw(&self, program: u32, procedure: impl Into<u32>, arguments: &[u8]) -> Vec<u8> {
        let mut message = call_bytes(program, 3, procedure, &self.user);
        message.extend_from_slice(arguments);
        let reply = self.exchange(&message);
        let words: Vec<u32> =
            reply[..24].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [77, 1, 0, 0, 0, 0], "the call is executed");
        reply[24..].to_vec()
    }

    /// Calls a procedure of NFS.
    pub fn call<R: Unpack>(&self, procedure: NFS_PROGRAM, arguments: &impl Pack) -> R {
        let mut bytes = Vec::new();
        arguments.pack(&mut bytes).unwrap();
        let result = self.raw(PROGRAM, procedure as u32, &bytes);
        let (decoded, length) = R::unpack(&mut &result[..]).unwrap();
        assert_eq!(length, result.len(), "{procedure}: bytes behind the result");
        decoded
    }

    /// Calls MNT and returns the handle, or the status.
    pub fn mount(&self, path: &str) -> Result<nfs_fh3, u32> {
        let mut writer = Writer::new();
        writer.opaque(path.as_bytes());
        let result = self.raw(100_005, MountProc::MNT, &writer.into_bytes());
        let mut reader = Reader::new(&result);
        match reader.u32().unwrap() {
            0 => Ok(nfs_fh3 { data: Opaque::owned(reader.opaque(64).unwrap().to_vec()) }),
            status => Err(status),
        }
    }

    pub fn at<'a>(&self, dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
        diropargs3 { dir: dir.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) }
    }

    pub fn lookup(&self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let found: LOOKUP3res =
            self.call(NFS_PROGRAM::NFSPROC3_LOOKUP, &LOOKUP3args { what: self.at(dir, name) });
        status(found).map(|found| found.object)
    }

    pub fn attributes(&self, object: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        let arguments = GETATTR3args { object: object.clone() };
        let found: GETATTR3res = self.call(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments);
        status(found).map(|found| found.obj_attributes)
    }

    pub fn create(&self, dir: &nfs_fh3, name: &str, how: createhow3) -> Result<nfs_fh3, nfsstat3> {
        let arguments = CREATE3args { where_: self.at(dir, name), how };
        let made: CREATE3res = self.call(NFS_PROGRAM::NFSPROC3_CREATE, &arguments);
        status(made).map(|made| made.obj.unwrap())
    }

    pub fn mkdir(&self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let arguments = MKDIR3args { where_: self.at(dir, name), attributes: mode(0o755) };
        let made: MKDIR3res = self.call(NFS_PROGRAM::NFSPROC3_MKDIR, &arguments);
        status(made).map(|made| made.obj.unwrap())
    }

    pub fn remove(&self, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let arguments = REMOVE3args { object: self.at(dir, name) };
        let done: REMOVE3res = self.call(NFS_PROGRAM::NFSPROC3_REMOVE, &arguments);
        status(done).map(|_| ())
    }

    pub fn set(&self, object: &nfs_fh3, new_attributes: sattr3, guard: sattrguard3) -> Result<(), nfsstat3> {
        let arguments = SETATTR3args { object: object.clone(), new_attributes, guard };
        let done: SETATTR3res = self.call(NFS_PROGRAM::NFSPROC3_SETATTR, &arguments);
        status(done).map(|_| ())
    }

    pub fn write(
        &self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Result<WRITE3resok, nfsstat3> {
        let count = u32::try_from(data.len()).unwrap();
        let arguments =
            WRITE3args { file: file.clone(), offset, count, stable, data: Opaque::borrowed(data) };
        status(self.call::<WRITE3res>(NFS_PROGRAM::NFSPROC3_WRITE, &arguments))
    }

    /// Reads; returns the data and whether that is the end of the file.
    pub fn read(&self, file: &nfs_fh3, offset: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3> {
        let arguments = READ3args { file: file.clone(), offset, count };
        let read: READ3res<'static> = self.call(NFS_PROGRAM::NFSPROC3_READ, &arguments);
        status(read).map(|read| {
            assert_eq!(read.count as usize, read.data.len());
            (read.data.to_vec(), read.eof)
        })
    }
}

pub fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

pub fn status<T, E>(result: Nfs3Result<T, E>) -> Result<T, nfsstat3> {
    match result {
        Nfs3Result::Ok(result) => Ok(result),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// Puts the payloads and their padding where they belong.
pub fn whole(reply: &Reply) -> Vec<u8> {
    let whole = reply.bytes().collect::<Vec<_>>().concat();
    assert_eq!(whole.len(), reply.length());
    whole
}
