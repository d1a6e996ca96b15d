//! State table of the startup phase: one row for each pair of state and input.

/// State of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Responder: waits for a complete Request.
    AwaitRequest,
    /// Responder: waits for the owner's answer to the Request.
    Decide,
    /// Responder: TCP has not taken all of an accepting Reply.
    SendAccept,
    /// Responder: TCP has not taken all of a rejecting Reply.
    SendReject,
    /// Initiator: TCP has not taken all of the Request.
    SendRequest,
    /// Initiator: waits for a complete Reply.
    AwaitReply,
    /// Both: full operation; the stream consists of FPDUs.
    Established,
    /// Both: a rejecting Reply was sent or received.
    Rejected,
    /// Both: the negotiation failed.
    Failed,
}

impl State {
    /// All states, for exhaustive tests.
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

    /// Returns true if the negotiation is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Established | Self::Rejected | Self::Failed)
    }
}

/// Input to the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A complete, acceptable frame of the peer arrived.
    Frame,
    /// A complete, well-formed frame arrived whose demands cannot be met.
    Unacceptable,
    /// A complete, rejecting Reply arrived.
    RejectFrame,
    /// A malformed frame arrived.
    BadFrame,
    /// The peer sent bytes when it was not allowed to.
    EarlyBytes,
    /// The owner accepted the Request.
    Accept,
    /// The owner rejected the Request.
    Reject,
    /// TCP took all of the local frame.
    Sent,
    /// The time limit of the startup phase passed.
    Timeout,
    /// The peer closed its half of the stream.
    PeerClosed,
}

impl Input {
    /// All inputs, for exhaustive tests.
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

/// Returns the state after `input` in `state`; `None` if the input has no meaning there and is ignored.
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
