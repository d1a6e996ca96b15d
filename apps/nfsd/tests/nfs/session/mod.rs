//! A client of NFS version 4.1 with a session, and the operations of its calls.

use iwarp_nfsd::{Nfs4Op, Nfs4Proc};
use iwarp_rpc::xdr::{Reader, Writer};

use crate::client::{Client, call_bytes};

pub const OK: u32 = 0;

/// An operation: its number, and its arguments as the closure writes them.
pub fn op(number: impl Into<u32>, arguments: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(number.into());
    arguments(&mut out);
    out.into_bytes()
}

pub fn plain(number: impl Into<u32>) -> Vec<u8> {
    op(number, |_| {})
}

pub fn named(number: impl Into<u32>, name: &str) -> Vec<u8> {
    op(number, |out| out.opaque(name.as_bytes()))
}

pub fn put_handle(handle: &[u8]) -> Vec<u8> {
    op(Nfs4Op::PUTFH, |out| out.opaque(handle))
}

/// GETATTR of type and size.
pub fn type_and_size() -> Vec<u8> {
    op(Nfs4Op::GETATTR, |out| [1, 1 << 1 | 1 << 4].into_iter().for_each(|word| out.u32(word)))
}

/// A stateid: its sequence, and the rest.
pub type Id = (u32, [u8; 12]);

pub fn stateid(out: &mut Writer, (seqid, other): Id) {
    out.u32(seqid);
    out.fixed(&other);
}

/// OPEN of a name for reading and writing; `how`: 0 none, 1 unchecked, 2 guarded.
pub fn open(owner: &str, name: &str, how: u32, deny: u32) -> Vec<u8> {
    op(Nfs4Op::OPEN, |out| {
        [0, 3, deny].into_iter().for_each(|word| out.u32(word));
        out.u64(0);
        out.opaque(owner.as_bytes());
        out.u32(how.min(1));
        if how > 0 {
            // Mode 0640.
            [how - 1, 2, 0, 1 << 1, 4, 0o640].into_iter().for_each(|word| out.u32(word));
        }
        out.u32(0);
        out.opaque(name.as_bytes());
    })
}

pub fn create_session(id: u64, sequence: u32, flags: u32) -> Vec<u8> {
    op(Nfs4Op::CREATE_SESSION, |out| {
        out.u64(id);
        [sequence, flags].into_iter().for_each(|word| out.u32(word));
        for _ in 0..2 {
            [0, 1 << 20, 1 << 20, 4096, 16, 4, 0].into_iter().for_each(|word| out.u32(word));
        }
        [0x4000_0000, 1, 0].into_iter().for_each(|word| out.u32(word));
    })
}

pub fn exchange_id(owner: &str) -> Vec<u8> {
    op(Nfs4Op::EXCHANGE_ID, |out| {
        out.u64(1);
        out.opaque(owner.as_bytes());
        [0, 0, 0].into_iter().for_each(|word| out.u32(word));
    })
}

/// Sends a COMPOUND. Returns its status, the number of results, and the results.
pub fn compound(client: &Client, minor: u32, operations: &[Vec<u8>]) -> (u32, u32, Vec<u8>) {
    let mut message = call_bytes(100_003, 4, Nfs4Proc::COMPOUND, &client.user);
    let mut out = Writer::new();
    out.opaque(b"tag");
    out.u32(minor);
    out.u32(u32::try_from(operations.len()).unwrap());
    message.extend(out.into_bytes());
    message.extend(operations.concat());
    let reply = client.exchange(&message);
    let mut reader = Reader::new(&reply[24..]);
    let status = reader.u32().unwrap();
    assert_eq!(reader.opaque(10).unwrap(), b"tag");
    (status, reader.u32().unwrap(), reader.rest().to_vec())
}

/// A client with a session.
pub struct Session {
    pub client: Client,
    pub id: [u8; 16],
    pub sequence: u32,
}

impl Session {
    pub fn new(client: Client, owner: &str) -> Self {
        let (status, _, results) = compound(&client, 1, &[exchange_id(owner)]);
        assert_eq!(status, OK);
        let mut reader = Reader::new(&results);
        assert_eq!((reader.u32().unwrap(), reader.u32().unwrap()), (Nfs4Op::EXCHANGE_ID.into(), OK));
        let id = reader.u64().unwrap();
        let (status, _, results) = compound(&client, 1, &[create_session(id, 1, 0)]);
        assert_eq!(status, OK);
        let id = Reader::new(&results[8..]).array().unwrap();
        Self { client, id, sequence: 0 }
    }

    /// A client that may open files.
    pub fn ready(client: Client) -> Self {
        let mut session = Self::new(client, "client");
        assert_eq!(session.run(&[op(Nfs4Op::RECLAIM_COMPLETE, |out| out.bool(false))]).0, OK);
        session
    }

    pub fn sequence_op(&self, cache: bool) -> Vec<u8> {
        op(Nfs4Op::SEQUENCE, |out| {
            out.fixed(&self.id);
            [self.sequence, 0, 0].into_iter().for_each(|word| out.u32(word));
            out.bool(cache);
        })
    }

    /// Repeats the latest call, or executes one with its sequence.
    pub fn again(&self, operations: &[Vec<u8>]) -> (u32, u32, Vec<u8>) {
        compound(&self.client, 1, &[&[self.sequence_op(true)], operations].concat())
    }

    /// Executes operations. Returns the status, and the results behind SEQUENCE.
    pub fn run(&mut self, operations: &[Vec<u8>]) -> (u32, Vec<u8>) {
        self.sequence += 1;
        let (status, _, results) =
            compound(&self.client, 1, &[&[self.sequence_op(false)], operations].concat());
        (status, results.get(44..).unwrap_or_default().to_vec())
    }

    /// Executes operations on the export; its topmost directory is the current one.
    pub fn on_root(&mut self, operations: &[Vec<u8>]) -> (u32, Vec<u8>) {
        let (status, results) =
            self.run(&[&[plain(Nfs4Op::PUTROOTFH), named(Nfs4Op::LOOKUP, "data")], operations].concat());
        (status, results.get(16..).unwrap_or_default().to_vec())
    }

    /// Opens a file. Returns its stateid and its handle.
    pub fn open(&mut self, name: &str, how: u32) -> Result<(Id, Vec<u8>), u32> {
        let (status, results) = self.on_root(&[open("owner", name, how, 0), plain(Nfs4Op::GETFH)]);
        if status != OK {
            return Err(status);
        }
        let mut reader = Reader::new(&results);
        assert_eq!((reader.u32(), reader.u32()), (Ok(Nfs4Op::OPEN.into()), Ok(OK)));
        let id = (reader.u32().unwrap(), reader.array().unwrap());
        reader.fixed(20 + 4).unwrap();
        let words = reader.u32().unwrap();
        reader.fixed(words as usize * 4).unwrap();
        assert_eq!(reader.u32(), Ok(0), "no delegation");
        assert_eq!((reader.u32(), reader.u32()), (Ok(Nfs4Op::GETFH.into()), Ok(OK)));
        Ok((id, reader.opaque(128).unwrap().to_vec()))
    }
}
