package idempotency

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// Profile is a published convention for requests that take effect once. It sets nothing but fields
// of [Config] and [Route] that you could set yourself (H32). docs/guide/agents.md has its clauses.
type Profile int

const (
	// NoProfile sets nothing.
	NoProfile Profile = iota

	// ProfileACP is section 6 of the Agentic Commerce Protocol's checkout, as SEP 120 made it (no
	// dated version had it in June 2026). The key is required in Idempotency-Key and counts within
	// the path, the JSON of the body alone is compared, another body gets 422, answers are kept for
	// at least 24 hours, and refusals are flat objects with type, code and message.
	ProfileACP

	// ProfileUCP is the REST binding of the Universal Commerce Protocol, as its repository had it
	// after 2026-04-08. The key is in Idempotency-Key, the bytes of the body alone are compared,
	// another body gets 409, answers are kept for at least 24 hours, and refusals are objects with
	// code and content. Methods default to POST and PUT. A route may make the key optional, because
	// the protocol does not require it of all clients, and it may let keys count within the path.
	ProfileUCP
)

// profileTTL is how long both conventions keep answers, at least.
const profileTTL = 24 * time.Hour

// setConfig sets what a profile asks of all routes.
func (p Profile) setConfig(l *fields.List, c *Config) {
	switch p {
	case NoProfile:
		return
	case ProfileACP, ProfileUCP:
	default:
		l.Add("Profile", "is %d: must be NoProfile, ProfileACP or ProfileUCP", int(p))
		return
	}
	const header = "Idempotency-Key"
	if len(c.Headers) > 1 || len(c.Headers) == 1 && http.CanonicalHeaderKey(c.Headers[0]) != header {
		l.Add("Headers", "must be empty with a Profile, which reads keys from Idempotency-Key alone")
	}
	if c.Problem != nil {
		l.Add("Problem", "must be nil with a Profile, which has bodies of its own")
	}
	c.Headers = []string{header}
	c.Problem = func(_ *http.Request, problem Problem) (string, []byte) {
		if p == ProfileACP {
			return "application/json", encodeProfile(acpError{
				acpType(problem.Status),
				profileCode(problem.Code),
				problem.Title,
			})
		}
		return "application/json", encodeProfile(ucpError{profileCode(problem.Code), problem.Title})
	}
}

// setRoute sets what a profile asks of a route. It returns every contradiction.
func (p Profile) setRoute(r *Route) error {
	if p != ProfileACP && p != ProfileUCP {
		return nil
	}
	l := fields.List{Sentinel: ErrConfig, Struct: "Route"}
	if r.KeyPointer != "" {
		l.Add("KeyPointer", "must be empty with a Config.Profile, which reads keys from Idempotency-Key alone")
	}
	if r.TTL != 0 && r.TTL < profileTTL {
		l.Add("TTL", "is %v: must be at least %v with a Config.Profile", r.TTL, profileTTL)
	}
	if r.DeriveKeyFor != 0 {
		l.Add("DeriveKeyFor", "must be 0 with a Config.Profile, whose clients name their requests themselves")
	}
	if len(r.FingerprintHeaders) > 0 {
		l.Add("FingerprintHeaders", "must be empty with a Config.Profile, which compares bodies alone")
	}
	if r.DiscardBody {
		l.Add("DiscardBody", "must be false with a Config.Profile, whose clients get the first answer again")
	}
	if r.AllowLargeOnce {
		l.Add("AllowLargeOnce",
			"must be false with a Config.Profile, whose clients get the first answer again: raise MaxResponse")
	}
	r.FingerprintBodyOnly = true
	conflict := http.StatusUnprocessableEntity
	if p == ProfileUCP {
		conflict = http.StatusConflict
	}
	if r.ConflictStatus != 0 && r.ConflictStatus != conflict {
		l.Add("ConflictStatus", "is %d: must be %d with this Config.Profile", r.ConflictStatus, conflict)
	}
	r.ConflictStatus = conflict
	if p == ProfileACP {
		setACPRoute(&l, r)
	} else {
		setUCPRoute(&l, r)
	}
	return l.Err()
}

// setACPRoute sets what ACP alone asks of a route.
func setACPRoute(l *fields.List, r *Route) {
	if r.KeyOptional {
		l.Add("KeyOptional", "must be false with ProfileACP, which refuses requests without a key")
	}
	for i, method := range r.Methods {
		if method != http.MethodPost {
			l.Add(fmt.Sprintf("Methods[%d]", i), "%q cannot be used with ProfileACP, whose requests are all POST",
				method)
		}
	}
	if r.Methods == nil {
		r.Methods = []string{http.MethodPost}
	}
	r.FingerprintJSON = true
	r.KeyPerPath = true
}

// setUCPRoute sets what UCP alone asks of a route.
func setUCPRoute(l *fields.List, r *Route) {
	if r.FingerprintJSON {
		l.Add("FingerprintJSON", "must be false with ProfileUCP, which compares the bytes of bodies")
	}
	if r.Methods == nil {
		r.Methods = []string{http.MethodPost, http.MethodPut}
	}
}

// acpError is the flat error of ACP.
type acpError struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// acpType returns the type of an error with a status. It is a class of statuses: the code says
// more.
func acpType(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_exceeded"
	case status == http.StatusServiceUnavailable:
		return "service_unavailable"
	case status >= http.StatusInternalServerError:
		return "processing_error"
	}
	return "invalid_request"
}

// ucpError is the protocol error of UCP's REST binding.
type ucpError struct {
	Code    string `json:"code"`
	Content string `json:"content"`
}

// profileCode returns a code of the layer as the profiles write it. Those that ACP names have its
// names, others their own with underscores.
func profileCode(own string) string {
	switch code(own) {
	case codeKeyMissing:
		return "idempotency_key_required"
	case codeKeyReused:
		return "idempotency_conflict"
	case codeInProgress:
		return "idempotency_in_flight"
	}
	return strings.ReplaceAll(own, "-", "_")
}

func encodeProfile(object any) []byte {
	body, err := json.Marshal(object)
	if err != nil {
		panic(err) // cannot fail: strings
	}
	return body
}
