//! Rings with one producer and one consumer, in two processes that do not trust each other.
//!
//! ```text
//!  line 0   entries produced, written by the producer
//!  line 1   entries consumed, written by the consumer
//!  then     2^n entries of equal length
//! ```
//! Both counts begin at 0 and never wrap: at a billion entries per second, 64 bits last for 580 years.

use serde::{Deserialize, Serialize};

use crate::LINE_WORDS;
use crate::sync::{AtomicU64, Ordering};

/// Words in front of the entries.
const HEADER_WORDS: usize = 2 * LINE_WORDS;
/// Word with the number of entries produced.
const PRODUCED: usize = 0;
/// Word with the number of entries consumed.
const CONSUMED: usize = LINE_WORDS;

/// Reason why an entry cannot be added or taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The ring is full.
    #[error("the ring is full")]
    Full,
    /// The other side's count lies outside of the ring, or the memory is shorter than the ring. The ring cannot be used
    /// any more.
    #[error("the other side's index is invalid")]
    Corrupt,
    /// The entry has more words than the ring's entries.
    #[error("the entry is longer than those of the ring")]
    TooLong,
}

/// Size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32)", into = "(u32, u32)")]
pub struct RingShape {
    entries: u32,
    entry_words: u32,
}

impl From<RingShape> for (u32, u32) {
    fn from(shape: RingShape) -> Self {
        (shape.entries, shape.entry_words)
    }
}

impl TryFrom<(u32, u32)> for RingShape {
    type Error = &'static str;

    fn try_from((entries, entry_words): (u32, u32)) -> Result<Self, Self::Error> {
        let shape = Self::new(entries, entry_words).filter(|shape| shape.entries == entries);
        shape.ok_or("no ring has this size")
    }
}

impl RingShape {
    /// Most entries of a ring.
    pub const ENTRIES_MAX: u32 = 1 << 16;
    /// Most words of an entry.
    pub const ENTRY_WORDS_MAX: u32 = 128;

    /// Returns a ring of at least `entries` entries of `entry_words` words, rounded up to a power of two; `None` unless
    /// both are from 1 to their largest values.
    pub fn new(entries: u32, entry_words: u32) -> Option<Self> {
        let valid =
            (1..=Self::ENTRIES_MAX).contains(&entries) && (1..=Self::ENTRY_WORDS_MAX).contains(&entry_words);
        valid.then(|| Self { entries: entries.next_power_of_two(), entry_words })
    }

    /// Words in front of the entries. They are zero in a new ring.
    pub const HEADER_WORDS: usize = HEADER_WORDS;

    /// Returns the number of entries.
    pub const fn entries(self) -> u32 {
        self.entries
    }

    /// Returns the words of an entry.
    pub const fn entry_words(self) -> u32 {
        self.entry_words
    }

    /// Returns the words of memory that the ring takes, whole cache lines.
    pub fn words(self) -> usize {
        let entries = (self.entries as usize).saturating_mul(self.entry_words as usize);
        HEADER_WORDS.saturating_add(entries).next_multiple_of(LINE_WORDS)
    }
}

/// Memory of a ring, within shared memory.
#[derive(Debug)]
struct Ring<M> {
    memory: M,
    /// First word of the ring.
    start: usize,
    shape: RingShape,
}

impl<M: AsRef<[AtomicU64]>> Ring<M> {
    fn new(memory: M, start: usize, shape: RingShape) -> Option<Self> {
        let end = start.checked_add(shape.words())?;
        (end <= memory.as_ref().len()).then_some(Self { memory, start, shape })
    }

    /// Returns a word of the header.
    #[inline]
    fn header(&self, word: usize) -> Option<&AtomicU64> {
        self.memory.as_ref().get(self.start.saturating_add(word))
    }

    /// Returns the words of the entry with this number.
    #[inline]
    fn entry(&self, number: u64) -> Option<&[AtomicU64]> {
        let mask = u64::from(self.shape.entries).saturating_sub(1);
        let index = usize::try_from(number & mask).ok()?;
        let words = self.shape.entry_words as usize;
        let from = self.start.checked_add(HEADER_WORDS)?.checked_add(index.checked_mul(words)?)?;
        self.memory.as_ref().get(from..from.checked_add(words)?)
    }
}

/// Side of a ring that adds entries.
#[derive(Debug)]
pub struct Producer<M> {
    ring: Ring<M>,
    /// Entries added, of which the consumer may not know the last ones yet.
    produced: u64,
    /// Entries that the consumer had taken when that was last read.
    consumed: u64,
}

