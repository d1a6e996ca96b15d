//! ARP (RFC 826) and neighbor discovery (RFC 4861): answers, solicitations and announcements, and the updates of the
//! neighbor cache that follow.

use super::classify::{Ndp, NdpBody};
use super::neighbor::{Advert, Solicit};
use super::transmit::OwnFrame;
use super::{DropReason, Interface};
use crate::buf::Buf;
use crate::time::{Duration, Instant};
use crate::wire::{ArpOperation, ArpPacket, MacAddr, NeighborSolicitation};
use core::net::Ipv6Addr;

/// RFC 5227 §1.1: ANNOUNCE_INTERVAL and DEFEND_INTERVAL.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

impl<B: Buf> Interface<B> {
    /// Queues a frame of the interface's own.
    fn queue(&mut self, own: OwnFrame<B>) {
        if !self.queue.push(own) {
            self.stats.tx_queue_full = self.stats.tx_queue_full.wrapping_add(1);
        }
    }

    /// Queues a solicitation of a neighbor's link address.
    #[cold]
    pub(super) fn solicit(&mut self, solicit: Solicit) {
        self.queue(OwnFrame::Solicit(solicit));
    }

    /// Sends the next announcement of our addresses if it is due.
    pub(super) fn announce_again(&mut self, now: Instant) {
        if self.announcements == 0 || self.announce_at.is_some_and(|at| now < at) {
            return;
        }
        // The first call starts the schedule: there was no clock before.
        if self.announce_at.is_some() {
            self.announcements = self.announcements.saturating_sub(1);
            self.announce();
        }
        self.announce_at = Some(now + ANNOUNCE_INTERVAL);
    }

    /// Announces our addresses because another station claims one of them, at a limited rate (RFC 5227 §2.4 (b)).
    #[cold]
    fn defend(&mut self, now: Instant) {
        if self.config.primary && now >= self.defend_from {
            self.defend_from = now + DEFEND_INTERVAL;
            self.announce();
        }
    }

    /// Queues announcements of our addresses, so that neighbors that remember a former holder need not wait for their
    /// entries to expire.
    pub(super) fn announce(&mut self) {
        if let Some(ours) = self.config.ipv4 {
            // RFC 5227 §3: an announcement is a request with our address as the sender's and the target's.
            self.queue(OwnFrame::Arp {
                packet: ArpPacket {
                    operation: ArpOperation::Request,
                    sender_mac: self.config.mac,
                    sender_ip: ours.address(),
                    target_mac: MacAddr::UNSPECIFIED,
                    target_ip: ours.address(),
                },
                to: MacAddr::BROADCAST,
            });
        }
        if let Some(ours) = self.config.ipv6 {
            for address in [ours.address(), self.link_local] {
                self.queue(OwnFrame::Advertise {
                    target: address,
                    dst: ALL_NODES,
                    to: MacAddr::of_ipv6_multicast(ALL_NODES),
                    solicited: false,
                });
            }
        }
    }

    pub(super) fn receive_arp(
        &mut self,
        now: Instant,
        packet: &ArpPacket,
        to_us: bool,
    ) -> Result<(), DropReason> {
        let Some(ours) = self.config.ipv4 else { return Err(DropReason::ArpNotOurs) };
        let &ArpPacket { operation, sender_mac, sender_ip, target_ip, .. } = packet;
        let is_request = operation == ArpOperation::Request;
        if !is_request && operation != ArpOperation::Reply || !sender_mac.is_unicast() {
            return Err(DropReason::ArpInvalid);
        }
        if sender_ip == ours.address() {
            if sender_mac == self.config.mac {
                return Err(DropReason::ArpInvalid);
            }
            self.defend(now);
            return Err(DropReason::ArpConflict);
        }
        let for_us = target_ip == ours.address();
        // RFC 5227 §1.1: a probe has an all-zero sender address; it is answered and does not change the cache.
        let is_probe = sender_ip.is_unspecified();
        if !is_probe && !self.is_on_link(sender_ip.into()) {
            return Err(DropReason::ArpInvalid);
        }
        if !(is_request && for_us) {
            let advert = Advert { mac: Some(sender_mac), solicited: !is_request && to_us, overrides: true };
            let known = self.neighbors.on_advert(now, sender_ip.into(), advert);
            if !known {
                return Err(DropReason::ArpNotOurs);
            }
            self.stats.rx_arp = self.stats.rx_arp.wrapping_add(1);
            return Ok(());
        }
        if !is_probe {
            self.neighbors.on_solicited_by(now, sender_ip.into(), sender_mac);
        }
        if !self.config.primary {
            return Err(DropReason::NotPrimary);
        }
        self.stats.rx_arp = self.stats.rx_arp.wrapping_add(1);
        self.queue(OwnFrame::Arp {
            packet: ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: self.config.mac,
                sender_ip: ours.address(),
                target_mac: sender_mac,
                target_ip: sender_ip,
            },
            to: sender_mac,
        });
        Ok(())
    }

    pub(super) fn receive_ndp(&mut self, now: Instant, message: &Ndp) -> Result<(), DropReason> {
        let claimed = match message.body {
            NdpBody::Advertisement { advertisement, .. } => self.is_local(advertisement.target.into()),
            NdpBody::Solicitation(_) => false,
        };
        if claimed || self.is_local(message.src.into()) {
            if message.src_mac == self.config.mac {
                return Err(DropReason::NdpInvalid);
            }
            self.defend(now);
            return Err(DropReason::NdpConflict);
        }
        match message.body {
            NdpBody::Solicitation(solicitation) => self.receive_solicitation(now, message, &solicitation)?,
            NdpBody::Advertisement { advertisement, solicited, overrides } => {
                let mac = advertisement.target_mac.filter(|mac| mac.is_unicast());
                let advert = Advert { mac, solicited, overrides };
                if !self.neighbors.on_advert(now, advertisement.target.into(), advert) {
                    return Err(DropReason::NdpNotOurs);
                }
            }
        }
        self.stats.rx_ndp = self.stats.rx_ndp.wrapping_add(1);
        Ok(())
    }

    /// Handles a neighbor solicitation (RFC 4861 §7.2.3, §7.2.4).
    fn receive_solicitation(
        &mut self,
        now: Instant,
        message: &Ndp,
        solicitation: &NeighborSolicitation,
    ) -> Result<(), DropReason> {
        if !self.is_local(solicitation.target.into()) {
            return Err(DropReason::NdpNotOurs);
        }
        let from_nobody = message.src.is_unspecified();
        let source_mac = solicitation.source_mac.filter(|mac| mac.is_unicast());
        if let Some(mac) = source_mac
            && self.is_on_link(message.src.into())
        {
            self.neighbors.on_solicited_by(now, message.src.into(), mac);
        }
        if !self.config.primary {
            return Err(DropReason::NotPrimary);
        }
        // "If the source of the solicitation is the unspecified address, the node MUST set the Solicited
        // flag to zero and multicast the advertisement to the all-nodes address."
        let (dst, to) = if from_nobody {
            (ALL_NODES, MacAddr::of_ipv6_multicast(ALL_NODES))
        } else {
            (message.src, source_mac.unwrap_or(message.src_mac))
        };
        self.queue(OwnFrame::Advertise { target: solicitation.target, dst, to, solicited: !from_nobody });
        Ok(())
    }
}
