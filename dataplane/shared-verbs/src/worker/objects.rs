//! Objects of one context, and their limits.

use std::collections::{HashMap, HashSet};

use rdma::StagTable;
use rdma::verbs::{CmId, CqId, Device, MrId, MwId, PdId, QpNum, RegionId, SrqId, VerbsError};

use crate::{CqPlace, QpPlaces, QueuePlace};

/// Most objects of a context, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLimits {
    /// Most protection domains of a context.
    pub pds: u32,
    /// Most memory regions of a context.
    pub mrs: u32,
    /// Most memory windows of a context.
    pub mws: u32,
    /// Most completion queues of a context.
    pub cqs: u32,
    /// Most queue pairs of a context.
    pub qps: u32,
    /// Most shared receive queues of a context.
    pub srqs: u32,
    /// Listeners and connections, including connect requests that wait for an answer.
    pub ids: u32,
}

/// Objects of one context.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) pds: HashSet<PdId>,
    pub(super) mrs: HashMap<MrId, RegionId>,
    pub(super) mws: HashSet<MwId>,
    pub(super) cqs: HashMap<CqId, CqPlace>,
    pub(super) qps: HashMap<QpNum, QpPlaces>,
    pub(super) srqs: HashMap<SrqId, QueuePlace>,
    pub(super) ids: HashSet<CmId>,
}

/// Returns an error unless another object may be created.
pub(super) const fn room(count: usize, max: u32) -> Result<(), VerbsError> {
    if count < max as usize { Ok(()) } else { Err(VerbsError::NoResources) }
}

/// Returns an error unless `owned`.
pub(super) const fn must_own(owned: bool) -> Result<(), VerbsError> {
    if owned { Ok(()) } else { Err(VerbsError::NoSuchObject) }
}

impl Objects {
    /// Destroys all objects, users before what they use.
    pub(super) fn destroy<C: AsRef<[u8]>>(
        self,
        device: &mut Device<C>,
        stags: &mut StagTable,
        released: &mut impl FnMut(RegionId),
    ) {
        let Self { pds, mrs, mws, cqs, qps, srqs, ids } = self;
        // Each call fails only if the object is not there. Ids go first: their connections are reset without events.
        ids.into_iter().for_each(|id| ignore(device.destroy_id(id)));
        qps.into_keys().for_each(|qp| ignore(device.destroy_qp(qp)));
        srqs.into_keys().for_each(|srq| ignore(device.destroy_srq(srq)));
        cqs.into_keys().for_each(|cq| ignore(device.destroy_cq(cq)));
        mws.into_iter().for_each(|mw| ignore(device.dealloc_mw(mw, stags)));
        for (mr, region) in mrs {
            ignore(device.dereg_mr(mr, stags));
            released(region);
        }
        pds.into_iter().for_each(|pd| ignore(device.dealloc_pd(pd)));
    }
}

const fn ignore(_: Result<(), VerbsError>) {}
