package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/onlyonce/onlyonce/consumer"
)

const (
	maxSchemas    = 1000 // that are kept; past that they are fetched again
	maxReferences = 32   // of references within references
)

// Registry fetches schemas and keeps them, up to 1,000. It is safe for concurrent use.
type Registry struct {
	client *sr.Client

	mu    sync.Mutex
	known map[string]*schema // by the name that a message gives
}

// New returns a Registry that asks client, whose options name the addresses, the login, TLS and the
// timeout.
func New(client *sr.Client) *Registry {
	return &Registry{client: client, known: map[string]*schema{}}
}

// schema is a registered schema. It never changes.
type schema struct {
	kind sr.SchemaType
	avro *avro.Schema                      // if it is of type Avro
	file *descriptorpb.FileDescriptorProto // if it is of type Protobuf
}

// find returns the message without its framing, and the schema that the framing names.
func (r *Registry) find(ctx context.Context, m *consumer.Message, kind sr.SchemaType) (s *schema, f framed, err error) {
	if f, err = readFrame(m); err != nil {
		return nil, framed{}, err
	}
	r.mu.Lock()
	s = r.known[f.name()]
	r.mu.Unlock()
	if s == nil {
		if s, err = r.fetch(ctx, f); err != nil {
			return nil, framed{}, err
		}
		r.mu.Lock()
		if len(r.known) >= maxSchemas {
			clear(r.known)
		}
		r.known[f.name()] = s
		r.mu.Unlock()
	}
	if s.kind != kind {
		return nil, framed{}, fmt.Errorf("%s is of type %v, not %v", f.name(), s.kind, kind)
	}
	return s, f, nil
}

func (r *Registry) fetch(ctx context.Context, f framed) (*schema, error) {
	found, err := f.ask(ctx, r.client)
	if err != nil {
		return nil, fault(f.name(), err)
	}
	s := &schema{kind: found.Type}
	switch found.Type {
	case sr.TypeAvro:
		s.avro, err = r.parseAvro(ctx, found, &avro.SchemaCache{}, 0)
	case sr.TypeProtobuf:
		s.file, err = parseProtobuf(found.Schema)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name(), err)
	}
	return s, nil
}

// fault returns the error of a request. Only if the registry says that it has no such thing, asking
// again is of no use: 404 alone may come from a proxy or a wrong path.
func fault(what string, err error) error {
	var answer *sr.ResponseError
	none := []int{sr.ErrSchemaNotFound.Code, sr.ErrSubjectNotFound.Code, sr.ErrVersionNotFound.Code}
	if errors.As(err, &answer) && slices.Contains(none, answer.ErrorCode) {
		return fmt.Errorf("the registry has no %s", what)
	}
	return consumer.Unavailable(fmt.Errorf("asking the registry for %s: %w", what, err))
}
