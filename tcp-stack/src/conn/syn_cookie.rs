//! SYN cookies (RFC 4987 §3.6): a SYN is answered without storing anything of it.
//!
//! Our initial sequence number, and the timestamp that the peer echoes, contain everything that the connection
//! needs. The peer's first acknowledgment returns both.
//!
//! ```text
//!   initial sequence number                    timestamp value, if the SYN had one
//!   31                        4  3    2     0  31                       6  5    4     3          0
//!  +---------------------------+----+--------+ +-------------------------+-----+------+------------+
//!  |  keyed hash, 28 bits      |slot|  MSS   | |  our clock, rounded     | ECN | SACK |window scale|
//!  +---------------------------+----+--------+ +-------------------------+-----+------+------------+
//! ```
//! The hash covers the four-tuple, the peer's sequence number and all other fields, so that forged ones are
//! rejected: a guess is right once in 2^28. Time is divided into slots of 64 seconds, each with a secret of its
//! own; a cookie of the present slot or the one before is valid.

use siphasher::sip::SipHasher24;

use super::syn_options::SynOptions;
use crate::four_tuple::FourTuple;
use crate::seq::SeqNum;
use crate::time::{Duration, Instant};

/// Lifetime of a secret, seconds. A cookie is valid for at least one slot and at most two.
const SLOT_SECONDS: u64 = 64;
/// The longest lifetime of a cookie.
pub(crate) const COOKIE_LIFE: Duration = Duration::from_secs(2 * SLOT_SECONDS);
/// Values to which a peer's MSS is rounded down, for IPv4 and IPv6. The first is the least MSS accepted; 1452 and
/// 1432 are those of PPPoE, 1460 and 1440 of Ethernet, 8960 and 8940 of jumbo frames.
const MSS: ([u16; 8], [u16; 8]) =
    ([64, 536, 1220, 1360, 1440, 1452, 1460, 8960], [64, 1220, 1280, 1360, 1420, 1432, 1440, 8940]);

/// Makes and verifies cookies.
#[derive(Debug)]
pub(crate) struct Cookies {
    root: SipHasher24,
    /// The even and the odd slot used last, and their secrets.
    secrets: [(u64, SipHasher24); 2],
}

const fn table(is_ipv4: bool) -> &'static [u16; 8] {
    if is_ipv4 { &MSS.0 } else { &MSS.1 }
}

const fn slot_at(now: Instant) -> u64 {
    now.as_millis() / (SLOT_SECONDS * 1000)
}

fn secret(root: &SipHasher24, slot: u64) -> SipHasher24 {
    let half = |n: u8| {
        let [a, b, c, d, e, f, g, h] = slot.to_le_bytes();
        root.hash(&[n, a, b, c, d, e, f, g, h])
    };
    SipHasher24::new_with_keys(half(0), half(1))
}

impl Cookies {
    /// Derives all secrets from `key`.
    pub(crate) fn new(key: (u64, u64)) -> Self {
        let root = SipHasher24::new_with_keys(key.0, key.1);
        Self { root, secrets: [(0, secret(&root, 0)), (1, secret(&root, 1))] }
    }

    /// Returns the options that a cookie can encode: without timestamps only the MSS, rounded down.
    pub(crate) fn encodable(syn_options: SynOptions, is_ipv4: bool) -> SynOptions {
        let mss = mss_at(mss_index(syn_options.mss, is_ipv4), is_ipv4);
        if syn_options.timestamps() {
            SynOptions::from_low_bits(mss, syn_options.low_bits())
        } else {
            SynOptions::bare(mss)
        }
    }

    /// Returns our initial sequence number for a SYN with sequence number `irs` and options from [`Self::encodable`].
    pub(crate) fn make(
        &mut self,
        now: Instant,
        flow: &FourTuple,
        irs: SeqNum,
        syn_options: SynOptions,
    ) -> SeqNum {
        let slot = slot_at(now);
        let low = mss_index(syn_options.mss, flow.is_ipv4()) | if slot & 1 == 1 { 8 } else { 0 };
        SeqNum::new(self.hash(slot, flow, irs, syn_options, low) << 4 | u32::from(low))
    }

