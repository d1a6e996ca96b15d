//! RPC over TCP: one record of one fragment per message (RFC 5531 §11).

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use iwarp_nfsd::{MountProc, Nfs3Proc};
use iwarp_rpc::xdr::Reader;

use crate::Transport;
use crate::rpc::{self, MOUNT, NFS, READ_HEAD, Target};

/// Flag of the last fragment of a record.
const LAST: u32 = 1 << 31;

pub(crate) struct Rpc {
    stream: TcpStream,
    xid: u32,
}

impl Rpc {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, xid: 0 })
    }

    fn next_xid(&mut self) -> u32 {
        self.xid = self.xid.wrapping_add(1);
        self.xid
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mark = u32::try_from(message.len())? | LAST;
        Ok(self.stream.write_all(&[&mark.to_be_bytes(), message].concat())?)
    }

    fn begin_reply(&mut self) -> Result<u32> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        ensure!(mark & LAST != 0, "a reply in several fragments");
        Ok(mark & !LAST)
    }

    /// Sends a call, and returns its results.
    fn exchange(&mut self, program: u32, procedure: impl Into<u32>, opaques: &[&[u8]]) -> Result<Vec<u8>> {
        let (xid, procedure) = (self.next_xid(), procedure.into());
        let mut writer = rpc::call(xid, program, procedure);
        opaques.iter().for_each(|bytes| writer.opaque(bytes));
        self.send(writer.bytes())?;
        let mut reply = vec![0; self.begin_reply()? as usize];
        self.stream.read_exact(&mut reply)?;
        let mut reader = Reader::new(&reply);
        rpc::executed(&mut reader, xid)?;
        match reader.u32()? {
            0 => Ok(reader.rest().to_vec()),
            status => bail!("program {program}, procedure {procedure}: status {status}"),
        }
    }

    /// Mounts an export, and finds a file in it.
    pub(crate) fn find(&mut self, path: &str, file: &str) -> Result<Target> {
        let handle = |results: &[u8]| Ok::<_, anyhow::Error>(Reader::new(results).opaque(64)?.to_vec());
        let root = handle(&self.exchange(MOUNT, MountProc::MNT, &[path.as_bytes()])?)?;
        let handle = handle(&self.exchange(NFS, Nfs3Proc::LOOKUP, &[&root, file.as_bytes()])?)?;
        let bytes = rpc::size(&mut Reader::new(&self.exchange(NFS, Nfs3Proc::GETATTR, &[&handle])?))?;
        Ok(Target { handle, bytes })
    }
}

/// READs of one file, whose replies come in the order of the calls.
pub(crate) struct Reads {
    rpc: Rpc,
    target: Target,
    size: u32,
    in_flight: VecDeque<(u32, u32)>,
    buffers: Vec<Vec<u8>>,
}

impl Reads {
    pub(crate) fn new(rpc: Rpc, target: Target, size: u32, depth: u32) -> Self {
        let buffers = (0..depth).map(|_| vec![0; size as usize]).collect();
        Self { rpc, target, size, in_flight: VecDeque::new(), buffers }
    }
}

impl Transport for Reads {
    fn send(&mut self, slot: u32, offset: u64) -> Result<()> {
        let xid = self.rpc.next_xid();
        self.in_flight.push_back((slot, xid));
        self.rpc.send(&rpc::read(xid, &self.target, offset, self.size))
    }

    fn reply(&mut self) -> Result<(u32, u32)> {
        let (slot, xid) = self.in_flight.pop_front().context("no READ is in flight")?;
        let record = self.rpc.begin_reply()?;
        let mut head = [0; READ_HEAD as usize];
        self.rpc.stream.read_exact(&mut head)?;
        let length = rpc::read_results(&head, xid)?;
        let padded = length.next_multiple_of(4);
        ensure!(
            record == READ_HEAD.saturating_add(padded),
            "a reply of {record} bytes with {length} of data"
        );
        let buffer = self.buffers.get_mut(slot as usize).context("no such slot")?;
        self.rpc.stream.read_exact(buffer.get_mut(..padded as usize).context("more data than wanted")?)?;
        Ok((slot, length))
    }

    fn data(&self, slot: u32, length: u32) -> Result<Vec<u8>> {
        let buffer = self.buffers.get(slot as usize).context("no such slot")?;
        Ok(buffer.get(..length as usize).context("no such data")?.to_vec())
    }
}
