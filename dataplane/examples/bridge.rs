//! Bridges a memif port and a TAP: forwards frames in both directions. It connects an `iwarpd` whose port is a memif
//! server to the kernel.
//!
//! ```text
//! bridge SOCKET INTERFACE
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arrayvec::ArrayVec;
use dataplane::dpdk::{BURST, Eal, EalConfig, EalMemory, Iova, Mempool, MempoolConfig, TxBatch};
use dataplane::port::{Port, PortQueues, PortSpec};
use iwarp_config::{Driver, Memif, MemifRole};
use iwarp_engine::memory::Pages;
use tcp_stack::{TxFrame, TxOffload};

/// Empty polls before the bridge sleeps.
const IDLE_ROUNDS: u32 = 200;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: bridge SOCKET INTERFACE";
    let socket = PathBuf::from(arguments.next().context(usage)?);
    let interface = arguments.next().context(usage)?;
    let eal = Eal::start(&EalConfig {
        control_cpus: vec![],
        file_prefix: "iwarp-bridge".into(),
        memory: EalMemory::Ordinary { mib: 64 },
        pci: vec![],
        iova: Iova::Virtual,
        telemetry: false,
    })?;
    let pool = || {
        let config = MempoolConfig { count: 8191, cache: 0, data_room: 2176 };
        Mempool::contiguous(&eal, config, Pages::Ordinary).map(Arc::new)
    };
    let memif = Driver::Memif(Memif { id: 0, role: MemifRole::Client, socket });
    let (_near, mut near) = Port::open(&eal, &PortSpec::new("memif", memif), &[pool()?])?;
    // The bridge forwards frames unchanged, so the kernel must pass single packets with their checksums.
    let tap = PortSpec {
        checksum_offload: false,
        segmentation: false,
        ..PortSpec::new("tap", Driver::Tap { interface })
    };
    let (_far, mut far) = Port::open(&eal, &tap, &[pool()?])?;
    let ([near], [far]) = (near.as_mut_slice(), far.as_mut_slice()) else { anyhow::bail!("one queue each") };
    println!("ready");
    forward(near, far)
}

/// Forwards until a signal ends the process.
fn forward(near: &mut PortQueues, far: &mut PortQueues) -> ! {
    let (mut to_near, mut to_far) = (TxBatch::new(), TxBatch::new());
    let mut idle = 0u32;
    loop {
        let frames = pass(near, &mut to_far, far) + pass(far, &mut to_near, near);
        idle = if frames == 0 { idle.saturating_add(1) } else { 0 };
        if idle > IDLE_ROUNDS {
            far.rx.wait(&mut [], Duration::from_micros(100));
        }
    }
}

/// Forwards one burst; frames that the other port does not accept wait in `batch`.
fn pass(from: &mut PortQueues, batch: &mut TxBatch, to: &mut PortQueues) -> usize {
    if batch.is_empty() {
        let mut burst = ArrayVec::<_, BURST>::new();
        from.rx.burst(&mut burst);
        for buf in burst {
            // `batch` has room: a burst is no longer than a batch.
            let _ = batch.push(TxFrame { buf, offload: TxOffload::default() });
        }
    }
    to.tx.burst(batch)
}