    /// Verifies a cookie that an acknowledgment returned; `echo` is our timestamp, if the segment has the option.
    /// Returns the options; `None` if the cookie is forged or too old.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        flow: &FourTuple,
        irs: SeqNum,
        cookie: SeqNum,
        echo: Option<u32>,
    ) -> Option<SynOptions> {
        let [.., last] = cookie.get().to_be_bytes();
        let low = last & 0xf;
        let is_ipv4 = flow.is_ipv4();
        let mss = mss_at(low & 7, is_ipv4);
        let syn_options = match echo.map(u32::to_be_bytes) {
            Some([.., bits]) => SynOptions::from_low_bits(mss, bits),
            None => SynOptions::bare(mss),
        };
        let now = slot_at(now);
        let age = (now & 1) ^ u64::from(low >> 3);
        let slot = now.checked_sub(age)?;
        (self.hash(slot, flow, irs, syn_options, low) == cookie.get() >> 4).then_some(syn_options)
    }

    /// Returns the timestamp that encodes `syn_options`: at most 63 ms before our clock, so that it never goes
    /// back.
    pub(crate) fn timestamp(clock: u32, syn_options: SynOptions) -> u32 {
        let bits = u32::from(syn_options.low_bits());
        let value = (clock & !0x3f) | bits;
        if value.wrapping_sub(clock).cast_signed() > 0 { value.wrapping_sub(0x40) } else { value }
    }

    /// Returns the keyed hash, 28 bits.
    fn hash(&mut self, slot: u64, flow: &FourTuple, irs: SeqNum, syn_options: SynOptions, low: u8) -> u32 {
        let [even, odd] = &mut self.secrets;
        let cached = if slot & 1 == 0 { even } else { odd };
        if cached.0 != slot {
            *cached = (slot, secret(&self.root, slot));
        }
        let fields = [low, syn_options.low_bits(), u8::from(syn_options.timestamps()), 0];
        let all = flow.with([irs.get().to_be_bytes(), fields]);
        let [a, b, c, d, ..] = cached.1.hash(all.as_flattened()).to_be_bytes();
        u32::from_be_bytes([a, b, c, d]) >> 4
    }
}

/// Returns the index of the largest value that is not above `mss`.
fn mss_index(mss: u16, is_ipv4: bool) -> u8 {
    let above = table(is_ipv4).iter().take_while(|value| **value <= mss).count();
    u8::try_from(above.saturating_sub(1)).unwrap_or(0)
}

