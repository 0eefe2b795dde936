package console

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// overview shows what needs a person, and where the work is.
func (v *visit) overview() error {
	s, state := v.db.live.status.get(v.ctx, v.db)
	c := &content{Title: lead(s, state)}
	if s != nil {
		if s.Standby {
			c.Notices = append(c.Notices, notice{
				Text: "This server is a standby: its data may lag, and nothing can be decided here.",
			})
		}
		ended := ""
		if n := s.Ended(); n > 0 {
			ended = fmt.Sprintf("%d more ended without a stop, over 5 minutes ago.", n)
		}
		c.Parts = []part{
			{Needs: v.needs(s.Needs)}, {Cards: v.cards(s)},
			{ID: "hour", Charts: s.charts()},
			{
				ID:    "consumers",
				Title: "Consumers",
				Table: topics.table(v, "topics", s.Consumers()),
				None:  "No consumer has a cursor in this database.",
			},
			{
				ID:    "parked",
				Title: "Parked",
				Table: parkedGroups.table(v, "groups", s.Parked.Groups),
				None:  nothingParked(s),
				Hint:  operate.Captured(&s.Parked),
			},
			{
				ID:    "relays",
				Title: "Relays",
				Table: relays.table(v, "sinks", s.Relays),
				None:  "No relay has listed a sink.",
			},
			{ID: "processes", Title: "Processes", Table: processes.table(v, "owners", s.processes()),
				None: "No process has reported.", Hint: ended},
			{Hint: fmt.Sprintf("Schema version %d.", s.SchemaVersion)},
		}
	}
	return v.showParts("/", c, page{Title: "Overview", Live: true, State: state, Status: unanswered(s == nil)})
}

// needs are the needs with their pages.
func (v *visit) needs(all []ops.Need) []need {
	var found []need
	for _, n := range all {
		page := pageOf(&n)
		if n.Kind == "halt" && n.Where["partition"] != "" {
			page = "/consumers/cursor"
		}
		var query []any
		for name, value := range n.Where {
			query = append(query, name, value)
		}
		found = append(found, need{n, v.Link(page, query...)})
	}
	return found
}

// pageOf is the page that shows more of a need.
func pageOf(n *ops.Need) string {
	switch {
	case n.Kind == "parked":
		return "/parked"
	case n.Where["sink"] != "":
		return "/outbox"
	case n.Kind == "request":
		return "/requests"
	}
	return "/consumers"
}

// cards are the numbers of the first page, those that need a person first.
func (v *visit) cards(s *status) []card {
	all := int64(0)
	waiting := int64(0)
	for i := range s.Parked.Groups {
		g := &s.Parked.Groups[i]
		all += g.Count
		if g.NeedsOperator() {
			waiting += g.Count
		}
	}
	count := func(n int64, of string) cardValue { return cardValue{string(number(n)), of} }
	calls := card{
		Title: "Calls not delivered",
		Href:  v.Link("/outbox"),
		Needs: slices.ContainsFunc(s.Needs, func(n ops.Need) bool { return pageOf(&n) == "/outbox" }),
	}
	for _, o := range s.Outbox {
		calls.Values = append(calls.Values, count(o.Count, o.Sink))
	}
	if len(calls.Values) == 0 {
		calls.Values = []cardValue{{Text: "0"}}
	}
	parked := card{
		Title:  "Parked",
		Href:   v.Link("/parked"),
		Values: []cardValue{count(all, "")},
		Sub:    show.Count(waiting, "row") + " for a person",
		Needs:  waiting > 0,
	}
	if !s.Parked.Counted {
		parked.Values = []cardValue{{Text: "over 2 s to count"}}
		parked.Sub = ""
	}
	if !s.OutboxCounted {
		calls.Values = []cardValue{{Text: "over 2 s to count"}}
	}
	cards := []card{
		parked,
		calls,
		{
			Title: "HTTP requests",
			Href:  v.Link("/requests"),
			Values: []cardValue{
				count(s.Requests.Reconcile, "of unknown outcome"),
				count(s.Requests.Abandoned, "abandoned"),
			},
			Needs: s.Requests.Reconcile+s.Requests.Abandoned > 0,
		},
	}
	slices.SortStableFunc(cards, func(a, b card) int { return a.rank() - b.rank() })
	if inbox, _ := v.db.live.inbox.get(v.ctx, v.db); inbox != nil {
		cards = append(cards, card{
			Title:  "Copies are recognized for",
			Href:   v.Link("/keys"),
			Values: horizons(inbox.Rings),
		})
	}
	return cards
}

