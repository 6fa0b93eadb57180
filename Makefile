# The workbench. `make` lists what there is; every target needs Go alone unless it says otherwise.
# Tools are pinned in tools/go.mod and tools/lint/go.mod and run by `go tool`: nothing to install by hand.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory

ifeq ($(filter oneshell,$(.FEATURES)),)
$(error GNU make 3.82 or newer is needed; on macOS: brew install make, then gmake)
endif

# How long `make fuzz` stays with each target.
FUZZTIME ?= 10s
# Which benchmarks `make bench` runs, and more flags for it (-count=10 -cpu=1,2).
BENCH ?= .
BENCHFLAGS ?=
# Arguments of the server for `make run`.
ARGS ?=

# Nothing here may rewrite a go.mod, and a go.work further up is none of our business.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -mod=readonly)
export GOWORK := off

BUF := go tool -modfile=tools/go.mod buf
GOFUMPT := go tool -modfile=tools/go.mod gofumpt
GOLANGCI := go tool -modfile=tools/lint/go.mod golangci-lint

# Hand-written Go files, and every module of the tree.
list-go := find . -name '*.go' -not -path './.*' -not -path './gen/*'
list-modules := git ls-files --cached --others --exclude-standard -- go.mod '*/go.mod'
# Files that may carry the build tag of the end-to-end tests are checked too.
TAGS := -tags=e2e
ALLTAGS := $(TAGS),vllm

step = @printf '\n== %s\n' '$@'

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- everyday ----

.PHONY: build
build: ## Build the programs into bin/
	mkdir -p bin
	go build -o bin/ ./server/cmd/... ./client/cmd/...

.PHONY: run
run: ## Run the server on loopback and print a command to try; ARGS='--flag ...'
	go run ./server/cmd/kvoracle --hint $(ARGS)

.PHONY: demo
demo: ## Route a real trace on a simulated fleet through a live oracle, and compare policies (about 90 s)
	go run ./client/cmd/kvoraclectl demo

.PHONY: fmt
fmt: ## Format Go and proto files
	$(list-go) -exec $(GOFUMPT) -l -w {} +
	$(BUF) format -w

.PHONY: generate
generate: ## Regenerate gen/ from proto/, deploy/monitoring and the settings in docs/operations.md
	$(BUF) generate
	go test -count=1 -run='^TestFilesAreThoseOfToday$$' ./internal/telemetry/boards -update
	go test -count=1 -run='^TestOperationsDocListsSettings$$' ./server/cmd/kvoracle -update

.PHONY: tidy
tidy: ## Tidy every go.mod
	@$(list-modules) | while read -r mod; do
		go -C "$$(dirname "$$mod")" mod tidy
	done

.PHONY: clean
clean: ## Remove what the targets made
	rm -rf bin .cache

# ---- tests ----