fn mss_at(index: u8, is_ipv4: bool) -> u16 {
    table(is_ipv4).get(usize::from(index)).copied().unwrap_or(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testutil::Random;

    fn flow(port: u16) -> [FourTuple; 2] {
        [("10.0.0.1:7", "10.0.0.2"), ("[fd77::1]:7", "[fd77::2]")].map(|(local, remote)| {
            FourTuple::new(local.parse().unwrap(), std::format!("{remote}:{port}").parse().unwrap())
        })
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn a_cookie_returns_the_options_that_it_encodes() {
        let mut cookies = Cookies::new((1, 2));
        let irs = SeqNum::new(77);
        for (flow, mss) in flow(9).iter().flat_map(|flow| table(flow.is_ipv4()).map(|mss| (flow, mss))) {
            for bits in 0..64 {
                let syn_options = SynOptions::from_low_bits(mss, bits);
                let cookie = cookies.make(at(100), flow, irs, syn_options);
                let sent = Cookies::timestamp(12_345_678, syn_options);
                assert!(12_345_678_u32.wrapping_sub(sent) < 64);
                assert_eq!(cookies.check(at(101), flow, irs, cookie, Some(sent)), Some(syn_options));
                // Neither the options nor their absence can be changed.
                assert_eq!(cookies.check(at(101), flow, irs, cookie, Some(sent ^ 1)), None);
                assert_eq!(cookies.check(at(101), flow, irs, cookie, None), None);
            }
            let syn_options = SynOptions::bare(mss);
            let cookie = cookies.make(at(100), flow, irs, syn_options);
            assert_eq!(cookies.check(at(101), flow, irs, cookie, None), Some(syn_options));
        }
    }

    #[test]
    fn a_cookie_is_valid_for_its_flow_and_number_only() {
        let mut cookies = Cookies::new((1, 2));
        for ([flow, other], irs) in [(flow(9), SeqNum::new(1)), (flow(10), SeqNum::new(2))] {
            let syn_options = SynOptions::bare(536);
            let cookie = cookies.make(at(0), &flow, irs, syn_options);
            assert_eq!(cookies.check(at(0), &flow, irs, cookie, None), Some(syn_options));
            assert_eq!(cookies.check(at(0), &other, irs, cookie, None), None);
            assert_eq!(cookies.check(at(0), &flow, irs + 1, cookie, None), None);
            assert_eq!(cookies.check(at(0), &flow, irs, cookie + 1, None), None);
            assert_eq!(Cookies::new((1, 3)).check(at(0), &flow, irs, cookie, None), None);
        }
    }

    #[test]
    fn a_cookie_lives_for_one_slot_and_into_a_second() {
        let mut cookies = Cookies::new((1, 2));
        let [flow, _] = flow(9);
        let (irs, syn_options) = (SeqNum::new(1), SynOptions::bare(1460));
        for made in [0, 30, 63, 64, 127, 1_000_000] {
            let cookie = cookies.make(at(made), &flow, irs, syn_options);
            let end = (made / 64 + 2) * 64;
            assert_ne!(
                cookie,
                cookies.make(at(made + 64), &flow, irs, syn_options),
                "each slot has a secret of its own"
            );
            for when in [made, made + 64, end - 1] {
                assert_eq!(
                    cookies.check(at(when), &flow, irs, cookie, None),
                    Some(syn_options),
                    "{made} {when}"
                );
            }
            for when in [end, end + 64, end + 128] {
                assert_eq!(cookies.check(at(when), &flow, irs, cookie, None), None, "{made} {when}");
            }
            assert!(Duration::from_secs(end - made) <= COOKIE_LIFE);
        }
    }

    #[test]
    fn an_mss_is_rounded_down_and_never_up() {
        for is_ipv4 in [true, false] {
            assert!(table(is_ipv4).is_sorted());
            for mss in 64..=u16::MAX {
                let kept = Cookies::encodable(SynOptions::bare(mss), is_ipv4).mss;
                assert!(kept <= mss && table(is_ipv4).iter().all(|value| *value <= kept || *value > mss));
            }
        }
        assert_eq!([mss_index(0, true), mss_index(1460, true), mss_index(65_535, false)], [0, 6, 7]);
    }

    #[test]
    fn a_timestamp_never_goes_back() {
        let mut last = Cookies::timestamp(u32::MAX - 500, SynOptions::from_low_bits(536, 63));
        for n in 0..1000_u32 {
            let clock = (u32::MAX - 500).wrapping_add(n);
            let value = Cookies::timestamp(clock, SynOptions::from_low_bits(536, 63));
            assert!(value.wrapping_sub(last).cast_signed() >= 0 && clock.wrapping_sub(value) < 64);
            last = value;
        }
    }

    #[test]
    fn a_million_guesses_are_all_wrong() {
        let mut cookies = Cookies::new((0x5eed, 0x5eed));
        let mut random = Random::new(1);
        let mut word = || SeqNum::new(u32::try_from(random.below(1 << 32)).unwrap());
        let [v4, v6] = flow(9);
        for n in 0..1_000_000_u32 {
            let echo = (n % 2 == 0).then(|| word().get());
            let flow = if n % 4 < 2 { &v4 } else { &v6 };
            assert_eq!(cookies.check(at(64), flow, word(), word(), echo), None, "guess {n}");
        }
    }
}
