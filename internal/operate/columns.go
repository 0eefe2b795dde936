package operate

import (
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// The columns of the program's tables.
var (
	ParkedColumns = Columns[ops.ParkedRow]{
		{Head: "ID", Value: func(r *ops.ParkedRow) any { return r.ID }},
		{Head: "KIND", Value: func(r *ops.ParkedRow) any { return r.Kind }},
		{Head: "STATE", Value: func(r *ops.ParkedRow) any { return r.State }},
		{Head: "REASON", Value: func(r *ops.ParkedRow) any { return r.Reason }},
		{Head: "SCOPE", Value: func(r *ops.ParkedRow) any { return r.Scope }},
		{Head: "ORIGIN", Value: func(r *ops.ParkedRow) any { return Origin(r) }},
		{Head: "AGE", Value: func(r *ops.ParkedRow) any { return ago(r.ParkedAt) }},
		{Head: "ATTEMPTS", Value: func(r *ops.ParkedRow) any { return r.Attempts }},
		{Head: "OPEN", Value: func(r *ops.ParkedRow) any { return yes(r.MayBeApplied) }, Optional: true},
		{Head: "REDRIVEN", Value: func(r *ops.ParkedRow) any { return redriven(r) }, Optional: true},
		{Head: "ERROR", Value: func(r *ops.ParkedRow) any { return firstLine(r.Error) }},
	}

	CursorColumns = Columns[ops.Cursor]{
		{Head: "SCOPE", Value: func(c *ops.Cursor) any { return c.Scope }},
		{Head: "TOPIC", Value: func(c *ops.Cursor) any { return c.Topic }},
		{Head: "PARTITION", Value: func(c *ops.Cursor) any { return c.Partition }},
		{Head: "POSITION", Value: func(c *ops.Cursor) any { return c.Position }},
		{Head: "RUN", Value: func(c *ops.Cursor) any { return c.Run }},
		{Head: "START", Value: func(c *ops.Cursor) any { return start(c) }},
		{Head: "GROUP", Value: func(c *ops.Cursor) any { return c.Group }},
		{Head: "CLUSTER", Value: func(c *ops.Cursor) any { return c.ClusterID }},
		{Head: "TOPIC ID", Value: func(c *ops.Cursor) any { return c.TopicID }},
		{Head: "EPOCH", Value: func(c *ops.Cursor) any { return c.Epoch }},
		{Head: "CLEAN", Value: func(c *ops.Cursor) any { return c.Clean }},
		{Head: "ATTEMPTS", Value: func(c *ops.Cursor) any { return tried(c) }},
		{Head: "ANCHOR", Value: func(c *ops.Cursor) any { return c.AnchorOffset }},
		{Head: "STATE", Value: func(c *ops.Cursor) any { return c.State() }},
	}

	ExplainedCallColumns = Columns[ops.ExplainedCall]{
		{Head: "ID", Value: func(c *ops.ExplainedCall) any { return c.ID }},
		{Head: "KEY", Value: func(c *ops.ExplainedCall) any { return c.Key }},
		{Head: "SINK", Value: func(c *ops.ExplainedCall) any { return c.Sink }},
		{Head: "NAME", Value: func(c *ops.ExplainedCall) any { return c.Name }},
		{Head: "SCOPE", Value: func(c *ops.ExplainedCall) any { return c.Scope }},
		{Head: "STATE", Value: func(c *ops.ExplainedCall) any { return c.State }},
		{Head: "PARKED", Value: func(c *ops.ExplainedCall) any { return c.ParkedID }},
		{Head: "DERIVED", Value: func(c *ops.ExplainedCall) any { return derived(c) }},
	}

	RequestColumns = Columns[ops.Request]{
		{Head: "ID", Value: func(r *ops.Request) any { return r.ID }},
		{Head: "STATE", Value: func(r *ops.Request) any { return r.State }},
		{Head: "TENANT", Value: func(r *ops.Request) any { return r.Tenant }},
		{Head: "SCOPE", Value: func(r *ops.Request) any { return r.Scope }},
		{Head: "SINCE", Value: func(r *ops.Request) any { return r.CreatedAt }},
		{Head: "EXPIRES", Value: func(r *ops.Request) any { return r.ExpiresAt }},
		{Head: "STEPS OF UNKNOWN OUTCOME", Value: func(r *ops.Request) any { return r.Unknown }},
		{Head: "STEPS DONE", Value: func(r *ops.Request) any { return r.Done }},
	}

	StoredColumns = Columns[ops.Stored]{
		{Head: "STORED IN", Value: func(s *ops.Stored) any { return s.Table }},
		{Head: "PARTITION", Value: func(s *ops.Stored) any { return s.Partition }, Optional: true},
		{Head: "ID", Value: func(s *ops.Stored) any { return s.ID }},
		{Head: "SINK", Value: func(s *ops.Stored) any { return s.Sink }, Optional: true},
		{Head: "EVENT", Value: func(s *ops.Stored) any { return s.Event }, Optional: true},
		{Head: "STATE", Value: func(s *ops.Stored) any { return s.State }},
		{Head: "BYTES", Value: func(s *ops.Stored) any { return s.Bytes }},
		{Head: "ERASED AT", Value: func(s *ops.Stored) any { return s.ErasedAt }, Optional: true},
	}

	AuditColumns = Columns[reports.AuditRow]{
		{Head: "ID", Value: func(r *reports.AuditRow) any { return r.ID }},
		{Head: "AT", Value: func(r *reports.AuditRow) any { return r.At }},
		{Head: "ACTOR", Value: func(r *reports.AuditRow) any { return r.Actor }},
		{Head: "ACTION", Value: func(r *reports.AuditRow) any { return r.Action }},
		{Head: "REASON", Value: func(r *reports.AuditRow) any { return r.Reason }},
	}

	CallColumns = Columns[reports.PendingCall]{
		{Head: "KEY", Value: func(c *reports.PendingCall) any { return c.Key }},
		{Head: "SINK", Value: func(c *reports.PendingCall) any { return c.Sink }},
		{Head: "NAME", Value: func(c *reports.PendingCall) any { return c.Name }},
		{Head: "TENANT", Value: func(c *reports.PendingCall) any { return c.Tenant }},
		{Head: "SCOPE", Value: func(c *reports.PendingCall) any { return c.Scope }},
		{Head: "AGE", Value: func(c *reports.PendingCall) any { return ago(c.CreatedAt) }},
		{Head: "STATE", Value: func(c *reports.PendingCall) any { return c.State() }},
		{Head: "SIZE", Value: func(c *reports.PendingCall) any { return size(c.Bytes) }},
	}

	EventColumns = Columns[reports.Event]{
		{Head: "STREAM", Value: func(e *reports.Event) any { return e.Topic }},
		{Head: "PARTITION", Value: func(e *reports.Event) any { return e.Partition }},
		{Head: "OFFSET", Value: func(e *reports.Event) any { return e.Offset }},
		{Head: "EVENT", Value: func(e *reports.Event) any { return e.ID }},
		{Head: "TENANT", Value: func(e *reports.Event) any { return e.Tenant }},
		{Head: "STATE", Value: func(e *reports.Event) any { return e.State }},
		{Head: "AGE", Value: func(e *reports.Event) any { return ago(e.AppendedAt) }},
		{Head: "SIZE", Value: func(e *reports.Event) any { return size(e.Bytes) }},
	}

	StreamColumns = Columns[reports.Stream]{
		{Head: "STREAM", Value: func(s *reports.Stream) any { return s.Topic }},
		{Head: "PARTITIONS", Value: func(s *reports.Stream) any { return s.Partitions }},
		{Head: "SCOPE", Value: func(s *reports.Stream) any { return s.Scope }},
		{Head: "GROUP", Value: func(s *reports.Stream) any { return s.Group }},
		{Head: "KEPT", Value: func(s *reports.Stream) any { return s.Kept }},
		{Head: "BEHIND", Value: func(s *reports.Stream) any { return s.Behind }},
		{Head: "PARKED", Value: func(s *reports.Stream) any { return s.Parked }},
	}

	OperationColumns = Columns[reports.Operation]{
		{Head: "ID", Value: func(o *reports.Operation) any { return o.ID }},
		{Head: "STATE", Value: func(o *reports.Operation) any { return o.State }},
		{Head: "TENANT", Value: func(o *reports.Operation) any { return o.Tenant }},
		{Head: "NAME", Value: func(o *reports.Operation) any { return o.Name }},
		{Head: "SINCE", Value: func(o *reports.Operation) any { return o.CreatedAt }},
		{Head: "ERROR", Value: func(o *reports.Operation) any { return o.ErrorCode }},
		{Head: "PERCENT", Value: func(o *reports.Operation) any { return o.Percent }},
		{Head: "PARKED", Value: func(o *reports.Operation) any { return o.ParkedID }},
	}

	PlaceColumns = Columns[reports.Place]{
		{Head: "PLACE", Value: func(p *reports.Place) any { return p.Place }},
		{Head: "STATE", Value: func(p *reports.Place) any { return p.State }},
		{Head: "OTHER", Value: func(p *reports.Place) any { return p.Other }},
		{Head: "MOVES", Value: func(p *reports.Place) any { return p.Moves }},
		{Head: "SINCE", Value: func(p *reports.Place) any { return p.ChangedAt }},
	}
)

// The columns of the program's status commands.
var (
	ParkedCountColumns = Columns[reports.ParkedCount]{
		{Head: "COUNT", Value: func(c *reports.ParkedCount) any { return c.Count }},
		{Head: "KIND", Value: func(c *reports.ParkedCount) any { return c.Kind }},
		{Head: "STATE", Value: func(c *reports.ParkedCount) any { return c.State }},
		{Head: "REASON", Value: func(c *reports.ParkedCount) any { return c.Reason }},
		{Head: "SCOPE OR SINK", Value: func(c *reports.ParkedCount) any { return c.At() }},
		{Head: "OLDEST SINCE", Value: func(c *reports.ParkedCount) any { return c.Oldest }},
	}

	FrontierColumns = Columns[reports.Frontier]{
		{Head: "SCOPE", Value: func(f *reports.Frontier) any { return f.Scope }},
		{Head: "TOPIC", Value: func(f *reports.Frontier) any { return f.Topic }},
		{Head: "PARTITION", Value: func(f *reports.Frontier) any { return f.Partition }},
		{Head: "BEHIND", Value: func(f *reports.Frontier) any { return f.BehindText() }},
	}

	LaneColumns = Columns[reports.OutboxLane]{
		{Head: "SINK", Value: func(l *reports.OutboxLane) any { return l.Sink }},
		{Head: "LANE", Value: func(l *reports.OutboxLane) any { return l.Lane }},
		{Head: "HELD", Value: func(l *reports.OutboxLane) any { return l.Held }},
		{Head: "EPOCH", Value: func(l *reports.OutboxLane) any { return l.Epoch }},
		{Head: "UNTIL", Value: func(l *reports.OutboxLane) any { return l.Until }},
		{Head: "UNHELD", Value: func(l *reports.OutboxLane) any { return age(l.Unheld) }},
		{Head: "PENDING", Value: func(l *reports.OutboxLane) any { return l.Pending }},
		{Head: "IN PASS", Value: func(l *reports.OutboxLane) any { return l.InPass }},
		{Head: "OLDEST", Value: func(l *reports.OutboxLane) any { return age(l.Age) }},
	}

	TopicColumns = Columns[TopicSum]{
		{Head: "SCOPE", Value: func(s *TopicSum) any { return s.Scope }},
		{Head: "TOPIC", Value: func(s *TopicSum) any { return s.Topic }},
		{Head: "PARTITIONS", Value: func(s *TopicSum) any { return s.Partitions }},
		{Head: "OWNED", Value: func(s *TopicSum) any { return s.OwnedOf() }},
		{Head: "LAG", Value: func(s *TopicSum) any { return s.LagText() }},
		{Head: "LAST BATCH", Value: func(s *TopicSum) any { return since(s.LastBatch) }},
		{Head: "STATE", Value: func(s *TopicSum) any { return s.State() }},
	}

	ProcessColumns = Columns[Process]{
		{Head: "SCOPE", Value: func(p *Process) any { return p.What }},
		{Head: "HOST", Value: func(p *Process) any { return p.Host }},
		{Head: "PID", Value: func(p *Process) any { return p.PID }},
		{Head: "REPORTED", Value: func(p *Process) any { return p.Reported }},
		{Head: "PARTITIONS", Value: func(p *Process) any { return p.Owns }},
		{Head: "LAG", Value: func(p *Process) any { return p.Lag }},
		{Head: "LAST BATCH", Value: func(p *Process) any { return since(p.LastBatch) }},
		{Head: "HALTED", Value: func(p *Process) any { return p.Halted }},
		{Head: "FAULTS", Value: func(p *Process) any { return p.Kinds }},
	}

	SinkColumns = Columns[SinkSum]{
		{Head: "SINK", Value: func(s *SinkSum) any { return s.Sink }},
		{Head: "CALLS", Value: func(s *SinkSum) any { return s.Undelivered }},
		{Head: "RETRIED", Value: func(s *SinkSum) any { return s.Retrying }},
		{Head: "BEHIND", Value: func(s *SinkSum) any { return s.Blocked }},
		{Head: "OLDEST", Value: func(s *SinkSum) any { return age(s.Oldest) }},
		{Head: "RELAYS", Value: func(s *SinkSum) any { return s.Relays }},
		{Head: "LANES HELD", Value: func(s *SinkSum) any { return s.Lanes }},
		{Head: "STATE", Value: func(s *SinkSum) any { return s.State }},
		{Head: "LAST ERROR", Value: func(s *SinkSum) any { return s.LastError }},
	}
)
