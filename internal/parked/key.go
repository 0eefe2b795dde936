package parked

import (
	"strconv"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// NewKey returns a new key for a call whose own key the remote counts as used, so that the remote
// takes it for another call. It derives from the old key, from the call's id in the log, because
// two calls may have been parked under one key (O1), and from how often the row was redriven
// before. So redriving it again, for example after a restore that lost it, makes the same key. It
// is a UUIDv8, as the keys of calls are.
func NewKey(old string, id, redrives int64) string {
	sum := codec.Hash("onlyonce/redrive/1",
		old, "call", strconv.FormatInt(id, 10), "redrive", strconv.FormatInt(redrives, 10))
	return codec.UUIDv8([16]byte(sum[:16])).String()
}

// MessageOrder is the stored form of a message's ordering key, or an event's.
func MessageOrder(tenant, scope, topic, key string) [16]byte {
	sum := codec.Hash("onlyonce/order/1", tenant, scope, topic, key)
	return [16]byte(sum[:16])
}

// CallOrder is the stored form of a call's ordering key.
func CallOrder(sink, tenant, scope, key string) [16]byte {
	sum := codec.Hash("onlyonce/call-order/1", sink, tenant, scope, key)
	return [16]byte(sum[:16])
}

// EventPlace is what the sealed body of a stored event is bound to, before it has an offset.
func EventPlace(tenant, topic, id string) [16]byte {
	sum := codec.Hash("onlyonce/sealed-event/1", tenant, topic, id)
	return [16]byte(sum[:16])
}

// HeaderSealed marks a stored event whose body is sealed.
const HeaderSealed = "onlyonce-sealed"

// MessagePlace is what the sealed body of a parked message or event is bound to.
func MessagePlace(scope, topic string, partition int32, offset int64) [16]byte {
	sum := codec.Hash("onlyonce/sealed-message/1",
		scope, topic, strconv.Itoa(int(partition)), strconv.FormatInt(offset, 10))
	return [16]byte(sum[:16])
}
