//! A server as a service: its configuration, signals, the service manager, its key, its limit of open files.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use iwarp_config::{ConfigErrors, Machine};
use iwarp_terminal::{ConfigOptions, ErrorFormat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Loads a configuration: by `load` if it is to be checked alone, else by `load_on`, which checks it against this
/// machine.
///
/// # Errors
/// Every mistake has been reported on stderr. The exit code is 1 if the file is correct and only this machine lacks
/// something, else 2.
pub fn configuration<C>(
    options: &ConfigOptions,
    load: impl FnOnce(&Path) -> Result<C, ConfigErrors>,
    load_on: impl FnOnce(&Path, &Machine) -> Result<C, ConfigErrors>,
) -> Result<C, ExitCode> {
    let loaded = if options.check && !options.machine {
        load(&options.config)
    } else {
        load_on(&options.config, &Machine::this())
    };
    loaded.map_err(|errors| {
        match options.format {
            ErrorFormat::Full => eprint!("{}", errors.render(std::io::stderr().is_terminal())),
            ErrorFormat::Short => eprint!("{}", errors.short()),
        }
        if errors.only_of_the_machine() { ExitCode::FAILURE } else { ExitCode::from(2) }
    })
}

/// Signals that wait to be obeyed: none of them ends the program by itself any more.
#[derive(Debug)]
pub struct Caught(Signals);

impl Caught {
    /// Catches SIGHUP, SIGINT and SIGTERM.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> Result<Self> {
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map(Self).context("cannot catch signals")
    }

    /// Starts a thread of the name `thread` that calls `reload` at each SIGHUP; SIGINT and SIGTERM end the service.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn obey(self, thread: &'static str, mut reload: impl FnMut() + Send + 'static) -> Result<Service> {
        let Self(mut signals) = self;
        let (handle, ends) = (signals.handle(), Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&ends);
        let obey = move || {
            for signal in &mut signals {
                if signal == SIGHUP {
                    reload();
                } else {
                    asked.store(true, Ordering::Release);
                }
            }
        };
        let thread = std::thread::Builder::new().name(thread.to_owned()).spawn(obey);
        Ok(Service { handle, ends, thread: thread.context("cannot start a thread")? })
    }
}

/// A service whose signals are obeyed.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Service {
    /// Says that the service is ready, and runs `serve` until it returns: soon after the function that it is given,
    /// which it is to ask at least once a second, has returned true.
    ///
    /// # Errors
    /// The error of `serve`.
    pub fn run(self, serve: impl FnOnce(&dyn Fn() -> bool) -> Result<()>) -> Result<()> {
        tell(NotifyState::Ready);
        let served = serve(&|| self.ends.load(Ordering::Acquire));
        tell(NotifyState::Stopping);
        self.handle.close();
        let _ = self.thread.join();
        served
    }
}

/// Tells the service manager, if there is one. Without one that listens, the server goes on.
fn tell(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

/// Returns the key in a file, which the first call makes of random bytes. Only its owner may read it.
///
/// # Errors
/// The file cannot be read, is shorter, or cannot be made.
pub fn key(path: &Path) -> Result<[u8; 16]> {
    let mut key = [0; 16];
    match File::open(path) {
        Ok(mut file) => file.read_exact(&mut key)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            getrandom::fill(&mut key).context("no random bytes")?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(&key)?;
            file.sync_all()?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(key)
}

/// Raises the limit of open files to the largest that is allowed.
///
/// # Errors
/// The system refuses.
pub fn allow_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("the limit of open files")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let made = key(&path).unwrap();
        assert_eq!(key(&path).unwrap(), made);
        assert_ne!(made, [0; 16]);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "short").unwrap();
        assert!(key(&path).is_err(), "a damaged key is not replaced: what it has sealed would be lost");
    }

    #[test]
    fn a_service_reloads_and_ends_by_signals() {
        let (reloads, reloaded) = std::sync::mpsc::channel();
        let caught = Caught::new().unwrap();
        let service = caught.obey("signals", move || reloads.send(()).unwrap()).unwrap();
        let raise = |signal| signal_hook::low_level::raise(signal).unwrap();
        let serve = |ends: &dyn Fn() -> bool| {
            raise(SIGHUP);
            reloaded.recv().unwrap();
            assert!(!ends());
            raise(SIGTERM);
            while !ends() {
                std::thread::yield_now();
            }
            anyhow::bail!("the error of the server")
        };
        assert_eq!(service.run(serve).unwrap_err().to_string(), "the error of the server");
    }
}
