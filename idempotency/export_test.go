package idempotency

import (
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/retryafter"
)

func ReadKey(value string) (string, error)        { return readKey(value) }
func WriteKey(f Form, key string) (string, error) { return f.write(key) }

func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) { return retryafter.Read(h, now) }
