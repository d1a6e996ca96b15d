//! Settings of the protocols, from a checked configuration.

use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use iwarp_config::{Config, Listener, Placement, PortRange, Service};
use iwarp_engine::{EngineConfig, ListenerService, ListenerSetup};
use rdma::verbs::Limits;
use rdma::{CrcPolicy, EndpointConfig, NegotiationConfig, OutOfOrderPolicy};
use tcp_stack::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr};
use tcp_stack::{ConnOptions, Keepalive, ListenOptions, StackConfig};

use super::pool_buffers;
use crate::admin::object_limits;
use crate::dpdk::RESERVE_MIN;
use crate::port::{Port, Shared};

/// Time without an answer after which an initiator sends an empty RDMA Write, for responders that overlook the first
/// FPDU.
const POKE_AFTER: Duration = Duration::from_millis(100);

/// Returns the settings of a listener of the configuration.
pub(crate) fn listener_setup(config: &Config, listener: &Listener) -> ListenerSetup {
    let service = match listener.service {
        Service::Echo => ListenerService::Echo,
        Service::Discard => ListenerService::Discard,
        Service::Chargen => ListenerService::Chargen,
        Service::Daytime => ListenerService::Daytime,
        Service::Region => ListenerService::Region(endpoint(config, listener.crc)),
    };
    let options = ListenOptions {
        backlog: u32::from(listener.backlog),
        connections_max: listener.connections_max,
        conn: listener.conn,
    };
    ListenerSetup { port: listener.port, options, service }
}

/// Returns the most valid STags of an engine: grants, and the memory regions and windows of applications.
pub(crate) fn stags_max(config: &Config) -> u32 {
    let memory_regions: u32 = config.applications.as_ref().map_or(0, |table| table.memory_regions_max.into());
    config.limits.grants_max.saturating_add(memory_regions.saturating_mul(2))
}

/// Returns the limits of an engine's device: for the region service, and for applications if there are any.
pub(super) fn limits(config: &Config) -> Limits {
    let listeners = u32::try_from(config.listeners.len()).unwrap_or(u32::MAX);
    let service = EngineConfig::service_limits(config.tcp.connections_max, listeners);
    let Some(table) = &config.applications else { return service };
    let objects = object_limits(table);
    let most = |objects: u32| u16::try_from(objects).unwrap_or(u16::MAX);
    Limits {
        pds: most(objects.pds),
        mrs: most(objects.mrs),
        mws: most(objects.mws),
        cqs: most(objects.cqs),
        qps: most(objects.qps),
        srqs: most(objects.srqs),
        // One more for each queue pair that is connected by number.
        ids: service.ids.saturating_add(objects.ids).saturating_add(objects.qps),
        ..service
    }
}

/// Returns the TCP options of connections that the device opens, and of its listeners.
pub(crate) fn conn_options(config: &Config, endpoint: &EndpointConfig) -> ConnOptions {
    let tcp = &config.tcp;
    let keepalive = tcp.keepalive_s.map(|idle| Keepalive {
        idle_ms: idle.saturating_mul(1000),
        interval_ms: tcp.keepalive_interval_s.saturating_mul(1000),
        probes: tcp.keepalive_probes,
    });
    ConnOptions {
        keepalive,
        user_timeout_ms: tcp.user_timeout_ms,
        out_of_order: endpoint.out_of_order != OutOfOrderPolicy::Off,
        ..ConnOptions::default()
    }
}

/// Returns the stack settings of one worker on an open port.
pub(crate) fn stack_on(config: &Config, spec: &iwarp_config::Port, worker: u16, port: &Port) -> StackConfig {
    let own = StackConfig { mtu: port.mtu(), ..stack(config, spec) };
    StackConfig {
        mac: MacAddr(port.mac()),
        primary: worker == 0,
        tx_checksum_offload: port.offloads().tx_tcp_checksum,
        tx_ip_checksum_offload: port.offloads().tx_ip_checksum,
        segmentation: port.segmentation(),
        worker_index: worker,
        rss: port.rss().cloned(),
        ..match port.shared() {
            Some(shared) => with_kernels_addresses(own, shared),
            None => own,
        }
    }
}

