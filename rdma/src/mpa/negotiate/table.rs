//! The startup phase as a table: every state, every input, one row each.

/// Where a negotiation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Responder: the Request has not come whole.
    AwaitRequest,
    /// Responder: the owner has the Request and has not answered.
    Decide,
    /// Responder: an accepting Reply is not wholly in TCP's hands.
    SendAccept,
    /// Responder: a rejecting Reply is not wholly in TCP's hands.
    SendReject,
    /// Initiator: the Request is not wholly in TCP's hands.
    SendRequest,
    /// Initiator: the Reply has not come whole.
    AwaitReply,
    /// Both: full operation; the stream is FPDUs from here on.
    Established,
    /// Both: a rejecting Reply has passed.
    Rejected,
    /// Both: there is no connection.
    Failed,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::AwaitRequest,
        Self::Decide,
        Self::SendAccept,
        Self::SendReject,
        Self::SendRequest,
        Self::AwaitReply,
        Self::Established,
        Self::Rejected,
        Self::Failed,
    ];

    /// Whether the negotiation is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Established | Self::Rejected | Self::Failed)
    }
}

/// What may happen to a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A frame of the peer's is whole and acceptable.
    Frame,
    /// A frame of the peer's is whole and well formed, but asks for what we cannot give.
    Unacceptable,
    /// A Reply of the peer's is whole and says no.
    RejectFrame,
    /// A frame of the peer's is malformed.
    BadFrame,
    /// The peer sent bytes when it was not its turn.
    EarlyBytes,
    /// The owner accepts.
    Accept,
    /// The owner rejects.
    Reject,
    /// TCP has taken our frame.
    Sent,
    /// The time for the startup phase is over.
    Timeout,
    /// The peer has closed its half of the stream.
    PeerClosed,
}

impl Input {
    /// Every input.
    pub const ALL: [Self; 10] = [
        Self::Frame,
        Self::Unacceptable,
        Self::RejectFrame,
        Self::BadFrame,
        Self::EarlyBytes,
        Self::Accept,
        Self::Reject,
        Self::Sent,
        Self::Timeout,
        Self::PeerClosed,
    ];
}

/// What follows `input` in `state`; `None` where it means nothing there and is to be ignored.
#[must_use]
pub const fn step(state: State, input: Input) -> Option<State> {
    let next = match (state, input) {
        (State::AwaitRequest, Input::Frame) => State::Decide,
        (State::Decide, Input::Accept) => State::SendAccept,
        (State::Decide, Input::Reject) => State::SendReject,
        (State::SendAccept, Input::Sent) => State::Established,
        (State::SendReject, Input::Sent) => State::Rejected,

        (State::SendRequest, Input::Sent) => State::AwaitReply,
        (State::AwaitReply, Input::Frame) => State::Established,
        (State::AwaitReply, Input::RejectFrame) => State::Rejected,
        (State::AwaitReply, Input::Unacceptable) => State::Failed,

        // RFC 5044 §7.1.2 rules 2 and 3: "If the MPA Request [Reply] Frame is improperly formatted, the
        // implementation MUST close the TCP connection and exit MPA."
        (State::AwaitRequest | State::AwaitReply, Input::BadFrame) => State::Failed,
        // RFC 5044 §7.1.2 rule 3: an initiator "MUST receive and validate an MPA Reply Frame" before it sends
        // FPDUs, and a responder an MPA Request before it sends anything.
        (
            State::AwaitRequest
            | State::Decide
            | State::SendAccept
            | State::SendReject
            | State::SendRequest
            | State::AwaitReply,
            Input::EarlyBytes | Input::Timeout | Input::PeerClosed,
        ) => State::Failed,
        _ => return None,
    };
    Some(next)
}
