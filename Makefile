# Everything here works on a machine with nothing but Go; with a JVM or Docker the tests use a real Kafka broker.
# "make help" prints the comments that begin with ##. Variables of the command line are options of test/suite too.

GO     ?= go
SUITE  := $(GO) run ./test/suite
DEVENV := $(GO) run ./test/devenv/run
LINT   := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# In CI a missing server is a failure and not a skipped suite.
REAL   := $(if $(CI),-require-real)
# flags turns variables that are set into flags: $(call flags,SEED ONLY) is -seed='1' if SEED is 1, and ONLY is not set.
flags   = $(foreach v,$(1),$(if $($(v)),-$(shell echo $(v) | tr A-Z a-z)='$($(v))'))

.PHONY: help map doubles held quickstart test test-long long laboratory check lint vet oncevet density tidy words size \
	other-go site image release bench retention e2e alerts dashboards schemathesis idemcheck kit mutants \
	adversary seams model matrix zones growth growth-shapes fuzz remotes histories faults drill-restore drill-move \
	storm storm-franz storm-key storm-positions storm-failover storm-mixed storm-idle storm-keys \
	storm-outbox storm-queue storm-webhook parts nightly ci

## list the targets
help:
	@$(SUITE) help

## list every package of every module with the first sentence of its documentation
map:
	@$(SUITE) each $(GO) list -f '{{.ImportPath}}: {{.Doc}}' ./...

## what ten ways to consume double, lose and overtake under kills: a minute; ONLY=river picks, COMMAND=./yours joins
## WHOLE=1 PAGE=docs/results/doubles.md plays the run of that page: half an hour; MESSAGES, KILLS, RESETS, SEED
doubles: MESSAGES = 1000
doubles: KILLS = 6
doubles: flag_files = $(if $(PAGE),-page $(abspath $(PAGE))) $(if $(WHOLE),-whole)
doubles:
	cd test/bench && $(GO) run ./doubles $(call flags,ONLY COMMAND MESSAGES KILLS RESETS SEED) $(flag_files)
	$(if $(PAGE),$(GO) run ./test/charts)

## the main job, end to end
quickstart:
	$(GO) run ./examples/quickstart

## the tests of behaviour and one of each rule, on one Postgres and, with a JVM or Docker, one real Kafka broker
## RULES=all plays all of each rule, PKGS=./consumer/... all that these have but long cases; RACE=-race
test:
	@$(SUITE) test

## all tests of each rule, the long ones, and the laboratory's
## PART=2/3 plays the second of three parts of fault points and other similar cases, and all other tests
test-long:
	@$(MAKE) test RULES=all
	@$(MAKE) long laboratory

## the tests that have long cases, with those; PART=2/3 plays a part of the long cases
long:
	@$(SUITE) long

## the tests of what compares with other libraries, or checks the checkers
laboratory:
	@$(SUITE) laboratory

## half a minute, before each commit: format, public surface, words, layout, documentation, alerts, anchors of mutants
check:
	@$(SUITE) format
	$(GO) test ./test/api ./test/docs/... ./test/layout ./test/suite ./test/words ./deploy/monitoring
	$(GO) test -short ./test/mutants

## onlyoncevet, golangci-lint (with go vet) in every module, and density
lint: oncevet density
	@$(SUITE) each $(GO) run $(LINT) run ./...

## onlyoncevet over the library and its examples: it must find nothing
oncevet:
	@$(GO) -C cmd/onlyoncevet build -o $(CURDIR)/bin/onlyoncevet .
	@$(SUITE) each $(GO) vet -vettool=$(CURDIR)/bin/onlyoncevet ./...

## lines that hold more than one thought: see test/size/density; there must be none
density:
	@$(GO) run ./test/size -density

## go vet, in every module
vet:
	@$(SUITE) each $(GO) vet ./...

## fails if a go.mod or go.sum is not tidy; FIX=1 writes them
tidy:
	@$(SUITE) each $(GO) mod tidy $(if $(FIX),,-diff)
	@$(GO) -C cmd/onlyoncevet/rules/testdata mod tidy $(if $(FIX),,-diff)
	@$(GO) -C deploy/check/testdata/compose mod tidy $(if $(FIX),,-diff)

