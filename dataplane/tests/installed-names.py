"""installed-names.py PACKAGE…: checks that the texts of installed packages name files that are there.

Texts are manual pages, documents, examples, units and configurations. A name is a path below /usr, /lib or /etc/iwarpd,
a link between documents, or a manual page. A path of the source tree must be marked as one.
"""

import gzip
import pathlib
import re
import subprocess
import sys

ABSOLUTE = re.compile(r"(?<![\w.~/-])/(?:usr|lib|etc/iwarpd)/[\w./+-]*\w")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
PAGE = re.compile(r"man:([\w-]+)\((\d)\)|`([\w-]+)\(([18])\)`")
# Not a header between angle brackets, nor the default of an option, which a program makes.
SOURCE = re.compile(r"(?<![\w.~/<-])(?<!default: )"
                    r"(?:benches|configs|dataplane|docs|mgmt-cli|rdma|target|tcp-stack|\.ci)/[\w./-]*\w"
                    r"([^`\n]*` \(source\))?")
# Of other packages, or made later: by the daemon, or by who follows the document.
ELSEWHERE = re.compile(r"/usr/bin/env$|/usr/share$|/etc/iwarpd/[\w.-]+\.token$|/usr/(include|local)/")


def text_of(path):
    """Returns the text of a file; of a manual page, without the markup in words."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        text = file.read()
    if "/man/" in str(path):
        text = re.sub(r"\\f[BIR]|\\fP", "", text).replace(r"\-", "-").replace(r"\&", "")
    return text


def is_text(path):
    """True for what people read."""
    parts = str(path)
    return path.is_file() and ("/man/" in parts or "/systemd/" in parts or parts.startswith("/etc/")
                               or ("/share/doc/" in parts and "LICENSES" not in parts and "changelog" not in parts))


def missing(path):
    """Yields the names in a file that are not there."""
    text = text_of(path)
    for name in ABSOLUTE.findall(text):
        if not ELSEWHERE.search(name) and not pathlib.Path(name).exists():
            yield name
    if path.suffix == ".md":
        yield from (name for name in LINK.findall(text) if not (path.parent / name).exists())
    for match in PAGE.finditer(text):
        name, section = match[1] or match[3], match[2] or match[4]
        folder = pathlib.Path(f"/usr/share/man/man{section}")
        if name.startswith("iwarp") and not list(folder.glob(f"{name}.{section}*")):
            yield f"{name}({section})"
    yield from (match[0] for match in SOURCE.finditer(text) if not match[1])


def main():
    listed = subprocess.run(["dpkg", "-L", *sys.argv[1:]], check=True, capture_output=True, text=True).stdout
    texts = [path for path in map(pathlib.Path, sorted(set(listed.split("\n")) - {""})) if is_text(path)]
    wrong = [f"{path}: {name}" for path in texts for name in missing(path)]
    print("\n".join(wrong))
    kinds = [sum(part in str(path) for path in texts) for part in ("/man/", ".md", ".service", "/examples/", "/etc/")]
    if wrong or not all(kinds):
        sys.exit(f"{len(wrong)} names of files that are not installed; texts of each kind: {kinds}")


main()
