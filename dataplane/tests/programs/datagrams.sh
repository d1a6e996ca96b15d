# Rows of datagrams, of UCX's protocols and of MPI, which begin with datagrams; a part of programs.sh.
# unconnected PROGRAM OPTIONS…: datagrams of a program that asks for neither an identity nor for flow control
unconnected() {
    local program=$1
    shift
    READY="hears 18515" \
        row "$program $*, datagrams, $of" pair "$program" "$@" -- "$program" "$@" 127.0.0.1
}
datagrams() {
    local options
    for options in "" "-s 1" -e "-n 1"; do
        # shellcheck disable=SC2086
        unconnected ibv_ud_pingpong -g 0 -s 1024 $options
    done
    for options in "" "-s 1" "-I 64 -s 64" -e; do
        # shellcheck disable=SC2086
        unconnected ib_send_lat -d iwarp0 -c UD -n 1000 $options
    done
    for options in "" "-s 64 -I 64" -b; do
        # shellcheck disable=SC2086
        roce ib_send_bw -d iwarp0 -c UD -n 4000 $options
    done
    transports_of ud_verbs am_lat -s 8
    transports_of ud_verbs am_bw -s 800 -D bcopy
    transports_of ud_verbs am_lat -s 40 -D short
    for options in "tag_lat -s 8" "tag_bw -s 1000000" "stream_bw -s 30000" "ucp_put_bw -s 65536" "ucp_get -s 4096" \
        "ucp_am_bw -s 100000" "ucp_fadd -s 8"; do
        # shellcheck disable=SC2086
        protocols $options
    done
}
# protocols TEST OPTIONS…: UCX with its own choice of transports, but for those within a machine
protocols() {
    local args=(env UCX_TLS=ib UCX_NET_DEVICES=iwarp0:1 ucx_perftest -n 1000 -t "$@")
    READY="hears 13337" \
        row "--roce UCX_TLS=ib ucx_perftest -t $*, $of" pair --roce "${args[@]}" -- --roce "${args[@]}" 127.0.0.1
}
# MPI, one rank on each daemon.
ranks() { # MPI IDENTITY OPTIONS…
    local mpi=$1 run=("$RUN")
    [ -z "$2" ] || run+=("$2")
    local first=("${run[@]}" --socket "$LAB/0.verbs" "$LAB/ranks.$mpi")
    local second=("${run[@]}" --socket "$LAB/$CLIENT.verbs" "$LAB/ranks.$mpi")
    in_ns env FI_UNIVERSE_SIZE=16 UCX_TLS=ib UCX_NET_DEVICES=iwarp0:1 timeout -k 5 120 "mpirun.$mpi" "${@:3}" \
        -n 1 "${first[@]}" : -n 1 "${second[@]}" >"$LAB/ranks.out" 2>&1 &&
        grep 'all 98 messages are right' "$LAB/ranks.out" || { tail -n 20 "$LAB/ranks.out"; return 1; }
}
messages() { # Debian's Open MPI has libfabric and UCX; its MPICH has UCX
    local mpi open=(--allow-run-as-root)
    for mpi in openmpi mpich; do
        command -v "mpirun.$mpi" "mpicc.$mpi" >/dev/null || { echo "not installed: $mpi"; continue; }
        check "ranks.c builds for $mpi" "mpicc.$mpi" -O1 -Wall -Wextra -Werror -o "$LAB/ranks.$mpi" \
            dataplane/tests/programs/ranks.c
        if [ "$mpi" = mpich ]; then
            check "--roce MPICH over UCX, two ranks, 1 B to 4 MiB, $of" ranks mpich --roce
            continue
        fi
        check "Open MPI over libfabric, two ranks, 1 B to 4 MiB, $of" ranks openmpi "" "${open[@]}" --mca pml cm \
            --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm'
        check "--roce Open MPI over UCX, two ranks, 1 B to 4 MiB, $of" ranks openmpi --roce "${open[@]}" --mca pml ucx \
            --mca pml_ucx_tls any --mca pml_ucx_devices any
    done
}
