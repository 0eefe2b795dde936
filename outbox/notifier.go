package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// Statements of the channel that relays listen to.
const (
	notifySQL = `select pg_notify('onlyonce_outbox', '')`
	listenSQL = `listen onlyonce_outbox`
)

// Notifier notifies relays of other processes (RelayConfig.Listen) that there are calls, after the
// transactions that enqueued them have committed. Never notify in such a transaction: NOTIFY takes
// a lock of the whole database until the commit, so producers would commit one after another
// (PostgreSQL source, PreCommit_Notify). A notification is a hint: the relay's next poll finds
// calls that it misses.
type Notifier struct {
	pool    *primary.Pool
	pending chan struct{}
}

// NewNotifier returns a Notifier. It sends no notifications until [Notifier.Run] is called.
func NewNotifier(pool *pgxpool.Pool) *Notifier {
	return &Notifier{pool: primary.Of(pool, nil), pending: make(chan struct{}, 1)}
}

// Notify reports that a transaction with calls has committed. It never blocks. Calls to Notify
// while a notification is on its way share the next one.
func (n *Notifier) Notify() { signal(n.pending) }

// notifyTimeout bounds one notification.
const notifyTimeout = 5 * time.Second

// Run sends notifications until ctx ends, and returns nil. A notification that fails is not
// repeated.
func (n *Notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.pending:
			bounded, cancel := context.WithTimeout(ctx, notifyTimeout)
			_, _ = n.pool.Exec(bounded, notifySQL) // a hint
			cancel()
		}
	}
}

// listenForWakeups calls wake at notifications until ctx ends.
func listenForWakeups(ctx context.Context, pool *primary.Pool, pause *backoff.ExponentialBackOff, log *slog.Logger, wake func()) {
	for ctx.Err() == nil {
		err := waitForNotifications(ctx, pool, pause.Reset, wake)
		if ctx.Err() != nil {
			return
		}
		d := pause.NextBackOff()
		log.Warn("outbox: not listening for notifications; calls are found by polling", "error", err, "wait", d)
		pace.Sleep(ctx, d)
	}
}

// waitForNotifications holds a connection of its own for as long as it works.
func waitForNotifications(ctx context.Context, pool *primary.Pool, ready, wake func()) error {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // it has session state now, and must not go back to the pool
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
		defer cancel()
		_ = conn.Close(bounded)
	}()
	if _, err := conn.Exec(ctx, listenSQL); err != nil {
		return pool.Watch(err)
	}
	ready()
	for {
		wake() // first for what was committed before it listened
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
	}
}
