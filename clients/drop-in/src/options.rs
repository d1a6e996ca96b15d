//! Options of ids (`rdma_set_option`).

use std::ffi::c_int;

use crate::cm::{Id, Stage};
use crate::cm_calls::failed;
use crate::context::lock;

// `RDMA_OPTION_ID`, and its options.
const OPTION_ID: c_int = 0;
const OPTION_TOS: c_int = 0;
const OPTION_REUSEADDR: c_int = 1;
const OPTION_AFONLY: c_int = 2;
const OPTION_ACK_TIMEOUT: c_int = 3;

/// Sets an option of an id. It takes effect, or the call fails.
pub(crate) fn set_option(id: &Id, option: (c_int, c_int), value: &[u8]) -> Result<(), c_int> {
    let number = || value.try_into().map(c_int::from_ne_bytes).map_err(|_| libc::EINVAL);
    let mut inner = lock(&id.state.inner);
    match (option, value) {
        ((OPTION_ID, OPTION_TOS), [class]) => {
            inner.traffic_class = *class;
            inner.ids.iter().try_for_each(|(of, _)| of.set_traffic_class(*class)).map_err(failed)
        }
        // The timeout of TCP follows the round-trip time: without effect for iWARP, as with the kernel.
        ((OPTION_ID, OPTION_ACK_TIMEOUT), [_]) => Ok(()),
        ((OPTION_ID, OPTION_TOS | OPTION_ACK_TIMEOUT), _) => Err(libc::EINVAL),
        // Ids may have the same address until one of them listens.
        ((OPTION_ID, OPTION_REUSEADDR), _) => match (number()?, inner.stage) {
            (_, Stage::Idle) => Ok(()),
            (0, _) | (_, Stage::Listening) => Err(libc::EINVAL),
            _ => Ok(()),
        },
        ((OPTION_ID, OPTION_AFONLY), _) => {
            let one_family = number()? != 0;
            if !matches!(inner.stage, Stage::Idle | Stage::Bound) {
                return Err(libc::EINVAL);
            }
            inner.one_family = one_family;
            Ok(())
        }
        _ => Err(libc::ENOSYS),
    }
}
