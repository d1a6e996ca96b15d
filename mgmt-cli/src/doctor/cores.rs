//! Cores of the workers: isolation, C-states, frequency governor; and the clock that all of them read.

use iwarp_config::{Config, Idle, Machine};

use super::Finding;

/// The longest time that a core may take to leave an idle state, in µs; a longer one is seen in the latency.
const EXIT_LATENCY_US_MAX: u64 = 10;
/// Clock sources that are read without a system call or an access to a device.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

pub(super) fn examine(config: &Config, machine: &Machine) -> Vec<Finding> {
    let cores = &config.workers.cores;
    vec![
        isolation(cores, machine),
        pollers(config, machine),
        idle_states(config, machine),
        governor(cores, machine),
        clock_source(machine),
    ]
}

/// Formats core numbers as the kernel's command line takes them: `2,3`.
fn list(cores: &[u16]) -> String {
    cores.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

fn isolation(cores: &[u16], machine: &Machine) -> Finding {
    let isolated = machine.cpus_of("sys/devices/system/cpu/isolated");
    let shared: Vec<u16> = cores.iter().copied().filter(|core| !isolated.contains(core)).collect();
    if shared.is_empty() {
        return Finding::ok("isolation", format!("the workers' cores {} are isolated", list(cores)));
    }
    let shared = list(&shared);
    let all = list(cores);
    Finding::warning(
        "isolation",
        format!("the workers' cores {shared} are not isolated: other tasks and the timer interrupt them"),
        format!("boot with isolcpus={all} nohz_full={all} rcu_nocbs={all}"),
    )
}

/// Returns the finding about workers that leave no core to programs and to the kernel.
fn pollers(config: &Config, machine: &Machine) -> Finding {
    const CHECK: &str = "pollers";
    let online = machine.cpus_of("sys/devices/system/cpu/online");
    let cores = &config.workers.cores;
    let is_left = online.iter().any(|core| !cores.contains(core));
    if config.workers.idle != Idle::Spin || is_left || online.is_empty() {
        return Finding::ok(CHECK, "programs and the kernel have cores, or workers that yield");
    }
    Finding::warning(
        CHECK,
        format!("a worker polls on each of the {} cores: programs wait for their turn", online.len()),
        "workers.idle = \"adaptive\", or a core less in workers.cores",
    )
}

/// Returns the finding about idle states. A worker that always polls never idles.
fn idle_states(config: &Config, machine: &Machine) -> Finding {
    const CHECK: &str = "c-states";
    if config.workers.idle == Idle::Spin {
        return Finding::ok(CHECK, "workers poll always: their cores never enter a C-state");
    }
    let mut deep = Vec::new();
    for core in &config.workers.cores {
        let folder = format!("sys/devices/system/cpu/cpu{core}/cpuidle");
        for state in machine.names(&folder) {
            let text = |file: &str| machine.text(&format!("{folder}/{state}/{file}"));
            let latency_us = text("latency").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            if latency_us > EXIT_LATENCY_US_MAX && text("disable").as_deref() != Some("1") {
                let name = text("name").unwrap_or(state);
                deep.push(format!("{name} of core {core} ({latency_us} µs)"));
            }
        }
    }
    if deep.is_empty() {
        return Finding::ok(CHECK, format!("no C-state takes longer than {EXIT_LATENCY_US_MAX} µs to leave"));
    }
    Finding::warning(
        CHECK,
        format!("an idle worker's core takes long to wake: {}", deep.join(", ")),
        format!(
            "cpupower -c {} idle-set -D {EXIT_LATENCY_US_MAX}, or workers.idle = \"spin\"",
            list(&config.workers.cores)
        ),
    )
}

fn governor(cores: &[u16], machine: &Machine) -> Finding {
    let of = |core: &u16| {
        let path = format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
        machine.text(&path).map(|governor| (*core, governor))
    };
    let governors: Vec<(u16, String)> = cores.iter().filter_map(of).collect();
    let slow: Vec<_> = governors.iter().filter(|(_, governor)| governor != "performance").collect();
    let Some((_, governor)) = slow.first() else {
        let message = if governors.is_empty() {
            "this machine does not let the kernel choose the workers' frequency"
        } else {
            "the workers' cores run at full frequency"
        };
        return Finding::ok("governor", message);
    };
    let slow = list(&slow.iter().map(|(core, _)| *core).collect::<Vec<_>>());
    Finding::warning(
        "governor",
        format!("the frequency governor of the workers' cores {slow} is {governor}, not performance"),
        format!("cpupower -c {slow} frequency-set -g performance"),
    )
}

fn clock_source(machine: &Machine) -> Finding {
    const FOLDER: &str = "sys/devices/system/clocksource/clocksource0";
    let Some(current) = machine.text(&format!("{FOLDER}/current_clocksource")) else {
        return Finding::ok("clock", "the kernel does not say which clock source it uses");
    };
    if FAST_CLOCKS.contains(&current.as_str()) {
        return Finding::ok("clock", format!("the clock source is {current}"));
    }
    let available = machine.text(&format!("{FOLDER}/available_clocksource")).unwrap_or_default();
    let has_tsc = available.split_whitespace().any(|name| name == "tsc");
    let remedy = if has_tsc {
        format!("echo tsc > /{FOLDER}/current_clocksource")
    } else {
        "boot with tsc=reliable if the machine's cores count in step; `dmesg | grep -i tsc` says why the kernel \
         does not trust them"
            .to_owned()
    };
    Finding::warning(
        "clock",
        format!("the clock source is {current}: each reading takes a microsecond"),
        remedy,
    )
}
