package value

import (
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/queue"
)

// identify is for queue.Config.Identify.
func identify(d *queue.Delivery) error {
	d.ID = uuid.NewString() // want `queue.Delivery.ID comes from uuid.NewString: the next delivery is another message, and is applied again. Take it from the delivery, for example from a header.`
	d.Tenant = d.Header("tenant")
	return nil
}

// A literal in a queue.Config, and a part of the id.
var orders = queue.Config{Name: "orders", Identify: func(d *queue.Delivery) error {
	d.ID += "/" + time.Now().Format(time.RFC3339) // want `queue.Delivery.ID comes from time.Now`
	return nil
}}

// published makes a message up, which is no copy of another one.
func published() queue.Delivery { return queue.Delivery{ID: uuid.NewString()} }
