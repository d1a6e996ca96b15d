//! Prints the reports of `per_packet`: the cost of the TCP stack alone.

use std::io::{self, Write};

use per_packet::Cost;
use per_packet::conns::{ConnsReport, ConnsRow};
use per_packet::echo::EchoReport;
use per_packet::rx::RxReport;

use crate::Report;

impl Report for RxReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { payload, frames, region_kib, segment, copy, gbit_s, segments_per_ack } = self;
        writeln!(
            out,
            "{:>8} {:>8} {:>12} {:>10} {:>10} {:>10} {:>14}",
            "#bytes", "frames", "region[KiB]", "ns", "cycles", "BW[Gb/s]", "copy[cycles]"
        )?;
        let Cost { ns, cycles, .. } = segment;
        let copy = copy.cycles;
        writeln!(
            out,
            "{payload:>8} {frames:>8} {region_kib:>12} {ns:>10.1} {cycles:>10.0} {gbit_s:>10.2} {copy:>14.0}"
        )?;
        writeln!(out, "{segments_per_ack:.1} segments per acknowledgment")
    }
}

impl Report for EchoReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { connections, bytes, request: Cost { ns, cycles, per_second, .. } } = self;
        writeln!(
            out,
            "{:>8} {:>12} {:>10} {:>10} {:>12}",
            "#bytes", "connections", "ns", "cycles", "rate[M/s]"
        )?;
        writeln!(out, "{bytes:>8} {connections:>12} {ns:>10.1} {cycles:>10.0} {:>12.3}", per_second / 1e6)
    }
}

impl Report for ConnsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{:>12} {:>12} {:>12} {:>8} {:>16}",
            "connections", "heap[B]", "request[ns]", "ratio", "open+close[ns]"
        )?;
        for ConnsRow { connections, bytes_each, request, ratio, connect_and_close } in &self.rows {
            let (request, close) = (request.request.ns, connect_and_close.ns);
            writeln!(out, "{connections:>12} {bytes_each:>12} {request:>12.1} {ratio:>8.2} {close:>16.0}")?;
        }
        Ok(())
    }
}
