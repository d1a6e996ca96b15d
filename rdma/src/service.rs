//! Region service: a peer names a region in its MPA private data, and receives an STag in the answer.
//!
//! Request: `IWR1`, wanted access, name length N, token length T, zero; N bytes of name, T of token.
//! Answer, 32 bytes: `IWR1`, status, granted access, two zeros, STag, four zeros, base tagged offset, length.
//! All numbers are big-endian.

mod prefix;

use core::fmt;
use core::net::IpAddr;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use subtle::{Choice, ConstantTimeEq};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory as _};

use crate::memory::{Access, GrantedRange, RegionId, Scope, StagTable, StreamId};
use crate::wire::Stag;

pub use prefix::{PREFIXES_MAX, PrefixError, parse_prefix};

/// First bytes of a request and of an answer.
pub const MAGIC: [u8; 4] = *b"IWR1";
/// Length in bytes of the longest region name, in UTF-8.
pub const NAME_MAX: usize = 63;
/// Length in bytes of the longest token.
pub const TOKEN_MAX: usize = 32;
/// Length in bytes of an answer.
pub const REPLY_LEN: usize = 32;
/// Bytes in front of the name of a request.
const REQUEST_HEAD: usize = 8;
/// Length in bytes of the longest request.
pub const REQUEST_MAX: usize = REQUEST_HEAD + NAME_MAX + TOKEN_MAX;

/// Reason why a text is not a valid region name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// The name is empty.
    Empty,
    /// The name has this many bytes, more than [`NAME_MAX`].
    TooLong(usize),
    /// The name contains a character that is invisible, or that changes how adjacent characters are displayed.
    Invisible(char),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a region name must not be empty"),
            Self::TooLong(bytes) => {
                write!(f, "the region name has {bytes} bytes; at most {NAME_MAX} are allowed")
            }
            Self::Invisible(character) => write!(
                f,
                "a region name must not contain control characters or format characters; this one has U+{:04X}",
                u32::from(*character)
            ),
        }
    }
}

impl core::error::Error for NameError {}

/// Checks the name of a region: 1 to [`NAME_MAX`] bytes of UTF-8, without control characters, format characters (such
/// as bidirectional controls and zero-width characters), and separators of lines or paragraphs. Otherwise two regions
/// could have names that look the same in a list.
///
/// # Errors
/// The first violation found.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let invisible = |character: &char| {
        matches!(
            character.general_category(),
            GeneralCategory::Control
                | GeneralCategory::Format
                | GeneralCategory::LineSeparator
                | GeneralCategory::ParagraphSeparator
        )
    };
    match (name.len(), name.chars().find(invisible)) {
        (0, _) => Err(NameError::Empty),
        (bytes, _) if bytes > NAME_MAX => Err(NameError::TooLong(bytes)),
        (_, Some(character)) => Err(NameError::Invisible(character)),
        (_, None) => Ok(()),
    }
}

/// Rights that a request may ask for.
const WANTED_MASK: u8 = Access::REGION.bits();

/// Capability: a peer that presents it may use the region. Compared in constant time, never displayed.
#[derive(Clone)]
pub struct Token {
    bytes: [u8; TOKEN_MAX],
    len: u8,
}

impl Token {
    /// Creates a token of 1 to [`TOKEN_MAX`] bytes; `None` for another length.
    pub fn new(token: &[u8]) -> Option<Self> {
        let mut bytes = [0; TOKEN_MAX];
        bytes.get_mut(..token.len())?.copy_from_slice(token);
        let len = u8::try_from(token.len()).ok().filter(|len| *len > 0)?;
        Some(Self { bytes, len })
    }

    /// Returns the bytes of the token.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Returns true if `shown` is this token. Takes the same time for every value of `shown`.
    pub fn matches(&self, shown: &[u8]) -> bool {
        let mut bytes = [0; TOKEN_MAX];
        for (to, from) in bytes.iter_mut().zip(shown) {
            *to = *from;
        }
        let same_len: Choice = (self.len as usize).ct_eq(&shown.len());
        (same_len & self.bytes.ct_eq(&bytes)).into()
    }
}

