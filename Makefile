# Amberfs. `make help` lists the targets.

SHELL := /bin/bash
PREFIX ?= /usr/local
# mount(8), mkfs(8) and fsck(8) look for their helpers here and nowhere else.
SBINDIR ?= /sbin
DESTDIR ?=
ifeq ($(HOME),)
export HOME := $(shell getent passwd "$$(id -u)" | cut -d: -f6)
endif
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
BIN := $(CARGO_TARGET_DIR)/release/amberfs
FUZZ_SECONDS ?= 60
SOAK_ROUNDS ?= 500
CRASH_SECONDS ?= 3600
CRASH_STATES ?= 10000
BENCH ?=
PEERS ?=
# The kernel's ext4, ours, and who else makes one of the same disk; each way to mount it beside the same way of the kernel's.
EXT_PEERS := ext4-disk,ext4-disk:dirsync,ext4-disk:sync,ext4-disk:nojournal
EXT_PEERS := $(EXT_PEERS),amberfs-ext-disk,amberfs-ext-disk:dirsync,amberfs-ext-disk:sync
EXT_PEERS := $(EXT_PEERS),amberfs-ext-disk:sync_writes=disk,amberfs-ext-disk:sync_writes=disk+transport=device+threads=16
EXT_PEERS := $(EXT_PEERS),volume-ext-disk,volume-ext-disk:consistency=none,fuse2fs-disk
EXT_AGAINST := --against ext4-disk --against ext4-disk:dirsync --against ext4-disk:sync
EXT_AGAINST := $(EXT_AGAINST) --against ext4-disk:nojournal --against volume-ext-disk:consistency=none
# Who stands beside a mount where programs sync.
SYNCED_PEERS := amberfs,amberfs-op,ext4,xfs,btrfs,ext4-disk
SYNCED = --rounds 3 --against ext4 --against ext4-disk --markdown --note "commit $$(git describe --always --dirty 2> /dev/null || echo unknown)" $(BENCH)
SCALE ?=
OPERATIONS ?=
FIO ?=
FIGURES ?=
XFSTESTS ?=
KIND ?=
CHECK ?=

.PHONY: crash crash-programs fuzz help build run test check unit mounted test-vm xfstests bench bench-synced bench-ext bench-fio bench-operations bench-scale bench-snapshots bench-journaling figures soak install uninstall clean fmt lint doc licences

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the release binary
	@scripts/install-deps.sh build
	cargo build --release --locked -p amberfs-cli --bins --examples

run: ## a zone in memory, a volume at work, a crash, the recovery, and one table of it all
	@scripts/install-deps.sh build run
	@$(MAKE) --no-print-directory build
	@scripts/run.sh

test: ## everything that must pass: style, unit tests, licences, mounted suites, kill and recover
	@scripts/install-deps.sh build run test
	@scripts/test.sh

test-vm: build ## power cuts on an emulated machine with an NVDIMM (MAP_SYNC on ext4 -o dax, and devdax)
	@scripts/install-deps.sh vm
	@tests/vm/run.sh

fmt: ## format the sources
	cargo fmt --all

lint: ## what `make test` says about style
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy -p amberfs-native --bench journaling --bench scale --locked -- -D warnings
	scripts/layers.py

doc: ## the crates' documentation, in target/doc
	cargo doc --workspace --no-deps --locked

licences: ## fail if something we are built from has a licence that is not on the list
	@scripts/licences.sh

bench: build ## Amberfs beside tmpfs, ext4, xfs and btrfs on this machine (needs root): PEERS=amberfs,fuse2fs BENCH="--quick"
	@scripts/install-deps.sh bench
	@scripts/rings.sh $(BIN) bench --peers$(if $(PEERS),=$(PEERS)) --note "commit $$(git describe --always --dirty 2> /dev/null || echo unknown)" $(BENCH)

bench-synced: build ## programs and workloads that sync, beside ext4, xfs and btrfs in memory and on disk (needs root); BENCH="--disk /mnt"
	@scripts/install-deps.sh bench tools
	@scripts/rings.sh $(BIN) bench --peers=$(SYNCED_PEERS) -w synced $(SYNCED)
	@scripts/rings.sh $(BIN) bench --peers=$(SYNCED_PEERS) --tool sqlite --tool pgbench $(SYNCED)

bench-ext: build ## a disk with its metadata in NVM beside the kernel's ext4 and fuse2fs, by what FSMAC measures (needs root): BENCH="--disk /mnt"
	@scripts/install-deps.sh bench
	@scripts/rings.sh $(BIN) bench --peers=$(EXT_PEERS) -w fsmac --rounds 3 --seconds 0.2 --scale 0.01 $(EXT_AGAINST) --markdown --note "commit $$(git describe --always --dirty 2> /dev/null || echo unknown)" $(BENCH)

bench-fio: build ## fio on a volume in process, by its external engine, beside tmpfs: FIO="--seconds 10"
	@scripts/install-deps.sh bench-fio
	cargo build --release --locked -p amberfs-fio
	tests/bench/fio.py $(BIN) $(CARGO_TARGET_DIR)/release/libamberfs_fio.so $(FIO)

