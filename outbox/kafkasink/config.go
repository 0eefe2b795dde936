package kafkasink

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
)

// MessageID is the header that carries a call's key, unless Config.IDHeader names another.
const MessageID = "message-id"

// Config describes a cluster and what may be written there. The zero value of a field is the default that its comment names.
type Config struct {
	// Name is what Call.Sink says. Required.
	Name string

	// Brokers are addresses (host:port) to begin with; the cluster names the others. Required.
	Brokers []string
	// Topics are the topics that calls may name. Required: a row cannot make the sink write elsewhere, and only of
	// these topics the brokers are asked where they are. They must exist; the sink creates none.
	Topics []string
	// ClientID names this program in the brokers' logs and quotas. Default "onlyonce".
	ClientID string

	// IDHeader is the record header that carries the call's key, in lower case. Default [MessageID].
	IDHeader string

	// KeyWindow is how long every consumer of the topics recognises a message-id: less than the shortest horizon of their inboxes, or
	// [outbox.Forever] where they forget none. Default 6 days: an inbox of onlyonce in a new database forgets after 7. See outbox.Limits for what a
	// wrong value does.
	KeyWindow time.Duration

	// Timeout bounds one attempt, from connecting to the acknowledgement. Default 30 s, from 100 ms to 10 minutes. Shorter than the
	// brokers take to elect a leader is harmless: the call is tried again. Shorter than they take to acknowledge makes
	// copies.
	Timeout time.Duration

	// BatchBytes is how large a request for one partition may grow, before compression. Default 512 KiB, from 1 KiB to 64 MiB. A
	// larger record travels alone. Above the topic's max.message.bytes batches are refused, and sent again one by one.
	BatchBytes int

	// TLS encrypts all connections. Nil: they are plain. An empty ServerName becomes each broker's host.
	TLS *tls.Config
	// SASL authenticates all connections; see packages sasl/plain and sasl/scram of kafka-go. Nil: not.
	SASL sasl.Mechanism
}

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("kafkasink: bad configuration")

// keyWindow is a day less than the horizon of a new inbox.
const keyWindow = 6 * 24 * time.Hour

// withDefaults fills in the zero values and returns every fault at once.
func (c Config) withDefaults() (Config, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	if c.Name == "" {
		fault("Name", "must not be empty: it is what Call.Sink says")
	}
	c.Brokers, c.Topics = slices.Clone(c.Brokers), slices.Clone(c.Topics)
	if len(c.Brokers) == 0 {
		fault("Brokers", "must not be empty: name at least one broker, as host:port")
	}
	for _, b := range c.Brokers {
		host, port, err := net.SplitHostPort(b)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			fault("Brokers", "%q is not host:port", b)
		}
	}
	if len(c.Topics) == 0 {
		fault("Topics", "must not be empty: name the topics that calls may be written to")
	}
	for i, t := range c.Topics {
		if !validTopic(t) {
			fault("Topics", "%q is not the name of a topic: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', not \".\" or \"..\"", t)
		}
		if slices.Contains(c.Topics[:i], t) {
			fault("Topics", "%q twice", t)
		}
	}
	if c.ClientID == "" {
		c.ClientID = "onlyonce"
	}
	if c.IDHeader == "" {
		c.IDHeader = MessageID
	}
	if c.IDHeader != strings.ToLower(c.IDHeader) || strings.ContainsFunc(c.IDHeader, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		fault("IDHeader", "%q must be visible ASCII in lower case", c.IDHeader)
	}
	if c.KeyWindow == 0 {
		c.KeyWindow = keyWindow
	}
	if c.KeyWindow < 0 {
		fault("KeyWindow", "%v is negative", c.KeyWindow)
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Timeout < 100*time.Millisecond || c.Timeout > 10*time.Minute {
		fault("Timeout", "%v is not from 100ms to 10m", c.Timeout)
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 512 << 10
	}
	if c.BatchBytes < 1<<10 || c.BatchBytes > 64<<20 {
		fault("BatchBytes", "%d is not from 1 KiB to 64 MiB", c.BatchBytes)
	}
	return c, errors.Join(faults...)
}

// validTopic says whether brokers take this for a topic's name.
func validTopic(t string) bool {
	return t != "" && t != "." && t != ".." && len(t) <= 249 &&
		strings.Trim(t, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}
