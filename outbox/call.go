package outbox

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// MaxBody is the largest body of a call, in bytes. A row is kept in the database until its
// retention has passed, and is held in memory while it is sent. Put larger content, for example a
// document, into storage made for it, and send its address.
const MaxBody = 1 << 20

const (
	maxName = 100  // bytes of Sink and Name
	maxID   = 1024 // bytes of ID
	maxText = 255  // bytes of Tenant and Scope
)

// lanes is how many lanes a sink has. It never changes. onlyonce.lane computes which one a call
// belongs to.
const lanes = 16

// Call is one outbound call. [Enqueue] freezes all of it but ID in a row: each attempt sends the
// same bytes.
type Call struct {
	// Sink is the name of the sink that sends the call. While no relay lists that sink, the call
	// stays pending. Required.
	Sink string

	// Name is the action that the call asks for, for example "charge" or "notify-warehouse". It is
	// part of the call's identity: two calls of one message must differ in Name or ID. If you
	// rename a call in your code, a message that is handled again makes another call. Required; at
	// most 100 bytes.
	Name string

	// ID distinguishes calls of one Name that one message asks for, for example by the sku of an
	// order's line or by the recipient. Never use a counter, a time or a random value: those differ
	// when the message is handled again. It is hashed and not stored. At most 1,024 bytes.
	//
	// In a transaction of your own it takes the message's place, for example "order-17", and is
	// required.
	ID string

	// Scope and Tenant name the origin of the call in a transaction of your own. Scope is the
	// service or component that enqueues, and is required then. Tenant is the customer, if
	// customers choose ids themselves. Both are part of the call's identity. In a consumer's
	// handler both come from the message and must be empty here. At most 255 bytes each.
	Scope  string
	Tenant string

	// OrderingKey names the subject of the call, for example an account, if calls about one subject
	// must arrive in order. Calls with the same sink, tenant, scope and ordering key are sent one
	// after another, in the order in which their transactions committed. If one fails, it is tried
	// again before the later ones, and only those wait. If one is given up, they wait for an
	// operator (see RelayConfig.PassOn).
	//
	// Enqueue locks the key until the transaction ends, so enqueue late. In a consumer's handler
	// the consumer does that. At most 1,024 bytes. Defaults to empty: the call waits for no other.
	//
	// Its part up to its first colon or slash is its prefix, which can have a rate (see [Rate]): of
	// "account-17:card-3" that is "account-17:".
	OrderingKey string

	// NotBefore is the earliest time of the first attempt, by the database's clock. If the call has
	// an OrderingKey, later calls of the key wait too. Defaults to the zero time: the call is due
	// as soon as the transaction has committed.
	NotBefore time.Time

	// Method is POST, PUT, PATCH or DELETE. Defaults to POST.
	Method string

	// Target is the address of the call below the sink's base URL: a path and an optional query,
	// percent-encoded, for example "/charges?expand=fees". It cannot leave the base URL: it holds
	// no host and no dot segments. At most 2 KiB. Defaults to the base URL itself.
	Target string

	// Header is sent as it is. It must hold no secrets, because rows are stored, backed up and
	// shown to operators. Enqueue refuses the known names of secrets, headers of the connection and
	// the key's own header. The sink adds authentication when it sends. At most 16 KiB.
	//
	// It is compared when the call is enqueued again, so it must be the same each time the message
	// is handled. Put a trace context into Trace instead.
	Header http.Header

	// Trace is the W3C trace context (https://www.w3.org/TR/trace-context/) of the transaction that
	// asks for the call: a traceparent, and a tracestate in a second line if there is one. The sink
	// sends it with the call. It is no part of the frozen bytes. At most 1 KiB. In a handler it
	// defaults to the result of its configuration's Trace function for Enqueue's context, or else
	// to the message's own traceparent and tracestate. In a transaction of your own it defaults to
	// none.
	Trace string

	// Capture asks for the remote's answer. RelayConfig.Complete receives it before the call counts
	// as delivered. Defaults to false.
	Capture bool

	// Sealer encrypts the body before it is stored. The relay needs one that can open it
	// (RelayConfig.Sealer). If a sealed call is enqueued again, its body is not compared. Defaults
	// to nil: the body is stored as it is.
	Sealer Sealer

	// Body is sent byte for byte. At most [MaxBody].
	Body []byte
}

