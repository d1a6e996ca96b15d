//! Registers allocated memory while other threads write in it and elsewhere, compares its contents, and prints the time
//! of the fastest registration.
//!
//! ```text
//! register --size 67108864 --limit-ms 60
//! ```
//! The memory is registered again while it is registered, in parts and by another context, and deregistered in another
//! order.

use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use iwarp_verbs::{Access, Context, Mr, ProtectionDomain};

/// Words between two that the threads write: each thread writes one of them in every eighth.
const STEP: usize = 8;

#[derive(Debug, Parser)]
struct Args {
    /// Verbs socket of the daemon.
    #[arg(long, default_value = iwarp_verbs::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Bytes of memory to register.
    #[arg(long, default_value_t = 64 << 20)]
    size: usize,
    /// Number of registrations, one after the other.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Longest time of the fastest registration, milliseconds.
    #[arg(long)]
    limit_ms: Option<u64>,
    /// No other thread: a program without a right to userfaultfd exchanges its pages, too.
    #[arg(long)]
    alone: bool,
    /// Write other memory only while the memory is registered.
    #[arg(long)]
    elsewhere: bool,
    /// Keep the memory registered and wait.
    #[arg(long)]
    stay: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("register: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Memory of the program, accessed as words that several threads write.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new(bytes: usize) -> Self {
        Self((0..(bytes / 8) as u64).map(|at| AtomicU64::new(original(at))).collect())
    }

    /// Registers a part of the memory.
    fn register(&self, pd: &ProtectionDomain, offset: usize, bytes: usize) -> Result<Mr> {
        register(pd, self.0.as_ptr().cast::<u8>().wrapping_add(offset), bytes)
    }

    /// Compares all words that no thread writes.
    fn compare(&self) -> Result<()> {
        let wrong = |(at, word): &(usize, &AtomicU64)| {
            at % STEP >= 2 && word.load(Ordering::Relaxed) != original(*at as u64)
        };
        let wrong = self.0.iter().enumerate().find(wrong);
        ensure!(wrong.is_none(), "word {wrong:?} has changed");
        Ok(())
    }
}

/// Registers memory that outlives the memory region, and that the program accesses by atomic operations only.
#[allow(unsafe_code, reason = "registers memory; listed in UNSAFE.md")]
fn register(pd: &ProtectionDomain, start: *const u8, bytes: usize) -> Result<Mr> {
    let all = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let address = NonNull::new(start.cast_mut()).context("memory")?;
    // SAFETY: as this function's comment says; both callers keep their memory until the end.
    Ok(unsafe { pd.reg_mr(address, bytes, all) }?)
}

fn original(at: u64) -> u64 {
    if at % STEP as u64 >= 2 { at.wrapping_mul(0x9E37_79B9_7F4A_7C15) } else { 0 }
}

/// Increments its words in turn, every one once a round, until the end. Each must have the value of the round before.
/// Counts itself in `begun` after the first round.
fn write(words: &[AtomicU64], first: usize, end: &AtomicBool, begun: &AtomicU64) -> Result<u64> {
    let mut rounds = 0;
    while !end.load(Ordering::Relaxed) {
        for word in words.iter().skip(first).step_by(STEP) {
            let before = word.fetch_add(1, Ordering::Relaxed);
            ensure!(before == rounds, "a write was lost: {before} instead of {rounds}");
        }
        rounds += 1;
        if rounds == 1 {
            begun.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(rounds)
}

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn run(args: &Args) -> Result<()> {
    let context = Context::open(&args.socket, None)?;
    let other = Context::open(&args.socket, None)?;
    let (pd, other) = (context.alloc_pd()?, other.alloc_pd()?);
    let (memory, elsewhere) = (Memory::new(args.size), Memory::new(1 << 20));
    let (end, begun) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let work = || {
            let writers: Vec<_> = [(&memory, 0), (&memory, 1), (&elsewhere, 0)]
                .into_iter()
                .filter(|(written, _)| !(args.alone || args.elsewhere && std::ptr::eq(*written, &memory)))
                .map(|(memory, first)| {
                    let (end, begun) = (&end, &begun);
                    scope.spawn(move || write(&memory.0, first, end, begun))
                })
                .collect();
            while begun.load(Ordering::Relaxed) < writers.len() as u64 {
                std::thread::yield_now();
            }
            let mut times = Vec::new();
            for _ in 0..args.rounds {
                let begin = Instant::now();
                let mr = memory.register(&pd, 0, args.size)?;
                times.push(begin.elapsed());
                overlap(args, &memory, [&pd, &other], mr)?;
                memory.compare()?;
            }
            let fastest = times.iter().min().copied().unwrap_or_default();
            println!("{} bytes registered in {fastest:?}, at most {:?}", args.size, times.iter().max());
            let limit = args.limit_ms.map(Duration::from_millis);
            ensure!(limit.is_none_or(|limit| fastest <= limit), "longer than {limit:?}");
            Ok(writers)
        };
        let writers: Result<Vec<_>> = work();
        end.store(true, Ordering::Relaxed);
        for writer in writers? {
            let rounds = writer.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            ensure!(rounds > 0, "a thread has not written");
        }
        memory.compare()
    })?;
    if args.stay {
        let _mr = memory.register(&pd, 0, args.size)?;
        let stack = [0_u64; 64].map(AtomicU64::new);
        let _on_stack = register(&pd, stack.as_ptr().cast(), size_of_val(&stack))?;
        println!("here");
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

/// Registers parts of memory that is registered, compares what each memory region shows, and ends them in another
/// order.
fn overlap(args: &Args, memory: &Memory, pds: [&ProtectionDomain; 2], whole: Mr) -> Result<()> {
    let [pd, other] = pds;
    let part = args.size / 3;
    let first = memory.register(pd, 0, 2 * part)?;
    let second = memory.register(other, part, 2 * part)?;
    drop(whole);
    for (mr, offset) in [(&first, 0), (&second, part)] {
        // A word that no thread writes.
        let at = (offset / 8).next_multiple_of(STEP) + 2;
        let mut seen = [0; 8];
        mr.read((at * 8 - offset) as u64, &mut seen)?;
        ensure!(u64::from_ne_bytes(seen) == original(at as u64), "word {at} is {seen:?}");
    }
    drop(first);
    memory.compare()?;
    drop(second);
    Ok(())
}
