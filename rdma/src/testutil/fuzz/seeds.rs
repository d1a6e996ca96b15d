//! Seed inputs, from which the committed corpora were first generated.

use crate::testutil::bytes::{REPLY, REQUEST, fpdu, mpa, tagged, untagged};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Number of random inputs for each target.
const RANDOM: u64 = 12;

/// Returns the seeds of a target by its name.
#[must_use]
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut seeds = match target {
        "mpa_frames" => mpa_frames(),
        "fpdu_stream" => fpdu_stream(),
        "numbered" => numbered(),
        "operations" => operations(),
        _ => Vec::new(),
    };
    for seed in 0..RANDOM {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut input = vec![0; 40 + 20 * seed as usize];
        random.fill_bytes(&mut input);
        seeds.push(input);
    }
    seeds
}

/// Bytes that select defaults, with the role, then a frame as it is.
fn mpa_frames() -> Vec<Vec<u8>> {
    let choose = |initiator: u8| [&[0; 5][..], &[initiator, 0, 0, 0, 0, 0, 4, 0, 4, 1][..]].concat();
    let frames = [
        (0, mpa(REQUEST, 4, 4, b"private")),
        (0, mpa(REQUEST, 0xc004, 0xc004, b"")),
        (0, mpa(REQUEST, 0x3fff, 0x3fff, b"")),
        (0, b"MPA ID Req Frame\x40\x01\x00\x00".to_vec()),
        (0, b"MPA ID Req Frame\xd0\x02\x00\x04\x00\x00\x00\x00".to_vec()),
        (1, mpa(REPLY, 4, 4, b"private")),
        (1, b"MPA ID Rep Frame\x70\x02\x00\x04\x00\x00\x00\x00".to_vec()),
        (1, [mpa(REPLY, 4, 4, b""), fpdu(&tagged(0xc1, 0x40, 1, 0, &[]))].concat()),
        (1, mpa(REPLY, 4, 200, b"")),
    ];
    frames.into_iter().map(|(initiator, frame)| [choose(initiator), frame].concat()).collect()
}

/// Either role; what is right, then one field after the other changed.
fn numbered() -> Vec<Vec<u8>> {
    let request = (0..17).map(|word| [&[0, 3, 0, 3][..], &[9; 8], &[0, 1, 0, word * 4 + 3, 0, 2]].concat());
    let reply = (0..6).map(|word| [&[1, 0, 3, 0, 0, 0, 0, 0, 1, 0][..], &[word * 4, 0, 1]].concat());
    let right = [vec![0, 0, 0, 3], vec![0, 3, 3, 3], vec![1, 0, 3], vec![1, 0, 0]];
    request.chain(reply).chain(right).collect()
}

fn fpdu_stream() -> Vec<Vec<u8>> {
    let send = untagged(0x41, 0x43, 0, [0, 1, 0], b"bytes");
    let write = tagged(0xc1, 0x40, 7, 0, &[9; 40]);
    let raw = [fpdu(&write), fpdu(&send), fpdu(&[0x41; 17])].concat();
    vec![
        [&[2], &raw[..]].concat(),
        [&[3], &raw[..]].concat(),
        vec![0, 5, 10, 0, 100, 0, 199, 0, 255, 0xff, 0xff, 0, 30, 0, 1, 2, 3, 63, 64, 65, 199, 220, 255],
        vec![1, 3, 20, 0, 20, 0, 20, 0, 1, 1, 1, 1, 1, 1, 1, 1],
        vec![0, 3, 20, 0, 0, 20, 0, 3, 0, 9, 4],
        vec![0, 11, 0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0],
        // With markers: arbitrary bytes, split into single bytes, damaged.
        [&[6], &raw[..]].concat(),
        [&[4, 9, 220, 3, 0, 0, 230, 5, 100, 0, 60, 0][..], &[1; 40], &[199; 20]].concat(),
        vec![4, 3, 220, 0, 255, 3, 0, 9, 3, 200, 0, 100],
        // In any order, with and without markers, without CRCs; lengths, and a sequence of operations.
        [&[8, 9, 0, 0][..], &[10, 2, 100, 0, 80, 0, 0].repeat(10), &[0, 3, 0, 2, 7, 1, 0, 5].repeat(6)]
            .concat(),
        [&[12, 11, 0, 1][..], &[10, 2, 250, 0, 90, 0, 0].repeat(12), &[0, 4, 0, 2, 0, 1, 5, 7].repeat(6)]
            .concat(),
        [&[13, 11, 0, 2][..], &[10, 2, 250, 0, 90, 0, 0].repeat(12), &[0, 9, 0, 2, 4, 1, 1, 3].repeat(6)]
            .concat(),
        [&[8, 7, 2, 0][..], &[10, 1, 0, 3, 7, 9].repeat(9), &[0, 5, 3, 4, 1, 6].repeat(9)].concat(),
    ]
}

/// Each operation many times, in each role.
fn operations() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for role in [0x60, 0x62, 0x6c, 0x7c] {
        for first in [0, 3, 8, 10, 12] {
            let mut input = vec![role];
            for round in 0..12u8 {
                input.extend([first, 0, round, 0, 60, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, round, 0, round]);
                input.extend([4, 0, 0, 14, 0, 0, 0, 0, 16, 1]);
            }
            seeds.push(input);
        }
    }
    seeds
}
