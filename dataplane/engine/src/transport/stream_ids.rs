//! Identities of RDMA streams. `Engine` takes one for each connection that it gives to the device.

use rdma::StreamId;

/// Issues stream identities that are never reused within one STag table. An STag that is valid on one stream only is
/// bound to that identity. A million streams per second use up 64 bits in 580,000 years.
#[derive(Debug, Default)]
pub(crate) struct StreamIds {
    given: u64,
}

impl StreamIds {
    /// Returns an identity that was not issued before.
    pub(crate) fn next(&mut self) -> StreamId {
        self.given = self.given.wrapping_add(1);
        StreamId(self.given)
    }

    /// Creates an issuer that has issued `given` identities.
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
    fn no_identity_is_reused() {
        let mut seen = HashSet::new();
        for given in [0, 1 << 16, 1 << 31, (1 << 32) - 50, (1 << 33) - 50, (1 << 63) - 50, u64::MAX - 200] {
            let mut ids = StreamIds::after(given);
            assert!((0..100).all(|_| seen.insert(ids.next())), "behind {given}");
        }
    }
}