## list the words in help, errors and log lines that the house has given up; there must be none
words:
	$(GO) run ./test/words

## lines, names, fields, long functions and references against their order, then density by package
## COMMITS="fe6af5d8 HEAD" shows what changed
size:
	$(GO) run ./test/size $(COMMITS)

# The latest Go other than go.mod's least: the two that README.md names.
OTHER_GO ?= go1.27.4

## vet every module that users link and run tests without servers with the latest Go, OTHER_GO
other-go:
	@$(SUITE) other-go $(OTHER_GO)

## README, docs and packages as a static site in dist/site, and llms.txt; fails on a dead link; needs npm
## CHECK=1 opens pages in Chromium, and searches; VERSION=v0.1.0 writes a folder of that name
site:
	@$(GO) -C test/site run . $(if $(CHECK),-check) $(if $(VERSION),-version $(VERSION))

## build deploy/Dockerfile's image, and play docker-compose.yml's commands with Compose, and the chart's parts
## needs root, dockerd (Debian: docker.io), PostgreSQL, Java and Maven
image:
	$(GO) -C deploy/check run .

## write VERSION=v0.1.0 into dist/: modules, programs, sums, notes; an empty module then requires and runs them
## PLATFORMS=linux/amd64; ONCE=1 builds once
release:
	@$(GO) -C test/release run . -go local,$(OTHER_GO) $(call flags,VERSION PLATFORMS) $(if $(ONCE),-twice=false)

## ratios against the same work without onlyonce; ONLY=P2,P3 picks
bench:
	cd test/bench && $(GO) run . $(call flags,ONLY)

## what remembering keys takes: 45 days with a horizon of 30 simulated; ARGS="-days 45 -keys 100000 -scale 1e7"
retention:
	cd test/bench && $(GO) run . -retention $(ARGS)

LENGTH ?= 20m

## queues beside a held snapshot, LENGTH each (20m), on a quiet machine; writes docs/results/held.md and its chart
## WAYS=pgq,river picks; needs Debian's postgresql-15-pgq3 and pgqd
held:
	cd test/bench && $(GO) run . -held -page $(CURDIR)/docs/results/held.md $(call flags,LENGTH RATE WAYS)
	$(GO) run ./test/charts

## the console in a real browser (Chromium), some 2 minutes; SHOTS=docs/guide/img writes screenshots
e2e:
	$(DEVENV) -postgres -- $(GO) -C ops/console/e2e run . $(if $(SHOTS),-shots $(abspath $(SHOTS)))

## check the rules for Prometheus with promtool (Debian: prometheus): each alert fires in its test, and is else quiet
alerts:
	$(GO) run ./deploy/monitoring -alerts

## a workload fails in every way while Prometheus (Debian: prometheus) scrapes it: each dashboard's panel shows data
dashboards:
	$(DEVENV) -postgres $(REAL) -- $(GO) -C telemetry/test run ./dashboards -monitoring $(CURDIR)/deploy/monitoring

## schemathesis (PyPI) against examples/payments-api and its openapi.yaml: no findings; needs python3 with venv
schemathesis:
	$(DEVENV) -postgres -- test/compat/payments/schemathesis.sh

## cmd/idemcheck against examples/payments-api, with kills and expiry: no check fails
idemcheck:
	$(DEVENV) -postgres -- $(GO) run ./test/idemcheck

AT_ONCE ?= 4
SEEDS   ?= 20
SERVED   = $(DEVENV) -postgres $(REAL) --
KIT     := test -count=1 -parallel $(AT_ONCE) -timeout 60m