// Sealer encrypts bodies at rest. Package seal has one. Its methods must be safe for concurrent
// use.
type Sealer interface {
	// Seal encrypts body and binds it to the call's key: no other key opens it.
	Seal(key [16]byte, body []byte) ([]byte, error)
	// Open decrypts what Seal returned for the same key. An error that wraps [seal.ErrValue] means
	// that sealed will never open: the call is parked and waits for an operator. After any other
	// error, for example if an encryption key is not deployed yet, the relay tries again every 10
	// s, within RelayConfig.Backoff. Neither counts as an attempt at the call.
	Open(key [16]byte, sealed []byte) ([]byte, error)
}

// ErrCall is wrapped by every error about a call that cannot be enqueued as it is: a field breaks
// its rule, or the message has already asked for a call of that name and Call.ID.
var ErrCall error = guard.Misuse("outbox: bad call")

// callRow is a call as it is stored.
type callRow struct {
	duplicateCheck int16 // how to find an earlier enqueue, see onlyonce.enqueued_before
	key            uuid.UUID
	order          *uuid.UUID
	orderPrefix    int64 // of the ordering key, see codec.OrderPrefix; 0: it has none
	tenant, scope  string
	sink, name     string
	method, target string
	headers        string
	trace          *string
	body           []byte
	notBefore      *time.Time
	originTime     *time.Time
	redo           bool
	capture        bool
	sealed         bool
	noted          *origin.Calls // where the call is noted when it is written; nil: nowhere
}

// Values of callRow.duplicateCheck.
const (
	checkNone    = 0 // the fence and the message's claim exclude it, but if it is parked
	checkByLog   = 1 // the message is handled again
	checkByClaim = 2 // there is no message: the call's key is claimed
)

// freezeCall checks the call and returns its row. It reports every fault at once (O1).
func freezeCall(call Call, from origin.Origin, inbound bool) (callRow, error) {
	l := &fields.List{Sentinel: ErrCall}
	if !inbound {
		from = origin.Origin{Tenant: call.Tenant, Scope: call.Scope}
	}
	call.checkIdentity(l, inbound)
	checkText(l, "Tenant", from.Tenant)
	if !inbound { // else it is an engine's: of a request it has the route and the escaped principal
		checkText(l, "Scope", from.Scope)
	}
	if call.Trace == "" && codec.IsTrace(from.Trace) { // a bad one is the message's fault, and nothing depends on it
		call.Trace = from.Trace
	}
	headers := call.checkRequest(l)
	if err := l.Err(); err != nil {
		return callRow{}, err
	}
	// A queued write leaves later, and the caller may reuse the buffer.
	body := bytes.Clone(call.Body)
	if body == nil {
		body = []byte{} // nil would be NULL
	}
	r := callRow{
		duplicateCheck: checkByClaim, key: callKey(from, inbound, call), tenant: from.Tenant, scope: from.Scope,
		sink: call.Sink, name: call.Name, method: call.Method, target: call.Target,
		headers: headers, body: body, capture: call.Capture,
	}
	if inbound {
		r.duplicateCheck = checkNone
		r.redo = from.Redo
		r.noted = from.Calls
		if from.Redo {
			r.duplicateCheck = checkByLog
		}
		if !from.Time.IsZero() {
			r.originTime = &from.Time
		}
	}
	if call.OrderingKey != "" {
		k := uuid.UUID(parked.CallOrder(call.Sink, from.Tenant, from.Scope, call.OrderingKey))
		r.order = &k
		if prefix := codec.PrefixOf(call.OrderingKey); prefix != "" {
			r.orderPrefix = codec.OrderPrefix(call.Sink, prefix)
		}
	}
	if call.Trace != "" {
		r.trace = &call.Trace
	}
	if !call.NotBefore.IsZero() {
		r.notBefore = &call.NotBefore
	}
	if call.Sealer != nil {
		var err error
		if r.body, err = call.Sealer.Seal(r.key, body); err != nil {
			return callRow{}, fmt.Errorf("outbox: sealing the body: %w", err)
		}
		r.sealed = true
	}
	return r, nil
}

