# Everything here works on a machine with nothing but Go; with a JVM or Docker the tests use a real Kafka broker.

GO     ?= go
RACE   ?=
PKGS   ?=
DEVENV := $(GO) run ./test/devenv/run
LINT   := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# In CI a missing server is a failure and not a skipped suite.
REAL := $(if $(CI),-require-real,)

# The modules of this repository, for example "." and "telemetry". PKGS names packages of the root.
MODULES := . $(filter-out .,$(patsubst ./%,%,$(patsubst %/,%,$(dir $(shell find . -mindepth 2 -name go.mod -not -path './.git/*' -not -path '*/testdata/*' | sort)))))
# What onlyoncevet is tested on: a module full of faults.
FAULTY  := cmd/onlyoncevet/rules/testdata

# The laboratory, of which make test runs no tests: what compares with other libraries, or checks the checkers.
LABORATORY := test/bench test/adversary test/callcheck test/check test/compat test/devenv test/growth test/model test/mutants test/remotes test/results test/retest test/rolling test/seams test/storm
# The tests of make check.
CHECKS := test/api test/docs test/layout test/words deploy/monitoring
# They have nothing for the race detector to find: they compare with other libraries, or compute on one processor, which takes it minutes.
UNRACED := test/bench,test/compat,cmd/onlyoncevet,ops/console/e2e,test/model,test/mutants

# each runs a command in every module, $$m, and fails if it failed in one.
each = s=0; for m in $(1); do $(2) || { echo "failed: module $$m"; s=1; }; done; exit $$s

.PHONY: help map doubles quickstart test test-long long laboratory parts check lint vet other-go oncevet kit image site release tidy words size bench alerts dashboards schemathesis retention mutants adversary seams model matrix zones growth growth-shapes fuzz storm storm-franz storm-key storm-positions storm-failover storm-mixed storm-idle drill-restore drill-move storm-outbox storm-queue storm-webhook storm-keys remotes histories faults e2e nightly ci

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

map: ## list every package of every module with the first sentence of its documentation
	@$(call each,$(MODULES),$(GO) -C $$m list -f '{{.ImportPath}}: {{.Doc}}' ./...) | sed 's,^github.com/onlyonce/onlyonce/,,'

doubles: ## rows that three usual loops lose or double under kills, and the same handler with onlyonce: half a minute
	$(GO) run ./examples/doubles

quickstart: ## the main job, end to end
	$(GO) run ./examples/quickstart

