package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile/parser"
	"github.com/bufbuild/protocompile/reporter"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/onlyonce/onlyonce/consumer"
)

// Avro returns a codec for Avro, for consumer.Decode. It reads the payload by the schema with which
// it was written. The fields of T are found by their names or by tags `avro:"name"`, as
// twmb/avro documents. A field that the schema does not have stays zero, and one that T does not
// have is passed over. It is an error if T has none of the schema's fields, for example because its
// tags are those of JSON.
func Avro[T any](r *Registry) func(context.Context, *consumer.Message) (T, error) {
	return func(ctx context.Context, m *consumer.Message) (value T, err error) {
		s, f, err := r.find(ctx, m, sr.TypeAvro)
		if err != nil {
			return value, err
		}
		rest, err := s.avro.Decode(f.payload, &value, avro.SkipUnknown())
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%d bytes follow the value", len(rest))
		}
		if err == nil && foundNothing(&value) && sharesNothing[T](s.avro) {
			err = fmt.Errorf("none of its fields is one of %T: name them by tags `avro:\"name\"`", value)
		}
		if err != nil {
			return value, fmt.Errorf("%s: %w", f.name(), err)
		}
		return value, nil
	}
}

// foundNothing reports whether a decoded value is zero, or points to one that is.
func foundNothing[T any](value *T) bool {
	v := reflect.ValueOf(value).Elem()
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v.IsZero()
}

// sharesNothing reports whether a schema is of a record with fields, none of which T has, although
// T has fields. A field that T lacks is one that twmb/avro decodes only if it may skip it (D10).
func sharesNothing[T any](s *avro.Schema) bool {
	if of := reflect.TypeFor[T](); of.Kind() == reflect.Struct && of.NumField() == 0 {
		return false
	}
	root := s.Root()
	if root.Type != "record" || len(root.Fields) == 0 {
		return false
	}
	for _, field := range root.Fields {
		alone := avro.SchemaNode{
			Type:   "record",
			Name:   "One",
			Fields: []avro.SchemaField{{Name: field.Name, Type: avro.SchemaNode{Type: "null"}}},
		}
		one, err := alone.Schema()
		if err != nil {
			return false
		}
		var strict, lenient T
		_, refused := one.Decode(nil, &strict)
		_, skipped := one.Decode(nil, &lenient, avro.SkipUnknown())
		if refused == nil || skipped != nil {
			return false
		}
	}
	return true
}

// parseAvro parses a schema after those that it refers to.
func (r *Registry) parseAvro(
	ctx context.Context,
	s sr.Schema,
	names *avro.SchemaCache,
	depth int,
) (*avro.Schema, error) {
	if depth > maxReferences {
		return nil, errors.New("its references go too deep")
	}
	for _, ref := range s.References {
		found, err := r.client.SchemaByVersion(ctx, ref.Subject, ref.Version)
		if err != nil {
			return nil, fault(fmt.Sprintf("subject %s, version %d", ref.Subject, ref.Version), err)
		}
		if _, err := r.parseAvro(ctx, found.Schema, names, depth+1); err != nil {
			return nil, err
		}
	}
	return names.Parse(s.Schema)
}

// Protobuf returns a codec for Protobuf, for consumer.Decode. P is a generated message, for example
// *orders.Placed. The schema must say that the payload is of that message, by its full name:
// Protobuf would decode most bytes as any message. A payload that has fields, but none that P has,
// is an error.
func Protobuf[P proto.Message](r *Registry) func(context.Context, *consumer.Message) (P, error) {
	return func(ctx context.Context, m *consumer.Message) (value P, err error) {
		s, f, err := r.find(ctx, m, sr.TypeProtobuf)
		if err != nil {
			return value, err
		}
		index, payload, err := f.cutIndex()
		if err != nil {
			return value, fmt.Errorf("%s: %w", f.name(), err)
		}
		of := value.ProtoReflect()
		name, err := messageName(s.file, index)
		if err == nil && name != string(of.Descriptor().FullName()) {
			err = fmt.Errorf("the message is %s, not %s", name, of.Descriptor().FullName())
		}
		into := of.Type().New().Interface().(P)
		if err == nil {
			err = proto.Unmarshal(payload, into)
		}
		if unknown := into.ProtoReflect().GetUnknown(); err == nil &&
			len(unknown) > 0 &&
			len(unknown) == proto.Size(into) {
			err = fmt.Errorf("none of its fields is one of %s as the program has it", name) // (D10)
		}
		if err != nil {
			return value, fmt.Errorf("%s: %w", f.name(), err)
		}
		return into, nil
	}
}

// parseProtobuf parses the text of a .proto file. The names of its messages need none of the files
// that it imports.
func parseProtobuf(text string) (*descriptorpb.FileDescriptorProto, error) {
	handler := reporter.NewHandler(nil)
	file, err := parser.Parse("schema.proto", strings.NewReader(text), handler)
	if err != nil {
		return nil, err
	}
	found, err := parser.ResultFromAST(file, false, handler)
	if err != nil {
		return nil, err
	}
	return found.FileDescriptorProto(), nil
}

// messageName returns the full name of a message by its index, from the outermost inwards. Protobuf
// makes a nested message for each map field. Some serializers count those, for example the one for
// Go, and others do not, for example the one for Java. So an index may mean either of two messages:
// then the payload might be decoded as the wrong one.
func messageName(file *descriptorpb.FileDescriptorProto, index []int) (string, error) {
	counted, plain := nameAt(file, index, true), nameAt(file, index, false)
	switch {
	case counted == "" && plain == "":
		return "", fmt.Errorf("it has no message at index %v", index)
	case counted != "" && plain != "" && counted != plain:
		return "", fmt.Errorf(
			"index %v is %s, or %s if the producer's serializer counts map fields: move "+
				"the nested messages of the .proto file before the map fields, or out of their message",
			index,
			plain,
			counted,
		)
	}
	return cmp.Or(counted, plain), nil
}

// nameAt returns the full name of the message at an index, "" if there is none. With maps, the
// messages of map fields are counted too, though an index never means one of them.
func nameAt(file *descriptorpb.FileDescriptorProto, index []int, maps bool) string {
	name, messages := file.GetPackage(), file.GetMessageType()
	isMap := func(m *descriptorpb.DescriptorProto) bool { return m.GetOptions().GetMapEntry() }
	for _, i := range index {
		if !maps {
			messages = slices.DeleteFunc(slices.Clone(messages), isMap)
		}
		if i < 0 || i >= len(messages) || isMap(messages[i]) {
			return ""
		}
		name = strings.TrimPrefix(name+"."+messages[i].GetName(), ".")
		messages = messages[i].GetNestedType()
	}
	return name
}

// JSON returns a codec for JSON with a JSON Schema, for consumer.Decode. The payload is decoded as
// consumer.JSON decodes it. It is not compared with the schema, as the producer's serializer has
// done: T says what the handler needs.
func JSON[T any](r *Registry) func(context.Context, *consumer.Message) (T, error) {
	return func(ctx context.Context, m *consumer.Message) (value T, err error) {
		_, f, err := r.find(ctx, m, sr.TypeJSON)
		if err != nil {
			return value, err
		}
		own := *m
		own.Value = f.payload
		if value, err = consumer.JSON[T](ctx, &own); err != nil {
			return value, fmt.Errorf("%s: %w", f.name(), err)
		}
		return value, nil
	}
}
