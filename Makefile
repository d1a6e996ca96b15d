# make demo   shows the main job on this machine        make test   passes every test
# make run    iwarpd in the foreground, configs/tap.toml make help   the rest

SHELL := /bin/bash
CARGO ?= cargo
FUZZ_SECONDS ?= 60
# Folder of the programs that the suites run, by its profile (Cargo.toml): tests, or release.
BUILT ?= target/tests
export BUILT
export IRONWARP_CACHE ?= /var/cache/ironwarp

# build PROFILE TARGETS…: builds these targets in target/PROFILE. The selection of packages is always the whole
# workspace: another has other features, and would compile the crates again. So would examples, for which Cargo adds the
# features of tests: the suites have them, and what is installed has not.
build = $(CARGO) build --locked --profile $1 --workspace $2
# libraries PROFILE: makes the libraries of unmodified programs from what was built.
define libraries
clients/drop-in/link.sh target/$1/libiwarp_drop_in.a target/$1/lib/ironwarp
install -m 644 target/$1/librspreload.so target/$1/lib/ironwarp/
endef
# programs PROFILE TARGETS…: builds targets, with these libraries.
define programs
$(call build,$1,--lib $2)
$(call libraries,$1)
endef

.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' Makefile)

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16
	@printf '\nNames for SUITES of make test:\n' && $(MAKE) --no-print-directory suites

# Said before anything is built for minutes.
root:
	@[ "$$(id -u)" = 0 ] || { echo "make $(MAKECMDGOALS): needs root, for network namespaces, TAPs and hugepages;" \
	    "with the Rust of this user: sudo env HOME=\"$$HOME\" PATH=\"\$$PATH\" make $(MAKECMDGOALS)" >&2; exit 1; }

build-deps:
	@.ci/deps.sh --build

deps: ## install what is missing (Debian packages; as root)
	@command -v $(CARGO) >/dev/null || { echo "cargo is not in PATH: Rust 1.95 or newer, https://rustup.rs" >&2; exit 1; }
	@.ci/deps.sh

tools: deps ## install the test runner
	@$(CARGO) nextest --version >/dev/null 2>&1 || \
	    $(CARGO) install --locked --debug --no-default-features cargo-nextest@0.9.151

build: build-deps ## iwarpd, iwarpctl and what goes with them: target/release
	$(call programs,release,--bins)

# The programs that the suites run.
built: root deps
	$(call programs,$(notdir $(BUILT)),--bins --examples)

man: build-deps ## manual pages and completions of all programs: target/man
	$(call build,release,--bin iwarp-manual)
	@rm -rf target/man
	target/release/iwarp-manual target/man

# Not the whole workspace, which needs DPDK: `make build` compiles some crates again, with other features.
iwarp-run: ## iwarp-run and its libraries, for unmodified programs without a daemon: target/release, without DPDK
	@.ci/deps.sh --client
	$(CARGO) build --locked --release -p iwarp-run -p iwarp-drop-in -p iwarp-preload
	$(call libraries,release)

demo-programs: export BUILT := target/release
demo-programs: ## RDMA inside rping and ib_write_bw, without a daemon, as any user
	@.ci/deps.sh --client rdmacm-utils perftest $(if $(filter 0,$(shell id -u)),iproute2)
	@$(MAKE) --no-print-directory iwarp-run
	@dataplane/tests/demo-programs.sh

# Its packages are few, and so is what it builds; what needs neither DPDK nor the daemon is shown before they are here.
demo: export BUILT := target/release
demo: root ## the same as root, then: put 256 MiB through a TAP, get it back, compare
	@$(MAKE) --no-print-directory demo-programs
	@.ci/deps.sh --build iproute2
	$(call build,release,--bin iwarpd --bin iwarpctl)
	@dataplane/tests/demo.sh

# Both with the programs of the tests.
demonstration: root built
	@.ci/deps.sh perftest
	@dataplane/tests/demo-programs.sh
	@dataplane/tests/demo.sh

session: root built ## the session of README.md without root, command by command
	dataplane/tests/session.sh

run: root build ## iwarpd in the foreground on the TAP iw0
	@.ci/hugepages.sh 512 || true
	target/release/iwarpd --config configs/tap.toml

