//! SVG plots of reports: bandwidth over message size, latency over percentiles.
//!
//! `report.rs` draws them for `--svg`; `readme.rs` draws those of README.md. Text takes the color of the page around
//! it, or follows the reader's preference for light or dark.

mod bars;
mod diagram;
pub mod readme;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Circle, DrawingArea, IntoDrawingArea, IntoFont, LineSeries, RGBColor, SVGBackend,
    SeriesLabelPosition, TRANSPARENT,
};
use plotters::style::{Color, ShapeStyle, TextStyle};
use serde_json::Value;

use crate::document::{Row, digits, sections};

/// Width and height of a plot, pixels.
const SIZE: (u32, u32) = (860, 400);
/// Placeholder for the color of text, which the surrounding page determines.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_IN_SVG: &str = "#010203";
const GRID: RGBColor = RGBColor(128, 128, 128);
/// Colors of the series; color-blind readers can distinguish them, on white and on black.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 150, 220),
    RGBColor(200, 140, 0),
    RGBColor(150, 110, 210),
    RGBColor(128, 128, 128),
];
/// Largest percentile, as a number of nines.
const NINES_MAX: f64 = 5.0;
/// Intervals of a line of percentiles.
const STEPS: u32 = 100;
const STYLE: &str = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>";

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Meaning of the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// x: log₂ of a message's bytes; y: 10⁹ bit/s.
    Rate,
    /// x: nines of the percentile, 1 for the 90th; y: log₁₀ of nanoseconds.
    Latency,
}

/// A plot with its series.
#[derive(Clone, Debug, PartialEq)]
struct Plot {
    kind: Kind,
    title: String,
    series: Vec<Series>,
}

/// Draws the plots of a report; `None` if it has neither message sizes nor distributions.
///
/// # Errors
/// The drawing library fails.
pub(crate) fn svg(
    benchmark: &str,
    report: &Value,
    histograms: &[(String, &Histogram<u64>)],
) -> Result<Option<String>> {
    if benchmark == "programs" {
        let bars = bars::bars(report);
        return if bars.is_empty() { Ok(None) } else { bars::draw(&bars, "").map(Some) };
    }
    let mut plots = rates(benchmark, report);
    plots.extend(latencies(benchmark, histograms));
    if plots.is_empty() { Ok(None) } else { draw(&plots, "").map(Some) }
}

/// Removes the keys that are equal in all rows, so that labels show the differences.
fn remove_common_keys(rows: &mut [Row]) {
    let Some(first) = rows.first().cloned() else { return };
    let common = |part: &(String, String)| rows.iter().all(|row| row.keys.contains(part));
    let common: Vec<_> = first.keys.into_iter().filter(|part| part.0 != "mtu" && common(part)).collect();
    for row in rows {
        row.keys.retain(|part| !common.contains(part));
    }
}

/// Returns a plot for each section with rows of several message sizes.
fn rates(benchmark: &str, report: &Value) -> Vec<Plot> {
    let mut plots = Vec::new();
    for mut section in sections(report) {
        let mut series: Vec<Series> = Vec::new();
        remove_common_keys(&mut section.rows);
        for row in &section.rows {
            let (Some(size), Some(gbps)) = (message_size(row), row.cell("gbps")) else { continue };
            let others = row.keys.iter().filter(|(name, _)| name != "size" && name != "message_bytes");
            let name = Row { keys: others.cloned().collect(), cells: Vec::new() }.label();
            let point = (size.log2(), gbps.median);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series { name, points: vec![point] }),
            }
        }
        series.retain(|series| series.points.len() > 1);
        if !series.is_empty() {
            let title = format!("{benchmark}: payload, Gbit/s, over bytes of a message");
            plots.push(Plot { kind: Kind::Rate, title, series });
        }
    }
    plots
}

fn message_size(row: &Row) -> Option<f64> {
    let found = row.keys.iter().find(|(name, _)| name == "size" || name == "message_bytes")?;
    found.1.parse::<f64>().ok().filter(|size| *size >= 1.0)
}

/// Returns a plot of all distributions.
fn latencies(benchmark: &str, histograms: &[(String, &Histogram<u64>)]) -> Option<Plot> {
    let mut series = Vec::new();
    for (name, histogram) in histograms.iter().filter(|(_, histogram)| !histogram.is_empty()) {
        // The samples determine the largest percentile.
        let nines = (histogram.len() as f64).log10().min(NINES_MAX);
        let points = (0..=STEPS).map(|step| {
            let at = f64::from(step) / f64::from(STEPS) * nines;
            let value = histogram.value_at_quantile(1.0 - 10_f64.powf(-at)).max(1);
            (at, (value as f64).log10())
        });
        series.push(Series { name: name.clone(), points: points.collect() });
    }
    let title = format!("{benchmark}: round trip, µs, over percentiles");
    (!series.is_empty()).then_some(Plot { kind: Kind::Latency, title, series })
}

impl Kind {
    fn x_label(self, x: f64) -> String {
        match self {
            Self::Rate => size_label(x.exp2()),
            Self::Latency => {
                let percent = 100.0 * (1.0 - 10_f64.powf(-x));
                let decimals = [2.0, 3.0, 4.0].iter().filter(|nines| x > **nines + 1e-9).count();
                format!("{percent:.decimals$} %")
            }
        }
    }

