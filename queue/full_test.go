package queue_test

import "testing"

// A receiver whose broker refuses what producers send reports it, and no longer once there is room.
func TestAFullQueueIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.SetFull("it has its 3 messages")
	r.receives()
	reported := func() string {
		return one[string](
			r,
			`select coalesce(string_agg(f->>'kind' || ': ' || (f->>'text'), ''), '')
				from onlyonce.owners o, jsonb_array_elements(o.faults) f where o.part = 'receiver'`,
		)
	}
	r.until("it is reported", func() bool { return reported() == "full: it has its 3 messages" })
	r.broker.SetFull("")
	r.until("it is over", func() bool { return reported() == "" })
}