// horizons are how long keys are remembered: of messages, and of all else. A ring of another class
// than standard counts once it is used.
func horizons(rings []reports.KeyRing) []cardValue {
	values := []cardValue{{Of: "messages"}, {Of: "other ids"}}
	for i := range rings {
		r := &rings[i]
		of := &values[0]
		if !ring.OfConsumers(r.Ring) {
			of = &values[1]
		}
		standard := r.Ring == ring.ConsumerKeys().Name || r.Ring == ring.StandardKeys().Name
		if r.Unused() && !standard {
			continue
		}
		horizon := "ever"
		if r.Horizon != nil {
			horizon = show.Ago(*r.Horizon)
		}
		if !slices.Contains(strings.Split(of.Text, ", "), horizon) {
			of.Text = strings.TrimPrefix(of.Text+", "+horizon, ", ")
		}
	}
	return values
}

// rank is the place among the cards: those that need a person come first.
func (c *card) rank() int {
	if c.Needs {
		return 0
	}
	return 1
}

// nothingParked is shown in place of groups of parked rows.
func nothingParked(s *status) string {
	if s.Parked.Counted {
		return "Nothing is parked."
	}
	return "Counting takes over 2 seconds."
}

// unanswered is the status of a page without an answer.
func unanswered(is bool) int {
	if is {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// fleetRow is a database of a console that has several.
type fleetRow struct {
	Database, Server string
	Needs, Parked    int64
	First            string // of the needs
	Bad              bool   // it does not answer
}

// fleet shows all databases of a console that has several.
func (v *visit) fleet(path string) {
	if path != "/" || v.r.Method != http.MethodGet && v.r.Method != http.MethodHead {
		v.fail(http.StatusNotFound, "There is no such page.", "The first part of an address names a database.")
		return
	}
	rows := make([]fleetRow, len(v.databases))
	var asking sync.WaitGroup
	for i, d := range v.databases {
		asking.Go(func() {
			s, state := d.live.status.get(v.ctx, d)
			rows[i] = fleetRow{Database: d.Name, Server: d.Server, First: "does not answer", Bad: state.Err != nil}
			switch {
			case s != nil:
				rows[i].Needs = int64(len(s.Needs))
				rows[i].First = ""
				if len(s.Needs) > 0 {
					rows[i].First = s.Needs[0].Text
				}
				for _, g := range s.Parked.Groups {
					rows[i].Parked += g.Count
				}
			case state.Schema():
				rows[i].First = "its schema does not fit this console"
			}
		})
	}
	asking.Wait()
	_ = v.showParts("/",
		&content{Title: leadOf(rows), Parts: []part{{Table: fleet.table(v, "databases", rows)}}},
		page{Title: "Databases", Live: true})
}

// topic is a consumer's topic and how fast it moves.
type topic struct {
	operate.TopicSum
	KnownLag *int64
	Rate     *float64 // messages a second; nil: not known yet
}

// Consumers are the topics of all consumers, those with a halt first.
func (s *status) Consumers() []topic {
	var all []topic
	for _, sum := range operate.Topics(s.StatusReport) {
		t := topic{TopicSum: sum}
		if sum.Owned > 0 || sum.AtLeast {
			t.KnownLag = &sum.Lag
		}
		if r, known := s.Rates[[2]string{sum.Scope, sum.Topic}]; known {
			t.Rate = &r
		}
		all = append(all, t)
	}
	slices.SortStableFunc(all, func(a, b topic) int { return min(b.Halted, 1) - min(a.Halted, 1) })
	return all
}

// process is a consumer process.
type process struct {
	*ops.Owner
	Owns int // partitions
	Tags []string
}

// bad reports whether it cannot work.
func (p *process) bad() bool { return len(p.Faults) > 0 && !p.Silent() }

func (s *status) processes() (all []process) {
	for _, o := range s.Processes() {
		p := process{Owner: o, Owns: len(o.Partitions)}
		if o.Silent() {
			p.Tags = []string{"silent"}
		}
		all = append(all, p)
	}
	return all
}
