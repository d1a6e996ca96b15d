# The shell of session.sh, in the namespaces of a user without rights: runs the commands in the files begin and
# session.commands, and fails at the first that does. What repeats until it is interrupted runs for two seconds, on a
# terminal.
set -eu
ready() { target/release/iwarpctl status >status 2>&1 || [ $? = 6 ]; }
run() {
    echo "# $1"
    case $1 in
        *--watch | *" top") timeout -s INT 2 script -qec "$1" shown </dev/null >/dev/null 2>&1 || [ $? = 124 ] ;;
        *" status") eval "$1" || [ $? = 6 ] ;;
        *) eval "$1" ;;
    esac
}
while read -r command; do run "$command"; done <begin
daemon=$!
trap 'kill "$daemon" 2>/dev/null || true' EXIT
for _ in $(seq 100); do ready && break; sleep 0.1; done
ready || { cat iwarpd.log; exit 1; }
while read -r command; do run "$command"; done <session.commands
cmp <(head -c 16M backup.img) copy.img
kill "$daemon"
wait "$daemon"
