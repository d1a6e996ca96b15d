#!/usr/bin/env bash
# run.sh [quick|all|JOB…]: iwarpd on the cards that QEMU emulates, each in a guest of its own, two guests at a time.
# `make pci` and `make pci-quick`; needs root. A JOB is the arguments of card.sh, in quotes. Last line: `N passed, N
# failed`.
#
#   IWARPD, IWARPCTL   the programs (default: those in BUILT, target/release)
#   PCI_GUESTS         guests at a time (default: 2)
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1

CARDS=(e1000e igb virtio vmxnet3)
quick=("one virtio vfio-pci quick" "one igb vfio-pci quick" "one e1000e uio_pci_generic quick"
    "one vmxnet3 vfio-pci quick")
all=("two e1000e virtio vfio-pci" "two igb vmxnet3 vfio-pci" "workers igb port" "workers virtio,queues=2 port"
    "workers e1000e software" "workers vmxnet3 software" "unready" "siw e1000e" "siw virtio")
for card in "${CARDS[@]}"; do
    all+=("one $card vfio-pci" "one $card uio_pci_generic" "vlan $card")
done

case ${1:-all} in
    all) jobs=("${all[@]}") ;;
    quick) jobs=("${quick[@]}") ;;
    *) jobs=("$@") ;;
esac
PCI_IMAGE=$(dataplane/tests/pci/prepare.sh) || exit 1
export PCI_IMAGE
results=$(mktemp -d "${TMPDIR:-/tmp}/ironwarp-pci.XXXXXX")
trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT TERM HUP

# needs_newer JOB: it needs the QEMU that this machine does not have.
needs_newer() { [ -z "$(cat "$PCI_IMAGE/qemu")" ] && [[ $1 == *igb* || $1 == *uio_pci_generic* ]]; }

# run_job K JOB: what it says goes out when it ends, all at once.
run_job() {
    # shellcheck disable=SC2086 # a list
    dataplane/tests/pci/card.sh $2 >"$results/$1" 2>&1 ||
        { echo "$2" >>"$results/failed"; sed -i "1i --- $2" "$results/$1"; }
    flock "$results" cat "$results/$1"
}

begin=$SECONDS running=0
for k in "${!jobs[@]}"; do
    if needs_newer "${jobs[k]}"; then
        echo "refused: ${jobs[k]}: it needs QEMU 8 or newer, and $(cat "$PCI_IMAGE/no-igb")"
        continue
    fi
    [ $running -lt "${PCI_GUESTS:-2}" ] || { wait -n; running=$((running - 1)); }
    run_job "$k" "${jobs[k]}" &
    running=$((running + 1))
done
wait
sum() {
    cat "$results"/[0-9]* 2>/dev/null | sed -n "s/^\([0-9]*\) passed, \([0-9]*\) failed\$/\\$1/p" |
        awk '{sum += $1} END {print sum + 0}'
}
echo "${#jobs[@]} jobs in $((SECONDS - begin)) s"
[ ! -e "$results/failed" ] || sed 's/^/failed: /' "$results/failed"
echo "$(sum 1) passed, $(sum 2) failed"
[ ! -e "$results/failed" ] && [ "$(sum 1)" -gt 0 ] && [ "$(sum 2)" = 0 ]
