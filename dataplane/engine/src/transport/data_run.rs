//! Batches consecutive `Data` events of one connection, so that per-connection work is done once. `Engine` passes
//! the received data of RDMA connections through it.

use tcp_stack::{ConnId, Event, Segment};

use super::Transport;

/// Adds up the segments of consecutive `Data` events of one connection whose payload the application took while they
/// were out of order; the first has `first` bytes. Returns the bytes of all, and the event after them.
pub(crate) fn taken_run<T: Transport>(
    transport: &mut T,
    conn: ConnId,
    first: usize,
) -> (usize, Option<Event<T::Buf>>) {
    let mut bytes = first;
    loop {
        match transport.poll_event() {
            Some(Event::Data { conn: of, segment, .. }) if of == conn && segment.was_taken() => {
                bytes = bytes.saturating_add(segment.len());
            }
            next => return (bytes, next),
        }
    }
}

/// Iterator over the segments of consecutive `Data` events of one connection, each with its stream offset.
pub(crate) struct DataRun<'a, T: Transport> {
    transport: &'a mut T,
    conn: ConnId,
    first: Option<(u64, Segment<T::Buf>)>,
    bytes: usize,
    /// First event that does not belong to the run.
    behind: Option<Event<T::Buf>>,
}

impl<'a, T: Transport> DataRun<'a, T> {
    /// Starts a run with its first segment.
    pub(crate) fn new(transport: &'a mut T, conn: ConnId, first: (u64, Segment<T::Buf>)) -> Self {
        Self { transport, conn, first: Some(first), bytes: 0, behind: None }
    }

    /// Drops the segments that were not read. Returns the bytes of the run, and the event after it.
    pub(crate) fn end(mut self) -> (usize, Option<Event<T::Buf>>) {
        self.by_ref().for_each(drop);
        (self.bytes, self.behind)
    }
}

impl<T: Transport> Iterator for DataRun<'_, T> {
    type Item = (u64, Segment<T::Buf>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.first.take() {
            Some(first) => first,
            None if self.behind.is_some() => return None,
            None => match self.transport.poll_event()? {
                Event::Data { conn, offset, segment } if conn == self.conn && !segment.was_taken() => {
                    (offset, segment)
                }
                other => {
                    self.behind = Some(other);
                    return None;
                }
            },
        };
        self.bytes = self.bytes.saturating_add(next.1.len());
        Some(next)
    }
}
