# make demo   shows the main job on this machine        make test   passes every test
# make run    iwarpd in the foreground, configs/tap.toml make help   the rest

SHELL := /bin/bash
CARGO ?= cargo
IWARPD := target/release/iwarpd
IWARPCTL := target/release/iwarpctl
FUZZ_SECONDS ?= 60
# One selection of packages for what is built for release: another selection has other features, and would compile the
# crates again.
RELEASE := $(CARGO) build --release --locked \
    $(addprefix -p ,dataplane mgmt-cli iwarp-verbs iwarp-lab iwarp-rping iwarp-nfsd iwarp-run rdma) \
    $(addprefix -p ,benches iwarp-manual) \
    $(addprefix --bin ,iwarpd iwarpctl iwarp-nfsd iwarp-rping iwarp-run lab) \
    $(addprefix --example ,bridge capture exchange notify region register siw-peer slow watch)
export IRONWARP_CACHE ?= /var/cache/ironwarp

.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' Makefile)

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

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

build: deps ## iwarpd, iwarpctl and what goes with them, release
	$(RELEASE)
	$(CARGO) build --release --locked -p iwarp-drop-in
	dataplane/drop-in/link.sh target/release/libiwarp_drop_in.a target/release/lib/ironwarp
	$(CARGO) build --release --locked -p iwarp-preload
	install -m 644 target/release/librspreload.so target/release/lib/ironwarp/

man: deps ## manual pages and completions of all programs: target/man
	@rm -rf target/man
	$(RELEASE) --bin iwarp-manual
	target/release/iwarp-manual target/man

demo: root build ## put 256 MiB through a TAP, get it back, compare
	@dataplane/tests/demo.sh

run: root build ## iwarpd in the foreground on the TAP iw0
	@.ci/hugepages.sh 512 || true
	$(IWARPD) --config configs/tap.toml

# They count hugepages, have limits of time or rate, or use all cores: one at a time.
ALONE := ports drivers verbs hostile programs-quick flat load crowd-out flood starve forged-arp pci-quick
# They wait for a guest, a program or a timer: two at a time, the longest first. Each one's output comes when it ends.
TOGETHER := interop deb-test instructions build-debian13 rping lifecycle operations reload nfsd idle wire-proof

# Incremental compilation is for those who compile again.
test: export CARGO_INCREMENTAL := 0
test: root check unit build prepared ## everything; about 35 minutes on two cores
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(TOGETHER)
	@$(MAKE) --no-print-directory --jobs=1 $(ALONE)
	@echo "all suites passed"

# Two suites at a time must neither install packages at the same time nor take each other's hugepages: 320 MiB each.
prepared: root tools
	@.ci/deps.sh $(PACKAGING) ibverbs-utils perftest || echo "test: goes on with what is installed" >&2
	@dataplane/tests/siw/prepare.sh >/dev/null
	@.ci/hugepages.sh 640 || true

quick: ## format, lints and tests of what needs neither DPDK nor root; under two minutes warm
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	$(CARGO) test --locked --quiet

check: fmt clippy fuzz-check doc ## format, lints, fuzz targets, documentation

fmt:
	$(CARGO) fmt --all --check

