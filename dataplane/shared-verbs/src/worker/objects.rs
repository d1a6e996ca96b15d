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
    /// Listeners and connections, including connect requests that wait for an answer: of all contexts of the same user.
    pub ids: u32,
    /// Most ids of all contexts together. The device has more, for its other client.
    pub ids_of_all: u32,
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

/// Object that [`Objects::destroy_next`] has destroyed, if others know it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destroyed {
    Qp(QpNum),
    Srq(SrqId),
    Other,
}

impl Objects {
    /// Destroys an object, users before what they use. Returns `None` once none is left.
    pub(super) fn destroy_next<C: AsRef<[u8]>>(
        &mut self,
        device: &mut Device<C>,
        stags: &mut StagTable,
        released: &mut impl FnMut(RegionId),
    ) -> Option<Destroyed> {
        let Self { pds, mrs, mws, cqs, qps, srqs, ids } = self;
        // Each call fails only if the object is not there. Ids go first: their connections end without events.
        if let Some(id) = ids.iter().next().copied() {
            ids.remove(&id);
            ignore(device.destroy_id(id));
        } else if let Some(qp) = qps.keys().next().copied() {
            qps.remove(&qp);
            ignore(device.destroy_qp(qp));
            return Some(Destroyed::Qp(qp));
        } else if let Some(srq) = srqs.keys().next().copied() {
            srqs.remove(&srq);
            ignore(device.destroy_srq(srq));
            return Some(Destroyed::Srq(srq));
        } else if let Some(cq) = cqs.keys().next().copied() {
            cqs.remove(&cq);
            ignore(device.destroy_cq(cq));
        } else if let Some(mw) = mws.iter().next().copied() {
            mws.remove(&mw);
            ignore(device.dealloc_mw(mw, stags));
        } else if let Some((mr, region)) = mrs.iter().next().map(|(mr, region)| (*mr, *region)) {
            mrs.remove(&mr);
            ignore(device.dereg_mr(mr, stags));
            released(region);
        } else {
            let pd = pds.iter().next().copied()?;
            pds.remove(&pd);
            ignore(device.dealloc_pd(pd));
        }
        Some(Destroyed::Other)
    }
}

const fn ignore(_: Result<(), VerbsError>) {}
