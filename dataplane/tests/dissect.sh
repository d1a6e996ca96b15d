# Functions that check a capture file with tshark. Sourced after lib.sh.

# tshark would decode our Sends as other protocols (RPC over RDMA, SMB Direct) and report them as malformed. An invalid
# filter is an error, not an empty result.
dissect() { tshark -n --disable-protocol rpcordma --disable-protocol smb_direct -o ip.check_checksum:TRUE \
    -o tcp.check_checksum:TRUE -r "$1" "${@:2}" 2>"$LAB/tshark.err" || { cat "$LAB/tshark.err" >&2; return 1; }; }
count() { local lines; lines=$(dissect "$1" -Y "$2") || exit 1; printf '%s' "$lines" | grep -c .; }
at_least() { # N FILE FILTER
    local seen
    seen=$(count "$2" "$3") || [ -n "$seen" ] || return 1
    echo "$seen frames match $3"
    [ "$seen" -ge "$1" ]
}
none() { # FILE FILTER
    local seen
    seen=$(count "$1" "$2") || [ -n "$seen" ] || return 1
    [ "$seen" -eq 0 ] || { echo "$seen frames match $2"; dissect "$1" -Y "$2" | head -5; return 1; }
}

crcs_right() { # N FILE: tshark computes each FPDU's CRC32c itself, of more than N
    local verdicts good all
    verdicts=$(dissect "$2" -Y iwarp_mpa.fpdu -V | grep -o 'CRC check: .*') || return 1
    all=$(grep -c . <<<"$verdicts")
    good=$(grep -c '(Good CRC32)$' <<<"$verdicts")
    echo "$good of $all CRCs are right"
    [ "$all" -gt "$1" ] && [ "$good" = "$all" ]
}
