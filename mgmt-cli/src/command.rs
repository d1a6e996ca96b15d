//! Runs the commands of the command line, which `main` has parsed.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use iwarp_config::Machine;
use iwarp_control::{
    AppInfo, AppListMethod, AppObjects, AppShow, AppShowMethod, AppUsersMethod, Client, ConnClose,
    ConnCloseMethod, ConnInfo, ConnListMethod, ConnShow, ConnShowMethod, CqListMethod, Drain, DrainMethod,
    DropRow, DropsMethod, Exit, LogLevelChange, LogLevelMethod, Method, MrListMethod, NoParams, PortInfo,
    PortListMethod, PortShow, PortShowMethod, PortStats, PortStatsMethod, QpListMethod, RegionDeregister,
    RegionDeregisterMethod, RegionInfo, RegionListMethod, RegionQuery, RegionRegister, RegionRegisterMethod,
    RegionShowMethod, ReloadMethod, State, StatusMethod, UserInfo, bounds, nfs,
};
use iwarp_remote::{bench, read_token};
use iwarp_terminal::{Failure, Output, Report, Width};
use rdma::Access;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{
    App, Args, Call, Command, Config, Conn, Doctor, Global, Log, Mistakes, Nfs, NfsCommand, Objects, Port,
    Region, Register, RemoteCommand, View, Worker,
};
use crate::{args, capture, complete, doctor, monitor, render, reserve, serve, stats, top, wait, watch};

/// Time that the daemon has to answer after the end of a drain.
const DRAIN_ANSWER: Duration = Duration::from_secs(10);

/// Runs the command that the command line names.
pub(crate) fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    let global = &args.global;
    match &args.command {
        Command::Status(options) => return status(options, global, output),
        Command::Top(options) => top::run(options, global, output)?,
        Command::Worker(Worker::List(view)) => {
            let ask = |client: &mut Client| Ok(client.call::<StatusMethod>(&NoParams {})?.workers);
            watch::show(view, global, output, ask, |rows, width| render::worker::list(rows, width))
                .map(drop)?;
        }
        Command::Reload => {
            output.result(&call::<ReloadMethod>(global, &NoParams {})?, render::lifecycle::reloaded)?;
        }
        Command::Drain => return drain(global, output),
        Command::Region(command) => region(command, global, output)?,
        Command::Conn(command) => conn(command, global, output)?,
        Command::App(command) => app(command, global, output)?,
        Command::Qp(list) => objects::<QpListMethod, _>(list, render::app::queue_pairs, global, output)?,
        Command::Cq(list) => {
            objects::<CqListMethod, _>(list, render::app::completion_queues, global, output)?
        }
        Command::Mr(list) => objects::<MrListMethod, _>(list, render::app::memory_regions, global, output)?,
        Command::Port(command) => port(command, global, output)?,
        Command::Stats(options) => stats::run(options, global, output)?,
        Command::Drops(drops) => {
            let text = |rows: &Vec<DropRow>, width| render::drops::list(rows, drops.all, width);
            show::<DropsMethod>(&drops.view, &NoParams {}, text, global, output)?;
        }
        Command::Monitor(options) => monitor::run(options, global, output)?,
        Command::Capture(options) => capture::run(options, global, output)?,
        Command::Nfs(command) => nfs(command, global, output)?,
        Command::Log(command) => log(command, global, output)?,
        Command::Config(Config::Check { file, machine, format }) => check(file, *machine, *format, output)?,
        Command::Config(Config::Reserve { file, root }) => {
            let (machine, _) = machine_of(file, root.as_deref(), global);
            output.result(&reserve::reserve(file, &machine)?, render::config::reserved)?;
        }
        Command::Doctor(options) => return examine(options, global, output),
        Command::Remote(RemoteCommand::Transfer(command)) => {
            iwarp_remote::run(command, global.timeout, output)?;
        }
        Command::Remote(RemoteCommand::Bench(options)) => bench::run(options, global.timeout, output)?,
        Command::Serve(options) => serve::run(options, output)?,
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
    let connect = || Ok(Client::connect_to("iwarp-nfsd", server, global.timeout)?);
    match command {
        NfsCommand::Status(view) => nfs_show::<nfs::StatusMethod>(connect, view, render::nfs::status, output),
        NfsCommand::Exports(view) => {
            let text = |exports: &Vec<_>, width| render::nfs::exports(exports, width);
            nfs_show::<nfs::ExportsMethod>(connect, view, text, output)
        }
        NfsCommand::Clients(view) => {
            nfs_show::<nfs::ClientsMethod>(connect, view, render::nfs::clients, output)
        }
        NfsCommand::Stats(view) => nfs_show::<nfs::StatsMethod>(connect, view, render::nfs::stats, output),
        NfsCommand::Reload => {
            let reply = connect()?.call::<nfs::ReloadMethod>(&NoParams {})?;
            output.result(&reply, render::nfs::reloaded)
        }
    }
}

