//! Requests and responses as messages: each is read as it was written, and nothing else is a request.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use iwarp_shared_verbs::methods::Execute;
use iwarp_shared_verbs::{QpPlaces, Request, Response};
use proptest::collection::vec;
use proptest::prelude::*;
use rdma::verbs::{
    Access, AddressBase, CmId, CqId, MrId, MwId, PdId, QpCap, QpInit, QpNum, QpState, QpType, RegionId,
    RtrAttr, RtsAttr, SrqId, VerbsError,
};
use rdma::wire::mpa::RtrOptions;
use serde_json::{Value, json};

fn init() -> impl Strategy<Value = QpInit> {
    let numbers = (any::<[u32; 3]>(), any::<Option<u32>>(), any::<bool>(), any::<bool>());
    (numbers, any::<[u16; 5]>()).prop_map(|(([pd, send, recv], srq, sq_sig_all, is_ud), cap)| {
        let qp_type = if is_ud { QpType::Ud } else { QpType::Rc };
        let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = cap;
        let cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
        let (pd, send_cq, recv_cq) = (PdId(pd), CqId(send), CqId(recv));
        QpInit { pd, send_cq, recv_cq, srq: srq.map(SrqId), cap, sq_sig_all, qp_type }
    })
}

/// Addresses as text has them: without flow labels and scopes.
fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
}

fn request() -> impl Strategy<Value = Request> {
    let id = any::<u32>;
    let data = || vec(any::<u8>(), 0..64);
    prop_oneof![
        Just(Request::AllocPd),
        id().prop_map(|id| Request::DeallocPd(PdId(id))),
        id().prop_map(|id| Request::DeregMr(MrId(id))),
        id().prop_map(|id| Request::DeallocMw(MwId(id))),
        id().prop_map(Request::CreateCq),
        (id(), id()).prop_map(|(cq, cqe)| Request::ResizeCq(CqId(cq), cqe)),
        (id(), any::<u16>(), any::<u16>()).prop_map(|(pd, max_wr, max_sge)| Request::CreateSrq {
            pd: PdId(pd),
            max_wr,
            max_sge
        }),
        (id(), any::<u16>()).prop_map(|(id, limit)| Request::ModifySrq(SrqId(id), limit)),
        init().prop_map(Request::CreateQp),
        id().prop_map(|id| Request::ModifyQp(QpNum(id), QpState::Error)),
        id().prop_map(|id| Request::AwaitBuffers(QpNum(id))),
        (id(), id()).prop_map(|(id, qkey)| Request::ReadyForDatagrams(QpNum(id), qkey)),
        id().prop_map(|id| Request::ModifyQpAccess(QpNum(id), Access::REMOTE_READ)),
        (id(), id(), id(), address(), address(), any::<u8>()).prop_map(
            |(id, qp, rq_psn, local, remote, timer)| {
                let (local, remote, dest_qp_num) = (local.ip(), remote.ip(), QpNum(qp));
                let attr = RtrAttr { dest_qp_num, rq_psn, local, remote, min_rnr_timer: timer };
                Request::ReadyToReceive(QpNum(id), attr)
            }
        ),
        (id(), id(), any::<(u8, u8, u8)>()).prop_map(|(id, sq_psn, (timeout, retry_cnt, rnr_retry))| {
            Request::ReadyToSend(QpNum(id), RtsAttr { sq_psn, timeout, retry_cnt, rnr_retry })
        }),
        proptest::option::of(address()).prop_map(Request::CreateId),
        (id(), 1_u16.., any::<(u16, u16)>()).prop_map(|(id, backlog, depths)| {
            let backlog = NonZeroU16::new(backlog).unwrap_or(NonZeroU16::MIN);
            Request::Listen { id: CmId(id), backlog, depths }
        }),
        (id(), id(), address(), data(), any::<(u16, u16)>(), any::<(u8, Option<[bool; 3]>, bool)>())
            .prop_map(|(id, qp, peer, private_data, depths, (revision, rtr, any_port))| {
                let (id, qp) = (CmId(id), QpNum(qp));
                let rtr = rtr.map(|[send, write, read]| RtrOptions { send, write, read });
                Request::Connect { id, qp, peer, private_data, depths, revision, rtr, any_port }
            }),
        (id(), id(), data()).prop_map(|(id, qp, private_data)| Request::Accept {
            id: CmId(id),
            qp: QpNum(qp),
            private_data
        }),
        (id(), data()).prop_map(|(id, private_data)| Request::Reject { id: CmId(id), private_data }),
        id().prop_map(|id| Request::Disconnect(CmId(id))),
        (id(), any::<u8>()).prop_map(|(id, class)| Request::SetTrafficClass(CmId(id), class)),
        (proptest::option::of(address()), address())
            .prop_map(|(local, peer)| Request::Resolve { local, peer }),
    ]
}

proptest! {
    #[test]
    fn a_request_reads_as_it_was_written(requests in vec(request(), 0..20)) {
        let text = serde_json::to_string(&Execute { requests: requests.clone() }).unwrap();
        // As the socket reads it: first any JSON, then the parameters of the method.
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(serde_json::from_value::<Execute>(value).unwrap().requests, requests);
    }

    /// Text that looks like a request is one, or is refused: reading it never panics.
    #[test]
    fn a_changed_request_is_read_or_refused(
        requests in vec(request(), 1..4),
        cuts in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut text = serde_json::to_vec(&Execute { requests }).unwrap();
        for (at, byte) in cuts {
            let at = at.index(text.len());
            text[at] = byte;
        }
        if let Ok(read) = serde_json::from_slice::<Execute>(&text) {
            let again = serde_json::to_value(&read).unwrap();
            prop_assert_eq!(serde_json::from_value::<Execute>(again).unwrap(), read);
        }
    }
}

#[test]
fn a_program_cannot_name_memory_of_the_daemon() {
    let request = Request::RegMr {
        pd: PdId(0),
        memory: (RegionId(0), 0, 1),
        base: AddressBase::Zero,
        access: Access::REMOTE_READ,
    };
    assert!(serde_json::to_value(&request).is_err());
    for name in ["reg_mr", "RegMr"] {
        let base = json!({"pd": 0, "memory": [0, 0, 1], "base": "Zero", "access": 1});
        assert!(serde_json::from_value::<Request>(json!({ name: base })).is_err());
    }
}

#[test]
fn rights_without_meaning_and_rings_that_cannot_be_are_refused() {
    assert!(serde_json::from_value::<Access>(json!(0x7f)).is_ok());
    assert!(serde_json::from_value::<Access>(json!(0x80)).is_err());
    let place = |entries: u64, words: u64| {
        let send = json!({"start": 8, "shape": [entries, words], "doorbell": 0});
        serde_json::from_value::<QpPlaces>(json!({"send": send, "recv": null}))
    };
    assert!(place(64, 8).is_ok());
    for (entries, words) in [(0, 8), (63, 8), (64, 0), (64, 129), (1 << 17, 8), (1 << 40, 8)] {
        assert!(place(entries, words).is_err(), "{entries} entries of {words} words");
    }
}

#[test]
fn results_read_as_they_were_written() {
    let results: [Result<Response, VerbsError>; 4] = [
        Ok(Response::Done),
        Err(VerbsError::NoResources),
        Ok(Response::Pd(PdId(7))),
        Ok(Response::Addresses(None, Some("[fd00::1]:7400".parse().unwrap()))),
    ];
    for result in results {
        let value = serde_json::to_value(result).unwrap();
        assert_eq!(serde_json::from_value::<Result<Response, VerbsError>>(value).unwrap(), result);
    }
}
