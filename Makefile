# The commands of everyday work. .ci/run is what CI runs; docs/testing.md has the rest.

.DEFAULT_GOAL := help
SHELL := /bin/bash
FUZZ_TIME ?= 10s
FUZZ_REQUESTS ?= 40000x
BUILD_FLAGS := -tags nomsgpack -trimpath -ldflags "-s -w"

# Tests of e2e about the source and the documents; they start no client of others.
SOURCE_TESTS := ^Test(Packages|ImportTables|Libraries|Dependencies|Documents|ConfigurationPage|Makefile|ReadmeShell|ReadmeTest)

.PHONY: help test test-fast test-deploy lint fuzz bench e2e build image

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## all tests, with real clients where Python is installed; some minutes
	go test ./...

test-fast: ## the tests of all packages but e2e, and those of the documents; under a minute when built
	go test -skip '^TestBars' $$(go list ./... | grep -v '^berth/e2e$$')
	go test -run '$(SOURCE_TESTS)' ./e2e

test-deploy: ## the image, the chart, the rules and the dashboard in deploy; some minutes the first time
	go -C deploy/image test ./...
	go -C deploy/test test ./...

lint: ## gofmt, go vet and golangci-lint (installed at a pinned version)
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { printf 'not formatted:\n%s\n' "$$unformatted"; exit 1; }
	go vet ./...
	"$$(.ci/golangci-lint)" run ./...

fuzz: ## each fuzz target for FUZZ_TIME (10s)
	@FUZZ_TIME=$(FUZZ_TIME) FUZZ_REQUESTS=$(FUZZ_REQUESTS) .ci/fuzz

bench: ## CPU time of berth, HAProxy and nginx, interleaved; 15 minutes on a quiet machine
	go run ./e2e/bench

e2e: ## the tests with real clients, engines and proxies; what is missing is a failure
	BERTH_E2E=all go test -count 1 -timeout 30m ./e2e

build: ## ./berth as users get it: static, without symbols
	CGO_ENABLED=0 go build $(BUILD_FLAGS) -o berth ./cmd/berth

image: ## berth.tar: a container image for linux/amd64 and linux/arm64, by Go alone
	go -C deploy/image run . -out ../../berth.tar
