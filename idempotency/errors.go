package idempotency

import "errors"

// ErrConfig is wrapped by every error about a configuration, and by every error of [New],
// [NewOperations] and [Layer.Handle].
var ErrConfig = errors.New("idempotency: bad configuration")
