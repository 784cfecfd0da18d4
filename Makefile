# Everything that one does with this repository. `make demo` and `make test` need
# Go and make alone; what else is needed they build from the Go module proxy or
# install from Debian's packages, and they say so.

GO         ?= go
BIN        := $(CURDIR)/bin
DEVCLUSTER := $(BIN)/devcluster
BENCH      ?= .
FUZZTIME   ?= 1s

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0

export GITOPSD_DEVCLUSTER := $(DEVCLUSTER)
# For whatever is compiled here, so that checks, tests and programs share what was:
# Kubernetes alone takes minutes. What debuggers read of a program (DWARF; stack traces
# and profiles do without) takes a sixth of the compiler's time. Without cgo, kustomize's
# loader cannot open Go plugins, and so the linker leaves out what nobody calls; only the
# race detector needs cgo.
export GOFLAGS := -trimpath -gcflags=all=-dwarf=false -toolexec=$(CURDIR)/.ci/tool $(GOFLAGS)
export CGO_ENABLED ?= 0

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: ## Build bin/gitopsd
	@echo "building gitopsd; a few minutes when the cache is cold"
	@$(GO) build -o $(BIN)/gitopsd ./cmd/gitopsd

.PHONY: image
image: ## Build the container image for amd64 and arm64, with the list of its modules, into bin/image, or push it to IMAGE=<reference>
	@echo "building the image; minutes when the cache is cold, since gitopsd is compiled for both"
	@$(GO) run ./cmd/image $(if $(IMAGE),-push '$(IMAGE)',-layout bin/image)

.PHONY: demo
demo: tools ## Watch a real fleet follow a real Git repository (KEEP=1 leaves it running)
	@$(MAKE) --no-print-directory -j 2 $(DEVCLUSTER) programs
	@exec $(BIN)/demo $(if $(KEEP),--keep)

# In one command, and beside devcluster: each ends with a package or program that
# nothing else can be compiled beside.
.PHONY: programs
programs:
	@echo "building gitopsd and the demo; a few minutes when the cache is cold"
	@$(GO) build -o $(BIN)/ ./cmd/gitopsd ./cmd/demo

.PHONY: test
test: tools lint $(DEVCLUSTER) ## Everything that CI checks
	@GOTESTSUM=$(GOTESTSUM) FUZZTIME=$(FUZZTIME) .ci/test

.PHONY: conformance
conformance: tools $(DEVCLUSTER) ## What takes too long for every change: large packages and 10,000 judged objects in an API server, Kubernetes' own migration and tests, rules against conversions that projects wrote, the proxy against tests of etcd and Kubernetes
	@$(GO) test -count 1 -timeout 30m ./render/types -run 'TestLive$$' -all
	@$(GO) test -count 1 -timeout 30m ./reconcile/migrate -run 'TestKubernetes$$' -all
	@$(GO) test -count 1 -timeout 30m ./reconcile/apply -run 'TestSurveyAgainstServer$$' -all
	@$(GO) test -count 1 -timeout 90m ./reconcile/convert -run '^TestKubernetes' -all
	@$(GO) test -count 1 -timeout 90m ./render/conversion/histories -all
	@$(GO) test -count 1 -timeout 30m ./reconcile/etcdproxy/linearizability -all
	@$(GO) test -count 1 -timeout 60m ./reconcile/etcdproxy/conformance -all

.PHONY: bench
bench: tools $(DEVCLUSTER) ## Benchmarks against their rivals (BENCH=<regexp> for some)
	@echo "building the benchmarks"
	@$(GO) run ./cmd/bench -run '$(BENCH)'

.PHONY: lint
lint: tools ## gofmt, go vet, staticcheck, govulncheck
	@STATICCHECK=$(STATICCHECK) GOVULNCHECK=$(GOVULNCHECK) .ci/lint

.PHONY: fmt
fmt: ## Format the code
	gofmt -w cmd reconcile render sources testscripts

.PHONY: tools
tools:
	@.ci/tools

# The development control plane, a module of its own. Its build takes minutes on
# a cold cache, so it happens once, and again when its sources change.
$(DEVCLUSTER): $(shell find cmd/devcluster -name '*.go') cmd/devcluster/go.mod cmd/devcluster/go.sum
	@echo "building devcluster: etcd, kube-apiserver and Kubernetes' controllers; some minutes when the cache is cold"
	@mkdir -p $(BIN)
	@cd cmd/devcluster && $(GO) build -ldflags '-s -w' -o $(BIN)/new/ . ./kubectl && mv $(BIN)/new/* $(BIN) && rmdir $(BIN)/new

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN)
