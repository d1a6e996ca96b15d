//! Entries survive their encoding, and no words make a decoder panic or read beyond its limits.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::net::IpAddr;

use iwarp_shared_queues::*;
use proptest::prelude::*;
use rdma::AtomicOp;
use rdma::verbs::{
    Access, Bind, Data, Destination, MwId, QpNum, RecvWr, SGE_MAX, SendFlags, SendOp, SendWr, Sge, Slots,
    Stag, WcOpcode, WcStatus, WorkCompletion,
};

fn stag() -> impl Strategy<Value = Stag> + Clone {
    any::<u32>().prop_map(Stag)
}

fn sges() -> impl Strategy<Value = Vec<Sge>> {
    let sge =
        (any::<u64>(), any::<u32>(), stag()).prop_map(|(addr, length, lkey)| Sge { addr, length, lkey });
    proptest::collection::vec(sge, 0..=SGE_MAX)
}

fn op() -> impl Strategy<Value = SendOp> {
    let place = (any::<u64>(), stag());
    let bind = (any::<u32>(), stag(), (stag(), any::<u64>(), any::<u64>(), any::<bool>()));
    prop_oneof![
        proptest::option::of(stag()).prop_map(|invalidate| SendOp::Send { invalidate }),
        any::<[u8; 4]>().prop_map(|imm_data| SendOp::SendWithImm { imm_data }),
        (any::<[IpAddr; 2]>(), any::<(u32, u32)>(), any::<Option<[u8; 4]>>()).prop_map(
            |([local, remote], (qp, qkey), imm_data)| {
                let [local, remote] = [local, remote].map(|address| address.to_canonical());
                let to = Destination { local, remote, qp_num: QpNum(qp), qkey };
                SendOp::Datagram { to, imm_data }
            }
        ),
        place.clone().prop_map(|(remote_addr, rkey)| SendOp::RdmaWrite { remote_addr, rkey }),
        (place.clone(), any::<[u8; 8]>()).prop_map(|((remote_addr, rkey), imm_data)| {
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data }
        }),
        any::<[u8; 8]>().prop_map(|imm_data| SendOp::Immediate { imm_data }),
        place.clone().prop_map(|(remote_addr, rkey)| SendOp::RdmaRead { remote_addr, rkey }),
        place.clone().prop_map(|(remote_addr, rkey)| SendOp::RdmaReadInvalidate { remote_addr, rkey }),
        (place.clone(), any::<[u64; 2]>()).prop_map(|((remote_addr, rkey), [add, mask])| SendOp::Atomic {
            remote_addr,
            rkey,
            op: AtomicOp::FetchAdd { add, mask },
        }),
        (place, any::<[u64; 4]>()).prop_map(
            |((remote_addr, rkey), [compare, compare_mask, swap, swap_mask])| {
                SendOp::Atomic {
                    remote_addr,
                    rkey,
                    op: AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask },
                }
            }
        ),
        bind.prop_map(|(mw, rkey, (lkey, address, len, zero_based))| SendOp::BindMw {
            mw: MwId(mw),
            rkey,
            bind: Bind { lkey, address, len, access: Access::REMOTE_READ | Access::REMOTE_WRITE, zero_based },
        }),
        stag().prop_map(|stag| SendOp::LocalInvalidate { stag }),
    ]
}

fn flags() -> impl Strategy<Value = SendFlags> {
    any::<[bool; 3]>().prop_map(|[signaled, solicited, fence]| SendFlags { signaled, solicited, fence })
}

/// Statuses and opcodes of completions.
const STATUSES: [WcStatus; 11] = [
    WcStatus::Success,
    WcStatus::LocalLengthError,
    WcStatus::LocalProtectionError,
    WcStatus::WrFlushError,
    WcStatus::MwBindError,
    WcStatus::LocalQpOperationError,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteAccessError,
    WcStatus::RemoteOperationError,
    WcStatus::RetryExceeded,
    WcStatus::RnrRetryExceeded,
];
const OPCODES: [WcOpcode; 9] = [
    WcOpcode::Send,
    WcOpcode::RdmaWrite,
    WcOpcode::RdmaRead,
    WcOpcode::FetchAdd,
    WcOpcode::CompareSwap,
    WcOpcode::BindMw,
    WcOpcode::LocalInvalidate,
    WcOpcode::Recv,
    WcOpcode::RecvRdmaWithImm,
];

