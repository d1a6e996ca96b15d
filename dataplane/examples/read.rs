//! RDMA Read: a program reads the memory of another, which does nothing meanwhile.
//!
//! The program runs both ends, each with a port on a thread of its own; a ring in memory connects the ports. A program
//! on a NIC opens its port with `Node::open`. Run the example with `cargo run -p dataplane --example read`.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dataplane::verbs::*;

const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Registers memory, accepts a connection, tells the peer where the memory is, and waits for the end.
fn target(mut node: Node) -> Result<()> {
    let _thread = node.enter()?;
    let pd = node.device_mut().alloc_pd()?;
    let mr = node.alloc_mr(pd, 4096, Access::LOCAL_READ | Access::REMOTE_READ)?;
    mr.write(100, b"hello, reader")?;
    let cq = node.device_mut().create_cq(16)?;
    let qp = node.device_mut().create_qp(QpInit::new(pd, cq))?;
    node.listen("10.0.0.2:7471".parse()?, 1)?;
    let request = node.wait_event(TIME_LIMIT)?;
    node.device_mut().accept(request.id, qp, &mr.remote().to_bytes())?;
    while node.wait_event(TIME_LIMIT)?.kind != CmEventKind::Disconnected {}
    node.finish(TIME_LIMIT);
    Ok(())
}

/// Connects to the peer and reads.
fn initiator(mut node: Node) -> Result<String> {
    let _thread = node.enter()?;
    let pd = node.device_mut().alloc_pd()?;
    let mr = node.alloc_mr(pd, 4096, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
    let cq = node.device_mut().create_cq(16)?;
    let qp = node.device_mut().create_qp(QpInit::new(pd, cq))?;
    let id = node.connect(qp, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
    let CmEventKind::Established { private_data, .. } = node.wait_event(TIME_LIMIT)?.kind else {
        bail!("the target has not accepted the connection");
    };
    let remote = RemoteMemory::from_bytes(&private_data).context("the target has sent no address and key")?;
    node.device_mut().post_send(qp, &SendWr::new(1, remote.read(100), &[mr.sge(0, 13)]))?;
    node.wait_completion(cq, TIME_LIMIT)?;
    let mut text = vec![0; 13];
    mr.read(0, &mut text)?;
    node.disconnect(id);
    node.finish(TIME_LIMIT);
    Ok(String::from_utf8(text)?)
}

fn main() -> Result<()> {
    let [left, right] = Node::open_ring(["10.0.0.1/24", "10.0.0.2/24"])?;
    let target = std::thread::spawn(|| target(right));
    let text = initiator(left)?;
    target.join().map_err(|_| anyhow!("the target has panicked"))??;
    println!("read from the target's memory: {text}");
    ensure!(text == "hello, reader");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_example_runs() {
        super::main().unwrap();
    }
}
