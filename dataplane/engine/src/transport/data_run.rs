//! Batches consecutive `Data` events of one connection, so that per-connection work is done once. `Engine` passes
//! the received data of RDMA connections through it.

use tcp_stack::{Buf, ConnId, Event, Segment, Stack};

/// Adds up the segments of consecutive `Data` events of one connection whose payload the application took while they
/// were out of order; the first has `first` bytes. Returns the bytes of all, and the event after them.
pub(crate) fn taken_run<B: Buf>(
    stack: &mut Stack<B>,
    conn: ConnId,
    first: usize,
) -> (usize, Option<Event<B>>) {
    let mut bytes = first;
    loop {
        match stack.poll_event() {
            Some(Event::Data { conn: of, segment, .. }) if of == conn && segment.was_taken() => {
                bytes = bytes.saturating_add(segment.len());
            }
            next => return (bytes, next),
        }
    }
}

/// Iterator over the segments of consecutive `Data` events of one connection, each with its stream offset.
pub(crate) struct DataRun<'a, B: Buf> {
    stack: &'a mut Stack<B>,
    conn: ConnId,
    first: Option<(u64, Segment<B>)>,
    bytes: usize,
    /// First event that does not belong to the run.
    behind: Option<Event<B>>,
}

impl<'a, B: Buf> DataRun<'a, B> {
    /// Starts a run with its first segment.
    pub(crate) fn new(stack: &'a mut Stack<B>, conn: ConnId, first: (u64, Segment<B>)) -> Self {
        Self { stack, conn, first: Some(first), bytes: 0, behind: None }
    }

    /// Drops the segments that were not read. Returns the bytes of the run, and the event after it.
    pub(crate) fn end(mut self) -> (usize, Option<Event<B>>) {
        self.by_ref().for_each(drop);
        (self.bytes, self.behind)
    }
}

impl<B: Buf> Iterator for DataRun<'_, B> {
    type Item = (u64, Segment<B>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.first.take() {
            Some(first) => first,
            None if self.behind.is_some() => return None,
            None => match self.stack.poll_event()? {
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
