//! Start of a program with the libraries, once its devices were found.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use iwarp_control::Exit;
use iwarp_terminal::Failure;
use iwarp_verbs::{ClientError, Context, DeviceInfo, Error};

use crate::args::Args;
use crate::private::Folder;
use crate::system;
use crate::tree::{Shown, Tree};

/// Library that must be in the folder.
const LIBRARY: &str = "libibverbs.so.1";
/// Library that makes sockets rsockets, and leads paths to a folder.
const PRELOAD: &str = "librspreload.so";
/// Variable with the peers whose sockets become rsockets; without it, all that a device of the daemon reaches.
const PEERS: &str = "IWARP_PRELOAD_PEERS";
/// Variable with the folder that has the files of the devices.
const FILES: &str = "IWARP_PRELOAD_FILES";

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

/// Place of the program's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Devices {
    /// The ports of the daemon.
    Daemon,
    /// A device inside the program.
    Embedded,
}

/// Finds the devices: those of the daemon, or inside the program if that was asked for, or nothing else was and no
/// daemon listens. Plain sockets of a program stay the kernel's without a daemon, so that `--preload` needs one unless
/// the device inside the program was asked for, for the peers that were named.
fn find_devices(args: &Args) -> Result<(Devices, Vec<DeviceInfo>), Failure> {
    if args.embedded {
        return Ok((Devices::Embedded, Vec::new()));
    }
    match Context::devices(&args.socket) {
        Err(Error::Daemon(ClientError::Unreachable { .. })) if !args.daemon && !args.preload => {
            eprintln!(
                "iwarp-run: no iwarpd at {}: RDMA runs inside the program, over the kernel's TCP; --daemon requires \
                 a daemon",
                args.socket.display()
            );
            Ok((Devices::Embedded, Vec::new()))
        }
        found => check_daemon(&args.socket, found).map(|devices| (Devices::Daemon, devices)),
    }
}

/// Returns a failure if no daemon answers, or it has no port.
fn check_daemon(socket: &Path, found: Result<Vec<DeviceInfo>, Error>) -> Result<Vec<DeviceInfo>, Failure> {
    let devices = found.map_err(|error| match error {
        Error::Daemon(error @ ClientError::Denied { .. }) => {
            let failure = Failure::from(error);
            let help = failure.help.clone().map_or(String::new(), |help| format!("{help}; or "));
            failure
                .with_help(format!("{help}name --embedded: a device inside the program, without the daemon"))
        }
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
    Ok(devices)
}

/// Shows files of the devices to the program, where the system lets this user do so: in a mount namespace, or else in a
/// folder that is returned, to which the preload library leads the program.
fn show_files(socket: &Path, of_daemon: &[DeviceInfo]) -> Result<Option<Folder>, Failure> {
    let interfaces = Context::embedded_devices()
        .map_err(|error| Failure::new(Exit::Failed, "interfaces", error.to_string()))?;
    // Before a context of the daemon has a thread.
    let entered = system::enter_namespace();
    let is_up =
        |info: &DeviceInfo| Context::open(socket, Some(&info.name)).is_ok_and(|context| context.is_link_up());
    let devices: Vec<_> = match of_daemon {
        [] => interfaces.iter().map(|info| Shown { info, is_up: true }).collect(),
        devices => devices.iter().map(|info| Shown { info, is_up: is_up(info) }).collect(),
    };
    let tree = Tree { devices: &devices, interfaces: &interfaces };
    match entered.and_then(|()| system::show(&tree).map_err(system::Error::Forbidden)) {
        Ok(()) => Ok(None),
        Err(system::Error::Forbidden(forbidden)) => match Folder::write(&tree) {
            Ok(folder) => Ok(Some(folder)),
            Err(error) => {
                eprintln!(
                    "iwarp-run: this user may have no mount namespace ({forbidden}), and no folder of its own in \
                     /tmp ({error}): programs that look into /sys/class/infiniband see no device there; verbs show \
                     them"
                );
                Ok(None)
            }
        },
        Err(system::Error::Lost(error)) => {
            let text = format!("cannot stay this user in a user namespace: {error}");
            let help =
                "name IWARP_ROCE=1 in the environment instead of --roce: the same without files below /sys";
            Err(Failure::new(Exit::Failed, "namespace", text).with_help(help))
        }
    }
}

/// Returns a list of paths for the program: `first`, and what the variable had before.
fn before_others(first: &[PathBuf], variable: &str) -> OsString {
    let before = std::env::var_os(variable).filter(|before| !before.is_empty());
    let all: Vec<_> = first.iter().map(|path| path.as_os_str().to_owned()).chain(before).collect();
    all.join(OsStr::new(":"))
}

/// Has the program load the library before others that makes sockets rsockets (`--preload`), and that leads paths to a
/// folder (`files`).
fn preload(
    command: &mut Command,
    args: &Args,
    library: &Path,
    files: Option<&Folder>,
) -> Result<(), Failure> {
    if !library.is_file() {
        let text = format!("{} is not there", library.display());
        return Err(Failure::new(Exit::Failed, "libraries", text).with_help("`make build` makes it"));
    }
    if let Some(files) = files {
        command.env(FILES, files.path());
    }
    let peers: Vec<_> = args.peers.iter().map(ToString::to_string).collect();
    let inherited = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if !peers.is_empty() {
        command.env(PEERS, peers.join(","));
    } else if args.preload {
        command.env_remove(PEERS);
    } else if !std::env::split_paths(&inherited).any(|path| path == library) {
        // No peer: all sockets stay the kernel's. Where a program has the library already, they are what they were.
        command.env(PEERS, "");
    }
    Ok(())
}

/// Replaces this process by the program.
pub(crate) fn launch(args: &Args) -> Result<Exit, Failure> {
    let Some((program, rest)) = args.program.split_first() else {
        return Err(Failure::usage("a program is missing"));
    };
    if args.preload && args.embedded && args.peers.is_empty() {
        let text = "--preload --embedded needs --peers: the device inside the program has the addresses of this \
                    machine, and only these peers are spoken to over RDMA";
        return Err(Failure::usage(text));
    }
    let folder = libraries(args)?;
    let (devices, of_daemon) = find_devices(args)?;
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LD_LIBRARY_PATH", before_others(slice::from_ref(&folder), "LD_LIBRARY_PATH"))
        .env("IWARP_VERBS_SOCKET", &args.socket);
    match devices {
        Devices::Daemon => command.env_remove("IWARP_EMBEDDED"),
        Devices::Embedded => command.env("IWARP_EMBEDDED", "1"),
    };
    if args.await_buffers {
        command.env("IWARP_AWAIT_BUFFERS", "1");
    }
    let mut files = None;
    if args.roce {
        command.env("IWARP_ROCE", "1").env_remove(FILES);
        files = show_files(&args.socket, &of_daemon)?;
    }
    let mut first = Vec::new();
    if args.preload || files.is_some() {
        let library = folder.join(PRELOAD);
        preload(&mut command, args, &library, files.as_ref())?;
        first.push(library);
    }
    if args.bundled {
        // The loader looks for a symbol and its version in all libraries, in their order; not in the named one alone.
        first.push(folder.join(LIBRARY));
    }
    if !first.is_empty() {
        command.env("LD_PRELOAD", before_others(&first, "LD_PRELOAD"));
    }
    let error = command.exec();
    files.into_iter().for_each(Folder::remove);
    Err(Failure::file(Path::new(program), "run", &error))
}