// checkIdentity checks what the call's key is derived from.
func (call *Call) checkIdentity(l *fields.List, inbound bool) {
	checkName(l, "Sink", call.Sink, "name the relay's sink that sends the call")
	checkName(l, "Name", call.Name, "say what the call does; it is part of its identity")
	switch {
	case inbound:
		if call.Scope != "" {
			l.Add("Scope", "must be empty in a consumer's handler: it comes from the message")
		}
		if call.Tenant != "" {
			l.Add("Tenant", "must be empty in a consumer's handler: it comes from the message")
		}
	default:
		if call.ID == "" {
			l.Add("ID",
				"must not be empty: without an inbound message it alone says which call this is when it is "+
					"enqueued again")
		}
		if call.Scope == "" {
			l.Add("Scope",
				"must not be empty: without an inbound message it names the service or component that "+
					"enqueues, so that two of them may use one ID")
		}
	}
	if len(call.ID) > maxID {
		l.Add("ID", "%d bytes are more than %d", len(call.ID), maxID)
	}
}

// checkRequest checks what is sent, sets the method's default, and returns the headers as they are
// stored.
func (call *Call) checkRequest(l *fields.List) (headers string) {
	if call.Method == "" {
		call.Method = http.MethodPost
	}
	if err := frozen.Method(call.Method); err != nil {
		l.Add("Method", "%v", err)
	}
	if err := frozen.Target(call.Target); err != nil {
		l.Add("Target", "%v", err)
	}
	names, values, bad := frozen.Headers(call.Header)
	for _, err := range bad {
		l.Add("Header", "%v", err)
	}
	if len(call.OrderingKey) > maxID {
		l.Add("OrderingKey", "%d bytes are more than %d", len(call.OrderingKey), maxID)
	}
	if !codec.IsTrace(call.Trace) {
		l.Add("Trace",
			"must be a traceparent and perhaps a tracestate in a second line, visible ASCII, at most %d bytes",
			codec.MaxTrace)
	}
	if len(call.Body) > MaxBody {
		l.Add("Body", "%d bytes are more than %d: store it elsewhere and send its address", len(call.Body), MaxBody)
	}
	return frozen.Lines(names, values)
}

func checkName(l *fields.List, field, v, empty string) {
	switch {
	case v == "":
		l.Add(field, "must not be empty: %s", empty)
	case len(v) > maxName:
		l.Add(field, "%d bytes are more than %d", len(v), maxName)
	case !isPrintable(v):
		l.Add(field, "must be UTF-8 without control characters")
	}
}

func checkText(l *fields.List, field, v string) {
	if len(v) > maxText {
		l.Add(field, "%d bytes are more than %d", len(v), maxText)
	} else if !isPrintable(v) {
		l.Add(field, "must be UTF-8 without control characters")
	}
}

func isPrintable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

// callKey derives the call's key (O1). It is the same each time the same message asks for the same
// call, wherever the message is handled, and it differs for every other call. It holds no ordinals,
// because a handler that ranges over a map would shift them. It holds no times and no random
// values. It holds no payload either: a charge of another amount for the same order must be
// reported as a conflict, and must not become a second charge.
//
//	SHA-256 over the length-prefixed fields
//	  "onlyonce/call/1", the fields of the origin, Sink, Name, ID
//	each preceded by its length in bytes as a big-endian uint32
//
// The origin's fields depend on what asks for the call:
//
//	(tenant, scope, "id", message id)
//	(tenant, scope, "topic", topic, message id)     -- if an id counts within its topic
//	(tenant, scope, "position", cluster, topic, partition, offset)
//	(tenant, scope, "call")                         -- without an inbound message
//
// The first 128 bits become a UUIDv8 (RFC 9562 section 5.8), because many remotes only accept a
// UUID: its version and variant bits are set, and the other 122 are the hash's. testdata/calls.json
// holds test vectors for other languages.
func callKey(from origin.Origin, inbound bool, call Call) uuid.UUID {
	fields := []string{from.Tenant, from.Scope, "call"}
	if inbound {
		fields = from.Fields()
	}
	return codec.Call(append(fields, call.Sink, call.Name, call.ID)...)
}