# Suites of `make test`, each a target below. These use all cores, count hugepages, or have limits of time or rate: one
# at a time.
ALONE := \
    ports \
    hostile \
    hostile-peers \
    embedded-hard \
    bindings \
    flat \
    load \
    crowd-out \
    flood \
    starve \
    forged-arp \
    pci-quick

# They wait for a guest, a program or a timer: three at a time, the longest first. Each one's output comes when it ends.
TOGETHER := \
    interop \
    drivers \
    deb-test \
    verbs \
    programs-quick \
    embedded \
    container \
    serve \
    python \
    sockets \
    lifecycle \
    operations \
    reload \
    nfsd \
    idle \
    wire-proof \
    session \
    demonstration \
    shared \
    captures

# They compile, at low priority while the suites above wait.
BESIDE := \
    units-built \
    clippy \
    doc \
    fuzz-check \
    doctests \
    micro \
    publishable \
    loom \
    instructions \
    build-debian13

# Names of several suites.
group.tcp := drivers shared flood forged-arp load crowd-out starve wire-proof flat idle
group.rdma := interop verbs hostile programs-quick embedded embedded-hard bindings hostile-peers container serve python sockets
group.nfs := nfsd
group.service := ports lifecycle operations reload session demonstration captures
group.packages := deb-test build-debian13 publishable
group.unit := protocols units-built units
group.checks := fmt subjects clippy doc fuzz-check doctests micro
GROUPS := $(patsubst group.%,%,$(filter group.%,$(.VARIABLES)))

ALL := fmt subjects protocols $(TOGETHER) $(BESIDE) units $(ALONE)
SUITES ?= $(ALL)
WANTED := $(foreach name,$(SUITES),$(or $(group.$(name)),$(name)))
# run JOBS SUITES [PREFIX]: runs those of the suites that are wanted. Where several run, each one's output comes at its end.
run = $(if $(filter $(WANTED),$2),$3 $(MAKE) --no-print-directory --keep-going --jobs=$1 \
    $(if $(filter-out 1,$1)$3,--output-sync=recurse) $(patsubst %,stage-%,$(filter $(WANTED),$2)) || true)

# Incremental compilation is for those who compile again.
test: export CARGO_INCREMENTAL := 0
test: root tools ## everything; SUITES="tcp nfs" runs some (`make suites` lists them)
	@$(foreach name,$(filter-out $(ALL),$(WANTED)),echo "make test: no suite $(name): make suites" >&2; exit 2;) :
	@rm -rf target/stages; mkdir -p target/stages
	@$(call run,1,fmt subjects protocols)
	@.ci/stage.sh built $(MAKE) --no-print-directory built
	@.ci/stage.sh prepared $(MAKE) --no-print-directory prepared || true
	@$(MAKE) --no-print-directory --jobs=2 together beside
	@$(call run,1,units $(ALONE))
	@.ci/stage.sh --score

together:
	@$(call run,3,$(TOGETHER))

beside:
	@$(call run,1,$(BESIDE),nice -n 19)

# Programs are built, packages are installed: no suite looks again.
stage-%:
	@.ci/stage.sh $* $(MAKE) --no-print-directory --jobs=1 $(addprefix --old-file=,root tools deps build-deps built packed) $*

suites: ## the names that SUITES takes
	@$(foreach name,$(GROUPS),printf '%-16s%s\n' '$(name)' '$(group.$(name))';)
	@echo $(ALL) | fold -s -w 100

# Suites side by side must neither install packages at the same time nor take each other's hugepages: 320 MiB each.
prepared: root tools
	@.ci/deps.sh $(PACKAGING) $(PODMAN) python3-venv python3-pyverbs ibverbs-utils perftest tgt ucx-utils || echo "test: goes on with what is installed" >&2
	@dataplane/tests/siw/prepare.sh >/dev/null
	@dataplane/tests/wheel.sh --pack
	@.ci/hugepages.sh 960 || true

quick: ## format, lints and tests of what needs neither DPDK nor root; under two minutes warm
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	$(CARGO) test --locked --quiet

check: fmt subjects clippy fuzz-check doc ## format, subjects of commits, lints, fuzz targets, documentation

fmt:
	$(CARGO) fmt --all --check

