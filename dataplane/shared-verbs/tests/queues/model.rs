//! The model of two memories, over queues in shared memory: the bytes are those of the model, and the completions those
//! of the same work in process.

use crate::common::Shared;
use proptest::prelude::*;
use rdma::testutil::model::{InProcess, Lab, work};

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_memories_are_those_of_the_model(
        rounds in proptest::collection::vec(proptest::collection::vec(work(), 1..14), 1..8),
        mss in 136..1500usize,
        chunk in prop_oneof![1..40usize, Just(1448)],
        eager: bool,
    ) {
        let mut shared = Lab::new(Shared::new(mss, chunk, eager));
        shared.run_rounds(&rounds);
        let mut in_process = Lab::new(InProcess::new(mss, chunk));
        in_process.run_rounds(&rounds);
        prop_assert_eq!(shared.completions, in_process.completions);
    }

    #[test]
    fn completion_queues_that_are_resized_lose_and_repeat_nothing(
        rounds in proptest::collection::vec(proptest::collection::vec(work(), 1..14), 1..4),
        sizes in proptest::collection::vec(1..600_u32, 1..20),
        eager: bool,
    ) {
        let mut shared = Lab::new(Shared::new(300, 100, eager));
        shared.run_resized(&rounds, &sizes);
        let mut in_process = Lab::new(InProcess::new(300, 100));
        in_process.run_resized(&rounds, &sizes);
        prop_assert_eq!(shared.completions, in_process.completions);
    }

    #[test]
    fn a_cut_flushes_the_rest_exactly_once(
        before in proptest::collection::vec(work(), 0..10),
        after in proptest::collection::vec(work(), 1..10),
        cut_by in 0..3u8,
        eager: bool,
    ) {
        let mut shared = Lab::new(Shared::new(300, 100, eager));
        shared.run_cut(&before, &after, cut_by);
        if eager {
            let mut in_process = Lab::new(InProcess::new(300, 100));
            in_process.run_cut(&before, &after, cut_by);
            prop_assert_eq!(shared.completions, in_process.completions);
        }
    }
}
