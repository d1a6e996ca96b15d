//! The configuration of a device, and DPDK's form of it.

/// Work on frames that a device does in the place of software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// It verifies IPv4 header checksums.
    pub rx_ip_checksum: bool,
    /// It verifies TCP checksums.
    pub rx_tcp_checksum: bool,
    /// It fills in IPv4 header checksums.
    pub tx_ip_checksum: bool,
    /// It fills in TCP checksums.
    pub tx_tcp_checksum: bool,
    /// It segments frames (TSO).
    pub tx_segmentation: bool,
}

impl Offloads {
    /// Returns every offload with its name in listings, and true if it is on.
    pub fn named(self) -> [(&'static str, bool); 5] {
        [
            ("rx-ip-checksum", self.rx_ip_checksum),
            ("rx-tcp-checksum", self.rx_tcp_checksum),
            ("tx-ip-checksum", self.tx_ip_checksum),
            ("tx-tcp-checksum", self.tx_tcp_checksum),
            ("tx-segmentation", self.tx_segmentation),
        ]
    }

    /// Returns the names of the offloads that `other` lacks.
    pub fn beyond(self, other: Self) -> Vec<&'static str> {
        let pairs = self.named().into_iter().zip(other.named());
        pairs.filter(|((_, mine), (_, theirs))| *mine && !theirs).map(|((name, _), _)| name).collect()
    }

    /// Returns the offloads that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            rx_ip_checksum: self.rx_ip_checksum && other.rx_ip_checksum,
            rx_tcp_checksum: self.rx_tcp_checksum && other.rx_tcp_checksum,
            tx_ip_checksum: self.tx_ip_checksum && other.tx_ip_checksum,
            tx_tcp_checksum: self.tx_tcp_checksum && other.tx_tcp_checksum,
            tx_segmentation: self.tx_segmentation && other.tx_segmentation,
        }
    }

    /// Returns the offloads that DPDK's capability flags name. A frame that the device segments lies in several
    /// buffers.
    pub(super) fn of_capabilities(rx: u64, tx: u64) -> Self {
        let segmentation = dpdk_sys::DPDK_TX_OFFLOAD_TCP_TSO | dpdk_sys::DPDK_TX_OFFLOAD_MULTI_SEGS;
        Self {
            rx_ip_checksum: rx & dpdk_sys::DPDK_RX_OFFLOAD_IPV4_CKSUM != 0,
            rx_tcp_checksum: rx & dpdk_sys::DPDK_RX_OFFLOAD_TCP_CKSUM != 0,
            tx_ip_checksum: tx & dpdk_sys::DPDK_TX_OFFLOAD_IPV4_CKSUM != 0,
            tx_tcp_checksum: tx & dpdk_sys::DPDK_TX_OFFLOAD_TCP_CKSUM != 0,
            tx_segmentation: tx & segmentation == segmentation,
        }
    }

    /// Returns DPDK's flags for the receive side and for the transmit side.
    fn flags(self) -> (u64, u64) {
        let segmentation = dpdk_sys::DPDK_TX_OFFLOAD_TCP_TSO | dpdk_sys::DPDK_TX_OFFLOAD_MULTI_SEGS;
        let sum =
            |flags: &[(bool, u64)]| flags.iter().filter(|(on, _)| *on).fold(0, |sum, (_, flag)| sum | flag);
        let rx = sum(&[
            (self.rx_ip_checksum, dpdk_sys::DPDK_RX_OFFLOAD_IPV4_CKSUM),
            (self.rx_tcp_checksum, dpdk_sys::DPDK_RX_OFFLOAD_TCP_CKSUM),
        ]);
        let tx = sum(&[
            (self.tx_ip_checksum, dpdk_sys::DPDK_TX_OFFLOAD_IPV4_CKSUM),
            (self.tx_tcp_checksum, dpdk_sys::DPDK_TX_OFFLOAD_TCP_CKSUM),
            (self.tx_segmentation, segmentation),
        ]);
        (rx, tx)
    }
}

/// The configuration that a device is started with.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// True to set the driver's MTU, beyond its configuration: for devices that no other program uses.
    pub set_mtu: bool,
    /// Offloads to enable: only those that the device has.
    pub offloads: Offloads,
    /// True to let the device drop the frames of every VLAN that is not [admitted](super::Device::admit_vlan).
    pub vlan_filter: bool,
    /// Spread TCP over the queues with this key.
    pub rss_key: Option<Vec<u8>>,
    /// Have an interrupt per receive queue, to sleep on. Done without if the device cannot.
    pub rx_interrupt: bool,
    /// Receive descriptors per queue; the device may round.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue; the device may round.
    pub tx_descriptors: u16,
}

/// DPDK's form of the configuration. Points into `config`.
pub(super) fn raw_config(config: &DeviceConfig, interrupts: bool) -> dpdk_sys::rte_eth_conf {
    let mut raw = dpdk_sys::rte_eth_conf::default();
    raw.rxmode.mtu = u32::from(config.mtu);
    (raw.rxmode.offloads, raw.txmode.offloads) = config.offloads.flags();
    if config.vlan_filter {
        raw.rxmode.offloads |= dpdk_sys::DPDK_RX_OFFLOAD_VLAN_FILTER;
    }
    if let Some(key) = &config.rss_key {
        raw.rxmode.mq_mode = dpdk_sys::DPDK_MQ_RX_RSS;
        let rss = &mut raw.rx_adv_conf.rss_conf;
        rss.rss_key = key.as_ptr().cast_mut(); // read only
        rss.rss_key_len = u8::try_from(key.len()).unwrap_or(u8::MAX);
        rss.rss_hf = dpdk_sys::DPDK_RSS_NONFRAG_IPV4_TCP | dpdk_sys::DPDK_RSS_NONFRAG_IPV6_TCP;
    }
    raw.intr_conf.set_rxq(u32::from(interrupts));
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_s_offload_is_one_of_its_own() {
        // virtio and vmxnet3: TCP's checksums and segmentation, nothing of the IPv4 header.
        let virtio = Offloads {
            rx_tcp_checksum: true,
            tx_tcp_checksum: true,
            tx_segmentation: true,
            ..Offloads::default()
        };
        let (rx, tx) = virtio.flags();
        assert_eq!(rx, dpdk_sys::DPDK_RX_OFFLOAD_TCP_CKSUM);
        assert_eq!(tx & dpdk_sys::DPDK_TX_OFFLOAD_IPV4_CKSUM, 0);
        assert_eq!(Offloads::of_capabilities(rx, tx), virtio);
        assert_eq!(Offloads::of_capabilities(0, 0), Offloads::default());
        assert_eq!(Offloads::default().flags(), (0, 0));
        let all = Offloads { rx_ip_checksum: true, tx_ip_checksum: true, ..virtio };
        assert_eq!((all.and(virtio), all.and(Offloads::default())), (virtio, Offloads::default()));
        assert!(all.named().iter().all(|(_, on)| *on));
        assert_eq!(all.beyond(virtio), ["rx-ip-checksum", "tx-ip-checksum"]);
        assert!(virtio.beyond(all).is_empty());
    }

    #[test]
    fn segmentation_takes_frames_of_several_buffers() {
        let cut = Offloads::of_capabilities(0, dpdk_sys::DPDK_TX_OFFLOAD_TCP_TSO);
        assert!(!cut.tx_segmentation);
    }
}
