package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// remediesWork fails the test unless every command in a finding is valid: its verb and its flags
// exist, and no flag is missing. Words in capitals are placeholders. The command runs against an
// address without a database, so it gets as far as connecting.
func (r doctorReport) remediesWork(t *testing.T) (seen []string) {
	t.Helper()
	for _, f := range r.Findings {
		for _, args := range commandsIn(t, f.Remedy) {
			seen = append(seen, strings.Join(args, " "))
			for i := range args {
				if value, is := values[args[i]]; is {
					args[i] = value
				}
				if args[i] == "ID" {
					args[i] = "1"
					if args[0] == "request" {
						args[i] = "5f0c1111-93c1-8d0e-a3b4-0f1e2d3c4b5a"
					}
				}
			}
			s := session{t: t, url: "postgres://127.0.0.1:1/nowhere", terminal: true, timeout: 10 * time.Second}
			if got := s.run(args...); got.status != statusEnvironment ||
				!strings.Contains(got.err, "cannot reach") ||
				strings.Contains(got.err, "usage:") {
				t.Errorf("finding %s says %q, and onlyonce %q ends with %d: %s", f.Check, f.Remedy, args, got.status, got.err)
			}
		}
	}
	return seen
}

// values replace the words in capitals.
var values = map[string]string{"D": "9d", "WHY": "because", "NAME": "charge", "N": "2"}

// commandsIn returns the arguments of each command of onlyonce in a sentence. A command ends at a
// comma, a semicolon, a bracket, or the end of the sentence. Words are parsed as a shell does.
func commandsIn(t *testing.T, sentence string) (all [][]string) {
	t.Helper()
	for rest := sentence; ; {
		_, command, found := strings.Cut(rest, "onlyonce ")
		if !found {
			return all
		}
		var args []string
		word := ""
		begun := false
		quoted := false
		escaped := false
		end := len(command)
		for i, c := range command {
			switch {
			case escaped:
				word = word + string(c)
				begun = true
				escaped = false
			case c == '\\' && !quoted:
				escaped = true
			case c == '\'':
				quoted = !quoted
				begun = true
			case quoted:
				word += string(c)
			case c == ' ':
				if begun {
					args = append(args, word)
				}
				word = ""
				begun = false
			case strings.ContainsRune(",;(", c):
				end = i
			default:
				word = word + string(c)
				begun = true
			}
			if end < len(command) {
				break
			}
		}
		if begun {
			args = append(args, word)
		}
		if quoted {
			t.Errorf("%q: a quote is not closed", sentence)
		}
		all = append(all, args)
		rest = command[end:]
	}
}

// One scenario has most of the findings for which doctor prints a command: each command is printed,
// and works as printed.
func TestDoctorRemedies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(frontier("25 hours") + `
		insert into onlyonce.pauses (scope, reason) values ('it''s', 'x');
		insert into onlyonce.pauses (scope, topic, partition, reason) values ('stock', 'orders', 0, 'x');
		insert into onlyonce.parked (kind, state, reason, scope)
		values ('message', 'waiting', 'exhausted', 's'), ('event', 'waiting', 'stale', 's');
		insert into onlyonce.parked (kind, state, reason, scope, sink, open, first_attempt_at)
		values ('call', 'reconcile', 'window', 's', 'p', true, now() - interval '8 days'),
		('call', 'waiting', 'rejected', 's', 'p', false, null);
		insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep)
		values (gen_random_uuid(), '', 'http', '', gen_random_uuid(), 'reconcile', '1 day');
		insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep, abandoned_at)
		values (gen_random_uuid(), '', 'http', '', gen_random_uuid(), 'running', '1 day', now());
		update onlyonce.rings set horizon = null where name = 'standard_keys'; ` + oldCurrent)
	f.lists("mail")
	f.run("outbox", "pause", "-sink", "mail", "-reason", "why", "-yes").want(t, statusGood)
	f.exec(`update onlyonce.lane_cursors set system_id = 1`)
	seen := f.examines(true, "-copies-within", "8d").remediesWork(t)
	for _, want := range []string{
		"inbox horizon -ring consumer_keys -horizon D -reason WHY",
		"inbox horizon -ring standard_keys -horizon D -reason WHY", "inbox rotate",
		"cursor retire -scope stock -topic orders -partition 0 -reason WHY",
		"cursor resume -scope it's -reason WHY",
		"cursor resume -scope stock -topic orders -partition 0 -reason WHY",
		"outbox resume -sink mail -reason WHY", "outbox rebase -reason WHY", "parked show -id 3",
		"parked list -kind message -state waiting -scope s",
		"parked list -kind call -state reconcile -scope s", "parked redrive -id ID -reason WHY",
		"parked discard -id ID -reason WHY", "parked redrive -id ID -verified-applied -reason WHY",
		"request list", "request resolve -id ID -step NAME -applied -result TEXT -reason WHY",
		"request close -id ID -reason WHY",
	} {
		if !slices.Contains(seen, want) {
			t.Errorf("no finding says %q; they say %q", want, seen)
		}
	}
}

// The command that is printed for a pause of a partition ends it; no other command is printed.
func TestDoctorRemedyEndsAPause(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(oneCursor + `insert into onlyonce.pauses (scope, topic, partition, reason)
		values ('stock', 'orders', 0, 'x'), ('it''s', 'orders', 0, 'x')`)
	for left := 2; left > 0; left-- {
		var change string
		n := 0
		for _, x := range f.examines(false).Findings {
			if x.Check == "pauses" && x.Level == "info" {
				change = x.Remedy
				n = n + 1
			}
		}
		if n != left {
			t.Fatalf("%d pauses, want %d", n, left)
		}
		f.run(append(commandsIn(t, change)[0], "-yes")...).want(t, statusGood, "Done; audit row")
	}
	f.examines(false).has(t, "pauses", "ok")
}
