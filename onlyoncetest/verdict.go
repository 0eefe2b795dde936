package onlyoncetest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
)

// Kinds of verdicts.
const (
	// kindEffectsDiffer: the tables after a history are not those after a clean run.
	kindEffectsDiffer = "effects differ"
	// kindWrittenOutside: the same, and a statement that writes the table went past the engine's
	// transaction.
	kindWrittenOutside = "written outside of the transaction"
	// kindCalledOutside: a request that no relay sends was sent more often than in a clean run.
	kindCalledOutside = "called outside of the transaction"
	// kindRemotesDiffer: what took effect at a [Remote] is not what it is in a clean run.
	kindRemotesDiffer = "effects at a remote differ"
	// kindCallsDiffer: the calls that were enqueued are not those of a clean run, or those under
	// one ordering key came in another order.
	kindCallsDiffer = "calls differ"
	// kindNotDeterministic: two clean runs differ.
	kindNotDeterministic = "not deterministic"
	// kindAnswersDiffer: a request got another answer.
	kindAnswersDiffer = "answers differ"
	// kindParkedWrongly: messages were parked although nothing was wrong, or others than in a clean
	// run.
	kindParkedWrongly = "parked although nothing was wrong"
	// kindStuck: the work was not done in time, for example because a handler hangs.
	kindStuck = "stuck"
	// kindNotUsed: the program has not used the process's pool.
	kindNotUsed = "the process's pool was not used"
	// kindExited: the process ended while the handler ran, for example with os.Exit. It needs the
	// flag -onlyonce.exec.
	kindExited = "exited"
	// kindCheckFailed: Case.Check returned an error.
	kindCheckFailed = "check failed"
)

// Verdict is a fault found by [Run].
type Verdict struct {
	// Kind is the kind of fault, for example "effects differ" (from those of a clean run), "written
	// outside of the transaction", "called outside of the transaction", "calls differ" or "not
	// deterministic".
	Kind string `json:"kind"`
	// What describes the fault in a sentence.
	What string `json:"what"`
	// Where is the line of the program, as file:line, if known.
	Where string `json:"where,omitempty"`
	// History is the shortest history found that shows it; see the flag -onlyonce.history.
	History string `json:"history"`
	// Differences are from a clean run.
	Differences []Difference `json:"differences,omitempty"`
	// Timeline lists the events of that history, in at most ten lines.
	Timeline []string `json:"timeline,omitempty"`
}

func (v *Verdict) String() string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s: %s\n  history: %s\n", v.Kind, v.What, v.History)
	for _, d := range v.Differences {
		_, _ = fmt.Fprintf(&b, "    %s\n", d)
	}
	for _, l := range v.Timeline {
		_, _ = fmt.Fprintf(&b, "  %s\n", l)
	}
	return b.String()
}

// JSON returns the verdict as an indented JSON object.
func (v *Verdict) JSON() string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// judge compares the state after a history with a clean run's, and names the fault.
func judge(x *play, clean, got *state) *Verdict {
	if x.wrong != nil {
		return x.wrong
	}
	found := compare(clean, got)
	if len(found) == 0 {
		return nil
	}
	v := &Verdict{
		Kind:        kindEffectsDiffer,
		What:        fmt.Sprintf("the state of %s is not that of a clean run", names(found)),
		Differences: found,
	}
	for _, d := range found {
		if w := x.writer(d.What); w != nil {
			v.Kind, v.Where = kindWrittenOutside, w.from.where()
			v.What = fmt.Sprintf("%s is written past the transaction at %s: %.120s", d.What, w.from.at(), w.sql)
			return v
		}
	}
	for _, d := range found {
		switch d.What {
		case "requests":
			if len(d.Extra) > 0 {
				from := originOfRequest(got.requests, d.Extra[0])
				v.Kind, v.Where = kindCalledOutside, from.where()
				v.What = fmt.Sprintf("a request is sent again at %s: %.120s", from.at(), d.Extra[0])
				return v
			}
		case "calls":
			v.Kind, v.What = kindCallsDiffer, callsDiffer(clean.calls, got.calls)
			return v
		case orderOfCalls:
			v.Kind = kindCallsDiffer
			v.What = "calls under one OrderingKey are enqueued in another order " +
				"than in a clean run: " +
				d.Note
		case "remotes":
			v.Kind = kindRemotesDiffer
			v.What = "a call took effect at a remote more than once, or never"
		case "parked":
			v.Kind = kindParkedWrongly
			v.What = "the parked messages are not those of a clean run"
		case "answers":
			v.Kind = kindAnswersDiffer
			v.What = "a request is answered otherwise than in a clean run"
		}
	}
	if a, b, other := reordered(clean.order, got.order); v.Kind == kindEffectsDiffer && other {
		v.What += fmt.Sprintf("; %s was handled before %s, and in a clean run after it: is that order kept, "+
			"or only that of messages with one ordering key?", b, a)
	}
	return v
}

