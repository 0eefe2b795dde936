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

// exchange is a request that kafka-go has no type for, or not in the version that is needed. For
// example, topic ids came with Metadata v10 and Fetch v13, but kafka-go ends at 8 and 11. It
// implements protocol.RawExchanger, so that it goes through kafka.Transport like any other request,
// with the same connections, TLS and authentication, and then writes and reads the bytes itself.
// kmsg describes their layout: it is generated from Kafka's own description of the protocol and
// contains no client.
type exchange struct {
	net     *network
	req     kmsg.Request
	version int16 // the highest to ask for
	least   int16 // the lowest that is sufficient
}

// leaderExchange goes to the broker that leads a partition.
type leaderExchange struct {
	exchange
	leader int32
}

// coordinatorExchange goes to the broker that coordinates the group.
type coordinatorExchange struct{ exchange }

// answer is the response to an exchange.
type answer struct{ kmsg.Response }

var (
	_ protocol.RawExchanger  = (*exchange)(nil)
	_ protocol.BrokerMessage = (*leaderExchange)(nil)
	_ protocol.GroupMessage  = (*coordinatorExchange)(nil)
)

func (n *network) exchange(req kmsg.Request) *exchange {
	most, least := versions(req)
	return &exchange{n, req, most, least}
}

func (e *exchange) ApiKey() protocol.ApiKey { return protocol.ApiKey(e.req.Key()) }

func (a answer) ApiKey() protocol.ApiKey { return protocol.ApiKey(a.Key()) }

// Required is called by kafka-go, with the versions that it would use itself.
func (e *exchange) Required(map[protocol.ApiKey]int16) bool { return true }

// Group is called by kafka-go, which then looks up the group's coordinator.
func (e *coordinatorExchange) Group() string { return e.net.cfg.GroupID }

// Broker is called by kafka-go, with the layout of the cluster that it saw last.
func (e *leaderExchange) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
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
	a, ok := got.(answer)
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
func (e *exchange) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	broker := ""
	if c, ok := rw.(interface{ RemoteAddr() net.Addr }); ok {
		broker = c.RemoteAddr().String()
	}
	resp, err := e.negotiated(rw, broker)
	if err != nil {
		e.net.versions.Delete(broker) // another broker may run at that address later
		return nil, err
	}
	return answer{resp}, nil
}

func (e *exchange) negotiated(rw io.ReadWriter, broker string) (kmsg.Response, error) {
	known, ok := e.net.versions.Load(broker)
	if !ok {
		offered, err := e.offered(rw)
		if err != nil {
			return nil, err
		}
		known = offered
		e.net.versions.Store(broker, known)
	}
	offer, ok := known.(apiVersions)[e.req.Key()]
	version := min(offer[1], e.version)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: broker %s does not know %v", kafka.UnsupportedVersion, broker, e.ApiKey())
	case version < max(offer[0], e.least):
		return nil, fmt.Errorf("%w: broker %s takes versions %d to %d of %v, and this adapter needs one from %d to %d",
			kafka.UnsupportedVersion, broker, offer[0], offer[1], e.ApiKey(), e.least, e.version)
	}
	e.req.SetVersion(version)
	return e.net.roundTrip(rw, e.req)
}

// offered asks a broker which versions it takes. kafka-go asks too, but passes on only what is left
// after its own limits.
func (e *exchange) offered(rw io.ReadWriter) (apiVersions, error) {
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

var errFrame = errors.New("malformed response")

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
		return nil, fmt.Errorf("%w: %d bytes long", errFrame, length)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(rw, body); err != nil {
		return nil, fmt.Errorf("reading a response: %w", err)
	}
	if got := int32(binary.BigEndian.Uint32(body)); got != id {
		return nil, fmt.Errorf("%w: correlation id is %d, not %d", errFrame, got, id)
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
		return nil, fmt.Errorf("%w: %w", errFrame, err)
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
		return nil, fmt.Errorf("%w: tags in its header", errFrame)
	}
	return r.Src, nil
}
