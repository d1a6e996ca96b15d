#!/bin/bash
# wheel.sh --pack: packs the Python package ironwarp, of what was compiled for the tests, in $BUILT/wheels.
# wheel.sh WHEEL: installs the wheel in an environment of its own, checks the types, and runs the tests, as a user
# without a privilege. `make python` does both.
#
#   PYTHON           interpreter, 3.11 or newer, with its module venv, default /usr/bin/python3
#   IRONWARP_CACHE   where programs of PyPI are kept (250 MB), default /var/cache/ironwarp
source "$(dirname "$0")/lib.sh"

PYTHON=${PYTHON:-/usr/bin/python3}
CARGO=${CARGO:-cargo}
BUILT=${BUILT:-target/tests}
SOURCE=clients/python
PROFILE=$(basename "$BUILT")
[ -n "${1:-}" ] || { echo "usage: $0 --pack | WHEEL" >&2; exit 2; }

"$PYTHON" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' ||
    { echo "$0: $PYTHON is missing, older than 3.11, or without venv: .ci/deps.sh python3-venv" >&2; exit 1; }

# The programs of PyPI, once for each list of them.
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
TOOLS=${IRONWARP_CACHE:-/var/cache/ironwarp}/python-$version-$(cksum <$SOURCE/requirements.txt | cut -d ' ' -f 1)
mkdir -p "$(dirname "$TOOLS")"
exec 9>"$TOOLS.lock"
flock 9
if [ ! -f "$TOOLS/complete" ]; then
    rm -rf "$TOOLS"
    { "$PYTHON" -m venv "$TOOLS" && "$TOOLS/bin/pip" install --quiet -r $SOURCE/requirements.txt; } || {
        echo "$0: PyPI has not sent $SOURCE/requirements.txt: the Python package is not tested" >&2
        exit 1
    }
    touch "$TOOLS/complete"
fi
exec 9>&-

# maturin compiles with `cargo rustc` for the package alone, whose crates then have other features than those of the
# workspace. This cargo finds all of them compiled.
pack() {
    local program place
    program=$(command -v "$CARGO") || return 1
    place=$(mktemp -d)
    cat >"$place/cargo" <<SHIM
#!/bin/bash
[ "\$1" = rustc ] || exec "$program" "\$@"
unset PYTHON_SYS_EXECUTABLE \${!PYO3_*}
export PATH="$PATH"
exec "$program" build --locked --profile $PROFILE ${SELECTION:---workspace --lib --bins --examples} \\
    --message-format json-render-diagnostics
SHIM
    chmod 755 "$place/cargo"
    rm -rf "$BUILT/wheels"
    PATH="$place:$PATH" "$TOOLS/bin/maturin" build --manifest-path $SOURCE/Cargo.toml --profile "$PROFILE" --locked \
        --interpreter "$PYTHON" --out "$BUILT/wheels"
    rm -r "$place"
    [ -f "$BUILT"/wheels/ironwarp-*.whl ]
}
if [ "$1" = --pack ]; then
    pack
    exit
fi

WHEEL=$(realpath "$1")
lab_open ironwarp-wheel
chmod 755 "$LAB"
# The metadata of the wheel name the version of the workspace, the license and the oldest Python, and no other package.
# The name of the file has the tag of Linux.
complete() {
    local metadata
    metadata=$(unzip_p '*/METADATA') || return 1
    grep -qx "Version: $(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)" <<<"$metadata" &&
        grep -qx 'License-Expression: MIT OR Apache-2.0' <<<"$metadata" &&
        grep -qx 'Requires-Python: >=3.11' <<<"$metadata" &&
        ! grep '^Requires-Dist:' <<<"$metadata" | grep -v 'extra ==' &&
        [[ $(basename "$WHEEL") == ironwarp-*-cp311-abi3-manylinux*_x86_64.whl ]] && return
    echo "$WHEEL: $metadata"
    return 1
}
unzip_p() {
    "$PYTHON" -c 'import fnmatch, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
print(wheel.read(*fnmatch.filter(wheel.namelist(), sys.argv[2])).decode())' "$WHEEL" "$1"
}
installed() {
    "$PYTHON" -m venv --without-pip "$LAB/venv" || return 1
    "$TOOLS/bin/pip" --quiet --python "$LAB/venv/bin/python" install --no-index --no-deps "$WHEEL" || return 1
    # The test runner and numpy.
    echo "$TOOLS/lib/python$version/site-packages" >"$LAB/venv/lib/python$version/site-packages/tools.pth"
    cp -r "$SOURCE" docs/python.md "$IWARPCTL" "$LAB/" && chmod -R a+rX "$LAB"
}
python() {
    (cd "$LAB/python" && ip netns exec "$NS" "${NOBODY[@]}" env HOME="$LAB/home" PYTHONDONTWRITEBYTECODE=1 \
        DOCUMENT="$LAB/python.md" IWARPCTL="$LAB/iwarpctl" "$LAB/venv/bin/python" "$@")
}
types() {
    python -m mypy || return 1
    MYPYPATH=python python -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist tests/stubtest-allowed.txt \
        --ignore-unused-allowlist ironwarp
}
tests() {
    python -X faulthandler -m pytest -p no:cacheprovider --basetemp "$LAB/home/temporary" >"$LAB/tests.out" 2>&1 ||
        { cat "$LAB/tests.out"; return 1; }
}

check "the wheel states what it is, and needs no other package" complete
check "the wheel is installed in a fresh environment" installed
mkdir "$LAB/home"
chown -R 65534:65534 "$LAB/home" "$LAB/python"
check "the types of package and tests are right, and the stubs are those of the library" types
check "the tests pass as a user without a privilege" tests
grep -a ' passed' "$LAB/tests.out"
score
