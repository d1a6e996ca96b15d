//! An `iwarpd` of the benchmark: two ring ports that are connected, one worker.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::load::Load;
use super::node::PairSetup;
use crate::clock::pause;
use crate::hand_off::hand_off_ns;
use crate::{Cores, Stopwatch};

/// Longest start of the daemon, seconds.
const START_S: f64 = 20.0;

/// A running daemon, which is killed when this is dropped.
pub(super) struct Daemon {
    process: Child,
    folder: tempfile::TempDir,
    cores: Cores,
}

impl Daemon {
    /// Starts the `iwarpd` beside this program, or that of the environment variable `IWARPD`, with its worker on a CPU.
    ///
    /// # Errors
    /// There is no such program, or it ends instead of serving.
    pub(super) fn start(load: &Load, setup: &PairSetup, core: usize, idle: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = match std::env::var_os("IWARPD") {
            Some(program) => PathBuf::from(program),
            None => std::env::current_exe()?.with_file_name("iwarpd"),
        };
        let file = folder.path().join("iwarpd.toml");
        fs::write(&file, config(load, setup, core, idle, &folder.path().display().to_string()))?;
        let log = fs::File::create(folder.path().join("log"))?;
        let mut command = Command::new(&program);
        command.arg("--config").arg(&file).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().with_context(|| format!("{}: build it first", program.display()))?;
        let mut daemon = Self { process, folder, cores: load.cores };
        let watch = Stopwatch::start();
        while iwarp_verbs::Context::devices(daemon.socket()).is_err() {
            let ended = daemon.process.try_wait()?;
            let log = || fs::read_to_string(daemon.folder.path().join("log")).unwrap_or_default();
            ensure!(ended.is_none() && watch.seconds() < START_S, "iwarpd does not serve: {}", log());
            pause(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// Returns the path of its verbs socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("verbs")
    }

    /// Measures the time that a cache line takes between the two CPUs, while the daemon is stopped.
    pub(super) fn hand_off_ns(&self) -> Result<f64> {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP)?;
        let measured = hand_off_ns(self.cores);
        kill_process(pid, Signal::CONT)?;
        measured
    }

    /// Returns the CPU time of its threads so far.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        let times = tasks.flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
        });
        Ok(times.sum())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config(load: &Load, setup: &PairSetup, core: usize, idle: &str, folder: &str) -> String {
    let Load { packet_buffers, descriptors, window, congestion, .. } = load;
    let PairSetup { mtu, crc, .. } = setup;
    let crc = crc.name();
    let port = |name: &str, host: u8| {
        format!(
            "[[port]]\nname = '{name}'\ndriver = 'ring'\nmtu = {mtu}\naddresses = ['10.99.1.{host}/24']\n\
             rx_descriptors = {descriptors}\ntx_descriptors = {descriptors}\n"
        )
    };
    let buffers = 2 * u64::from(*packet_buffers);
    format!(
        "[memory]\nhugepages = 'prefer'\npacket_buffers = {buffers}\nfile_prefix = 'iwarp-bench-daemon-{}'\n{}{}\
         [workers]\ncores = [{core}]\nidle = '{idle}'\n[mpa]\ncrc = '{crc}'\n\
         [tcp]\nprofile = 'data-center'\nconnections_max = 256\nconnections_per_source_max = 256\n\
         send_buffer_bytes = {window}\nreceive_window_bytes = {window}\ncongestion = '{congestion}'\n\
         [control]\nsocket = '{folder}/control'\n\
         [applications]\nsocket = '{folder}/verbs'\nqueue_pairs_max = 2048\n\
         user_queue_pairs_max = 2048\nuser_share = 100\n\
         user_memory = '4G'\n",
        std::process::id(),
        port("p0", 1),
        port("p1", 2),
    )
}