# Subjects of commits, as CONTRIBUTING.md asks for them; those of earlier ones are longer.
SUBJECTS := git log --no-merges --since=2026-11-29T01:00:00Z --format='%h %s'
subjects:
	@git rev-parse --git-dir >/dev/null || { echo "subjects: no commits here: nothing is checked"; exit 0; }; \
	$(SUBJECTS) | awk '{ subject = substr($$0, index($$0, " ") + 1) } \
	    subject !~ /^[A-Za-z0-9_.\/, -]+: [^ ]/ { print "not \"part: change\": " $$0; wrong = 1 } \
	    length(subject) > 72 { print "at most 72 characters: " $$0; wrong = 1 } \
	    END { exit wrong }'

# The profile of the tests: build scripts and procedural macros are compiled and run once.
clippy: build-deps
	$(CARGO) clippy --profile tests --workspace --all-targets --locked -- -D warnings

FUZZ := tcp-stack/corpus/fuzz

# A compiler that is not nightly checks them, so that a change of an API cannot break them unseen. Nothing is linked:
# libFuzzer itself is not compiled.
fuzz-check: ## the fuzz targets compile
	CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a \
	    $(CARGO) clippy --locked --quiet --manifest-path $(FUZZ)/Cargo.toml --target-dir target/fuzz -- -D warnings

doc: build-deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --profile tests --workspace --no-deps --document-private-items --locked --quiet

# Apart, because the advisories come from the network.
deny: ## licenses, sources, duplicates and known vulnerabilities of the crates that we depend on (cargo-deny)
	@$(CARGO) deny --version >/dev/null 2>&1 || \
	    { echo "make deny: cargo-deny is missing; install it with: cargo install --locked cargo-deny" >&2; exit 1; }
	$(CARGO) deny --locked check licenses bans sources
	$(CARGO) deny --locked check advisories

NEXTEST := $(CARGO) nextest run --cargo-profile tests --locked --workspace
# Tests of the protocols need no DPDK and run first, while the rest is not compiled. They are chosen by name, not by
# package, for the reason given at `build`.
PROTOCOLS := $(wildcard tcp-stack/tests/*.rs rdma/tests/*.rs)
PROTOCOLS += $(patsubst %/main.rs,%.rs,$(wildcard tcp-stack/tests/*/main.rs rdma/tests/*/main.rs))

unit: protocols units ## unit and property tests, simulations, CLI, DPDK in process

protocols: root tools
	$(NEXTEST) --no-fail-fast $(addprefix --test ,$(basename $(notdir $(PROTOCOLS))))

units: root tools
	@.ci/hugepages.sh 64 || true
	$(NEXTEST) --no-fail-fast -E 'not (kind(test) & (package(tcp-stack) | package(iwarp-rdma)))'

units-built: root tools
	$(NEXTEST) --no-run

doctests: build-deps ## examples in the documentation of our crates
	$(CARGO) test --profile tests --workspace --locked --doc --quiet

# The library of programs, and what it needs, as crates.io would get them.
PUBLISHED := iwarp-counters tcp-stack iwarp-rdma iwarp-control iwarp-shared-queues iwarp-shared-verbs iwarp-engine iwarp-verbs
# Cargo keeps what it has unpacked of a package, by the path of the target folder, and compiled of it, although the
# package has changed.
publishable: ## packages of the crates that are published, each compiled by itself, but not uploaded
	rm -rf target/published $(foreach crate,$(PUBLISHED),$${CARGO_HOME:-$$HOME/.cargo}/registry/src/-*/$(crate)-[0-9]*)
	$(CARGO) publish --dry-run --locked --allow-dirty --target-dir target/published $(addprefix -p ,$(PUBLISHED))

# Each once, as a test; `cargo bench -p benches` measures.
micro: build-deps
	$(CARGO) test --profile tests --workspace --locked --bench micro --quiet

# Budgets were recorded with whole-program optimization.
instructions: deps ## how many instructions and cache lines the work per packet takes, under valgrind
	$(CARGO) test --profile dist --locked -p per-packet --test instructions --test lines

tap: root built ## against the kernel's TCP, over a TAP in a namespace
	dataplane/tests/system.sh tap

drivers: root built ## the same over each driver that one machine can offer
	dataplane/tests/system.sh tap af_packet af_xdp pcap memif
	dataplane/tests/rings.sh

