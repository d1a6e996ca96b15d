//! The states of a connection.

/// The state of a connection (RFC 9293 §3.3.2). LISTEN and TIME-WAIT have records of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// A SYN was received and one was sent.
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
    /// It has ended; only its last events wait to be taken.
    Closed,
}

impl State {
    /// How many there are.
    pub(crate) const COUNT: usize = 9;
    /// All of them, in the order in which a connection passes them.
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

    /// The name that is shown to operators.
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

    /// Whether the application may hand over data to send.
    pub(crate) const fn can_send(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// Whether data from the peer is still expected.
    pub(crate) const fn can_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether both SYNs were acknowledged.
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }
}