clippy: build-deps
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# A compiler that is not nightly checks them, so that a change of an API cannot break them unseen. Nothing is linked:
# libFuzzer itself is not compiled.
fuzz-check: ## the fuzz targets compile
	@set -e; export CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a; \
	for manifest in */fuzz/Cargo.toml */*/fuzz/Cargo.toml; do \
	    $(CARGO) clippy --locked --quiet --manifest-path $$manifest --target-dir target/fuzz -- -D warnings; done

doc: build-deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet

# Apart, because the advisories come from the network.
deny: ## licenses, sources, duplicates and known vulnerabilities of the crates that we depend on (cargo-deny)
	@$(CARGO) deny --version >/dev/null 2>&1 || \
	    { echo "make deny: cargo-deny is missing; install it with: cargo install --locked cargo-deny" >&2; exit 1; }
	$(CARGO) deny --locked check licenses bans sources
	$(CARGO) deny --locked check advisories

unit: root tools ## unit and property tests, simulations, CLI, DPDK in process
	@.ci/hugepages.sh 64 || true
	$(CARGO) nextest run --workspace --locked
	$(CARGO) test --workspace --locked --doc --quiet

instructions: deps ## how many instructions and cache lines the work per packet takes, under valgrind
	$(CARGO) test --release --locked -p per-packet --test instructions --test lines

tap: root build ## against the kernel's TCP, over a TAP in a namespace
	dataplane/tests/system.sh tap

drivers: root build ## the same over each driver that one machine can offer
	dataplane/tests/system.sh tap af_packet af_xdp pcap memif
	dataplane/tests/rings.sh

ports: root build ## starting, refusing to, and a put and get over each kind of port
	dataplane/tests/ports.sh

lifecycle: root build ## a log that cannot be written, signals, a second daemon, interfaces that vanish
	dataplane/tests/lifecycle.sh

operations: root build ## metrics over HTTP and in DPDK's telemetry; live views, events, capture; transfers
	dataplane/tests/operations.sh
	dataplane/tests/transfers.sh

captures: root build ## what docs/operations.md shows of top, doctor and monitor, from a daemon with traffic: target/captures
	dataplane/tests/captures.sh target/captures

reload: root build ## a configuration that is read again, grants that are revoked, connections that end before the daemon
	dataplane/tests/reload.sh

verbs: root build ## applications: programs with queue pairs of two daemons, and what is left of them
	dataplane/tests/verbs.sh

hostile: root build ## hostile local programs beside honest ones, each of which is served throughout
	dataplane/tests/hostile.sh

hostile-rates: root build ## the same, and honest programs keep 70 % of their rate; on a quiet machine
	RATES=1 dataplane/tests/hostile.sh

PROGRAMS_OF_DEBIAN := ibverbs-utils perftest fio qperf libfabric-bin iperf3 libopenmpi-dev openmpi-bin

programs: programs-pairs programs-lossy programs-siw migration ## unmodified programs of Debian, all of it: half an hour

# What is not installed is told, and left out.
programs-deps: root build
	@.ci/deps.sh $(PROGRAMS_OF_DEBIAN) || echo "programs: goes on with the programs that are installed" >&2

programs-pairs: programs-deps ## of these, between two daemons, and with both ends on one
	dataplane/tests/programs.sh

programs-lossy: programs-deps ## the same between two daemons, where one frame in a hundred is lost
	LOSS=1 dataplane/tests/programs.sh

programs-siw: programs-deps ## the same against Linux soft-iWARP in a QEMU guest, in both roles, without loss and with it
	dataplane/tests/programs-siw.sh

migration: root build ## a guest that QEMU migrates by `rdma:` from one daemon to another
	dataplane/tests/migration.sh

programs-quick: root build ## the same, the most important of it: in about a minute
	@.ci/deps.sh ibverbs-utils perftest || echo "programs: goes on with the programs that are installed" >&2
	QUICK=1 dataplane/tests/programs.sh

rping: root build ## rping and regions between programs that are their own dataplane
	dataplane/tests/rping.sh

wire-proof: root build ## a pcap round trip, judged by tshark
	dataplane/tests/pcap.sh

flat: root build ## memory stays flat while 10 GiB move
	dataplane/tests/flat.sh

idle: root build ## many idle connections, peers that vanish, regions that come and go
	dataplane/tests/idle.sh

against-linux: root build ## goodput over bad paths, beside Linux's own TCP
	dataplane/tests/linux.sh

incast: root build ## 64 senders that meet in one short queue, beside Linux's own TCP; on a quiet machine
	dataplane/tests/incast.sh

put-rates: root build ## put and get over both families, with and without timestamps: the same rate; on a quiet machine
	dataplane/tests/put-rates.sh

flood: root build ## 200,000 SYNs a second, and clients that must be served
	dataplane/tests/flood.sh

forged-arp: root build ## somebody claims an honest peer's address; a peer that really moves
	dataplane/tests/forged-arp.sh

load: root build ## 1,000 connections at once on each service, IPv4 and IPv6
	dataplane/tests/load.sh

starve: root build ## peers that want the daemon to run out of packet buffers, and an honest one's rate
	dataplane/tests/starve.sh

crowd-out: root build ## one host that takes every connection, and an honest peer that must be served
	dataplane/tests/crowd-out.sh

interop: root build ## Linux soft-iWARP in a QEMU guest
	dataplane/tests/siw/run.sh

nfsd: root build ## the NFS server as a service: configuration, iwarpctl nfs, reload, signals
	dataplane/tests/nfsd.sh

nfs-malformed: build-deps ## ten million malformed calls to the NFS server: nothing returned, no memory kept; minutes
	MALFORMED_CALLS=10000000 $(CARGO) test --release --locked -p iwarp-nfsd --test malformed -- --nocapture

nfs-demo: root build ## Linux in a QEMU guest mounts a directory by NFS over RDMA, copies a tree, compares digests
	dataplane/tests/nfs.sh

nfs: root build ## the same at length, with loss, restarts, two clients, fsx, pjdfstest and tshark: half an hour
	dataplane/tests/nfs/full.sh

nfs-figures: root build ## READ over RDMA and over TCP: rate, and CPU time per GiB of server and client
	$(CARGO) build --release --locked -p iwarp-nfsd --example reader
	dataplane/tests/nfs/figures.sh

pci: root build ## PCI cards that QEMU emulates, in guests: every card, driver and feature
	dataplane/tests/pci/run.sh all

pci-quick: root build ## the same, the most important of it: at most three minutes
	dataplane/tests/pci/run.sh quick

debian13: root tools ## build, unit, ports, tap and demo on Debian 13 (DPDK 24.11), in a chroot that is made for it
	.ci/debian13.sh make build unit ports tap demo

# Only what calls DPDK, and without code generation: under a minute, after the two or three that making the chroot takes.
build-debian13: root tools ## the dataplane compiles on Debian 13, too
	@if pkg-config --atleast-version=24.11 libdpdk; then echo "build-debian13: this machine has DPDK 24.11 or newer itself"; \
	    else .ci/debian13.sh cargo check --locked -p dataplane --all-targets; fi

trained: root build ## the programs as they are installed, target/trained: optimized for what a load has shown
	benches/train.sh

# What its figures are compared with is Debian's; without it the report says what it lacks.
bench: root trained ## throughput, latency and CPU time beside their peers: target/bench/report.html; on a quiet machine
	@.ci/deps.sh iperf3 ucx-utils sockperf || echo "bench: goes on without the peers that cannot be installed" >&2
	@.ci/hugepages.sh 512 || true
	nice -n -15 target/trained/iwarp-bench suite --to target/bench
	target/trained/iwarp-bench plots target/bench/report.json --to docs/plots

profile: root deps ## instructions per FPDU of RDMA Writes, function by function, of both ends
	$(CARGO) build --release --locked -p benches --bin iwarp-bench
	benches/profile.sh

# What is installed comes from PROGRAMS: after `make trained`, `make deb PROGRAMS=target/trained` packages those.
PROGRAMS ?= target/release

PACKAGING := debhelper lintian systemd-container

deb: root build man ## Debian packages of this machine's release, ironwarp and ironwarp-bench: target/deb
	@.ci/deps.sh $(PACKAGING)
	$(RELEASE) --bin iwarp-bench
	configs/debian/build.sh $(PROGRAMS) target/man target/deb

deb-test: deb ## installs the packages in a chroot that is made for it; start, put, get, upgrade, remove, purge
	dataplane/tests/deb.sh target/deb

fuzz: deps ## FUZZ_SECONDS of libFuzzer on each target of each crate (60 by default; nightly Rust)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked --debug cargo-fuzz@0.13.2
	@set -e; for folder in */fuzz */*/fuzz; do for target in $$(cd $$folder/fuzz_targets && echo *.rs); do \
	    target=$${target%.rs}; mkdir -p $$folder/target/corpus/$$target; \
	    (cd $$folder; $(CARGO) +nightly fuzz run --fuzz-dir . $$target target/corpus/$$target corpus/$$target -- \
	        -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=10 -print_final_stats=1); \
	done; done

# A target folder of its own: the flag changes every crate.
loom: ## every order of memory accesses in the queues that programs share with the daemon
	RUSTFLAGS="--cfg loom" $(CARGO) test --locked --quiet -p iwarp-shared-queues --test loom --target-dir target/loom

# Without isolation, because tests read documents and corpora. One process for each test program: Miri takes seconds to start.
miri: deps ## the tests of rdma under Miri (nightly Rust with its miri component)
	PROPTEST_CASES=2 PROPTEST_RNG_SEED=1 MIRIFLAGS=-Zmiri-disable-isolation \
	    $(CARGO) +nightly miri test -p rdma --locked --lib --tests --target-dir target/miri

clean: ## remove what was built
	$(CARGO) clean
