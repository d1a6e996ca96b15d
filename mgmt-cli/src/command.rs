//! Runs the commands of the command line, which `main` has parsed.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use iwarp_control::{
    AppListMethod, AppObjects, AppShow, AppShowMethod, Client, ConnClose, ConnCloseMethod, ConnListMethod,
    ConnShow, ConnShowMethod, CqListMethod, DropsMethod, Exit, LogLevelChange, LogLevelMethod, Method,
    MrListMethod, NoParams, PortListMethod, PortShow, PortShowMethod, PortStats, PortStatsMethod,
    QpListMethod, RegionDeregister, RegionDeregisterMethod, RegionListMethod, RegionQuery, RegionRegister,
    RegionRegisterMethod, RegionShowMethod, State, StatsMethod, StatsReply, StatusMethod, bounds, nfs,
};
use iwarp_remote::{KernelTcp, bench, read_token};
use iwarp_terminal::clock::{self, Clock};
use iwarp_terminal::{Failure, Output, Report, Width};
use rdma::Access;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{
    App, Args, Call, Command, Config, Conn, Doctor, Global, Log, Mistakes, Nfs, NfsCommand, Objects, Port,
    Region, Register, RemoteCommand, Stats,
};
use crate::{args, capture, complete, doctor, monitor, render};

/// Runs the command that the command line names.
pub(crate) fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    let global = &args.global;
    match &args.command {
        Command::Status => return status(global, output),
        Command::Region(command) => region(command, global, output)?,
        Command::Conn(Conn::List(options)) => {
            let mut rows = call::<ConnListMethod>(global, &NoParams {})?;
            rows.retain(|conn| options.admits(conn));
            output.result(&rows, |rows| match (options.oneline, options.wide) {
                (true, _) => render::conn::lines(rows),
                (false, true) => render::conn::list(rows, None),
                (false, false) => render::conn::list(rows, output.width()),
            })?;
        }
        Command::Conn(Conn::Show { id }) => {
            output.result(&call::<ConnShowMethod>(global, &ConnShow { id: *id })?, render::conn::show)?;
        }
        Command::Conn(Conn::Close { id, peer, listener }) => {
            let which = ConnClose { id: *id, peer: *peer, listener: *listener };
            output.result(&call::<ConnCloseMethod>(global, &which)?, |closed| {
                render::conn::closed(closed, output.width())
            })?;
        }
        Command::App(command) => app(command, global, output)?,
        Command::Qp(list) => objects::<QpListMethod, _>(list, render::app::queue_pairs, global, output)?,
        Command::Cq(list) => {
            objects::<CqListMethod, _>(list, render::app::completion_queues, global, output)?
        }
        Command::Mr(list) => objects::<MrListMethod, _>(list, render::app::memory_regions, global, output)?,
        Command::Port(Port::List) => {
            output.result(&call::<PortListMethod>(global, &NoParams {})?, |rows| {
                render::port::list(rows, output.width())
            })?;
        }
        Command::Port(Port::Show { name }) => {
            let details = call::<PortShowMethod>(global, &PortShow { name: name.clone() })?;
            output.result(&details, render::port::show)?;
        }
        Command::Port(Port::Stats { name, nonzero }) => {
            let mut ports = call::<PortStatsMethod>(global, &PortStats { name: name.clone() })?;
            if *nonzero {
                ports.iter_mut().for_each(|port| port.counters.0.retain(|(_, value)| *value != 0));
            }
            output.result(&ports, |ports| render::port::stats(ports))?;
        }
        Command::Stats(stats) => watch(stats, global, output)?,
        Command::Drops(drops) => {
            let rows = call::<DropsMethod>(global, &NoParams {})?;
            output.result(&rows, |rows| render::drops::list(rows, drops.all, output.width()))?;
        }
        Command::Monitor(options) => monitor::run(options, global, output)?,
        Command::Capture(options) => capture::run(options, global, output)?,
        Command::Nfs(command) => nfs(command, global, output)?,
        Command::Log(command) => log(command, global, output)?,
        Command::Config(Config::Check { file, machine, format }) => check(file, *machine, *format, output)?,
        Command::Doctor(options) => return examine(options, global, output),
        Command::Remote(RemoteCommand::Transfer(command)) => {
            iwarp_remote::run(&mut KernelTcp, command, global.timeout, output)?;
        }
        Command::Remote(RemoteCommand::Bench(options)) => bench::run(options, global.timeout, output)?,
        Command::Call(raw) => call_raw(raw, global, output)?,
        Command::Completion { shell } => completion(*shell, output)?,
        Command::Version => {
            let version = json!({"version": env!("CARGO_PKG_VERSION"), "api": bounds::API});
            let text = format!("iwarpctl {}\n", args::version());
            output.result(&version, |_| text)?;
        }
    }
    Ok(Exit::Ok)
}

