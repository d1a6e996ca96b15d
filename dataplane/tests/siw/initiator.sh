# shellcheck shell=bash
# Cases with the guest's siw as the responder. Sourced by run.sh.

# Runs `iwarpctl remote`, over the kernel's TCP, against a region that the guest's siw serves.
suite_initiator() {
    local size=3000001
    guest_run siw "mkfifo /tmp/in; \
iwserver --listen 10.77.0.3 --port 7400 --region theirs:4194304:rw <>/tmp/in >/tmp/out 2>&1 &"
    try "siw serves" guest_run siw "for i in \$(seq 50); do grep -q LISTENING /tmp/out && break; sleep 0.1; done; \
cat /tmp/out; grep -q LISTENING /tmp/out"
    head -c $size /dev/urandom >"$LAB/file"
    try "iwarpctl puts" remote put "$LAB/file" 10.77.0.3:7400/theirs+5
    try "iwarpctl gets" remote get 10.77.0.3:7400/theirs+5 "$LAB/got" --length $size
    try "the same bytes" cmp "$LAB/file" "$LAB/got"
}
