//! Start of a program with the libraries, once the daemon was found.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use iwarp_control::Exit;
use iwarp_terminal::Failure;
use iwarp_verbs::{Context, Error};

use crate::args::Args;

/// Library that must be in the folder.
const LIBRARY: &str = "libibverbs.so.1";

/// Returns the folders where the libraries may be: beside a program that was built here, or below `lib` of the prefix
/// that the program is installed in.
fn folders(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let installed = folder.parent().map(|prefix| prefix.join("lib/ironwarp"));
    [Some(folder.join("lib/ironwarp")), installed].into_iter().flatten().collect()
}

fn libraries(args: &Args) -> Result<PathBuf, Failure> {
    let candidates = match &args.libraries {
        Some(folder) => vec![folder.clone()],
        None => std::env::current_exe().map(|program| folders(&program)).unwrap_or_default(),
    };
    let found = candidates.iter().find(|folder| folder.join(LIBRARY).is_file());
    found.cloned().ok_or_else(|| {
        let looked: Vec<_> = candidates.iter().map(|folder| folder.display().to_string()).collect();
        Failure::new(Exit::Failed, "libraries", format!("there is no {LIBRARY} in {}", looked.join(" or ")))
            .with_help("name the folder with --libraries; `make build` makes it")
    })
}

/// Returns a failure if no daemon answers, or it has no port.
fn find_daemon(socket: &Path) -> Result<(), Failure> {
    let devices = Context::devices(socket).map_err(|error| match error {
        Error::Daemon(error) => {
            let failure = Failure::from(error);
            let help = format!(
                "start iwarpd with an [applications] table, and name its socket with --socket (now {})",
                socket.display()
            );
            if failure.help.is_none() { failure.with_help(help) } else { failure }
        }
        error => Failure::new(Exit::Unreachable, "daemon", error.to_string()),
    })?;
    if devices.is_empty() {
        return Err(Failure::new(Exit::Unreachable, "daemon", "iwarpd has no port for applications"));
    }
    Ok(())
}

/// Returns the library path of the program: the folder, and what it was before.
fn library_path(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// Replaces this process by the program.
pub(crate) fn launch(args: &Args) -> Result<Exit, Failure> {
    let Some((program, rest)) = args.program.split_first() else {
        return Err(Failure::usage("a program is missing"));
    };
    let folder = libraries(args)?;
    find_daemon(&args.socket)?;
    let error = Command::new(program)
        .args(rest)
        .env("LD_LIBRARY_PATH", library_path(&folder))
        .env("IWARP_VERBS_SOCKET", &args.socket)
        .exec();
    Err(Failure::file(Path::new(program), "run", &error))
}
