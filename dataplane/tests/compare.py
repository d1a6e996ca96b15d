#!/usr/bin/env python3
"""compare.py RESULTS: prints the table of goodput, Ironwarp against Linux, from one JSON object per line and
measurement: cell, direction, side, run, each_mbit_s, relay. Fails if Ironwarp is slower in a cell, or a measurement is
too noisy.

The rule: every connection has its own path, and the k-th connection of the n-th run has the same random loss on both
sides, so each connection is one measurement of the cell. The goodput of a cell is the median over the runs of the sum
of all connections. The noise is the uncertainty of the mean: three standard errors of the difference between the two
sides, relative to Linux's mean. It is computed from the spread of the connections, caused by random loss, and from the
spread of the runs, caused by load on the machine; the greater one counts. A cell fails if ratio + noise < 1. A noise
above NOISE_MAX fails too: the machine is too busy to measure.

The cell slow-start compares losses instead: the frames that the path's queue drops, as the median over the runs. It
fails if Ironwarp's sender loses more than DROPS_MAX times what Linux's does.
"""
import collections
import json
import statistics
import sys

NOISE_MAX = 0.25
DROPS_MAX = 1.25
REFERENCE = "linux"


def noise(one, other):
    """Returns three standard errors of the difference of two means, relative to the second."""
    def variance_of_mean(values):
        return statistics.variance(values) / len(values) if len(values) > 1 else 0
    error = (variance_of_mean(one) + variance_of_mean(other)) ** 0.5
    return 3 * error / statistics.mean(other)


def main():
    totals, each, faults = collections.defaultdict(list), collections.defaultdict(list), []
    order, drops = [], collections.defaultdict(list)
    with open(sys.argv[1]) as lines:
        for line in lines:
            it = json.loads(line)
            key = it["cell"], it["direction"]
            if key not in order:
                order.append(key)
            totals[key, it["side"]].append(sum(it["each_mbit_s"]))
            each[key, it["side"]] += it["each_mbit_s"]
            drops[key, it["side"]].append(sum(fates["dropped"] for fates in it["relay"].values()))
            for way, fates in it["relay"].items():
                for name in ("missed", "refused", "oversize"):
                    if fates[name]:
                        faults.append(f"{it['cell']}, {it['direction']}, {it['side']}, run {it['run']}: "
                                      f"the relay {name} {fates[name]} frames {way}")
    sides = sorted({side for _, side in totals} - {REFERENCE})
    print(f"{'cell':<16} {'direction':<9}" + "".join(f" {side:>14} {'ratio':>6} {'noise':>6}" for side in sides) +
          f" {REFERENCE:>14}   Mbit/s, median of runs")
    lost, notes = [], []
    for key in order:
        linux = statistics.median(totals[key, REFERENCE])
        row = f"{key[0]:<16} {key[1]:<9}"
        for side in sides:
            ours = statistics.median(totals[key, side])
            ratio = ours / linux
            within = max(noise(of[key, side], of[key, REFERENCE]) for of in (each, totals))
            row += f" {ours:14.2f} {ratio:6.3f} {within:6.3f}"
            if key[0] == "slow-start":
                dropped, reference = (statistics.median(drops[key, name]) for name in (side, REFERENCE))
                notes.append(f"{key[0]}, {key[1]}: the queue drops {dropped:.0f} frames of {side}, "
                             f"{reference:.0f} of {REFERENCE}")
                if key[1] == "send" and dropped > reference * DROPS_MAX:
                    lost.append(f"{key[0]}: {side} loses too many")
            elif ratio + within < 1:
                lost.append(f"{key[0]}, {key[1]}: {side} delivers {ratio:.3f} of what Linux does, noise {within:.3f}")
            if within > NOISE_MAX:
                faults.append(f"{key[0]}, {key[1]}: noise {within:.3f} decides nothing")
        print(row + f" {linux:14.2f}")
    for line in notes + lost + faults:
        print(line)
    return 1 if lost or faults or not order else 0


sys.exit(main())
