package suite

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// reference is a server that keeps what it promises in memory, but for one planted fault, which has
// the name of the check that must find it.
type reference struct {
	profile string
	fault   string
	window  time.Duration
	mu      sync.Mutex
	records map[string]*record
	effects int
	served  int
	failed  map[string]bool
}

// record is what is kept under a key.
type record struct {
	running  bool
	body     string
	status   int
	header   http.Header
	text     string
	ends     time.Time
	replays  int
	refusals int
}

func newReference(t *testing.T, profile, fault string, window time.Duration) *httptest.Server {
	t.Helper()
	r := &reference{profile: profile, fault: fault, window: window, records: map[string]*record{}, failed: map[string]bool{}}
	srv := httptest.NewUnstartedServer(r)
	srv.Listener = listener{srv.Listener, r}
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

func (r *reference) is(names ...string) bool { return slices.Contains(names, r.fault) }

// effect counts an effect.
func (r *reference) effect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.effects++
}

// effectIf counts one if a fault is planted.
func (r *reference) effectIf(names ...string) {
	if r.is(names...) {
		r.effect()
	}
}

// listener plants the faults that a handler cannot have.
type listener struct {
	net.Listener
	of *reference
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &conn{Conn: c, of: l.of}, err
}

type conn struct {
	net.Conn
	of   *reference
	read bool
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.of.is("key/header-case") {
		copy(p[:n], bytes.ReplaceAll(p[:n], []byte("idempotency-key:"), []byte("xdempotency-key:")))
	}
	if n > 0 && !c.read && !bytes.Contains(p[:n], []byte("\r\n\r\n")) {
		c.of.effectIf("hang/half-header")
	}
	c.read = c.read || n > 0
	return n, err
}

func (r *reference) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.URL.Path {
	case "/count":
		r.mu.Lock()
		defer r.mu.Unlock()
		_, _ = fmt.Fprint(w, r.effects)
		return
	case "/restart":
		if r.is("time/restart", "time/restart-effects") {
			r.mu.Lock()
			defer r.mu.Unlock()
			clear(r.records)
		}
		return
	case "/expire":
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, one := range r.records {
			one.ends = time.Time{}
		}
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		r.effectIf("hang/half-body", "hang/half-no-effect")
		return
	}
	key, refusal := r.keyOf(req, body)
	if refusal != "" {
		r.refuse(w, http.StatusBadRequest, refusal)
		return
	}
	r.serve(w, req, key, body)
}

// keyOf returns the request's key, or the code of its refusal.
func (r *reference) keyOf(req *http.Request, body []byte) (key, refusal string) {
	lines := req.Header.Values("Idempotency-Key")
	if len(lines) == 0 {
		r.effectIf("key/missing-no-effect")
		if r.profile == "acp" && !r.is("key/missing") {
			return "", "idempotency_key_required"
		}
		return "", ""
	}
	if len(lines) > 1 {
		r.effectIf("key/twice-no-effect")
		if !r.is("key/twice") {
			return "", "key_invalid"
		}
	}
	key = lines[0]
	bare := !strings.HasPrefix(key, `"`)
	if !r.is("key/one-key") {
		key = strings.Trim(key, `"`)
	}
	if key == "" {
		r.effectIf("key/empty-no-effect")
		if !r.is("key/empty") {
			return "", "key_invalid"
		}
	}
	if len(key) > 255 {
		r.effectIf("key/256-no-effect")
		if !r.is("key/256") {
			return "", "key_invalid"
		}
	}
	wrong := r.is("key/bare") && bare ||
		r.is("key/quoted") && !bare ||
		r.is("key/255") && len(key) == 255 ||
		r.is("key/uuid") && len(key) == 36
	if wrong {
		return "", "key_invalid"
	}
	switch {
	case r.is("key/case"):
		key = strings.ToLower(key)
	case r.is("key/prefix"):
		key = key[:min(len(key), 200)]
	case r.is("key/other-key"):
		key = string(body)
	}
	return key, ""
}

