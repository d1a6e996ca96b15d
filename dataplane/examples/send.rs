//! Send and receive: two programs exchange messages through buffers that the receiver has posted.
//!
//! The program runs both ends, each with a port on a thread of its own; a ring in memory connects the ports. A program
//! on a NIC opens its port with `Node::open`. Run the example with `cargo run -p dataplane --example send`.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use dataplane::verbs::*;

const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Creates a queue pair and posts a buffer. Returns the completion queue of received messages, and memory: messages are
/// sent from its first 64 bytes, and received into the next.
fn create_qp(node: &mut Node) -> Result<(QpNum, CqId, Mr)> {
    let pd = node.device_mut().alloc_pd()?;
    let mr = node.alloc_mr(pd, 128, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
    let (cq, recv_cq) = (node.device_mut().create_cq(16)?, node.device_mut().create_cq(16)?);
    let qp = node.device_mut().create_qp(QpInit { recv_cq, ..QpInit::new(pd, cq) })?;
    node.device_mut().post_recv(qp, &RecvWr { wr_id: 1, sg_list: &[mr.sge(64, 64)] })?;
    Ok((qp, recv_cq, mr))
}

/// Answers one message with the same bytes in upper case.
fn server(mut node: Node) -> Result<()> {
    let _thread = node.enter()?;
    let (qp, cq, mr) = create_qp(&mut node)?;
    node.listen("10.0.0.2:7471".parse()?, 1)?;
    let request = node.wait_event(TIME_LIMIT)?;
    node.device_mut().accept(request.id, qp, b"")?;
    let received = node.wait_completion(cq, TIME_LIMIT)?;
    let mut text = vec![0; received.byte_len as usize];
    mr.read(64, &mut text)?;
    mr.write(0, &text.to_ascii_uppercase())?;
    node.device_mut().post_send(qp, &SendWr::new(2, SendOp::SEND, &[mr.sge(0, received.byte_len)]))?;
    while node.wait_event(TIME_LIMIT)?.kind != CmEventKind::Disconnected {}
    node.finish(TIME_LIMIT);
    Ok(())
}

/// Connects, sends a message and returns the answer.
fn client(mut node: Node) -> Result<String> {
    let _thread = node.enter()?;
    let (qp, cq, mr) = create_qp(&mut node)?;
    let id = node.connect(qp, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
    node.wait_event(TIME_LIMIT)?;
    mr.write(0, b"hello, server")?;
    node.device_mut().post_send(qp, &SendWr::new(2, SendOp::SEND, &[mr.sge(0, 13)]))?;
    let received = node.wait_completion(cq, TIME_LIMIT)?;
    let mut text = vec![0; received.byte_len as usize];
    mr.read(64, &mut text)?;
    node.disconnect(id);
    node.finish(TIME_LIMIT);
    Ok(String::from_utf8(text)?)
}

fn main() -> Result<()> {
    let [left, right] = Node::open_ring(["10.0.0.1/24", "10.0.0.2/24"])?;
    let server = std::thread::spawn(|| server(right));
    let text = client(left)?;
    server.join().map_err(|_| anyhow!("the server has panicked"))??;
    println!("the server answers: {text}");
    ensure!(text == "HELLO, SERVER");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_example_runs() {
        super::main().unwrap();
    }
}
