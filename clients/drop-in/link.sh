#!/bin/bash
# link.sh LIBRARY FOLDER: links the static library LIBRARY to the shared object libibverbs.so.1 in FOLDER, which is
# librdmacm.so.1, too. `symbols.txt` says what it exports. A cdylib cannot do that: rustc passes the linker a version
# script of its own.
set -euo pipefail
library=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The version script.
awk '!/^#/ && !/@/ { symbols[$2] = symbols[$2] "        " $1 ";\n" }
    END { for (version in symbols) printf "%s {\n    global:\n%s};\n", version, symbols[version];
          print "HIDDEN { local: *; };" }' symbols.txt >"$work/exports.map"

# Functions of calls that iWARP does not have: each fails in the convention of its call. A version script cannot name a
# version other than the default; the assembler's .symver does.
awk 'BEGIN { print "#include <errno.h>"
             value["null"] = "(errno = EOPNOTSUPP, 0)"; value["minus"] = "(errno = EOPNOTSUPP, -1)"
             value["error"] = "EOPNOTSUPP"; value["zero"] = "0"; value["nothing"] = "0" }
    /^#/ || $3 == "rust" { next }
    $3 == "data" { printf "char %s;\n", $1; next }
    !($3 in value) { print "link.sh: " $0 > "/dev/stderr"; exit 1 }
    { name = $1 }
    sub("@", "", $2) { name = "iwarp_" NR; printf "__asm__(\".symver %s, %s@%s\");\n", name, $1, $2 }
    { printf "long %s(void) { return %s; }\n", name, value[$3] }' symbols.txt >"$work/fails.c"

cc -O2 -fPIC -w -c "$work/fails.c" -o "$work/fails.o"
mapfile -t wanted < <(awk '!/^#/ && $3 == "rust" { print "-Wl,--undefined=" $1 }' symbols.txt)
cc -shared -o "$work/libibverbs.so.1" -Wl,-soname,libibverbs.so.1 -Wl,--version-script="$work/exports.map" \
    -Wl,--gc-sections -Wl,-z,relro,-z,now "${wanted[@]}" "$work/fails.o" "$library" -lgcc_s -lm -lpthread -ldl -lc
install -m 644 "$work/libibverbs.so.1" "$folder/libibverbs.so.1"
ln -sf libibverbs.so.1 "$folder/librdmacm.so.1"
# For programs that are linked with the library: `cc … -L FOLDER -libverbs -lrdmacm -Wl,-rpath,FOLDER`.
ln -sf libibverbs.so.1 "$folder/libibverbs.so"
ln -sf librdmacm.so.1 "$folder/librdmacm.so"
