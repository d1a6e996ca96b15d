//! Draws the state of `top` on a screen of any size.

use std::time::Duration;

use iwarp_control::State;
use iwarp_terminal::units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::model::{Mode, Model};
use super::rates::Key;
use super::tables::{TABS, bits, columns};
use crate::args::KEYS;
use crate::render::table::{GAP, fitting, shown_of, widths};

/// The fewest rows of a screen that shows totals above the table.
const TOTALS_ROWS_MIN: u16 = 12;
/// Columns of the text before the sparkline of a total.
const TOTAL_COLUMNS: usize = 28;

/// Colors, or their absence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    /// True to use colors.
    pub(super) colored: bool,
}

impl Theme {
    fn color(self, color: Color) -> Style {
        if self.colored { Style::new().fg(color) } else { Style::new() }
    }

    fn good(self) -> Style {
        self.color(Color::Green)
    }

    fn warning(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn key(self) -> Style {
        self.color(Color::Cyan)
    }
}

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws totals, the table and the keys.
pub(super) fn screen(frame: &mut Frame<'_>, model: &mut Model, theme: Theme) {
    let area = frame.area();
    let mut head = vec![title(model, theme)];
    if area.height >= TOTALS_ROWS_MIN {
        head.extend(totals(model, area.width.into(), theme));
    }
    head.extend(warning(model, theme));
    head.push(tabs(model));
    let rows = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let parts = [Constraint::Length(rows), Constraint::Min(0), Constraint::Length(1)];
    let [above, middle, below] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(head), above);
    let hidden = table(frame, middle, model);
    frame.render_widget(footer(model, hidden, theme), below);
    if model.mode == Mode::Help {
        help(frame, area);
    }
}

fn title<'a>(model: &Model, theme: Theme) -> Line<'a> {
    let status = &model.sample.status;
    let state = match status.state {
        State::Ok => Span::styled("ok", theme.good()),
        State::Degraded => Span::styled("degraded", theme.warning()),
    };
    let mut line = Line::from(vec![
        Span::styled(format!("iwarpd {}", status.version), STRONG),
        Span::raw("  "),
        state,
        Span::raw(format!(
            "  up {}  pid {}  every {}",
            units::duration(Duration::from_millis(status.uptime_ms)),
            status.pid,
            interval(model.interval)
        )),
    ]);
    if model.paused {
        line.push_span(Span::styled("  paused", theme.warning()));
    }
    line
}

/// Formats a pause without digits that say nothing: `0.5 s`, `10 s`.
fn interval(pause: Duration) -> String {
    format!("{} s", pause.as_secs_f64())
}

/// Totals with their recent past, one line each.
fn totals<'a>(model: &Model, columns: usize, theme: Theme) -> Vec<Line<'a>> {
    let rates = &model.rates;
    let latest = |quantity, text: &dyn Fn(f64) -> String| {
        rates.latest(&Key::total(quantity)).map_or_else(|| "-".to_owned(), text)
    };
    let room = columns.saturating_sub(TOTAL_COLUMNS.saturating_add(1));
    let line = |name: &str, text: String, full: Option<f64>, quantity, style| {
        let sparkline = rates.sparkline(&Key::total(quantity), room, full);
        Line::from(vec![
            Span::styled(format!("{name:<6}"), STRONG),
            Span::raw(format!("{text:<width$} ", width = TOTAL_COLUMNS.saturating_sub(6))),
            Span::styled(sparkline, style),
        ])
    };
    let both =
        |quantity, packets| format!("{}  {}", latest(quantity, &bits), latest(packets, &units::event_rate));
    let busy = latest("busy", &|permille| format!("{:.1} % busiest worker", permille / 10.0));
    let status = &model.sample.status;
    let conns = &status.connections;
    let counts = format!(
        "{} established, {} opening, {} closing, {} time-wait  ",
        conns.established, conns.opening, conns.closing, conns.time_wait
    );
    let drops = format!(
        "{} {}",
        model.sample.drops,
        latest("drops", &|rate| format!("({})", units::event_rate(rate)))
    );
    vec![
        line("rx", both("rx", "rx packets"), None, "rx", theme.good()),
        line("tx", both("tx", "tx packets"), None, "tx", theme.key()),
        line("busy", busy, Some(1000.0), "busy", theme.color(Color::Magenta)),
        Line::from(vec![
            Span::styled("conns ", STRONG),
            Span::raw(counts),
            Span::styled("drops ", STRONG),
            Span::raw(drops),
        ]),
    ]
}

