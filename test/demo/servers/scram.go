package servers

import (
	"context"

	"github.com/segmentio/kafka-go/sasl"
	franz "github.com/twmb/franz-go/pkg/sasl"
)

// scramMechanism makes franz-go's SCRAM one of kafka-go's mechanisms. kafka-go's own would add
// three modules to go.mod, and franz-go is there already.
type scramMechanism struct{ franz.Mechanism }

func (m scramMechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	session, first, err := m.Authenticate(ctx, "")
	return scramSession{session}, first, err
}

type scramSession struct{ franz.Session }

func (s scramSession) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	return s.Challenge(challenge)
}
