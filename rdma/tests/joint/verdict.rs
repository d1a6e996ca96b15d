//! Expected outcome of each connection, according to its planned end and the faults.

use rdma::CloseHow;
use tcp_stack::CloseReason;

use crate::scenario::{ConnPlan, Cut, Ending, Scenario};
use crate::stream::Outcome;

/// No common RTR message (RFC 6581 §8), CRC error (RFC 5044 §8), local fault (RFC 5040 §4.8).
const NO_RTR: (u8, u8, u8) = (2, 0, 7);
const CRC: (u8, u8, u8) = (2, 0, 2);
/// A length that ends inside bytes placed out-of-order (RFC 5044 §8).
const FPDU_START: (u8, u8, u8) = (2, 0, 3);
const LOCAL: (u8, u8, u8) = (0, 0, 0);
const SETUP: (u8, u8, u8) = (2, 0, 5);

type Terms = Option<(u16, u16, bool)>;

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

impl Outcome {
    fn sent(&self) -> Option<(u8, u8, u8)> {
        self.terminate_sent.map(|code| (code.layer, code.etype, code.code))
    }

    fn received_terminate(&self) -> Option<(u8, u8, u8)> {
        self.terminate_received.map(|code| (code.layer, code.etype, code.code))
    }

    fn is_silent(&self) -> bool {
        self.terminate_sent.is_none() && self.terminate_received.is_none()
    }

    /// Returns true if all work succeeded and the stream ended gracefully.
    pub(crate) fn is_whole(&self) -> bool {
        self.established
            && self.is_silent()
            && self.work[1] == self.work[0]
            && self.close == Some(CloseHow::Fin)
            && self.tcp == Some(CloseReason::Normal)
    }
}

pub(crate) fn judge(
    scenario: &Scenario,
    connection: &ConnPlan,
    pair: &[Option<Outcome>; 2],
    terms: [Terms; 2],
) -> Result<(), String> {
    // If depths were flipped, the initiator refuses what the responder considers agreed.
    let flipped_startup = scenario.flips.is_some_and(|flips| flips.startup);
    for outcome in pair.iter().flatten() {
        let [posted, succeeded, flushed] = outcome.work;
        ensure(posted == succeeded + flushed, "work that came back is not the work posted")?;
        ensure(
            outcome.is_silent() || outcome.established || connection.no_rtr_in_common() || flipped_startup,
            "a Terminate too early",
        )?;
    }
    judge_terms(scenario, connection, terms)?;
    if scenario.flips.is_some() {
        return judge_flipped(scenario, pair);
    }
    let [Some(initiator), Some(responder)] = pair else {
        return ensure(scenario.fatal_outage, "never connected");
    };
    let sides = [initiator, responder];
    if scenario.fatal_outage {
        // It ended before or during the outage.
        return ensure(
            sides.iter().all(|side| side.is_silent() || connection.no_rtr_in_common()),
            "an outage, and a Terminate",
        );
    }
    if connection.ending == Ending::Rejected {
        ensure(initiator.rejected && !responder.established, "not rejected")?;
        return ensure(initiator.work[0] + responder.work[0] == 0, "work was posted");
    }
    if connection.no_rtr_in_common() {
        ensure(initiator.work[0] == 0, "work was posted")?;
        let reported = initiator.sent() == Some(NO_RTR) && responder.received_terminate() == Some(NO_RTR);
        return ensure(
            reported || matches!(connection.ending, Ending::Cut { .. }),
            "no common RTR, and no Terminate",
        );
    }
    match connection.ending {
        Ending::Clean | Ending::Rejected => {
            ensure(sides.iter().all(|side| side.is_whole()), "not all is done")
        }
        Ending::Violates { side, violation, .. } => {
            let (violator, judge) = (sides[side], sides[1 - side]);
            ensure(judge.sent() == Some(violation.code()), "the wrong Terminate was sent")?;
            ensure(
                violator.received_terminate() == Some(violation.code()),
                "the wrong Terminate was received",
            )?;
            ensure(
                violator.terminate_sent.is_none() && judge.terminate_received.is_none(),
                "a Terminate was answered",
            )
        }
        Ending::Cut { side, how, .. } => judge_cut(how, sides[side], sides[1 - side]),
    }
}

fn judge_cut(how: Cut, cutter: &Outcome, other: &Outcome) -> Result<(), String> {
    if cutter.is_whole() && other.is_whole() {
        return Ok(());
    }
    match how {
        Cut::Abort | Cut::Fin => ensure(cutter.is_silent() && other.is_silent(), "a cut, and a Terminate"),
        Cut::Disconnect => {
            ensure(cutter.is_silent() && other.is_silent(), "an end in good order, and a Terminate")?;
            ensure(cutter.work[2] == 0, "who ends in good order finishes its work first")?;
            ensure(cutter.tcp == Some(CloseReason::Normal), "an end in good order, and a reset")
        }
        Cut::Fault => {
            ensure(other.terminate_sent.is_none(), "a fault of the other side")?;
            // A responder may not send before it has received from its peer, unless they use RFC 6581.
            let reported =
                cutter.sent() == other.received_terminate() && matches!(cutter.sent(), Some(LOCAL | SETUP));
            ensure(reported || cutter.close == Some(CloseHow::Reset), "a fault, and no Terminate")
        }
    }
}

/// Checks a run with flipped bits: the memory is right, and the CRC ends damaged streams, unless bits outside its
/// coverage were hit.
fn judge_flipped(scenario: &Scenario, pair: &[Option<Outcome>; 2]) -> Result<(), String> {
    let in_startup = scenario.flips.is_some_and(|flips| flips.startup);
    for outcome in pair.iter().flatten() {
        let codes = [outcome.sent(), outcome.received_terminate()];
        let only_crc = codes.into_iter().flatten().all(|code| matches!(code, CRC | NO_RTR | FPDU_START));
        ensure(in_startup || only_crc, "a flipped bit, and not a CRC error")?;
    }
    Ok(())
}

/// Checks that the terms follow from both sides' settings.
fn judge_terms(scenario: &Scenario, connection: &ConnPlan, terms: [Terms; 2]) -> Result<(), String> {
    let [first, second] = terms;
    let (initiator, responder) = if connection.from == 0 { (first, second) } else { (second, first) };
    let (Some((ird, ord, crc)), Some((their_ird, their_ord, their_crc))) = (initiator, responder) else {
        return Ok(());
    };
    if scenario.flips.is_some_and(|flips| flips.startup) {
        return Ok(());
    }
    ensure(crc == connection.crc() && their_crc == crc, "CRCs are not as agreed on")?;
    ensure(ord <= their_ird && their_ord <= ird, "more reads at a time than can be answered")?;
    ensure(
        ord <= connection.sides[0].ord && their_ord <= connection.sides[1].ord,
        "more reads than asked for",
    )
}
