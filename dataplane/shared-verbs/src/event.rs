//! Events of a context in its ring.
//!
//! | word | low half | high half |
//! |---|---|---|
//! | 0 | byte 0 kind, bytes 2 and 3 length of the private data | number of the object |
//! | 1 | inbound reads plus 1, or 0 | outbound reads plus 1, or 0 |
//! | 2 | number of the listener | bytes 0 to 2 layer, type and code of an error |
//! | 3 | port of a request's local address | 0 if the address is of IPv4, 1 if of IPv6 |
//! | 4 and 5 | that address, IPv4's in the first four bytes | |
//! | 6 to 8 | as 3 to 5, of the peer's address | |
//! | from 9 | private data | |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use iwarp_shared_queues::EntryError;
use rdma::ErrorCode;
use rdma::verbs::{AsyncEvent, CmEvent, CmEventKind, CmId, CqId, QpNum, SrqId};

/// Words of an address and its port.
const ADDRESS_WORDS: usize = 3;
/// Words in front of the private data.
const HEAD_WORDS: usize = 3 + 2 * ADDRESS_WORDS;
/// Most bytes of private data (RFC 5044 §7.1).
const PRIVATE_DATA_MAX: usize = 512;
/// Words of an event.
pub(crate) const EVENT_WORDS: usize = HEAD_WORDS + PRIVATE_DATA_MAX / size_of::<u64>();

/// An event of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Event of a listener or connection (`rdma_get_cm_event`).
    Cm(CmEvent),
    /// Asynchronous event of an object (`ibv_get_async_event`).
    Async(AsyncEvent),
    /// The link of the device's port has come up (`IBV_EVENT_PORT_ACTIVE`).
    PortActive,
    /// The link of the device's port is down, or its interface is gone (`IBV_EVENT_PORT_ERR`).
    PortDown,
    /// The daemon has ended, and the device with it (`IBV_EVENT_DEVICE_FATAL`, `RDMA_CM_EVENT_DEVICE_REMOVAL`).
    DeviceFatal,
}

// Kinds of events.
const ADDRESS_ERROR: u8 = 1;
const CONNECT_REQUEST: u8 = 2;
const ESTABLISHED: u8 = 3;
const REJECTED: u8 = 4;
const UNREACHABLE: u8 = 5;
const CONNECT_ERROR: u8 = 6;
const DISCONNECTED: u8 = 7;
const REFUSED: u8 = 8;
const CQ_ERROR: u8 = 16;
const QP_FATAL: u8 = 17;
const QP_REQUEST_ERROR: u8 = 18;
const QP_ACCESS_ERROR: u8 = 19;
const QP_TERMINATED: u8 = 20;
const QP_LAST_WQE_REACHED: u8 = 21;
const SRQ_LIMIT_REACHED: u8 = 22;
const DEVICE_FATAL: u8 = 23;
const PORT_ACTIVE: u8 = 24;
const PORT_DOWN: u8 = 25;

/// Fields of an event.
#[derive(Default)]
struct Fields<'a> {
    kind: u8,
    object: u32,
    depths: [Option<u16>; 2],
    /// Listener of a request, or [`terms`] of a connection.
    extra: u32,
    error: [u8; 3],
    /// Local address and the peer's.
    addresses: Option<[SocketAddr; 2]>,
    private_data: &'a [u8],
}

