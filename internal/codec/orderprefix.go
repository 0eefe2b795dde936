package codec

import (
	"encoding/binary"
	"strings"
)

// PrefixOf returns the prefix of a call's ordering key: its part up to its first colon or slash,
// for example "account-17:" of "account-17:card-3". It is empty if the key holds neither.
func PrefixOf(orderingKey string) string {
	return orderingKey[:strings.IndexAny(orderingKey, ":/")+1]
}

// CallsOf is onlyonce.rates.calls_of: whose calls of a sink a rate is for. They are those of
// ordering keys with a prefix, of a tenant, of each tenant, or all.
func CallsOf(prefix, tenant string, each bool) string {
	switch {
	case prefix != "":
		return "key " + prefix
	case tenant != "":
		return "tenant " + tenant
	case each:
		return "tenants"
	}
	return ""
}

// OrderPrefix is the stored form of a prefix of a sink's ordering keys: 64 bits, which only rates
// are looked up by. A prefix whose hash is 0, if there is one, has no rate.
func OrderPrefix(sink, prefix string) int64 {
	sum := Hash("onlyonce/call-order-prefix/1", sink, prefix)
	return int64(binary.BigEndian.Uint64(sum[:]))
}
