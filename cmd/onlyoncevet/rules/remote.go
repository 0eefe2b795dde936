package rules

import (
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Remote reports calls to other systems that a handler makes by itself.
var Remote = &analysis.Analyzer{
	Name: ruleRemote,
	Doc: `report requests, connections and mails of a handler

If the handler's transaction fails after the request, the handler runs again, and the remote gets a
second request. A request in a function that idempotency.Step runs is not reported.`,
	Requires: []*analysis.Analyzer{handlers},
	Run:      runRemote,
}

// remotes are the functions and methods that reach another system.
var remotes = func() map[name]bool {
	all := map[name]bool{}
	for of, fns := range map[[2]string][]string{
		{"net/http", ""}:             {"Get", "Head", "Post", "PostForm"},
		{"net/http", "Client"}:       {"Do", "Get", "Head", "Post", "PostForm"},
		{"net/http", "RoundTripper"}: {"RoundTrip"},
		{"net/http", "Transport"}:    {"RoundTrip"},
		{
			"net",
			"",
		}: {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix"},
		{
			"net",
			"Dialer",
		}: {"Dial", "DialContext", "DialTCP", "DialUDP", "DialIP", "DialUnix"},
		{"crypto/tls", ""}:                             {"Dial", "DialWithDialer"},
		{"crypto/tls", "Dialer"}:                       {"Dial", "DialContext"},
		{"net/smtp", ""}:                               {"SendMail", "Dial"},
		{"net/smtp", "Client"}:                         {"Data"},
		{"net/rpc", ""}:                                {"Dial", "DialHTTP", "DialHTTPPath"},
		{"net/rpc", "Client"}:                          {"Call", "Go"},
		{"github.com/segmentio/kafka-go", "Writer"}:    {"WriteMessages"},
		{"github.com/segmentio/kafka-go", "Conn"}:      {"Write", "WriteMessages"},
		{"github.com/twmb/franz-go/pkg/kgo", "Client"}: {"Produce", "ProduceSync", "TryProduce"},
	} {
		for _, fn := range fns {
			all[name{of[0], of[1], fn}] = true
		}
	}
	return all
}()

func runRemote(pass *analysis.Pass) (any, error) { return reportFound(pass, ruleRemote) }

// reachesRemote is what the rule says of a call.
const reachesRemote = "%s reaches a remote, and a rollback does not take that back: if the message is " +
	"handled again, it is reached again. Enqueue an outbox.Call in tx, which is sent after the commit. A " +
	"consumer looks things up in Config.Prepare, before the transaction."

// runsStep runs a function whose requests may be sent again, under the key that it gets.
var runsStep = name{module + "idempotency", "", "Step"}

// inStep reports whether a function, or one around it, is what an idempotency.Step runs.
func (p *program) inStep(fn *ssa.Function) bool {
	return fn != nil && (p.steps[fn] || p.inStep(fn.Parent()))
}