proptest! {
    #[test]
    fn a_work_request_with_a_list_survives(wr_id: u64, op in op(), flags in flags(), sges in sges(), old: u64) {
        let mut words = vec![old; send_words(sges.len(), 0).unwrap() as usize];
        let request = SendWr { wr_id, op, data: Data::List(&sges), flags };
        let used = encode_send(&request, &mut words).unwrap();
        prop_assert_eq!(send_length(&words), used);
        words.truncate(used);
        let mut list = SgeList::new();
        prop_assert_eq!(decode_send(&words, &mut list), Ok(request));
        words.pop();
        prop_assert_eq!(encode_send(&request, &mut words), Err(EntryError::TooShort));
        prop_assert_eq!(decode_send(&words, &mut list), Err(EntryError::TooShort));
    }

    #[test]
    fn a_work_request_with_inline_data_survives(
        wr_id: u64,
        op in op(),
        flags in flags(),
        bytes in proptest::collection::vec(any::<u8>(), 0..=INLINE_MAX),
        old: u64,
    ) {
        let mut words = vec![old; send_words(0, bytes.len()).unwrap() as usize];
        let request = SendWr { wr_id, op, data: Data::Inline(&bytes), flags };
        let used = encode_send(&request, &mut words).unwrap();
        prop_assert_eq!(send_length(&words), used);
        let mut list = SgeList::new();
        prop_assert_eq!(decode_send(&words, &mut list), Ok(request));
    }

    #[test]
    fn a_receive_buffer_survives(wr_id: u64, sges in sges(), old: u64) {
        let mut words = vec![old; recv_words(sges.len()).unwrap() as usize];
        let request = RecvWr { wr_id, sg_list: &sges };
        encode_recv(&request, &mut words).unwrap();
        prop_assert_eq!(recv_length(&words), words.len());
        let mut list = SgeList::new();
        prop_assert_eq!(decode_recv(&words, &mut list), Ok(request));
        words.pop();
        prop_assert_eq!(encode_recv(&request, &mut words), Err(EntryError::TooShort));
        prop_assert_eq!(decode_recv(&words, &mut list), Err(EntryError::TooShort));
    }

    #[test]
    fn a_completion_survives(
        (wr_id, byte_len, qp) in any::<(u64, u32, u32)>(),
        status in proptest::sample::select(STATUSES.to_vec()),
        opcode in proptest::sample::select(OPCODES.to_vec()),
        imm_data in proptest::option::of(any::<[u8; 8]>()),
        invalidated in proptest::option::of(stag()),
        source in prop_oneof![Just(0), any::<u32>()],
        solicited: bool,
        slots in prop_oneof![Just(Slots::Receive), (0..=65_535_usize).prop_map(Slots::Send)],
    ) {
        let qp_num = QpNum(qp);
        let (src_qp, invalidated) = (QpNum(source), invalidated.filter(|_| source == 0));
        let wc = WorkCompletion {
            wr_id, status, opcode, byte_len, imm_data, invalidated, solicited, qp_num, src_qp,
        };
        prop_assert_eq!(decode_completion(&encode_completion(&wc, slots)), Ok((wc, slots)));
    }

    /// A request that a decoder accepts is encoded to words that decode to the same request.
    #[test]
    fn random_words_are_refused_or_mean_one_request(
        mut words in proptest::collection::vec(any::<u64>(), 0..=RingShape::ENTRY_WORDS_MAX as usize),
        opcode in 0_u8..=13,
        flags in 0_u8..=32,
        count in 0_u8..=20,
        inline in 0_u16..=600,
    ) {
        if let Some(control) = words.get_mut(1) {
            *control = u64::from_le_bytes([opcode, flags, count, 3, 0, 0, 0, 0]) | u64::from(inline) << 32;
        }
        if let Ok(request) = decode_send(&words, &mut SgeList::new()) {
            let mut again = vec![0; RingShape::ENTRY_WORDS_MAX as usize];
            encode_send(&request, &mut again).unwrap();
            let mut list = SgeList::new();
            prop_assert_eq!(decode_send(&again, &mut list), Ok(request));
        }
        if let Some(count_word) = words.get_mut(1) {
            *count_word = count.into();
        }
        if let Ok(request) = decode_recv(&words, &mut SgeList::new()) {
            prop_assert!(request.sg_list.len() <= SGE_MAX);
        }
        if let Some(four) = words.first_chunk::<COMPLETION_WORDS>()
            && let Ok((wc, slots)) = decode_completion(four)
        {
            prop_assert_eq!(decode_completion(&encode_completion(&wc, slots)), Ok((wc, slots)));
        }
    }
}

#[test]
fn each_refusal_says_why() {
    let head = |control: u64| [7, control, 0, 0, 0, 0, 0];
    let refused = |control| decode_send(&head(control), &mut SgeList::new()).unwrap_err();
    assert_eq!(refused(0), EntryError::Opcode(0));
    assert_eq!(refused(13), EntryError::Opcode(13));
    assert_eq!(refused(0x8001), EntryError::Flags(0x80));
    assert_eq!(refused(0x11_0001), EntryError::ListLength(17));
    assert_eq!(refused(0x2_0001), EntryError::TooShort);
    assert_eq!(refused(513 << 32 | 0x0801), EntryError::InlineLength(513));
    assert_eq!(refused(0xff00_0009), EntryError::Access(0xff));
    assert_eq!(decode_recv(&[1, 1 << 40], &mut SgeList::new()).unwrap_err(), EntryError::ListLength(255));
    assert_eq!(decode_completion(&[0, 11, 0, 0]), Err(EntryError::Completion(11, 0)));
    assert_eq!(decode_completion(&[0, 0x90, 0, 0]), Err(EntryError::Completion(0, 9)));
    assert_eq!(decode_completion(&[0, 0x20 << 8, 0, 0]), Err(EntryError::Flags(0x20)));
    assert_eq!(
        (send_words(SGE_MAX + 1, 0), send_words(0, INLINE_MAX + 1), recv_words(SGE_MAX + 1)),
        (None, None, None)
    );
}