/// Replaces the addresses of a stack by those of the kernel.
fn with_kernels_addresses(stack: StackConfig, shared: &Shared) -> StackConfig {
    let addresses = shared.addresses();
    StackConfig {
        shared_ports: Some(shared.ours().clone()),
        source_ports: shared.source_ports().ports(),
        ipv4: ipv4_cidr(addresses.ipv4),
        ipv4_gateway: addresses.gateway,
        ipv6: ipv6_cidr(addresses.ipv6),
        ipv6_gateway: addresses.gateway6,
        ipv6_link_local: addresses.link_local,
        ..stack
    }
}

fn ipv4_cidr(net: Option<Ipv4Net>) -> Option<Ipv4Cidr> {
    net.and_then(|net| Ipv4Cidr::new(net.addr(), net.prefix_len()))
}

fn ipv6_cidr(net: Option<Ipv6Net>) -> Option<Ipv6Cidr> {
    net.and_then(|net| Ipv6Cidr::new(net.addr(), net.prefix_len()))
}

/// Returns the stack settings that the configuration determines.
fn stack(config: &Config, spec: &iwarp_config::Port) -> StackConfig {
    let Config { ip, tcp, .. } = config;
    StackConfig {
        vlan: spec.vlan,
        mtu: spec.mtu,
        ipv4: ipv4_cidr(spec.addresses.ipv4),
        ipv4_gateway: spec.gateway,
        ipv6: ipv6_cidr(spec.addresses.ipv6),
        ipv6_gateway: spec.gateway6,
        source_ports: spec.source_ports.unwrap_or(PortRange::DYNAMIC).ports(),
        hop_limit: ip.hop_limit,
        connections_max: tcp.connections_max,
        connections_per_source_max: tcp.connections_per_source_max,
        neighbors_max: config.limits.neighbors_max,
        neighbors: spec.neighbors.iter().map(|neighbor| (neighbor.address, MacAddr(neighbor.mac))).collect(),
        fragments_datagrams_max: ip.fragments_datagrams_max,
        fragments_bytes_max: ip.fragments_bytes_max,
        fragments_timeout_ms: ip.fragments_timeout_ms,
        path_mtu_entries_max: ip.path_mtu_entries_max,
        held_bytes_max: tcp.held_bytes_max,
        held_segments_max: u32::from(tcp.held_segments_max),
        buffers_max: pool_buffers(config).saturating_sub(RESERVE_MIN),
        send_buffer_bytes: tcp.send_buffer_bytes,
        receive_window_bytes: tcp.receive_window_bytes,
        receive_window_initial_bytes: tcp.receive_window_initial_bytes,
        receive_memory_bytes: tcp.receive_memory_bytes,
        received_buffers_max: tcp.received_buffers_max,
        tcp: tcp.stack,
        worker_count: u16::try_from(config.workers.cores.len()).unwrap_or(u16::MAX),
        ..StackConfig::default()
    }
}

