#!/usr/bin/env python3
"""licenses.py PACKAGE…: prints the crates that these packages of the workspace link, with their license texts.

A crate that only a build script, a procedural macro or a test uses is not in a program, and is left out.
"""

import json
import pathlib
import subprocess
import sys


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    target = next(line.split()[1] for line in host.splitlines() if line.startswith("host:"))
    result = subprocess.run(command + ["--filter-platform", target], check=True, capture_output=True, text=True)
    return json.loads(result.stdout)


def linked(data, names):
    """Returns the packages that are in the programs of these packages."""
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    todo = [id for id in data["workspace_members"] if packages[id]["name"] in names]
    if len(todo) != len(names):
        sys.exit(f"licenses.py: not all of {names} are packages of the workspace")
    seen = set()
    while todo:
        id = todo.pop()
        macro = any("proc-macro" in target["kind"] for target in packages[id]["targets"])
        if id in seen or macro:
            continue
        seen.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    foreign = [packages[id] for id in seen if packages[id]["source"]]
    return sorted(foreign, key=lambda package: (package["name"], package["version"]))


def texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    names = ("license", "licence", "copying", "copyright", "notice", "unlicense")
    found = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name.lower().startswith(names)]
    return [path.read_text(errors="replace").strip() for path in found]


def main():
    crates = linked(metadata(), sys.argv[1:])
    print("The programs contain these crates, besides Ironwarp's own:\n")
    users = {}
    for package in crates:
        print(f"  {package['name']} {package['version']}: {package['license']}")
        for text in texts(package):
            users.setdefault(text, []).append(package["name"])
    for text, names in users.items():
        print("\n" + "-" * 78 + f"\n{', '.join(names)}:\n\n{text}")


main()