// reordered returns two messages that were handled one after the other in a clean run, and in the
// opposite order in another one.
func reordered(clean, got []place) (a, b place, other bool) {
	for i := 1; i < len(clean); i++ {
		a = clean[i-1]
		b = clean[i]
		first := slices.Index(got, a)
		second := slices.Index(got, b)
		if first >= 0 && second >= 0 && second < first {
			return a, b, true
		}
	}
	return a, b, false
}

func names(found []Difference) string {
	var n []string
	for _, d := range found {
		n = append(n, d.What)
	}
	return strings.Join(n, ", ")
}

// writing is the beginning of a statement that may write.
var writing = regexp.MustCompile(`(?is)^\s*(insert|update|delete|merge|copy|truncate|with|select|call|do)\b`)

// writer returns a statement of the user's own that names a table, and went past the engine.
func (x *play) writer(table string) *write {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, name, qualified := strings.Cut(table, ".")
	if !qualified {
		name = table
	}
	named := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(name) + `\b`)
	i := slices.IndexFunc(x.writes, func(w write) bool {
		return writing.MatchString(w.sql) && named.MatchString(w.sql) && w.from.caller != ""
	})
	if i < 0 {
		return nil
	}
	return &x.writes[i]
}

// certain matches a statement that writes, whatever the functions are that it calls.
var certain = regexp.MustCompile(`(?is)^\s*(` +
	`(insert|delete|merge)\b|` +
	`(update|copy|truncate)\s|` +
	`with\b.*\b(insert\s+into|update|delete\s+from|merge\s+into)\s)`)

// singleHint is what a verdict adds if each message was a batch of its own.
const singleHint = "; each message was a batch of its own: does the handler leave something in its session, " +
	"for example by set_config or a temporary table, or does it count on its batch?"

// headed puts a write that a handler has sent past its transaction in front of a verdict. The cause
// may be that write although its table is as after a clean run: a second attempt fails if the row
// is there already, and then it is the calls that differ, or a message is parked.
func (x *play) headed(v *Verdict) *Verdict {
	if v == nil || v.Kind == kindWrittenOutside || v.Kind == kindNotUsed {
		return v
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.writes, func(w write) bool { return w.from.within && certain.MatchString(w.sql) })
	if i < 0 {
		return v
	}
	w := x.writes[i]
	v.What = fmt.Sprintf("a handler writes past its transaction at %s: %.120s; besides, %s: %s",
		w.from.at(), w.sql, v.Kind, v.What)
	v.Kind, v.Where = kindWrittenOutside, w.from.where()
	return v
}

