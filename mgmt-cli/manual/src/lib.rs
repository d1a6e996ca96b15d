//! Manual pages and shell completions of all programs.
//!
//! Both come from the definitions of the command lines, as the help does; iwarpd.toml(5) and nfsd.toml(5) come from the
//! definitions of the keys. [`write_all`] writes them into the folders that a package installs.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::{Generator as _, Shell};

/// The shells that get completions, each with the folder of its completions below `/usr/share`.
pub const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/vendor-completions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// A program, and the section of its manual pages.
#[derive(Clone, Debug)]
pub struct Program {
    /// The definition of its command line.
    pub command: Command,
    /// The section of the manual: 1 for commands, 8 for daemons.
    pub section: &'static str,
}

/// Returns all programs that are installed.
#[must_use]
pub fn programs() -> [Program; 5] {
    [
        Program { command: dataplane::args::Arguments::command(), section: "8" },
        Program { command: mgmt_cli::command(), section: "1" },
        Program { command: iwarp_nfsd::args::Arguments::command(), section: "8" },
        Program { command: iwarp_run::args::Args::command(), section: "1" },
        Program { command: benches::args::Arguments::command(), section: "1" },
    ]
}

/// Writes manual pages and completions of all programs, iwarpd.toml(5) and nfsd.toml(5) below `share`, as they lie
/// below `/usr/share`.
///
/// # Errors
/// A folder or a file cannot be written.
pub fn write_all(share: &Path) -> io::Result<()> {
    for Program { command, section } in programs() {
        let folder = share.join(format!("man/man{section}"));
        fs::create_dir_all(&folder)?;
        let mut built = command.clone().disable_help_subcommand(true);
        built.build();
        write_pages(&built, section, &folder)?;
        for (shell, folder) in SHELLS {
            let folder = share.join(folder);
            fs::create_dir_all(&folder)?;
            write_completion(command.clone(), shell, &folder)?;
        }
    }
    let folder = share.join("man/man5");
    fs::create_dir_all(&folder)?;
    let pages = iwarp_config::manual_pages(&version());
    pages.into_iter().try_for_each(|(name, page)| fs::write(folder.join(name), page))
}

/// Returns the name and version that pages show at their foot.
fn version() -> String {
    format!("Ironwarp {}", env!("CARGO_PKG_VERSION"))
}

/// Writes a page for a command and for each of its subcommands, such as `iwarpctl-region-list.1`.
fn write_pages(command: &Command, section: &str, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand, section, folder)?;
    }
    let page = clap_mangen::Man::new(command.clone()).section(section).source(version()).manual("Ironwarp");
    let mut text = Vec::new();
    page.render(&mut text)?;
    // Examples keep their lines; the next section fills lines again.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA\n", ".SH NOTES\n.nf\n");
    fs::write(folder.join(page.get_filename()), text)
}

/// Writes the completion of one program. That of iwarpctl asks the program, and so knows the daemon's objects.
fn write_completion(mut command: Command, shell: Shell, folder: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    // Bash loads a file that is named as the program.
    let file = if shell == Shell::Bash { name.clone() } else { shell.file_name(&name) };
    let mut file = File::create(folder.join(file))?;
    if name == "iwarpctl" {
        return mgmt_cli::write_completion(shell, &mut file);
    }
    clap_complete::generate(shell, &mut command, name, &mut file);
    Ok(())
}
