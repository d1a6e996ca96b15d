//! The states of a connection.

/// The state of a connection (RFC 9293 §3.3.2). LISTEN and TIME-WAIT have records of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// We sent a SYN.
    SynSent,
    /// We received a SYN and sent one.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// We closed; our FIN is not acknowledged.
    FinWait1,
    /// We closed; the peer has not.
    FinWait2,
    /// The peer closed; we have not.
    CloseWait,
    /// Both closed at once; our FIN is not acknowledged.
    Closing,
    /// The peer closed, then we did; our FIN is not acknowledged.
    LastAck,
    /// The connection has ended; only its last events have not been polled.
    Closed,
}

impl State {
    /// The number of states.
    pub(crate) const COUNT: usize = 9;
    /// All states, in the order in which a connection passes them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::Closing,
        Self::LastAck,
        Self::Closed,
    ];

    /// Returns the name shown to operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::Closed => "CLOSED",
        }
    }

    /// True if the application may queue data.
    pub(crate) const fn can_send(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// True if the peer may still send data.
    pub(crate) const fn can_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// True if both SYNs were acknowledged.
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }
}
