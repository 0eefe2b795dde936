package idempotency

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"maps"
	"slices"
)

// checkKeysSQL compares check values with those in the database, and writes those of new ids. In:
// ids, check values. Out: one row: the ids whose value is another. Uses the primary key; a new id
// waits for a process that writes it at the same time. The migration documents the function.
const checkKeysSQL = `select onlyonce.http_check_keys($1, $2)`

// errKeyChanged is returned if the database knows another secret under an id than this process has.
var errKeyChanged = errors.New("idempotency: Config.FingerprintKeys has another secret under an id than earlier processes had")

// checkValues returns the ids of the keys, and a check value for each: an HMAC of its id. The first
// byte keeps it apart from a fingerprint, which begins with its version.
func (f *fingerprinter) checkValues() (ids []int64, values [][]byte) {
	for _, id := range slices.Sorted(maps.Keys(f.macs)) {
		mac := f.macs[id].Get().(hash.Hash)
		mac.Reset()
		mac.Write(binary.BigEndian.AppendUint32([]byte("check value of key "), id))
		ids, values = append(ids, int64(id)), append(values, mac.Sum(nil))
		f.macs[id].Put(mac)
	}
	return ids, values
}

// checkKeys returns an error if the database knows another secret under an id of
// Config.FingerprintKeys (H30). It asks the database until it has found the keys good once. Keys
// that are not current count too: records that are hashed with them are compared.
func (l *Layer) checkKeys(ctx context.Context) error {
	if l.keysChecked.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AcquireTimeout)
	defer cancel()
	ids, values := l.fingerprints.checkValues()
	var changed []int64
	err := l.pool.QueryRow(ctx, checkKeysSQL, ids, values).Scan(&changed)
	for reruns := 0; mustRerun(err) && reruns < rerunLimit; reruns++ { // another process has written the same id
		err = l.pool.QueryRow(ctx, checkKeysSQL, ids, values).Scan(&changed)
	}
	if err != nil {
		return fmt.Errorf("idempotency: checking the keys of fingerprints: %w", err)
	}
	if len(changed) > 0 {
		return fmt.Errorf("%w: ids %d: retries would look like other requests under their keys; "+
			"give this process the secret that earlier ones had, or give the new secret an id of its own", errKeyChanged, changed)
	}
	l.keysChecked.Store(true)
	return nil
}

// refuseChangedKey refuses a request before its fingerprint is compared or stored, if the keys are
// not those of earlier processes.
func (req *servedRequest) refuseChangedKey() (rep reply, refused bool) {
	err := req.layer.checkKeys(req.ctx)
	switch {
	case errors.Is(err, errKeyChanged):
		return problemReply(codeKeyChanged, err), true
	case err != nil:
		return problemReply(codeStoreUnavailable, err), true
	}
	return reply{}, false
}
