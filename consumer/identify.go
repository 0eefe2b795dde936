package consumer

import (
	"fmt"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// findIDs finds the messages' ids. It returns a disposition for each message without one, and nil
// for the others.
func (e *engine) findIDs(msgs []*Message) []*disposition {
	dispositions := make([]*disposition, len(msgs))
	for i, m := range msgs {
		m.mayRepeat, m.idInTopic = m.Offset < e.redoUntil, e.idInTopic
		if err := e.c.identify(m); err != nil {
			dispositions[i] = &disposition{reason: parked.NoKey, err: err}
		}
	}
	return dispositions
}

// identify finds the tenant and the id of a message. If a user's function panics or ends the
// process, the message counts as one without an id, because the function would do so again in each
// process.
func (c *Consumer) identify(m *Message) (err error) {
	m.scope, m.traceOf = c.cfg.Scope, c.cfg.Trace
	if m.identified {
		return m.idErr
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: Config.Key, Config.Tenant or Config.OrderingKey panicked: %v", ErrNoKey, p)
		}
		m.identified, m.idErr = true, err
	}()
	if c.events {
		m.tenant = m.eventTenant
	} else if c.cfg.Tenant != nil {
		m.tenant = c.cfg.Tenant(m)
	}
	if c.cfg.OnFailure == ParkOrderingKey {
		m.orderKey = c.orderOf(m)
	}
	key := c.cfg.Key
	if c.events {
		key = eventKey
	}
	if key == nil {
		return nil
	}
	id, err := key(m)
	switch {
	case err == nil && id == "":
		err = ErrNoKey
	case err == nil && m.timed && c.cfg.TooOld == tooOldUnset:
		err = fmt.Errorf("%w: Config.Key calls one of TimedKey: it must be that one itself, with Config.TooOld", ErrConfig)
	}
	if err == nil {
		m.id = id
	}
	return err
}

// identifyInOrder is identify for a message that is handled beside others: it also finds the
// ordering key by which it waits for earlier messages, under any policy.
func (c *Consumer) identifyInOrder(m *Message) {
	if m.identified || c.shares != nil { // a share group has no order
		return
	}
	_ = c.identify(m) // an error is the message's, and is met again
	if c.cfg.OnFailure == ParkOrderingKey {
		m.inOrder = m.orderKey
		return
	}
	if err := recoverPanic(func() error { m.inOrder = c.orderOf(m); return nil }); err != nil {
		m.idErr = fmt.Errorf("%w: Config.OrderingKey panicked: %w", ErrNoKey, err)
	}
}

// identifyMayKill reports whether the program has functions that find ids and ordering keys.
func (c *Consumer) identifyMayKill() bool {
	return c.shares == nil && (c.cfg.Key != nil || c.cfg.Tenant != nil || c.cfg.OrderingKey != nil)
}

// orderOf returns the stored form of a message's ordering key.
func (c *Consumer) orderOf(m *Message) orderHash {
	key := m.Key // the record's
	if c.cfg.OrderingKey != nil {
		key = c.cfg.OrderingKey(m)
	}
	if len(key) == 0 {
		return orderHash{}
	}
	return orderHash{Bytes: orderingKey(m.tenant, c.cfg.Scope, m.Topic, key), Valid: true}
}
