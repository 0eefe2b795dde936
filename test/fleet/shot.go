package fleet

import (
	"math/rand/v2"
	"time"
)

// Shot is one SIGKILL, aimed at a worker in the middle of a batch.
type Shot struct {
	Hit chan *ShotDown // receives the outcome

	retry bool    // aimed at a message that is tried again from the database
	skip  int     // batches that begin and are spared first
	late  float64 // delay after the beginning of a batch, as a share of a batch's duration
}

// ShotDown is the worker that a SIGKILL hit, and what it was doing.
type ShotDown struct {
	Worker    int
	PID       int
	InBatch   bool // a batch had begun and was not known to have committed
	InRetry   bool // a message was being tried again from the database
	Partition int32
	Offset    int64
}

// Shoot asks for the next kill. If the shot before came too late, it fires at once. The outcome
// comes on the channel.
func (f *Fleet) Shoot(random *rand.Rand, atOnce bool) *Shot {
	s := &Shot{Hit: make(chan *ShotDown, 1)}
	if !atOnce {
		s.skip = random.IntN(4)
		s.late = 0.8 * random.Float64()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.aim = s
	return s
}

// ShootRetry is Shoot for a worker that tries a message again from the database. There may be none
// for a long time: see Blindly.
func (f *Fleet) ShootRetry(random *rand.Rand) *Shot {
	s := &Shot{Hit: make(chan *ShotDown, 1), retry: true, skip: random.IntN(2), late: 0.8 * random.Float64()}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.aim = s
	return s
}

// Blindly fires a shot that has found no batch at any worker. It returns false if the shot had
// found one meanwhile, or if there is no worker.
func (f *Fleet) Blindly(s *Shot, random *rand.Rand) bool {
	p := f.Any(random)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.aim != s || p == nil {
		return false
	}
	p.shot = s
	f.aim = nil
	_ = p.cmd.Process.Kill() // fails only if it has ended
	return true
}

// consider decides whether to kill a worker that has just begun with a batch. The kill comes at a
// random moment in about the time that the batch takes: before its COMMIT, during it, or right
// after it.
func (f *Fleet) consider(p *Process, e Event) {
	if f.aim == nil || p.shot != nil || p.leaving {
		return
	}
	switch {
	case f.aim.retry != e.Retried, e.Alone && !e.Retried:
		return
	case f.aim.skip > 0:
		f.aim.skip--
		return
	}
	p.shot = f.aim
	f.aim = nil
	// Fails only if it has ended.
	time.AfterFunc(time.Duration(p.shot.late*float64(f.batch)), func() { _ = p.cmd.Process.Kill() })
}
