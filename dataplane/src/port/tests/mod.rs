//! Every kind of port that can be had without hardware, opened and used.

mod kernel;
mod memif;
mod packet;
mod wires;
mod xdp;

use std::sync::Arc;

use arrayvec::ArrayVec;
use tcp_stack::{Buf, TxFrame, TxOffload};

use super::PortQueues;
use crate::dpdk::testutil::{eventually, frame};
use crate::dpdk::{BURST, Mbuf, Mempool, TxBatch};

/// Returns a valid Ethernet frame of `len` bytes that `tag` distinguishes.
fn frame_bytes(len: usize, tag: u8) -> Vec<u8> {
    let mut bytes = vec![tag; len];
    // To a multicast address, from a documentation address, an EtherType for experiments.
    bytes[..14].copy_from_slice(&[0x03, 0, 0, 0, 0, 1, 0x02, 0, 0x5e, 0, 0x53, 1, 0x88, 0xb5]);
    bytes
}

/// A batch of one frame that asks for nothing.
fn batch_of(mbuf: Mbuf) -> TxBatch {
    let mut batch = TxBatch::new();
    push(&mut batch, mbuf);
    batch
}

fn push(batch: &mut TxBatch, mbuf: Mbuf) {
    batch.push(TxFrame { buf: mbuf, offload: TxOffload::default() }).expect("there is room");
}

/// Sends one frame, trying for a while.
fn send(pair: &mut PortQueues, mbuf: Mbuf) {
    let mut batch = batch_of(mbuf);
    eventually("the port takes a frame", || (pair.tx.burst(&mut batch) == 1).then_some(()));
}

/// Sends one frame of these bytes.
fn send_bytes(pair: &mut PortQueues, pool: &Arc<Mempool>, bytes: &[u8]) {
    send(pair, frame(pool, bytes));
}

/// The next frame that `wanted` accepts; others are dropped.
fn receive(pair: &mut PortQueues, wanted: impl Fn(&[u8]) -> bool) -> Mbuf {
    eventually("a frame arrives", || {
        let mut burst = ArrayVec::<Mbuf, BURST>::new();
        pair.rx.burst(&mut burst);
        burst.into_iter().find(|mbuf| wanted(mbuf.bytes()))
    })
}

/// Waits for this very frame.
fn receive_bytes(pair: &mut PortQueues, bytes: &[u8]) {
    let got = receive(pair, |got| got.len() == bytes.len());
    assert_eq!(got.bytes(), bytes);
}