/// Shows the reply of iwarp-nfsd as often as `view` wants.
fn nfs_show<M: Method<Params = NoParams, Reply: Serialize>>(
    connect: impl Fn() -> Result<Client, Failure>,
    view: &View,
    text: impl Fn(&M::Reply, Width) -> String,
    output: &Output,
) -> Result<(), Failure> {
    watch::show_of(connect, view, output, |client| Ok(client.call::<M>(&NoParams {})?), text).map(drop)
}

/// Shows the reply to a method as often as `view` wants.
fn show<M: Method<Reply: Serialize>>(
    view: &View,
    params: &M::Params,
    text: impl Fn(&M::Reply, Width) -> String,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    let ask = |client: &mut Client| Ok(client.call::<M>(params)?);
    watch::show(view, global, output, ask, text).map(drop)
}

fn status(
    args::Status { wait, view }: &args::Status,
    global: &Global,
    output: &Output,
) -> Result<Exit, Failure> {
    if let Some(limit) = wait {
        wait::until_it_serves(global, *limit)?;
    }
    let ask = |client: &mut Client| Ok(client.call::<StatusMethod>(&NoParams {})?);
    let status = watch::show(view, global, output, ask, render::status::show)?;
    Ok(match status.state {
        State::Ok => Exit::Ok,
        State::Degraded => Exit::Degraded,
    })
}

/// Drains the daemon. The time limit is that of the connections; the daemon answers when it is over.
fn drain(global: &Global, output: &Output) -> Result<Exit, Failure> {
    let timeout_ms = u64::try_from(global.timeout.as_millis()).unwrap_or(Drain::TIMEOUT_MS_MAX);
    let mut client = Client::connect_with(&global.socket, global.timeout.saturating_add(DRAIN_ANSWER))?;
    let drained = client.call::<DrainMethod>(&Drain { timeout_ms })?;
    output.result(&drained, render::lifecycle::drained)?;
    Ok(if drained.cut_off == 0 { Exit::Ok } else { Exit::Failed })
}

fn region(command: &Region, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        Region::Register(register) => {
            let region = call::<RegionRegisterMethod>(global, &registration(register)?)?;
            output.result(&region, render::region::registered)
        }
        Region::List(view) => {
            let text = |rows: &Vec<RegionInfo>, width| render::region::list(rows, width);
            show::<RegionListMethod>(view, &NoParams {}, text, global, output)
        }
        Region::Show { name, view } => {
            let params = RegionQuery { name: name.clone() };
            show::<RegionShowMethod>(view, &params, render::region::show, global, output)
        }
        Region::Deregister { name, force } => {
            let params = RegionDeregister { name: name.clone(), force: *force };
            output.result(&call::<RegionDeregisterMethod>(global, &params)?, render::region::deregistered)
        }
    }
}

fn conn(command: &Conn, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        Conn::List(options) => {
            let ask = |client: &mut Client| {
                let mut rows = client.call::<ConnListMethod>(&NoParams {})?;
                rows.retain(|conn| options.admits(conn));
                Ok(rows)
            };
            let text = |rows: &Vec<ConnInfo>, width| match options.oneline {
                true => render::conn::lines(rows),
                false => render::conn::list(rows, width),
            };
            watch::show(&options.view, global, output, ask, text).map(drop)
        }
        Conn::Show { id, view } => {
            show::<ConnShowMethod>(view, &ConnShow { id: *id }, render::conn::show, global, output)
        }
        Conn::Close { id, peer, listener } => {
            let which = ConnClose { id: *id, peer: *peer, listener: *listener };
            output.result(&call::<ConnCloseMethod>(global, &which)?, |closed| {
                render::conn::closed(closed, output.width())
            })
        }
    }
}