bench-operations: ## what stores, flushes and each operation of a native volume cost, beside their floors: OPERATIONS="--million --volume 16" adds 10^6 files (20 GiB of memory)
	@scripts/install-deps.sh build
	cargo bench --locked -p amberfs-nvm --bench persist
	cargo bench --locked -p amberfs-native --bench operations -- $(OPERATIONS)

bench-scale: ## what operations cost at up to 10^7 files, 1 TiB of span and 16 GiB of data, and the DRAM in use (20 GiB of memory): SCALE=--quick
	@scripts/install-deps.sh build
	cargo bench --locked -p amberfs-native --bench scale -- $(SCALE)

bench-snapshots: build ## taking and removing snapshots, beside btrfs and what a sync takes on ext4 and xfs (needs root)
	@scripts/install-deps.sh bench
	tests/bench/snapshots.py $(BIN)

bench-journaling: build ## the tables of Shortcut-JFS: four ways to log on DRAM and emulated PCM, beside ext3 (needs root); DRAM of caches: JOURNALING=--quick
	@scripts/install-deps.sh bench-journaling
	tests/bench/journaling.py $(BIN) $(JOURNALING)

figures: ## measure docs/performance.md anew, on a machine with nothing else to do (needs root, 20 GiB of memory, 40 minutes): FIGURES="operations ext"
	@scripts/install-deps.sh build bench tools bench-fio bench-journaling
	@tests/bench/figures.py $(FIGURES)

fuzz: ## damaged volumes, native and ext, mounted, checked, read, written, a minute each: FUZZ_SECONDS=60 (by a nightly compiler)
	@scripts/install-deps.sh build
	@rustup run nightly rustc --version > /dev/null 2>&1 || rustup toolchain install nightly --profile minimal
	@command -v cargo-fuzz > /dev/null || cargo install --locked cargo-fuzz --version '~0.13'
	cargo +nightly fuzz run mount_and_check -- -max_total_time=$(FUZZ_SECONDS) -timeout=20 -len_control=0 -max_len=64
	cargo +nightly fuzz run read_ext -- -max_total_time=$(FUZZ_SECONDS) -timeout=20 -len_control=0 -max_len=64
	cargo +nightly fuzz run --sanitizer none write_ext -- -max_total_time=$(FUZZ_SECONDS) -timeout=20 -len_control=0 -max_len=64
	cargo +nightly fuzz run --sanitizer none write_area -- -max_total_time=$(FUZZ_SECONDS) -timeout=20 -len_control=0 -max_len=64

crash: build ## power cuts at every moment: all operations in each way to log, and exactly, all sequences of two, two at a time, an ext disk, repairs, an hour of random ones: CRASH_SECONDS=3600
	for journal in adaptive block diff block-switch; do $(BIN) crash --journal $$journal || exit; done
	$(BIN) crash --exact
	$(BIN) crash --two
	$(BIN) crash --concurrent 1000
	$(BIN) crash --volume ext
	$(BIN) crash --volume ext2
	$(BIN) crash --volume ext-tight
	$(BIN) crash --volume ext --two 1000 --depth 1
	$(BIN) crash --repairs
	$(BIN) crash --random $(CRASH_SECONDS) --seed $$(date +%s)

crash-programs: build ## power cuts anywhere in the lives of SQLite, git and RocksDB, judged by themselves: CRASH_STATES=10000
	@scripts/install-deps.sh run programs
	@scripts/crash-programs.sh $(CRASH_STATES)

xfstests: build ## the suite of the kernel's file systems on a mount (needs root, and a built one): XFSTESTS=DIR KIND=ext4 CHECK="-g auto"
	@scripts/xfstests.sh "$(XFSTESTS)" "$(or $(KIND),native)" $(CHECK)

soak: build ## hours of load, kills and recoveries: SOAK_ROUNDS=500
	@scripts/kill-loop.sh $(SOAK_ROUNDS)

install: ## binary, helpers of mount(8), mkfs(8), fsck(8), man pages, completions: PREFIX, SBINDIR, DESTDIR
	@[ -x $(BIN) ] || { echo "install: run 'make build' first" >&2; exit 1; }
	umask 022; install -D -m 755 $(BIN) $(DESTDIR)$(PREFIX)/bin/amberfs
	umask 022; install -d $(DESTDIR)$(SBINDIR)
	for tool in mount mount.fuse mkfs fsck umount.fuse; do ln -sfn $(PREFIX)/bin/amberfs $(DESTDIR)$(SBINDIR)/$$tool.amberfs; done
	umask 022; install -d $(DESTDIR)$(PREFIX)/share/man/man8
	umask 022; $(BIN) man $(DESTDIR)$(PREFIX)/share/man/man8
	umask 022; install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	umask 022; $(BIN) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/amberfs
	umask 022; $(BIN) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_amberfs
	umask 022; $(BIN) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/amberfs.fish

uninstall: ## what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/amberfs $(foreach tool,mount mount.fuse mkfs fsck umount.fuse,$(DESTDIR)$(SBINDIR)/$(tool).amberfs)
	rm -f $(DESTDIR)$(PREFIX)/share/man/man8/amberfs*.8 $(foreach tool,mount mkfs fsck,$(DESTDIR)$(PREFIX)/share/man/man8/$(tool).amberfs.8) $(DESTDIR)$(PREFIX)/share/bash-completion/completions/amberfs
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_amberfs $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/amberfs.fish

clean: ## remove what was built
	cargo clean