shared: root built ## a port with the addresses of the kernel, which goes on using them
	dataplane/tests/shared.sh

ports: root built ## starting, refusing to, and a put and get over each kind of port
	dataplane/tests/ports.sh

lifecycle: root built ## a log that cannot be written, signals, a second daemon, interfaces that vanish
	dataplane/tests/lifecycle.sh

operations: root built ## metrics over HTTP and in DPDK's telemetry; live views, events, capture; transfers
	dataplane/tests/operations.sh
	dataplane/tests/transfers.sh

captures: root built ## screens of top, doctor and monitor in docs/, from a daemon with traffic: target/captures
	dataplane/tests/captures.sh target/captures

reload: root built ## a configuration that is read again, grants that are revoked, connections that end before the daemon
	dataplane/tests/reload.sh

verbs: root built ## applications: programs with queue pairs of two daemons, and what is left of them
	dataplane/tests/verbs.sh

hostile: root built ## hostile local programs beside honest ones, each of which is served throughout
	dataplane/tests/hostile.sh

hostile-rates: export BUILT := target/release
hostile-rates: root built ## the same, and honest programs keep 70 % of their rate; on a quiet machine
	RATES=1 dataplane/tests/hostile.sh

PROGRAMS_OF_DEBIAN := ibverbs-utils perftest tgt ucx-utils fio qperf libfabric-bin iperf3 libopenmpi-dev openmpi-bin \
	libmpich-dev mpich

programs: programs-pairs programs-lossy programs-siw migration ## unmodified programs of Debian, all of it: half an hour

# What is not installed is told, and left out.
programs-deps: root built
	@.ci/deps.sh $(PROGRAMS_OF_DEBIAN) || echo "programs: goes on with the programs that are installed" >&2

programs-pairs: programs-deps ## of these, between two daemons, and with both ends on one
	dataplane/tests/programs.sh

programs-lossy: programs-deps ## the same between two daemons, where one frame in a hundred is lost
	LOSS=1 dataplane/tests/programs.sh

programs-siw: programs-deps ## the same against Linux soft-iWARP in a QEMU guest, in both roles, without loss and with it
	dataplane/tests/programs-siw.sh

migration: root built ## a guest that QEMU migrates by `rdma:` from one daemon to another
	dataplane/tests/migration.sh

programs-quick: root built ## the same, the most important of it: in about a minute
	@.ci/deps.sh ibverbs-utils perftest tgt ucx-utils || echo "programs: goes on with the programs that are installed" >&2
	QUICK=1 dataplane/tests/programs.sh

embedded: root built ## unmodified programs without a daemon: RDMA inside them, as a user without a privilege
	@.ci/deps.sh ibverbs-utils perftest || echo "embedded: goes on with the programs that are installed" >&2
	dataplane/tests/embedded.sh

embedded-hard: root built ## the same with limits, refused system calls, memory that goes, kill and fork
	dataplane/tests/embedded-hard.sh

bindings: root built ## verbs in Python: rdma-core's tests of pyverbs, and the package ibverbs of PyPI
	@.ci/deps.sh python3-venv python3-pyverbs || echo "bindings: goes on with the programs that are installed" >&2
	dataplane/tests/bindings.sh

hostile-peers: root built ## peers that break every rule, beside an honest one, and no daemon
	dataplane/tests/hostile-peers.sh

PODMAN := podman crun uidmap slirp4netns catatonit

container: root built ## the same in containers of rootless podman, by the commands of docs/programs.md
	@.ci/deps.sh $(PODMAN)
	dataplane/tests/container.sh

serve: root built ## regions of files and of memory without a daemon, as a user without a privilege: iwarpctl serve
	dataplane/tests/serve.sh

# Before the suites, which would wait for the Cargo of those that compile.
packed: root built
	@.ci/deps.sh python3-venv
	dataplane/tests/wheel.sh --pack

python: packed ## the Python package: its wheel, types and tests, as a user without a privilege
	dataplane/tests/wheel.sh $(BUILT)/wheels/ironwarp-*.whl