/// Returns the settings of RDMA connections from `[mpa]` and `[placement]`.
pub(crate) fn endpoint(config: &Config, crc: CrcPolicy) -> EndpointConfig {
    let mpa = NegotiationConfig {
        crc,
        ird_max: config.mpa.ird_max,
        ord_max: config.mpa.ord_max,
        timeout: Duration::from_millis(u64::from(config.mpa.handshake_timeout_ms)),
        markers: config.mpa.markers,
        ..NegotiationConfig::default()
    };
    let Placement { out_of_order, last_out_of_order, .. } = config.placement;
    let disconnect_timeout = Duration::from_millis(u64::from(config.mpa.disconnect_timeout_ms));
    let fpdu_timeout = Some(Duration::from_millis(u64::from(config.mpa.fpdu_timeout_ms)));
    EndpointConfig {
        mpa,
        out_of_order,
        last_out_of_order,
        disconnect_timeout,
        fpdu_timeout,
        poke_after: Some(POKE_AFTER),
        ..EndpointConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every setting of the file reaches the stack; the exhaustive pattern fails to compile if a field is missing.
    #[test]
    fn every_stack_setting_comes_from_the_file() {
        let text = "[[port]]\ndriver = 'ring'\naddresses = ['10.0.0.1/24', 'fd00::1/64']\nvlan = 7\nmtu = 9000\n\
                    gateway = '10.0.0.2'\ngateway6 = 'fd00::2'\nsource_ports = '31-37'\n\
                    [[port.neighbor]]\naddress = '10.0.0.2'\nmac = '02:00:00:00:00:09'\n[workers]\ncores = [1, 2]\n\
                    [ip]\nhop_limit = 9\nfragments_datagrams_max = 11\nfragments_bytes_max = '128k'\n\
                    fragments_timeout_ms = 5000\npath_mtu_entries_max = 13\npath_mtu_min = 1000\n\
                    [tcp]\nprofile = 'data-center'\ncongestion = 'bbr'\nconnections_max = 17\n\
                    connections_per_source_max = 12\nheld_bytes_max = '1M'\n\
                    held_segments_max = 19\nsend_buffer_bytes = '2M'\nreceive_window_bytes = '3M'\n\
                    receive_window_initial_bytes = '5k'\nreceive_memory_bytes = '7M'\n\
                    received_buffers_max = 29000\n[limits]\nneighbors_max = 23\n";
        let config = Config::parse("test.toml", text).unwrap();
        let StackConfig {
            mac: _,
            primary: _,
            tx_checksum_offload: _,
            tx_ip_checksum_offload: _,
            segmentation: _,
            worker_index: _,
            rss: _,
            ipv6_link_local: _,
            shared_ports: _,
            source_ports,
            vlan,
            mtu,
            ipv4,
            ipv4_gateway,
            ipv6,
            ipv6_gateway,
            hop_limit,
            connections_max,
            connections_per_source_max,
            neighbors_max,
            neighbors,
            fragments_datagrams_max,
            fragments_bytes_max,
            fragments_timeout_ms,
            path_mtu_entries_max,
            held_bytes_max,
            held_segments_max,
            buffers_max,
            send_buffer_bytes,
            receive_window_bytes,
            receive_window_initial_bytes,
            receive_memory_bytes,
            received_buffers_max,
            tcp,
            worker_count,
        } = stack(&config, &config.ports[0]);
        assert_eq!(source_ports, 31..=37);
        assert_eq!((vlan, mtu, hop_limit, worker_count), (Some(7), 9000, 9, 2));
        assert_eq!(ipv4, Ipv4Cidr::new([10, 0, 0, 1].into(), 24));
        assert_eq!(ipv6, Ipv6Cidr::new("fd00::1".parse().unwrap(), 64));
        assert_eq!(ipv4_gateway, Some([10, 0, 0, 2].into()));
        assert_eq!(ipv6_gateway, Some("fd00::2".parse().unwrap()));
        assert_eq!(neighbors, [([10, 0, 0, 2].into(), MacAddr([2, 0, 0, 0, 0, 9]))]);
        assert_eq!(connections_per_source_max, 12);
        assert_eq!((connections_max, neighbors_max, path_mtu_entries_max), (17, 23, 13));
        assert_eq!(
            (fragments_datagrams_max, fragments_bytes_max, fragments_timeout_ms),
            (11, 128 << 10, 5000)
        );
        assert_eq!((held_bytes_max, held_segments_max), (1 << 20, 19));
        assert_eq!(buffers_max, config.memory.packet_buffers / 2 - RESERVE_MIN);
        assert_eq!((send_buffer_bytes, receive_window_bytes), (2 << 20, 3 << 20));
        assert_eq!((receive_window_initial_bytes, receive_memory_bytes), (5 << 10, 7 << 20));
        assert_eq!(received_buffers_max, 29_000);
        assert_eq!(tcp, config.tcp.stack);
        assert_eq!((tcp.rto_min_ms, tcp.path_mtu_min), (5, 1000));
    }
}
