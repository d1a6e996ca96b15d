//! The command-line program iwarpctl.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    mgmt_cli::main()
}
