package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/onlyonce/onlyonce/consumer"
)

// headerSchema is the header in which a serializer with a HeaderSchemaIdSerializer names the schema
// of the value.
const headerSchema = "__value_schema_id"

// First bytes of a framing.
const (
	byID   = 0 // the schema's id follows, 4 bytes
	byGUID = 1 // the schema's GUID follows, 16 bytes
)

// framed is a message whose framing was read.
type framed struct {
	id   int    // if guid is empty
	guid string // unique among all registries, where an id is one registry's

	// index begins with the index of a Protobuf message, if the schema is of that type. In a header
	// nothing follows it; before a value the payload does.
	index    []byte
	inHeader bool
	payload  []byte
}

// name names the schema in errors.
func (f *framed) name() string {
	if f.guid != "" {
		return "schema " + f.guid
	}
	return fmt.Sprintf("schema %d", f.id)
}

// readFrame reads the framing in the header, or if there is none, before the value. Whatever a
// value begins with: a header says that the whole value is the payload.
func readFrame(m *consumer.Message) (framed, error) {
	for _, h := range m.Headers {
		if h.Name != headerSchema {
			continue
		}
		f, rest, ok := cutFrame(h.Value)
		if !ok {
			return framed{}, errors.New("its header " + headerSchema +
				" does not begin with 0 and the id of a schema, or with 1 and its GUID")
		}
		f.inHeader = true
		f.index = rest
		f.payload = m.Value
		return f, nil
	}
	f, rest, ok := cutFrame(m.Value)
	if !ok {
		return framed{}, errors.New("it does not begin with a zero byte and the id of a schema, or with 1 " +
			"and its GUID, and has no header " +
			headerSchema)
	}
	f.index = rest
	f.payload = rest
	return f, nil
}

// cutFrame reads the name of a schema, and returns what follows it.
func cutFrame(b []byte) (f framed, rest []byte, ok bool) {
	if len(b) > 16 && b[0] == byGUID {
		f.guid = uuid.UUID(b[1:17]).String()
		return f, b[17:], true
	}
	if len(b) == 0 || b[0] != byID {
		return framed{}, nil, false
	}
	id, rest, err := new(sr.ConfluentHeader).DecodeID(b)
	f.id = id
	return f, rest, err == nil
}

// ask asks the registry for the schema.
func (f *framed) ask(ctx context.Context, client *sr.Client) (sr.Schema, error) {
	if f.guid == "" {
		return client.SchemaByID(ctx, f.id)
	}
	found, err := client.SchemaByGUID(ctx, f.guid)
	return found.Schema, err
}

// cutIndex returns the index of a Protobuf message, and the payload without it.
func (f *framed) cutIndex() (index []int, payload []byte, err error) {
	index, rest, err := new(sr.ConfluentHeader).DecodeIndex(f.index, maxReferences)
	switch {
	case err != nil:
		return nil, nil, errors.New("the index of the message cannot be read")
	case !f.inHeader:
		return index, rest, nil
	case len(rest) > 0:
		return nil, nil, errors.New("bytes follow the index of the message in the header " + headerSchema)
	}
	return index, f.payload, nil
}