// callsDiffer says what differs between the calls of two runs.
func callsDiffer(a, b []Call) string {
	if len(a) != len(b) {
		return fmt.Sprintf("%d calls, and %d in a clean run", len(b), len(a))
	}
	onlyA, onlyB := multisets(callLines(a), callLines(b))
	if len(onlyA) == 0 || len(onlyB) == 0 {
		return "their number"
	}
	find := func(calls []Call, line string) Call {
		return calls[slices.IndexFunc(calls, func(c Call) bool { return c.line() == line })]
	}
	x := find(a, onlyA[0])
	// The one that is most alike: of the same sink and name, and with the same key if there is one.
	y := find(b, onlyB[0])
	for _, l := range onlyB {
		c := find(b, l)
		closer := c.Key == x.Key || y.Name != x.Name
		if c.Sink == x.Sink && c.Name == x.Name && closer {
			y = c
		}
	}
	of := fmt.Sprintf("the call %s to %s: ", x.Name, x.Sink)
	switch {
	case x.Sink != y.Sink || x.Name != y.Name:
		return fmt.Sprintf("the calls %s/%s and %s/%s", x.Sink, x.Name, y.Sink, y.Name)
	case x.Target != y.Target:
		return of + "its target differs, " + looksLike(x.Target, y.Target)
	case string(x.Body) != string(y.Body):
		return of + "its body differs, " + looksLike(string(x.Body), string(y.Body))
	case x.Method != y.Method:
		return of + "its method differs"
	case x.Key != y.Key:
		return of + "its key differs: Call.ID or Call.Scope is not the same in each run, for example a " +
			"random value, a counter or a time"
	}
	return of + "its headers differ, " + looksLike(x.line(), y.line())
}

// shape is what a value that differs looks like. advice is what to do if rows differ by it.
type shape struct {
	what   string
	re     *regexp.Regexp
	advice string
}

// ifMeant does not begin with Case.Volatile: that would hide the fault if the value is in a key, in
// a call, or looked up by another message.
const ifMeant = "make it from the message; only if nothing else depends on it, name the column in Case.Volatile"

var shapes = []shape{
	{"a uuid", regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), ifMeant},
	{"a time", regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?`), ifMeant},
	{"a number with a fraction", regexp.MustCompile(`-?\b\d+\.\d+([eE][+-]?\d+)?\b`),
		"a sum of floats depends on the order of its parts: add numeric or integers"},
	{"a Unix time", regexp.MustCompile(`\b1[6-9]\d{8}(\d{3}|\d{6}|\d{9})?\b`), ifMeant},
	{"a number", regexp.MustCompile(`-?\b\d+\b`),
		"most likely a counter in memory, then a number that is read and added to without a lock, for " +
			"example max(id)+1, then a random one: make it from the message, or let the database draw it (identity)"},
	{"a random value", regexp.MustCompile(`\b[0-9A-Za-z_-]{16,}\b`), ifMeant},
}

// looksLike says what the difference of two texts looks like.
func looksLike(a, b string) string {
	text, _ := likeness(a, b)
	return text
}

// likeness is looksLike, with advice for columns.
func likeness(a, b string) (text, advice string) {
	for _, s := range shapes {
		inA := s.re.FindAllString(a, -1)
		inB := s.re.FindAllString(b, -1)
		if !slices.Equal(inA, inB) && s.re.ReplaceAllString(a, "#") == s.re.ReplaceAllString(b, "#") {
			onlyA, onlyB := multisets(inA, inB)
			if len(onlyA) > 0 && len(onlyB) > 0 {
				return fmt.Sprintf("by what looks like %s: %s and %s", s.what, onlyA[0], onlyB[0]), s.advice
			}
		}
	}
	x := []byte(a)
	y := []byte(b)
	slices.Sort(x)
	slices.Sort(y)
	if string(x) == string(y) {
		return fmt.Sprintf("by the order of its parts, for example of a map: %.100q and %.100q",
			a, b), "sort them first"
	}
	return fmt.Sprintf("%.100q and %.100q", a, b), ifMeant
}

// lines returns the timeline in at most ten lines: the faults, and what is next to them.
func (x *play) lines() (short []string) {
	const most = 10
	all := x.timeline.Lines()
	weight := make([]int, len(all))
	for i, l := range all {
		switch l.Mark {
		case histories.Fault:
			weight[i] = 100
		case histories.Plain:
			weight[i] = 10
		}
		for d := -2; d <= 2; d++ {
			if j := i + d; j >= 0 && j < len(all) && all[j].Mark == histories.Fault {
				weight[i] += 5 - max(d, -d)
			}
		}
	}
	order := make([]int, len(weight))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return weight[b] - weight[a] })
	order = order[:min(most, len(order))]
	slices.Sort(order)
	for _, i := range order {
		short = append(short, all[i].Text)
	}
	return short
}
