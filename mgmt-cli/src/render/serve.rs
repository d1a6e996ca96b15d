//! Formats the regions of `iwarpctl serve`.

use iwarp_terminal::units;
use iwarp_verbs::OfferStats;

use super::{Width, list as names, table, yes_no};
use crate::serve::Serving;

/// Formats a server that is ready: its addresses, and a row per region.
pub(crate) fn ready(serving: &Serving, width: Width) -> String {
    let rows = serving.regions.iter().map(|region| {
        vec![
            region.name.clone(),
            units::size(region.bytes),
            region.access.join(","),
            yes_no(region.token_required).to_owned(),
            names(&region.allow),
            region.file.as_ref().map_or_else(|| "memory".to_owned(), |file| file.display().to_string()),
        ]
    });
    let header = ["NAME", "SIZE", "ACCESS", "TOKEN", "ALLOW", "CONTENT"];
    let regions = table(width, &header, &["ALLOW", "TOKEN"], rows);
    format!("serving at {}; Ctrl-C ends it\n{regions}", names(&serving.addresses))
}

/// Formats the counters of regions that are served no more.
pub(crate) fn ended<'a>(regions: impl Iterator<Item = (&'a str, OfferStats)>, width: Width) -> String {
    let rows = regions.map(|(name, stats)| {
        let OfferStats { bytes_placed, bytes_fetched, .. } = stats;
        vec![name.to_owned(), units::size(bytes_placed), units::size(bytes_fetched)]
    });
    table(width, &["NAME", "PLACED", "FETCHED"], &[], rows)
}
