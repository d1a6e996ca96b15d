//! `iwarpctl top` on a terminal that the test types on: it draws, obeys keys, and gives the terminal back.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use crate::daemon::Daemon;
use crate::iwarpctl;

/// The commands that give the terminal back: the main screen, and the cursor.
const MAIN_SCREEN: &str = "\x1b[?1049l";
const CURSOR: &str = "\x1b[?25h";
/// The longest wait for output of a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of 80 columns and 24 rows with `top` on it.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// Everything that the terminal got.
    text: String,
}

impl Terminal {
    /// Starts `top`, after a line with its process id; a line with the terminal's modes follows its end.
    fn start(socket: &Path, arguments: &str) -> Self {
        Self::start_in("exec", socket, arguments)
    }

    /// The same, started by this word of the shell.
    fn start_in(exec: &str, socket: &Path, arguments: &str) -> Self {
        let binary = env!("CARGO_BIN_EXE_iwarpctl");
        let socket = socket.display();
        let top = format!("sh -c 'echo pid $$; {exec} {binary} --socket {socket} top {arguments}'");
        let command = format!("stty cols 80 rows 24; {top}; echo status $?; stty -a");
        let mut script = Command::new("script")
            .args(["--quiet", "--command", &command, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = script.stdout.take().unwrap();
        let (give, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut chunk) {
                if give.send(chunk[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        let keys = script.stdin.take().unwrap();
        Self { script, keys, output, text: String::new() }
    }

    /// Waits until the terminal has got `wanted` since the last call; returns all that it has got since.
    fn until(&mut self, wanted: &str) -> String {
        while !self.text.contains(wanted) {
            let Ok(chunk) = self.output.recv_timeout(PATIENCE) else {
                panic!("no {wanted:?} in {:?}", self.text);
            };
            self.text += &String::from_utf8_lossy(&chunk);
        }
        std::mem::take(&mut self.text)
    }

    /// Waits until `top` has drawn; returns its process id.
    fn pid(&mut self) -> u32 {
        let begin = self.until("ESTABLISHED");
        let (_, pid) = begin.split_once("pid ").unwrap();
        pid.lines().next().unwrap().trim().parse().unwrap()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end; returns all output since the last call.
    fn end(mut self) -> String {
        while let Ok(chunk) = self.output.recv_timeout(PATIENCE) {
            self.text += &String::from_utf8_lossy(&chunk);
        }
        self.script.wait().unwrap();
        self.text
    }
}

/// The terminal shows the main screen and the cursor again, and is no longer in raw mode.
fn is_given_back(end: &str) {
    let (_, after) = end.rsplit_once(MAIN_SCREEN).unwrap_or_else(|| panic!("not left: {end:?}"));
    assert!(after.contains(CURSOR), "{end:?}");
    assert!(after.contains(" icanon") && after.contains(" echo ") && !after.contains("-icanon"), "{end:?}");
}

#[test]
fn top_draws_and_obeys_keys() {
    let daemon = Daemon::start();
    let mut terminal = Terminal::start(daemon.socket(), "--interval 0.05");
    terminal.until("ESTABLISHED");
    // Ctrl-L draws the screen anew: otherwise the terminal gets only the cells that differ.
    for (keys, word) in [("2", "MISSED"), ("?", "Shift-Tab"), (" 5", "ib_write_bw"), ("/3", "keeps")] {
        terminal.press(keys);
        terminal.press("\x0c");
        terminal.until(word);
    }
    terminal.press("\rq");
    let end = terminal.end();
    assert!(end.contains("status 0"), "{end:?}");
    is_given_back(&end);
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let daemon = Daemon::start();
    for (signal, status) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut terminal = Terminal::start(daemon.socket(), "");
        let pid = terminal.pid();
        let kill = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
        assert!(kill.success());
        let end = terminal.end();
        assert!(end.contains(&format!("status {status}")), "{signal}: {end:?}");
        is_given_back(&end);
    }
}

/// Returns true if the process runs: it exists and is no zombie.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the test waits for a process")]
fn top_ends_with_its_terminal() {
    let daemon = Daemon::start();
    // As left behind by a shell, and as one that no signal reaches: in a session that has no terminal of its own.
    for session in ["exec", "exec setsid"] {
        let mut terminal = Terminal::start_in(session, daemon.socket(), "");
        let pid = terminal.pid();
        assert!(runs(pid));
        terminal.script.kill().unwrap();
        terminal.script.wait().unwrap();
        let begin = std::time::Instant::now();
        while runs(pid) {
            assert!(begin.elapsed() < PATIENCE, "{session}: process {pid} runs without its terminal");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn top_needs_a_terminal() {
    let daemon = Daemon::start();
    let run = iwarpctl(daemon.socket(), &["top"]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert_eq!(
        run.stderr,
        "error: `top` needs a terminal, and stdout is none\n  \
         help: `iwarpctl stats --watch` writes to a file or a pipe\n"
    );
    let run = iwarpctl(daemon.socket(), &["-j", "top"]);
    assert_eq!((run.code, &run.error()["kind"]), (2, &serde_json::json!("usage")));
}

/// Without a daemon the terminal stays as it is.
#[test]
fn a_daemon_that_is_not_there_is_named_before_the_screen_is_taken() {
    let mut terminal = Terminal::start(Path::new("/nonexistent/control.sock"), "");
    let text = terminal.until("status 3");
    assert!(
        text.contains("cannot reach iwarpd at /nonexistent/control.sock") && !text.contains("\x1b[?1049h")
    );
}
