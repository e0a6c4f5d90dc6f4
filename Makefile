# Every target says what it does behind `##`; `make help` prints them.

SHELL := /usr/bin/env bash -o pipefail
.DEFAULT_GOAL := help

# Pinned, so that a new release of the linter cannot break an old commit.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Without this, grpc brings a web page of traces, which nothing here serves, and with it 16 MB of code that
# Go would otherwise leave out. Add noetcd, nokube, nomysql, nopostgres, noredis,
# nos3 or nozookeeper to leave out a store.
TAGS     ?= grpcnotrace
PREFIX   ?= /usr/local
# Four packages at a time on however many processors: their tests wait for real servers and TTLs.
TESTFLAGS ?= -timeout=30m -p=4
BENCH    ?= .
RUNS     ?= 3
FUZZTIME ?= 10s

# One for the core and one for each client library, so that a user's go.sum has only what is asked for.
# Not the Kubernetes API server: its hundreds of modules take minutes, and only make test-kube builds it.
MODULES := $(filter-out internal/backends/kubeserver,$(patsubst %/,%,$(dir $(wildcard go.mod */go.mod */*/go.mod internal/*/*/go.mod */internal/*/go.mod))))
# Its schedules go one after the other, so that the race detector would only make them fewer.
SIMULATION := redislock/internal/simulation
# What make test runs: all but those whose tests make test-long and make interop run.
TESTED  := $(filter-out dev examples internal/% $(SIMULATION),$(MODULES))
PKGS    ?= ./... $(patsubst %,./%/...,$(filter-out .,$(TESTED)))
# What make quick runs: neither a store's client nor the command, which take minutes to build and to test.
QUICK   := ./... ./tests/caslock ./tests/filelock ./tests/memlock

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# With the flags of go run, so that neither compiles again what the other has.
.PHONY: build
build: ## build the commands into bin/
	go build -o bin/ ./cmd/hasp ./torture/hasp-torture

.PHONY: install
install: ## install the commands, static and small, below PREFIX (default /usr/local)
	CGO_ENABLED=0 go build -trimpath -tags $(TAGS) -o bin/ ./cmd/hasp ./torture/hasp-torture
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin bin/hasp bin/hasp-torture

# The same commit makes the same bytes.
.PHONY: release
release: ## make the files of a release in dist/: binaries, archives, .deb, SBOM, provenance, checksums (VERSION=v1.2.3, whose tag must be checked out; SIGN=an OpenSSH key)
	GOWORK=off go -C dev/packaging run . -root ../.. -out $(CURDIR)/dist -version '$(VERSION)' $(if $(PLATFORMS),-platforms $(PLATFORMS)) $(if $(MAINTAINER),-maintainer '$(MAINTAINER)') $(if $(SIGN),-sign '$(abspath $(SIGN))')

.PHONY: quick
quick: ## what needs no server and builds soon: the core, memlock, filelock, caslock, drivertest (1 minute)
	internal/testtier/run.sh quick -vet=off $(TESTFLAGS) $(QUICK)

# Without root what is missing stays missing, and its tests are skipped and say so.
.PHONY: servers
servers:
	@go run ./internal/backends/install || test "$$REQUIRE_BACKENDS" != 1

.PHONY: test
test: servers ## every store on one topology, on real servers, with the race detector (12 minutes on two cores); REQUIRE_BACKENDS=1 fails where one is missing
	internal/testtier/run.sh test $(TESTFLAGS) $(PKGS)
	$(if $(filter file,$(origin PKGS)),cd $(SIMULATION) && go test -short ./...)

.PHONY: steady
steady: servers ## make test RUNS times (10) beside LOAD busy threads (0), the run DISK (0) beside heavy disk writing too; ends with the first that fails
	internal/testtier/steady.sh $(if $(filter command line,$(origin RUNS)),$(RUNS),10) $(or $(LOAD),0) $(or $(DISK),0) test $(TESTFLAGS) $(PKGS)

.PHONY: test-long
test-long: servers ## what make test leaves out: other strategies, topologies, clients and versions, long faults, crowds (25 minutes)
	cd dev && GOWORK=off go test -timeout 20m ./...
	cd examples && go test ./...
	internal/testtier/run.sh long $(TESTFLAGS) $(PKGS)
	$(if $(filter file,$(origin PKGS)),cd $(SIMULATION) && SIMULATE=$${SIMULATE:-10m} go test -timeout 60m ./...)

.PHONY: test-all
test-all: check test test-long interop test-kube ## all there is (1 hour; CI leaves test-kube out)

# What takes longer than CI may. The versions of Go are the oldest that go.mod allows, and the newest.
.PHONY: nightly
nightly: test-all test-redis programs crowd ## test-all and what is longer still: all versions of Redis, random programs, a crowd, old peers, fuzzing, the oldest and newest Go (4 hours)
	$(MAKE) interop VERSIONS=old
	$(MAKE) fuzz FUZZTIME=1m
	go test -race -count=1 -timeout 30m -run TestConformanceOnMoto ./tests/s3lock -moto
	go test -count=1 -timeout 60m -run TestRelease ./internal/modules -toolchains "$$(GOWORK=off go list -m -f 'go{{.GoVersion}}'),$$(GOWORK=off go list -m -f 'go{{.Version}}' go@latest)"

# The first is the one that Debian installs.
.PHONY: test-redis
test-redis: ## run the Redis drivers' tests on Redis 6.2, 7, 8 and on Valkey
	@for v in "" 6.2 8 valkey; do echo "== HASP_REDIS=$$v"; \
	  HASP_REDIS=$$v internal/testtier/run.sh all $(TESTFLAGS) ./redislock/... ./redislock/internal/tests/... ./tests/redislock ./tests/redlock ./tests/redisfence ./tests/goredis || exit 1; \
	  (cd $(SIMULATION) && HASP_REDIS=$$v go test -count=1 -run 'Model|Conversions|Histories|Wait' ./...) || exit 1; done

.PHONY: backends
backends: ## install and build all servers that the tests and benchmarks start
	go run ./internal/backends/install

.PHONY: programs
programs: ## run random programs on every store (HASP_PROGRAMS=500), a million on memlock
	HASP_PROGRAMS=$(or $(HASP_PROGRAMS),500) go test -count=1 -timeout 60m -p 1 -run '^TestConformance/^(Programs|Ensemble|Node|Cluster|Sentinel|SetNX|Redisson|GetLock|Row|DB|Three|Old|.*Pooler)$$/^Programs$$' ./tests/...
	HASP_PROGRAMS=$(or $(HASP_PROGRAMS),500) go test -count=1 -timeout 60m -p 1 -run TestPrograms ./tests/filelock ./tests/httplock
	HASP_PROGRAMS=10000 go test -count=1 -timeout 60m -run TestPrograms ./tests/caslock
	HASP_PROGRAMS=1000000 go test -count=1 -timeout 60m -run TestPrograms ./tests/memlock

.PHONY: crowd
crowd: servers ## 100,000 locks of one client on a Redis cluster, for ten TTLs (4 minutes on a quiet machine)
	HASP_CROWD=1 go test -count=1 -timeout 20m -v -run TestHundredThousandOfACluster ./tests/redislock

# In slices of a minute, whose verdicts are kept: the same command goes on where it was broken off.
HASP_TORTURE_DIR ?= $(HOME)/.cache/hasp-torture
.PHONY: torture
torture: servers build ## hasp-torture on every store, 10 minutes each (FOR=1h), into dev/interop/campaign.json and docs/TORTURE-RUNS.md; goes on with what HASP_TORTURE_DIR lacks; STORES=regexp: some, and no file
	cd dev/interop && GOWORK=off go run . campaign -torture ../../bin/hasp-torture -for '$(or $(FOR),10m)' -dir '$(HASP_TORTURE_DIR)' -parallel '$(or $(PARALLEL),2)' $(if $(STORES),-only '$(STORES)',-out campaign.json -page ../../docs/TORTURE-RUNS.md)

# The locks of others as adapters: interop has them.
.PHONY: torture-peers
torture-peers: build ## hasp-torture on other people's lock libraries, 40 s each (FOR=5m), into dev/interop/peers.json and docs/TORTURE-RUNS.md; PEERS=regexp: only those anew
	cd dev/interop && GOWORK=off go run . peers -hasp ../../bin/hasp -torture ../../bin/hasp-torture -for '$(or $(FOR),40s)' -only '$(PEERS)' -out peers.json -page ../../docs/TORTURE-RUNS.md

# Its own module: what it links and installs is no business of the library's users.
.PHONY: test-kube
test-kube: ## kubelock on a real Kubernetes API server, which is built first (5 minutes), 15 minutes; DISASTERS=1h: restored backups, ended namespaces, replaced tokens and the like for an hour
	HASP_KUBE=1 go test -timeout 120m ./tests/kubelock $(if $(DISASTERS),-disasters $(DISASTERS))

.PHONY: interop
interop: ## contend with other people's lock libraries, in Go, Java, Python and Node (INTEROP="-only regexp"; VERSIONS=old: their old versions)
	cd dev/interop && GOWORK=off go run . $(if $(VERSIONS),-versions $(VERSIONS)) $(INTEROP)

.PHONY: check
check: build fmt-check tidy-check vet lint deps modules api words ## all static checks: format, modules, vet, lint, dependency rules, API, plain English

.PHONY: fmt-check
fmt-check: ## fail if gofmt would change a file
	@files=$$(gofmt -l .); test -z "$$files" || { printf 'gofmt would change:\n%s\n' "$$files"; exit 1; }

.PHONY: tidy-check
tidy-check: ## fail if a go.mod or go.sum is not tidy
	@for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy -diff) || { echo "$$m/go.mod is not tidy"; exit 1; }; done

# vet compiles the tests as well. For Windows it is enough that the code builds.
.PHONY: vet
vet: ## go vet for Linux and macOS, build for Windows
	@for m in $(MODULES); do (cd $$m && GOWORK=off go vet ./...) || exit 1; done
	GOOS=darwin go vet $(PKGS)
	GOOS=windows go build $(PKGS)

.PHONY: lint
lint: ## staticcheck
	@for m in $(MODULES); do (cd $$m && GOWORK=off go run $(STATICCHECK) ./...) || exit 1; done

.PHONY: deps
deps: ## fail if a package imports what its list does not allow
	go test ./internal/deps

# That it builds alone, the checks before have shown: vet and lint do without go.work.
.PHONY: modules
modules: ## say what each module adds to its user's go.sum; fail if it is more than its libraries, or if tests link other versions
	go run ./internal/modules versions
	go run ./internal/modules weigh

.PHONY: api
api: ## fail if what programs import, or the command's face, is not as in api/ and docs/COMMAND.md (UPDATE=1: it is meant)
	go run ./internal/modules api $(if $(UPDATE),-update)
	go test -count=1 -run 'TestFace|TestCommandPage' ./cmd/hasp/internal/cli $(if $(UPDATE),-update)

.PHONY: words
words: ## fail if a file has a phrase that plain English does without, or a comment over 100 columns
	go test -run 'Words|Phrases' ./internal/docs

.PHONY: sizes
sizes: ## report files over 350 lines and functions over 60
	@git ls-files -co --exclude-standard '*.go' | grep -v '_test\.go$$' | while read -r f; do awk -v f="$$f" ' \
	  /^func / {name = $$0; start = FNR} \
	  /^}/ && name != "" {n = FNR - start + 1; if (n > 60) print n " lines  " f ": " substr(name, 1, 70); name = ""} \
	  END {if (FNR > 350) print FNR " lines  " f}' "$$f"; done | sort -rn

# What is measured as a whole goes into the documentation; a part is only printed.
.PHONY: bench
bench: ## measure beside floors and peers (STORE=redis,etcd SCENARIO=handover RUNS=3; LONG=1: growth to its end); without STORE and SCENARIO all, into docs/PERFORMANCE.md and dev/bench/RESULTS.md
	cd dev/bench && GOWORK=off REQUIRE_BACKENDS=1 go run . -store '$(or $(STORE),all)' -scenario '$(or $(SCENARIO),all)' -runs $(RUNS) $(if $(LONG),-long) $(if $(STORE)$(SCENARIO),,-out ../..)

.PHONY: microbench
microbench: ## run the packages' own benchmarks (BENCH=regexp)
	go test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m -p 1 $(PKGS)

# go test fuzzes one target of one package at a time, hence the loop. -list prints the
# targets of a package first and the package behind them.
.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 10s) each
	@go test -list '^Fuzz' $(PKGS) | awk '/^Fuzz/ {t[n++] = $$1} /^ok/ {for (i = 0; i < n; i++) print $$2, t[i]; n = 0}' | \
	while read -r pkg target; do \
	  echo "== $$pkg $$target"; \
	  go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null || exit 1; \
	done

.PHONY: clean
clean: ## remove what was built here
	rm -rf bin dist
