package consumer_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// F15: a consumer does not join a group in which only another scope has worked, so that the members
// of that scope keep their partitions. The error names both scopes and the way out.
func TestF15GroupOfAnotherScopeIsNotJoined(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbered(0, 10)
	r.log.SetCommitted("stock", 1, 4, names.Mark("mail/é", 4))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := &memlog.Source{Log: r.log, GroupID: "stock", OnCommit: func(int32, int64) error {
		t.Error("an offset was committed")
		cancel()
		return nil
	}}
	c, err := consumer.New(r.pool, src, consumer.HandlerFunc(queued), testConfig())
	if err != nil {
		t.Fatal(err)
	}
	err = c.Run(ctx)
	for _, want := range []string{
		"not joined",
		`group "stock" belongs to scope "mail/é" in partition ` + r.log.Identity().Topic + `/1`,
		`this consumer has scope "stock"`,
		"a group of its own",
		"take the old name back",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run returned %v, want %q", err, want)
		}
	}
}

// F15: if consumers of two scopes begin at once, each has committed an offset before it looks at
// the group's, so at least one of them halts before it handles a message.
func TestF15LaterOfTwoScopesHalts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbered(0, 10)
	var other sync.Once
	src := &memlog.Source{Log: r.log, GroupID: "stock", OnCommit: func(partition int32, _ int64) error {
		if partition == 0 { // this consumer has looked at the group, and has not committed yet
			other.Do(func() { r.log.SetCommitted("stock", 1, 0, names.Mark("mail", 0)) })
		}
		return nil
	}}
	stop := r.startOn(src, r.pool, queued, testConfig())
	until(t, "a halt of partition 0", func() bool {
		return r.count(`select count(*) from effects`) > 0 ||
			r.count(`
select count(*)
  from onlyonce.owners o, jsonb_array_elements(o.partitions) p
 where p->>'partition' = '0' and p->>'halted' = 'foreign-scope'`) == 1
	})
	stop()
	if n := r.count(`select count(*) from effects`); n != 0 {
		t.Errorf("%d messages were handled", n)
	}
}
