#!/bin/bash
# Somebody on the link claims an honest peer's address: forged ARP replies and announcements, forged neighbor
# advertisements. The peer's connection must go on as if nothing had happened. A peer that really moves to another station
# address, and says so, must be followed within the time that docs/deviations.md promises. `make forged-arp`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-forged
ahead_of_others
.ci/hugepages.sh 320 || true
sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e 's#^hugepages *=.*#hugepages = "prefer"#' configs/tap.toml >"$LAB/forged.toml"
daemon_start "$LAB/forged.toml" || exit 1
kernel_side iw0

mac() { ctl -j status | jq -r '.ports[0].mac'; }
counter() { ctl -j stats | jq "[.groups[].counters[] | select(.name == \"$1\") | .value] | add"; }
# The honest peer's rate before, during and after, kB/s, and the longest time in which nothing came.
run() { # KIND
    in_ns timeout 30 python3 dataplane/tests/forged.py iw0 "$(mac)" "$1" >"$LAB/$1.json" || return 1
    jq -r '"      \(.kind): \(.before / 1e3 | floor) kB/s before, \(.during / 1e3 | floor) during, \(.after / 1e3 | floor) after; "
        + "nothing for \(.silent_ms) ms at most"' "$LAB/$1.json" | tee -a "$LAB/rates"
}
# Before a claim was checked, one forged frame silenced the connection for 6 s.
unharmed() { # KIND
    run "$1" && jq -e '.during >= .before / 2 and .after >= .before / 2 and .silent_ms < 500' "$LAB/$1.json"
}
# 0.65 s to find it, and what retransmission timeouts add to that.
followed() { # KIND
    run "$1" && jq -e '.after >= .before / 2 and .silent_ms < 2000' "$LAB/$1.json"
}
refuted() { # claims were made, and none believed
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