fn completion(shell: clap_complete::Shell, output: &Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    // A write to memory cannot fail.
    let _ = complete::write_script(shell, &mut script);
    output.text(&String::from_utf8_lossy(&script))
}

fn log(Log::Level { level }: &Log, global: &Global, output: &Output) -> Result<(), Failure> {
    let change = LogLevelChange { level: level.map(Into::into) };
    output.result(&call::<LogLevelMethod>(global, &change)?, render::event::log_status)
}

/// Connects to the daemon that the command line names.
pub(crate) fn connect(global: &Global) -> Result<Client, Failure> {
    Ok(Client::connect_with(&global.socket, global.timeout)?)
}

fn call<M: Method>(global: &Global, params: &M::Params) -> Result<M::Reply, Failure> {
    Ok(connect(global)?.call::<M>(params)?)
}

/// Calls a method of iwarp-nfsd.
fn nfs(Nfs { server, command }: &Nfs, global: &Global, output: &Output) -> Result<(), Failure> {
    let mut client = Client::connect_to("iwarp-nfsd", server, global.timeout)?;
    let (none, width) = (NoParams {}, output.width());
    match command {
        NfsCommand::Status => output.result(&client.call::<nfs::StatusMethod>(&none)?, render::nfs::status),
        NfsCommand::Exports => {
            let exports = client.call::<nfs::ExportsMethod>(&none)?;
            output.result(&exports, |exports| render::nfs::exports(exports, width))
        }
        NfsCommand::Clients => {
            let clients = client.call::<nfs::ClientsMethod>(&none)?;
            output.result(&clients, |clients| render::nfs::clients(clients, width))
        }
        NfsCommand::Stats => {
            let stats = client.call::<nfs::StatsMethod>(&none)?;
            output.result(&stats, |stats| render::nfs::stats(stats, width))
        }
        NfsCommand::Reload => output.result(&client.call::<nfs::ReloadMethod>(&none)?, render::nfs::reloaded),
    }
}

fn status(global: &Global, output: &Output) -> Result<Exit, Failure> {
    let status = call::<StatusMethod>(global, &NoParams {})?;
    output.result(&status, |status| render::status::show(status, output.width()))?;
    Ok(match status.state {
        State::Ok => Exit::Ok,
        State::Degraded => Exit::Degraded,
    })
}

fn region(command: &Region, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        Region::Register(register) => {
            let region = call::<RegionRegisterMethod>(global, &registration(register)?)?;
            output.result(&region, render::region::registered)
        }
        Region::List => output.result(&call::<RegionListMethod>(global, &NoParams {})?, |rows| {
            render::region::list(rows, output.width())
        }),
        Region::Show { name } => {
            let region = call::<RegionShowMethod>(global, &RegionQuery { name: name.clone() })?;
            output.result(&region, render::region::show)
        }
        Region::Deregister { name, force } => {
            let params = RegionDeregister { name: name.clone(), force: *force };
            output.result(&call::<RegionDeregisterMethod>(global, &params)?, render::region::deregistered)
        }
    }
}

fn app(command: &App, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        App::List => output.result(&call::<AppListMethod>(global, &NoParams {})?, |apps| {
            render::app::list(apps, output.width())
        }),
        App::Show { id } => {
            output.result(&call::<AppShowMethod>(global, &AppShow { app: *id })?, render::app::show)
        }
    }
}

/// Lists objects of applications.
fn objects<M: Method<Params = AppObjects, Reply = Vec<T>>, T: Serialize>(
    Objects::List { app }: &Objects,
    text: fn(&[T], Width) -> String,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    let rows = call::<M>(global, &AppObjects { app: *app })?;
    output.result(&rows, |rows| text(rows, output.width()))
}

