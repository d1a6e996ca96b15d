//! The state of `top`: the latest sample with its rates, and the table, order and filter that the user has chosen.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rates::Rates;
use super::sample::Sample;
use super::tables::{self, Cell, Columns, TABS, columns};
use crate::args::{Tab, Top};

/// Pauses between two samples that `+` and `-` select.
const INTERVALS_MS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// The longest filter, in characters.
const FILTER_MAX: usize = 64;

/// The reader of the next key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The table on the screen.
    Tables,
    /// The filter, which is being written.
    Filter,
    /// The help, which any key closes.
    Help,
}

/// The effect of a key beyond the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Draw, and wait for the next key.
    None,
    /// End this program with success.
    Quit,
    /// Clear the screen and draw it anew.
    Redraw,
    /// Give the terminal back until the shell continues this process.
    Suspend,
}

/// The order of a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    /// The index of the column.
    pub(super) column: usize,
    /// True if the highest comes first.
    pub(super) descending: bool,
}

/// The state of `top`.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) sample: Sample,
    /// The time of the sample on the program's clock.
    pub(super) sampled_at: Duration,
    pub(super) rates: Rates,
    /// The reason why the daemon cannot be asked at the moment.
    pub(super) problem: Option<String>,
    pub(super) tab: Tab,
    sorts: [Sort; TABS.len()],
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) interval: Duration,
    pub(super) paused: bool,
    /// The rows of the table that meet the filter, in order.
    rows: Vec<Vec<Cell>>,
    /// Objects of the table, whether they meet the filter or not.
    pub(super) objects: usize,
    /// Rows above the first one that is shown.
    above: usize,
    /// Rows that are shown at once.
    page: usize,
}

impl Model {
    pub(super) fn new(options: &Top, sample: Sample, now: Duration) -> Self {
        let mut model = Self {
            sample,
            sampled_at: now,
            rates: Rates::default(),
            problem: None,
            tab: options.table,
            sorts: TABS.map(|tab| first_sort(columns(tab))),
            filter: options.filter.clone(),
            mode: Mode::Tables,
            interval: options.interval,
            paused: false,
            rows: Vec::new(),
            objects: 0,
            above: 0,
            page: 0,
        };
        model.measure(Duration::ZERO);
        model
    }

    /// Takes a sample of the time `now`.
    pub(super) fn update(&mut self, sample: Sample, now: Duration) {
        let (old, new) = (&self.sample.status, &sample.status);
        if old.pid != new.pid || old.uptime_ms > new.uptime_ms {
            self.rates.clear();
        }
        let elapsed = now.saturating_sub(self.sampled_at);
        (self.sample, self.sampled_at, self.problem) = (sample, now, None);
        self.measure(elapsed);
    }

    fn measure(&mut self, elapsed: Duration) {
        self.rates.begin(elapsed);
        tables::measure(&self.sample, &mut self.rates);
        self.rates.end();
        self.arrange();
    }

    /// Selects and sorts the rows of the table.
    fn arrange(&mut self) {
        let mut rows = tables::rows(self.tab, &self.sample, &self.rates);
        self.objects = rows.len();
        let wanted = self.filter.to_lowercase();
        rows.retain(|row| row.iter().any(|cell| cell.text.to_lowercase().contains(&wanted)));
        let Sort { column, descending } = self.sort();
        rows.sort_by(|one, other| {
            let order = one.get(column).zip(other.get(column)).map(|(one, other)| one.order(other));
            let order = order.unwrap_or(std::cmp::Ordering::Equal);
            if descending { order.reverse() } else { order }
        });
        self.rows = rows;
    }

    /// Returns the order of the table's rows.
    pub(super) fn sort(&self) -> Sort {
        self.sorts.get(self.tab as usize).copied().unwrap_or(Sort { column: 0, descending: false })
    }

    /// Returns all rows that meet the filter, in order.
    pub(super) fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Returns the rows that are shown where `page` rows have room, and the number of those above.
    pub(super) fn page(&mut self, page: usize) -> (usize, &[Vec<Cell>]) {
        self.page = page;
        self.above = self.above.min(self.rows.len().saturating_sub(page));
        let end = self.above.saturating_add(page).min(self.rows.len());
        (self.above, self.rows.get(self.above..end).unwrap_or_default())
    }