## onlyoncetest against SEEDS seeds, and a table of programs: sound ones are never accused, faulty ones always are
kit: export ONLYONCE_TEST_CRASHES := all
kit: export ONLYONCE_KIT_ROWS := $(CURDIR)/bin/kit-rows
kit: export ONLYONCE_KIT_TABLE := $(CURDIR)/bin/kit-table
kit:
	$(SERVED) $(GO) $(KIT) -run '^Test(Judges|SoundProgram.*)$$' ./onlyoncetest -args -seeds $(SEEDS)
	mkdir -p bin && rm -f bin/kit-rows bin/kit-table && \
		$(SERVED) $(GO) -C test/compat $(KIT) -run '^TestGORMPrograms$$' ./sql
	$(SERVED) $(GO) $(KIT) -run '^TestSoundAndFaultyPrograms$$' ./onlyoncetest -args -sound 20s; \
		status=$$?; cat bin/kit-table; exit $$status

MUTANTS := ./test/mutants$(if $(RANDOM),/drawn -n $(RANDOM)) $(if $(NEW),-new)

## take each rule out in turn: a test must fail; NEW=1 plays what was never caught, ONLY=T2,F5 picks
## PART=3/20 plays a part but for what was caught at this commit; RANDOM=1000 SEED=1 draws changes instead
mutants:
	$(DEVENV) -postgres -kafka $(REAL) -- $(GO) run $(MUTANTS) $(call flags,SEED ONLY IN PART)

## each message to Postgres goes wrong, one at a time: SAMPLE=N histories of all, drawn by SEED (the commit's hash)
## ONLY=consumer/*/key picks by name, PART=3/20 plays a part unless it held at this commit
adversary:
	$(GO) run ./test/adversary $(call flags,SAMPLE SEED ONLY PART)

N ?= 300
nightly: N = 3000

## random histories of lifetimes and outcomes, judged by their effects: N of them, drawn by SEED (the commit's hash)
## ONLY=calls,requests picks kinds
seams:
	$(GO) run ./test/seams $(call flags,N SEED ONLY)

## visit every state of small scopes of the protocols, and find each seeded fault: up to 20 minutes and 8 GiB
## SMALL=1 half a minute, ONLY=slots/C5,ring picks by name
model:
	$(GO) run ./test/model $(if $(SMALL),-small) $(call flags,ONLY)

# PostgreSQL's maintained major versions, and some of Kafka's versions at Maven, from the oldest that
# runs without ZooKeeper in production to the latest.
CELLS := 14 15 16 17 18 kafka-3.3.2 kafka-3.9.1 kafka-4.0.1 kafka-4.3.0 kafka-4.4.0

## all tests of behaviour and of each rule on PostgreSQL 14 to 18, and sources and sink on Kafka 3.3 to 4.4
## ONLY=14,kafka-4.0.1 picks, PKGS=./consumer/franzsource is for Kafka
matrix:
	@$(SUITE) matrix $(CELLS)

# A zone whose clocks go forward and back, and one that is no whole hours from UTC.
ZONES ?= America/Los_Angeles Asia/Kathmandu

## make test with the sessions and the processes in each of ZONES (T15); PKGS=./consumer/..., OF=test-long
zones:
	@$(SUITE) zones $(ZONES)

ROWS ?= 10000000

## the engines' statements on tables of ROWS rows, each within a second: half an hour and 20 GB; ONLY=calls picks
## SHAPES=all, or a number drawn by SEED: what each statement reads under distributions that outages leave, 3 minutes
growth:
	$(GO) run ./test/growth $(if $(SHAPES),-rows 8000,-rows $(ROWS)) $(call flags,SHAPES SEED ONLY)

## make growth SHAPES=all
growth-shapes:
	@$(MAKE) growth SHAPES=all

## what the calls of other tenants see of tenants whose remotes fail, hang or lie; CALLS, ONLY=hang picks by name
remotes:
	$(GO) run ./test/remotes $(call flags,CALLS ONLY)

HISTORIES ?= 1000
ALONE     := $(DEVENV) -postgres -- $(GO)
AN_HOUR   := test -count=1 -timeout 60m

## random histories of HTTP requests, judged by I12, and every fault point under more load; HISTORIES, SEED
histories:
	$(ALONE) -C test/compat $(AN_HOUR) -run '^TestHistories$$' ./http -args $(call flags,HISTORIES SEED)
	$(ALONE) $(AN_HOUR) -run '^TestFaultPoints$$' ./idempotency -args -long