# Tests wait for servers and timers more than they compute, so more of them run at once than there are processors.
AT_ONCE  ?= 4
PACKAGES ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); test "$$n" -gt 4 && echo "$$n" || echo 4)
# The packages of all modules, those first that take longest; and the folders of those that make test leaves out.
ALL     := ./consumer ./cmd/onlyonce ./onlyoncetest ./queue/sqsqueue ./outbox/sqssink ./ops/console ./outbox ./consumer/franzsource ./consumer/kafkasource ./outbox/rabbitsink ./cmd/onlyoncevet ./examples/quickstart $(MODULES:%=./%/...)
LEFTOUT := $(foreach l,$(LABORATORY),./$l/...)
# The files whose tests have cases that -short leaves out, and the names of those tests.
LONG      = $(shell grep -rlE --include=*_test.go 'pgtest[.](Long|Sampled)|testing[.]Short' cmd consumer idempotency internal onlyoncetest ops outbox sqltx webhook)
LONGTESTS = $(shell sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1|/p' $(LONG) | tr -d '\n')
# The tests of the rules of docs/rules have the rule's id in their names, for example TestO14EachTenant. make test plays one of each rule,
# drawn by PART, unless PKGS names packages; OTHERS are the names of all the others, each with a | after it.
RULED  = $(shell grep -rlE --include=*_test.go '^func Test[A-Z][0-9]+[A-Z]' . | grep -vE '/testdata/|^./(test|bench)/')
OTHERS = $(shell cat $(RULED) | grep -oE '^func Test[A-Z][0-9]+[A-Z][A-Za-z0-9_]*' | sort -u | awk -v k=$(firstword $(subst /, ,$(or $(PART),1))) '{ match($$2, /^Test[A-Z][0-9]+/); \
	r = substr($$2, 1, RLENGTH); t[r, n[r]++] = $$2 } END { for (r in n) for (i = 0; i < n[r]; i++) if (i != (k - 1) % n[r]) printf "%s|", t[r, i] }')

# In CI a test that only gave up waiting runs once more, alone, and is named in the last lines (test/retest).
TEST = $(if $(CI),$(GO) run ./test/retest -unraced $(UNRACED) $(if $(FLAKY),-flaky $(FLAKY),),$(GO) test -vet=off)
# $(1) runs in a workspace of all modules, so that one go test compiles each package once, and below one Postgres and one broker. Without the
# race detector the packages have their failpoints, and need no second binary for them.
joined = work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && export GOWORK="$$work/go.work" JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" $(if $(RACE),,GOFLAGS="$$($(GO) env GOFLAGS) -tags=onlyonce_fault") && \
	$(GO) work init $(MODULES:%=./%) && $(DEVENV) -postgres -kafka $(REAL) -- sh -c '$(1)'
# $(1) flags, $(2) packages.
gotest = $(TEST) $(RACE) -p $(PACKAGES) -parallel $(AT_ONCE) -timeout 20m $(1) $(2)
# $(1) without the packages $(2).
without = $$($(GO) list $(1) | grep -vxF "$$($(GO) list $(2))")

test: ## the tests of behaviour and one of each rule, on one Postgres and, with a JVM or Docker, one real Kafka broker; RACE=-race, RULES=all plays all of each rule, PKGS=./consumer/... all that these have but long cases
	@echo "make test: tests of behaviour, and $(if $(RULES)$(PKGS),all,one) of each rule; make test-long has the long ones and the laboratory's, make check those of documents"
	@export ONLYONCE_TEST_LONG=$(or $(PART),1/20); $(call joined,$(call gotest,-short $(if $(RULES)$(PKGS),,-skip "^($(OTHERS)none)$$"),$(if $(PKGS),$(PKGS),$(call without,$(ALL),$(LEFTOUT) $(CHECKS:%=./%)))))

test-long: ## all tests of each rule, the long ones, and the laboratory's; PART=2/3 plays the second of three parts of fault points and other similar cases, and all other tests
	@$(MAKE) test RULES=all
	@$(MAKE) long laboratory

long: ## the tests that have long cases, with those; PART=2/3 plays a part of the long cases
	@export ONLYONCE_TEST_LONG=$(PART); $(call joined,$(call gotest,$(if $(PKGS),,-run "^($(LONGTESTS)none)$$"),$(or $(PKGS),$(sort $(dir $(LONG:%=./%))))))

laboratory: ## the tests of what compares with other libraries, or checks the checkers
	@$(call joined,$(call gotest,,$(LEFTOUT)))

check: ## half a minute, before each commit: format, public surface, words, layout, documentation, links of alerts, anchors of the mutants
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted: $$unformatted"; exit 1; }
	$(GO) test $(CHECKS:%=./%)
	$(GO) test -short ./test/mutants

lint: oncevet ## onlyoncevet and golangci-lint (with go vet), in every module
	@$(call each,$(MODULES),( cd $$m && $(GO) run $(LINT) run ./... ))

oncevet: ## onlyoncevet over the library and its examples: it must find nothing
	@tool=$$(mktemp -d)/onlyoncevet && $(GO) -C cmd/onlyoncevet build -o $$tool . && { $(call each,$(MODULES),$(GO) -C $$m vet -vettool=$$tool ./...); }

vet: ## go vet, in every module
	@$(call each,$(MODULES),$(GO) -C $$m vet ./...)

# The latest Go other than go.mod's least: the two that README.md names.
OTHER_GO ?= go1.27.4
# These packages have tests without servers, of what depends most on the standard library.
SERVERLESS := ./internal/codec ./internal/fields ./internal/rfc ./outbox/httpsink ./seal ./test/api

other-go: ## vet every module that users link and run tests without servers with the latest Go, OTHER_GO
	@work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && export GOTOOLCHAIN=$(OTHER_GO) GOWORK="$$work/go.work" && $(GO) version && $(GO) work init $(MODULES:%=./%) && \
	  $(GO) vet $$($(GO) list $(MODULES:%=./%/...) | grep -vE '/(test|bench|e2e)(/|$$)') && $(GO) test -short $(SERVERLESS)

site: ## README and docs as a static site in dist/site, and llms.txt; fails on a dead link. CHECK=1 opens ten pages in Chromium, and searches
	@$(GO) -C test/site run . $(if $(CHECK),-check)

image: ## build deploy/Dockerfile's image and run its parts beside Postgres in containers, as docker-compose.yml and the chart do; needs Docker, or root and dockerd (Debian: docker.io)
	$(GO) -C deploy/check run .

release: ## write VERSION=v0.1.0 into dist/: modules, programs, sums, notes; an empty module then requires and runs them. PLATFORMS=linux/amd64, ONCE=1 builds once
	@test -n "$(VERSION)" || { echo "make release needs VERSION, for example VERSION=v0.1.0"; exit 2; }
	@$(GO) -C test/release run . -version $(VERSION) -go local,$(OTHER_GO) $(if $(PLATFORMS),-platforms $(PLATFORMS)) $(if $(ONCE),-twice=false)

tidy: ## fails if a go.mod or go.sum is not tidy; FIX=1 writes them
	@$(call each,$(MODULES) $(FAULTY),$(GO) -C $$m mod tidy $(if $(FIX),,-diff))

words: ## list the words in help, errors and log lines that the house has given up; there must be none
	$(GO) run ./test/words

size: ## lines, names, fields, long functions and references against their order, by package; COMMITS="fe6af5d8 HEAD" shows what changed
	$(GO) run ./test/size $(COMMITS)

bench: ## ratios against the same work without onlyonce; ONLY=P2,P3 picks
	cd test/bench && $(GO) run . $(if $(ONLY),-only $(ONLY),)

e2e: ## the console in a real browser (Chromium), some 2 minutes; SHOTS=docs/guide/img writes screenshots
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { echo "make e2e needs Chromium: apt-get install chromium"; exit 2; }
	$(DEVENV) -postgres -- $(GO) -C ops/console/e2e run . $(if $(SHOTS),-shots $(abspath $(SHOTS)),)

alerts: ## check the rules for Prometheus with promtool (Debian: prometheus): each alert fires in its test, and is quiet when all is well
	$(GO) run ./deploy/monitoring -alerts

dashboards: ## a workload is killed, parks, halts and reconciles while Prometheus (Debian: prometheus) scrapes it: each panel of deploy/monitoring/dashboards must show data
	$(DEVENV) -postgres $(REAL) -- $(GO) -C telemetry/test run ./dashboards -monitoring $(abspath deploy/monitoring)

schemathesis: ## schemathesis (PyPI) against examples/payments-api and its openapi.yaml: no findings; needs python3 with venv
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && python3 -m venv "$$dir" && "$$dir/bin/pip" install -q schemathesis==4.32.5 && \
	  ONLYONCE_SCHEMATHESIS="$$dir/bin/schemathesis" $(DEVENV) -postgres -- $(GO) -C test/compat test -count=1 -timeout 20m -run '^TestSchemathesis$$' ./payments

retention: ## what remembering keys takes: 45 days with a horizon of 30 simulated, ring and one table; ARGS="-days 45 -keys 100000 -scale 1e7"
	cd test/bench && $(GO) run . -retention $(ARGS)

mutants: ## take each rule out in turn: a test must fail; ONLY=T2,F5 picks, PART=3/20 plays a part but for what was caught at this commit, NEW=1 what was never caught; RANDOM=1000 SEED=1 draws changes instead
	$(DEVENV) -postgres -kafka $(REAL) -- $(GO) run $(if $(RANDOM),./test/mutants/drawn -n $(RANDOM) -seed $(or $(SEED),1) $(if $(ONLY),-only '$(ONLY)',) $(if $(IN),-in $(IN),),./test/mutants $(if $(ONLY),-only '$(ONLY)',) $(if $(NEW),-new,)) $(if $(PART),-part $(PART),)

adversary: ## each message to Postgres goes wrong, one at a time: SAMPLE=N histories of all, drawn by SEED (the commit's hash); ONLY=consumer/*/key picks by name, PART=3/20 plays a part unless it held at this commit
	$(GO) run ./test/adversary $(if $(SAMPLE),-sample $(SAMPLE),) $(if $(SEED),-seed $(SEED),) $(if $(ONLY),-only '$(ONLY)',) $(if $(PART),-part $(PART),)

N ?= 300
nightly: N = 3000

seams: ## random histories of lifetimes and outcomes, judged by their effects: N of them, drawn by SEED (the commit's hash); ONLY=calls,requests picks kinds
	$(GO) run ./test/seams -n $(N) $(if $(SEED),-seed $(SEED),) $(if $(ONLY),-only '$(ONLY)',)

model: ## visit every state of small scopes of the protocols, and find each fault seeded in them: up to 20 minutes and 8 GiB; SMALL=1 half a minute, ONLY=slots/C5,ring picks by name
	$(GO) run ./test/model $(if $(SMALL),-small,) $(if $(ONLY),-only '$(ONLY)',)

SEEDS ?= 20

kit: ## onlyoncetest against 20 seeds, and a table of programs as teams write them: sound ones are never accused, faulty ones always are; SEEDS
	ONLYONCE_TEST_CRASHES=all $(DEVENV) -postgres $(REAL) -- $(GO) test -count=1 -parallel $(AT_ONCE) -timeout 60m -run '^Test(Judges|SoundProgram.*)$$' ./onlyoncetest -args -seeds $(SEEDS)
	$(DEVENV) -postgres $(REAL) -- $(GO) -C onlyoncetest test -count=1 -parallel $(AT_ONCE) -timeout 20m -run '^TestSoundAndFaultyPrograms$$' .

# PostgreSQL's major versions that its project maintains, and of Kafka's versions at Maven some, from the oldest that runs without ZooKeeper in production to the latest.
CELLS := 14 15 16 17 18 kafka-3.3.2 kafka-3.9.1 kafka-4.0.1 kafka-4.3.0 kafka-4.4.0
comma := ,
SOURCES := ./consumer/franzsource ./consumer/kafkasource ./outbox/kafkasink
cell = echo "== matrix $(1)"; CI=true $(if $(1:kafka-%=),ONLYONCE_POSTGRES_VERSION=$(1) $(MAKE) test RULES=all,ONLYONCE_KAFKA_VERSION=$(1:kafka-%=%) $(MAKE) test PKGS="$(or $(PKGS),$(SOURCES))") && echo "matrix $(1) ok" || { echo "matrix $(1) failed"; s=1; }

matrix: ## all tests of behaviour and of each rule on PostgreSQL 14 to 18, and sources and sink on Kafka 3.3 to 4.4; ONLY=14,kafka-4.0.1 picks, PKGS=./dedupe
	@s=0; $(foreach c,$(or $(subst $(comma), ,$(ONLY)),$(CELLS)),$(call cell,$(c));) exit $$s

ZONES ?= America/Los_Angeles Asia/Kathmandu

zones: ## make test with the sessions and the processes in each of ZONES (T15): a zone whose clocks go forward and back, and one that is no whole hours from UTC; PKGS=./consumer/..., OF=test-long
	@s=0; for z in $(ZONES); do echo "== zone $$z"; TZ=$$z ONLYONCE_TEST_TIMEZONE=$$z $(MAKE) $(or $(OF),test) && echo "zone $$z ok" || { echo "zone $$z failed"; s=1; }; done; exit $$s

ROWS ?= 10000000

growth: ## the engines' statements on tables of ROWS rows, each within a second: half an hour and 20 GB; ONLY=calls picks scenes by name. SHAPES=all, or a number drawn by SEED: what each statement of all parts reads, under distributions that outages leave, 3 minutes
	$(GO) run ./test/growth $(if $(SHAPES),-rows 8000 -shapes $(SHAPES) $(if $(SEED),-seed $(SEED),),-rows $(ROWS) $(if $(ONLY),-only '$(ONLY)',))

growth-shapes: ## make growth SHAPES=all
	@$(MAKE) growth SHAPES=all $(if $(SEED),SEED=$(SEED),)

remotes: ## what the calls of other tenants see of tenants whose remotes fail, hang or lie; CALLS, ONLY=hang picks by name
	$(GO) run ./test/remotes $(if $(CALLS),-calls $(CALLS),) $(if $(ONLY),-only '$(ONLY)',)

# Storms start servers of their own, which they kill: a JVM and PostgreSQL must be on the machine.
MESSAGES ?= 100000
KILLS    ?= 100
STORM    := $(GO) run ./test/storm $(if $(SEED),-seed $(SEED),) $(if $(SOURCE),-source $(SOURCE),) $(if $(POLICY),-policy $(POLICY),) $(if $(CONCURRENCY),-concurrency $(CONCURRENCY),) $(if $(FAILOVERS),-failovers $(FAILOVERS),) $(if $(ISOLATION),-isolation '$(ISOLATION)',) $(if $(PGBOUNCER),-pgbouncer,)

storm: ## kill workers, Postgres and the broker under a stream, and check the invariants; MESSAGES, KILLS, SEED, SOURCE=kafka-go|franz, POLICY=park|key, CONCURRENCY=8, FAILOVERS=20, ISOLATION=serializable, PGBOUNCER=1, and ONLYONCE_POSTGRES_VERSION=14
	$(STORM) -messages $(MESSAGES) -kills $(KILLS)

storm-franz storm-key storm-failover storm-mixed: MESSAGES = 20000
storm-franz storm-key storm-failover storm-mixed: KILLS = 30

storm-franz: ## the same on consumer/franzsource; MESSAGES, KILLS, SEED, POLICY
	$(STORM) -source franz -messages $(MESSAGES) -kills $(KILLS)

storm-key: ## the same with messages that are tried again from the database, in order; MESSAGES, KILLS, SEED, SOURCE
	$(STORM) -policy key -messages $(MESSAGES) -kills $(KILLS)

storm-positions: ## the same without keys, so that only the fence stands against doubles; MESSAGES, KILLS, SEED, SOURCE, POLICY
	$(STORM) -positions -messages $(MESSAGES) -kills $(KILLS)

storm-failover: ## the same with a standby that is promoted without the last commits; MESSAGES, KILLS, SEED, SOURCE, POLICY
	$(STORM) -failover -messages $(MESSAGES) -kills $(KILLS)

storm-mixed: ## the same, and the schema is migrated to a made-up next version, with workers of both from then on; MESSAGES, KILLS, SEED, SOURCE, POLICY
	$(STORM) -mixed -messages $(MESSAGES) -kills $(KILLS)

storm-idle: ## a failover behind which no message comes; SEED, SOURCE, POLICY
	$(STORM) -failover -idle -messages 1000 -kills 0 -patience 30s

drill-restore: ## restore a base backup with WAL to a point in the middle of a load on every engine, and compare with docs/operations.md
	$(GO) test -count=1 -v -run '^TestRestore$$' ./test/restore

drill-move: ## move a database with work of every engine by logical replication, dumps from 15 to each version, and pg_upgrade
	$(GO) test -count=1 -v -run '^TestMoves$$' ./test/move | tee /dev/stderr | grep -o 'moves ok .*ok=true.*'

storm-outbox: CALLS ?= 100000

storm-outbox: ## kill relays and Postgres under a stream of outbound calls, with a remote that fails in every way; CALLS, KILLS, SEED
	$(GO) run ./test/storm/outbox $(if $(SEED),-seed $(SEED),) -calls $(CALLS) -kills $(KILLS)

BROKER ?= nats
storm-queue: MESSAGES = 20000
storm-queue: KILLS = 30

storm-queue: ## kill receivers, appliers, the broker and Postgres under a stream of another broker's messages; BROKER=nats|rabbit|sqs, MESSAGES, KILLS, SEED
	cd test/storm/queue && $(GO) run . -broker $(BROKER) $(if $(SEED),-seed $(SEED),) -messages $(MESSAGES) -kills $(KILLS)

EVENTS ?= 20000
storm-webhook: KILLS = 30

storm-webhook: ## kill receivers, appliers and Postgres, and fail over, under senders of webhooks that send again; EVENTS, KILLS, SEED
	$(GO) run ./test/storm/webhook $(if $(SEED),-seed $(SEED),) -events $(EVENTS) -kills $(KILLS)

HISTORIES ?= 1000

histories: ## random histories of HTTP requests, judged by I12, and every fault point under more load; HISTORIES, SEED
	$(DEVENV) -postgres -- $(GO) -C test/compat test -count=1 -timeout 60m -run '^TestHistories$$' ./http -args -histories $(HISTORIES) $(if $(SEED),-seed $(SEED),)
	$(DEVENV) -postgres -- $(GO) test -count=1 -timeout 60m -run '^TestFaultPoints$$' ./idempotency -args -long

faults: ## every row of the consumer's fault matrix and every fault point, with several transactions of a partition at once too
	$(DEVENV) -postgres -- $(GO) test -count=1 -parallel $(AT_ONCE) -timeout 60m -run '^TestFaults|^TestFaultPointsSideBySide$$' ./consumer -args -long

ROTATIONS ?= 500

storm-keys: ## claims of colliding keys through ROTATIONS rotations of each ring and isolation level
	ONLYONCE_ROTATIONS=$(ROTATIONS) $(DEVENV) -postgres -- $(GO) test -timeout 60m -v -run TestK4RotationsUnderCollidingClaims ./internal/ring

FUZZTIME ?= 20s
fuzz: ## each fuzz target for FUZZTIME
	@set -e; for f in $$(grep -rl --include='*_test.go' '^func Fuzz' . | sort); do \
	  for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$f); do \
	    echo "$$(dirname $$f) $$t"; $(DEVENV) -postgres -- $(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime $(FUZZTIME) $$(dirname $$f); \
	  done; done

parts: ## each part of CI, of which a landing plays one
	@for n in 1 2 3 4 5 6 7 8; do .ci/part $$n || exit 1; done

nightly: test-long parts mutants adversary seams model kit schemathesis matrix zones growth growth-shapes fuzz bench dashboards storm storm-franz storm-key storm-positions storm-failover storm-mixed storm-idle storm-outbox storm-queue storm-webhook storm-keys remotes histories faults drill-move ## the long checks; record what they print in docs/results/

ci: ## what .ci/run runs
	.ci/run
