//! Documents of all keys, from the tables of `keys!`: the manual pages iwarpd.toml(5) and nfsd.toml(5), and files with
//! every key, `configs/reference.toml` and `configs/nfsd.toml`.

use std::path::Path;

use crate::check::{DriverKeys, IdleKeys, TcpPath, TcpProfile, TcpStack};
use crate::keys::{Class, Keys, Row, after};
use crate::read::{Place, Report, Section};
use crate::{
    Applications, Control, Drain, Ip, Limits, Listener, Log, Memory, Metrics, Mpa, Neighbor, Nfs,
    NfsdClients, NfsdControl, NfsdExport, NfsdRdma, NfsdState, NfsdTcp, Placement, Port, Privileges, Region,
    Tcp, Workers,
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

/// Description of a table with its head, and its rows.
type Described = (&'static str, Vec<Row>);

/// Returns the tables of iwarpd.toml, in the order of the documents.
fn of_iwarpd() -> Vec<Described> {
    let (workers, applications) = (defaults(Workers::read), defaults(Applications::read));
    let (tcp, mpa) = (defaults(Tcp::read), defaults(Mpa::read));
    let listener = defaults(|section| Listener::read(section, &tcp, &mpa));
    vec![
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
    ]
}

/// Returns the tables of nfsd.toml, in the order of the documents.
fn of_nfsd() -> Vec<Described> {
    vec![
        plain(NfsdRdma::read),
        plain(NfsdTcp::read),
        plain(Nfs::read),
        plain(NfsdState::read),
        plain(NfsdControl::read),
        (NfsdExport::ABOUT, defaults(NfsdExport::read).all_rows()),
        plain(NfsdClients::read),
    ]
}

/// Splits the description of a table into its head and a sentence.
fn table((about, rows): Described) -> Table {
    let (head, about) = about.split_once(": ").unwrap_or(("", about));
    let mut letters = about.trim_end_matches('.').chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let about = format!("{}{}.", first.into_iter().collect::<String>(), letters.as_str());
    Table { head: head.split('`').nth(1).unwrap_or_default(), about, rows }
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

/// Configuration file, as its documents describe it.
pub(crate) struct File {
    /// Name of the file in its folder, `/etc/iwarpd`.
    name: &'static str,
    /// Program that reads the file.
    program: &'static str,
    /// Explanation of a reload and of checks.
    reload: &'static str,
    /// Command that shows the state of the program.
    command: &'static str,
    tables: fn() -> Vec<Described>,
}

pub(crate) const IWARPD: File = File {
    name: "iwarpd.toml",
    program: "iwarpd",
    reload: "A reload applies another value of a key that is marked as live; the other keys need a restart. `iwarpctl \
             config check FILE` reports every mistake at once, and the memory that the file needs.",
    command: "iwarpctl",
    tables: of_iwarpd,
};

pub(crate) const NFSD: File = File {
    name: "nfsd.toml",
    program: "iwarp-nfsd",
    reload: "`systemctl reload iwarp-nfsd` applies another value of a key that is marked as live; the other keys need \
             a restart. `iwarp-nfsd --check` reports every mistake at once.",
    command: "iwarpctl-nfs",
    tables: of_nfsd,
};

/// Explanation of values, for every document.
const VALUES: &str = "Every key has its default value here, or an example value if it has no default. Sizes are \
                      numbers of bytes, or text with k, M, G or T (powers of 1024); the unit of every other number \
                      is part of its name.";

/// Returns the manual pages of section 5 in the language of man(7), each with the name of its file. `version` names the
/// program and its version.
pub fn manual_pages(version: &str) -> [(String, String); 2] {
    [IWARPD, NFSD].map(|file| (format!("{}.5", file.name), file.manual_page(version)))
}

impl File {
    fn manual_page(&self, version: &str) -> String {
        let Self { name, program, reload, command, tables } = self;
        let (name, program) = (escaped(name), escaped(program));
        let mut page = format!(".TH {name} 5 \"\" \"{}\" \"Ironwarp\"\n", escaped(version));
        page.push_str(&format!(".SH NAME\n{name} \\- configuration of {program}\n.SH DESCRIPTION\n"));
        page.push_str(&format!(
            "The daemon \\fB{program}\\fR reads this file, in the language TOML, when it starts and at a reload.\n"
        ));
        for paragraph in [VALUES, reload] {
            page.push_str(&format!(".PP\n{}\n", escaped(paragraph)));
        }
        page.push_str(".SH TABLES\n");
        for Table { head, about, rows } in tables().into_iter().map(table) {
            page.push_str(&format!(".SS {}\n{}\n", escaped(head), escaped(&about)));
            for row in rows {
                let value = row.value().trim_start_matches("# ");
                page.push_str(&format!(".TP\n\\fB{}\\fR = {}\n", escaped(row.key()), escaped(value)));
                page.push_str(&format!("{}\n", escaped(&row.description())));
            }
        }
        page.push_str(&format!(
            ".SH FILES\n.TP\n/etc/iwarpd/{name}\nThe file of a daemon without \\fB\\-\\-config\\fR.\n"
        ));
        let command = escaped(command);
        page.push_str(&format!(".SH SEE ALSO\n\\fB{program}\\fR(8), \\fB{command}\\fR(1)\n"));
        page
    }

    /// Returns the text of the file with every key.
    #[cfg(test)]
    pub(crate) fn reference(&self) -> String {
        let mut out = comment(&format!(
            "The configuration of {}: every key. The tables of keys in the crate iwarp-config generate this file, by \
             the test `the_references_are_generated`.",
            self.program
        ));
        for paragraph in [VALUES, self.reload, "A key that excludes another one here is commented out."] {
            out.push_str(&comment(paragraph));
        }
        for Table { head, about, rows } in (self.tables)().into_iter().map(table) {
            out.push_str(&format!("\n{}{head}\n", comment(&about)));
            for row in rows {
                let mark = if row.value().starts_with("# ") { "# " } else { "" };
                let value = row.value().trim_start_matches("# ");
                out.push_str(&format!("{}{mark}{} = {value}\n", comment(&row.description()), row.key()));
            }
        }
        out
    }
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
