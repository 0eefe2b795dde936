package kafkasource

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rawRequest is a request that kafka-go has no type for, or not in the version that is needed. For
// example, topic ids came with Metadata v10 and Fetch v13, but kafka-go ends at 8 and 11. It
// implements protocol.RawExchanger, so that it goes through kafka.Transport like any other request,
// with the same connections, TLS and authentication, and then writes and reads the bytes itself.
// kmsg describes their layout: it is generated from Kafka's own description of the protocol and
// contains no client.
type rawRequest struct {
	net        *network
	req        kmsg.Request
	maxVersion int16 // the highest to ask for
	minVersion int16 // the lowest that is sufficient
}

// leaderRequest goes to the broker that leads a partition.
type leaderRequest struct {
	rawRequest
	leader int32
}

// coordinatorRequest goes to the broker that coordinates the group.
type coordinatorRequest struct{ rawRequest }

// rawResponse is the response to a rawRequest.
type rawResponse struct{ kmsg.Response }

var (
	_ protocol.RawExchanger  = (*rawRequest)(nil)
	_ protocol.BrokerMessage = (*leaderRequest)(nil)
	_ protocol.GroupMessage  = (*coordinatorRequest)(nil)
)

func (n *network) newRequest(req kmsg.Request) *rawRequest {
	most, least := requestVersions(req)
	return &rawRequest{n, req, most, least}
}

func (e *rawRequest) ApiKey() protocol.ApiKey { return protocol.ApiKey(e.req.Key()) }

func (a rawResponse) ApiKey() protocol.ApiKey { return protocol.ApiKey(a.Key()) }

// Required is called by kafka-go, with the versions that it would use itself.
func (e *rawRequest) Required(map[protocol.ApiKey]int16) bool { return true }

// Group is called by kafka-go, which then looks up the group's coordinator.
func (e *coordinatorRequest) Group() string { return e.net.cfg.GroupID }

// Broker is called by kafka-go, with the layout of the cluster that it saw last.
func (e *leaderRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	if b, ok := cluster.Brokers[e.leader]; ok {
		return b, nil
	}
	return protocol.Broker{ID: -1}, fmt.Errorf("broker %d is not known yet: %w", e.leader, kafka.LeaderNotAvailable)
}

// send sends a request and returns the response.
func (n *network) send(ctx context.Context, msg protocol.Message) (kmsg.Response, error) {
	ctx, cancel := n.bounded(ctx)
	defer cancel()
	got, err := n.transport.RoundTrip(ctx, n.addr, msg)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", msg.ApiKey(), err)
	}
	a, ok := got.(rawResponse)
	if !ok {
		return nil, fmt.Errorf("%v: answered with a %T", msg.ApiKey(), got)
	}
	return a.Response, nil
}

// bounded gives a request a deadline. kafka-go's connection waits until the deadline and ignores a
// cancelled context.
func (n *network) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, n.cfg.FetchMaxWait+requestTimeout)
}

// apiVersions holds the lowest and highest version of each request that a broker takes.
type apiVersions map[int16][2]int16

// RawExchange is called by kafka-go in the goroutine of a connection that has no other user
// meanwhile. After an error kafka-go closes the connection.
func (e *rawRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	broker := ""
	if c, ok := rw.(interface{ RemoteAddr() net.Addr }); ok {
		broker = c.RemoteAddr().String()
	}
	resp, err := e.sendNegotiated(rw, broker)
	if err != nil {
		e.net.versions.Delete(broker) // another broker may run at that address later
		return nil, err
	}
	return rawResponse{resp}, nil
}

func (e *rawRequest) sendNegotiated(rw io.ReadWriter, broker string) (kmsg.Response, error) {
	known, ok := e.net.versions.Load(broker)
	if !ok {
		offered, err := e.askVersions(rw)
		if err != nil {
			return nil, err
		}
		known = offered
		e.net.versions.Store(broker, known)
	}
	offer, ok := known.(apiVersions)[e.req.Key()]
	version := min(offer[1], e.maxVersion)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: broker %s does not know %v", kafka.UnsupportedVersion, broker, e.ApiKey())
	case version < max(offer[0], e.minVersion):
		return nil, fmt.Errorf("%w: broker %s takes versions %d to %d of %v, and this adapter needs one from %d to %d",
			kafka.UnsupportedVersion, broker, offer[0], offer[1], e.ApiKey(), e.minVersion, e.maxVersion)
	}
	e.req.SetVersion(version)
	return e.net.roundTrip(rw, e.req)
}

// askVersions asks a broker which versions it takes. kafka-go asks too, but passes on only what is
// left after its own limits.
func (e *rawRequest) askVersions(rw io.ReadWriter) (apiVersions, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.SetVersion(0) // every broker takes it
	got, err := e.net.roundTrip(rw, req)
	if err != nil {
		return nil, err
	}
	resp := got.(*kmsg.ApiVersionsResponse)
	if resp.ErrorCode != 0 {
		return nil, kafka.Error(resp.ErrorCode)
	}
	versions := make(apiVersions, len(resp.ApiKeys))
	for _, k := range resp.ApiKeys {
		versions[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	return versions, nil
}

// maxResponse is far above what is asked for, and far below what would be allocated for bytes that
// are not a Kafka response.
const maxResponse = 1 << 30

var errMalformed = errors.New("malformed response")

// roundTrip writes one request and reads its response.
func (n *network) roundTrip(rw io.ReadWriter, req kmsg.Request) (kmsg.Response, error) {
	id := n.lastID.Add(1)
	if _, err := rw.Write(n.format.AppendRequest(nil, req, id)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	length := int32(binary.BigEndian.Uint32(size[:]))
	if length < 4 || length > maxResponse {
		return nil, fmt.Errorf("%w: %d bytes long", errMalformed, length)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(rw, body); err != nil {
		return nil, fmt.Errorf("reading a response: %w", err)
	}
	if got := int32(binary.BigEndian.Uint32(body)); got != id {
		return nil, fmt.Errorf("%w: correlation id is %d, not %d", errMalformed, got, id)
	}
	body = body[4:]
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if req.IsFlexible() && req.Key() != int16(kmsg.ApiVersions) {
		var err error
		if body, err = skipTags(body); err != nil {
			return nil, err
		}
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return resp, nil
}

// skipTags passes over the tagged fields that end a flexible response's header (KIP-482).
func skipTags(b []byte) ([]byte, error) {
	r := kbin.Reader{Src: b}
	for range r.Uvarint() {
		r.Uvarint() // which tag
		r.Span(int(r.Uvarint()))
		if !r.Ok() {
			break
		}
	}
	if !r.Ok() {
		return nil, fmt.Errorf("%w: tags in its header", errMalformed)
	}
	return r.Src, nil
}
