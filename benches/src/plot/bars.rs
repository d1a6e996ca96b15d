//! Bars: the bandwidth of programs on interfaces of the kernel, beside that of the kernel's TCP.

use anyhow::{Result, anyhow};
use plotters::prelude::{IntoDrawingArea, IntoFont, Rectangle, SVGBackend, Text};
use plotters::style::{Color, TextStyle};
use serde_json::Value;

use super::{COLORS, INK, SIZE, page_colors};
use crate::document::{Row, digits, sections};

/// Height of a bar with the gap below it, and of the title, pixels.
const STEP: i32 = 26;
const TITLE: i32 = 40;
/// Where bars begin and may end, pixels: a label before, a number behind.
const FROM: i32 = 360;
const TO: i32 = 800;

/// A row with a bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) gbps: f64,
    /// It is the kernel's TCP.
    is_peer: bool,
}

/// Returns a bar for each row of a report of `programs` that has a bandwidth.
pub(super) fn bars(report: &Value) -> Vec<Bar> {
    let of = |row: Row| {
        let key = |name: &str| Some(row.keys.iter().find(|(of, _)| of == name)?.1.clone());
        let gbps = row.cell("gbps").map(|samples| samples.median);
        let gbps = gbps.or_else(|| Some(row.cell("mb_per_s")?.median * 8.0 / 1e3))?;
        let over = key("over")?;
        let size = super::size_label(key("size")?.parse().ok()?);
        let is_peer = over.starts_with("kernel TCP");
        Some(Bar { name: format!("{}, {size}iB: {over}", key("program")?), gbps, is_peer })
    };
    sections(report).into_iter().flat_map(|section| section.rows).filter_map(of).collect()
}

/// Draws bars below each other; `about` describes them to readers who do not see them.
pub(super) fn draw(bars: &[Bar], about: &str) -> Result<String> {
    let most = bars.iter().map(|bar| bar.gbps).fold(f64::MIN_POSITIVE, f64::max);
    let rows = i32::try_from(bars.len())?;
    let height = u32::try_from(TITLE + STEP * rows + STEP / 2)?;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (SIZE.0, height)).into_drawing_area();
        let failed = |error| anyhow!("drawing bars: {error}");
        let title = TextStyle::from(("sans-serif", 16).into_font()).color(&INK);
        let small = TextStyle::from(("sans-serif", 13).into_font()).color(&INK);
        let heading = "programs on interfaces of the kernel: Gbit/s of payload".to_owned();
        area.draw(&Text::new(heading, (12, 10), title)).map_err(failed)?;
        for (row, Bar { name, gbps, is_peer }) in (0..).zip(bars) {
            let top = TITLE + STEP * row;
            let to = (FROM..TO)
                .find(|to| f64::from(to - FROM) >= gbps / most * f64::from(TO - FROM))
                .unwrap_or(TO);
            let color = COLORS[usize::from(*is_peer)].filled();
            area.draw(&Text::new(name.clone(), (12, top + 3), small.clone())).map_err(failed)?;
            area.draw(&Rectangle::new([(FROM, top), (to, top + STEP - 8)], color)).map_err(failed)?;
            area.draw(&Text::new(digits(*gbps), (to + 6, top + 3), small.clone())).map_err(failed)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(page_colors(&text, about))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_with_a_bandwidth_are_bars() {
        let samples = |value: f64| json!({"median": value, "min": value, "max": value, "runs": [value]});
        let report = json!({"rows": [
            {"program": "ib_write_bw", "over": "two daemons, bridge", "size": 65536, "gbps": samples(18.0)},
            {"program": "UCX put", "over": "kernel TCP, bridge", "size": 65536, "gbps": samples(6.0)},
            {"program": "ib_send_lat", "over": "two daemons, bridge", "size": 64, "half_round_trip_us": samples(9.0)},
            {"program": "NFS READ", "over": "kernel TCP; veth", "size": 1_048_576, "mb_per_s": samples(1000.0)},
        ]});
        let bars = bars(&report);
        let of: Vec<_> = bars.iter().map(|bar| (bar.gbps, bar.is_peer)).collect();
        assert_eq!(of, [(18.0, false), (6.0, true), (8.0, true)]);
        assert_eq!(bars[0].name, "ib_write_bw, 64 KiB: two daemons, bridge");
        let text = draw(&bars, "a description").unwrap();
        assert!(text.contains("18.0") && text.contains("<desc>a description</desc>"), "{text}");
        assert_eq!(text.matches("<rect").count(), 3);
    }
}