impl Event {
    /// Writes the event into an entry of the ring.
    pub(crate) fn encode(&self) -> [u64; EVENT_WORDS] {
        let Fields { kind, object, depths, extra, error, addresses, private_data } = match self {
            Self::Cm(event) => cm_fields(event),
            Self::Async(event) => async_fields(event),
            Self::PortActive => Fields { kind: PORT_ACTIVE, ..Fields::default() },
            Self::PortDown => Fields { kind: PORT_DOWN, ..Fields::default() },
            Self::DeviceFatal => Fields { kind: DEVICE_FATAL, ..Fields::default() },
        };
        let [ird, ord] = depths.map(|depth| depth.map_or(0, |depth| u32::from(depth).saturating_add(1)));
        let length = u16::try_from(private_data.len().min(PRIVATE_DATA_MAX)).unwrap_or(0).to_le_bytes();
        let [layer, etype, code] = error;
        let mut words = [0; EVENT_WORDS];
        let first = [
            halves(u32::from_le_bytes([kind, 0, length[0], length[1]]), object),
            halves(ird, ord),
            halves(extra, u32::from_le_bytes([layer, etype, code, 0])),
        ];
        let [local, peer] = addresses.map_or_else(Default::default, |addresses| addresses.map(address_words));
        let (to_head, to_data) = words.split_at_mut(HEAD_WORDS);
        to_head.copy_from_slice([first, local, peer].as_flattened());
        for (to, from) in to_data.iter_mut().zip(private_data.chunks(size_of::<u64>())) {
            let mut bytes = [0; size_of::<u64>()];
            bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            *to = u64::from_le_bytes(bytes);
        }
        words
    }

    /// Decodes an event.
    ///
    /// # Errors
    /// The kind is unknown, or the private data is longer than an event's.
    pub(crate) fn decode(words: &[u64; EVENT_WORDS]) -> Result<Self, EntryError> {
        let (head, data) = words.split_first_chunk::<HEAD_WORDS>().ok_or(EntryError::TooShort)?;
        let [first, depths, last, local_0, local_1, local_2, peer @ ..] = *head;
        let ([kind, _, low, high], object) = (low_half(first).to_le_bytes(), high_half(first));
        let length = u16::from_le_bytes([low, high]);
        if usize::from(length) > PRIVATE_DATA_MAX {
            return Err(EntryError::InlineLength(length));
        }
        let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).take(length.into()).collect();
        let depth = |half: u32| half.checked_sub(1).and_then(|depth| u16::try_from(depth).ok());
        let (ird, ord) = (depth(low_half(depths)), depth(high_half(depths)));
        let [layer, etype, code, _] = high_half(last).to_le_bytes();
        let (qp, error) = (QpNum(object), ErrorCode { layer, etype, code });
        let cm = |kind| Ok(Self::Cm(CmEvent { id: CmId(object), kind }));
        match kind {
            ADDRESS_ERROR => cm(CmEventKind::AddressError),
            CONNECT_REQUEST => cm(CmEventKind::ConnectRequest {
                listener: CmId(low_half(last)),
                local: address_of([local_0, local_1, local_2]),
                peer: address_of(peer),
                private_data: bytes.into(),
                responder_resources: ird,
                initiator_depth: ord,
            }),
            ESTABLISHED => cm(CmEventKind::Established {
                private_data: bytes.into(),
                responder_resources: ird.unwrap_or(0),
                initiator_depth: ord.unwrap_or(0),
                revision: terms_of(low_half(last)).0,
                crc: terms_of(low_half(last)).1,
            }),
            REJECTED => cm(CmEventKind::Rejected { private_data: bytes.into() }),
            REFUSED => cm(CmEventKind::Refused),
            UNREACHABLE => cm(CmEventKind::Unreachable),
            CONNECT_ERROR => cm(CmEventKind::ConnectError { code: error }),
            DISCONNECTED => cm(CmEventKind::Disconnected),
            CQ_ERROR => Ok(Self::Async(AsyncEvent::CqError(CqId(object)))),
            QP_FATAL => Ok(Self::Async(AsyncEvent::QpFatal(qp, error))),
            QP_REQUEST_ERROR => Ok(Self::Async(AsyncEvent::QpRequestError(qp, error))),
            QP_ACCESS_ERROR => Ok(Self::Async(AsyncEvent::QpAccessError(qp, error))),
            QP_TERMINATED => Ok(Self::Async(AsyncEvent::QpTerminated(qp, error))),
            QP_LAST_WQE_REACHED => Ok(Self::Async(AsyncEvent::QpLastWqeReached(qp))),
            SRQ_LIMIT_REACHED => Ok(Self::Async(AsyncEvent::SrqLimitReached(SrqId(object)))),
            PORT_ACTIVE => Ok(Self::PortActive),
            PORT_DOWN => Ok(Self::PortDown),
            DEVICE_FATAL => Ok(Self::DeviceFatal),
            _ => Err(EntryError::Opcode(kind)),
        }
    }
}

