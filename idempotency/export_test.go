package idempotency

import (
	"net/http"
	"time"
)

func ReadKey(value string) (string, error)        { return readKey(value) }
func WriteKey(f Form, key string) (string, error) { return f.write(key) }

func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) { return retryAfter(h, now) }
