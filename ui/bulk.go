package ui

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/ops"
)

// A bulk act, and the interleavings that it is safe in:
//
//   - Its page shows how many rows match, and the greatest id. Rows that are parked afterwards are
//     left out: the form carries that id, and the server picks no greater one.
//   - Another operator, a consumer or a relay changes a row between the page and its transaction:
//     each transaction locks its rows and looks again; such a row is skipped and counted.
//   - Two operators run the same act: each row belongs to the transaction that locks it first, and
//     the other one skips it.
//   - The process ends between two transactions: each has counted itself in the audit row.

const (
	jobsKept = 50 // that have ended, for their pages
	jobsMost = 4  // that run at once, for a database
)

// job is a bulk act that runs, or has run.
type job struct {
	ID     string
	Title  string
	Actor  Actor
	Reason string
	Filter [][2]string
	Began  time.Time

	mu    sync.Mutex
	done  ops.Bulk
	ended time.Time // zero: it runs
	err   error
	stop  bool
}

// jobView is what a page shows of a job.
type jobView struct {
	*job
	Done     ops.Bulk
	Ended    time.Time
	Stopping bool
	Text     string // of an error
	Remedy   string
}

// Percent is how far it is.
func (j jobView) Percent() int {
	if j.Done.Count == 0 {
		return 0
	}
	return min(100, 100*(j.Done.Changed+j.Done.Skipped)/j.Done.Count)
}

// progress notes how far the job is, and reports whether it goes on.
func (j *job) progress(b ops.Bulk) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = b
	return !j.stop
}

func (j *job) end(b *ops.Bulk, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if b != nil {
		j.done = *b
	}
	j.ended, j.err = time.Now(), err
}

// jobs are the bulk acts of a database.
type jobs struct {
	mu  sync.Mutex
	all []*job // the newest last
}

// add adds a job. It reports false if too many run.
func (s *jobs) add(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := 0
	for _, of := range s.all {
		of.mu.Lock()
		if of.ended.IsZero() {
			running++
		}
		of.mu.Unlock()
	}
	if running >= jobsMost {
		return false
	}
	if s.all = append(s.all, j); len(s.all) > jobsKept+jobsMost {
		s.all = slices.Delete(s.all, 0, 1)
	}
	return true
}

func (s *jobs) find(id string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.all {
		if j.ID == id {
			return j
		}
	}
	return nil
}

// bulkAct is a decision about all that a filter matches.
type bulkAct struct {
	*operate.Decision
	title, means string
	do           func(context.Context, ops.DB, ops.By, ops.BulkInput) (*ops.Bulk, error)
}

func bulkActs() []bulkAct {
	return []bulkAct{
		{operate.Redrive(), "Redrive all of these", "The rows become due at once, with as many attempts as a new one has. Each is applied once at most.", ops.RedriveAll},
		{operate.Discard(), "Discard all of these", "The rows are given up: they are never applied or sent. They stay stored, and ids of messages stay claimed.", ops.DiscardAll},
	}
}

func bulkRoutes() []route {
	var all []route
	for _, a := range bulkActs() {
		all = append(all, route{"GET /bulk/" + a.Page, Operate, func(v *visit) error { return v.proposeBulk(a, http.StatusOK, nil) }},
			route{"POST /bulk/" + a.Page, Operate, func(v *visit) error { return v.startBulk(a) }})
	}
	return append(all, route{"GET /jobs/{id}", View, (*visit).showJob}, route{"POST /jobs/{id}/stop", Operate, (*visit).stopJob})
}

// filter is the fields of the filter that an address or a form gives, and the same for people.
func (a *bulkAct) filter(f url.Values) (filter, facts [][2]string) {
	for _, of := range a.Fields {
		if text := f.Get(of.Name); text != "" {
			filter = append(filter, [2]string{of.Name, text})
			facts = append(facts, [2]string{strings.ToUpper(of.Name[:1]) + strings.ReplaceAll(of.Name[1:], "-", " "), text})
		}
	}
	return filter, facts
}

// input reads the filter.
func (a *bulkAct) input(f url.Values) (in ops.BulkInput, err error) {
	try, err := begin(a.Decision, f)
	if err != nil {
		return in, err
	}
	switch of := try.Input.(type) {
	case *ops.RedriveInput:
		in.ParkedFilter, in.VerifiedApplied, in.VerifiedNotApplied = of.ParkedFilter, of.VerifiedApplied, of.VerifiedNotApplied
	case *ops.DiscardInput:
		in.ParkedFilter = of.ParkedFilter
	}
	return in, nil
}