.PHONY: test
test: ## Run unit tests and fuzz seeds, with the race detector where there is a C compiler
	$(step)
	race=-race
	if ! why=$$(go build -race runtime/cgo 2>&1); then
		race=
		export CGO_ENABLED=0 # or packages with optional C would fail for want of the compiler
		printf 'NO RACE DETECTOR: it needs cgo and a C compiler, and this machine says:\n%s\n' "$$why"
		if [[ -n "$${KVORACLE_CI:-}" ]]; then exit 1; fi
	fi
	go test -v $$race -shuffle=on -timeout=20m ./... 2>&1 | awk -f .ci/gotest.awk
	if [[ -n "$$race" ]]; then
		echo 'and without the race detector what it makes impossible: allocation counts, bounds of memory, a million operations, long lives, a thousand storms, whole simulations'
		go test -v -run='Alloc|Million|LivesWithoutEnd|ChurnLeavesNothing|DeepHole|TablesShrink|AFullDisk|NATSStandsStill' ./... 2>&1 | awk -f .ci/gotest.awk
		go test -v -run='^TestStorm$$' ./internal/storm 2>&1 | awk -f .ci/gotest.awk
		go test -v ./internal/sim 2>&1 | awk -f .ci/gotest.awk
		go test -v -run='^TestCapacity' ./internal/replay 2>&1 | awk -f .ci/gotest.awk
	fi

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME (default 10s)
	$(step)
	log=$$(mktemp)
	trap 'rm -f "$$log"' EXIT
	found=0
	while IFS=: read -r file func; do
		name=$${func#func }
		name=$${name%%(*}
		found=$$((found + 1))
		printf '%s in %s\n' "$$name" "$$(dirname "$$file")"
		if ! go -C "$$(dirname "$$file")" test -run='^$$' -fuzz="^$$name\$$" -fuzztime='$(FUZZTIME)' -fuzzminimizetime=3x . </dev/null |& tee "$$log"; then
			# Before Go 1.27 a run that ends exactly on time may be called failed (go.dev/issue/75804). A finding
			# always names the failing input; this names none.
			grep -qx '    context deadline exceeded' "$$log" && ! grep -qi 'failing input' "$$log" || exit 1
			echo 'not a finding: time was up (go.dev/issue/75804)'
		fi
	done < <($(list-go) -name '*_test.go' -exec grep -H '^func Fuzz[A-Z0-9_]' {} + | sort)
	printf '%d fuzz targets, %s each\n' "$$found" '$(FUZZTIME)'
	((found > 0))

.PHONY: bench
bench: ## Run the benchmarks; BENCH=regexp, BENCHFLAGS='-count=10'
	go test -run='^$$' -bench='$(BENCH)' -benchmem $(BENCHFLAGS) ./...

# Flags of the index benchmark: INDEXFLAGS=-quick, INDEXFLAGS='-only gate,private -runs 5'.
INDEXFLAGS ?=

.PHONY: bench-index
bench-index: ## Measure the prefix index against what is promised of it; INDEXFLAGS=-quick for a minute instead of ten
	mkdir -p bin
	go -C bench build -o ../bin/ ./indexbench
	bin/indexbench $(INDEXFLAGS)

.PHONY: bench-policy
bench-policy: ## Measure what a choice among workers costs against what is promised of it (half a minute)
	mkdir -p bin
	go -C bench build -o ../bin/ ./policybench
	bin/policybench

# Flags of the wire benchmark: WIREFLAGS='-rounds 1', WIREFLAGS='-only 512,hash'.
WIREFLAGS ?=

.PHONY: bench-wire
bench-wire: ## Measure a decision over the wire against an echo, in processes of one core each (about 90 s)
	mkdir -p bin
	go -C bench build -o ../bin/ ./wirebench
	bin/wirebench $(WIREFLAGS)

# Flags of the comparison with others: PEERFLAGS='-blocks 1000000 -runs 1', PEERFLAGS='-only kvoracle,smg'.
PEERFLAGS ?=

.PHONY: bench-peers
bench-peers: ## Measure published indexes of others beside ours, on the same operations; needs Rust and crates.io, once
	@mkdir -p bin .cache
	go -C bench build -o ../bin/ ./peerbench
	peers=.cache/peers/release/peers
	if ! command -v cargo >/dev/null; then
		echo 'only ours: no cargo here; rustup or the distribution has it (1.85 or newer)'
		peers=
	elif ! CARGO_TARGET_DIR=.cache/peers RUSTFLAGS='-C target-cpu=native' cargo build --release --locked --manifest-path bench/peers/Cargo.toml; then
		echo 'only ours: the others could not be built'
		peers=
	fi
	bin/peerbench -file .cache/gate.kvops -peers "$$peers" $(PEERFLAGS)

# Flags of the comparison: REPLAYFLAGS=-quick checks the machinery in a minute.
REPLAYFLAGS ?= -out docs/results.md

.PHONY: replay
replay: ## Run every policy on every workload in virtual time and write docs/results.md (12 to 20 min); REPLAYFLAGS=-quick
	mkdir -p bin
	go -C bench build -o ../bin/ ./replaybench
	bin/replaybench $(REPLAYFLAGS)

# Flags of the replay: OPENLOOPFLAGS='-window 4s', OPENLOOPFLAGS='-copies 8 -writers 2'.
OPENLOOPFLAGS ?=

.PHONY: bench-replay
bench-replay: ## Replay a public trace to the index in an open loop, ever faster, until it cannot keep up (about 90 s)
	@mkdir -p bin
	go -C bench build -o ../bin/ ./openloop
	bin/openloop $(OPENLOOPFLAGS)

.PHONY: bench-path
bench-path: ## Measure the way from tokens to the answer, step by step, with chained ids and without (about 20 s)
	@mkdir -p bin
	go -C bench build -o ../bin/ ./pathbench
	bin/pathbench

.PHONY: bench-zmtp
bench-zmtp: ## Measure our ZeroMQ, publisher and subscriber on one core together (about 15 s)
	go test -run='^$$' -bench='^BenchmarkSubscribe$$' -benchmem -cpu=1 -benchtime=2s ./internal/engine/zmtp |
		awk '{ print } $$1 ~ /payload=100$$/ { for (i = 2; i < NF; i++) if ($$(i + 1) == "msgs/cpu-s") rate = $$i }
			END { printf "bar zmtp-small-messages-per-processor-second %.0f 200000 %s\n", rate, (rate >= 200000 ? "ok" : "short") }'

# Flags of the report benchmark: REPORTFLAGS='-rounds 2', REPORTFLAGS='-streams 200 -every 20ms'.
REPORTFLAGS ?=

.PHONY: bench-reports
bench-reports: ## Measure decisions while a thousand workers report 50,000 blocks a second (about 100 s)
	mkdir -p bin
	go -C bench build -o ../bin/ ./reportbench
	bin/reportbench $(REPORTFLAGS)

.PHONY: bench-restart
bench-restart: ## Measure what it costs to keep the index over a restart, and what decisions notice of it (about 40 s)
	@mkdir -p bin
	go -C bench build -o ../bin/ ./restartbench
	bin/restartbench

# Flags of the replicas' benchmark: REPLICAFLAGS='-decisions 1000'.
REPLICAFLAGS ?=

.PHONY: bench-replicas
bench-replicas: ## Measure how soon three replicas, each a process, know what one of them has decided (about 25 s)
	@mkdir -p bin
	go -C bench build -o ../bin/ ./replicabench
	bin/replicabench $(REPLICAFLAGS)

# How long `make soak-cluster` runs, and with how much.
SOAK_CLUSTER ?= 10m
SOAKFLAGS ?= -reporters 256 -blocks 50000 -decisions 2000

.PHONY: soak-cluster
soak-cluster: ## Run three replicas with 256 reporters, 50,000 blocks and 2,000 decisions a second for SOAK_CLUSTER (default 10m), and compare what they know
	@mkdir -p bin
	go -C bench build -o ../bin/ ./replicabench
	bin/replicabench -for '$(SOAK_CLUSTER)' $(SOAKFLAGS)

.PHONY: bench-bridge
bench-bridge: ## Measure a bridge on one core that hears 16 ranks publish 100,000 events a second (about 20 s)
	@mkdir -p bin
	go -C bench build -o ../bin/ ./bridgebench
	bin/bridgebench

# Flags of the Envoy benchmark: ENVOYFLAGS='-rounds 2', ENVOYFLAGS='-rate 1000 -body 32000', ENVOYFLAGS=-awake.
ENVOYFLAGS ?=

.PHONY: bench-envoy
bench-envoy: .cache/e2e/venv/.ready build ## Measure what kvoracle adds to a request through Envoy; needs what e2e needs (about 60 s)
	@go -C bench build -o ../bin/ ./envoybench
	bin/envoybench -envoy .cache/e2e/venv/bin/envoy $(ENVOYFLAGS)

# How long `make soak` compares the index, and how many storms of reports it weathers then.
SOAK ?= 10m
STORMS ?= 20000

.PHONY: soak
soak: ## Compare the index with its naive twin for SOAK (default 10m), then weather STORMS storms of reports
	KVORACLE_SOAK='$(SOAK)' go test -v -run='^TestMillionOperationsEqualTwin$$' -count=1 -timeout=0 ./internal/index/ 2>&1 | awk '!/seed=|seed [0-9]/ || /FAIL|random_test|script_test/'
	go test -count=1 -timeout=0 -run='^TestStorm$$' ./internal/storm/ -storms='$(STORMS)'

# NGINX and HAProxy as Debian builds them, unpacked: nothing is installed, and no daemon is started.
PROXIES := .cache/e2e/proxies
PROXY_PACKAGES := nginx libnginx-mod-http-js haproxy

# Chromium without a screen, in the same way: 60 MB.
BROWSER := .cache/e2e/browser
BROWSER_PACKAGES := chromium-headless-shell

# Says that there is a python3 that makes venvs.
PYTHON3 := .cache/e2e/python3.ready

VENV := .cache/e2e/venv
REQUIREMENTS := internal/e2e/testdata/requirements.txt

# vLLM has a venv of its own, 6 GB: its dependencies are not ours to choose. uv unpacks it in half a minute, pip in several.
VLLM := .cache/e2e/vllm
VLLM_REQUIREMENTS := internal/e2e/testdata/requirements-vllm.txt

# LiteLLM, too.
LITELLM := .cache/e2e/litellm
LITELLM_REQUIREMENTS := internal/e2e/testdata/requirements-litellm.txt

# What installs a list of packages, with all that they need in it, into a venv that is there.
UV := uv==0.13.9
define install
	'$(1)/bin/pip' install --quiet --disable-pip-version-check '$(UV)'
	UV_NATIVE_TLS=1 UV_HTTP_TIMEOUT=180 '$(1)/bin/uv' pip install --quiet --no-cache --python '$(1)/bin/python' --no-deps --requirement '$(2)' ||
		'$(1)/bin/pip' install --quiet --disable-pip-version-check --no-deps --requirement '$(2)'
endef

.PHONY: e2e
e2e: ## Run the built programs with everything real that can be installed: the two below; needs python3 with venv, and PyPI and Debian's packages once
	@$(MAKE) -j6 e2e-needs '$(VLLM)/.ready'
	$(MAKE) e2e-parts e2e-vllm

# What e2e-parts needs, all at once: compilers work while packages come.
.PHONY: e2e-needs
e2e-needs: $(VENV)/.ready $(LITELLM)/.ready $(PROXIES)/.ready $(BROWSER)/.ready e2e-compiled

.PHONY: e2e-compiled
e2e-compiled:
	@go test $(TAGS) -run='^$$' ./internal/e2e/... >/dev/null
	go build -o /dev/null ./server/cmd/... ./client/cmd/...

.PHONY: e2e-parts
e2e-parts: ## Run the built programs with Python and TypeScript clients, Envoy, NGINX, HAProxy, LiteLLM, libzmq and a browser
	$(step)
	$(MAKE) -j5 e2e-needs
	export KVORACLE_E2E_PYTHON='$(CURDIR)/$(VENV)/bin/python' KVORACLE_E2E_PROXIES='$(CURDIR)/$(PROXIES)' \
		KVORACLE_E2E_LITELLM_PYTHON='$(CURDIR)/$(LITELLM)/bin/python' KVORACLE_E2E_BROWSER='$(CURDIR)/$(BROWSER)'
	go test -v $(TAGS) -count=1 -timeout=25m ./internal/e2e/... 2>&1 | awk -f .ci/gotest.awk

.PHONY: e2e-vllm
e2e-vllm: $(VENV)/.ready $(VLLM)/.ready ## Hold Route's answers against what two real vLLM engines take from their caches; needs 6 GB from PyPI once
	$(step)
	export KVORACLE_E2E_PYTHON='$(CURDIR)/$(VENV)/bin/python' KVORACLE_E2E_VLLM_PYTHON='$(CURDIR)/$(VLLM)/bin/python'
	go test -v $(ALLTAGS) -count=1 -timeout=25m -run='^TestVLLM$$' ./internal/e2e/ 2>&1 | awk -f .ci/gotest.awk

$(VLLM)/.ready: $(VLLM_REQUIREMENTS) $(PYTHON3)
	@rm -rf '$(VLLM)'
	python3 -m venv '$(VLLM)'
	$(call install,$(VLLM),$(VLLM_REQUIREMENTS))
	touch '$@'

$(LITELLM)/.ready: $(LITELLM_REQUIREMENTS) $(PYTHON3)
	@rm -rf '$(LITELLM)'
	python3 -m venv '$(LITELLM)'
	$(call install,$(LITELLM),$(LITELLM_REQUIREMENTS))
	touch '$@'

$(PYTHON3):
	@if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
		if [[ $$(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
			echo 'make e2e needs python3 with its venv module (Debian: apt-get install python3 python3-venv)' >&2
			exit 1
		fi
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
	fi
	mkdir -p '$(dir $@)'
	touch '$@'

$(VENV)/.ready: $(REQUIREMENTS) $(PYTHON3)
	@rm -rf '$(VENV)'
	python3 -m venv '$(VENV)'
	$(call install,$(VENV),$(REQUIREMENTS))
	touch '$@'

# What unpacks packages of Debian's, with what they need and the system has not, into a folder.
define unpack
	rm -rf '$(1)'
	mkdir -p '$(1)/archives/partial'
	if [[ $$(id -u) == 0 ]]; then apt-get update -qq; fi
	apt-get install -qq --yes --download-only --reinstall --no-install-recommends -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
		-o Dir::Cache::archives='$(CURDIR)/$(1)/archives' $(2)
	for deb in '$(1)'/archives/*.deb; do dpkg -x "$$deb" '$(1)'; done
	rm -rf '$(1)/archives'
	touch '$(1)/.ready'
endef

$(BROWSER)/.ready: | $(PROXIES)/.ready # apt-get is one at a time
	@if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
		echo 'make e2e takes Chromium from packages of Debian: it needs apt-get' >&2
		exit 1
	fi
	$(call unpack,$(BROWSER),$(BROWSER_PACKAGES))

$(PROXIES)/.ready: | $(PYTHON3)
	@if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
		echo 'make e2e takes NGINX and HAProxy from packages of Debian or Ubuntu: it needs apt-get' >&2
		exit 1
	fi
	$(call unpack,$(PROXIES),$(PROXY_PACKAGES))

# ---- checks: `make check` runs them all; each runs alone too ----

.PHONY: check
check: check-words check-fmt check-proto check-breaking check-generate check-tidy check-vet
check: check-fix check-lint check-deploy ## Run every check below

.PHONY: check-words
check-words: ## No left-over marks in code, no paths of somebody's machine anywhere
	$(step)
	bad=0
	refuse() {
		local rc=0
		git grep --untracked -nI "$$@" ':!*.sum' || rc=$$?
		((rc == 1)) || bad=1 # 1 is "nothing found", anything above is git's own trouble
	}
	refuse -wE 'TODO|FIXME|XXX' -- '*.go' '*.proto'
	refuse -E '/(home|Users)/[A-Za-z0-9._-]+/|/roo[t]/' -- .
	refuse -F "$$PWD" -- .
	exit "$$bad"

.PHONY: check-fmt
check-fmt: ## Go files are as gofumpt writes them
	$(step)
	$(list-go) -exec $(GOFUMPT) -d {} + || { echo 'run: make fmt'; exit 1; }

.PHONY: check-proto
check-proto: ## Proto files are formatted and lint-clean
	$(step)
	$(BUF) format -d --exit-code
	$(BUF) lint

# Against the last common commit with main; on main itself against the state before the newest change to proto/, so
# that a clone of main checks something too.
.PHONY: check-breaking
check-breaking: ## Proto files break no client, compared with main
	$(step)
	base=
	for main in origin/main main; do
		if base=$$(git merge-base HEAD "$$main" 2>/dev/null); then break; fi
	done
	if [[ -z "$$base" ]]; then
		echo 'nothing to compare with: no commit is shared with origin/main or main'
		exit 0
	fi
	if [[ $$base == "$$(git rev-parse HEAD)" ]] && [[ -z "$$(git status --porcelain -- proto)" ]]; then
		newest=$$(git rev-list -1 HEAD -- proto)
		base=$$(git rev-parse --quiet --verify "$${newest:-HEAD}^") || base=
	fi
	if [[ -z "$$base" ]] || ! git cat-file -e "$$base:proto" 2>/dev/null; then
		echo 'nothing to compare with: there is no earlier version of proto/'
		exit 0
	fi
	tmp=$$(mktemp -d)
	trap 'rm -rf "$$tmp"' EXIT
	git archive "$$base" -- proto buf.yaml | tar -x -C "$$tmp"
	printf 'compared with %s\n' "$$(git log -1 --format='%h %s' "$$base")"
	$(BUF) breaking --against "$$tmp"

.PHONY: check-generate
check-generate: ## gen/ is what proto/ generates
	$(step)
	tmp=$$(mktemp -d)
	trap 'rm -rf "$$tmp"' EXIT
	$(BUF) generate -o "$$tmp"
	diff -ru gen "$$tmp/gen" || { echo 'run: make generate'; exit 1; }

.PHONY: check-tidy
check-tidy: ## Every go.mod is tidy
	$(step)
	bad=0
	while read -r mod; do
		go -C "$$(dirname "$$mod")" mod tidy -diff || { printf 'not tidy: %s\n' "$$mod"; bad=1; }
	done < <($(list-modules))
	exit "$$bad"

.PHONY: check-vet
check-vet: ## go vet
	$(step)
	go vet $(ALLTAGS) ./...

.PHONY: check-fix
check-fix: ## Code uses today's idioms, as go fix knows them
	$(step)
	go fix $(ALLTAGS) -diff ./... || { echo 'run: go fix $(ALLTAGS) ./...'; exit 1; }

.PHONY: check-lint
check-lint: ## Linters, and the import table of .golangci.yml
	$(step)
	$(GOLANGCI) run --allow-serial-runners ./...

.PHONY: check-deploy
check-deploy: ## The chart by Helm, the kustomization by Kustomize, rules and dashboards by Prometheus's parser
	$(step)
	go -C tools/deploy test -count=1 ./...
