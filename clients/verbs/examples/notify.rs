//! Waits for the messages of peers to regions of iwarpd, and prints them: Immediate Data behind RDMA Writes, and Sends.
//!
//! ```text
//! notify lab                on the machine of the daemon
//! iwarpctl remote put image.raw 10.77.0.2:7400/lab --immediate 7
//! ```
//! One epoll instance waits for all regions. The program needs the right to use both sockets of the daemon.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use iwarp_verbs::{Content, Notification, Watch, watch};
use rustix::event::{Timespec, epoll};

#[derive(Parser)]
#[command(about = "Print the messages of peers to regions of iwarpd")]
struct Args {
    /// Names of the regions
    #[arg(required = true)]
    regions: Vec<String>,
    /// The daemon's verbs socket
    #[arg(long, default_value = iwarp_verbs::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Exit after this many messages
    #[arg(long, default_value_t = u64::MAX)]
    count: u64,
    /// Milliseconds to wait before the first message is taken, and between two of them
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr is ignored.
            writeln!(std::io::stderr().lock(), "error: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let watches = args.regions.iter().map(|name| watch(&args.socket, name));
    let watches = watches.collect::<std::result::Result<Vec<Watch>, _>>()?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, watch) in (0..).zip(&watches) {
        epoll::add(&set, watch.fd(), epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        print(&format!("watching {}, {} bytes\n", watch.region().name(), watch.region().len()))?;
    }
    let mut left = args.count;
    while left > 0 {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 16];
        let ready = match epoll::wait(&set, &mut events, None::<&Timespec>) {
            Ok((ready, _)) => ready,
            // A signal, such as that of a debugger.
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for event in ready {
            let Some(watch) = usize::try_from(event.data.u64()).ok().and_then(|at| watches.get(at)) else {
                continue;
            };
            pause(args.pause_ms);
            while let Some(message) = watch.poll()? {
                print(&describe(watch, &message)?)?;
                left = left.saturating_sub(1);
                if left == 0 {
                    break;
                }
                pause(args.pause_ms);
            }
        }
    }
    let lost: u64 = watches.iter().map(Watch::lost).sum();
    print(&format!("{lost} messages lost\n"))
}

/// Describes a message, and the first bytes of the region, which it may be about.
fn describe(watch: &Watch, message: &Notification) -> Result<String> {
    let content = match &message.content {
        Content::Immediate(data) => format!("immediate {:#x}", u64::from_be_bytes(*data)),
        Content::Send(bytes) => format!("send {:?}", String::from_utf8_lossy(bytes)),
    };
    let mut first = [0; 8];
    let first = first.get_mut(..usize::try_from(watch.region().len().min(8))?).unwrap_or_default();
    watch.region().read(0, first)?;
    Ok(format!("{} {content}, {} bytes written; begins {first:02x?}\n", message.region, message.written))
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

#[allow(clippy::disallowed_methods, reason = "a program at the edge that can be slow on demand")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