    /// Changes the state by a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Action::Quit,
                KeyCode::Char('l') => return Action::Redraw,
                KeyCode::Char('z') => return Action::Suspend,
                KeyCode::Char('u') if self.mode == Mode::Filter => self.filter_by(String::new()),
                _ => {}
            }
            return Action::None;
        }
        match self.mode {
            Mode::Help => self.mode = Mode::Tables,
            Mode::Filter => self.filter_key(key.code),
            Mode::Tables if key.code == KeyCode::Char('q') => return Action::Quit,
            Mode::Tables => self.table_key(key.code),
        }
        Action::None
    }

    fn filter_key(&mut self, code: KeyCode) {
        let mut filter = self.filter.clone();
        match code {
            KeyCode::Enter => self.mode = Mode::Tables,
            KeyCode::Esc => {
                self.mode = Mode::Tables;
                filter.clear();
            }
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(letter) if !letter.is_control() && filter.chars().count() < FILTER_MAX => {
                filter.push(letter);
            }
            _ => {}
        }
        self.filter_by(filter);
    }

    fn filter_by(&mut self, filter: String) {
        (self.filter, self.above) = (filter, 0);
        self.arrange();
    }

    fn table_key(&mut self, code: KeyCode) {
        let page = self.page.max(1);
        match code {
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.filter_by(String::new()),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => self.change_interval(true),
            KeyCode::Char('-') => self.change_interval(false),
            KeyCode::Tab => self.open(next(&TABS, self.tab as usize, 1)),
            KeyCode::BackTab => self.open(next(&TABS, self.tab as usize, TABS.len().saturating_sub(1))),
            KeyCode::Char(digit @ '1'..='5') => {
                let nth = digit.to_digit(10).map_or(0, |digit| digit.saturating_sub(1));
                self.open(TABS.get(nth as usize).copied());
            }
            KeyCode::Char('s') | KeyCode::Right => self.sort_by_next(1),
            KeyCode::Char('S') | KeyCode::Left => {
                self.sort_by_next(columns(self.tab).header.len().saturating_sub(1));
            }
            KeyCode::Char('r') => self.sort_in(|sort| sort.descending = !sort.descending),
            KeyCode::Up | KeyCode::Char('k') => self.above = self.above.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.above = self.above.saturating_add(1),
            KeyCode::PageUp => self.above = self.above.saturating_sub(page),
            KeyCode::PageDown => self.above = self.above.saturating_add(page),
            KeyCode::Home | KeyCode::Char('g') => self.above = 0,
            KeyCode::End | KeyCode::Char('G') => self.above = self.rows.len(),
            _ => {}
        }
        self.above = self.above.min(self.rows.len().saturating_sub(page));
    }

    /// Selects the next shorter pause between two samples, or the next longer one.
    fn change_interval(&mut self, shorter: bool) {
        let mut all = INTERVALS_MS.into_iter().map(Duration::from_millis);
        let chosen = if shorter {
            all.rev().find(|pause| *pause < self.interval)
        } else {
            all.find(|pause| *pause > self.interval)
        };
        self.interval = chosen.unwrap_or(self.interval);
    }

    fn open(&mut self, tab: Option<Tab>) {
        (self.tab, self.above) = (tab.unwrap_or(self.tab), 0);
        self.arrange();
    }

    fn sort_by_next(&mut self, steps: usize) {
        let all = columns(self.tab).header.len();
        self.sort_in(|sort| sort.column = sort.column.saturating_add(steps) % all);
    }

    fn sort_in(&mut self, change: impl FnOnce(&mut Sort)) {
        if let Some(sort) = self.sorts.get_mut(self.tab as usize) {
            change(sort);
        }
        self.arrange();
    }
}

/// Returns the item that lies `steps` behind the one at `index`; the first one follows the last one.
fn next<T: Copy>(items: &[T], index: usize, steps: usize) -> Option<T> {
    items.get(index.saturating_add(steps) % items.len()).copied()
}

fn first_sort(columns: &Columns) -> Sort {
    let (name, descending) = columns.sort;
    Sort { column: columns.header.iter().position(|column| *column == name).unwrap_or(0), descending }
}
