//! The options of a SYN in four bytes: what a half-open record or a cookie keeps of it.

use super::ecn::Ecn;
use super::listen::{SynOffer, mss_of};
use crate::config::{ConnOptions, StackConfig};
use crate::seq::SeqNum;
use crate::state::State;
use crate::wire::{EcnField, SackBlocks, TcpFlags, TcpHeader, TcpOptions, Timestamps};

/// The options of a SYN that this stack accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SynOptions {
    /// The peer's MSS, bytes.
    pub(crate) mss: u16,
    /// ```text
    ///   bit 7    6           5    4     3..0
    ///       ECT  timestamps  ECN  SACK  window scale, 15: none
    /// ```
    bits: u8,
    /// The window of the SYN, which is never scaled (RFC 7323 §2.2), in units of 256 bytes, rounded down.
    window: u8,
}

const NO_WINDOW_SCALE: u8 = 15;
const SACK: u8 = 1 << 4;
const ECN: u8 = 1 << 5;
const TIMESTAMPS: u8 = 1 << 6;
const ECT: u8 = 1 << 7;

impl SynOptions {
    /// Returns the options of a SYN, without those that the configuration disables.
    pub(crate) fn of(offer: &SynOffer, config: &StackConfig, conn: &ConnOptions, is_ipv4: bool) -> Self {
        let (options, tcp) = (&offer.options, &config.tcp);
        // RFC 7323 §2.3: a shift above 14 counts as 14.
        let scale = options.window_scale.filter(|_| tcp.window_scale).map(|shift| shift.min(14));
        let mut ecn = Ecn::new(tcp, conn);
        ecn.on_syn(offer.header.flags, offer.ecn);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let bits = scale.unwrap_or(NO_WINDOW_SCALE)
            | flag(tcp.sack && options.sack_permitted, SACK)
            | flag(tcp.timestamps && options.timestamps.is_some(), TIMESTAMPS)
            | flag(ecn.syn_flags(State::SynReceived).contains(TcpFlags::ECE), ECN)
            | flag(ecn.syn_field(State::SynReceived) != EcnField::NotEct, ECT);
        let [window, _] = offer.header.window.to_be_bytes();
        Self { mss: mss_of(options, is_ipv4), bits, window }
    }

    /// Returns an MSS without options: what a SYN without options offers.
    pub(crate) const fn bare(mss: u16) -> Self {
        Self { mss, bits: NO_WINDOW_SCALE, window: 0 }
    }

    pub(crate) const fn timestamps(self) -> bool {
        self.bits & TIMESTAMPS != 0
    }

    pub(crate) const fn sack(self) -> bool {
        self.bits & SACK != 0
    }

    /// True if the SYN was an ECN-setup SYN (RFC 3168 §6.1.1); then the SYN-ACK is an ECN-setup one.
    pub(crate) const fn ecn(self) -> bool {
        self.bits & ECN != 0
    }

    /// Returns the options without ECN. After a SYN that does not ask for ECN, no SYN-ACK grants it (RFC 3168
    /// §6.1.1.1).
    pub(crate) const fn without_ecn(self) -> Self {
        Self { bits: self.bits & !(ECN | ECT), ..self }
    }

    /// Returns the ECN field of the SYN-ACK's packet.
    pub(crate) const fn field(self) -> EcnField {
        if self.bits & ECT == 0 { EcnField::NotEct } else { EcnField::Ect0 }
    }

    pub(crate) fn window_scale(self) -> Option<u8> {
        Some(self.bits & 0xf).filter(|scale| *scale != NO_WINDOW_SCALE)
    }

    /// Returns window scale, SACK and ECN in six bits. Cookies encode the MSS and the presence of timestamps
    /// otherwise.
    pub(crate) const fn low_bits(self) -> u8 {
        self.bits & 0x3f
    }

