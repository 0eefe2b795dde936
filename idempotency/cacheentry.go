package idempotency

import (
	"encoding/binary"
	"time"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// databaseHistory identifies a history of a database. What was committed in it is there, unless a
// failover has lost it; the failover begins another history.
type databaseHistory struct {
	System   int64  // pg_control_system
	Timeline uint32 // the first eight digits of pg_walfile_name(pg_current_wal_insert_lsn()), in hexadecimal
}

// cacheEntry is a completed record as the cache holds it.
type cacheEntry struct {
	Origin      databaseHistory // of the connection on which it was committed or read
	Expires     time.Time       // by the database's clock
	Fingerprint []byte
	Response    *storedResponse
}

// entryName is the place that an entry is sealed for. It differs from that of the answer in its
// row.
func entryName(id [16]byte) [16]byte { return codec.SealPlace(id, sealedEntry, "") }

// An entry before it is sealed; numbers are big-endian, times in microseconds:
//
//	1 byte    version, 1
//	8 bytes   system identifier
//	4 bytes   timeline
//	8 bytes   when the record expires
//	8 bytes   when the entry expires
//	4 bytes   length of the fingerprint, and the fingerprint
//	          the answer, as in its row
const (
	entryVersion = 1
	entryHead    = 1 + 8 + 4 + 8 + 8 + 4
)

func (c *cacheEntry) encode(until time.Time) []byte {
	b := append(make([]byte, 0, entryHead+len(c.Fingerprint)+len(c.Response.Body)+512), entryVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Origin.System))
	b = binary.BigEndian.AppendUint32(b, c.Origin.Timeline)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Expires.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, uint64(until.UnixMicro()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(c.Fingerprint)))
	b = append(b, c.Fingerprint...)
	return append(b, c.Response.encode()...)
}

func decodeEntry(b []byte) (c *cacheEntry, until time.Time, ok bool) {
	if len(b) < entryHead || b[0] != entryVersion {
		return nil, time.Time{}, false
	}
	c = &cacheEntry{
		Origin:  databaseHistory{int64(binary.BigEndian.Uint64(b[1:])), binary.BigEndian.Uint32(b[9:])},
		Expires: time.UnixMicro(int64(binary.BigEndian.Uint64(b[13:]))),
	}
	until = time.UnixMicro(int64(binary.BigEndian.Uint64(b[21:])))
	n := int64(binary.BigEndian.Uint32(b[29:]))
	if n > int64(len(b)-entryHead) {
		return nil, time.Time{}, false
	}
	c.Fingerprint = b[entryHead : entryHead+n : entryHead+n]
	var err error
	if c.Response, err = decodeResponse(b[entryHead+n:]); err != nil {
		return nil, time.Time{}, false
	}
	return c, until, true
}
