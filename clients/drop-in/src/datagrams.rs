//! Datagrams: address handles, and the states of queue pairs that send them (`IBV_QPT_UD`), with the attributes that
//! InfiniBand's table of transitions asks for.

use std::ffi::c_int;
use std::net::IpAddr;

use iwarp_verbs::{Destination, QpNum, SendOp};

use crate::abi::{AhAttr, AhHead, GRH_BYTES, Grh, QpAttr, SendWr, Wc};
use crate::context::{OpenContext, null};
use crate::devices::{PORT, gid};
use crate::numbered::{MASK_SQ_PSN, path};
use crate::objects::Pd;
use crate::qp::{INIT, MASK_CUR_STATE, MASK_PKEY_INDEX, MASK_PORT, MASK_STATE, Qp, RESET, RTR, RTS};
use crate::raw::{export, object, pointed, write};
use crate::users::Use;

// `IBV_QP_QKEY`
pub(crate) const MASK_QKEY: c_int = 1 << 6;
// `IBV_WC_GRH`
pub(crate) const WITH_GRH: u32 = 1;

/// Bits of the traffic class in the first word of a global route header, and those of the flow label below it.
const CLASS_SHIFT: u32 = 20;
const FLOW_MASK: u32 = (1 << CLASS_SHIFT) - 1;

/// An address handle: the ends of a datagram, but for the queue pair.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ah {
    pub(crate) head: AhHead,
    local: IpAddr,
    remote: IpAddr,
    pd: Use,
}

/// Returns the addresses of a handle.
fn ends(context: &OpenContext, attr: &AhAttr) -> Result<(IpAddr, IpAddr), c_int> {
    let (local, remote) = path(context, attr).ok_or(libc::EINVAL)?;
    match remote {
        // Nobody joins a group: `ibv_attach_mcast` has no effect either.
        _ if remote.is_multicast() => Err(libc::EOPNOTSUPP),
        _ if local.is_ipv4() != remote.is_ipv4() || remote.is_unspecified() => Err(libc::EINVAL),
        _ => Ok((local, remote)),
    }
}

fn create(pd: &Pd, attr: &AhAttr) -> Result<Box<Ah>, c_int> {
    let context = object(pd.head.context).ok_or(libc::EINVAL)?;
    let (local, remote) = ends(context, attr)?;
    let head = AhHead { context: pd.head.context, pd, handle: 0 };
    Ok(Box::new(Ah { head, local, remote, pd: pd.users.enter() }))
}

/// Returns the attributes of a handle for the sender of a received datagram.
fn answering(context: &OpenContext, port: u8, wc: &Wc, grh: Option<&Grh>) -> Result<AhAttr, c_int> {
    let Wc { slid, sl, dlid_path_bits, wc_flags, .. } = *wc;
    let attr = AhAttr { dlid: slid, sl, src_path_bits: dlid_path_bits, port_num: port, ..AhAttr::default() };
    if wc_flags & WITH_GRH == 0 {
        return Ok(attr);
    }
    let grh = grh.ok_or(libc::EINVAL)?;
    let index = context.device.addresses().position(|address| gid(address).0 == grh.dgid);
    let first = u32::from_be(grh.version_tclass_flow);
    let [.., traffic_class] = (first >> CLASS_SHIFT).to_be_bytes();
    Ok(AhAttr {
        is_global: 1,
        dgid: grh.sgid,
        sgid_index: index.and_then(|index| u8::try_from(index).ok()).ok_or(libc::EINVAL)?,
        flow_label: first & FLOW_MASK,
        hop_limit: grh.hop_limit,
        traffic_class,
        ..attr
    })
}

/// Returns a datagram to a queue pair behind an address handle.
fn to(ah: Option<&Ah>, (qp_num, qkey): (u32, u32), imm_data: Option<[u8; 4]>) -> Result<SendOp, c_int> {
    let Ah { local, remote, .. } = ah.ok_or(libc::EINVAL)?;
    let to = Destination { local: *local, remote: *remote, qp_num: QpNum(qp_num), qkey };
    Ok(SendOp::Datagram { to, imm_data })
}

/// Returns the datagram of a request (`wr.ud`).
pub(crate) fn operation(wr: &SendWr) -> Result<SendOp, c_int> {
    let imm_data = match wr.opcode {
        2 => None,
        3 => Some(wr.imm_data.to_ne_bytes()),
        _ => return Err(libc::EINVAL),
    };
    let [low, high, qp_num, qkey, ..] = wr.wr;
    to(pointed(u64::from(low) | u64::from(high) << 32), (qp_num, qkey), imm_data)
}

/// Returns the datagram of a Send whose receiver a program has set (`ibv_wr_set_ud_addr`).
pub(crate) fn addressed(op: SendOp, ah: Option<&Ah>, receiver: (u32, u32)) -> Result<SendOp, c_int> {
    match op {
        SendOp::Send { invalidate: None } => to(ah, receiver, None),
        SendOp::SendWithImm { imm_data } => to(ah, receiver, Some(imm_data)),
        _ => Err(libc::EINVAL),
    }
}

