package registry_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
)

// fake is a schema registry behind the HTTP API of Confluent's.
type fake struct {
	*sr.Client

	mu       sync.Mutex
	schemas  []sr.Schema    // by id, from 1
	subjects map[string]int // by subject; each has version 1 only
	asked    int            // requests for schemas
	// answer answers in place of the registry if it is not nil.
	answer http.HandlerFunc
}

func newFake(t testing.TB) *fake {
	f := &fake{subjects: map[string]int{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	client, err := sr.NewClient(sr.URLs(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	f.Client = client
	return f
}

// set replaces the answers; nil: the registry's own.
func (f *fake) set(answer http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fake) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answer != nil {
		f.answer(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	none := func(code int, what string) {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"error_code": code, "message": what + " not found"})
	}
	path := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case req.Method == http.MethodPost && len(path) == 3 && path[0] == "subjects":
		var s sr.Schema
		if err := json.NewDecoder(req.Body).Decode(&s); err != nil {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		f.schemas = append(f.schemas, s)
		f.subjects[path[1]] = len(f.schemas)
		_ = json.NewEncoder(w).Encode(map[string]int{"id": len(f.schemas)})
	case len(path) == 3 && path[0] == "schemas":
		f.asked++
		id := 0
		if _, err := fmt.Sscan(path[2], &id); err != nil || id < 1 || id > len(f.schemas) {
			none(40403, "Schema "+path[2])
			return
		}
		_ = json.NewEncoder(w).Encode(f.schemas[id-1])
	case len(path) == 4 && path[0] == "subjects" && path[3] == "1":
		if f.subjects[path[1]] == 0 {
			none(40401, "Subject")
			return
		}
		id := f.subjects[path[1]]
		_ = json.NewEncoder(w).Encode(sr.SubjectSchema{Subject: path[1], Version: 1, ID: id, Schema: f.schemas[id-1]})
	default:
		none(40401, "Subject")
	}
}

// register returns the id of a new schema.
func (f *fake) register(t testing.TB, subject string, s sr.Schema) int {
	t.Helper()
	id, err := f.RegisterSchema(t.Context(), subject, s, -1, -1)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// framed returns a payload behind the header of the wire format.
func framed(id int, payload []byte, index ...int) []byte {
	b, err := new(sr.ConfluentHeader).AppendEncode(nil, id, index)
	if err != nil {
		panic(err)
	}
	return append(b, payload...)
}
