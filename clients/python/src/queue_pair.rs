//! Queue pairs, and the work that a program posts to them.

use std::sync::{Arc, Mutex};

use iwarp_verbs::{
    Access, AtomicOp, CompletionQueue, Data, ProtectionDomain, QpCap, QpOptions, QpState, QpType,
    QueuePair as VerbsQp, RecvWr, SendFlags, SendOp, SendWr, Sge as VerbsSge, Stag,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::connections::Connected;
use crate::device::{Device, Object as _, Rank, Slot, detach, lock};
use crate::enums;
use crate::errors::{Failure, not_posted};
use crate::memory::{MemoryRegion, Sge};

/// Sizes of a new queue pair.
pub(crate) struct QpSizes {
    pub(crate) max_send_wr: u16,
    pub(crate) max_recv_wr: u16,
    pub(crate) max_send_sge: u16,
    pub(crate) max_recv_sge: u16,
    pub(crate) max_inline_data: u16,
    pub(crate) sq_sig_all: bool,
}

/// A queue pair (`ibv_qp`).
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct QueuePair {
    /// Connection of the queue pair, which lasts as long. Dropped first.
    connection: Mutex<Option<Arc<Connected>>>,
    slot: Arc<Slot<VerbsQp>>,
    num: u32,
}

/// Bytes of a work request, as the program has given them.
enum Bytes<'py> {
    List(Vec<VerbsSge>),
    Inline(Bound<'py, PyBytes>),
}

impl<'py> Bytes<'py> {
    /// Takes a memory region, an element, a sequence of elements, or bytes, which are sent inline.
    fn of(data: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        let Some(data) = data else { return Ok(Self::List(Vec::new())) };
        if let Ok(sge) = data.cast::<Sge>() {
            return Ok(Self::List(vec![sge.get().0]));
        }
        if let Ok(memory) = data.cast::<MemoryRegion>() {
            return Ok(Self::List(vec![memory.get().element(0, None)?]));
        }
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return Ok(Self::Inline(bytes.clone()));
        }
        let elements = data.try_iter()?.map(|element| Ok(element?.cast::<Sge>()?.get().0));
        Ok(Self::List(elements.collect::<PyResult<_>>()?))
    }

    fn data(&self) -> Data<'_> {
        match self {
            Self::List(list) => Data::List(list),
            Self::Inline(bytes) => Data::Inline(bytes.as_bytes()),
        }
    }
}

impl QueuePair {
    pub(crate) fn create(
        device: &Arc<Device>,
        pd: &ProtectionDomain,
        (send_cq, recv_cq): &(CompletionQueue, CompletionQueue),
        sizes: &QpSizes,
    ) -> Result<Self, Failure> {
        let QpSizes { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, sq_sig_all } =
            *sizes;
        let cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
        let qp =
            pd.create_qp(&QpOptions { send_cq, recv_cq, srq: None, cap, sq_sig_all, qp_type: QpType::Rc })?;
        let num = qp.num().0;
        let slot = Slot::new(device, "queue pair", Rank::QueuePair, qp);
        Ok(Self { connection: Mutex::default(), slot, num })
    }

    pub(crate) fn handle(&self) -> Result<VerbsQp, Failure> {
        self.slot.get()
    }

    /// Keeps a connection as long as the queue pair.
    pub(crate) fn keep(&self, connection: &Arc<Connected>) {
        let before = lock(&self.connection).replace(Arc::clone(connection));
        drop(before);
    }

    fn post(&self, call: &str, wr_id: u64, op: SendOp, bytes: &Bytes<'_>, flags: Option<u8>) -> PyResult<()> {
        let qp = self.slot.get()?;
        let flags = flags.unwrap_or(1);
        if flags > 7 {
            return Err(
                Failure::Value(format!("flags {flags:#x}: combine members of ironwarp.SendFlags")).into()
            );
        }
        let flag = |bit: u8| flags & bit != 0;
        let flags = SendFlags { signaled: flag(1), solicited: flag(2), fence: flag(4) };
        let posted = qp.post_send(&[SendWr { wr_id, op, data: bytes.data(), flags }]);
        Ok(posted.map_err(|(_, error)| not_posted(call, error))?)
    }
}

/// Returns Immediate Data of a program.
fn immediate(data: &[u8]) -> Result<[u8; 8], Failure> {
    let wrong = || Failure::Value(format!("Immediate Data of {} bytes: RFC 7306 has eight", data.len()));
    data.try_into().map_err(|_| wrong())
}

#[pymethods]
impl QueuePair {
    /// Number of the queue pair.
    #[getter]
    fn num(&self) -> u32 {
        self.num
    }

