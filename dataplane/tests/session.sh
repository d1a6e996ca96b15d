#!/bin/bash
# session.sh: README.md's session without root, in namespaces of an unprivileged user: every command that the document
# shows, in its order. `make session`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-session

# shown PROMPT SECTION: prints the commands behind this prompt in a section of README.md.
shown() { sed -n "/^###* $2\$/,/^##/{s/^$1 //p}" README.md; }

# A user who owns nothing but a folder with what README.md names.
NOBODY=(setpriv --reuid 65534 --regid 65534 --clear-groups --)
mkdir -p "$LAB/home/target/release" "$LAB/home/configs"
cp "$IWARPD" "$IWARPCTL" "$LAB/home/target/release/"
cp configs/tap.toml "$LAB/home/configs/"
chmod 755 "$LAB"
chown -R 65534:65534 "$LAB/home"

cp dataplane/tests/session-inside.sh "$LAB/home/session"
shown '#' 'Without root' | sed 's/ &$/ >iwarpd.log 2>\&1 \&/' >"$LAB/home/begin"
shown '#' 'A session' >"$LAB/home/session.commands"
enter=$(shown '\$' 'Without root')

session() {
    (cd "$LAB/home" && env -i PATH="$PATH" TERM=xterm HOME="$LAB/home" "${NOBODY[@]}" $enter session)
}
check "README.md shows one command to enter and $(wc -l <"$LAB/home/session.commands") of the session" \
    test "$(wc -l <<<"$enter")" = 1 -a "$(wc -l <"$LAB/home/session.commands")" -gt 5
check "an unprivileged user runs the session of README.md" session
score