fn registration(register: &Register) -> Result<RegionRegister, Failure> {
    let Register { name, size, access, token_file, allow } = register;
    let token = token_file.as_deref().map(read_token).transpose()?;
    Ok(RegionRegister {
        name: name.clone(),
        bytes: *size,
        access: access.iter().fold(Access::NONE, |all, right| all | *right),
        token_hex: token.as_ref().map(|token| hexadecimal(token.as_bytes())),
        allow: allow.clone(),
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A write to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A pause longer than this closes the connection: the daemon closes silent ones.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// Reports the counters once or repeatedly; short pauses reuse one connection.
fn watch(options: &Stats, global: &Global, output: &Output) -> Result<(), Failure> {
    let mut connected = None;
    let clock = Clock::start();
    let mut before: Option<(Duration, StatsReply)> = None;
    let mut reports = 0;
    loop {
        let mut client = connected.take().map_or_else(|| connect(global), Ok)?;
        let all = client.call::<StatsMethod>(&NoParams {})?;
        connected = options.watch.is_some_and(|pause| pause <= LONG_PAUSE).then_some(client);
        let now = clock.now();
        let shown = selected(&all, options)?;
        let since = before.as_ref().map(|(at, stats)| (now.saturating_sub(*at), stats));
        let text = |shown: &StatsReply| render::stats::show(shown, since, options.details, output.width());
        if options.watch.is_some() {
            output.redraw(&shown, text)?;
        } else {
            output.result(&shown, text)?;
        }
        reports += 1;
        let Some(pause) = options.watch.filter(|_| options.count != Some(reports)) else {
            return Ok(());
        };
        if output.is_text() && output.width().is_none() {
            output.text("\n")?;
        }
        clock::sleep(pause);
        before = Some((now, all));
    }
}

/// Selects the requested groups and counters.
fn selected(all: &StatsReply, options: &Stats) -> Result<StatsReply, Failure> {
    let known = || all.groups.iter().map(|group| group.group.as_str());
    if let Some(unknown) = options.groups.iter().find(|name| !known().any(|known| known == name.as_str())) {
        let message = format!("there is no group of counters `{unknown}`");
        let help = format!("the groups are: {}", known().collect::<Vec<_>>().join(", "));
        return Err(Failure::new(Exit::NoSuchObject, "no_such_object", message).with_help(help));
    }
    let mut shown = all.clone();
    shown.groups.retain(|group| options.groups.is_empty() || options.groups.contains(&group.group));
    if options.nonzero {
        shown.groups.iter_mut().for_each(|group| group.counters.retain(|counter| counter.value != 0));
        shown.groups.retain(|group| !group.counters.is_empty());
    }
    Ok(shown)
}

/// Examines the machine. Asks the daemon that the command line names, else that of the configuration.
fn examine(options: &Doctor, global: &Global, output: &Output) -> Result<Exit, Failure> {
    let Doctor { config: file, all, root } = options;
    let configured = || Some(iwarp_config::Config::load(file).ok()?.control.socket);
    let named = (global.socket != Path::new(bounds::DEFAULT_SOCKET)).then(|| global.socket.clone());
    let socket = named.or_else(configured).unwrap_or_else(|| global.socket.clone());
    let machine = root.as_ref().map_or_else(iwarp_config::Machine::this, iwarp_config::Machine::at);
    let daemon = match root {
        None => Client::connect_with(&socket, global.timeout).ok(),
        Some(_) => None,
    };
    let status = daemon.and_then(|mut daemon| daemon.call::<StatusMethod>(&NoParams {}).ok());
    let examination = doctor::examine(file, &machine, status.as_ref());
    output.result(&examination, |examination| render::doctor::show(examination, *all))?;
    Ok(examination.exit())
}

fn check(file: &Path, machine: bool, format: Mistakes, output: &Output) -> Result<(), Failure> {
    let config = if machine {
        iwarp_config::Config::load_on(file, &iwarp_config::Machine::this())
    } else {
        iwarp_config::Config::load(file)
    };
    match config {
        Ok(config) => {
            let checked = render::config::Checked::new(file, &config);
            output.result(&checked, |checked| render::config::checked(checked, output.width()))
        }
        Err(errors) => {
            let message = errors.to_string();
            let mut failure = Failure::new(Exit::Failed, "invalid_config", message);
            let mistakes = serde_json::to_value(&errors).unwrap_or_default();
            let text = match format {
                Mistakes::Full => errors.render(output.colors_errors()),
                Mistakes::Short => errors.short(),
            };
            failure.report = Some(Box::new(Report { member: ("mistakes", mistakes), text }));
            Err(failure)
        }
    }
}

fn call_raw(raw: &Call, global: &Global, output: &Output) -> Result<(), Failure> {
    let text = if raw.params == "-" { stdin()? } else { raw.params.clone() };
    let params: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("the parameters are not JSON: {error}")))?;
    let reply = connect(global)?.call_raw(&raw.method, params)?;
    output.result(&reply, |reply| format!("{reply:#}\n"))
}

/// Reads stdin, up to the longest request.
fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin()
        .lock()
        .take(bounds::REQUEST_BYTES_MAX as u64)
        .read_to_string(&mut text)
        .map_err(|error| Failure::file(Path::new("stdin"), "read", &error))?;
    Ok(text)
}
