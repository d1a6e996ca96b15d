//! Renders report.html: figures, tables and plots on one page without references to other files.

use std::fmt::Write as _;

use super::{Figure, Part, SuiteReport};
use crate::document::{Document, Row, Section, digits};
use crate::peers::NotMeasured;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#d0d7de;--soft:#656d76;--good:#1a7f37;--bad:#cf222e;--head:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--line:#30363d;--soft:#8b949e;--good:#3fb950;--bad:#f85149;--head:#161b22}}
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem}h3{font-size:1rem;margin-bottom:.3rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{border:1px solid var(--line);padding:.25rem .6rem;text-align:left;vertical-align:top}
th{background:var(--head)}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
small,.soft{color:var(--soft)}.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}
figure{margin:.5rem 0;overflow-x:auto}svg{max-width:100%;min-width:34rem;height:auto}code{font-size:.85em}
nav{font-size:.85rem;line-height:1.8}nav a{margin-right:.8rem;white-space:nowrap}td.v{white-space:nowrap}
@media(max-width:40rem){body{margin:1rem auto;padding:0 .6rem}h1{font-size:1.3rem}
th,td{padding:.2rem .35rem}td:first-child{min-width:9rem}}";

/// Renders the page; `parts` has a title and a plot for each document, in the same order.
pub(super) fn html(report: &SuiteReport, parts: &[Part]) -> String {
    let mut page = String::new();
    let out = &mut page;
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>Ironwarp, measured</title>\n\
         <style>{STYLE}</style></head>\n<body>\n<h1>Ironwarp, measured</h1>\n"
    );
    machine(out, report);
    contents(out, parts);
    figures(out, &report.figures);
    if !report.absent.is_empty() {
        out.push_str("<h2>Not measured</h2>\n<ul>\n");
        for NotMeasured { what, why } in &report.absent {
            let _ = writeln!(out, "<li>{}: {}</li>", escape(what), escape(why));
        }
        out.push_str("</ul>\n");
    }
    for (number, (document, part)) in report.documents.iter().zip(parts).enumerate() {
        benchmark(out, number, document, part);
    }
    out.push_str("</body>\n</html>\n");
    page
}

fn machine(out: &mut String, report: &SuiteReport) {
    let Some(machine) = report.documents.first().map(|document| &document.machine) else { return };
    let text = |name: &str| machine.get(name).and_then(|value| value.as_str()).unwrap_or("?").to_owned();
    let number = |name: &str| machine.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let mib = |name| digits(number(name) as f64 / f64::from(1 << 20));
    let parts = [
        format!("{}, {} CPUs", text("cpu"), number("cpus")),
        format!("L2 {} MiB, last-level cache {} MiB", mib("l2_bytes"), mib("llc_bytes")),
        format!("{}, DPDK {}", text("kernel"), text("dpdk")),
        format!("commit {}, build {}", text("commit"), text("build")),
        format!("{}, {:.0} s in all", text("date"), report.seconds),
    ];
    let _ = writeln!(out, "<p class=\"soft\">{}</p>", parts.map(|part| escape(&part)).join(" · "));
}

/// Writes links to the benchmarks on the page.
fn contents(out: &mut String, parts: &[Part]) {
    out.push_str("<nav><a href=\"#figures\">figures</a>\n");
    for (number, Part { title, .. }) in parts.iter().enumerate() {
        let _ = writeln!(out, "<a href=\"#b{number}\">{}</a>", escape(title));
    }
    out.push_str("</nav>\n");
}

fn figures(out: &mut String, figures: &[Figure]) {
    let count = |met| figures.iter().filter(|figure| figure.met == met).count();
    let (met, missed, unknown) = (count(Some(true)), count(Some(false)), count(None));
    let _ = writeln!(
        out,
        "<h2 id=\"figures\">The figures</h2>\n<p>{met} met, {missed} not met, {unknown} not measured. A figure of two \
         quantities is the first divided by the second. Ironwarp computes and verifies CRC32c and TCP checksums in \
         software in all of them; the kernel has no CRC, and with offloads a veth pair carries no checksum.</p>"
    );
    out.push_str(
        "<div class=\"scroll\"><table>\n<tr><th>figure</th><th>threshold (aim)</th>\
         <th>measured</th><th></th><th>quantities</th></tr>\n",
    );
    for figure in figures {
        let class = match figure.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "soft",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"v {class}\">{}</td><td>{}</td></tr>",
            escape(figure.title),
            escape(&figure.bound_text()),
            figure.measured.map_or_else(|| "–".to_owned(), digits),
            figure.verdict(),
            escape(&figure.evidence()).replace(" | ", "<br>")
        );
    }
    out.push_str("</table></div>\n");
}

fn benchmark(out: &mut String, number: usize, document: &Document, Part { title, plot }: &Part) {
    let _ = writeln!(out, "<h2 id=\"b{number}\">{}</h2>", escape(title));
    let _ = writeln!(
        out,
        "<details><summary class=\"soft\">options</summary><code>{}</code></details>",
        escape(&document.options.to_string())
    );
    if let Some(plot) = plot {
        let _ = writeln!(out, "<figure>{plot}</figure>");
    }
    // The section `absent` is listed at the top of the page.
    for section in document.sections().iter().filter(|section| section.name != "absent") {
        table(out, section);
    }
}

