package webhook_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/onlyonce/onlyonce/webhook"
)

func ExampleVerifier_Verify() {
	v, err := webhook.NewVerifier(webhook.Config{
		Provider: webhook.GitHub{},
		Secrets:  []string{"It's a Secret to Everybody"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	receive := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "too large", http.StatusRequestEntityTooLarge)
			return
		}
		event, err := v.Verify(r.Header, body)
		if refused := (*webhook.Error)(nil); errors.As(err, &refused) {
			fmt.Println(refused) // for the log
			http.Error(w, http.StatusText(refused.Status()), refused.Status())
			return
		}
		fmt.Println(event.Type, event.ID)
	}
	for _, body := range []string{"Hello, World!", "Hello, world!"} {
		r := httptest.NewRequest(http.MethodPost, "/hooks/github", strings.NewReader(body))
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
		r.Header.Set("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
		receive(httptest.NewRecorder(), r)
	}
	// Output:
	// push 72d3162e-cc78-11e3-81ab-4c9367dc0958
	// webhook: github: bad signature
}
