//! The configuration of a script's stack and peer, from its `config` lines.

use crate::line::number;
use crate::net::{OUR_MAC, US, US_V6};
use tcp_stack::{
    Congestion, ConnOptions, Ecn, Ipv4Cidr, Ipv6Cidr, Keepalive, Segmentation, StackConfig, SynCookies,
    TcpConfig,
};

/// The configuration that a script's `config` lines make.
pub(crate) struct Setup {
    pub(crate) stack: StackConfig,
    pub(crate) options: ConnOptions,
    pub(crate) consume: bool,
    pub(crate) pool: usize,
    /// True for IPv6, false for IPv4.
    pub(crate) ipv6: bool,
}

impl Setup {
    /// Returns a configuration without optional features, so that a script names those that it tests.
    pub(crate) fn new(ipv6: bool) -> Self {
        Self {
            stack: StackConfig {
                mac: OUR_MAC,
                ipv4: Ipv4Cidr::new(US, 24),
                ipv6: if ipv6 { Ipv6Cidr::new(US_V6, 64) } else { None },
                // Larger by IPv6's longer header, so that scripts give the same segment lengths.
                mtu: if ipv6 { 1520 } else { 1500 },
                connections_max: 16,
                buffers_max: 1024,
                receive_window_bytes: 65_535,
                receive_window_initial_bytes: 1 << 30,
                receive_memory_bytes: 1 << 30,
                send_buffer_bytes: 100_000,
                tcp: TcpConfig {
                    sack: false,
                    timestamps: false,
                    window_scale: false,
                    syn_retries: 6,
                    time_wait_ms: 60_000,
                    syn_cookies: SynCookies::Never,
                    congestion: Congestion::NewReno,
                    ..TcpConfig::default()
                },
                ..StackConfig::default()
            },
            options: ConnOptions::default(),
            consume: true,
            pool: 1024,
            ipv6,
        }
    }
}

pub(crate) fn configure(setup: &mut Setup, key: &str, value: &str) {
    let tcp = &mut setup.stack.tcp;
    let on = value == "on";
    match key {
        "cookies" => {
            tcp.syn_cookies = match value {
                "never" => SynCookies::Never,
                "when-full" => SynCookies::WhenFull,
                "always" => SynCookies::Always,
                _ => panic!("unknown value {value}"),
            };
        }
        "half_open" => tcp.half_open_max = number(value),
        "sack" => tcp.sack = on,
        "timestamps" => tcp.timestamps = on,
        "scale" => tcp.window_scale = on,
        "ect_control" => tcp.dctcp_ect_control = on,
        "ecn" => tcp.ecn = ecn(value),
        "conn_ecn" => setup.options.ecn = Some(ecn(value)),
        "path_mtu_min" => tcp.path_mtu_min = number(value),
        "path_mtu_age" => tcp.path_mtu_age_s = number(value),
        "black_hole_timeouts" => tcp.black_hole_timeouts = number(value),
        "mtu" => setup.stack.mtu = number(value),
        "hop_limit" => setup.stack.hop_limit = number(value),
        "vlan" => setup.stack.vlan = Some(number(value)),
        // A port with checksum and segmentation offload.
        "segmentation" if on => {
            setup.stack.tx_checksum_offload = true;
            setup.stack.tx_ip_checksum_offload = true;
            setup.stack.segmentation = Some(Segmentation { bytes_max: 65_000, buffers_max: 40 });
        }
        "fragments" => setup.stack.fragments_datagrams_max = number(value),
        "data_center" => {
            let TcpConfig { rto_min_ms, delayed_ack_ms, peer_delayed_ack_ms, .. } = TcpConfig::data_center();
            *tcp = TcpConfig { rto_min_ms, delayed_ack_ms, peer_delayed_ack_ms, ..*tcp };
        }
        "congestion" => tcp.congestion = congestion(value),
        "pacing" => tcp.pacing = on,
        "initial_window_bytes" => tcp.initial_window_bytes = number(value),
        "syn_retries" => tcp.syn_retries = number(value),
        "zero_window" => tcp.zero_window_ms = number(value),
        "fin_wait_2" => tcp.fin_wait_2_ms = number(value),
        "data_retries" => tcp.data_retries = number(value),
        "window" => setup.stack.receive_window_bytes = number(value),
        "window_initial" => setup.stack.receive_window_initial_bytes = number(value),
        "receive_memory" => setup.stack.receive_memory_bytes = number(value),
        "send_buffer" => setup.stack.send_buffer_bytes = number(value),
        "held_segments" => setup.stack.held_segments_max = number(value),
        "connections" => setup.stack.connections_max = number(value),
        "buffers" => setup.stack.buffers_max = number(value),
        "pool" => setup.pool = number(value),
        "nagle" => setup.options.nagle = on,
        "out_of_order" => setup.options.out_of_order = on,
        "consume" => setup.consume = on,
        "user_timeout" => setup.options.user_timeout_ms = Some(number(value)),
        "keepalive" => setup.options.keepalive = Some(keepalive(value)),
        _ => panic!("unknown key {key}"),
    }
}

fn keepalive(value: &str) -> Keepalive {
    let mut parts = value.split('/');
    let mut next = || parts.next().unwrap();
    Keepalive { idle_ms: number(next()), interval_ms: number(next()), probes: number(next()) }
}

/// Returns the congestion control of its name.
pub(crate) fn congestion(name: &str) -> Congestion {
    match name {
        "newreno" => Congestion::NewReno,
        "cubic" => Congestion::Cubic,
        "dctcp" => Congestion::Dctcp,
        "bbr" => Congestion::Bbr,
        _ => panic!("unknown congestion control {name}"),
    }
}

fn ecn(value: &str) -> Ecn {
    match value {
        "off" => Ecn::Off,
        "accept" => Ecn::Accept,
        "on" => Ecn::On,
        _ => panic!("unknown {value}"),
    }
}
