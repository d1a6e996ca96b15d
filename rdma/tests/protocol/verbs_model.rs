//! Random work on both queue pairs of a connection, against a plain model of both memories: every byte matches the
//! model, and every work request completes exactly once and in order, also after a cut.

use proptest::prelude::*;
use rdma::testutil::model::{InProcess, Lab, work};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_memories_are_those_of_the_model(
        rounds in proptest::collection::vec(
            proptest::collection::vec(work(), 1..14), 1..if cfg!(miri) { 3 } else { 8 }
        ),
        mss in 136..1500usize,
        chunk in prop_oneof![1..40usize, Just(1448)],
    ) {
        Lab::new(InProcess::new(mss, chunk)).run_rounds(&rounds);
    }

    #[test]
    fn completion_queues_that_are_resized_lose_and_repeat_nothing(
        rounds in proptest::collection::vec(proptest::collection::vec(work(), 1..14), 1..4),
        sizes in proptest::collection::vec(1..600_u32, 1..20),
    ) {
        Lab::new(InProcess::new(300, 100)).run_resized(&rounds, &sizes);
    }

    #[test]
    fn a_cut_flushes_the_rest_exactly_once(
        before in proptest::collection::vec(work(), 0..10),
        after in proptest::collection::vec(work(), 1..10),
        cut_by in 0..3u8,
    ) {
        Lab::new(InProcess::new(300, 100)).run_cut(&before, &after, cut_by);
    }
}
