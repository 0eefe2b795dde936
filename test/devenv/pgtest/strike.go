package pgtest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// StruckPool is a pool for a child process that ONLYONCE_FAULT lets fail at a statement. The
// variable has the form that package fault describes, and a point is "before PATTERN" or "after
// PATTERN":
//
//	ONLYONCE_FAULT="after onlyonce.settle.*; commit=kill@2"
//
// kills the process when the server has answered, for the second time, a COMMIT of a transaction
// that called onlyonce.settle. The pattern is a regular expression without comma and equals sign.
// It is looked for in the statements of the transaction so far, of which each ends in "; ", and
// must end in the newest one.
//
// Before a statement the server gets nothing of it; after it the server has carried it out, and the
// client has heard nothing. There the actions mean:
//
//	kill   the process kills itself
//	error  the connection breaks
//	hang   the statement, or its answer, comes late by ONLYONCE_FAULT_HANG
//	note   nothing
//
// What happened is said on standard error, as package fault does.
func StruckPool(ctx context.Context, db string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(db)
	if err != nil {
		return nil, err
	}
	s := &striker{sessions: map[int]*session{}}
	if s.hang, err = time.ParseDuration(os.Getenv("ONLYONCE_FAULT_HANG")); err != nil {
		s.hang = 10 * time.Second
	}
	for _, plan := range strings.Split(os.Getenv("ONLYONCE_FAULT"), ",") {
		point, action, _ := strings.Cut(plan, "=")
		when, pattern, ok := strings.Cut(point, " ")
		if !ok || when != "before" && when != "after" {
			continue // a failpoint of the product
		}
		k := &strike{point: point, after: when == "after", pattern: regexp.MustCompile(pattern)}
		k.action, action, _ = strings.Cut(action, "@")
		k.nth, _ = strconv.Atoi(action) // 0: each time
		s.strikes = append(s.strikes, k)
	}
	if len(s.strikes) > 0 {
		s.wire = &wire.Wire{At: s.sent, Answered: s.answered}
		cfg.ConnConfig.DialFunc = s.wire.Dial(cfg.ConnConfig.DialFunc)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// strike is one fault at one statement.
type strike struct {
	point   string
	after   bool
	pattern *regexp.Regexp
	action  string
	nth     int
	hits    int
}

// striker plays the strikes of a process.
type striker struct {
	wire    *wire.Wire
	hang    time.Duration
	strikes []*strike

	mu       sync.Mutex
	sessions map[int]*session // by the number of the connection
}

// session is what the striker knows of one connection.
type session struct {
	inTx       bool
	statements string
	synced     bool        // the next statement begins a round trip
	unanswered [][]*strike // for each statement whose answer is to come, what strikes there
}

// sent plays what comes before a statement.
func (s *striker) sent(m wire.Message) wire.Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.sessions[m.Conn]
	if c == nil {
		c = &session{}
		s.sessions[m.Conn] = c
	}
	if m.Kind != wire.Bind && m.Kind != wire.Query {
		c.synced = c.synced || m.Kind == wire.Sync
		return wire.Pass
	}
	if c.synced { // what is unanswered in the last round trip stands behind an error, and stays so
		c.unanswered = nil
	}
	c.synced = m.Kind == wire.Query
	hits := c.next(m.SQL, s.strikes)
	action := wire.Pass
	behind := []*strike(nil)
	for _, k := range hits {
		switch {
		case k.after && k.action != "error":
			behind = append(behind, k)
		case !k.hit():
		case k.after:
			action = wire.Unheard
		case k.action == "error":
			action = wire.Unsent
		case k.action == "hang":
			action = wire.Stalled
			time.AfterFunc(s.hang, s.wire.Release)
		}
	}
	c.unanswered = append(c.unanswered, behind)
	return action
}

// next takes note of a statement, and returns the strikes whose pattern ends in it.
func (c *session) next(sql string, all []*strike) (hits []*strike) {
	sql = strings.Join(strings.Fields(sql), " ")
	begins := strings.HasPrefix(sql, "begin")
	if begins || !c.inTx {
		c.statements = ""
	}
	before := len(c.statements)
	c.statements += sql + "; "
	c.inTx = (begins || c.inTx) && sql != "commit" && sql != "rollback"
	for _, k := range all {
		for _, at := range k.pattern.FindAllStringIndex(c.statements, -1) {
			if at[1] > before {
				hits = append(hits, k)
				break
			}
		}
	}
	return hits
}

// answered plays what comes after a statement, before the client hears of it. The connection waits
// meanwhile, and no other one.
func (s *striker) answered(a wire.Answer) {
	s.mu.Lock()
	c := s.sessions[a.Conn]
	if c == nil || len(c.unanswered) == 0 {
		s.mu.Unlock()
		return
	}
	behind := c.unanswered[0]
	c.unanswered = c.unanswered[1:]
	if strings.HasPrefix(a.Text, "ERROR ") {
		behind = nil
	}
	hang := false
	for _, k := range behind {
		hang = k.hit() && k.action == "hang" || hang
	}
	s.mu.Unlock()
	if hang {
		time.Sleep(s.hang)
	}
}

// hit counts, and reports whether this is the time. It does not return from a kill.
func (k *strike) hit() bool {
	k.hits++
	if k.nth != 0 && k.hits != k.nth {
		return false
	}
	fmt.Fprintf(os.Stderr, "fault: %s %s\n", k.point, k.action)
	if k.action == "kill" {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {} // not a step further
	}
	return true
}
