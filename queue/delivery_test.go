package queue_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
)

func TestHeaderOfADelivery(t *testing.T) {
	t.Parallel()
	d := queue.Delivery{Headers: []consumer.Header{
		{Name: "other", Value: []byte("1")}, {Name: "Order", Value: []byte("2")}, {Name: "Order", Value: []byte("3")},
	}}
	if got := d.Header("Order"); got != "2" {
		t.Errorf("it is %q, want the first of that name", got)
	}
	if got := d.Header("order"); got != "" {
		t.Errorf("%q, of another case", got)
	}
}
