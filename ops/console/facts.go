package console

import (
	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// parkedFacts are what the page of a parked row shows besides its error and its timeline.
var parkedFacts = []column[operate.ParkedDetail]{
	col(func(d *operate.ParkedDetail) any { return &d.Reason }),
	col(func(d *operate.ParkedDetail) any { return &d.Scope }),
	col(func(d *operate.ParkedDetail) any { return &d.Tenant }),
	col(func(d *operate.ParkedDetail) any { return &d.Topic }),
	col(func(d *operate.ParkedDetail) any { return &d.Partition }).as(aNumber),
	col(func(d *operate.ParkedDetail) any { return &d.Offset }).as(aNumber).
		leads(func(v *visit, d *operate.ParkedDetail) string {
			return v.toOffset(d.Scope, d.Topic, d.Partition, d.Offset)
		}),
	col(func(d *operate.ParkedDetail) any { return &d.Sink }).
		leads(func(v *visit, d *operate.ParkedDetail) string { return v.toSink(d.Sink) }),
	col(func(d *operate.ParkedDetail) any { return &d.Name }),
	col(func(d *operate.ParkedDetail) any { return &d.Key }).as(aCode).
		leads(func(v *visit, d *operate.ParkedDetail) string { return v.toKey(d.Key) }),
	col(func(d *operate.ParkedDetail) any { return &d.OrderKey }).as(aCode),
	col(func(d *operate.ParkedDetail) any { return &d.Head }).as(aNumber).
		leads(func(v *visit, d *operate.ParkedDetail) string { return v.toParked(d.Head) }),
	col(func(d *operate.ParkedDetail) any { return &d.Attempts }),
	col(func(d *operate.ParkedDetail) any { return &d.MayBeApplied }),
	col(func(d *operate.ParkedDetail) any { return &d.Behind }),
	col(func(d *operate.ParkedDetail) any { return &d.Ahead }),
	col(func(d *operate.ParkedDetail) any { return &d.EventID }),
	col(func(d *operate.ParkedDetail) any { return &d.ClusterID }).as(aCode),
	col(func(d *operate.ParkedDetail) any { return &d.TopicID }).as(aCode),
	col(func(d *operate.ParkedDetail) any { return &d.RecordTime }),
	col(func(d *operate.ParkedDetail) any { return &d.LogAppendTime }),
	col(func(d *operate.ParkedDetail) any { return &d.Replay }),
	col(func(d *operate.ParkedDetail) any { return &d.ReplayResend }),
	col(func(d *operate.ParkedDetail) any { return &d.Method }),
	col(func(d *operate.ParkedDetail) any { return &d.Target }),
	col(func(d *operate.ParkedDetail) any { return &d.RowID }).as(aNumber),
	col(func(d *operate.ParkedDetail) any { return &d.Lane }).as(aNumber),
	col(func(d *operate.ParkedDetail) any { return &d.FirstAttempt }),
	col(func(d *operate.ParkedDetail) any { return &d.ErasedAt }),
	col(func(d *operate.ParkedDetail) any { return &d.Capture }),
	col(func(d *operate.ParkedDetail) any { return &d.Sealed }),
	col(func(d *operate.ParkedDetail) any { return &d.FirstKey }).as(aCode),
	col(func(d *operate.ParkedDetail) any { return &d.Trace }).as(aCode),
}

// callFacts are what the page of a call shows.
var callFacts = []column[reports.Call]{
	col(func(c *reports.Call) any { return &c.Key }).as(aCode).
		leads(func(v *visit, c *reports.Call) string { return v.toKey(&c.Key) }),
	col(func(c *reports.Call) any { return &c.Sink }).
		leads(func(v *visit, c *reports.Call) string { return v.toSink(&c.Sink) }),
	col(func(c *reports.Call) any { return &c.Listed }),
	col(func(c *reports.Call) any { return &c.Lane }).as(aNumber),
	col(func(c *reports.Call) any { return &c.Name }),
	col(func(c *reports.Call) any { return &c.Tenant }),
	col(func(c *reports.Call) any { return &c.Scope }),
	col(func(c *reports.Call) any { return &c.Method }),
	col(func(c *reports.Call) any { return &c.Target }),
	col(func(c *reports.Call) any { return &c.Trace }).as(aCode),
	col(func(c *reports.Call) any { return &c.OrderKey }).as(aCode),
	col(func(c *reports.Call) any { return &c.CreatedAt }),
	col(func(c *reports.Call) any { return &c.NotBefore }),
	col(func(c *reports.Call) any { return &c.ErasedAt }),
	col(func(c *reports.Call) any { return &c.Capture }),
	col(func(c *reports.Call) any { return &c.Sealed }),
	col(func(c *reports.Call) any { return &c.ParkedID }).as(aNumber).
		leads(func(v *visit, c *reports.Call) string { return v.toParked(c.ParkedID) }),
	col(func(c *reports.Call) any { return &c.Attempts }),
	col(func(c *reports.Call) any { return &c.Error }).as(anError),
	col(func(c *reports.Call) any { return &c.SettledAt }),
	col(func(c *reports.Call) any { return &c.PausedAt }),
	col(func(c *reports.Call) any { return &c.PausedBy }),
	col(func(c *reports.Call) any { return &c.PauseReason }),
}

// eventFacts are what the page of an event shows.
var eventFacts = []column[reports.EventDetail]{
	col(func(e *reports.EventDetail) any { return &e.Topic }),
	col(func(e *reports.EventDetail) any { return &e.Partition }).as(aNumber),
	col(func(e *reports.EventDetail) any { return &e.Offset }).as(aNumber).
		leads(func(v *visit, e *reports.EventDetail) string {
			return v.toOffset("", &e.Topic, &e.Partition, &e.Offset)
		}),
	col(func(e *reports.EventDetail) any { return &e.Tenant }),
	col(func(e *reports.EventDetail) any { return &e.AppendedAt }),
	col(func(e *reports.EventDetail) any { return &e.ErasedAt }),
}

// cursorPosition is all that is known of a partition without a cursor.
var cursorPosition = col(func(c *ops.Cursor) any { return &c.Position }).as(aNumber)

// cursorFacts are what the page of a partition shows of its cursor.
var cursorFacts = []column[ops.Cursor]{
	cursorPosition,
	col(func(c *ops.Cursor) any { return &c.Run }),
	col(func(c *ops.Cursor) any { return &c.StartOffset }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.StartPolicy }),
	col(func(c *ops.Cursor) any { return &c.Group }),
	col(func(c *ops.Cursor) any { return &c.ClusterID }).as(aCode),
	col(func(c *ops.Cursor) any { return &c.TopicID }).as(aCode),
	col(func(c *ops.Cursor) any { return &c.Epoch }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.Clean }),
	col(func(c *ops.Cursor) any { return &c.Attempts }),
	col(func(c *ops.Cursor) any { return &c.AttemptOffset }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.AnchorOffset }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.LeaderEpoch }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.RetiredAt }),
	col(func(c *ops.Cursor) any { return &c.Paused }),
	col(func(c *ops.Cursor) any { return &c.Replay }),
	col(func(c *ops.Cursor) any { return &c.ReplayUntil }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.ReplayResume }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.ReplayResend }),
	col(func(c *ops.Cursor) any { return &c.RedoUntil }).as(aNumber),
	col(func(c *ops.Cursor) any { return &c.RedoTopicID }),
	col(func(c *ops.Cursor) any { return &c.DoneUntil }).as(aNumber),
}

// ownedFacts are what it shows of what the partition's owner reports.
var ownedFacts = []column[ops.OwnedPartition]{
	col(func(p *ops.OwnedPartition) any { return &p.LogStart }).as(aNumber),
	col(func(p *ops.OwnedPartition) any { return &p.HighWatermark }).as(aNumber),
	col(func(p *ops.OwnedPartition) any { return &p.Lag }),
	col(func(p *ops.OwnedPartition) any { return &p.LastStable }).as(aNumber),
	col(func(p *ops.OwnedPartition) any { return &p.LastBatchAge }),
}

// auditFacts are what the page of a decision shows.
var auditFacts = []column[reports.AuditRow]{auditAt, auditActor, auditReason}
