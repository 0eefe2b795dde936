package console

import (
	"fmt"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// toParked is the page of a parked row.
func (v *visit) toParked(id *int64) string {
	if id == nil {
		return ""
	}
	return v.Link(fmt.Sprintf("/parked/%d", *id))
}

// toCursor is the page of a partition.
func (v *visit) toCursor(scope, topic string, partition int32) string {
	return v.Link("/consumers/cursor", "scope", scope, "topic", topic, "partition", partition)
}

// toSink is the page of a sink's calls.
func (v *visit) toSink(sink *string) string { return v.Link("/outbox", "sink", sink) }

// toKey is the page of what became of a key.
func (v *visit) toKey(key *string) string { return v.Link("/explain", "q", key) }

// toOffset is the page of what became of a position; empty: the row has none.
func (v *visit) toOffset(scope string, topic *string, partition *int32, offset *int64) string {
	if topic == nil || partition == nil || offset == nil {
		return ""
	}
	return v.Link("/explain", "scope", scope, "topic", topic, "partition", partition, "offset", offset)
}

// Parked rows, as they are listed.
var (
	rowID = col(func(r *ops.ParkedRow) any { return &r.ID }).as(aNumber).
		opens(func(v *visit, r *ops.ParkedRow) string { return v.toParked(&r.ID) })
	rowState    = col(func(r *ops.ParkedRow) any { return &r.State }).as(aState)
	rowReason   = col(func(r *ops.ParkedRow) any { return &r.Reason })
	rowScope    = col(func(r *ops.ParkedRow) any { return &r.Scope })
	rowOrigin   = col(func(r *ops.ParkedRow) any { return operate.Origin(r) }).called("Of")
	rowAttempts = col(func(r *ops.ParkedRow) any { return &r.Attempts })
	rowParkedAt = col(func(r *ops.ParkedRow) any { return &r.ParkedAt })
	rowDue      = col(func(r *ops.ParkedRow) any { return &r.NextAttemptAt }).called("Due")
	rowSettled  = col(func(r *ops.ParkedRow) any { return &r.SettledAt })
	rowError    = col(func(r *ops.ParkedRow) any { return &r.Error }).as(anError)

	parkedRows    = viewOf(rowID, rowState, rowReason, rowScope, rowOrigin, rowAttempts, rowParkedAt, rowError)
	decidedRows   = viewOf(rowID, rowState, rowReason, rowScope, rowOrigin, rowAttempts, rowDue, rowSettled, rowError)
	explainedRows = viewOf(
		rowID, rowState, rowReason, rowScope, rowOrigin, rowAttempts, rowParkedAt, rowDue,
		rowSettled, rowError,
	)
)

// Groups of parked rows.
var (
	groupCount = col(func(g *reports.ParkedCount) any { return &g.Count }).called("Rows").
			opens(func(v *visit, g *reports.ParkedCount) string {
			return v.Link("/parked",
				"kind",
				g.Kind,
				"state",
				g.State,
				"parked-for",
				g.Reason,
				"scope",
				g.Scope,
				"sink",
				g.Sink,
				"error",
				g.Error)
		})
	groupError  = col(func(g *reports.ParkedCount) any { return &g.Error }).as(anError).called("Error begins with")
	groupKind   = col(func(g *reports.ParkedCount) any { return &g.Kind })
	groupState  = col(func(g *reports.ParkedCount) any { return &g.State }).as(aState)
	groupReason = col(func(g *reports.ParkedCount) any { return &g.Reason })
	groupScope  = col(func(g *reports.ParkedCount) any { return &g.Scope })
	groupSink   = col(func(g *reports.ParkedCount) any { return &g.Sink }).
			leads(func(v *visit, g *reports.ParkedCount) string { return v.toSink(g.Sink) })
	groupOldest = col(func(g *reports.ParkedCount) any { return &g.Oldest })

	parkedGroups = viewOf(groupCount, groupKind, groupState, groupReason, groupScope, groupSink, groupOldest)
	errorGroups  = viewOf(
		groupCount,
		groupError,
		groupReason,
		groupState,
		groupKind,
		groupScope,
		groupSink,
		groupOldest,
	)
)

// HTTP requests.
var (
	requestID = col(func(r *ops.Request) any { return &r.ID }).
			opens(func(v *visit, r *ops.Request) string { return v.toKey(&r.ID) })
	requestState     = col(func(r *ops.Request) any { return &r.State }).as(aState)
	requestScope     = col(func(r *ops.Request) any { return &r.Scope })
	requestTenant    = col(func(r *ops.Request) any { return &r.Tenant })
	requestBegan     = col(func(r *ops.Request) any { return &r.CreatedAt }).called("Began")
	requestCompleted = col(func(r *ops.Request) any { return &r.CompletedAt })
	requestUnknown   = col(func(r *ops.Request) any { return &r.Unknown }).called("Steps of unknown outcome")
	requestDone      = col(func(r *ops.Request) any { return &r.Done }).called("Steps done")

	openRequests = view[ops.Request]{acts: (*visit).requestActs, columns: []column[ops.Request]{
		requestID, requestState, requestScope, requestTenant, requestBegan, requestUnknown, requestDone}}
	allRequests = view[ops.Request]{acts: (*visit).requestActs, columns: []column[ops.Request]{
		requestID,
		requestState,
		requestScope,
		requestTenant,
		requestBegan,
		requestCompleted,
		requestUnknown,
		requestDone,
	}}
	oneRequest = view[ops.Request]{acts: (*visit).requestActs, columns: []column[ops.Request]{
		requestState, requestScope, requestTenant, requestBegan, requestCompleted, requestUnknown, requestDone}}
)

// Operations, events and their streams, places, the audit.
var (
	operations = viewOf(
		col(func(o *reports.Operation) any { return &o.ID }),
		col(func(o *reports.Operation) any { return &o.State }).as(aState),
		col(func(o *reports.Operation) any { return &o.ParkedID }).as(aNumber).
			leads(func(v *visit, o *reports.Operation) string { return v.toParked(o.ParkedID) }),
		col(func(o *reports.Operation) any { return &o.Name }),
		col(func(o *reports.Operation) any { return &o.Tenant }),
		col(func(o *reports.Operation) any { return &o.Principal }),
		col(func(o *reports.Operation) any { return &o.CreatedAt }).called("Began"),
		col(func(o *reports.Operation) any { return &o.CompletedAt }).called("Ended"),
		col(func(o *reports.Operation) any { return &o.Percent }),
		col(func(o *reports.Operation) any { return &o.Progress }),
		col(func(o *reports.Operation) any { return &o.CancelAt }),
		col(func(o *reports.Operation) any { return &o.ErrorCode }).called("Error"))

	streams = viewOf(
		col(func(s *reports.Stream) any { return &s.Topic }).called("Stream").
			opens(func(v *visit, s *reports.Stream) string { return v.Link("/events", "topic", s.Topic) }),
		col(func(s *reports.Stream) any { return &s.Partitions }),
		col(func(s *reports.Stream) any { return &s.Scope }).called("Consumer"),
		col(func(s *reports.Stream) any { return &s.Kept }),
		col(func(s *reports.Stream) any { return &s.Behind }).called("To handle"),
		col(func(s *reports.Stream) any { return &s.Parked }))

	events = viewOf(
		col(func(e *reports.Event) any { return &e.ID }).opens(func(v *visit, e *reports.Event) string {
			return v.Link("/events/at", "topic", e.Topic, "partition", e.Partition, "offset", e.Offset)
		}),
		col(func(e *reports.Event) any { return &e.Topic }).called("Stream"),
		col(func(e *reports.Event) any { return &e.Partition }).as(aNumber),
		col(func(e *reports.Event) any { return &e.Offset }).as(aNumber).
			leads(func(v *visit, e *reports.Event) string { return v.toOffset("", &e.Topic, &e.Partition, &e.Offset) }),
		col(func(e *reports.Event) any { return &e.State }).as(aState),
		col(func(e *reports.Event) any { return &e.AppendedAt }),
		col(func(e *reports.Event) any { return &e.Bytes }).as(someBytes).called("Body"))

	places = viewOf(
		col(func(p *reports.Place) any { return &p.Place }),
		col(func(p *reports.Place) any { return &p.State }).as(aState),
		col(func(p *reports.Place) any { return &p.Other }).called("Other database"),
		col(func(p *reports.Place) any { return &p.Moves }),
		col(func(p *reports.Place) any { return &p.ChangedAt }).called("Since"))

	auditAt     = col(func(r *reports.AuditRow) any { return &r.At })
	auditActor  = col(func(r *reports.AuditRow) any { return &r.Actor })
	auditReason = col(func(r *reports.AuditRow) any { return &r.Reason })

	auditRows = viewOf(
		col(func(r *reports.AuditRow) any { return &r.ID }).as(aNumber).
			opens(func(v *visit, r *reports.AuditRow) string { return v.Link(fmt.Sprintf("/audit/%d", r.ID)) }),
		auditAt.called("When"), auditActor,
		col(func(r *reports.AuditRow) any { return &r.Action }),
		auditReason)
)

// Claimed keys, and what doctor finds.
var (
	segments = viewOf(
		col(func(s *reports.KeySegment) any { return &s.Table }).called("Segment"),
		col(func(s *reports.KeySegment) any { return &s.State }).as(aState),
		col(func(s *reports.KeySegment) any { return &s.Keys }).called("Keys, estimated"),
		col(func(s *reports.KeySegment) any { return &s.Bytes }).as(someBytes).called("Size"),
		col(func(s *reports.KeySegment) any { return &s.Opened }).called("Open for"),
		col(func(s *reports.KeySegment) any { return &s.Closed }).called("Closed for"))

	frontiers = viewOf(
		col(func(f *reports.Frontier) any { return &f.Scope }),
		col(func(f *reports.Frontier) any { return &f.Topic }),
		col(func(f *reports.Frontier) any { return &f.Partition }).as(aNumber).
			opens(func(v *visit, f *reports.Frontier) string { return v.toCursor(f.Scope, f.Topic, f.Partition) }),
		col(func(f *reports.Frontier) any { return &f.Behind }).called("Has passed its log up to"))

	claims = viewOf(
		col(func(c *ops.Claim) any { return &c.Segment }),
		col(func(c *ops.Claim) any { return &c.Ring }),
		col(func(c *ops.Claim) any { return &c.State }).as(aState),
		col(func(c *ops.Claim) any { return &c.Fingerprint }),
		col(func(c *ops.Claim) any { return &c.ClaimedAfter }),
		col(func(c *ops.Claim) any { return &c.ClaimedBefore }),
		col(func(c *ops.Claim) any { return &c.Transaction }))

	endpointClaims = viewOf(
		col(func(c *ops.EndpointClaim) any { return &c.Endpoint }),
		col(func(c *ops.EndpointClaim) any { return &c.ClaimedAt }).called("Recorded"))

	explainedCursors = viewOf(
		col(func(c *ops.ExplainedCursor) any { return &c.Scope }),
		col(func(c *ops.ExplainedCursor) any { return &c.Position }).as(aNumber),
		col(func(c *ops.ExplainedCursor) any { return &c.State }).as(aState),
		col(func(c *ops.ExplainedCursor) any { return &c.Offset }).called("This offset"),
		col(func(c *ops.ExplainedCursor) any { return &c.Means }).as(aSentence))

	findings = viewOf(
		col(func(f *ops.Finding) any { return &f.Level }).as(aState),
		col(func(f *ops.Finding) any { return &f.Check }),
		col(func(f *ops.Finding) any { return &f.Text }).as(aCommand).called("Finding"),
		col(func(f *ops.Finding) any { return &f.Remedy }).as(aCommand).called("What to do"))

	headers = viewOf(
		col(func(h *header) any { return &h.Name }),
		col(func(h *header) any { return &h.Value }))
)

// The outbox.
var (
	sinks = view[sinkRow]{acts: (*visit).sinkActs, columns: []column[sinkRow]{
		col(func(s *sinkRow) any { return &s.Sink }).opens(func(v *visit, s *sinkRow) string {
			return v.toSink(&s.Sink)
		}),
		col(func(s *sinkRow) any { return &s.Waits }).called("Not delivered"),
		col(func(s *sinkRow) any { return &s.Since }).called("Oldest"),
		col(func(s *sinkRow) any { return &s.Last }).as(anError).called("Last error"),
		col(func(s *sinkRow) any { return &s.Pending }).called("In log"),
		col(func(s *sinkRow) any { return &s.Rate }).as(perSecond).called("Change a second"),
		col(func(s *sinkRow) any { return &s.Aside }).called("Parked"),
		col(func(s *sinkRow) any { return &s.Tags }).as(someStates).called("State"),
		col(func(s *sinkRow) any { return &s.Held }).as(aSentence),
		col(func(s *sinkRow) any { return &s.PausedAt }).called("Paused"),
		col(func(s *sinkRow) any { return &s.PausedBy }).called("By"),
		col(func(s *sinkRow) any { return &s.PauseReason }).called("Reason")}}

	lanes = viewOf(
		col(func(l *reports.OutboxLane) any { return &l.Lane }).as(aNumber),
		col(func(l *reports.OutboxLane) any { return &l.Held }),
		col(func(l *reports.OutboxLane) any { return &l.Epoch }).as(aNumber),
		col(func(l *reports.OutboxLane) any { return &l.Pending }).called("To send"),
		col(func(l *reports.OutboxLane) any { return &l.InPass }),
		col(func(l *reports.OutboxLane) any { return &l.Age }).called("Oldest"))

	logSegments = viewOf(
		col(func(s *reports.OutboxSegment) any { return &s.Slot }).as(aNumber),
		col(func(s *reports.OutboxSegment) any { return &s.State }).as(aState),
		col(func(s *reports.OutboxSegment) any { return &s.Bytes }).as(someBytes).called("Size"),
		col(func(s *reports.OutboxSegment) any { return &s.OpenedAt }),
		col(func(s *reports.OutboxSegment) any { return &s.HeldBy }))

	pendingCalls = viewOf(
		col(func(c *reports.PendingCall) any { return &c.Key }).as(aCode).
			opens(func(v *visit, c *reports.PendingCall) string { return v.Link("/calls/" + c.Key) }),
		col(func(c *reports.PendingCall) any { return &c.Sink }).
			leads(func(v *visit, c *reports.PendingCall) string { return v.toSink(&c.Sink) }),
		col(func(c *reports.PendingCall) any { return &c.Lane }).as(aNumber),
		col(func(c *reports.PendingCall) any { return &c.Name }),
		col(func(c *reports.PendingCall) any { return &c.Scope }),
		col(func(c *reports.PendingCall) any { return &c.Method }),
		col(func(c *reports.PendingCall) any { return &c.Target }),
		col(func(c *reports.PendingCall) any { return &c.CreatedAt }).called("Enqueued"),
		col(func(c *reports.PendingCall) any { return &c.NotBefore }),
		col(func(c *reports.PendingCall) any { return &c.Bytes }).as(someBytes).called("Body"))

	explainedCalls = viewOf(
		col(func(c *ops.ExplainedCall) any { return &c.Key }).as(aCode).
			opens(func(v *visit, c *ops.ExplainedCall) string { return v.Link("/calls/" + c.Key) }),
		col(func(c *ops.ExplainedCall) any { return &c.Name }),
		col(func(c *ops.ExplainedCall) any { return &c.Sink }).
			leads(func(v *visit, c *ops.ExplainedCall) string { return v.toSink(&c.Sink) }),
		col(func(c *ops.ExplainedCall) any { return &c.State }).as(aState),
		col(func(c *ops.ExplainedCall) any { return &c.CreatedAt }).called("Enqueued"),
		col(func(c *ops.ExplainedCall) any { return &c.ParkedID }).as(aNumber).
			leads(func(v *visit, c *ops.ExplainedCall) string { return v.toParked(c.ParkedID) }))

	relays = viewOf(
		col(func(r *reports.SinkRelays) any { return &r.Sink }).
			opens(func(v *visit, r *reports.SinkRelays) string { return v.toSink(&r.Sink) }),
		col(func(r *reports.SinkRelays) any { return &r.Members }).called("Relays"),
		col(func(r *reports.SinkRelays) any { return &r.Lanes }),
		col(func(r *reports.SinkRelays) any { return &r.LanesHeld }),
		col(func(r *reports.SinkRelays) any { return &r.PausedAt }).called("Paused"),
		col(func(r *reports.SinkRelays) any { return &r.PausedBy }).called("By"),
		col(func(r *reports.SinkRelays) any { return &r.PauseReason }).called("Reason"))
)

// Consumers.
var (
	topics = view[topic]{bad: func(t *topic) bool { return t.Halted > 0 }, columns: []column[topic]{
		col(func(t *topic) any { return &t.Scope }).
			opens(func(v *visit, t *topic) string { return v.Link("/consumers", "scope", t.Scope, "topic", t.Topic) }),
		col(func(t *topic) any { return &t.Topic }),
		col(func(t *topic) any { return &t.Partitions }),
		col(func(t *topic) any { return &t.Owned }),
		col(func(t *topic) any { return &t.KnownLag }).called("Lag"),
		col(func(t *topic) any { return &t.Rate }).as(perSecond).called("Per second"),
		col(func(t *topic) any { return &t.LastBatch }).called("Last batch"),
		col(func(t *topic) any { return t.State() }).as(aSentence).called("State")}}

	partitions = view[partition]{bad: (*partition).halted, columns: []column[partition]{
		col(func(p *partition) any { return &p.Scope }),
		col(func(p *partition) any { return &p.Topic }),
		col(func(p *partition) any { return &p.Partition }).as(aNumber).
			opens(func(v *visit, p *partition) string { return v.toCursor(p.Scope, p.Topic, p.Partition) }),
		col(func(p *partition) any { return &p.Position }).as(aNumber),
		col(func(p *partition) any { return &p.Lag }),
		col(func(p *partition) any { return &p.Group }),
		col(func(p *partition) any { return &p.Epoch }).as(aNumber),
		col(func(p *partition) any { return &p.Attempts }),
		col(func(p *partition) any { return &p.LastBatch }).called("Last batch"),
		col(func(p *partition) any { return &p.By }).called("Owner"),
		col(func(p *partition) any { return &p.Tags }).as(someStates).called("State"),
		col(func(p *partition) any { return &p.Halt }).as(aSentence)}}

	processes = view[process]{bad: (*process).bad, columns: []column[process]{
		col(func(p *process) any { return &p.Part }),
		col(func(p *process) any { return &p.Scope }),
		col(func(p *process) any { return &p.Host }),
		col(func(p *process) any { return &p.PID }).as(aNumber),
		col(func(p *process) any { return &p.SeenAt }).called("Reported"),
		col(func(p *process) any { return &p.Tags }).as(someStates).called("State"),
		col(func(p *process) any { return &p.Owns }).called("Partitions"),
		col(func(p *process) any { return &p.Faults }).as(aSentence)}}

	fleet = view[fleetRow]{bad: func(r *fleetRow) bool { return r.Bad }, columns: []column[fleetRow]{
		col(func(r *fleetRow) any { return &r.Database }).
			opens(func(v *visit, r *fleetRow) string { return v.Link("/" + r.Database + "/") }),
		col(func(r *fleetRow) any { return &r.Server }),
		col(func(r *fleetRow) any { return &r.Needs }),
		col(func(r *fleetRow) any { return &r.Parked }),
		col(func(r *fleetRow) any { return &r.First }).as(aSentence).called("First of what needs you")}}
)
