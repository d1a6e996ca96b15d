//! Cost of one packet, step by step, with criterion: `cargo bench -p benches`.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;

use benches::{BURST, Expected, PAYLOADS, build_write, parse_frame, tcp_frame, write_len};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rdma::mpa::crc::crc32c;
use rdma::mpa::{Deframer, Framer, MpaStats};
use rdma::wire::Stag;
use rdma::{Access, Memory, Origin, Scope, StagTable, StreamId, VecMemory};

/// FPDUs per measurement of a deframer, which is created outside the measured part.
const RUN: u64 = 64;

fn per_payload(
    criterion: &mut Criterion,
    name: &str,
    packets: u64,
    mut measure: impl FnMut(&mut criterion::Bencher<'_>, usize),
) {
    let mut group = criterion.benchmark_group(name);
    for payload in PAYLOADS {
        group.throughput(Throughput::Bytes(payload as u64 * packets));
        group.bench_function(BenchmarkId::from_parameter(payload), |bencher| measure(bencher, payload));
    }
    group.finish();
}

fn crc(criterion: &mut Criterion) {
    per_payload(criterion, "crc32c", 1, |bencher, payload| {
        let bytes = vec![0x5a; payload];
        bencher.iter(|| crc32c(black_box(&bytes)));
    });
    per_payload(criterion, "memcpy, for scale", 1, |bencher, payload| {
        let (from, mut to) = (vec![0x5a_u8; payload], vec![0; payload]);
        bencher.iter(|| to.copy_from_slice(black_box(&from)));
    });
}

fn fpdu(criterion: &mut Criterion) {
    let framer = Framer::new(true);
    per_payload(criterion, "fpdu build", 1, |bencher, payload| {
        let (bytes, mut out) = (vec![0x5a; payload], vec![0; write_len(payload)]);
        bencher.iter(|| build_write(framer, Stag(1), black_box(&bytes), &mut out));
    });
    per_payload(criterion, "fpdu check, 64 of them", RUN, |bencher, payload| {
        let mut fpdu = vec![0; write_len(payload)];
        assert!(build_write(framer, Stag(1), &vec![0x5a; payload], &mut fpdu));
        let mut stats = MpaStats::default();
        let setup = || Deframer::<&[u8]>::new(0, rdma::mpa::DeframerConfig::default());
        bencher.iter_batched_ref(
            setup,
            |deframer| {
                for number in 0..RUN {
                    deframer.push(number * fpdu.len() as u64, &fpdu, &mut stats).unwrap();
                    let taken = deframer.next_fpdu(&mut stats).unwrap().unwrap().len();
                    assert_eq!(taken, payload + 14);
                    assert!(deframer.next_fpdu(&mut stats).is_none());
                }
            },
            BatchSize::SmallInput,
        );
    });
}

fn wire(criterion: &mut Criterion) {
    per_payload(criterion, "frame parse, with checksums", 1, |bencher, payload| {
        let frame = tcp_frame(&vec![0x5a; write_len(payload)]).unwrap();
        bencher.iter(|| parse_frame(black_box(&frame)).unwrap().len());
    });
    per_payload(criterion, "frame parse, headers only", 1, |bencher, payload| {
        let frame = tcp_frame(&vec![0x5a; write_len(payload)]).unwrap();
        bencher.iter(|| tcp_stack::peek_flow(black_box(&frame)));
    });
}

/// Header prediction; with more than one connection also the lookup of the connection.
fn expected(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("receive 32 expected segments, of connections");
    group.throughput(Throughput::Elements(BURST as u64));
    for connections in [1, 64, 100_000] {
        let mut peers = Expected::new(connections).unwrap();
        group.bench_function(BenchmarkId::from_parameter(connections), |bencher| {
            bencher.iter_custom(|bursts| peers.time(bursts));
        });
    }
    group.finish();
}

fn placement(criterion: &mut Criterion) {
    per_payload(criterion, "check and place", 1, |bencher, payload| {
        let mut memory = VecMemory::new();
        let (region, region_bytes) = (memory.add(vec![0; 64 << 20]).unwrap(), 64 << 20);
        let origin = Origin::new(StreamId(1), None);
        let mut stags = StagTable::new(8192, [7; 32]);
        let granted: Vec<Stag> = (0..8192)
            .map(|stream| {
                stags
                    .grant(region, region_bytes, Access::REMOTE_WRITE, Scope::Stream(StreamId(stream)))
                    .unwrap()
            })
            .collect();
        let stag = granted.get(1).copied().unwrap();
        let (bytes, mut at) = (vec![0x5a; payload], 0);
        bencher.iter(|| {
            let token = stags.check_place(black_box(stag), at, bytes.len(), origin).unwrap();
            black_box(memory.place(token, &bytes));
            at = (at + 8928) % (region_bytes - 8928);
        });
    });
}

criterion_group!(micro, crc, fpdu, wire, expected, placement);
criterion_main!(micro);
