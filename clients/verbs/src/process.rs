//! The process that an object belongs to. A child has its parent's queues in memory, but indices of its own: what both
//! post would overwrite each other.

use std::sync::atomic::Ordering;

use crate::context::mapped;
use crate::error::Error;
use crate::mapping::Mapping;

/// Word that is 1 in the process that has made it, and 0 in its children, however they were forked.
#[derive(Debug)]
pub(crate) struct Here(Mapping);

impl Here {
    pub(crate) fn new() -> Result<Self, Error> {
        let page = mapped(Mapping::zero_in_children())?;
        page.words().iter().take(1).for_each(|word| word.store(1, Ordering::Relaxed));
        Ok(Self(page))
    }

    /// Returns true in a child of the process that has made this.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        self.0.words().first().is_none_or(|word| word.load(Ordering::Relaxed) == 0)
    }
}
