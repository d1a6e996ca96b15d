//! Queue pairs that a program connects by number: the transitions INIT → RTR → RTS of `ibv_modify_qp`, with the
//! attributes that InfiniBand's table of transitions asks for.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};

use iwarp_verbs::{QpNum, RtrAttr, RtsAttr};

use crate::abi::{AhAttr, QpAttr};
use crate::context::OpenContext;
use crate::devices::PORT;
use crate::qp::{MASK_ACCESS, MASK_AV, MASK_CUR_STATE, MASK_DEST_QPN, MASK_PKEY_INDEX, MASK_STATE, RTR, RTS};

// Further bits of `enum ibv_qp_attr_mask`.
const MASK_PATH_MTU: c_int = 1 << 8;
const MASK_TIMEOUT: c_int = 1 << 9;
const MASK_RETRY_CNT: c_int = 1 << 10;
const MASK_RNR_RETRY: c_int = 1 << 11;
const MASK_RQ_PSN: c_int = 1 << 12;
const MASK_MAX_RD_ATOMIC: c_int = 1 << 13;
const MASK_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const MASK_SQ_PSN: c_int = 1 << 16;
const MASK_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;

/// Attributes that the transition to RTR needs, and those that it may have.
const RTR_NEEDS: c_int = MASK_STATE
    | MASK_AV
    | MASK_PATH_MTU
    | MASK_DEST_QPN
    | MASK_RQ_PSN
    | MASK_MAX_DEST_RD_ATOMIC
    | MASK_MIN_RNR_TIMER;
const RTR_MAY: c_int = MASK_CUR_STATE | MASK_ACCESS | MASK_PKEY_INDEX;
/// The same of the transition to RTS.
const RTS_NEEDS: c_int =
    MASK_STATE | MASK_TIMEOUT | MASK_RETRY_CNT | MASK_RNR_RETRY | MASK_SQ_PSN | MASK_MAX_RD_ATOMIC;
const RTS_MAY: c_int = MASK_CUR_STATE | MASK_ACCESS | MASK_MIN_RNR_TIMER;
/// Attributes that may change in RTS.
const CHANGES: c_int = MASK_STATE | MASK_CUR_STATE | MASK_ACCESS | MASK_MIN_RNR_TIMER;

/// Connection by number of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbered {
    /// State that the program sees: RTR or RTS.
    pub(crate) state: u32,
    /// Attributes of the transitions so far.
    attr: QpAttr,
}

/// Change that a program asks for.
#[derive(Debug)]
pub(crate) enum Change {
    /// The queue pair changes to RTR.
    Receive(RtrAttr),
    /// The queue pair changes to RTS.
    Send(RtsAttr),
    /// The change concerns the library alone.
    Nothing,
}

/// Returns the address of a GID.
fn address(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}

/// Returns true for the attributes of a connection by number.
pub(crate) const fn is_by_number(mask: c_int) -> bool {
    mask & (MASK_AV | MASK_DEST_QPN) != 0
}

/// Returns the local and the peer's address of a path. As RoCE's drivers, this one needs a global route.
pub(crate) fn path(context: &OpenContext, ah: &AhAttr) -> Option<(IpAddr, IpAddr)> {
    if ah.is_global == 0 || ah.port_num != PORT {
        return None;
    }
    let local = context.device.addresses().nth(ah.sgid_index.into())?;
    Some((local, address(ah.dgid)))
}

impl Numbered {
    /// Checks the transition to RTR.
    pub(crate) fn to_rtr(context: &OpenContext, attr: &QpAttr, mask: c_int) -> Result<(Self, Change), c_int> {
        let is_whole = mask & RTR_NEEDS == RTR_NEEDS && mask & !(RTR_NEEDS | RTR_MAY) == 0;
        if !is_whole || attr.qp_state != RTR || !(1..=5).contains(&attr.path_mtu) {
            return Err(libc::EINVAL);
        }
        let (local, remote) = path(context, &attr.ah_attr).ok_or(libc::EINVAL)?;
        let change = RtrAttr {
            dest_qp_num: QpNum(attr.dest_qp_num),
            rq_psn: attr.rq_psn,
            local,
            remote,
            min_rnr_timer: attr.min_rnr_timer,
        };
        Ok((Self { state: RTR, attr: *attr }, Change::Receive(change)))
    }

