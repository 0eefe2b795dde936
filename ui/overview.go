package ui

import (
	"context"
	"net/http"

	"github.com/onlyonce/onlyonce/ops"
)

// overview shows what needs a person, and where the work is.
func (v *visit) overview() error {
	s, state := v.db.live.status.get(v.ctx, v.db)
	inbox, _ := v.db.live.inbox.get(v.ctx, v.db)
	v.show(page{File: "overview", Title: "Overview", Section: "/", Live: true, State: state, Status: unanswered(s == nil),
		Data: map[string]any{"Status": s, "Inbox": inbox}})
	return nil
}

// unanswered is the status of a page without an answer.
func unanswered(is bool) int {
	if is {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// fleet shows all databases of a console that has several.
func (v *visit) fleet(path string) {
	if path != "/" || v.r.Method != http.MethodGet && v.r.Method != http.MethodHead {
		v.fail(http.StatusNotFound, "There is no such page.", "The first part of an address names a database.")
		return
	}
	type row struct {
		*database
		Status *status
		State  asked
	}
	rows := make([]row, len(v.databases))
	done := make(chan struct{})
	for i, d := range v.databases {
		go func() {
			s, state := d.live.status.get(v.ctx, d)
			rows[i] = row{d, s, state}
			done <- struct{}{}
		}()
	}
	for range rows {
		<-done
	}
	v.show(page{File: "fleet", Title: "Databases", Section: "/", Live: true, Data: rows})
}

// Totals are how many rows are parked and not settled, and of those how many wait for a person.
func (s *status) Totals() (t struct{ All, Waiting int64 }) {
	for i := range s.StatusReport.Parked.Groups {
		g := &s.StatusReport.Parked.Groups[i]
		t.All += g.Count
		if g.NeedsOperator() {
			t.Waiting += g.Count
		}
	}
	return t
}

// topic is a consumer's topic and how fast it moves.
type topic struct {
	*ops.TopicSum
	Rate *float64 // messages a second; nil: not known yet
}

// Consumers are the topics of all consumers, those with a halt first.
func (s *status) Consumers() []topic {
	var halted, rest []topic
	for _, sum := range s.StatusReport.Topics() {
		t := topic{TopicSum: sum}
		if r, known := s.Rates[[2]string{sum.Scope, sum.Topic}]; known {
			t.Rate = &r
		}
		if sum.Halted > 0 {
			halted = append(halted, t)
		} else {
			rest = append(rest, t)
		}
	}
	return append(halted, rest...)
}

// keys shows the rings of claimed keys, and what holds back that they forget.
func (v *visit) keys() error {
	inbox, state := v.db.live.inbox.get(v.ctx, v.db)
	v.show(page{File: "keys", Title: "Keys", Section: "/keys", Live: true, State: state, Status: unanswered(inbox == nil), Data: inbox})
	return nil
}

// doctor shows what Examine finds.
func (v *visit) doctor() error {
	var found *ops.Examination
	err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		found, err = ops.Examine(ctx, db, ops.ExamineQuestion{CountLimit: countLimit})
		return err
	})
	if err != nil {
		return err
	}
	v.show(page{File: "doctor", Title: "Doctor", Section: "/doctor", Data: found})
	return nil
}

// ask asks the database of the page.
func (v *visit) ask(f func(ctx context.Context, db ops.DB) error) error {
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	return v.db.ask(ctx, f)
}

// NeedLink is the address of the page about what needs a person.
func (v *visit) NeedLink(n ops.Need) string {
	page := map[string]string{"halt": "/consumers", "fault": "/consumers", "crash": "/consumers", "consumer": "/consumers", "parked": "/parked", "relay": "/outbox", "request": "/requests"}[n.Kind]
	if n.Kind == "halt" && n.Where["partition"] != "" {
		page = "/consumers/cursor"
	}
	var query []any
	for name, value := range n.Where {
		query = append(query, name, value)
	}
	return v.Link(page, query...)
}