    /// Inverse of [`Self::low_bits`], for a SYN with timestamps. The window is lost.
    pub(crate) const fn from_low_bits(mss: u16, low_bits: u8) -> Self {
        Self { mss, bits: (low_bits & 0x3f) | TIMESTAMPS, window: 0 }
    }

    /// Returns a SYN with these options, for [`Conn::accept`](super::Conn::accept).
    pub(crate) fn offer(self, irs: SeqNum, ts_recent: u32) -> SynOffer {
        let ecn = if self.ecn() { TcpFlags::ECE | TcpFlags::CWR } else { TcpFlags::NONE };
        SynOffer {
            header: TcpHeader {
                seq: irs,
                flags: TcpFlags::SYN | ecn,
                window: u16::from_be_bytes([self.window, 0]),
                ..TcpHeader::default()
            },
            options: TcpOptions {
                mss: Some(self.mss),
                window_scale: self.window_scale(),
                sack_permitted: self.sack(),
                timestamps: self.timestamps().then_some(Timestamps { value: ts_recent, echo: 0 }),
                sack: SackBlocks::EMPTY,
            },
            ecn: EcnField::NotEct,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_encoded_and_decoded() {
        let config = StackConfig::default();
        for scale in (0..=14).map(Some).chain([None]) {
            for n in 0..8 {
                let bit = |i: u32| n >> i & 1 == 1;
                let flags = if bit(0) { TcpFlags::ECE | TcpFlags::CWR } else { TcpFlags::NONE };
                // A cookie has no room for the window.
                let window = if bit(2) { 0 } else { 0x7a00 };
                let flags = TcpFlags::SYN | flags;
                let header = TcpHeader { seq: SeqNum::new(9), flags, window, ..TcpHeader::default() };
                let options = TcpOptions {
                    mss: Some(1400),
                    window_scale: scale,
                    sack_permitted: bit(1),
                    timestamps: bit(2).then_some(Timestamps { value: 77, echo: 0 }),
                    sack: SackBlocks::EMPTY,
                };
                let offer = SynOffer { header, options, ecn: EcnField::NotEct };
                let syn_options = SynOptions::of(&offer, &config, &ConnOptions::default(), true);
                let again = syn_options.offer(SeqNum::new(9), 77);
                assert_eq!((again.header, again.options), (header, options));
                if syn_options.timestamps() {
                    assert_eq!(SynOptions::from_low_bits(1400, syn_options.low_bits()), syn_options);
                }
            }
        }
    }

    #[test]
    fn the_window_of_a_syn_is_kept_to_256_bytes() {
        for (window, kept) in [(0, 0), (255, 0), (256, 256), (1000, 768), (65_535, 65_280)] {
            let header = TcpHeader { flags: TcpFlags::SYN, window, ..TcpHeader::default() };
            let offer = SynOffer { header, options: TcpOptions::NONE, ecn: EcnField::NotEct };
            let syn_options = SynOptions::of(&offer, &StackConfig::default(), &ConnOptions::default(), true);
            assert_eq!(syn_options.offer(SeqNum::new(0), 0).header.window, kept);
        }
    }

    #[test]
    fn disabled_options_are_left_out() {
        let mut config = StackConfig::default();
        (config.tcp.sack, config.tcp.timestamps, config.tcp.window_scale) = (false, false, false);
        let options = TcpOptions {
            mss: None,
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps::default()),
            sack: SackBlocks::EMPTY,
        };
        let offer = SynOffer { header: TcpHeader::default(), options, ecn: EcnField::NotEct };
        let conn = ConnOptions::default();
        assert_eq!(SynOptions::of(&offer, &config, &conn, true), SynOptions::bare(536));
        assert_eq!(SynOptions::of(&offer, &config, &conn, false), SynOptions::bare(1220));
        config.tcp.window_scale = true;
        let steep = SynOffer { options: TcpOptions { window_scale: Some(200), ..options }, ..offer };
        assert_eq!(SynOptions::of(&steep, &config, &conn, true).window_scale(), Some(14));
    }
}
