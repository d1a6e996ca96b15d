# shellcheck shell=dash Serves a guest's control line, which is standard input and standard output: each line read is
# `ID LENGTH COMMAND`, answered by `<SOH>GOT ID`, the command's output and `<SOH>EXIT ID CODE`. A line whose command has
# not that length, or whose ID has not 16 digits, is answered by `<SOH>AGAIN`, and a command that comes twice is not run
# twice: an emulated serial line loses characters. Commands run in one shell, so that a later one can `wait` for what an
# earlier one left in the background. The guest's first process sources this file when the guest is ready.
printf '\001READY\n'
last=none code=0
while IFS=' ' read -r id length command; do
    if [ "${#command}" != "$length" ] || [ "${#id}" != 16 ]; then
        printf '\001AGAIN\n'
        continue
    fi
    if [ "$id" != "$last" ]; then
        printf '\001GOT %s\n' "$id"
        eval "$command" </dev/null
        code=$? last=$id
    fi
    printf '\001EXIT %s %s\n' "$last" "$code"
done