    /// Checks a change from RTR or RTS to RTS.
    pub(crate) fn changed(&self, attr: &QpAttr, mask: c_int) -> Result<(Self, Change), c_int> {
        let mut next = *self;
        let has = |bits: c_int| mask & bits != 0;
        if has(MASK_STATE) && attr.qp_state != RTS && !(attr.qp_state == RTR && self.state == RTR) {
            return Err(libc::EINVAL);
        }
        if has(MASK_MIN_RNR_TIMER) {
            next.attr.min_rnr_timer = attr.min_rnr_timer;
        }
        if !(has(MASK_STATE) && self.state == RTR && attr.qp_state == RTS) {
            return if has(!CHANGES) { Err(libc::EINVAL) } else { Ok((next, Change::Nothing)) };
        }
        if mask & RTS_NEEDS != RTS_NEEDS || has(!(RTS_NEEDS | RTS_MAY)) {
            return Err(libc::EINVAL);
        }
        let QpAttr { sq_psn, timeout, retry_cnt, rnr_retry, max_rd_atomic, .. } = *attr;
        next.state = RTS;
        next.attr = QpAttr { sq_psn, timeout, retry_cnt, rnr_retry, max_rd_atomic, ..next.attr };
        Ok((next, Change::Send(RtsAttr { sq_psn, timeout, retry_cnt, rnr_retry })))
    }

    /// Adds the attributes of the connection to those of the queue pair.
    pub(crate) fn complete(&self, of_qp: &QpAttr) -> QpAttr {
        let QpAttr { qp_state, cur_qp_state, qp_access_flags, cap, port_num, .. } = *of_qp;
        QpAttr { qp_state, cur_qp_state, qp_access_flags, cap, port_num, ..self.attr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtr() -> Numbered {
        Numbered { state: RTR, attr: QpAttr { min_rnr_timer: 12, dest_qp_num: 9, ..QpAttr::default() } }
    }

    const TO_RTS: c_int = RTS_NEEDS;

    #[test]
    fn the_transition_to_rts_needs_its_attributes() {
        let attr =
            QpAttr { qp_state: RTS, timeout: 14, retry_cnt: 7, rnr_retry: 6, sq_psn: 5, ..QpAttr::default() };
        for missing in (0..21).map(|bit| 1 << bit).filter(|bit| RTS_NEEDS & bit != 0 && *bit != MASK_STATE) {
            assert_eq!(rtr().changed(&attr, TO_RTS & !missing).unwrap_err(), libc::EINVAL, "{missing:#x}");
        }
        for more in (0..21).map(|bit| 1 << bit).filter(|bit| (RTS_NEEDS | RTS_MAY) & bit == 0) {
            assert_eq!(rtr().changed(&attr, TO_RTS | more).unwrap_err(), libc::EINVAL, "{more:#x}");
        }
        let (rts, change) = rtr().changed(&attr, TO_RTS).unwrap();
        let Change::Send(sent) = change else { panic!("{change:?}") };
        assert_eq!((sent.timeout, sent.retry_cnt, sent.rnr_retry, sent.sq_psn), (14, 7, 6, 5));
        assert_eq!((rts.state, rts.attr.dest_qp_num, rts.attr.min_rnr_timer), (RTS, 9, 12));
        // From RTS on, few attributes change.
        let later = QpAttr { qp_state: RTS, min_rnr_timer: 3, ..QpAttr::default() };
        let (rts, change) = rts.changed(&later, MASK_STATE | MASK_MIN_RNR_TIMER).unwrap();
        assert!(matches!(change, Change::Nothing) && rts.attr.min_rnr_timer == 3);
        assert!(rts.changed(&later, MASK_STATE | MASK_TIMEOUT).is_err());
        assert!(rts.changed(&QpAttr { qp_state: RTR, ..later }, MASK_STATE).is_err());
    }

    #[test]
    fn a_gid_is_an_address_of_either_family() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7];
        assert_eq!(address(mapped), IpAddr::from([10, 0, 0, 7]));
        let v6: Ipv6Addr = "fd00::7".parse().unwrap();
        assert_eq!(address(v6.octets()), IpAddr::V6(v6));
    }
}
