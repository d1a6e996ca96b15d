//! The names of RDMA streams.

use rdma::StreamId;

/// Gives every stream of one STag table a name that no other stream of it had or will have: an STag that is valid on one
/// stream only is told apart by that name. A million streams per second use up 64 bits in 580,000 years.
#[derive(Debug, Default)]
pub(crate) struct StreamIds {
    given: u64,
}

impl StreamIds {
    /// The next name.
    pub(crate) fn next(&mut self) -> StreamId {
        self.given = self.given.wrapping_add(1);
        StreamId(self.given)
    }

    /// As if so many names had been given.
    #[cfg(test)]
    pub(crate) fn after(given: u64) -> Self {
        Self { given }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_name_comes_back() {
        let mut seen = HashSet::new();
        for given in [0, 1 << 16, 1 << 31, (1 << 32) - 50, (1 << 33) - 50, (1 << 63) - 50, u64::MAX - 200] {
            let mut names = StreamIds::after(given);
            assert!((0..100).all(|_| seen.insert(names.next())), "behind {given}");
        }
    }
}
