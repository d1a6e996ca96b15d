#!/usr/bin/env python3
"""pages.py FOLDER FILE…: copies documents and examples into FOLDER, with the names that files have once installed.

Documents name files of the source tree. Those that a package installs are named by their installed paths, programs by
their names; the others are marked as files of the source, and links to pages that are not installed become text.
"""

import pathlib
import re
import sys

EXAMPLES = "/usr/share/doc/ironwarp/examples"
INSTALLED = [
    (r"configs/(iwarp-nfsd|iwarpd)\.service", r"/lib/systemd/system/\1.service"),
    (r"configs/(?:monitoring/)?([a-z_]+\.(?:toml|json|yml))", EXAMPLES + r"/\1"),
    (r"clients/verbs/examples/(wait\.(?:c|py))", EXAMPLES + r"/\1"),
    (r"dataplane/tests/siw/(\{[a-z,]+\}\.c)", EXAMPLES + r"/siw/\1"),
    (r"dataplane/tests/siw(?![\w/.])", EXAMPLES + "/siw"),
    (r"(?:apps/)?docs/([a-z-]+\.md)", r"\1"),
    (r"target/(?:release|trained)/(iwarp[a-z-]*|lab)", r"\1"),
]
# Not part of a longer path, nor of an installed one.
START = r"(?<![\w/.-])"
SOURCE = re.compile(START + r"`((?:benches|configs|dataplane|mgmt-cli|rdma|tcp-stack)/[^`]+)`")
LINK = re.compile(r"\[([^\]]+)\]\((?:[a-z0-9./-]*/)?([a-z0-9-]+\.md)(#[^)]*)?\)")


def installed(text, names):
    """Returns the text of a page as it is installed beside the pages with these names."""
    for pattern, name in INSTALLED:
        text = re.sub(START + pattern, name, text)
    text = SOURCE.sub(r"`\1` (source)", text)
    # All pages lie in one folder.
    return LINK.sub(lambda link: f"[{link[1]}]({link[2]}{link[3] or ''})" if link[2] in names else link[1], text)


def main():
    folder, files = pathlib.Path(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]]
    names = {file.name for file in files}
    for file in files:
        (folder / file.name).write_text(installed(file.read_text(encoding="utf-8"), names), encoding="utf-8")


main()
