package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fields"
)

func asPermanent(err error) (*PermanentError, bool) {
	var permanent *PermanentError
	return permanent, errors.As(err, &permanent) && permanent != nil
}

// Doer makes calls of one operation take effect once, see [Do]. Make one with [NewDoer], once for
// each operation. It is safe for concurrent use.
type Doer struct {
	handler *routeHandler // has no http.Handler: Do passes a function
	codec   Codec
}

// Codec encodes the requests and the results of [Do].
type Codec interface {
	// Marshal encodes a request, or a result. Equal requests must have equal bytes, because the
	// bytes identify a retry.
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes a result into v, a pointer to the result's type.
	Unmarshal(data []byte, v any) error
}

// jsonCodec is the default. It sorts the members of maps.
type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// DoerConfig configures a [Doer]. The zero value of a field is the default that its comment names;
// a value out of range is an error of [NewDoer] and never adjusted.
type DoerConfig struct {
	// Scope names the operation and is part of each record's identity, for example "charge". If you
	// change it, keys used under the old name run again. At most 200 visible ASCII characters.
	// Operators find its records under the scope "do " and this name. Required.
	Scope string

	// Codec encodes requests and results. Defaults to encoding/json.
	Codec Codec

	// FingerprintJSON compares encoded requests by what their JSON says, see
	// Route.FingerprintJSON. Codec must then encode requests as JSON. Defaults to false: byte by
	// byte.
	FingerprintJSON bool

	// MaxResult is the most bytes of an encoded result, up to 32 MiB. The writes of a call with a
	// longer result are undone. Defaults to 1 MiB.
	MaxResult int

	// KeepWrites commits the function's writes even if it returns a [PermanentError]. Defaults to
	// false: the Doer undoes such writes, and stores only the error.
	KeepWrites bool

	// Isolation is the isolation level of the transaction. After a serialization failure or a
	// deadlock the function runs again, three times at most. Defaults to the server's setting.
	Isolation pgx.TxIsoLevel

	// TTL is how long a result is kept, see Route.TTL. Defaults to 48 hours.
	TTL time.Duration

	// KeyWindow is how long the remotes that the function calls through the outbox remember their
	// keys, see Route.KeyWindow. Required, unless NoCalls is set.
	KeyWindow time.Duration

	// NoCalls says that the function makes no calls, see Route.NoCalls. Defaults to false.
	NoCalls bool

	// HandlerTimeout ends the function's context, from 1 ms to 1 hour. A later result is undone. If
	// the function has not returned 5 s after that, the Doer cuts its connection. Defaults to 30 s.
	HandlerTimeout time.Duration

	// Wait is how long a call waits for an earlier one with its key, up to 2 minutes, see
	// Route.Wait. Defaults to 0: it fails at once with [ErrInProgress].
	Wait time.Duration
}

// NewDoer makes a Doer. It uses the layer's pool, fingerprint keys, sealer, cache, hooks and
// bounds; [Layer.Run] purges its records too. A program that serves no HTTP sets Config.Scope to
// [GlobalScope]. If the configuration is wrong, the error lists every fault and wraps [ErrConfig].
func NewDoer(layer *Layer, cfg DoerConfig) (*Doer, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "DoerConfig"}
	if layer == nil {
		l.Join(fmt.Errorf("%w: layer: must not be nil", ErrConfig))
	}
	if cfg.Codec == nil {
		cfg.Codec = jsonCodec{}
	}
	route := Route{
		Pattern:         cfg.Scope,
		MaxResponse:     cfg.MaxResult,
		KeepWrites:      cfg.KeepWrites,
		Isolation:       cfg.Isolation,
		FingerprintJSON: cfg.FingerprintJSON,
		TTL:             cfg.TTL,
		KeyWindow:       cfg.KeyWindow,
		NoCalls:         cfg.NoCalls,
		HandlerTimeout:  cfg.HandlerTimeout,
		Wait:            cfg.Wait,
	}
	route.checkShared(&l, sharedFields{name: "Scope", maxResponse: "MaxResult"})
	if err := l.Err(); err != nil {
		return nil, err
	}
	return &Doer{handler: &routeHandler{layer: layer, route: route}, codec: cfg.Codec}, nil
}

// Permanent returns a [PermanentError]. code is for programs, for example "card-declined"; detail
// is for people, and may be empty.
func Permanent(code, detail string) error { return &PermanentError{code, detail} }

// PermanentError is an error that will be the same at each retry, for example a declined card. If a
// function of [Do] returns it, also wrapped, Do stores it in place of a result, and each later call
// with the key gets it without running the function. If a [Work] returns it, the operation ends
// without a result, and clients get the code, of at most 200 bytes, and the detail, of at most
// 2,000.
type PermanentError struct {
	// Code is for programs, for example "card-declined". Detail is for people. Both are stored, and
	// returned to each caller. If they were erased, the code is "erased".
	Code   string `json:"code"`
	Detail string `json:"detail,omitempty"`
}

func (e *PermanentError) Error() string {
	if e.Detail == "" {
		return e.Code
	}
	return e.Code + ": " + e.Detail
}

// RefusedError is the error of [Do] if it has neither a result nor an error of the function.
type RefusedError struct {
	// Code is the reason, as in the layer's problems, for example "key-reused".
	Code string
	// Retryable reports whether another call under the same key can end differently.
	Retryable bool
	// RetryAfter is how long to wait before another call. It is 0 if a wait does not help.
	RetryAfter time.Duration
	// Err is the cause. It is nil if the code says all.
	Err error
}

func (e *RefusedError) Error() string {
	text := "idempotency: " + e.Code
	if p, ok := problems[code(e.Code)]; ok {
		text += ": " + p.title
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Is reports whether target is a RefusedError with the same code, for example [ErrInProgress].
func (e *RefusedError) Is(target error) bool {
	var other *RefusedError
	return errors.As(target, &other) && other.Code == e.Code
}

// Reasons for which [Do] refuses a call, for errors.Is.
var (
	// ErrInProgress: an earlier call with the key is still running. Try again later.
	ErrInProgress error = &RefusedError{Code: string(codeInProgress), Retryable: true}
	// ErrKeyReused: the key was used for another request.
	ErrKeyReused error = &RefusedError{Code: string(codeKeyReused)}
	// ErrCommitUnknown: the call may or may not have taken effect. A retry with the same key finds
	// out.
	ErrCommitUnknown error = &RefusedError{Code: string(codeCommitUnknown), Retryable: true}
	// ErrResultGone: the call took effect, but its result was erased.
	ErrResultGone error = &RefusedError{Code: string(codeNotReplayable)}
	// ErrStoreUnavailable: the database is unreachable, and the call took no effect.
	ErrStoreUnavailable error = &RefusedError{Code: string(codeStoreUnavailable), Retryable: true}
)
