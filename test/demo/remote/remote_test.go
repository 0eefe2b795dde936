package remote

import (
	"maps"
	"net/http"
	"testing"
)

// It pays once for each key, however often it is called and however it answers.
func TestPayments(t *testing.T) {
	p := &Payments{busy: map[string]bool{}, paid: map[string]Paid{}}
	body := []byte(`{"reference":"a","amount":7}`)
	answers := map[int]int{}
	for range 3000 {
		status, _ := p.pay("/charges", "k1", body)
		answers[status]++
	}
	for _, status := range []int{http.StatusOK, http.StatusInternalServerError, 0} {
		if answers[status] == 0 {
			t.Errorf("no answer %d: %v", status, answers)
		}
	}
	p.Calm = true
	for _, c := range []struct {
		path, key, body string
		want            int
	}{
		{"/charges", "", string(body), 400}, {"/charges", "k2", "nonsense", 400}, {"/charges", "k1", `{"reference":"a","amount":8}`, 422},
		{"/payouts", "k3", `{"reference":"b","amount":666}`, 402}, {"/payouts", "k3", `{"reference":"b","amount":666}`, 402},
	} {
		if status, _ := p.pay(c.path, c.key, []byte(c.body)); status != c.want {
			t.Errorf("%+v: answered %d", c, status)
		}
	}
	for key, want := range map[string]int{"k1": 200, "k3": 402, "none": 404} {
		if status, _ := p.lookUp(key); status != want {
			t.Errorf("%s: %d", key, status)
		}
	}
	calls, payments, faults := p.Count()
	if calls != 3005 || payments != 1 || faults == 0 {
		t.Errorf("%d calls, %d payments, %d faults", calls, payments, faults)
	}
	if paid, changed := p.ByReference(); !maps.Equal(paid, map[string]int{"a": 1}) || changed != 1 {
		t.Errorf("%v, %d changed", paid, changed)
	}
}
