// Package claimed is what package consumer and the sources of events share: messages whose ids were
// claimed when they were appended. Users of package consumer see none of it, because only the
// event log of this module has such messages.
package claimed

// Source is a consumer.Source of claimed messages: no two of its messages have the same tenant and
// id. The consumer takes these from the message, and does not claim them again. Redeliveries are
// found by the position (E4).
type Source interface {
	// ServeScope is called by consumer.New with the consumer's scope, before anything else. It
	// returns an error if the source has a consumer of another scope.
	ServeScope(scope string, _ Mark) error
}

// Rehearsal is a source of the test kit. It plays the messages of any other source, also those of
// an endpoint in the endpoint's scope, and its consumer claims their ids.
type Rehearsal interface {
	Rehearses(_ Mark)
}

// Mark is a parameter of these methods. Only packages of this module can name it.
type Mark struct{}

// Set gives a *consumer.Message the tenant and the id under which it was appended. Package consumer
// sets it when the program starts.
var Set func(message any, tenant, id string)
