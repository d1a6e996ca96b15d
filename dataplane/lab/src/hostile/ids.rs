//! One user that takes as many ids as it may have, over all its contexts.

use anyhow::{Result, ensure};
use iwarp_shared_verbs::Request;
use rdma::verbs::VerbsError;
use serde_json::json;

use super::raw::Raw;
use super::{Attack, Target};

const QUEUE_BYTES: u64 = 1 << 20;
/// Contexts: one of the user's is the honest program's.
const CONTEXTS: usize = 31;
const AT_A_TIME: usize = 256;

pub(super) fn run(target: &Target) -> Result<Attack> {
    let mut contexts =
        (0..CONTEXTS).map(|_| Raw::open(&target.socket, QUEUE_BYTES)).collect::<Result<Vec<_>>>()?;
    let (mut made, mut refused) = (0_usize, 0_usize);
    for context in &mut contexts {
        loop {
            let results = context.execute(&vec![Request::CreateId(None); AT_A_TIME])?;
            let ok = results.iter().filter(|result| result.is_ok()).count();
            let full = results.iter().filter(|result| matches!(result, Err(VerbsError::NoResources))).count();
            ensure!(ok + full == results.len(), "{results:?}");
            made += ok;
            refused += full;
            if full > 0 {
                break;
            }
        }
    }
    ensure!(made > 0 && refused >= CONTEXTS, "{made} ids, and no limit");
    std::thread::sleep(std::time::Duration::from_secs(target.seconds));
    Ok((json!({ "case": "ids", "ids": made }), Box::new(contexts)))
}
