//! A client of NFS version 3 over RDMA that writes a region as a file, reads it back, and compares both with the
//! memory:
//!
//! ```text
//! region VERBS-SOCKET CONTROL-SOCKET RDMA-ADDRESS TCP-ADDRESS EXPORT NAME BYTES [CROWD]
//! ```
//! It is a program of the same daemon as the server. WRITE and READ move `BYTES` bytes, each in one chunk. Before, it
//! opens `CROWD` connections that stay silent.

mod client;

use anyhow::{Result, bail, ensure};

use client::{Client, DATA_AT, mount, result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verbs, control, rdma, tcp, export, name, bytes, crowd @ ..] = &arguments[..] else {
        bail!("VERBS-SOCKET CONTROL-SOCKET RDMA-ADDRESS TCP-ADDRESS EXPORT NAME BYTES [CROWD]");
    };
    let bytes: u32 = bytes.parse()?;
    let crowd: usize = crowd.first().map_or(Ok(0), |text| text.parse())?;
    let root = mount(tcp.parse()?, export)?;
    let silent = (0..crowd).map(|_| Client::connect(verbs, rdma.parse()?, 4096));
    let _silent = silent.collect::<Result<Vec<_>>>()?;
    let mut client = Client::connect(verbs, rdma.parse()?, bytes)?;
    let file = client.lookup(&root, name)?;

    let data: Vec<u8> = (0..bytes).map(|at| (at % 251).to_le_bytes()[0]).collect();
    client.mr.write(DATA_AT, &data)?;
    client.send_write(&file, bytes, 0)?;
    result(&client.reply()?)?;
    let region = iwarp_verbs::attach(control, name)?;
    let mut memory = vec![0; bytes as usize];
    region.read(0, &mut memory)?;
    ensure!(memory == data, "the region has other bytes than were written");

    // Changed without NFS, and read by NFS.
    memory.reverse();
    region.write(0, &memory)?;
    let returned = client.read(&file, bytes)?;
    ensure!(returned == memory, "READ returns other bytes than the region has");
    println!("{bytes} bytes written and read");
    Ok(())
}