impl<M: AsRef<[AtomicU64]>> Producer<M> {
    /// Creates the producer of a new ring whose memory begins at word `start` and is zero; `None` if the memory is
    /// shorter.
    pub fn new(memory: M, start: usize, shape: RingShape) -> Option<Self> {
        Some(Self { ring: Ring::new(memory, start, shape)?, produced: 0, consumed: 0 })
    }

    /// Adds an entry. The consumer sees it after [`Self::publish`].
    ///
    /// # Errors
    /// See [`RingError`]; nothing has changed.
    #[inline]
    pub fn push(&mut self, entry: &[u64]) -> Result<(), RingError> {
        if self.used() >= u64::from(self.ring.shape.entries) {
            self.refresh()?;
            if self.used() >= u64::from(self.ring.shape.entries) {
                return Err(RingError::Full);
            }
        }
        let words = self.ring.entry(self.produced).ok_or(RingError::Corrupt)?;
        if entry.len() > words.len() {
            return Err(RingError::TooLong);
        }
        for (to, from) in words.iter().zip(entry) {
            to.store(*from, Ordering::Relaxed);
        }
        self.produced = self.produced.wrapping_add(1);
        Ok(())
    }

    /// Returns true if the ring has a free place. Nobody else fills it.
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, RingError> {
        let entries = u64::from(self.ring.shape.entries);
        if self.used() >= entries {
            self.refresh()?;
        }
        Ok(self.used() < entries)
    }

    /// Copies the entry that was added before the last `back` ones into `out`, up to the length of the shorter one.
    /// Returns false if the ring does not have it any more.
    pub fn recall(&self, back: u64, out: &mut [u64]) -> bool {
        let number = self.produced.checked_sub(back.saturating_add(1));
        let number = number.filter(|_| back < u64::from(self.ring.shape.entries));
        let Some(words) = number.and_then(|number| self.ring.entry(number)) else { return false };
        for (to, from) in out.iter_mut().zip(words) {
            *to = from.load(Ordering::Relaxed);
        }
        true
    }

    /// Frees all entries: the consumer has ended and takes none any more.
    pub fn abandon(&mut self) {
        self.consumed = self.produced;
        if let Some(consumed) = self.ring.header(CONSUMED) {
            consumed.store(self.consumed, Ordering::Relaxed);
        }
    }

    /// Reads the number of entries that were added and not yet taken.
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    pub fn pending(&mut self) -> Result<u64, RingError> {
        self.refresh()?;
        Ok(self.used())
    }

    /// Adds up to `max` of the entries that [`Self::pending`] has counted to a new ring, oldest first, behind those
    /// that an earlier call has added. Returns true once the new ring has all.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn copy_pending(&self, to: &mut Self, max: u64) -> Result<bool, RingError> {
        let mut copy = [0; RingShape::ENTRY_WORDS_MAX as usize];
        let first = self.consumed.saturating_add(to.produced);
        let last = first.saturating_add(max).min(self.produced);
        for number in first..last {
            let words = self.ring.entry(number).ok_or(RingError::Corrupt)?;
            let copy = copy.get_mut(..words.len()).ok_or(RingError::TooLong)?;
            for (to, from) in copy.iter_mut().zip(words) {
                *to = from.load(Ordering::Relaxed);
            }
            to.push(copy)?;
        }
        Ok(last == self.produced)
    }

    /// Removes the `count` entries that were added last. Only entries that were not published.
    pub fn retract(&mut self, count: u64) {
        self.produced = self.produced.saturating_sub(count).max(self.consumed);
    }

    /// Shows all entries added so far to the consumer.
    #[inline]
    pub fn publish(&self) {
        if let Some(produced) = self.ring.header(PRODUCED) {
            produced.store(self.produced, Ordering::Release);
        }
    }

    /// Returns the words of the next `entries` places that this side will write, fewer before the end of the ring.
    #[inline]
    pub fn upcoming(&self, entries: usize) -> &[AtomicU64] {
        let mask = u64::from(self.ring.shape.entries).saturating_sub(1);
        let next = usize::try_from(self.produced & mask).unwrap_or(0);
        let words = self.ring.shape.entry_words as usize;
        let last = next.saturating_add(entries).min(self.ring.shape.entries as usize);
        let first = self.ring.start.saturating_add(HEADER_WORDS);
        let [from, to] = [next, last].map(|entry| first.saturating_add(entry.saturating_mul(words)));
        self.ring.memory.as_ref().get(from..to).unwrap_or(&[])
    }

    /// Returns the entries that the consumer has not taken, as far as this side knows.
    #[inline]
    fn used(&self) -> u64 {
        self.produced.wrapping_sub(self.consumed)
    }

    /// Reads how many entries the consumer has taken. The count may neither decrease nor exceed what was produced.
    fn refresh(&mut self) -> Result<(), RingError> {
        let consumed = self.ring.header(CONSUMED).ok_or(RingError::Corrupt)?.load(Ordering::Acquire);
        if !(self.consumed..=self.produced).contains(&consumed) {
            return Err(RingError::Corrupt);
        }
        self.consumed = consumed;
        Ok(())
    }
}

