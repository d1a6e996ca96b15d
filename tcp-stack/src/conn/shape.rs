//! What things weigh: the memory that a stack reserves, and what stays in the cache.

use super::table::{Entry, Slot};
use super::{Conn, Ends, HalfOpen, RxNode, TimeWait, TxNode};
use crate::config::ConnOptions;
use crate::pool::node_octets;
use crate::timer::NODE_OCTETS;

/// A buffer as a port's driver has it: a pointer.
type Handle = usize;

/// Octets of the table of flows per connection: two flows each, it and a TIME-WAIT record, in a table of twice the
/// size, which is rounded up to a power of two; an entry, and one octet for the first look.
const FLOWS: usize = 8 * (size_of::<Entry>() + 1);

#[test]
fn an_idle_connection_costs_little() {
    let all = size_of::<Slot>() + NODE_OCTETS + FLOWS;
    assert!(
        all <= 1152,
        "{all}: the block and its links {}, timer {NODE_OCTETS}, flows {FLOWS}",
        size_of::<Slot>()
    );
}

#[test]
fn blocks_and_records_are_as_small_as_they_are_known_to_be() {
    for (name, octets, most) in [
        ("its links", size_of::<Slot>() - size_of::<Conn>(), 32),
        ("ends", size_of::<Ends>(), 36),
        ("options", size_of::<ConnOptions>(), 28),
        ("entry of the table of flows", size_of::<Entry>(), 8),
        ("timer", NODE_OCTETS, 24),
        ("half-open", node_octets::<HalfOpen>(), 80),
        ("TIME-WAIT", node_octets::<TimeWait>(), 88),
        ("segment to send", node_octets::<TxNode<Handle>>(), 72),
        ("segment received", node_octets::<RxNode<Handle>>(), 48),
    ] {
        assert!(octets <= most, "{name}: {octets} octets, not {most}");
    }
}