fn cm_fields(event: &CmEvent) -> Fields<'_> {
    let none = Fields { object: event.id.0, ..Fields::default() };
    match &event.kind {
        CmEventKind::AddressError => Fields { kind: ADDRESS_ERROR, ..none },
        CmEventKind::ConnectRequest {
            listener,
            local,
            peer,
            private_data,
            responder_resources,
            initiator_depth,
        } => Fields {
            kind: CONNECT_REQUEST,
            extra: listener.0,
            depths: [*responder_resources, *initiator_depth],
            addresses: Some([*local, *peer]),
            private_data,
            ..none
        },
        CmEventKind::Established { private_data, responder_resources, initiator_depth, revision, crc } => {
            Fields {
                kind: ESTABLISHED,
                depths: [Some(*responder_resources), Some(*initiator_depth)],
                extra: terms(*revision, *crc),
                private_data,
                ..none
            }
        }
        CmEventKind::Rejected { private_data } => Fields { kind: REJECTED, private_data, ..none },
        CmEventKind::Refused => Fields { kind: REFUSED, ..none },
        CmEventKind::Unreachable => Fields { kind: UNREACHABLE, ..none },
        CmEventKind::ConnectError { code: ErrorCode { layer, etype, code } } => {
            Fields { kind: CONNECT_ERROR, error: [*layer, *etype, *code], ..none }
        }
        CmEventKind::Disconnected => Fields { kind: DISCONNECTED, ..none },
    }
}

fn async_fields(event: &AsyncEvent) -> Fields<'static> {
    let of = |kind, object| Fields { kind, object, ..Fields::default() };
    let with_error = |kind, qp: QpNum, ErrorCode { layer, etype, code }| Fields {
        error: [layer, etype, code],
        ..of(kind, qp.0)
    };
    match *event {
        AsyncEvent::CqError(cq) => of(CQ_ERROR, cq.0),
        AsyncEvent::QpFatal(qp, error) => with_error(QP_FATAL, qp, error),
        AsyncEvent::QpRequestError(qp, error) => with_error(QP_REQUEST_ERROR, qp, error),
        AsyncEvent::QpAccessError(qp, error) => with_error(QP_ACCESS_ERROR, qp, error),
        AsyncEvent::QpTerminated(qp, error) => with_error(QP_TERMINATED, qp, error),
        AsyncEvent::QpLastWqeReached(qp) => of(QP_LAST_WQE_REACHED, qp.0),
        AsyncEvent::SrqLimitReached(srq) => of(SRQ_LIMIT_REACHED, srq.0),
    }
}

/// Returns the word of what MPA has negotiated: the revision, and if FPDUs carry a CRC.
const fn terms(revision: u8, crc: bool) -> u32 {
    (crc as u32) << 8 | revision as u32
}

/// Returns the revision, and if FPDUs carry a CRC, of [`terms`].
const fn terms_of(word: u32) -> (u8, bool) {
    let [revision, crc, ..] = word.to_le_bytes();
    (revision, crc != 0)
}

/// Returns the words of an address. Flow and scope of IPv6 do not pass: no address of a port has them.
fn address_words(address: SocketAddr) -> [u64; ADDRESS_WORDS] {
    let (is_ipv6, [low, high]) = match address.ip() {
        IpAddr::V4(ip) => (0, [u32::from_le_bytes(ip.octets()).into(), 0]),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, high @ ..] = ip.octets();
            (1, [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(high)])
        }
    };
    [halves(address.port().into(), is_ipv6), low, high]
}

