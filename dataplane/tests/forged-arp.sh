#!/bin/bash
# An attacker on the link claims an honest peer's address with forged ARP replies and announcements, and forged neighbor
# advertisements. The peer's connection must continue undisturbed. A peer that really moves to another link address and
# announces it must be followed within the time that docs/deviations.md states. `make forged-arp`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-forged
ahead_of_others
.ci/hugepages.sh 320 || true
sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e 's#^hugepages *=.*#hugepages = "prefer"#' configs/tap.toml \
    >"$LAB/forged.toml"
daemon_start "$LAB/forged.toml" || exit 1
kernel_side iw0

mac() { report | jq -r '.ports[0].mac'; }
counter() { ctl -j stats | jq "[.groups[].counters[] | select(.name == \"$1\") | .value] | add"; }
# Prints the honest peer's rate before, during and after, kB/s, and its longest silence.
run() { # KIND
    in_ns timeout 30 python3 dataplane/tests/forged.py iw0 "$(mac)" "$1" >"$LAB/$1.json" || return 1
    jq -r '"      \(.kind): \(.before / 1e3 | floor) kB/s before, \(.during / 1e3 | floor) during, "
        + "\(.after / 1e3 | floor) after; nothing for \(.silent_ms) ms at most"' "$LAB/$1.json" |
        tee -a "$LAB/rates"
}
# Without the check of a claim, one forged frame silenced the connection for 6 s.
unharmed() { # KIND
    run "$1" && jq -e '.during >= .before / 2 and .after >= .before / 2 and .silent_ms < 500' "$LAB/$1.json"
}
# 0.65 s to detect the move, plus retransmission timeouts.
followed() { # KIND
    run "$1" && jq -e '.after >= .before / 2 and .silent_ms < 2000' "$LAB/$1.json"
}
refuted() { # claims were made, and none was accepted
    local contested upheld moved
    contested=$(counter neighbors_contested) upheld=$(counter neighbors_upheld) moved=$(counter neighbors_moved)
    echo "$contested claims contested, $upheld upheld, $moved moved"
    [ "$contested" -ge 4 ] && [ "$upheld" = "$contested" ] && [ "$moved" = 0 ]
}
moved() { [ "$(counter neighbors_moved)" -ge 2 ]; }

check "forged ARP replies harm nobody" unharmed reply
check "nor do forged announcements (gratuitous ARP)" unharmed gratuitous
check "nor forged advertisements, as if solicited" unharmed solicited
check "nor forged advertisements to all nodes" unharmed unsolicited
check "every claim was checked, and none believed" refuted
check "a peer that moves is followed, IPv4" followed moves4
check "a peer that moves is followed, IPv6" followed moves6
check "both moves were counted" moved
cat "$LAB/rates"
check "SIGTERM ends it cleanly" daemon_stop
score
