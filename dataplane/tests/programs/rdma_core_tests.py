"""Runs rdma-core's tests of pyverbs on one device, and compares the result of each with a list.

rdma_core_tests.py FOLDER LIST DEVICE ADDRESS

FOLDER has rdma-core's tests in a folder `tests`. LIST has a heading for each result, and under it the tests, indented:
`passes`, `skips: REASON`, `fails: REASON`, or `varies: REASON` for those that pass, or fail for that reason. The reason
is a part of what the test says; `|` separates alternatives. Every test must be in the list and have that result, also
if it skips or fails there: a test that begins to pass belongs under `passes`. A heading that begins with `iWARP` or
`RoCE` is for a device of that alone. ADDRESS is the device's, for tests of librdmacm, which look for an interface
of the device below /sys. With `-` instead of LIST, the results are printed.
"""

import importlib
import os
import sys
import tempfile
import unittest

# Tests of one vendor's devices, and of memory of graphics cards.
FOREIGN = ("test_mlx5_", "test_efa", "test_cuda_")


class Results(unittest.TestResult):
    """Result of each test: a word, and what the test says, also to standard output."""

    def __init__(self):
        super().__init__()
        self.of = {}

    def startTest(self, test):
        super().startTest(test)
        sys.stdout.flush()
        self.said, self.output = tempfile.TemporaryFile("w+"), os.dup(1)
        os.dup2(self.said.fileno(), 1)

    def stopTest(self, test):
        super().stopTest(test)
        sys.stdout.flush()
        os.dup2(self.output, 1)
        os.close(self.output)
        self.said.seek(0)
        self.note(test, "", self.said.read())
        self.said.close()

    def note(self, test, result, text=""):
        name = test.id().removeprefix("tests.")
        # A test may fail twice: in its body, and in its end.
        word, said = self.of.get(name, (result, ""))
        self.of[name] = (word, said + text)

    def addSuccess(self, test):
        self.note(test, "passes")

    def addSkip(self, test, reason):
        self.note(test, "skips", reason)

    def addError(self, test, err):
        self.note(test, "fails", self._exc_info_to_string(err, test))

    addFailure = addError


def expected(path):
    """Returns the result and the reasons of each test in the list, for this device."""
    tests, heading, skipped = {}, None, False
    other = "iWARP" if os.environ.get("IWARP_ROCE") == "1" else "RoCE"
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            if not line.startswith(" "):
                word, _, reason = line.strip().partition(":")
                heading = (word.split()[-1], [part.strip() for part in reason.split("|")])
                skipped = word.startswith(other)
                continue
            name = line.strip()
            if skipped:
                continue
            if name in tests:
                sys.exit(f"{path}: {name} is there twice")
            tests[name] = heading
    return tests


def differences(wanted, got):
    """Yields a line for each test whose result is not that of the list."""
    for name in sorted(wanted.keys() | got.keys()):
        if name not in wanted:
            yield f"{name} is not in the list: it {got[name][0]}: {got[name][1]}"
        elif name not in got:
            yield f"{name} is in the list, and was not run"
        else:
            (word, reasons), (result, text) = wanted[name], got[name]
            if word == "varies":
                if result == "passes":
                    continue
                word = "fails"
            if word != result:
                yield f"{name} {result} and not {word}: {text}"
            elif not any(reason in text for reason in reasons):
                yield f"{name} {result} for another reason than {reasons}: {text}"


def main(folder, wanted, device, address):
    sys.path[:0] = [folder, os.path.join(folder, "tests")]
    parser = importlib.import_module("args_parser").parser
    sys.argv[1:] = ["--dev", device, "--port", "1", "--gid", "0"]
    parser.parse_args()
    base = importlib.import_module("tests.base")
    base.RDMATestCase._get_ip_mac = lambda self, dev, port, gid: self.args.append([dev, port, gid, address, None])
    modules = sorted(name for name in os.listdir(os.path.join(folder, "tests")) if name.startswith("test_"))
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("tests." + name.removesuffix(".py")))
        for name in modules
        if not name.startswith(FOREIGN)
    )
    results = Results()
    suite.run(results)
    if wanted == "-":
        for name, (word, text) in sorted(results.of.items()):
            print(word, name, text.strip().rsplit("\n", 1)[-1])
        return 0
    lines = list(differences(expected(wanted), results.of))
    for line in lines:
        print(line)
    words = [word for word, _ in results.of.values()]
    print(*(f"{words.count(word)} {word}" for word in ("passes", "skips", "fails")), sep=", ")
    return bool(lines) or "passes" not in words


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
