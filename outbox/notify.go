package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements of the channel that relays listen to.
const (
	notifySQL = `select pg_notify('onlyonce_outbox', '')`
	listenSQL = `listen onlyonce_outbox`
)

// Notifier tells relays of other processes (RelayConfig.Listen) that there are calls, after the transactions that enqueued them have committed. Never in
// one of them: NOTIFY takes a lock of the whole database until the commit, so that producers would commit one after another
// (PostgreSQL source, PreCommit_Notify). It is a hint: what it does not say is found at the relay's next poll.
type Notifier struct {
	pool *pgxpool.Pool
	told chan struct{}
}

// NewNotifier returns a Notifier; it does nothing before [Notifier.Run] is called.
func NewNotifier(pool *pgxpool.Pool) *Notifier {
	return &Notifier{pool: pool, told: make(chan struct{}, 1)}
}

// Notify says that a transaction with calls has committed. It never blocks; what is said while a notification is on its way is said
// by the next one.
func (n *Notifier) Notify() {
	select {
	case n.told <- struct{}{}:
	default:
	}
}

// notifyTimeout bounds one notification.
const notifyTimeout = 5 * time.Second

// Run sends notifications until ctx ends, and returns nil. One that fails is not repeated.
func (n *Notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.told:
			bounded, cancel := context.WithTimeout(ctx, notifyTimeout)
			_, _ = n.pool.Exec(bounded, notifySQL) // a hint
			cancel()
		}
	}
}

// listen wakes the relay at notifications until ctx ends.
func (r *Relay) listen(ctx context.Context) {
	pause := r.senders[0].pauses()
	for ctx.Err() == nil {
		err := r.hear(ctx, pause.Reset)
		if ctx.Err() != nil {
			return
		}
		d := pause.NextBackOff()
		r.cfg.Logger.Warn("outbox: not listening for notifications; calls are found by polling", "error", err, "wait", d)
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// hear holds a connection of its own for as long as it works.
func (r *Relay) hear(ctx context.Context, ready func()) error {
	pooled, err := r.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // it has a session's state now, and must not go back
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
		defer cancel()
		_ = conn.Close(bounded)
	}()
	if _, err := conn.Exec(ctx, listenSQL); err != nil {
		return err
	}
	ready()
	for {
		r.Wake() // first for what was said before we listened
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
	}
}
