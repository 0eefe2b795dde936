package grpcserver

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// runMetadata stands for the call's stream while the handler runs. It keeps the metadata that the
// handler sets: they belong to the answer of this run, which may be undone (H12).
type runMetadata struct {
	method string

	mu              sync.Mutex
	header, trailer metadata.MD
}

var _ grpc.ServerTransportStream = (*runMetadata)(nil)

// Method implements grpc.ServerTransportStream.
func (m *runMetadata) Method() string { return m.method }

// SetHeader implements grpc.ServerTransportStream.
func (m *runMetadata) SetHeader(md metadata.MD) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.header = metadata.Join(m.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream. The header is sent with the answer.
func (m *runMetadata) SendHeader(md metadata.MD) error { return m.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (m *runMetadata) SetTrailer(md metadata.MD) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trailer = metadata.Join(m.trailer, md)
	return nil
}

// taken returns what was set until now. A goroutine that the handler left behind changes nothing of
// it.
func (m *runMetadata) taken() answerMetadata {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := answerMetadata{header: m.header.Copy(), trailer: m.trailer.Copy()}
	a.header.Delete(StatusMetadata) // says what the interceptor did, and nothing else does (H9)
	return a
}

// answerMetadata are the metadata of an answer.
type answerMetadata struct{ header, trailer metadata.MD }

// send adds them to the call's answer.
func (a answerMetadata) send(ctx context.Context) {
	_ = grpc.SetHeader(ctx, a.header) // fails if another interceptor has sent the header
	_ = grpc.SetTrailer(ctx, a.trailer)
}

// A stored answer, and the detail of a stored error, are a protobuf message without a description:
//
//	bytes         message = 1; // a google.protobuf.Any, or a google.rpc.Status
//	repeated Pair header  = 2;
//	repeated Pair trailer = 3;
//
//	message Pair { bytes name = 1; bytes value = 2; }
const (
	fieldMessage protowire.Number = 1
	fieldHeader  protowire.Number = 2
	fieldTrailer protowire.Number = 3
	fieldName    protowire.Number = 1
	fieldValue   protowire.Number = 2
)

// encodeStored encodes an answer as it is stored. Metadata that are about one client or one
// connection are left out (H14).
func encodeStored(message []byte, a answerMetadata) []byte {
	out := appendField(nil, fieldMessage, message)
	out = appendPairs(out, fieldHeader, a.header)
	return appendPairs(out, fieldTrailer, a.trailer)
}

func appendPairs(out []byte, field protowire.Number, md metadata.MD) []byte {
	for _, name := range slices.Sorted(maps.Keys(md)) {
		if protocol.NeverStored(http.CanonicalHeaderKey(name)) != "" {
			continue
		}
		for _, value := range md[name] {
			pair := appendField(nil, fieldName, []byte(name))
			out = appendField(out, field, appendField(pair, fieldValue, []byte(value)))
		}
	}
	return out
}

func appendField(out []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(out, field, protowire.BytesType), value)
}

var errStored = errors.New("grpcserver: the stored answer cannot be read")

// decodeStored reads what encodeStored wrote.
func decodeStored(data []byte) (message []byte, a answerMetadata, err error) {
	a = answerMetadata{header: metadata.MD{}, trailer: metadata.MD{}}
	err = eachField(data, func(field protowire.Number, value []byte) error {
		switch field {
		case fieldMessage:
			message = value
			return nil
		case fieldHeader:
			return addPair(a.header, value)
		case fieldTrailer:
			return addPair(a.trailer, value)
		}
		return errStored
	})
	return message, a, err
}

func addPair(to metadata.MD, data []byte) error {
	var name, text string
	err := eachField(data, func(field protowire.Number, value []byte) error {
		switch field {
		case fieldName:
			name = string(value)
		case fieldValue:
			text = string(value)
		default:
			return errStored
		}
		return nil
	})
	to.Append(name, text)
	return err
}

// eachField calls do for each field of a message whose fields are all bytes.
func eachField(data []byte, do func(field protowire.Number, value []byte) error) error {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 || kind != protowire.BytesType {
			return errStored
		}
		value, m := protowire.ConsumeBytes(data[n:])
		if m < 0 {
			return errStored
		}
		if err := do(field, value); err != nil {
			return err
		}
		data = data[n+m:]
	}
	return nil
}
