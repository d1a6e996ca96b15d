#!/bin/sh
# hugepages.sh MIB: sees to it that so many MiB of 2 MiB hugepages are free, if the machine gives them.
# It never takes pages away, and says what it found; the caller decides what to do without.
set -u

want=$(($1 / 2))
pool=/sys/kernel/mm/hugepages/hugepages-2048kB
[ -w "$pool/nr_hugepages" ] || { echo "hugepages: cannot be reserved here (not root, or no 2 MiB pages)"; exit 1; }
free=$(cat "$pool/free_hugepages")
if [ "$free" -lt "$want" ]; then
    echo $(($(cat "$pool/nr_hugepages") + want - free)) >"$pool/nr_hugepages" 2>/dev/null
    free=$(cat "$pool/free_hugepages")
fi
echo "hugepages: $((free * 2)) MiB free"
[ "$free" -ge "$want" ]
