//! Formats replies about regions.

use iwarp_control::{Backing, Origin, RegionDeregistered, RegionInfo};
use iwarp_terminal::units;
use rdma::Access;

use super::{Width, list as names, pairs, table, yes_no};

/// Formats all regions in columns.
pub(crate) fn list(regions: &[RegionInfo], width: Width) -> String {
    let rows = regions.iter().map(|region| {
        vec![
            region.name.clone(),
            units::size(region.bytes),
            rights(region.access),
            yes_no(region.token_required).to_owned(),
            names(&region.allow),
            region.grants.to_string(),
            units::size(region.bytes_placed),
            units::size(region.bytes_fetched),
            backing(region),
            origin(region.origin).to_owned(),
        ]
    });
    let header =
        ["NAME", "SIZE", "ACCESS", "TOKEN", "ALLOW", "GRANTS", "PLACED", "FETCHED", "BACKING", "ORIGIN"];
    let spare = ["ORIGIN", "BACKING", "FETCHED", "PLACED", "TOKEN", "ALLOW"];
    table(width, &header, &spare, rows)
}

/// Formats one region, a line per property.
pub(crate) fn show(region: &RegionInfo, width: Width) -> String {
    pairs(
        width,
        &[
            ("name", region.name.clone()),
            ("bytes", format!("{} ({})", region.bytes, units::size(region.bytes))),
            ("access", rights(region.access)),
            ("token_required", yes_no(region.token_required).to_owned()),
            ("allow", names(&region.allow)),
            ("backing", backing(region)),
            ("origin", origin(region.origin).to_owned()),
            ("grants", region.grants.to_string()),
            ("bytes_placed", region.bytes_placed.to_string()),
            ("bytes_fetched", region.bytes_fetched.to_string()),
            ("instance", region.instance.to_string()),
        ],
    )
}

/// Formats the reply to `region register`.
pub(crate) fn registered(region: &RegionInfo) -> String {
    format!(
        "region {}  {}  {}  {}\n",
        region.name,
        units::size(region.bytes),
        rights(region.access),
        backing(region)
    )
}

/// Formats the reply to `region deregister`.
pub(crate) fn deregistered(region: &RegionDeregistered) -> String {
    let grants = if region.grants_revoked == 1 { "grant" } else { "grants" };
    format!("region {} is gone, {} {grants} revoked\n", region.name, region.grants_revoked)
}

pub(crate) fn rights(access: Access) -> String {
    names(&access.names().collect::<Vec<_>>())
}

fn backing(region: &RegionInfo) -> String {
    let kind = match region.backing {
        Backing::Hugepages => "hugepages",
        Backing::Pages => "pages",
    };
    format!("{kind} of {}", units::size(region.page_bytes))
}

pub(crate) const fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Config => "config",
        Origin::Control => "control",
    }
}
