# make demo   shows the main job on this machine        make test   passes every test
# make run    iwarpd in the foreground, configs/tap.toml make help   the rest

SHELL := /bin/bash
CARGO ?= cargo
IWARPD := target/release/iwarpd
IWARPCTL := target/release/iwarpctl
export IRONWARP_CACHE ?= /var/cache/ironwarp

.PHONY: help deps tools build demo run test check fmt clippy doc unit wire-proof ports tap cli-proof interop flat clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

deps: ## install what is missing (Debian packages; as root)
	@.ci/deps.sh

tools: deps ## install the test runner
	@$(CARGO) nextest --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-nextest

build: deps ## iwarpd and iwarpctl, release
	$(CARGO) build --release --locked -p dataplane -p mgmt-cli -p iwarp-attach --bins --examples

demo: build ## put 256 MiB through a TAP, get it back, compare
	@dataplane/tests/demo.sh

run: build ## iwarpd in the foreground on the TAP iw0
	@.ci/hugepages.sh 512 || true
	$(IWARPD) --config configs/tap.toml

test: check unit build ports tap wire-proof flat interop ## everything; at most 25 minutes on two cores
	@echo "all suites passed"

check: deps fmt clippy doc ## format, lints, documentation

fmt:
	$(CARGO) fmt --all --check

clippy: deps
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc: deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet

unit: tools ## unit and property tests, simulations, CLI, DPDK in process
	@.ci/hugepages.sh 64 || true
	$(CARGO) nextest run --workspace --locked
	$(CARGO) test --workspace --locked --doc --quiet

tap: build ## against the kernel's TCP, over a TAP in a namespace
	dataplane/tests/tap.sh

ports: build ## starting, refusing to, and a put and get over each kind of port
	dataplane/tests/ports.sh

wire-proof: build ## a pcap round trip, judged by tshark
	dataplane/tests/pcap.sh

flat: build ## memory stays flat while 10 GiB move
	dataplane/tests/flat.sh

interop: build ## Linux soft-iWARP in a QEMU guest
	dataplane/tests/siw/run.sh

clean: ## remove what was built
	$(CARGO) clean