// refuse answers with the profile's object.
func (r *reference) refuse(w http.ResponseWriter, status int, code string) {
	object := map[string]any{"type": "invalid_request", "code": code, "message": "refused"}
	media := "application/json"
	switch {
	case r.is("key/missing-code", "conflict/acp-code", "flight/acp-code"):
		object["code"] = "refused"
	case r.is("key/missing-object"):
		delete(object, "message")
	}
	if r.profile == "ucp" {
		object = map[string]any{"code": code, "content": "refused"}
		if r.is("conflict/ucp-body") {
			delete(object, "content")
		}
	}
	if r.profile == "ietf" && !r.is("conflict/ietf-body") {
		media = "application/problem+json"
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// identity names a record.
func (r *reference) identity(req *http.Request, key string, body []byte) string {
	path := req.URL.Path
	client := req.Header.Get("X-Client")
	switch {
	case r.is("scope/path", "scope/path-effects"):
		path = ""
	case r.is("scope/identity", "scope/identity-effects", "scope/identity-body"):
		client = ""
	case r.is("flight/other-key"):
		if strings.Contains(string(body), "slow") {
			key = "all"
		}
	case r.is("flight/other-body"):
		key += string(body)
	case r.is("flight/two", "flight/two-effects", "flight/fifty", "flight/fifty-effects"):
		r.mu.Lock()
		r.served++
		key = fmt.Sprint(r.served)
		r.mu.Unlock()
	}
	return path + " " + client + " " + key
}

// serve answers from the record, or makes it.
func (r *reference) serve(w http.ResponseWriter, req *http.Request, key string, body []byte) {
	id := r.identity(req, key, body)
	compared := r.compared(req, body)
	r.mu.Lock()
	old := r.records[id]
	expired := old != nil && !old.running && time.Now().After(old.ends) && !r.is("time/expired-effects")
	if key == "" || expired {
		old = nil
	}
	if old == nil {
		mine := &record{running: true, body: compared}
		r.records[id] = mine
		r.mu.Unlock()
		if expired && r.is("time/expired") {
			r.refuse(w, http.StatusConflict, "expired")
			return
		}
		r.run(w, id, mine, body)
		return
	}
	defer r.mu.Unlock()
	switch {
	case old.body != compared && !r.is("body/changed"):
		r.conflict(w, old, compared)
	case old.running:
		if !r.is("flight/retry-after") {
			w.Header().Set("Retry-After", "1")
		}
		r.refuse(w, http.StatusConflict, "idempotency_in_flight")
	default:
		r.replay(w, old)
	}
}

// conflict refuses another body. The lock is held.
func (r *reference) conflict(w http.ResponseWriter, old *record, other string) {
	status := 422
	if r.profile == "ucp" {
		status = 409
	}
	old.refusals++
	switch {
	case r.is("conflict/no-effect"):
		r.effects++
	case r.is("conflict/status"):
		status = http.StatusTeapot
	case r.is("conflict/acp-status", "conflict/ietf-status"):
		status = 409
	case r.is("conflict/ucp-status"):
		status = 422
	case r.is("conflict/permanent"):
		w.Header().Set("Retry-After", "1")
	case r.is("replay/after-conflict"):
		old.body = other
	case r.is("conflict/again") && old.refusals > 1:
		status = http.StatusOK
	case r.is("conflict/not-the-answer"):
		w.WriteHeader(status)
		_, _ = io.WriteString(w, old.text)
		return
	}
	r.refuse(w, status, "idempotency_conflict")
}

// replay repeats an answer. The lock is held.
func (r *reference) replay(w http.ResponseWriter, old *record) {
	old.replays++
	maps.Copy(w.Header(), old.header)
	w.Header().Set("Idempotent-Replayed", "true")
	status := old.status
	text := old.text
	switch {
	case r.is("replay/status"):
		status++
	case r.is("replay/body"):
		text += " "
	case r.is("error/4xx-kept") && status >= 400:
		text += " "
	case r.is("replay/content-type"):
		w.Header().Set("Content-Type", "text/plain")
	case r.is("replay/location"):
		w.Header().Del("Location")
	case r.is("replay/mark"):
		w.Header().Del("Idempotent-Replayed")
	case r.is("replay/cookie"):
		w.Header().Set("Set-Cookie", "a=b")
	case r.is("replay/once"), r.is("replay/ten-times") && old.replays == 5:
		r.effects++
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// run does the work of a first request, and keeps its answer.
func (r *reference) run(w http.ResponseWriter, id string, mine *record, body []byte) {
	var in struct{ Mode string }
	_ = json.Unmarshal(body, &in)
	if in.Mode == "slow" {
		<-time.After(300 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status := http.StatusCreated
	keep := true
	first := !r.failed[id]
	switch {
	case in.Mode == "break" && first:
		r.failed[id] = true
		status = http.StatusBadGateway
		keep = r.is("error/5xx-not-kept")
		if r.is("error/5xx-effects") {
			r.effects++
		}
	case in.Mode == "break":
		keep = !r.is("error/5xx-replayed")
		if r.is("error/5xx-fresh") {
			w.Header().Set("Idempotent-Replayed", "true")
		}
	case in.Mode == "refuse":
		status = http.StatusPaymentRequired
		keep = r.profile != "ietf" || r.is("error/4xx-not-kept") // of the three only ietf declares that it does not keep them
		if r.is("error/4xx-no-effect") {
			r.effects++
		}
	}
	if r.is("body/same", "hang/no-answer", "hang/first-byte", "hang/status-line", "flight/afterwards") {
		keep = false
	}
	if r.is("replay/first-mark") {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	if status == http.StatusCreated {
		r.effects++
	}
	r.served++
	mine.running = false
	mine.status = status
	mine.text = fmt.Sprintf(`{"number":%d}`, r.served)
	mine.header = http.Header{"Content-Type": {"application/json"}, "Location": {fmt.Sprintf("/orders/%d", r.served)}}
	mine.ends = time.Now().Add(r.window)
	if r.is("time/kept") {
		mine.ends = time.Now()
	}
	if !keep {
		delete(r.records, id)
	}
	maps.Copy(w.Header(), mine.header)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, mine.text)
}

// compared is what is compared of a request.
func (r *reference) compared(req *http.Request, body []byte) string {
	raw := string(body)
	added := ""
	switch {
	case r.is("body/media-type"):
		added = req.Header.Get("Content-Type")
	case r.is("body/other-header"):
		added = req.Header.Get("X-Request-Id")
	}
	marks := map[string]string{
		"body/space":         "\n",
		"body/escape":        `\u`,
		"body/trailing-zero": ".0",
		"body/exponent":      "e0",
		"body/power":         "e2",
	}
	if mark, has := marks[r.fault]; has && strings.Contains(raw, mark) || r.is("body/order", "body/nested-order") {
		return raw
	}
	if r.profile == "ucp" && !r.is("body/bytes-space", "body/bytes-order") {
		return raw + added
	}
	in := json.NewDecoder(bytes.NewReader(body))
	in.UseNumber()
	var value any
	if err := in.Decode(&value); err != nil {
		return raw
	}
	text, err := json.Marshal(r.simplified(value))
	if err != nil {
		panic(err)
	}
	return string(text) + added
}

// simplified is a value as it is compared. A fault makes it say less.
func (r *reference) simplified(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, member := range v {
			_, nested := member.(map[string]any)
			switch {
			case r.is("body/number") && name == "amount", r.is("body/added") && name == "meta",
				r.is("body/null") && member == nil, r.is("body/nested") && nested:
				continue
			}
			out[name] = r.simplified(member)
		}
		return out
	case []any:
		out := []any{}
		for _, element := range v {
			out = append(out, r.simplified(element))
		}
		if r.is("body/array-order") {
			slices.SortFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		return out
	case json.Number:
		if r.is("body/big-number") {
			f, _ := v.Float64()
			return f
		}
		n, _ := new(big.Rat).SetString(v.String())
		if r.is("body/type") {
			return n.RatString()
		}
		return "number " + n.RatString()
	case string:
		if r.is("body/letter-case") {
			return strings.ToLower(v)
		}
		return v
	}
	return value
}