impl PartialEq for Token {
    /// Returns true if the tokens are equal. Takes the same time for every pair of tokens.
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.as_bytes())
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Source prefix: matches the addresses whose first `len` bits are those of `addr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// Creates a prefix; `None` if `len` exceeds the 32 or 128 bits of the address.
    pub fn new(addr: IpAddr, len: u8) -> Option<Self> {
        let max = if addr.is_ipv4() { 32 } else { 128 };
        (len <= max).then_some(Self { addr, len })
    }

    /// Returns true if the address matches. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, peer: IpAddr) -> bool {
        match (self.addr.to_canonical(), peer.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(peer)) => {
                // The canonical form omits the first 96 bits of a mapped address.
                let len = if self.addr.is_ipv6() { self.len.saturating_sub(96) } else { self.len };
                let differing = own.to_bits() ^ peer.to_bits();
                differing.leading_zeros() >= u32::from(len)
            }
            (IpAddr::V6(own), IpAddr::V6(peer)) => {
                let differing = own.to_bits() ^ peer.to_bits();
                differing.leading_zeros() >= u32::from(self.len)
            }
            _ => false,
        }
    }
}

/// Region that peers may ask for.
#[derive(Clone, Debug)]
pub struct RegionEntry {
    /// Name of the region: 1 to [`NAME_MAX`] bytes.
    pub name: String,
    /// Memory of the region.
    pub region: RegionId,
    /// Offset of the region's first byte in the memory.
    pub offset: u64,
    /// Length of the region in bytes.
    pub bytes: u64,
    /// Rights that may be granted.
    pub access: Access,
    /// Token that a peer must present, if any.
    pub token: Option<Token>,
    /// Source prefixes that may ask; if empty, all may.
    pub allow: Vec<Prefix>,
}

/// Reason why a region is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// [`check_name`] refuses the name.
    Name(NameError),
    /// A region of that name exists.
    Exists,
    /// The maximum number of regions exists.
    Full,
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Exists => f.write_str("there is a region of that name"),
            Self::Full => f.write_str("no room for another region"),
        }
    }
}

impl core::error::Error for AddError {}

/// Status of an answer; the values are those on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The region is granted.
    Ok = 0,
    /// No region has that name.
    NoSuchRegion = 1,
    /// The region does not allow the access wanted, or not to this peer, or not without its token.
    NotPermitted = 2,
    /// No STag is free.
    NoResources = 3,
    /// The private data is not a request of this service.
    Malformed = 4,
}

impl Status {
    const fn from_wire(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Ok,
            1 => Self::NoSuchRegion,
            2 => Self::NotPermitted,
            3 => Self::NoResources,
            4 => Self::Malformed,
            _ => return None,
        })
    }
}

/// Reason for which a request is refused. The operator learns it; the peer learns its [`Status`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The private data is not a request of this service.
    Malformed,
    /// No region has that name.
    NoSuchRegion,
    /// The peer's address is in none of the region's source prefixes.
    Source,
    /// The token is missing or wrong.
    Token,
    /// The region does not allow a right that the peer wants.
    Rights,
    /// No STag is free.
    NoStag,
}

impl Refusal {
    /// Returns the status that the peer is sent.
    pub const fn status(self) -> Status {
        match self {
            Self::Malformed => Status::Malformed,
            Self::NoSuchRegion => Status::NoSuchRegion,
            Self::Source | Self::Token | Self::Rights => Status::NotPermitted,
            Self::NoStag => Status::NoResources,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not a request for a region",
            Self::NoSuchRegion => "no such region",
            Self::Source => "address not allowed",
            Self::Token => "wrong token",
            Self::Rights => "right not allowed",
            Self::NoStag => "no STag left",
        })
    }
}

/// Answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// True if the connection is to be accepted; otherwise the MPA Reply carries the Reject bit.
    pub accept: bool,
    /// Status of the request.
    pub status: Status,
    /// Reason for a refusal; `None` if the region is granted.
    pub refusal: Option<Refusal>,
    /// Private data of the MPA Reply.
    pub reply: [u8; REPLY_LEN],
    /// Region that was granted, if any.
    pub region: Option<RegionId>,
}

/// Region access that a peer has been granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// STag, valid on this stream only.
    pub stag: Stag,
    /// Rights that the STag carries.
    pub access: Access,
    /// Tagged offset of the region's first byte.
    pub base_to: u64,
    /// Length of the region in bytes.
    pub bytes: u64,
}

/// Reason why a peer was granted nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceError {
    /// The private data is not an answer of the region service.
    NotAnAnswer,
    /// The answer has an unknown status.
    UnknownStatus(u8),
    /// The service refused the request.
    Refused(Status),
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnAnswer => f.write_str("the peer does not speak the region service"),
            Self::UnknownStatus(status) => write!(f, "the region service answered status {status}"),
            Self::Refused(Status::NoSuchRegion) => f.write_str("no such region"),
            Self::Refused(Status::NotPermitted) => f.write_str("not permitted"),
            Self::Refused(Status::NoResources) => f.write_str("the peer has no STag left"),
            Self::Refused(Status::Malformed | Status::Ok) => {
                f.write_str("the peer could not read the request")
            }
        }
    }
}

impl core::error::Error for ServiceError {}

/// Regions that peers may ask for. [`RegionService::new`] allocates the table; it does not grow.
#[derive(Debug)]
pub struct RegionService {
    regions: HashMap<String, RegionEntry, FixedState>,
    regions_max: usize,
}

impl RegionService {
    /// Creates a service for at most `regions_max` regions. `seed` makes the order of its table unpredictable.
    pub fn new(regions_max: usize, seed: u64) -> Self {
        let room = regions_max.saturating_mul(2);
        let regions = HashMap::with_capacity_and_hasher(room, FixedState::with_seed(seed));
        Self { regions, regions_max }
    }

    /// Adds a region that peers may ask for.
    pub fn add(&mut self, entry: RegionEntry) -> Result<(), AddError> {
        check_name(&entry.name).map_err(AddError::Name)?;
        if self.regions.contains_key(&entry.name) {
            return Err(AddError::Exists);
        }
        if self.regions.len() >= self.regions_max {
            return Err(AddError::Full);
        }
        self.regions.insert(entry.name.clone(), entry);
        Ok(())
    }

    /// Replaces the rights, token and prefixes of a region; returns false if there is none of that name. STags granted
    /// before stay valid.
    pub fn replace(&mut self, entry: RegionEntry) -> bool {
        match self.regions.get_mut(&entry.name) {
            Some(before) => {
                *before = entry;
                true
            }
            None => false,
        }
    }

    /// Removes a region, so that no more STags are granted for it. [`StagTable::revoke_region`] revokes those granted
    /// before.
    pub fn remove(&mut self, name: &str) -> Option<RegionId> {
        self.regions.remove(name).map(|entry| entry.region)
    }

    /// Returns the region of that name.
    pub fn get(&self, name: &str) -> Option<&RegionEntry> {
        self.regions.get(name)
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns true if there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Answers the private data of an MPA Request that arrived on `stream` from `peer`. A granted STag is valid on
    /// this stream only, and is then in `stags`.
    pub fn answer(
        &self,
        private_data: &[u8],
        peer: IpAddr,
        stream: StreamId,
        stags: &mut StagTable,
    ) -> Answer {
        match self.grant(private_data, peer, stream, stags) {
            Ok((region, grant)) => Answer {
                accept: true,
                status: Status::Ok,
                refusal: None,
                reply: encode_reply(Status::Ok, Some(&grant)),
                region: Some(region),
            },
            Err(refusal) => {
                let (status, refusal) = (refusal.status(), Some(refusal));
                Answer { accept: false, status, refusal, reply: encode_reply(status, None), region: None }
            }
        }
    }

    fn grant(
        &self,
        private_data: &[u8],
        peer: IpAddr,
        stream: StreamId,
        stags: &mut StagTable,
    ) -> Result<(RegionId, Grant), Refusal> {
        let request = Request::parse(private_data).ok_or(Refusal::Malformed)?;
        let entry = self.regions.get(request.name).ok_or(Refusal::NoSuchRegion)?;
        let admitted = entry.allow.is_empty() || entry.allow.iter().any(|prefix| prefix.contains(peer));
        let shown = entry.token.as_ref().is_none_or(|token| token.matches(request.token));
        match (admitted, shown, entry.access.contains(request.wanted)) {
            (true, true, true) => {}
            (false, ..) => return Err(Refusal::Source),
            (_, false, _) => return Err(Refusal::Token),
            (.., false) => return Err(Refusal::Rights),
        }
        let RegionEntry { region, offset, bytes, .. } = *entry;
        let range = GrantedRange { region, offset, bytes, base_to: 0 };
        let scope = Scope::Stream(stream);
        let stag = stags.grant_range(range, request.wanted, scope).map_err(|_| Refusal::NoStag)?;
        Ok((entry.region, Grant { stag, access: request.wanted, base_to: 0, bytes: entry.bytes }))
    }
}

struct Request<'a> {
    wanted: Access,
    name: &'a str,
    token: &'a [u8],
}

impl<'a> Request<'a> {
    fn parse(private_data: &'a [u8]) -> Option<Self> {
        let (head, rest) = private_data.split_first_chunk::<REQUEST_HEAD>()?;
        let [m0, m1, m2, m3, wanted, name_len, token_len, zero] = *head;
        let (name_len, token_len) = (usize::from(name_len), usize::from(token_len));
        if [m0, m1, m2, m3] != MAGIC || zero != 0 || wanted & !WANTED_MASK != 0 || token_len > TOKEN_MAX {
            return None;
        }
        let (name, token) = rest.split_at_checked(name_len)?;
        if token.len() != token_len {
            return None;
        }
        let name = core::str::from_utf8(name).ok().filter(|name| check_name(name).is_ok())?;
        Some(Self { wanted: Access::from_bits(wanted)?, name, token })
    }
}

/// Returns the name of the region that private data asks for; `None` if it is not a request of this service.
pub fn requested_region(private_data: &[u8]) -> Option<&str> {
    Request::parse(private_data).map(|request| request.name)
}

fn encode_reply(status: Status, grant: Option<&Grant>) -> [u8; REPLY_LEN] {
    let mut reply = [0; REPLY_LEN];
    let [m0, m1, m2, m3, state, access, _, _, s0, s1, s2, s3, _, _, _, _, numbers @ ..] = &mut reply;
    [*m0, *m1, *m2, *m3] = MAGIC;
    *state = status as u8;
    if let Some(grant) = grant {
        *access = grant.access.bits();
        [*s0, *s1, *s2, *s3] = grant.stag.0.to_be_bytes();
        let words = numbers.as_chunks_mut::<8>().0.iter_mut();
        for (word, value) in words.zip([grant.base_to, grant.bytes]) {
            *word = value.to_be_bytes();
        }
    }
    reply
}

/// Composes the private data with which an initiator asks for a region. `None` if the name is empty, the name or the
/// token is too long, or a right is not one of remote read, write and atomic.
pub fn encode_request(name: &str, access: Access, token: &[u8]) -> Option<Vec<u8>> {
    let (name_len, token_len) = (u8::try_from(name.len()).ok()?, u8::try_from(token.len()).ok()?);
    if check_name(name).is_err() || token.len() > TOKEN_MAX || access.bits() & !WANTED_MASK != 0 {
        return None;
    }
    let mut request = Vec::with_capacity(REQUEST_MAX);
    request.extend_from_slice(&MAGIC);
    request.extend_from_slice(&[access.bits(), name_len, token_len, 0]);
    request.extend_from_slice(name.as_bytes());
    request.extend_from_slice(token);
    Some(request)
}

/// Parses the private data of an MPA Reply, accepted or rejected.
pub fn decode_reply(private_data: &[u8]) -> Result<Grant, ServiceError> {
    let reply: &[u8; REPLY_LEN] = private_data.try_into().map_err(|_| ServiceError::NotAnAnswer)?;
    let [m0, m1, m2, m3, status, access, _, _, s0, s1, s2, s3, _, _, _, _, numbers @ ..] = reply;
    if [*m0, *m1, *m2, *m3] != MAGIC {
        return Err(ServiceError::NotAnAnswer);
    }
    match Status::from_wire(*status) {
        None => return Err(ServiceError::UnknownStatus(*status)),
        Some(Status::Ok) => {}
        Some(refusal) => return Err(ServiceError::Refused(refusal)),
    }
    let ([base_to, bytes], _) = numbers.as_chunks::<8>() else {
        return Err(ServiceError::NotAnAnswer);
    };
    Ok(Grant {
        stag: Stag(u32::from_be_bytes([*s0, *s1, *s2, *s3])),
        access: Access::from_bits(*access).ok_or(ServiceError::NotAnAnswer)?,
        base_to: u64::from_be_bytes(*base_to),
        bytes: u64::from_be_bytes(*bytes),
    })
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