/// The reason why the daemon does not answer, or why it is degraded.
fn warning<'a>(model: &Model, theme: Theme) -> Option<Line<'a>> {
    let degraded = || {
        let (first, others) = model.sample.status.degraded.split_first()?;
        Some(if others.is_empty() { first.clone() } else { format!("{first} (and {} more)", others.len()) })
    };
    let text = model.problem.clone().or_else(degraded)?;
    Some(Line::from(vec![Span::styled("! ", theme.warning()), Span::styled(text, theme.warning())]))
}

fn tabs<'a>(model: &Model) -> Line<'a> {
    let mut spans = Vec::new();
    for (index, tab) in TABS.into_iter().enumerate() {
        let text = format!(" {} {} ", index.saturating_add(1), columns(tab).title);
        spans.push(Span::styled(text, if tab == model.tab { CHOSEN } else { Style::new() }));
    }
    let shown = model.rows().len();
    let count =
        if shown == model.objects { shown.to_string() } else { format!("{shown} of {}", model.objects) };
    spans.push(Span::styled(format!("  {count}"), STRONG));
    Line::from(spans)
}

/// Draws the table; returns the number of columns that have no room.
fn table(frame: &mut Frame<'_>, area: Rect, model: &mut Model) -> usize {
    let columns = columns(model.tab);
    let sort = model.sort();
    let mut titles: Vec<String> = columns.header.iter().map(|name| (*name).to_owned()).collect();
    if let Some(title) = titles.get_mut(sort.column) {
        title.push(if sort.descending { '▼' } else { '▲' });
    }
    let page = usize::from(area.height.saturating_sub(1));
    let (_, rows) = model.page(page);
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cell.text.clone()).collect()).collect();
    let widths = widths(titles.len(), std::iter::once(&titles).chain(&rows));
    let shown = fitting(area.width.into(), columns.header, columns.spare, &widths);
    let widths = shown_of(&widths, &shown);
    let line = |cells: &[String]| -> String {
        let cells = shown_of(cells, &shown).into_iter().zip(&widths);
        cells.map(|(cell, width)| format!("{cell:<width$}{:GAP$}", "")).collect()
    };
    let mut lines = vec![Line::styled(line(&titles), STRONG)];
    lines.extend(rows.iter().map(|row| Line::raw(line(row))));
    frame.render_widget(Paragraph::new(lines), area);
    shown.iter().filter(|shown| !**shown).count()
}

fn footer<'a>(model: &Model, hidden: usize, theme: Theme) -> Line<'a> {
    if model.mode == Mode::Filter {
        return Line::from(vec![
            Span::styled("/", STRONG),
            Span::raw(model.filter.clone()),
            Span::styled(" ", CHOSEN),
            Span::raw("  Enter keeps it, Esc clears it"),
        ]);
    }
    let mut spans = Vec::new();
    if !model.filter.is_empty() {
        spans.push(Span::styled(format!("filter {}  ", model.filter), theme.warning()));
    }
    for (key, effect) in [
        ("q", "quit"),
        ("?", "help"),
        ("Tab", "table"),
        ("s", "sort"),
        ("r", "reverse"),
        ("/", "filter"),
        ("p", "pause"),
    ] {
        spans.push(Span::styled(key, theme.key().add_modifier(Modifier::BOLD)));
        spans.push(Span::raw(format!(" {effect}  ")));
    }
    if hidden > 0 {
        spans.push(Span::raw(format!("(+{hidden} columns)")));
    }
    Line::from(spans)
}

/// Draws the help over everything else.
fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = KEYS.lines().map(Line::raw).collect();
    let columns = lines.iter().map(Line::width).max().unwrap_or(0).saturating_add(3);
    let rows = lines.len().saturating_add(2);
    let fitted = |wanted: usize, room: u16| u16::try_from(wanted).unwrap_or(u16::MAX).min(room);
    let (width, height) = (fitted(columns, area.width), fitted(rows, area.height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let window = Rect { x: area.x + x, y: area.y + y, width, height };
    frame.render_widget(Clear, window);
    let frame_of = Block::bordered().title(" Keys (any key closes this) ");
    frame.render_widget(Paragraph::new(lines).block(frame_of), window);
}