    fn y_label(self, y: f64) -> String {
        match self {
            Self::Rate => digits(y),
            Self::Latency => digits(10_f64.powf(y) / 1000.0),
        }
    }
}

/// Formats a size: `64`, `4 K`, `1 M`.
fn size_label(bytes: f64) -> String {
    let units = [(f64::from(1 << 20), " M"), (1024.0, " K")];
    let (unit, name) = units.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1.0, ""));
    format!("{:.0}{name}", bytes / unit)
}

/// Draws plots below each other; `about` describes them to readers who do not see them, if it is not empty.
fn draw(plots: &[Plot], about: &str) -> Result<String> {
    let (width, height) = SIZE;
    let count = u32::try_from(plots.len())?;
    let mut text = String::new();
    {
        let root =
            SVGBackend::with_string(&mut text, (width, height.saturating_mul(count))).into_drawing_area();
        for (plot, area) in plots.iter().zip(root.split_evenly((plots.len(), 1))) {
            draw_one(plot, &area).map_err(|error| anyhow!("drawing {}: {error}", plot.title))?;
        }
        root.present().map_err(|error| anyhow!("drawing: {error}"))?;
    }
    Ok(page_colors(&text, about))
}

/// Adds a description and a style to an SVG, and replaces [`INK`] by the page's color of text.
fn page_colors(svg: &str, about: &str) -> String {
    let text = svg.replace(INK_IN_SVG, "currentColor");
    let Some((head, rest)) = text.split_once("xmlns=") else { return text };
    let Some((attributes, body)) = rest.split_once('>') else { return format!("{head}xmlns={rest}") };
    let about = about.replace('&', "&amp;").replace('<', "&lt;");
    let about = if about.is_empty() { about } else { format!("<desc>{about}</desc>\n") };
    format!("{head}xmlns={attributes}>\n{about}{STYLE}{body}")
}

fn draw_one(
    plot: &Plot,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let kind = plot.kind;
    let points = || plot.series.iter().flat_map(|series| series.points.iter().copied());
    let least = |of: fn((f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn((f64, f64)) -> f64| points().map(of).fold(f64::NEG_INFINITY, f64::max);
    let x = least(|point| point.0)..most(|point| point.0);
    let y = match kind {
        Kind::Rate => 0.0..(most(|point| point.1) * 1.1).max(f64::MIN_POSITIVE),
        Kind::Latency => {
            least(|point| point.1).floor()
                ..most(|point| point.1).ceil().max(least(|point| point.1).floor() + 1.0)
        }
    };
    let small = || TextStyle::from(("sans-serif", 13).into_font()).color(&INK);
    let title = TextStyle::from(("sans-serif", 16).into_font()).color(&INK);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(&plot.title, title)
        .x_label_area_size(32)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID.mix(0.35))
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(small())
        .x_labels(12)
        .x_label_formatter(&|x| kind.x_label(*x))
        .y_label_formatter(&|y| kind.y_label(*y))
        .draw()?;
    for (series, color) in plot.series.iter().zip(COLORS.iter().cycle()) {
        let line = ShapeStyle { color: color.to_rgba(), filled: true, stroke_width: 2 };
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), line))?
            .label(&series.name)
            .legend(move |(x, y)| plotters::element::PathElement::new([(x, y), (x + 16, y)], line));
        if kind == Kind::Rate {
            chart.draw_series(series.points.iter().map(|point| Circle::new(*point, 3, line)))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(small())
        .border_style(TRANSPARENT)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        let row = |mtu: u16, size: u32, gbps: f64| json!({"mtu": mtu, "size": size, "gbps": gbps});
        json!({"rows": [row(1500, 64, 1.0), row(1500, 65536, 30.0), row(9000, 64, 2.0), row(9000, 65536, 50.0)]})
    }

    #[test]
    fn rows_that_differ_in_size_form_a_line() {
        let plots = rates("write-bw", &report());
        let names: Vec<&str> = plots[0].series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!((plots.len(), names), (1, vec!["mtu 1500", "mtu 9000"]));
        assert_eq!(plots[0].series[1].points, [(6.0, 2.0), (16.0, 50.0)]);
        assert!(rates("one", &json!({"rows": [{"size": 1, "gbps": 2.0}]})).is_empty());
    }

    #[test]
    fn a_plot_is_svg_with_the_colors_of_its_page() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        (1..=1000).for_each(|value| histogram.record(value * 1000).unwrap());
        let text = svg("write-bw", &report(), &[("64".to_owned(), &histogram)]).unwrap().unwrap();
        assert!(
            text.starts_with("<svg") && text.contains("prefers-color-scheme") && text.ends_with("</svg>\n")
        );
        assert!(text.contains("currentColor") && !text.contains(INK_IN_SVG));
        assert!(text.contains("mtu 9000") && text.contains("99.9 %"), "{text}");
        assert_eq!(svg("none", &json!({"rows": []}), &[]).unwrap(), None);
    }

    #[test]
    fn axes_are_labeled() {
        assert_eq!([64.0, 4096.0, 1_048_576.0].map(size_label), ["64", "4 K", "1 M"]);
        assert_eq!([0.0, 1.0, 2.0, 3.0].map(|x| Kind::Latency.x_label(x)), ["0 %", "90 %", "99 %", "99.9 %"]);
        assert_eq!(Kind::Latency.y_label(3.0), "1.00");
    }
}
