//! A daemon with a few regions, a connection and a port, as far as the control socket shows them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use iwarp_control::{
    AppListMethod, AppShowMethod, AppUsersMethod, Backing, ConfigChange, ConnBbrInfo, ConnClose,
    ConnCloseMethod, ConnClosed, ConnCounts, ConnInfo, ConnListMethod, ConnRdmaInfo, ConnShowMethod,
    ConnsClosed, CounterGroup, CounterRow, CqListMethod, DrainMethod, Drained, Draining, DropRow,
    DropsMethod, ErrorKind, ErrorObject, Hugepages, Idle, Interrupts, KernelSide, Link, LinkChange, Method,
    MrListMethod, NamedCounters, Origin, PoolStatus, PortDetails, PortInfo, PortListMethod, PortShowMethod,
    PortStatsMethod, PortStatsRow, QpListMethod, RegionDeregisterMethod, RegionDeregistered, RegionInfo,
    RegionListMethod, RegionRegisterMethod, RegionShowMethod, RegionTotals, ReloadMethod, Reloaded, Request,
    Response, Sharing, State, StatsMethod, StatsReply, Status, StatusMethod, SuperFrames, WorkerStatus,
    params,
};
use serde_json::value::RawValue;

use crate::applications;

/// The requests and replies of the scripted daemon.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) degraded: Vec<String>,
    pub(crate) regions: BTreeMap<String, RegionInfo>,
    /// The tokens of the regions, as they were registered.
    pub(crate) tokens: BTreeMap<String, String>,
    /// The last parameters of `conn.close`.
    pub(crate) close_asked: Option<ConnClose>,
    /// The application that has the connection, if it is not the region service.
    pub(crate) owner: Option<u32>,
    /// Grants that `reload` revokes; it is refused without.
    pub(crate) revokes: Option<u64>,
    /// The last time of a `drain`, ms, and the connections that it cuts off.
    pub(crate) drain: (u64, u64),
    /// The drain in progress.
    pub(crate) draining: Option<Draining>,
    /// Writes received, ten more each time that somebody looks.
    writes: u64,
}

pub(crate) struct Daemon {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    pub(crate) memory: Arc<Mutex<Memory>>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    /// Starts a daemon whose socket is `control.sock` in a folder.
    pub(crate) fn at(dir: tempfile::TempDir) -> Self {
        let socket = dir.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let memory = Arc::new(Mutex::new(Memory::default()));
        let shared = Arc::clone(&memory);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), &shared);
            }
        });
        Self { _dir: dir, socket, memory }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

fn serve(mut stream: UnixStream, memory: &Mutex<Memory>) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in lines {
        let request: Request = serde_json::from_str(&line.unwrap()).unwrap();
        let response = match memory.lock().unwrap().answer(&request) {
            Ok(result) => Response::success(request.id, result),
            Err(error) => Response::failure(request.id, error),
        };
        if stream.write_all(&response.to_line().unwrap()).is_err() {
            return;
        }
    }
}

type Answer = Result<Box<RawValue>, ErrorObject>;

fn done<M: Method>(reply: &M::Reply) -> Answer {
    Ok(serde_json::value::to_raw_value(reply).unwrap())
}

