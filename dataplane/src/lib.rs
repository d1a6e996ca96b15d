//! The daemon `iwarpd`: DPDK ports, poll-mode workers, region memory, control socket.
//!
//! ```text
//! daemon ─ setup ─┬─ port ── dpdk            frames in and out
//!                 ├─ worker ─ port           one thread per core, which polls the engine of each port
//!                 ├─ events                  what operators ask about later: the log and the monitors
//!                 └─ control ─ admin         the Unix socket and its methods
//! ```
//! The protocols of a port and region memory are [`iwarp_engine`], which needs neither DPDK nor root.
//!
//! A program that runs its own poll loop in place of the daemon uses [`verbs`]: queue pairs on a port of its own, on
//! the same engine.
//!
//! # Example
//! A program connects with a peer and writes to memory that the peer has described in its private data. `examples` has
//! complete programs, both ends of each.
//!
//! ```no_run
//! use std::time::Duration;
//! use dataplane::verbs::*;
//!
//! const TIME_LIMIT: Duration = Duration::from_secs(10);
//!
//! let config = Config::load("port.toml".as_ref())?;
//! let eal = Node::start_dpdk(&[&config])?;
//! let mut node = Node::open(&eal, &config, &NodeOptions::new(&config), &Clock::start())?;
//! let _thread = node.enter()?;
//! let pd = node.device_mut().alloc_pd()?;
//! let mr = node.alloc_mr(pd, 4096, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
//! let cq = node.device_mut().create_cq(16)?;
//! let qp = node.device_mut().create_qp(QpInit::new(pd, cq))?;
//! let id = node.connect(qp, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
//! let CmEventKind::Established { private_data, .. } = node.wait_event(TIME_LIMIT)?.kind else {
//!     anyhow::bail!("the peer does not accept the connection");
//! };
//! let remote = RemoteMemory::from_bytes(&private_data).expect("address and key of the peer's memory");
//! mr.write(0, b"hello, memory")?;
//! node.device_mut().post_send(qp, &SendWr::new(1, remote.write(0), &[mr.sge(0, 13)]))?;
//! node.wait_completion(cq, TIME_LIMIT)?;
//! node.disconnect(id);
//! node.finish(TIME_LIMIT);
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod admin;
pub mod args;
pub mod capture;
mod checksum;
pub mod control;
pub mod daemon;
pub mod dpdk;
mod events;
pub mod log;
pub mod metrics;
pub mod port;
mod privileges;
mod service_manager;
mod setup;
mod signals;
pub mod verbs;
pub mod worker;
