//! Documents of all keys, from the tables of `keys!`: the manual page iwarpd.toml(5), and `configs/reference.toml`.

use std::path::Path;

use crate::check::{DriverKeys, IdleKeys, TcpPath, TcpProfile, TcpStack};
use crate::keys::{Class, Keys, Row, after};
use crate::read::{Place, Report, Section};
use crate::{
    Applications, Control, Drain, Ip, Limits, Listener, Log, Memory, Metrics, Mpa, Neighbor, Placement, Port,
    Privileges, Region, Tcp, Workers,
};

/// Table of the file, as the documents describe it.
struct Table {
    /// Head in the file, such as `[tcp]`.
    head: &'static str,
    /// Content of the table, in a sentence.
    about: String,
    rows: Vec<Row>,
}

/// Reads a table that has no keys, and so has the defaults that do not depend on other tables.
fn defaults<T>(read: impl FnOnce(&mut Section<'_>) -> T) -> T {
    let report = Report::default();
    read(&mut Section::new(&report, None, Place { key: String::new(), span: 0..0 }))
}

/// Returns the description and the rows of a table that has no keys.
fn plain<T: Keys>(read: impl FnOnce(&mut Section<'_>) -> T) -> (&'static str, Vec<Row>) {
    (T::ABOUT, defaults(read).rows())
}

/// Returns the tables, in the order of the documents.
fn tables() -> Vec<Table> {
    let (workers, applications) = (defaults(Workers::read), defaults(Applications::read));
    let (tcp, mpa) = (defaults(Tcp::read), defaults(Mpa::read));
    let listener = defaults(|section| Listener::read(section, &tcp, &mpa));
    let tables = [
        plain(Memory::read),
        (Port::ABOUT, after("name", DriverKeys::rows(), defaults(|section| Port::read(section, 0)).rows())),
        plain(Neighbor::read),
        (Workers::ABOUT, [workers.rows(), IdleKeys::rows()].concat()),
        (Ip::ABOUT, [defaults(Ip::read).rows(), TcpPath::rows(&tcp.stack)].concat()),
        (Tcp::ABOUT, [TcpProfile::rows(), tcp.rows(), TcpStack::rows(&tcp.stack)].concat()),
        (Mpa::ABOUT, mpa.rows()),
        plain(Placement::read),
        plain(Limits::read),
        (Listener::ABOUT, listener.all_rows()),
        (Region::ABOUT, defaults(|section| Region::read(section, Path::new(""))).all_rows()),
        plain(Control::read),
        plain(Drain::read),
        (Applications::ABOUT, applications.all_rows()),
        plain(Privileges::read),
        plain(Metrics::read),
        plain(Log::read),
    ];
    let table = |(about, rows): (&'static str, _)| {
        let (head, about) = about.split_once(": ").unwrap_or(("", about));
        let mut letters = about.trim_end_matches('.').chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        let about = format!("{}{}.", first.into_iter().collect::<String>(), letters.as_str());
        Table { head: head.split('`').nth(1).unwrap_or_default(), about, rows }
    };
    tables.into_iter().map(table).collect()
}

impl Row {
    /// Returns the value for an example of the file.
    fn value(&self) -> &str {
        if self.example.is_empty() { &self.toml } else { self.example }
    }

    /// Describes the key in sentences. Names of keys and values are in backticks.
    fn description(&self) -> String {
        let mut text = self.help.trim().to_owned();
        if !self.allowed.is_empty() {
            text.push_str(&format!(" Allowed: {}.", self.allowed));
        }
        let shows_default = self.example.is_empty() || self.example.trim_start_matches("# ") == self.toml;
        if !shows_default && !self.toml.is_empty() && self.class != Class::Derived {
            text.push_str(&format!(" Default: {}.", self.toml));
        }
        text.push_str(match self.class {
            Class::Live => " Live.",
            Class::UpToStart => " Live, up to the value of the start.",
            Class::Restart | Class::Derived => "",
        });
        text
    }
}

/// Explanation of the form of the file, for every document.
const FORM: [&str; 2] = [
    "Every key has its default value here, or an example value if it has no default. Sizes are numbers of bytes, or \
     text with k, M, G or T (powers of 1024); the unit of every other number is part of its name.",
    "A reload applies another value of a key that is marked as live; the other keys need a restart. `iwarpctl config \
     check FILE` reports every mistake at once, and the memory that the file needs.",
];

/// Returns the manual page iwarpd.toml(5) in the language of man(7). `version` names the program and its version.
pub fn manual_page(version: &str) -> String {
    let mut page = format!(".TH iwarpd.toml 5 \"\" \"{}\" \"Ironwarp\"\n", escaped(version));
    page.push_str(".SH NAME\niwarpd.toml \\- configuration of iwarpd\n.SH DESCRIPTION\n");
    page.push_str(
        "The daemon \\fBiwarpd\\fR reads this file, in the language TOML, when it starts and at a reload.\n",
    );
    for paragraph in FORM {
        page.push_str(&format!(".PP\n{}\n", escaped(paragraph)));
    }
    page.push_str(".SH TABLES\n");
    for Table { head, about, rows } in tables() {
        page.push_str(&format!(".SS {}\n{}\n", escaped(head), escaped(&about)));
        for row in rows {
            let value = row.value().trim_start_matches("# ");
            page.push_str(&format!(".TP\n\\fB{}\\fR = {}\n", escaped(row.key()), escaped(value)));
            page.push_str(&format!("{}\n", escaped(&row.description())));
        }
    }
    page.push_str(
        ".SH FILES\n.TP\n/etc/iwarpd/iwarpd.toml\nThe file of a daemon without \\fB\\-\\-config\\fR.\n",
    );
    page.push_str(".SH SEE ALSO\n\\fBiwarpd\\fR(8), \\fBiwarpctl\\fR(1)\n");
    page
}

/// Returns text for man(7): text in backticks is bold, and no character has a meaning of its own.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('`').enumerate() {
        out.push_str(if at == 0 {
            ""
        } else if at % 2 == 1 {
            "\\fB"
        } else {
            "\\fR"
        });
        for letter in part.chars() {
            match letter {
                '\\' => out.push_str("\\e"),
                '-' => out.push_str("\\-"),
                '\'' => out.push_str("\\(aq"),
                letter => out.push(letter),
            }
        }
    }
    if out.starts_with('.') { format!("\\&{out}") } else { out }
}

/// Returns the text of `configs/reference.toml`.
#[cfg(test)]
pub(crate) fn reference() -> String {
    let mut out = comment(
        "The tables of keys in the crate iwarp-config generate this file, by the test `the_reference_is_generated`.",
    );
    FORM.iter().for_each(|paragraph| out.push_str(&comment(paragraph)));
    out.push_str(&comment("Keys of drivers other than TAP are commented out."));
    for Table { head, about, rows } in tables() {
        out.push_str(&format!("\n{}{head}\n", comment(&about)));
        for row in rows {
            let mark = if row.value().starts_with("# ") { "# " } else { "" };
            let value = row.value().trim_start_matches("# ");
            out.push_str(&format!("{}{mark}{} = {value}\n", comment(&row.description()), row.key()));
        }
    }
    out
}

/// Returns text as comments of the file, at most 120 columns wide.
#[cfg(test)]
fn comment(text: &str) -> String {
    let (mut out, mut line) = (String::new(), String::from("#"));
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 120 {
            out.push_str(&format!("{line}\n"));
            line = String::from("#");
        }
        line.push_str(&format!(" {word}"));
    }
    out + &line + "\n"
}
