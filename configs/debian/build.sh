#!/bin/bash
# build.sh PROGRAMS SHARE OUT: makes the Debian packages ironwarp, ironwarp-client, ironwarp-dev and ironwarp-bench in
# the folder OUT, from built programs and from the manual pages and completions that `make man` writes. Fails if
# lintian reports an error.
#
#   MAINTAINER    "Name <address>" of who is responsible for the packages; who publishes them sets it
#   COMPRESSION   options of dpkg-deb: `-Zgzip -z1` is fast; default: Debian's, which is small
set -euo pipefail
export LC_ALL=C.UTF-8
programs=$(realpath "$1") share=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
cd "$(dirname "$0")/../.."
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
seconds=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
maintainer=${MAINTAINER:-Ironwarp <packages@ironwarp.invalid>}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/ironwarp-$version
mkdir -p "$stage"/{bin,etc/iwarpd,docs,examples/siw,client,pkgconfig}
cp "$programs"/{iwarpd,iwarpctl,iwarp-nfsd,iwarp-run,iwarp-bench} "$stage/bin/"
cp -r "$programs/lib" "$stage/lib"
for file in configs/debian/*.pc; do
    sed "s/@VERSION@/$version/" "$file" >"$stage/pkgconfig/$(basename "$file")"
done
cp -r "$share" "$stage/share"
cp configs/debian/{iwarpd,nfsd}.toml "$stage/etc/iwarpd/"
configs/debian/pages.py "$stage/examples" configs/*.toml configs/monitoring/* clients/verbs/examples/wait.{c,py}
cp dataplane/tests/siw/{client,cycle,violations,bulk,conn,region}.c \
    dataplane/tests/siw/{cycle,violations,bulk,conn,region}.h "$stage/examples/siw/"
configs/debian/pages.py "$stage/docs" apps/docs/nfs.md docs/{applications,programs,region-service}.md \
    docs/{installing,configuring,observing,hardening,control-socket}.md \
    docs/{limits,deviations,nics,glossary,remote,terminate,verbs}.md
configs/debian/licenses.py \
    dataplane mgmt-cli iwarp-nfsd iwarp-run iwarp-drop-in benches >"$stage/THIRD-PARTY-LICENSES"
configs/debian/licenses.py mgmt-cli iwarp-run iwarp-drop-in >"$stage/client/THIRD-PARTY-LICENSES"

mkdir "$stage/debian"
cp configs/debian/{control,rules,ironwarp.*,ironwarp-client.*,ironwarp-dev.*,ironwarp-bench.*} "$stage/debian/"
cp configs/iwarpd.service "$stage/debian/ironwarp.iwarpd.service"
cp configs/iwarp-nfsd.service "$stage/debian/ironwarp.iwarp-nfsd.service"
sed -i "s/@MAINTAINER@/$maintainer/" "$stage/debian/control"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
    printf 'Upstream-Name: Ironwarp\nComment: THIRD-PARTY-LICENSES names the crates in the programs, with their '
    printf 'licenses.\n\nFiles: *\n%s\nLicense: Expat or Apache-2.0\n\n' \
        "$(sed -n 's/^Copyright (c) /Copyright: /p' LICENSE-MIT)"
    printf 'License: Expat\n'
    sed '1,/^Permission/{/^Permission/!d}; s/^$/./; s/^/ /' LICENSE-MIT
    printf '\nLicense: Apache-2.0\n On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$stage/debian/copyright"
{
    printf 'ironwarp (%s-1) unstable; urgency=medium\n\n  * Release %s.\n\n' "$version" "$version"
    printf ' -- %s  %s\n' "$maintainer" "$(date -R -d "@$seconds")"
} >"$stage/debian/changelog"

(cd "$stage" && dpkg-buildpackage --build=binary --no-sign >"$work/build.log" 2>&1) ||
    { tail -n 30 "$work/build.log" >&2; echo "build.sh: dpkg-buildpackage failed" >&2; exit 1; }
rm -f "$out"/ironwarp*.deb
cp "$work"/ironwarp*.deb "$out/"
lintian --allow-root --fail-on error --tag-display-limit 0 "$work"/ironwarp*.changes
ls -l "$out"/ironwarp*.deb
