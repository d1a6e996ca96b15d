//! One page with everything on it: figures, tables, plots. It needs nothing from elsewhere.

use std::fmt::Write as _;

use super::{Figure, SuiteReport};
use crate::document::{Document, Row, Section, digits};
use crate::peers::Absent;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#d0d7de;--soft:#656d76;--good:#1a7f37;--bad:#cf222e;--head:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--line:#30363d;--soft:#8b949e;--good:#3fb950;--bad:#f85149;--head:#161b22}}
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem}h3{font-size:1rem;margin-bottom:.3rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{border:1px solid var(--line);padding:.25rem .6rem;text-align:left;vertical-align:top}
th{background:var(--head)}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
small,.soft{color:var(--soft)}.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}
svg{max-width:100%;height:auto}code{font-size:.85em}nav a{margin-right:.8rem}";

/// The page; `plots` are those of the documents, in their order.
pub(super) fn html(report: &SuiteReport, plots: &[Option<String>]) -> String {
    let mut page = String::new();
    let out = &mut page;
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Ironwarp, measured</title>\n\
         <style>{STYLE}</style></head>\n<body>\n<h1>Ironwarp, measured</h1>\n"
    );
    machine(out, report);
    figures(out, &report.figures);
    if !report.absent.is_empty() {
        out.push_str("<h2>Not measured</h2>\n<ul>\n");
        for Absent { what, why } in &report.absent {
            let _ = writeln!(out, "<li>{}: {}</li>", escape(what), escape(why));
        }
        out.push_str("</ul>\n");
    }
    for (document, plot) in report.documents.iter().zip(plots) {
        benchmark(out, document, plot.as_deref());
    }
    out.push_str("</body>\n</html>\n");
    page
}

fn machine(out: &mut String, report: &SuiteReport) {
    let Some(fields) = report.documents.first().and_then(|document| document.machine.as_object()) else {
        return;
    };
    let of = |(name, value): (&String, &serde_json::Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{} {}", escape(name), escape(&value))
    };
    let parts: Vec<String> = fields.iter().map(of).collect();
    let _ = writeln!(out, "<p class=\"soft\">{}; {:.0} s in all</p>", parts.join(" · "), report.seconds);
}

fn figures(out: &mut String, figures: &[Figure]) {
    out.push_str(
        "<h2>The figures</h2>\n<div class=\"scroll\"><table>\n<tr><th>figure</th><th>asked (aim)</th>\
         <th>measured</th><th></th><th>made from</th></tr>\n",
    );
    for figure in figures {
        let class = match figure.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "soft",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"{class}\">{}</td><td>{}</td></tr>",
            escape(figure.asked),
            escape(&figure.bound_text()),
            figure.measured.map_or_else(|| "–".to_owned(), digits),
            figure.verdict(),
            escape(&figure.evidence()).replace(" | ", "<br>")
        );
    }
    out.push_str("</table></div>\n");
}

fn benchmark(out: &mut String, document: &Document, plot: Option<&str>) {
    let _ = writeln!(out, "<h2>{}</h2>", escape(&document.benchmark));
    let _ = writeln!(
        out,
        "<details><summary class=\"soft\">options</summary><code>{}</code></details>",
        escape(&document.options.to_string())
    );
    if let Some(plot) = plot {
        let _ = writeln!(out, "<figure>{plot}</figure>");
    }
    for section in document.sections() {
        table(out, &section);
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
    let keys = names(|row| row.of.iter().map(|(name, _)| name.as_str()).collect());
    let cells = names(|row| row.cells.iter().map(|(name, _)| name.as_str()).collect());
    if !section.name.is_empty() {
        let _ = writeln!(out, "<h3>{}</h3>", escape(&section.name));
    }
    out.push_str("<div class=\"scroll\"><table>\n<tr>");
    for name in keys.iter().chain(&cells) {
        let _ = write!(out, "<th>{}</th>", escape(name));
    }
    out.push_str("</tr>\n");
    for row in &section.rows {
        out.push_str("<tr>");
        for key in &keys {
            let value = row.of.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value);
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::suite::figures;

    #[test]
    fn the_page_has_everything_and_needs_nothing() {
        let document = Document {
            benchmark: "write-bw".to_owned(),
            machine: json!({"cpu": "a <fast> one"}),
            options: json!({}),
            report: json!({"rows": [{"size": 64, "gbps": {"median": 2.0, "min": 1.0, "max": 3.0, "runs": [1.0, 2.0, 3.0]}}]}),
        };
        let documents = vec![document];
        let report = SuiteReport {
            figures: figures::figures(&documents),
            absent: vec![Absent { what: "sockperf".to_owned(), why: "not installed".to_owned() }],
            seconds: 1.0,
            documents,
            page: "report.html".into(),
        };
        let page = html(&report, &[Some("<svg>plot</svg>".to_owned())]);
        for wanted in [
            "a &lt;fast&gt; one",
            "sockperf: not installed",
            "<svg>plot</svg>",
            "2.00 <small>1.00–3.00</small>",
            "not measured",
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