/// Side of a ring that takes entries.
#[derive(Debug)]
pub struct Consumer<M> {
    ring: Ring<M>,
    /// Entries taken, of which the producer may not know the last ones yet.
    consumed: u64,
    /// Entries that had been produced when that was last read.
    produced: u64,
}

impl<M: AsRef<[AtomicU64]>> Consumer<M> {
    /// Creates the consumer of a new ring whose memory begins at word `start` and is zero; `None` if the memory is
    /// shorter.
    pub fn new(memory: M, start: usize, shape: RingShape) -> Option<Self> {
        Some(Self { ring: Ring::new(memory, start, shape)?, consumed: 0, produced: 0 })
    }

    /// Copies the next entry into `out`, up to the length of the shorter one. Returns false if there is none. The
    /// producer may reuse its place after [`Self::release`].
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    #[inline]
    pub fn pop(&mut self, out: &mut [u64]) -> Result<bool, RingError> {
        if self.consumed == self.produced && !self.refresh()? {
            return Ok(false);
        }
        let words = self.ring.entry(self.consumed).ok_or(RingError::Corrupt)?;
        for (to, from) in out.iter_mut().zip(words) {
            *to = from.load(Ordering::Relaxed);
        }
        self.consumed = self.consumed.wrapping_add(1);
        Ok(true)
    }

    /// Copies the first words of the next entries, one entry to each element of `out`, and returns the number of
    /// entries. Shorter entries fill a part of their element. The entries stay in the ring until [`Self::take`].
    ///
    /// The lines of several entries arrive together from the other side's cache; [`Self::pop`] waits for each.
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    #[inline]
    pub fn peek<const N: usize>(&mut self, out: &mut [[u64; N]]) -> Result<usize, RingError> {
        if self.consumed == self.produced && !self.refresh()? {
            return Ok(0);
        }
        let mut peeked = 0;
        for (to, number) in out.iter_mut().zip(self.consumed..self.produced) {
            let words = self.ring.entry(number).ok_or(RingError::Corrupt)?;
            for (to, from) in to.iter_mut().zip(words) {
                *to = from.load(Ordering::Relaxed);
            }
            peeked = number.wrapping_sub(self.consumed).saturating_add(1);
        }
        Ok(usize::try_from(peeked).unwrap_or(usize::MAX))
    }

    /// Copies the words of the next entry from word `from` on into `out`, up to the length of the shorter one.
    #[inline]
    pub fn peek_rest(&self, from: usize, out: &mut [u64]) {
        let words = self.ring.entry(self.consumed).and_then(|words| words.get(from..)).unwrap_or(&[]);
        for (to, from) in out.iter_mut().zip(words) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Takes the next entry, if there is one that [`Self::peek`] has seen. The producer may reuse its place after
    /// [`Self::release`].
    #[inline]
    pub fn take(&mut self) {
        self.consumed = self.consumed.saturating_add(1).min(self.produced);
    }

    /// Takes all entries that were produced, without a look at them.
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    pub fn take_all(&mut self) -> Result<(), RingError> {
        self.refresh()?;
        self.consumed = self.produced;
        Ok(())
    }

    /// Returns the number of entries taken since the ring was created.
    pub fn taken(&self) -> u64 {
        self.consumed
    }

    /// Reads the number of entries produced since the ring was created.
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    pub fn produced(&mut self) -> Result<u64, RingError> {
        self.refresh()?;
        Ok(self.produced)
    }

    /// Returns the places of all entries taken so far to the producer.
    #[inline]
    pub fn release(&self) {
        if let Some(consumed) = self.ring.header(CONSUMED) {
            consumed.store(self.consumed, Ordering::Release);
        }
    }

    /// Reads how many entries were produced: no fewer than before, and at most a ring more than were taken. Returns
    /// true if there is one to take.
    fn refresh(&mut self) -> Result<bool, RingError> {
        let produced = self.ring.header(PRODUCED).ok_or(RingError::Corrupt)?.load(Ordering::Acquire);
        let most = self.consumed.saturating_add(u64::from(self.ring.shape.entries));
        if !(self.produced..=most).contains(&produced) {
            return Err(RingError::Corrupt);
        }
        self.produced = produced;
        Ok(produced > self.consumed)
    }
}