    /// State of the queue pair.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let attr = self.slot.get()?.query().map_err(Failure::from)?;
        enums::state(py, attr.state)
    }

    /// Posts a Send: `data` goes to the peer's next receive buffer.
    #[pyo3(signature = (data, wr_id = 0, *, flags = None))]
    fn post_send(&self, data: Option<&Bound<'_, PyAny>>, wr_id: u64, flags: Option<u8>) -> PyResult<()> {
        self.post("post_send", wr_id, SendOp::SEND, &Bytes::of(data)?, flags)
    }

    /// Posts Immediate Data: eight bytes, for a completion of the peer's.
    #[pyo3(signature = (imm_data, wr_id = 0, *, flags = None))]
    fn post_imm(&self, imm_data: &[u8], wr_id: u64, flags: Option<u8>) -> PyResult<()> {
        let imm_data = immediate(imm_data)?;
        self.post("post_imm", wr_id, SendOp::Immediate { imm_data }, &Bytes::List(Vec::new()), flags)
    }

    /// Posts an RDMA Write to the peer's memory, and Immediate Data behind the bytes if `imm_data` is given.
    #[pyo3(signature = (data, remote_addr, rkey, wr_id = 0, *, imm_data = None, flags = None))]
    fn post_write(
        &self,
        data: Option<&Bound<'_, PyAny>>,
        remote_addr: u64,
        rkey: u32,
        wr_id: u64,
        imm_data: Option<&[u8]>,
        flags: Option<u8>,
    ) -> PyResult<()> {
        let rkey = Stag(rkey);
        let op = match imm_data.map(immediate).transpose()? {
            Some(imm_data) => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data },
            None => SendOp::RdmaWrite { remote_addr, rkey },
        };
        self.post("post_write", wr_id, op, &Bytes::of(data)?, flags)
    }

    /// Posts an RDMA Read of the peer's memory into `data`.
    #[pyo3(signature = (data, remote_addr, rkey, wr_id = 0, *, flags = None))]
    fn post_read(
        &self,
        data: Option<&Bound<'_, PyAny>>,
        remote_addr: u64,
        rkey: u32,
        wr_id: u64,
        flags: Option<u8>,
    ) -> PyResult<()> {
        let op = SendOp::RdmaRead { remote_addr, rkey: Stag(rkey) };
        self.post("post_read", wr_id, op, &Bytes::of(data)?, flags)
    }

    /// Posts an addition to eight bytes of the peer's memory; `data` receives the value before.
    #[pyo3(signature = (data, remote_addr, rkey, add, wr_id = 0, *, flags = None))]
    fn post_fetch_add(
        &self,
        data: &Bound<'_, PyAny>,
        remote_addr: u64,
        rkey: u32,
        add: u64,
        wr_id: u64,
        flags: Option<u8>,
    ) -> PyResult<()> {
        let op = SendOp::Atomic { remote_addr, rkey: Stag(rkey), op: AtomicOp::FetchAdd { add, mask: 0 } };
        self.post("post_fetch_add", wr_id, op, &Bytes::of(Some(data))?, flags)
    }

    /// Posts a comparison with eight bytes of the peer's memory, which become `swap` if they equal `compare`; `data`
    /// receives the value before.
    #[pyo3(signature = (data, remote_addr, rkey, compare, swap, wr_id = 0, *, flags = None))]
    #[allow(clippy::too_many_arguments, reason = "the parameters of the operation")]
    fn post_compare_swap(
        &self,
        data: &Bound<'_, PyAny>,
        remote_addr: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
        wr_id: u64,
        flags: Option<u8>,
    ) -> PyResult<()> {
        let op = AtomicOp::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX };
        let op = SendOp::Atomic { remote_addr, rkey: Stag(rkey), op };
        self.post("post_compare_swap", wr_id, op, &Bytes::of(Some(data))?, flags)
    }

    /// Posts a buffer for the peer's next Send or Immediate Data.
    #[pyo3(signature = (data, wr_id = 0))]
    fn post_recv(&self, data: Option<&Bound<'_, PyAny>>, wr_id: u64) -> PyResult<()> {
        let qp = self.slot.get()?;
        let Bytes::List(sg_list) = Bytes::of(data)? else {
            return Err(Failure::Value("bytes do not change: give registered memory".to_owned()).into());
        };
        let posted = qp.post_recv(&[RecvWr { wr_id, sg_list: &sg_list }]);
        Ok(posted.map_err(|(_, error)| not_posted("post_recv", error))?)
    }

    /// Changes the state (`ibv_modify_qp`): to ERROR, which flushes all work, or from there to IDLE.
    fn modify(&self, py: Python<'_>, state: u32) -> PyResult<()> {
        let qp = self.slot.get()?;
        let known = enums::state_of(state).filter(|state| matches!(state, QpState::Idle | QpState::Error));
        let wrong = || Failure::Value(format!("state {state}: give QpState.IDLE or ERROR"));
        let state = known.ok_or_else(wrong)?;
        Ok(detach(py, || qp.modify(state)).map_err(Failure::from)?)
    }

    /// Changes the rights of the peer: remote read, write and atomic, all of which a new queue pair grants.
    fn modify_access(&self, access: u32) -> PyResult<()> {
        let access: Access = crate::memory::access(access)?;
        Ok(self.slot.get()?.modify_access(access).map_err(Failure::from)?)
    }

    /// Destroys the queue pair, and ends its connection.
    fn close(&self, py: Python<'_>) {
        if self.slot.device.is_child() {
            return;
        }
        detach(py, || {
            let connection = lock(&self.connection).take();
            if let Some(connection) = &connection {
                connection.close();
            }
            drop(self.slot.take());
        });
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}