fn table(out: &mut String, section: &Section) {
    let names = |of: fn(&Row) -> Vec<&str>| {
        let mut found: Vec<String> = Vec::new();
        for name in section.rows.iter().flat_map(of) {
            if !found.iter().any(|known| known == name) {
                found.push(name.to_owned());
            }
        }
        found
    };
    let keys = names(|row| row.keys.iter().map(|(name, _)| name.as_str()).collect());
    let cells = names(|row| row.cells.iter().map(|(name, _)| name.as_str()).collect());
    if !section.name.is_empty() {
        let _ = writeln!(out, "<h3>{}</h3>", escape(&section.name));
    }
    out.push_str("<div class=\"scroll\"><table>\n<tr>");
    for name in keys.iter().chain(&cells) {
        let _ = write!(out, "<th>{}</th>", escape(&heading(name)));
    }
    out.push_str("</tr>\n");
    for row in &section.rows {
        out.push_str("<tr>");
        for key in &keys {
            let value = row.keys.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value);
            let _ = write!(out, "<td>{}</td>", escape(value));
        }
        for cell in &cells {
            out.push_str("<td class=\"n\">");
            if let Some(samples) = row.cell(cell) {
                out.push_str(&digits(samples.median));
                if samples.runs.len() > 1 {
                    let _ = write!(out, " <small>{}–{}</small>", digits(samples.min), digits(samples.max));
                }
            }
            out.push_str("</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// Returns the heading of a column, from the name of a field: words, then the unit.
fn heading(field: &str) -> String {
    const PARTS: [&str; 6] =
        ["histogram.", "wire.", "weather.", "request.", "segment.", "connect_and_close."];
    const UNITS: [(&str, &str); 11] = [
        ("_s_per_gib", ", s/GiB"),
        ("_per_byte", " per byte"),
        ("_per_second", " per second"),
        ("_per_gib", " per GiB"),
        ("_bytes", ", bytes"),
        ("_kib", ", KiB"),
        ("_ns", ", ns"),
        ("_us", ", µs"),
        ("gbps", "Gbit/s"),
        ("gbit_s", "Gbit/s"),
        ("mpps", "10⁶/s"),
    ];
    const NAMES: [(&str, &str); 6] = [
        ("size", "message, bytes"),
        ("mtu", "MTU"),
        ("crc", "CRC"),
        ("qps", "queue pairs"),
        ("cpu", "CPU"),
        ("gbps_peak", "best run, Gbit/s"),
    ];
    let mut name = field;
    for part in PARTS {
        name = name.strip_prefix(part).unwrap_or(name);
    }
    let known = |name: &str| NAMES.iter().find(|(of, _)| *of == name).map(|(_, words)| (*words).to_owned());
    let words = |name: &str| {
        let percentile =
            name.strip_prefix('p').filter(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()));
        match percentile {
            Some(digits) => format!("p{}", digits.replace('_', ".").replace("999", "99.9")),
            None => known(name).unwrap_or_else(|| name.replace(['_', '.'], " ")),
        }
    };
    let unit = UNITS.iter().find_map(|(end, unit)| Some((name.strip_suffix(end)?, *unit)));
    match unit {
        Some(("", unit)) => unit.to_owned(),
        Some((name, unit)) => format!(
            "{}{}{unit}",
            words(name.trim_end_matches('_')),
            if unit.starts_with([',', ' ']) { "" } else { ", " }
        ),
        None => words(name),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::suite::figures;

    #[test]
    fn headings_have_words_and_units() {
        for (field, head) in [
            ("gbps", "Gbit/s"),
            ("gbps_peak", "best run, Gbit/s"),
            ("fast_gbps", "fast, Gbit/s"),
            ("wire.mtu", "MTU"),
            ("histogram.p99_9_ns", "p99.9, ns"),
            ("p999_us", "p99.9, µs"),
            ("cpu_busy_s_per_gib", "cpu busy, s/GiB"),
            ("cpu_s_per_gib", "CPU, s/GiB"),
            ("held_per_byte", "held per byte"),
            ("message_bytes", "message, bytes"),
        ] {
            assert_eq!(heading(field), head, "{field}");
        }
    }

    #[test]
    fn the_page_has_all_results_and_no_references() {
        let gbps = json!({"median": 2.0, "min": 1.0, "max": 3.0, "runs": [1.0, 2.0, 3.0]});
        let document = Document {
            benchmark: "write-bw".to_owned(),
            machine: json!({"cpu": "a <fast> one"}),
            options: json!({}),
            report: json!({"rows": [{"size": 64, "gbps": gbps}]}),
        };
        let documents = vec![document];
        let report = SuiteReport {
            figures: figures::figures(&documents),
            absent: vec![NotMeasured { what: "sockperf".to_owned(), why: "not installed".to_owned() }],
            seconds: 1.0,
            documents,
            page: "report.html".into(),
        };
        let part = Part { title: "write-bw -a".to_owned(), plot: Some("<svg>plot</svg>".to_owned()) };
        let page = html(&report, &[part]);
        for wanted in [
            "a &lt;fast&gt; one",
            "sockperf: not installed",
            "<svg>plot</svg>",
            "2.00 <small>1.00–3.00</small>",
            "not measured",
            "<h2 id=\"b0\">write-bw -a</h2>",
            "<th>Gbit/s</th>",
        ] {
            assert!(page.contains(wanted), "{wanted} is not on the page");
        }
        for elsewhere in ["http:", "https:", "<script", "@import", "src="] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        for tag in ["table", "tr", "td", "div", "html"] {
            let opened =
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
