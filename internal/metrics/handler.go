package metrics

import "net/http"

// Handler answers with samples in the text format of Prometheus.
func Handler(samples func() []Sample) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		_ = Write(w, samples()) // an error is the reader's, who is gone
	})
}
