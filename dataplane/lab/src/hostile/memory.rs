//! One user that takes as many small buffers as it may have, and objects of each kind, over all its contexts.

use anyhow::{Result, ensure};
use iwarp_control::{ClientError, ErrorKind};
use iwarp_shared_verbs::Request;
use rdma::verbs::{PdId, QpCap, QpInit};
use serde_json::{Value, json};

use super::raw::Raw;
use super::{Attack, Target};

const QUEUE_BYTES: u64 = 16 << 20;
const CONTEXTS: usize = 8;
const AT_A_TIME: usize = 64;
/// Most requests of one kind: no limit is higher.
const REQUESTS_MAX: usize = 100_000;

pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut contexts =
        (0..CONTEXTS).map(|_| Raw::open(&target.socket, QUEUE_BYTES)).collect::<Result<Vec<_>>>()?;
    let mut kept = Vec::new();
    let mut buffers = 0_u32;
    let reason = loop {
        let at = buffers as usize % CONTEXTS;
        let Some(context) = contexts.get_mut(at) else { continue };
        match context.alloc([1, 4096, 8192][at % 3], at.is_multiple_of(2)) {
            Ok(memory) => kept.push(memory),
            Err(ClientError::Refused(error)) if error.data.kind == ErrorKind::NoResources => {
                break error.message;
            }
            Err(error) => return Err(error.into()),
        }
        buffers += 1;
    };
    let objects = contexts.iter_mut().map(|context| context.objects(16)).collect::<Result<Vec<_>>>()?;
    let mut made = Vec::new();
    for (context, (pd, cq, _)) in contexts.iter_mut().zip(objects) {
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, ..QpCap::default() };
        let init = QpInit { cap, ..QpInit::new(pd, cq) };
        made.push(exhaust(context, pd, init)?);
    }
    std::thread::sleep(std::time::Duration::from_secs(target.seconds));
    let report = json!({ "case": "memory", "buffers": buffers, "refused": reason, "objects": made });
    Ok((report, Box::new((contexts, kept))))
}

/// Creates objects of each kind until they are refused. Returns how many there are.
fn exhaust(context: &mut Raw, pd: PdId, init: QpInit) -> Result<Value> {
    let kinds = [
        ("qps", Request::CreateQp(init)),
        ("cqs", Request::CreateCq(16)),
        ("srqs", Request::CreateSrq { pd, max_wr: 16, max_sge: 1 }),
        ("mws", Request::AllocMw(pd)),
        ("pds", Request::AllocPd),
    ];
    let mut counts = serde_json::Map::new();
    for (kind, request) in kinds {
        let mut count = 0;
        loop {
            let results = context.execute(&vec![request.clone(); AT_A_TIME])?;
            let ok = results.iter().filter(|result| result.is_ok()).count();
            count += ok;
            ensure!(count < REQUESTS_MAX, "{kind}: no limit");
            if ok < results.len() {
                break;
            }
        }
        counts.insert(kind.to_owned(), count.into());
    }
    Ok(counts.into())
}