# maturin and zig come from PyPI; zig links against a glibc that all of today's distributions have. The C library unwinds
# the stack of a thread that ends with the interpreter: with libgcc_s, not with the unwinder that zig would link in.
WHEEL_TOOLS := target/wheels/tools
wheel: ## the Python package for Linux with glibc 2.17 or newer: target/wheels
	@python3 -c 'import venv' || .ci/deps.sh python3-venv
	@rm -f target/wheels/*.whl
	python3 -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/pip install --quiet $$(grep -E '^(maturin|ziglang)==' clients/python/requirements.txt)
	PATH="$$PWD/$(WHEEL_TOOLS)/bin:$$PATH" maturin build --manifest-path clients/python/Cargo.toml --zig \
	    --compatibility manylinux2014 --profile dist --locked --interpreter python3 --out target/wheels \
	    -- -C link-arg="$$(gcc -print-file-name=libgcc_s.so.1)"

wheel-test: root ## the tests of the wheel that `make wheel` has built
	IWARPCTL=$(BUILT)/iwarpctl dataplane/tests/wheel.sh target/wheels/ironwarp-*.whl

sockets: root built ## rsockets and the preload library: threads, random sizes, crowds of clients, what calls return
	dataplane/tests/sockets.sh

wire-proof: root built ## a pcap round trip, judged by tshark
	dataplane/tests/pcap.sh

flat: root built ## memory stays flat while 10 GiB move
	dataplane/tests/flat.sh

idle: root built ## many idle connections, peers that vanish, regions that come and go
	dataplane/tests/idle.sh

against-linux: export BUILT := target/release
against-linux: root built ## goodput over bad paths, beside Linux's own TCP
	dataplane/tests/linux.sh

incast: export BUILT := target/release
incast: root built ## 64 senders that meet in one short queue, beside Linux's own TCP; on a quiet machine
	dataplane/tests/incast.sh

put-rates: export BUILT := target/release
put-rates: root built ## put and get over both families, with and without timestamps: the same rate; on a quiet machine
	dataplane/tests/put-rates.sh

flood: root built ## 200,000 SYNs a second, and clients that must be served
	dataplane/tests/flood.sh

forged-arp: root built ## somebody claims an honest peer's address; a peer that really moves
	dataplane/tests/forged-arp.sh

load: root built ## 1,000 connections at once on each service, IPv4 and IPv6
	dataplane/tests/load.sh

starve: root built ## peers that want the daemon to run out of packet buffers, and an honest one's rate
	dataplane/tests/starve.sh

crowd-out: root built ## one host that takes every connection, and an honest peer that must be served
	dataplane/tests/crowd-out.sh

interop: root built ## Linux soft-iWARP in a QEMU guest
	@.ci/deps.sh perftest
	dataplane/tests/siw/run.sh

nfsd: root built ## the NFS server as a service: configuration, iwarpctl nfs, reload, signals
	apps/tests/nfsd.sh

nfs-malformed: build-deps ## ten million malformed calls to the NFS server: nothing returned, no memory kept; minutes
	MALFORMED_CALLS=10000000 $(CARGO) test --profile tests --locked --workspace --test nfs malformed -- --nocapture

nfs-demo: root built ## Linux in a QEMU guest mounts a directory by NFS over RDMA, copies a tree, compares digests
	apps/tests/nfs.sh

nfs: root built ## the same at length, with loss, restarts, two clients, fsx, pjdfstest and tshark: half an hour
	apps/tests/nfs/full.sh

nfs-figures: export BUILT := target/release
nfs-figures: root built ## READ over RDMA and over TCP: rate, and CPU time per GiB of server and client
	apps/tests/nfs/figures.sh

pci: root built ## PCI cards that QEMU emulates, in guests: every card, driver and feature
	dataplane/tests/pci/run.sh all

pci-quick: root built ## the same, the most important of it: at most three minutes
	dataplane/tests/pci/run.sh quick

debian13: root tools ## build, unit, ports, tap and demo on Debian 13 (DPDK 24.11), in a chroot that is made for it
	.ci/debian13.sh make build unit ports tap demo

# Only what calls DPDK, and without code generation: under a minute, after the two or three that making the chroot takes.
build-debian13: root tools ## the dataplane compiles on Debian 13, too
	@if pkg-config --atleast-version=24.11 libdpdk; then echo "build-debian13: this machine has DPDK 24.11 or newer itself"; \
	    else .ci/debian13.sh cargo check --locked --profile tests -p dataplane --all-targets; fi

trained: export BUILT := target/release
trained: root build ## the programs as they are installed, target/trained: optimized for what a load has shown
	benches/train.sh

# The peers in the figures are Debian's; the report lists peers that are missing. BRIEF=--brief runs each benchmark for
# an instant, and leaves docs/plots alone.
PEERS := iperf3 ucx-utils sockperf
BRIEF ?=

bench: export BUILT := target/release
bench: root build ## throughput, latency and CPU time beside their peers: target/bench/report.html; on a quiet machine
	benches/train.sh --or-plain
	@.ci/deps.sh $(PEERS) || echo "bench: goes on without the peers that cannot be installed" >&2
	@.ci/hugepages.sh 512 || true
	nice -n -15 target/trained/iwarp-bench suite $(BRIEF) --to target/bench
	target/trained/iwarp-bench plots target/bench/report.json --to $(if $(BRIEF),target/bench/plots,docs/plots)

# All benchmarks for an instant: that each works, and no figure lacks a quantity.
bench-brief: root built
	@.ci/deps.sh $(PEERS) || echo "bench-brief: goes on without the peers that cannot be installed" >&2
	$(BUILT)/iwarp-bench suite --brief --to target/bench-brief
	$(BUILT)/iwarp-bench plots target/bench-brief/report.json --to target/bench-brief/plots
	@jq -e '.absent == [] and ([.figures[] | select(.met == null)] == [])' target/bench-brief/report.json >/dev/null || \
	    { jq '.absent, [.figures[] | select(.met == null)]' target/bench-brief/report.json; exit 1; }

profile: root deps ## instructions per FPDU of RDMA Writes, function by function, of both ends
	$(call build,dist,--bin iwarp-bench)
	benches/profile.sh

profile-brief: root built
	BENCH=$(BUILT)/iwarp-bench benches/profile.sh 4k 1500 50 8

# What is installed comes from PROGRAMS: after `make trained`, `make deb PROGRAMS=target/trained` packages those.
PROGRAMS ?= target/dist
INSTALLED := iwarpd iwarpctl iwarp-nfsd iwarp-run iwarp-bench

PACKAGING := debhelper lintian systemd-container

# packages PROGRAMS FOLDER: Debian packages of these programs.
define packages
@.ci/deps.sh $(PACKAGING)
@rm -rf target/man
$1/iwarp-manual target/man
configs/debian/build.sh $1 target/man $2
endef

deb: root build-deps ## Debian packages of this machine's release: target/deb
	$(if $(filter target/dist,$(PROGRAMS)),$(call programs,dist,$(addprefix --bin ,$(INSTALLED) iwarp-manual)))
	$(call packages,$(PROGRAMS),target/deb)

deb-test: export COMPRESSION := -Zgzip -z1
deb-test: root built ## installs packages in a chroot, and in a container that systemd boots; upgrade, remove, purge
	$(call packages,$(BUILT),target/deb-test)
	dataplane/tests/deb.sh target/deb-test

fuzz: deps ## FUZZ_SECONDS of libFuzzer on each target (60 by default; nightly Rust)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked --debug cargo-fuzz@0.13.2
	@set -e; cd $(FUZZ); for target in $$(ls corpus); do mkdir -p target/corpus/$$target; \
	    $(CARGO) +nightly fuzz run --fuzz-dir . $$target target/corpus/$$target corpus/$$target -- \
	        -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=10 -print_final_stats=1; done

# A target folder of its own: the flag changes every crate.
loom: ## every order of memory accesses in the queues that programs share with the daemon
	RUSTFLAGS="--cfg loom" $(CARGO) test --locked --quiet -p iwarp-shared-queues --test loom --target-dir target/loom

# Without isolation, because tests read documents and corpora. One process for each test program: Miri takes seconds to start.
miri: deps ## the tests of rdma under Miri (nightly Rust with its miri component)
	PROPTEST_CASES=2 PROPTEST_RNG_SEED=1 MIRIFLAGS=-Zmiri-disable-isolation \
	    $(CARGO) +nightly miri test -p iwarp-rdma --locked --lib --tests --target-dir target/miri

clean: ## remove what was built
	$(CARGO) clean