## every row of the consumer's fault matrix and every fault point, with several transactions at once too
faults:
	$(ALONE) $(AN_HOUR) -parallel $(AT_ONCE) -run '^TestFaults|^TestFaultPointsSideBySide$$' ./consumer -args -long

FUZZTIME ?= 20s

## each fuzz target for FUZZTIME
fuzz:
	@$(SUITE) fuzz $(FUZZTIME)

## restore a base backup with WAL to a point in the middle of a load, and compare with docs/operations/restore.md
drill-restore:
	$(GO) test -count=1 -v -run '^TestRestore$$' ./test/restore

## move a database with work of every engine by logical replication, dumps from 15 to each version, and pg_upgrade
drill-move:
	$(GO) test -count=1 -v -run '^TestMoves$$' ./test/move

# Storms start servers of their own, which they kill: a JVM and PostgreSQL must be on the machine.
MESSAGES ?= 100000
KILLS    ?= 100
CALLS    ?= $(if $(filter storm-outbox,$@),100000)
EVENTS   ?= 20000
BROKER   ?= nats
STORM     = $(GO) run ./test/storm $(call flags,SEED SOURCE POLICY CONCURRENCY FAILOVERS ISOLATION PGBOUNCER) \
	$(call flags,MESSAGES KILLS)

## kill workers, Postgres and the broker under a stream, and check the invariants; MESSAGES, KILLS, SEED
## SOURCE=kafka-go|franz, POLICY=park|key, CONCURRENCY=8, FAILOVERS=20, ISOLATION=serializable, PGBOUNCER=1
storm:
	$(STORM)

storm-franz storm-key storm-failover storm-mixed storm-queue: MESSAGES = 20000
storm-franz storm-key storm-failover storm-mixed storm-queue storm-webhook: KILLS = 30

## the same on consumer/franzsource
storm-franz: SOURCE = franz
storm-franz:
	$(STORM)

## the same with messages that are tried again from the database, in order
storm-key: POLICY = key
storm-key:
	$(STORM)

## the same without keys, so that only the fence stands against doubles
storm-positions:
	$(STORM) -positions

## the same with a standby that is promoted without the last commits
storm-failover:
	$(STORM) -failover

## the same, and the schema is migrated to a made-up next version, with workers of both from then on
storm-mixed:
	$(STORM) -mixed

storm-idle: MESSAGES = 1000
storm-idle: KILLS = 0

## a failover after which no message comes; SEED, SOURCE, POLICY
storm-idle:
	$(STORM) -failover -idle -patience 30s

ROTATIONS ?= 500

## claims of colliding keys through ROTATIONS rotations of each ring and isolation level
storm-keys: export ONLYONCE_ROTATIONS := $(ROTATIONS)
storm-keys:
	$(ALONE) $(AN_HOUR) -v -run TestK4RotationsUnderCollidingClaims ./internal/ring

## kill relays and Postgres under a stream of outbound calls, with a remote that fails in every way; CALLS, KILLS, SEED
storm-outbox:
	$(GO) run ./test/storm/outbox $(call flags,SEED CALLS KILLS)

## kill receivers, appliers, the broker and Postgres under a stream of another broker's messages
## BROKER=nats|rabbit|sqs, MESSAGES, KILLS, SEED
storm-queue:
	cd test/storm/queue && $(GO) run . $(call flags,BROKER SEED MESSAGES KILLS)

## kill receivers, appliers and Postgres, and fail over, under senders of webhooks that send again; EVENTS, KILLS, SEED
storm-webhook:
	$(GO) run ./test/storm/webhook $(call flags,SEED EVENTS KILLS)

## each part of CI, of which a landing plays one
parts:
	@printf '%s\n' 1 2 3 4 5 6 7 8 | xargs -n 1 .ci/part

## the long checks; record what they print in docs/results/
nightly: test-long parts mutants adversary seams model kit schemathesis matrix zones growth growth-shapes fuzz bench \
	dashboards storm storm-franz storm-key storm-positions storm-failover storm-mixed storm-idle storm-keys \
	storm-outbox storm-queue storm-webhook remotes histories faults drill-move

## what .ci/run runs
ci:
	.ci/run
