package main

import (
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/ops"
)

// parkedItem is a message or an event that waits for an operator.
type parkedItem struct {
	ID     int64
	Reason string
	Token  string
}

const parkedItemsSQL = `
select p.id, p.reason, convert_from(p.body, 'UTF8')
  from onlyonce.parked p where p.kind = $1 and p.settled_at is null and p.state = 'waiting' order by p.id`

// decideParked redrives all of a kind that is parked, after its cause is mended, or gives it up. It
// returns what was parked.
func (w *world) decideParked(kind string, gives bool, sick map[string]bool) ([]parkedItem, error) {
	items, err := all(w, pgx.RowToStructByPos[parkedItem], parkedItemsSQL, kind)
	if err != nil {
		return nil, err
	}
	for _, p := range items {
		if gives {
			err = w.discard(p.ID, p.Token, false)
		} else {
			sick[p.Token] = false
			err = w.redrive(p.ID, ops.ParkedInput{})
		}
		if err := ignoreRefusal(err); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// settleParked works and decides until nothing of a kind is parked.
func (w *world) settleParked(kind string, work, decide func(*world) error) error {
	for range 6 {
		for _, step := range []func(*world) error{work, decide, work} {
			if err := step(w); err != nil {
				return err
			}
		}
		left, err := one[int](w, `select count(*) from onlyonce.parked where kind = $1 and settled_at is null`, kind)
		if err != nil || left == 0 {
			return err
		}
	}
	w.breach("messages stay parked")
	return errStands
}
