package console

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/ops"
)

// content is a page that is made of parts.
type content struct {
	Title, Of string
	Tags      []string
	Notices   []notice
	Acts      []act
	Parts     []part
}

// notice is something that a person should see first.
type notice struct{ Class, Text, Remedy string }

// part is a section of a page. It shows those of its fields that are set, in their order; None if
// none of those that are about the database is.
type part struct {
	ID, Title, Of string
	Half          bool // beside another one, if there is room
	Folded        bool // opens when a person asks

	Text     []string
	Needs    []need
	Cards    []card
	Charts   []chart
	Facts    []fact
	Filter   *filter
	Acts     []act
	Table    *table
	Timeline []moment
	Pre      string
	Payload  *payload
	Steps    []operate.Step
	None     string
	Next     string // the address of the next page
	Hint     string
}

// Empty reports whether the part shows that there is nothing.
func (p part) Empty() bool {
	return p.None != "" && p.Needs == nil && p.Table == nil && p.Timeline == nil && p.Pre == "" && p.Payload == nil
}

// need is something that needs a person, and its page.
type need struct {
	ops.Need
	Href string
}

// card is a number of the first page.
type card struct {
	Title, Href, Sub string
	Values           []cardValue
	Needs            bool // a person
}

// cardValue is a value of a card, and what it is of.
type cardValue struct{ Text, Of string }

// moment is a line of a timeline.
type moment struct {
	At   time.Time // zero: not known, or now
	Text string
	Mark string // a state, for its color; empty: none
	Href string // empty: none
}

// filter is the form above a list. Its fields are those of the list's filter.
type filter struct {
	Action  string
	Fields  []filterField
	Cleared bool // it picks all
}

type filterField struct {
	operate.Field
	Value string
}

// Title is the field's name for people.
func (f filterField) Title() string { return heading(strings.ReplaceAll(f.Name, "-", "_")) }

// listOf reads the list that the address asks for, and completes its part of the page: the filter,
// the rows, and the way to the next ones.
func listOf[F, T any](
	v *visit,
	p part,
	l *operate.List[F, T],
	page string,
	w view[T],
) (part, *operate.Question[F, T], error) {
	q := l.Begin()
	p.Filter = &filter{Action: v.Link(page), Cleared: true}
	for _, f := range q.Form {
		if f.Name == "limit" {
			continue
		}
		text := strings.TrimSpace(v.Query(f.Name))
		p.Filter.Fields = append(p.Filter.Fields, filterField{f, text})
		if text == "" {
			continue
		}
		p.Filter.Cleared = false
		if err := q.Set(f.Name, text); err != nil {
			return p, q, &ops.Error{Kind: ops.ErrInvalid, Reason: f.Name + " " + err.Error()}
		}
	}
	if err := q.Set("limit", strconv.Itoa(perPage)); err != nil {
		return p, q, err
	}
	for _, way := range []string{"before", "after"} {
		if at, err := strconv.ParseInt(v.Query(way), 10, 64); err == nil {
			q.Page(way, at)
		}
	}
	var found operate.Rows[T]
	if err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		found, err = q.Read(ctx, db, countLimit)
		return err
	}); err != nil {
		return p, q, err
	}
	p.Table = w.table(v, p.ID, found.All)
	p.None = cmp.Or(p.None, l.None)
	if !found.More {
		return p, q, nil
	}
	way, last := q.Next(found)
	if way == "" {
		p.Hint = "There are more: narrow the filter."
		return p, q, nil
	}
	query := v.r.URL.Query()
	query.Set(way, strconv.FormatInt(last, 10))
	p.Next = v.Link(page) + "?" + query.Encode()
	return p, q, nil
}

// showParts shows a page of parts.
func (v *visit) showParts(section string, c *content, p page) error {
	p.Section = section
	p.Title = cmp.Or(p.Title, c.Title)
	p.Data = c
	c.Parts = slices.DeleteFunc(c.Parts, func(p part) bool {
		p.ID = ""
		p.Title = ""
		p.Of = ""
		p.Folded = false
		p.Half = false
		return reflect.ValueOf(p).IsZero()
	})
	v.show(p)
	return nil
}
