//! The daemon's state at one moment, by methods of the control socket.

use iwarp_control::{
    AppInfo, AppListMethod, Client, ConnInfo, ConnListMethod, DropsMethod, NoParams, RegionInfo,
    RegionListMethod, Status, StatusMethod,
};
use iwarp_terminal::Failure;

/// The daemon's state at one moment.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct Sample {
    /// Workers, ports, and totals.
    pub(super) status: Status,
    /// The connections of all workers.
    pub(super) conns: Vec<ConnInfo>,
    /// All regions, by name.
    pub(super) regions: Vec<RegionInfo>,
    /// All applications, by number.
    pub(super) apps: Vec<AppInfo>,
    /// Frames, FPDUs and requests dropped or refused since the start of the daemon.
    pub(super) drops: u64,
}

impl Sample {
    /// Asks the daemon, in five requests.
    pub(super) fn take(client: &mut Client) -> Result<Self, Failure> {
        let drops = client.call::<DropsMethod>(&NoParams {})?;
        Ok(Self {
            status: client.call::<StatusMethod>(&NoParams {})?,
            conns: client.call::<ConnListMethod>(&NoParams {})?,
            regions: client.call::<RegionListMethod>(&NoParams {})?,
            apps: client.call::<AppListMethod>(&NoParams {})?,
            drops: drops.iter().fold(0, |sum, row| sum.saturating_add(row.count)),
        })
    }
}
