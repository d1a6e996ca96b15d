# shellcheck shell=bash
# Third-party test suites of file systems, in the guest: fsx and pjdfstest, from crates.io. Source it behind lab.sh.
#
#   FSX_OPERATIONS   operations of each run of fsx (default 2000)

FSX_OPERATIONS=${FSX_OPERATIONS:-2000}

# fsx reads and writes a file by calls and by mappings, truncates it, closes and reopens it, and compares each byte that
# it reads with what it has written. By NFS 3 and 4.1 a client has no fallocate, no holes to punch, no copy_file_range.
fsx_config() {
    cat <<'TOML'
flen = 1048576
[opsize]
max = 262144
[weights]
close_open = 1
invalidate = 1
fsync = 1
fdatasync = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 5
TOML
}

# pjdfstest checks each system call on files against POSIX. A test that is listed here must fail, any other must not.
pjdfstest_config() { # VERSION
    cat <<TOML
[features]
utimensat = {}
utime_now = {}
rename_ctime = {}
[settings]
naptime = 0.05
expected_failures = [$(pjdfstest_failures "$1")]
[dummy_auth]
entries = [["tests", "tests"], ["nobody", "nogroup"]]
TOML
}
pjdfstest_failures() { # VERSION: names in quotes, with commas
    awk -v version="$1" '!/^#/ && ($2 == version || $2 == "all") {printf "\"%s\", ", $1}' \
        apps/tests/nfs/pjdfstest.known
}

put() { # FILE: standard input becomes a file of the guest
    local text part
    text=$(gzip -9 | base64 -w 0)
    guest 30 ": >/tmp/put" || return 1
    for ((part = 0; part < ${#text}; part += 2000)); do
        guest 30 "printf %s ${text:part:2000} >>/tmp/put" || return 1
    done
    guest 30 "base64 -d /tmp/put | gunzip >$1"
}

suite_fsx() { # VERSION
    local seed
    check "NFS $1: fsx is configured" put /tmp/fsx.toml < <(fsx_config)
    for seed in 1 2 3; do
        check "NFS $1: fsx, $FSX_OPERATIONS operations, seed $seed" guest 1200 \
            "fsx -f /tmp/fsx.toml -N $FSX_OPERATIONS -S $seed -P /tmp /mnt/fsx >/tmp/fsx 2>&1; code=\$?;
                tail -n 20 /tmp/fsx; rm -f /mnt/fsx; (exit \$code)"
    done
}

suite_pjdfstest() { # VERSION
    check "NFS $1: pjdfstest is configured" put /tmp/pjdfstest.toml < <(pjdfstest_config "$1")
    local run='mkdir -m 777 /mnt/pjd; pjdfstest -c /tmp/pjdfstest.toml -p /mnt/pjd >/tmp/pjdfstest 2>&1; code=$?'
    check "NFS $1: pjdfstest: nothing fails but what nfs/pjdfstest.known lists" guest 3000 \
        "$run; rm -rf /mnt/pjd; grep -EA 2 'FAILED|UNEXPECTED|^error|^Error' /tmp/pjdfstest; (exit \$code)"
    guest 60 'grep "^Summary" /tmp/pjdfstest' | sed 's/^/      /'
    [ -z "${PJDFSTEST_LOG:-}" ] || guest 120 'cat /tmp/pjdfstest' >"$PJDFSTEST_LOG-$1"
}
