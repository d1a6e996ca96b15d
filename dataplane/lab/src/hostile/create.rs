//! Large queue pairs, created and destroyed again and again.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{QpCap, QpInit};
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

/// Queue pairs at a time. Each has some 10 MB.
const QUEUE_PAIRS: usize = 16;
const CAP: QpCap =
    QpCap { max_send_wr: 4096, max_recv_wr: 4096, max_send_sge: 16, max_recv_sge: 16, max_inline_data: 512 };

pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut raw = Raw::open(&target.socket, 512 << 20)?;
    let (pd, cq, _) = raw.objects(64)?;
    let create = vec![Request::CreateQp(QpInit { cap: CAP, ..QpInit::new(pd, cq) }); QUEUE_PAIRS];
    let (until, mut created) = (target.end(), 0_usize);
    while Instant::now() < until {
        let made = raw.succeed(&create)?;
        created += made.len();
        let destroy = made.iter().map(|made| match made {
            Response::Qp(qp, _) => Ok(Request::DestroyQp(*qp)),
            other => bail!("{other:?}"),
        });
        raw.succeed(&destroy.collect::<Result<Vec<_>>>()?)?;
    }
    ensure!(created >= QUEUE_PAIRS, "no queue pair was created");
    Ok((json!({ "case": "create", "created": created }), Box::new(raw)))
}
