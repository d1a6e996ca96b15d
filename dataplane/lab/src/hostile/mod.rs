//! Hostile local programs, and the honest ones beside them. `dataplane/tests/hostile.sh` runs each case as a user
//! without rights, while an honest program of the daemon and an honest peer on the wire are served.
//!
//! A case has a file of its own: a function from [`Target`] to [`Attack`]. It fails unless its attack takes effect.

mod burn;
mod close;
mod create;
mod descriptors;
mod doorbells;
mod eventfd;
mod events;
mod fork;
mod fuse;
mod honest;
mod ids;
mod memory;
mod modify;
mod raw;
mod resize;
mod seals;
mod userfault;

use std::any::Any;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    case: Case,
}

#[derive(clap::Subcommand)]
enum Case {
    /// Run an honest program and an honest peer, and measure how long either has waited for a round trip.
    Honest(honest::Options),
    /// Use up a core, and nothing else: the control of a measurement.
    Burn(Target),
    /// Close contexts with 960 queue pairs and a full completion queue.
    Close(Target),
    /// Be one of those contexts, until killed.
    Full(Target),
    /// Create and destroy large queue pairs.
    Create(Target),
    /// Resize a completion queue with 65,000 completions.
    Resize(Target),
    /// Move queue pairs with a full completion queue to Error and Idle.
    Modify(Target),
    /// Ring all doorbells of 31 contexts.
    Doorbells(Target),
    /// Make the daemon wait for what it writes to the descriptors on which programs sleep.
    Eventfd(Target),
    /// Have events raised, and take none.
    Events(Target),
    /// Seal memory so that its pages can be freed once it is registered.
    Seals(Target),
    /// Send descriptors whose close blocks.
    Descriptors(Target),
    /// Take as many ids as there are.
    Ids(Target),
    /// Take as many small buffers and objects of each kind as there are.
    Memory(Target),
    /// Have the daemon copy memory in a file of a silent FUSE server.
    Fuse(fuse::Options),
    /// Be that server, over the descriptor of /dev/fuse that is standard input.
    FuseServer,
    /// Have the daemon copy memory under userfaultfd whose handler is silent.
    Userfault(Connecting),
    /// Fork a large program again and again while the daemon copies its memory.
    Fork(Connecting),
}

/// The daemon that the program attacks.
#[derive(clap::Args)]
struct Target {
    /// Verbs socket of the daemon
    socket: PathBuf,
    /// Time of the attack, seconds
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

impl Target {
    /// Returns the time at which the attack ends.
    fn end(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.seconds)
    }
}

// Target of an attack over queue pairs of the program. (A documentation comment would replace that of the subcommand.)
#[derive(clap::Args)]
struct Connecting {
    #[command(flatten)]
    target: Target,
    /// Address of the daemon's port, and a free port number
    #[arg(long)]
    local: SocketAddr,
}

/// Report of an attack, and all that the program still has of the daemon.
type Attack = (Value, Box<dyn Any>);

/// Attacks, prints the report, and keeps all that the program has until it is killed.
pub(crate) fn run(options: &Options) -> Result<Value> {
    let (report, kept) = match &options.case {
        Case::Honest(options) => return honest::run(options),
        Case::Burn(target) => burn::run(target),
        Case::Close(target) => close::run(target)?,
        Case::Full(target) => close::full(target)?,
        Case::Create(target) => create::run(target)?,
        Case::Resize(target) => resize::run(target)?,
        Case::Modify(target) => modify::run(target)?,
        Case::Doorbells(target) => doorbells::run(target)?,
        Case::Eventfd(target) => eventfd::run(target)?,
        Case::Events(target) => events::run(target)?,
        Case::Seals(target) => seals::run(target)?,
        Case::Descriptors(target) => descriptors::run(target)?,
        Case::Ids(target) => ids::run(target)?,
        Case::Memory(target) => memory::run(target)?,
        Case::Fuse(options) => fuse::run(options)?,
        Case::FuseServer => return fuse::serve(),
        Case::Userfault(options) => userfault::run(options)?,
        Case::Fork(options) => fork::run(options)?,
    };
    println!("{report}");
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
        std::hint::black_box(&kept);
    }
}
