//! Segments of one connection that come one after the other: what is to be done once for all of them is.

use tcp_stack::{Buf, ConnId, Event, Segment, Stack};

/// The segments that events tell of as long as they are of one connection, each with its offset in the stream.
pub(crate) struct DataRun<'a, B: Buf> {
    stack: &'a mut Stack<B>,
    conn: ConnId,
    first: Option<(u64, Segment<B>)>,
    bytes: usize,
    /// The event that the run has ended with.
    behind: Option<Event<B>>,
}

impl<'a, B: Buf> DataRun<'a, B> {
    /// The run that begins with a segment.
    pub(crate) fn new(stack: &'a mut Stack<B>, conn: ConnId, first: (u64, Segment<B>)) -> Self {
        Self { stack, conn, first: Some(first), bytes: 0, behind: None }
    }

    /// Drops the segments that nobody has taken. How many bytes the run had, and the event behind it.
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