// bulkProposal is the page of a bulk act.
type bulkProposal struct {
	Title, Means string
	Danger       bool
	Post         string
	Filter       [][2]string // for the form
	Facts        [][2]string // the same for people
	Bulk         *ops.Bulk
	Ways         [][2]string // what a person may have verified about the calls: a field, and its text
	Reason       string
	Text, Remedy string
}

func (v *visit) proposeBulk(a bulkAct, status int, failed error) error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	if err := v.writable(); err != nil {
		return err
	}
	f := v.r.Form
	p := &bulkProposal{Title: a.title, Means: a.means, Danger: a.Danger, Post: v.Link("/bulk/" + a.Page)}
	if v.r.Method == http.MethodPost {
		p.Reason = f.Get("reason")
	}
	p.Filter, p.Facts = a.filter(f)
	if a.Page == "redrive" && f.Get("kind") == string(Call) && f.Get("state") == "reconcile" && f.Get("verified-applied")+f.Get("verified-not-applied") == "" {
		p.Ways = [][2]string{{"verified-applied", "I have verified that all were applied: resolve them"}, {"verified-not-applied", "I have verified that none was applied: send them again"}}
	}
	in, err := a.input(f)
	if err == nil {
		err = v.ask(func(ctx context.Context, db ops.DB) (err error) {
			p.Bulk, err = a.do(ctx, db, ops.By{DryRun: true}, in)
			return err
		})
	}
	if failed == nil {
		failed = err
	}
	if failed != nil {
		var code int
		code, p.Text, p.Remedy = v.describe(failed)
		if status == http.StatusOK {
			status = code
		}
	}
	v.show(page{File: "bulk", Title: a.title, Section: "/parked", Status: status, Data: p})
	return nil
}

// startBulk starts the act that was shown, and goes on to its page.
func (v *visit) startBulk(a bulkAct) error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	f := v.r.PostForm
	refuse := func(err error) error {
		status, _, _ := v.describe(err)
		return v.proposeBulk(a, status, err)
	}
	in, err := a.input(f)
	if err != nil {
		return refuse(err)
	}
	count, err := strconv.Atoi(f.Get("count"))
	upTo, err2 := strconv.ParseInt(f.Get("up_to"), 10, 64)
	if err != nil || err2 != nil || count < 1 {
		return refuse(errUnseen)
	}
	in.Shown = &ops.Bulk{Count: count, UpTo: upTo}
	reason := strings.TrimSpace(f.Get("reason"))
	if reason == "" {
		return refuse(&ops.Error{Kind: ops.ErrInvalid, Reason: "the reason must not be empty"})
	}
	j := &job{ID: rand.Text(), Title: a.title, Actor: v.actor, Reason: reason, Began: time.Now(), done: ops.Bulk{Count: count}}
	_, j.Filter = a.filter(f)
	if !v.db.jobs.add(j) {
		return refuse(&ops.Error{Kind: ops.ErrRefused, Reason: "other bulk acts run in this database", Remedy: "wait until one of them has ended"})
	}
	in.Progress = j.progress
	ctx, pool, by := context.WithoutCancel(v.ctx), v.db.pool, ops.By{Actor: string(v.actor), Reason: reason}
	go func() { j.end(a.do(ctx, pool, by, in)) }()
	http.Redirect(v.w, v.r, v.Link("/jobs/"+j.ID), http.StatusSeeOther)
	return nil
}

func (v *visit) showJob() error {
	j := v.db.jobs.find(v.r.PathValue("id"))
	if j == nil {
		return &ops.Error{Kind: ops.ErrNotFound, Reason: "this console does not know that bulk act", Remedy: "if its process was restarted, the audit has what was done"}
	}
	j.mu.Lock()
	shown := jobView{job: j, Done: j.done, Ended: j.ended, Stopping: j.stop && j.ended.IsZero()}
	err := j.err
	j.mu.Unlock()
	if err != nil {
		_, shown.Text, shown.Remedy = v.describe(err)
	}
	v.show(page{File: "job", Title: j.Title, Section: "/parked", Live: shown.Ended.IsZero(), Data: shown})
	return nil
}

func (v *visit) stopJob() error {
	j := v.db.jobs.find(v.r.PathValue("id"))
	if j == nil {
		return errMissing
	}
	j.mu.Lock()
	j.stop = true
	j.mu.Unlock()
	http.Redirect(v.w, v.r, v.Link("/jobs/"+j.ID), http.StatusSeeOther)
	return nil
}
