//! Options of a daemon about its configuration file.

use std::path::PathBuf;

use clap::{Arg, Args, ValueEnum};

/// Options of a daemon about its configuration file. The command line that has them says by `mut_args` and
/// [`ConfigOptions::of`] which file that is.
#[derive(Debug, Args)]
pub struct ConfigOptions {
    /// Path of the configuration file.
    #[arg(long, short, value_name = "FILE", required = false)]
    pub config: PathBuf,
    /// True to check the configuration and exit.
    #[arg(long)]
    pub check: bool,
    /// True to check it against this machine too.
    #[arg(long, requires = "check")]
    pub machine: bool,
    /// Format of error reports.
    #[arg(long, value_enum, default_value_t = ErrorFormat::Full)]
    pub format: ErrorFormat,
}

impl ConfigOptions {
    /// Returns what gives the options the default value of `config`, and the help texts of `check` and `machine`. Other
    /// options stay as they are.
    pub fn of(file: &'static str, check: &'static str, machine: &'static str) -> impl FnMut(Arg) -> Arg {
        move |option| match option.get_id().as_str() {
            "config" => option.default_value(file),
            "check" => option.help(check),
            "machine" => option.help(machine),
            _ => option,
        }
    }
}

/// Format of error reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ErrorFormat {
    /// The line of the file, the allowed values, and what to do.
    Full,
    /// One line each: file:line:column: message.
    Short,
}