/// Returns the address of [`address_words`].
fn address_of([first, low, high]: [u64; ADDRESS_WORDS]) -> SocketAddr {
    let ip = match high_half(first) {
        0 => IpAddr::V4(Ipv4Addr::from(low_half(low).to_le_bytes())),
        _ => IpAddr::V6(Ipv6Addr::from((u128::from(high) << 64 | u128::from(low)).to_le_bytes())),
    };
    let [port_low, port_high, ..] = low_half(first).to_le_bytes();
    SocketAddr::new(ip, u16::from_le_bytes([port_low, port_high]))
}

const fn halves(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn low_half(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

const fn high_half(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn private_data() -> impl Strategy<Value = Box<[u8]>> {
        proptest::collection::vec(any::<u8>(), 0..=PRIVATE_DATA_MAX).prop_map(Into::into)
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        any::<(IpAddr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    fn cm_kind() -> impl Strategy<Value = CmEventKind> {
        let depths = || any::<(u16, u16)>();
        let some_depths = || any::<(Option<u16>, Option<u16>)>();
        prop_oneof![
            Just(CmEventKind::AddressError),
            Just(CmEventKind::Refused),
            Just(CmEventKind::Unreachable),
            any::<(u8, u8, u8)>().prop_map(|(layer, etype, code)| CmEventKind::ConnectError {
                code: ErrorCode { layer, etype, code },
            }),
            Just(CmEventKind::Disconnected),
            private_data().prop_map(|private_data| CmEventKind::Rejected { private_data }),
            (private_data(), depths(), any::<(u8, bool)>()).prop_map(|(private_data, depths, terms)| {
                let ((responder_resources, initiator_depth), (revision, crc)) = (depths, terms);
                CmEventKind::Established { private_data, responder_resources, initiator_depth, revision, crc }
            }),
            (any::<u32>(), (address(), address()), private_data(), some_depths()).prop_map(
                |(listener, (local, peer), private_data, (responder_resources, initiator_depth))| {
                    let listener = CmId(listener);
                    CmEventKind::ConnectRequest {
                        listener,
                        local,
                        peer,
                        private_data,
                        responder_resources,
                        initiator_depth,
                    }
                }
            ),
        ]
    }

    fn event() -> impl Strategy<Value = Event> {
        let error = any::<(u8, u8, u8)>().prop_map(|(layer, etype, code)| ErrorCode { layer, etype, code });
        let asynchronous = (0..7_u8, any::<u32>(), error).prop_map(|(kind, object, error)| match kind {
            0 => AsyncEvent::CqError(CqId(object)),
            1 => AsyncEvent::QpFatal(QpNum(object), error),
            2 => AsyncEvent::QpRequestError(QpNum(object), error),
            3 => AsyncEvent::QpAccessError(QpNum(object), error),
            4 => AsyncEvent::QpTerminated(QpNum(object), error),
            5 => AsyncEvent::QpLastWqeReached(QpNum(object)),
            _ => AsyncEvent::SrqLimitReached(SrqId(object)),
        });
        let cm = (any::<u32>(), cm_kind()).prop_map(|(id, kind)| CmEvent { id: CmId(id), kind });
        prop_oneof![
            cm.prop_map(Event::Cm),
            asynchronous.prop_map(Event::Async),
            Just(Event::PortActive),
            Just(Event::PortDown),
        ]
    }

    proptest! {
        #[test]
        fn an_event_survives(event in event()) {
            prop_assert_eq!(Event::decode(&event.encode()), Ok(event));
        }

        #[test]
        fn random_words_are_refused_or_mean_one_event(
            random in proptest::collection::vec(any::<u64>(), EVENT_WORDS),
            kind in 0..30_u64,
        ) {
            let mut words: [u64; EVENT_WORDS] = random.try_into().unwrap();
            words[0] = words[0] & !0xff | kind;
            if let Ok(event) = Event::decode(&words) {
                prop_assert_eq!(Event::decode(&event.encode()), Ok(event));
            }
        }
    }
}