impl Memory {
    fn answer(&mut self, request: &Request) -> Answer {
        let asked = request.params.clone();
        match request.method.as_str() {
            "status" => done::<StatusMethod>(&self.status()),
            "region.register" => self.register(params::<RegionRegisterMethod>(asked)?),
            "region.list" => done::<RegionListMethod>(&self.regions.values().cloned().collect()),
            "region.show" => done::<RegionShowMethod>(self.region(&params::<RegionShowMethod>(asked)?.name)?),
            "region.deregister" => {
                let asked = params::<RegionDeregisterMethod>(asked)?;
                let grants = self.region(&asked.name)?.grants;
                if grants > 0 && !asked.force {
                    let error =
                        ErrorObject::new(ErrorKind::InUse, format!("region {} is in use", asked.name));
                    return Err(error.with_help("--force revokes its grants"));
                }
                self.regions.remove(&asked.name);
                done::<RegionDeregisterMethod>(&RegionDeregistered {
                    name: asked.name,
                    grants_revoked: grants,
                })
            }
            "conn.list" => done::<ConnListMethod>(&vec![self.connection()]),
            "conn.show" => match params::<ConnShowMethod>(asked)?.id {
                17 => done::<ConnShowMethod>(&self.connection()),
                id => Err(ErrorObject::new(ErrorKind::NoSuchObject, format!("no connection {id}"))),
            },
            "conn.close" => self.close(params::<ConnCloseMethod>(asked)?),
            "app.list" => {
                params::<AppListMethod>(asked)?;
                done::<AppListMethod>(&applications::apps())
            }
            "app.users" => done::<AppUsersMethod>(&applications::users()),
            "app.show" => done::<AppShowMethod>(&applications::app(params::<AppShowMethod>(asked)?.app)?),
            "qp.list" => {
                let asked = params::<QpListMethod>(asked)?;
                done::<QpListMethod>(&applications::of(asked, applications::queue_pairs(), |qp| qp.app)?)
            }
            "cq.list" => {
                let asked = params::<CqListMethod>(asked)?;
                done::<CqListMethod>(&applications::of(asked, applications::completion_queues(), |cq| {
                    cq.app
                })?)
            }
            "mr.list" => {
                let asked = params::<MrListMethod>(asked)?;
                done::<MrListMethod>(&applications::of(asked, applications::memory_regions(), |mr| mr.app)?)
            }
            "port.list" => done::<PortListMethod>(&vec![port()]),
            "port.show" => match params::<PortShowMethod>(asked)?.name.as_str() {
                "p0" => done::<PortShowMethod>(&details()),
                name => Err(ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no port `{name}`"))),
            },
            "port.stats" => done::<PortStatsMethod>(&vec![PortStatsRow {
                name: "p0".into(),
                counters: NamedCounters(vec![("rx_good_packets".into(), 5), ("imissed".into(), 0)]),
            }]),
            "stats" => {
                self.writes += 10;
                done::<StatsMethod>(&stats(self.writes))
            }
            "reload" => self.reload(),
            "drain" => {
                self.drain.0 = params::<DrainMethod>(asked)?.timeout_ms;
                done::<DrainMethod>(&Drained { cut_off: self.drain.1 })
            }
            "drops" => done::<DropsMethod>(&vec![drops("bad_checksum", 3), drops("no_listener", 0)]),
            "forbidden" => Err(ErrorObject::new(ErrorKind::NotPermitted, "not for you")),
            method => Err(ErrorObject::new(ErrorKind::UnknownMethod, format!("no method {method}"))),
        }
    }

    fn reload(&self) -> Answer {
        let Some(grants_revoked) = self.revokes else {
            let refused = "port p0: takes effect at a restart only";
            return Err(ErrorObject::new(ErrorKind::NeedsRestart, refused).with_help("restart the daemon"));
        };
        let changes = vec![
            ConfigChange { object: "log.level".into(), change: "info -> debug".into() },
            ConfigChange { object: "region lab".into(), change: "removed".into() },
        ];
        let config_path = "/etc/iwarpd/iwarpd.toml".into();
        done::<ReloadMethod>(&Reloaded { config_path, changes, grants_revoked })
    }

    fn region(&self, name: &str) -> Result<&RegionInfo, ErrorObject> {
        self.regions.get(name).ok_or_else(|| {
            let error = ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no region {name}"));
            error.with_help("`iwarpctl region list` shows those that there are")
        })
    }

    fn register(&mut self, asked: iwarp_control::RegionRegister) -> Answer {
        if self.regions.contains_key(&asked.name) {
            return Err(ErrorObject::new(ErrorKind::Exists, format!("there is a region {}", asked.name)));
        }
        let region = RegionInfo {
            name: asked.name.clone(),
            bytes: asked.bytes,
            access: asked.access,
            backing: Backing::Hugepages,
            page_bytes: 2 << 20,
            token_required: asked.token_hex.is_some(),
            allow: asked.allow,
            origin: Origin::Control,
            grants: 0,
            bytes_placed: 0,
            bytes_fetched: 0,
            instance: 1,
        };
        if let Some(token) = asked.token_hex {
            self.tokens.insert(asked.name.clone(), token);
        }
        self.regions.insert(asked.name, region.clone());
        done::<RegionRegisterMethod>(&region)
    }

    fn connection(&self) -> ConnInfo {
        let mut conn = connection();
        if self.owner.is_some() {
            (conn.app, conn.service) = (self.owner, "verbs".into());
            conn.rdma.as_mut().unwrap().region = None;
        }
        conn
    }

    /// Closes connections, of which there is one.
    fn close(&mut self, asked: ConnClose) -> Answer {
        let ConnInfo { id, local, remote, service, .. } = connection();
        let is_meant = asked.id.is_none_or(|asked| asked == id)
            && asked.peer.is_none_or(|peer| peer.contains(&remote.ip()))
            && asked.listener.is_none_or(|port| port == local.port());
        self.close_asked = Some(asked);
        if !is_meant {
            return Err(ErrorObject::new(ErrorKind::NoSuchObject, "there is no such connection"));
        }
        let closed = vec![ConnClosed { id, local, remote, service }];
        done::<ConnCloseMethod>(&ConnsClosed { count: 1, closed })
    }

    /// Grants that peers hold of a region.
    pub(crate) fn grant(&mut self, name: &str, grants: u64) {
        self.regions.get_mut(name).unwrap().grants = grants;
    }

    fn status(&self) -> Status {
        Status {
            api: 1,
            version: "0.1.0".into(),
            pid: 4711,
            uptime_ms: 3_720_000,
            state: if self.degraded.is_empty() { State::Ok } else { State::Degraded },
            degraded: self.degraded.clone(),
            draining: self.draining,
            dpdk_version: "22.11.11".into(),
            config_path: "/etc/iwarpd/iwarpd.toml".into(),
            hugepages: Hugepages { required: true, page_bytes: 2 << 20, total: 256, free: 200 },
            workers: vec![worker()],
            ports: vec![port()],
            connections: ConnCounts { established: 1, opening: 0, closing: 0, time_wait: 2, max: 4096 },
            regions: RegionTotals { count: self.regions.len() as u64, bytes: 64 << 20, max: 256 },
            pools: vec![PoolStatus {
                name: "packets".into(),
                buffers: 8192,
                in_use: 1100,
                reserve: 256,
                data_room_bytes: 2176,
            }],
            rss_bytes: 50 << 20,
        }
    }
}

fn worker() -> WorkerStatus {
    WorkerStatus {
        worker: 0,
        core: 1,
        idle: Idle::Adaptive,
        iterations: 1_000_000,
        busy_permille: 123,
        rx_bursts: 100,
        rx_packets_per_burst_x100: 1250,
        rx_packets: 1250,
        tx_packets: 900,
        sleeps: 7,
        spins_paid: 3,
        wake_up_ns: 42_000,
    }
}

fn port() -> PortInfo {
    PortInfo {
        name: "p0".into(),
        driver: "net_tap".into(),
        device: "net_tap0".into(),
        mac: "02:00:00:00:00:01".into(),
        mtu: 1500,
        link: Link::Up,
        interface: None,
        speed_mbps: 10_000,
        addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
        rx_queues: 1,
        tx_queues: 1,
        offloads: Vec::new(),
        rx_packets: 1250,
        tx_packets: 900,
        rx_bytes: 1 << 20,
        tx_bytes: 65_536,
        rx_missed: 0,
        rx_errors: 0,
        tx_errors: 0,
        rx_nombuf: 0,
    }
}

fn details() -> PortDetails {
    PortDetails {
        port: PortInfo { driver: "pci".into(), device: "net_e1000_igb".into(), ..port() },
        device_name: "0000:01:00.0".into(),
        firmware: Some("3.16, 0x0".into()),
        bus_address: Some("0000:01:00.0".into()),
        kernel_driver: Some("vfio-pci".into()),
        numa_node: Some(1),
        offloads_requested: vec!["rx-tcp-checksum".into(), "tx-segmentation".into()],
        offloads_granted: vec!["rx-tcp-checksum".into()],
        queues_max: 8,
        rss_functions: vec!["ipv4-tcp".into(), "ipv6-tcp".into()],
        interrupts: Interrupts::PerQueue,
        sharing: Some(Sharing { ports_reserved: 66, ports_refused: 1, source_ports: "65472-65535".into() }),
        super_frames: Some(SuperFrames {
            rx_frames: 10,
            rx_segments: 441,
            rx_guesses_missed: 2,
            rx_too_long: 1,
            tx_frames: 0,
            tx_segments: 0,
        }),
        kernel_side: Some(KernelSide {
            receive_buffer_bytes: Some(425_984),
            rx_checksum: true,
            rx_merging: false,
            tx_checksum: true,
            tx_segmentation: true,
        }),
        link_history: [(9000, Link::Down), (1500, Link::Up)]
            .map(|(age_ms, link)| LinkChange { age_ms, link })
            .to_vec(),
    }
}

fn connection() -> ConnInfo {
    ConnInfo {
        id: 17,
        worker: 0,
        local: "10.77.0.2:7400".parse().unwrap(),
        remote: "[fd77::1]:40000".parse().unwrap(),
        state: "ESTABLISHED".into(),
        service: "region".into(),
        app: None,
        age_ms: 1500,
        bytes_in: 1 << 20,
        bytes_out: 4096,
        segments_in: 800,
        segments_out: 400,
        retransmits: 2,
        rtt_us: 42,
        rttvar_us: 6,
        min_rtt_us: 31,
        rto_ms: 201,
        attempts: 0,
        soft_error: false,
        timeouts: 1,
        recoveries: 3,
        congestion: "bbr".into(),
        ecn: "off".into(),
        pacing_bytes_per_s: Some(12_500_000),
        delivery_bytes_per_s: Some(11_000_000),
        delivery_app_limited: true,
        bbr: Some(ConnBbrInfo {
            state: "probe-bw".into(),
            bandwidth_bytes_per_s: 12_000_000,
            min_rtt_us: 30,
            pacing_gain_percent: 125,
            cwnd_gain_percent: 200,
        }),
        cwnd_bytes: 14_480,
        ssthresh_bytes: u64::MAX,
        in_flight_bytes: 2896,
        mss: 1448,
        path_mtu: 1500,
        snd_wnd: 65_536,
        rcv_wnd: 1 << 20,
        unread_bytes: 5,
        urgent_bytes: 0,
        held_bytes: 4608,
        sack: true,
        timestamps: true,
        wscale: [7, 10],
        rdma: Some(ConnRdmaInfo {
            mpa_revision: 2,
            crc: true,
            ird: 128,
            ord: 16,
            region: Some("lab".into()),
            state: "RTS".into(),
            in_writes: 12,
            in_reads: 3,
            bytes_placed: 1 << 20,
            bytes_fetched: 4096,
            last_terminate: None,
        }),
    }
}

fn stats(writes: u64) -> StatsReply {
    let counter = |name: &str, value| CounterRow { name: name.into(), help: format!("About {name}."), value };
    let group = |group: &str, counters| CounterGroup { group: group.into(), counters };
    StatsReply {
        groups: vec![
            group("tcp", vec![counter("segments_out", 800), counter("resets_in", 0)]),
            group("rdmap", vec![counter("in_rdma_writes", writes)]),
            group("ddp", vec![counter("bad_stag", 0)]),
        ],
        workers: vec![worker()],
    }
}

fn drops(reason: &str, count: u64) -> DropRow {
    DropRow { layer: "ip".into(), reason: reason.into(), help: format!("Frames with {reason}."), count }
}
