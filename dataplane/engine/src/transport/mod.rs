//! Parts that connect the TCP stack with what runs on it: the table of connections, the send queue as a sink of FPDUs,
//! runs of received segments, deadlines. [`Engine`](crate::Engine) puts them together; the services use the
//! sink.

mod conn_table;
mod data_run;
mod deadlines;
pub mod kernel;
mod local_ports;
mod rdma_state;
mod sink;
mod stream_ids;
mod tcp;

#[cfg(test)]
pub(crate) use conn_table::Conn;
pub(crate) use conn_table::ConnTable;
pub(crate) use data_run::{DataRun, taken_run};
pub(crate) use deadlines::{Deadlines, LINGER, instant, since_start};
pub use local_ports::{LocalPorts, Reservations};
pub(crate) use rdma_state::RdmaState;
pub(crate) use sink::{StreamSink, TxOutcome};
pub(crate) use stream_ids::StreamIds;
pub use tcp::Transport;
