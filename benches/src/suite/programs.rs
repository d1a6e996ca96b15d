//! Figures of programs on interfaces of the kernel, beside the same work over kernel TCP.

use super::figures::{Bound, Figure, Reports, Selector};

/// A figure of programs: title, bound, aim, quantity and unit, and the program, what it is over and its message, of the
/// first quantity and of its divisor.
type OfPrograms =
    (&'static str, Bound, f64, (&'static str, &'static str), [(&'static str, &'static str); 2], &'static str);

const OF_PROGRAMS: [OfPrograms; 10] = {
    use Bound::{AtLeast, AtMost};
    const GBPS: (&str, &str) = ("gbps", "Gbit/s");
    const HALF_US: (&str, &str) = ("half_round_trip_us", "µs");
    const BULK: &str = "65536";
    const DAEMONS: (&str, &str) = ("ib_write_bw", "two daemons, bridge");
    const READ: (&str, &str) = ("NFS READ", "RDMA, direct placement; veth");
    const READ_TCP: (&str, &str) = ("NFS READ", "kernel TCP; veth with all offloads");
    [
        (
            "Two daemons: ib_write_bw ÷ UCX put over kernel TCP with offloads, 64 KiB",
            AtLeast(0.7),
            1.2,
            GBPS,
            [DAEMONS, ("UCX put", "kernel TCP, bridge with offloads")],
            BULK,
        ),
        (
            "Two daemons: ib_write_bw ÷ UCX put over kernel TCP without offloads, 64 KiB",
            AtLeast(1.6),
            2.5,
            GBPS,
            [DAEMONS, ("UCX put", "kernel TCP, bridge without offloads")],
            BULK,
        ),
        (
            "Embedded device: ib_write_bw ÷ UCX put over kernel TCP, loopback, 64 KiB",
            AtLeast(1.5),
            2.2,
            GBPS,
            [("ib_write_bw", "embedded, loopback"), ("UCX put", "kernel TCP, loopback")],
            BULK,
        ),
        (
            "Embedded device: ib_write_bw ÷ UCX put over kernel TCP, veth with offloads, 64 KiB",
            AtLeast(1.3),
            1.7,
            GBPS,
            [("ib_write_bw", "embedded, veth with offloads"), ("UCX put", "kernel TCP, veth with offloads")],
            BULK,
        ),
        (
            "Embedded device: Writes of 64 bytes ÷ UCX puts over kernel TCP, loopback",
            AtLeast(10.0),
            25.0,
            ("million_per_s", "10⁶/s"),
            [("ib_write_bw", "embedded, loopback"), ("UCX put", "kernel TCP, loopback")],
            "64",
        ),
        (
            "Embedded device: half a round trip of Writes ÷ UCX puts over kernel TCP, loopback, 64 bytes, polling",
            AtMost(1.0),
            0.8,
            HALF_US,
            [("ib_write_lat", "embedded, loopback"), ("UCX put", "kernel TCP, loopback")],
            "64",
        ),
        (
            "Set-up of a queue pair by number ÷ by rdma_cm, two daemons, bridge",
            AtMost(2.0),
            1.0,
            ("set_up_us", "µs"),
            [
                ("connection", "two daemons, bridge, by number"),
                ("connection", "two daemons, bridge, by rdma_cm"),
            ],
            "0",
        ),
        (
            "NFS READ over RDMA ÷ over kernel TCP with offloads, veth, 1 MiB",
            AtLeast(0.6),
            1.0,
            ("mb_per_s", "MB/s"),
            [READ, READ_TCP],
            "1048576",
        ),
        (
            "The same: CPU time of the server per GiB",
            AtMost(1.8),
            1.2,
            ("server_cpu_s_per_gib", "s/GiB"),
            [READ, READ_TCP],
            "1048576",
        ),
        (
            "The same: CPU time of the client per GiB",
            AtMost(3.0),
            2.0,
            ("client_cpu_s_per_gib", "s/GiB"),
            [READ, READ_TCP],
            "1048576",
        ),
    ]
};

/// Computes the figures from the reports of `programs`.
pub(super) fn figures(reports: &Reports<'_>) -> Vec<Figure> {
    let figure = |&(title, bound, aim, (cell, unit), of, size): &OfPrograms| {
        let quantity = |(program, over)| {
            let row = [("program", program), ("over", over), ("size", size)];
            reports.greatest(Selector { benchmark: "programs", section: "rows", row: &row, cell, unit })
        };
        Figure::new(title, bound, Some(aim), of.map(quantity).into())
    };
    OF_PROGRAMS.iter().map(figure).collect()
}
