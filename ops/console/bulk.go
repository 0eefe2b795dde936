package console

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
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
	done  ops.ParkedChange
	ended time.Time // zero: it runs
	err   error
	stop  bool
}

// jobView is what a page shows of a job.
type jobView struct {
	*job
	Done     ops.ParkedChange
	Ended    time.Time
	Stopping bool
	Failed   *notice
}

// Percent is how far it is.
func (j jobView) Percent() int {
	if j.Done.Count == 0 {
		return 0
	}
	return min(100, 100*(j.Done.Changed+j.Done.Skipped)/j.Done.Count)
}

// progress notes how far the job is, and reports whether it goes on.
func (j *job) progress(b ops.ParkedChange) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = b
	return !j.stop
}

func (j *job) end(r *operate.Result, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r != nil {
		j.done = *r.Bulk()
	}
	j.ended = time.Now()
	j.err = err
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

// filterOf is what the act is about, for people.
func filterOf(d *operate.Decision, f url.Values) (facts [][2]string) {
	for _, of := range d.Fields {
		if text := f.Get(of.Name); text != "" && of.Name != "all" {
			facts = append(facts, [2]string{
				strings.ToUpper(of.Name[:1]) + strings.ReplaceAll(of.Name[1:], "-", " "),
				text,
			})
		}
	}
	return facts
}

// start starts the act that was shown, and goes on to its page (U3).
func (v *visit) start(j *job, try *operate.Try, by ops.By, shown *operate.Result) error {
	if by.Reason == "" {
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "the reason must not be empty"}
	}
	j.ID = rand.Text()
	j.Title = try.Title + " all of these"
	j.Actor = v.actor
	j.Reason = by.Reason
	j.Began = time.Now()
	j.done = ops.ParkedChange{Count: shown.Bulk().Count}
	j.Filter = filterOf(try.Decision, v.r.PostForm)
	if !v.db.jobs.add(j) {
		return &ops.Error{
			Kind:   ops.ErrRefused,
			Reason: "other bulk acts run in this database",
			Remedy: "wait until one of them has ended",
		}
	}
	ctx := context.WithoutCancel(v.ctx)
	pool := v.db.pool
	go func() {
		j.end(try.Run(ctx, pool, by, shown))
		v.db.live.forget()
	}()
	http.Redirect(v.w, v.r, v.Link("/jobs/"+j.ID), http.StatusSeeOther)
	return nil
}

func (v *visit) showJob() error {
	j := v.db.jobs.find(v.r.PathValue("id"))
	if j == nil {
		return &ops.Error{
			Kind:   ops.ErrNotFound,
			Reason: "this console does not know that bulk act",
			Remedy: "if its process was restarted, the audit has what was done",
		}
	}
	j.mu.Lock()
	shown := jobView{job: j, Done: j.done, Ended: j.ended, Stopping: j.stop && j.ended.IsZero()}
	err := j.err
	j.mu.Unlock()
	if err != nil {
		_, text, remedy := v.describe(err)
		shown.Failed = &notice{"bad", text, remedy}
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
