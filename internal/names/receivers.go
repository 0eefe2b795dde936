package names

import "strings"

// These begin the streams and the scopes of receivers. Endpoints and queues have names without
// slashes. A statement that lists the scopes of all receivers has these words as well.
const (
	QueueStreams   = "queue."
	WebhookStreams = "webhook."
	QueueScopes    = "queue/"
	WebhookScopes  = "webhook/"
)

// QueueStream is the stream of a queue.
func QueueStream(queue string) string { return QueueStreams + queue }

// QueueScope is the scope in which a queue's ids are claimed.
func QueueScope(queue string) string { return QueueScopes + queue }

// QueueAside is the scope in which a queue claims the ids of messages that it has parked.
func QueueAside(queue string) string { return QueueScopes + queue + "/aside" }

// WebhookStream is the stream of an endpoint.
func WebhookStream(endpoint string) string { return WebhookStreams + endpoint }

// WebhookScope is the scope in which an endpoint's ids are claimed.
func WebhookScope(endpoint string) string { return WebhookScopes + endpoint }

// WebhookAside is the scope in which what an endpoint has set aside is claimed.
func WebhookAside(endpoint string) string { return WebhookScopes + endpoint + "/aside" }

// EndpointOf is the endpoint whose scope it is, "" if it is no endpoint's.
func EndpointOf(scope string) string {
	endpoint, is := strings.CutPrefix(scope, WebhookScopes)
	if !is {
		return ""
	}
	return endpoint
}

// IsReceiver reports whether a scope is one of an endpoint's or a queue's.
func IsReceiver(scope string) bool {
	return strings.HasPrefix(scope, WebhookScopes) || strings.HasPrefix(scope, QueueScopes)
}

// IsReceived reports whether a stream is one of an endpoint's or a queue's.
func IsReceived(stream string) bool {
	return strings.HasPrefix(stream, WebhookStreams) || strings.HasPrefix(stream, QueueStreams)
}
