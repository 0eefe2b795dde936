package consumer_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const shareTopic = "11111111-1111-1111-1111-111111111111"

// newShareRig is a slotRig whose owner is the keeper of a share group.
func newShareRig(t *testing.T) *slotRig {
	t.Helper()
	s := newSlotRig(t)
	s.raiseShared()
	return s
}

// raiseShared takes the cursor over as a keeper does.
func (s *slotRig) raiseShared() {
	s.t.Helper()
	s.exec(`select onlyonce.take_cursor($1, (select epoch from onlyonce.leases where id = $1), gen_random_uuid(), 'keeper', null, $2, true, '5s')`, s.id, shareTopic)
	s.owned()
}

// fenceShare records delivered offsets as done, under the keeper's epoch that the rig knows. A
// member compares no position that it has read.
func (s *slotRig) fenceShare(c *session, offsets ...int64) string {
	return s.fence(c, 0, offsets, nil)
}

// G1: of two transactions that share an offset one commits, whether both were delivered or one is
// the keeper's.
func TestG1OneOffsetDeliveredTwice(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		for _, who := range []string{"member", "keeper"} {
			t.Run(level+" "+who, func(t *testing.T) {
				t.Parallel()
				s := newShareRig(t)
				first, second := s.session(), s.session()
				for _, c := range []*session{first, second} {
					c.want("begin", c.run("begin isolation level "+level), "")
				}
				first.want("first fence", s.fenceShare(first, 10, 12), "")
				answer := make(chan string, 1)
				go func() {
					if who == "keeper" {
						answer <- s.fence(second, 10, []int64{11, 12}, nil)
						return
					}
					answer <- s.fenceShare(second, 11, 12)
				}()
				until(t, "the second waits", func() bool { return s.count(`select count(*) from pg_locks where not granted`) > 0 })
				first.want("seal", first.run("select onlyonce.seal()"), "")
				first.want("commit", first.run("commit"), "")
				got := <-answer
				if level == "serializable" && got == "40001" {
					got = "23505" // the server may say so too
				}
				second.want("second fence", got, "23505")
			})
		}
	}
}

// G1: the fence of delivered messages raises for what is done.
func TestG1FenceShareRaises(t *testing.T) {
	t.Parallel()
	s := newShareRig(t)
	s.done(11)
	for _, x := range []struct {
		what, want string
		offsets    []int64
	}{
		{"offset that is free", "", []int64{12}},
		{"offset that is done", "23505", []int64{11}},
		{"offset below the position", "OO001", []int64{12, 9}},
	} {
		c := s.session()
		c.want("begin", c.run("begin"), "")
		c.want(x.what, s.fenceShare(c, x.offsets...), x.want)
		c.want("rollback", c.run("rollback"), "")
	}
}

// G6: a take-over waits for the transactions of delivered messages, so it may delete what is below
// the position. One that comes later under the epoch before fails, and reads the cursor again.
func TestG6TakeOverWaitsForDeliveredMessages(t *testing.T) {
	t.Parallel()
	s := newShareRig(t)
	working, idle := s.session(), s.session()
	working.want("begin", working.run("begin"), "")
	working.want("fence", s.fenceShare(working, 10), "")
	idle.want("begin", idle.run("begin isolation level repeatable read"), "")
	idle.want("snapshot", idle.run("select count(*) from onlyonce.cursors"), "")
	old := *s
	raised := make(chan struct{})
	go func() {
		defer close(raised)
		s.raiseShared()
	}()
	until(t, "the take-over waits", func() bool { return s.count(`select count(*) from pg_locks where not granted`) > 0 })
	working.want("seal", working.run("select onlyonce.seal()"), "")
	working.want("commit", working.run("commit"), "")
	pgtest.Receive(t, patience, "raised", raised)
	idle.want("old snapshot", old.fenceShare(idle, 11), "40001")
	late := s.session()
	late.want("begin", late.run("begin"), "")
	late.want("the epoch before", old.fenceShare(late, 11), "OO001")
	again := s.session()
	again.want("begin", again.run("begin"), "")
	again.want("the epoch that it has read again", s.fenceShare(again, 11), "")
}

// raisePlainSQL takes the cursor over as a consumer does that reads through no share group.
const raisePlainSQL = `select onlyonce.take_cursor($1, (select epoch from onlyonce.leases where id = $1), gen_random_uuid(), 'keeper', null, $2, false, '5s')`

// G6: a take-over by a consumer that reads through no share group waits for a member's open
// transaction. A member that comes later, waits for it, or has an older snapshot fails, until a
// keeper takes over.
func TestG6PlainOwnerExcludesMembers(t *testing.T) {
	for level, waited := range map[string]string{"read committed": "OO001", "repeatable read": "40001", "serializable": "40001"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := newShareRig(t)
			begin := func() *session {
				c := s.session()
				c.want("begin", c.run("begin isolation level "+level), "")
				return c
			}
			working, idle, later, owner := begin(), begin(), begin(), s.session()
			idle.want("snapshot", idle.run("select count(*) from onlyonce.cursors"), "")
			owner.want("begin", owner.run("begin"), "")
			working.want("fence", s.fenceShare(working, 10), "")
			raised, answer := make(chan string, 1), make(chan string, 1)
			go func() { raised <- owner.run(raisePlainSQL, s.id, shareTopic) }()
			waits(t, s.pool, &claimer{conn: owner.Conn})
			working.want("seal", working.run("select onlyonce.seal()"), "")
			working.want("commit", working.run("commit"), "")
			owner.want("take-over", <-raised, "")
			go func() { answer <- s.fenceShare(later, 11) }()
			waits(t, s.pool, &claimer{conn: later.Conn})
			owner.want("commit", owner.run("commit"), "")
			later.want("a member that waited", <-answer, waited)
			idle.want("a member with an older snapshot", s.fenceShare(idle, 12), waited)
			after := begin()
			after.want("a later member", s.fenceShare(after, 13), "OO001")
			s.raiseShared()
			again := begin()
			again.want("a member of the next keeper", s.fenceShare(again, 14), "")
		})
	}
}

// T6: a COMMIT that the seal has not allowed fails for delivered messages too.
func TestT6DeliveredMessagesNeedTheSeal(t *testing.T) {
	t.Parallel()
	s := newShareRig(t)
	c := s.session()
	c.want("begin", c.run("begin"), "")
	c.want("fence", s.fenceShare(c, 10, 11), "")
	c.want("commit", c.run("commit"), "OO002")
}
