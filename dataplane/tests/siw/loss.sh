# shellcheck shell=bash
# A bridge of the namespace that loses frames. Source it behind ../lib.sh.

# loss_on ONE_IN: drops one of ONE_IN frames of any kind that cross the bridge, in both directions.
loss_on() {
    loss_one_in=$1
    in_ns nft -f - <<NFT
table bridge loss {
    counter seen { }
    counter lost { }
    chain forward {
        type filter hook forward priority 0; policy accept;
        counter name seen
        numgen random mod $1 == 0 counter name lost drop
    }
}
NFT
}
loss_off() { in_ns nft delete table bridge loss; }
frames() { in_ns nft list counter bridge loss "$1" | sed -n 's/.*packets \([0-9]*\).*/\1/p'; }
loss_happened() {
    local seen lost
    seen=$(frames seen) lost=$(frames lost)
    echo "RESULT $lost of $seen frames lost"
    [ "$lost" -ge 100 ] && [ $((lost * loss_one_in)) -lt $((seen * 2)) ] && [ $((lost * loss_one_in * 2)) -gt "$seen" ]
}