fn app(command: &App, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        App::List(view) => {
            let text = |apps: &Vec<AppInfo>, width| render::app::list(apps, width);
            show::<AppListMethod>(view, &NoParams {}, text, global, output)
        }
        App::Show { id, view } => {
            show::<AppShowMethod>(view, &AppShow { app: *id }, render::app::show, global, output)
        }
        App::Users(view) => {
            let text = |users: &Vec<UserInfo>, width| render::app::users(users, width);
            show::<AppUsersMethod>(view, &NoParams {}, text, global, output)
        }
    }
}

fn port(command: &Port, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        Port::List(view) => {
            let text = |ports: &Vec<PortInfo>, width| render::port::list(ports, width);
            show::<PortListMethod>(view, &NoParams {}, text, global, output)
        }
        Port::Show { name, view } => {
            let params = PortShow { name: name.clone() };
            show::<PortShowMethod>(view, &params, render::port::show, global, output)
        }
        Port::Stats { name, nonzero, view } => {
            let params = PortStats { name: name.clone() };
            let ask = |client: &mut Client| {
                let mut ports = client.call::<PortStatsMethod>(&params)?;
                if *nonzero {
                    ports.iter_mut().for_each(|port| port.counters.0.retain(|(_, value)| *value != 0));
                }
                Ok(ports)
            };
            watch::show(view, global, output, ask, |ports, _| render::port::stats(ports)).map(drop)
        }
    }
}

/// Lists objects of applications.
fn objects<M: Method<Params = AppObjects, Reply = Vec<T>>, T: Serialize>(
    Objects::List { app, view }: &Objects,
    text: fn(&[T], Width) -> String,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    let text = |rows: &Vec<T>, width| text(rows, width);
    show::<M>(view, &AppObjects { app: *app }, text, global, output)
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

/// Examines the machine that the options name.
fn examine(options: &Doctor, global: &Global, output: &Output) -> Result<Exit, Failure> {
    let Doctor { config: file, all, root } = options;
    let (machine, daemon) = machine_of(file, root.as_deref(), global);
    let examination = doctor::examine(file, &machine, daemon.as_ref());
    output.result(&examination, |examination| render::doctor::show(examination, *all))?;
    Ok(examination.exit())
}

/// Returns the machine below `root`, or this one, as the daemon that runs here found it; and the daemon's status. Asks
/// the daemon that the command line names, else that of the configuration.
fn machine_of(file: &Path, root: Option<&Path>, global: &Global) -> (Machine, Option<doctor::Daemon>) {
    if let Some(root) = root {
        return (Machine::at(root), None);
    }
    let configured = || Some(iwarp_config::Config::load(file).ok()?.control.socket);
    let named = (global.socket != Path::new(bounds::DEFAULT_SOCKET)).then(|| global.socket.clone());
    let socket = named.or_else(configured).unwrap_or_else(|| global.socket.clone());
    let daemon = Client::connect_with(&socket, global.timeout).ok();
    let daemon = daemon.and_then(|mut daemon| {
        let status = daemon.call::<StatusMethod>(&NoParams {}).ok()?;
        let details =
            |port: &PortInfo| daemon.call::<PortShowMethod>(&PortShow { name: port.name.clone() }).ok();
        let ports = status.ports.iter().filter_map(details).collect();
        Some(doctor::Daemon { status, ports })
    });
    let machine = Machine::this();
    match &daemon {
        Some(running) => (machine.beside(running.status.pid), daemon),
        None => (machine, None),
    }
}

fn check(file: &Path, machine: bool, format: Mistakes, output: &Output) -> Result<(), Failure> {
    let config = if machine {
        iwarp_config::Config::load_on(file, &Machine::this())
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