/// Returns the attributes that a transition needs, and those that it may have; `None` if there is no such transition.
const fn masks(now: u32, next: u32) -> Option<(c_int, c_int)> {
    const OWN: c_int = MASK_PKEY_INDEX | MASK_PORT | MASK_QKEY;
    match (now, next) {
        (RESET, INIT) => Some((OWN, 0)),
        (INIT, INIT) => Some((0, OWN)),
        (INIT, RTR) => Some((0, MASK_PKEY_INDEX | MASK_QKEY)),
        (RTR, RTS) => Some((MASK_SQ_PSN, MASK_CUR_STATE | MASK_QKEY)),
        (RTS, RTS) => Some((0, MASK_CUR_STATE | MASK_QKEY)),
        _ => None,
    }
}

/// Returns the attributes of a queue pair after a change to INIT, RTR or RTS.
pub(crate) fn changed(held: &QpAttr, attr: &QpAttr, mask: c_int) -> Result<QpAttr, c_int> {
    let has = |bits: c_int| mask & bits != 0;
    let now = held.qp_state;
    let next = if has(MASK_STATE) { attr.qp_state } else { now };
    let (needs, may) = masks(now, next).ok_or(libc::EINVAL)?;
    if mask & needs != needs || has(!(MASK_STATE | needs | may)) {
        return Err(libc::EINVAL);
    }
    let mut changed = QpAttr { qp_state: next, cur_qp_state: next, ..*held };
    if has(MASK_QKEY) {
        changed.qkey = attr.qkey;
    }
    if has(MASK_SQ_PSN) {
        changed.sq_psn = attr.sq_psn;
    }
    Ok(changed)
}

/// Tells the device of a change.
pub(crate) fn enter(qp: &Qp, changed: &QpAttr) -> Result<(), iwarp_verbs::Error> {
    match changed.qp_state {
        RTR | RTS => qp.qp.ready_for_datagrams(changed.qkey, changed.qp_state == RTS),
        _ => Ok(()),
    }
}

export! {
    fn ibv_create_ah(pd: Option<&Pd>, attr: Option<&AhAttr>) -> Option<Box<Ah>> {
        let Some((pd, attr)) = pd.zip(attr) else { return null(libc::EINVAL) };
        create(pd, attr).map_or_else(null, Some)
    }

    fn ibv_destroy_ah(ah: Option<Box<Ah>>) -> c_int {
        if ah.is_some() { 0 } else { libc::EINVAL }
    }

    fn ibv_init_ah_from_wc(
        context: Option<&OpenContext>,
        port: u8,
        wc: Option<&Wc>,
        grh: Option<&Grh>,
        out: *mut AhAttr,
    ) -> c_int {
        let known = context.filter(|_| port == PORT && !out.is_null()).zip(wc);
        match known.ok_or(libc::EINVAL).and_then(|(context, wc)| answering(context, port, wc, grh)) {
            Ok(attr) => {
                write(out, 0, attr);
                0
            }
            Err(error) => null(error).unwrap_or(-1),
        }
    }

    fn ibv_create_ah_from_wc(
        pd: Option<&Pd>,
        wc: Option<&Wc>,
        grh: Option<&Grh>,
        port: u8,
    ) -> Option<Box<Ah>> {
        let Some((pd, wc)) = pd.zip(wc) else { return null(libc::EINVAL) };
        let context = object(pd.head.context).ok_or(libc::EINVAL);
        let attr = context.and_then(|context| answering(context, port, wc, grh));
        attr.and_then(|attr| create(pd, &attr)).map_or_else(null, Some)
    }
}

const _: () = assert!(size_of::<Grh>() == GRH_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn held(state: u32) -> QpAttr {
        QpAttr { qp_state: state, qkey: 1, ..QpAttr::default() }
    }

    #[test]
    fn transitions_need_their_attributes() {
        let attr = |qp_state| QpAttr { qp_state, qkey: 0x1111_1111, sq_psn: 5, ..QpAttr::default() };
        let to_init = MASK_STATE | MASK_PKEY_INDEX | MASK_PORT | MASK_QKEY;
        let init = changed(&held(RESET), &attr(INIT), to_init).unwrap();
        assert_eq!((init.qp_state, init.qkey), (INIT, 0x1111_1111));
        for missing in [MASK_PKEY_INDEX, MASK_PORT, MASK_QKEY] {
            assert_eq!(changed(&held(RESET), &attr(INIT), to_init & !missing).unwrap_err(), libc::EINVAL);
        }
        let rtr = changed(&init, &attr(RTR), MASK_STATE).unwrap();
        assert_eq!((rtr.qp_state, rtr.qkey), (RTR, 0x1111_1111));
        assert!(changed(&rtr, &attr(RTS), MASK_STATE).is_err(), "without a PSN");
        let rts = changed(&rtr, &attr(RTS), MASK_STATE | MASK_SQ_PSN).unwrap();
        assert_eq!((rts.qp_state, rts.sq_psn), (RTS, 5));
        let again = changed(&rts, &QpAttr { qkey: 9, ..attr(RTS) }, MASK_QKEY).unwrap();
        assert_eq!((again.qp_state, again.qkey, again.sq_psn), (RTS, 9, 5));
        // No queue pair of datagrams has a peer.
        for mask in [1 << 7, 1 << 20, 1 << 12, 1 << 13] {
            assert!(changed(&init, &attr(RTR), MASK_STATE | mask).is_err(), "{mask:#x}");
        }
        for (now, next) in [(RESET, RTR), (INIT, RTS), (RTS, RTR), (RTR, INIT), (6, RTS)] {
            assert!(changed(&held(now), &attr(next), MASK_STATE | MASK_SQ_PSN).is_err(), "{now} {next}");
        }
    }
}
