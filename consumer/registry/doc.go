// Package registry has codecs for messages whose values name their schema in a schema registry:
// Avro, Protobuf and JSON with a JSON Schema.
//
//	client, err := sr.NewClient(sr.URLs("https://registry.internal:8081"))
//	schemas := registry.New(client)
//	c, err := consumer.New(pool, source, consumer.Decode(registry.Avro[Order](schemas), hold), cfg)
//
// # Wire format
//
// The value begins with a zero byte and the schema's id as a big-endian uint32, as the serializers
// of Confluent write it, and those of Apicurio and Redpanda in their compatible mode. A Protobuf
// value then has the index of its message in the schema.
//
// Or the header __value_schema_id has all that, or has the byte 1 and the schema's GUID in place of
// the id, as Confluent's HeaderSchemaIdSerializer writes it (Confluent Platform 8). Then the whole
// value is the payload. A header goes before the value.
//
// # Failures
//
// A value that can never be decoded is parked as permanent, with the schema's id in the error: a
// value in another format, an id that the registry does not know, a schema of another type or of
// another message, a payload that does not fit its schema. If the registry registers the schema
// later, redrive the message.
//
// A registry that does not answer, or answers with any other error, for example 401 or 503, is
// consumer.Unavailable: no attempt counts, nothing is parked, and the consumer tries again with the
// waits of its Config.Backoff. After Config.BlockedAfter the partition halts as "blocked", and it
// continues by itself. Schemas that were fetched before are decoded meanwhile: an id's schema never
// changes, so it is fetched once for a process.
//
// A request is made while the message's transaction is open, once for each new schema and each that
// it refers to. It is bounded by the client's timeout, 5 seconds by default, for each address of
// the registry. Together they must be below consumer.Config.HandlerTimeout, or a registry that does
// not answer counts as the message's own fault.
package registry
