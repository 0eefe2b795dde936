package main

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
)

// first checks the first page: its first line is a sentence, its charts say in words what they
// draw, and it has the calls that are not delivered and the faults of processes; and that explain
// begins with what became of a thing.
func (r *run) first(ctx context.Context, s *server) error {
	_, at, err := s.filled(ctx, console.Config{Authorize: as("vic", console.View)}, consoledata.Fill)
	if err != nil {
		return err
	}
	if err := r.open(at + "/"); err != nil {
		return err
	}
	if err := r.sentence(); err != nil {
		return err
	}
	if err := r.charts(); err != nil {
		return err
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	r.check(strings.Contains(text, "cannot deliver: sink invoices, 9 calls not delivered"), "a remote that is down is among the needs")
	fault, err := eval[string](
		r,
		`[...document.querySelectorAll("#owners tr")].map(t => t.innerText).find(t => t.includes("relay-5d7b-0")) || ""`,
	)
	if err != nil {
		return err
	}
	r.check(strings.Contains(fault, "HTTP 500"), "the relay's fault is with its process (%q)", fault)
	if err := r.open(at + "/outbox"); err != nil {
		return err
	}
	sink, err := eval[string](
		r,
		`[...document.querySelectorAll("#sinks tr")].map(t => t.innerText).find(t => t.includes("invoices")) || ""`,
	)
	if err != nil {
		return err
	}
	r.check(
		strings.Contains(sink, "9") && strings.Contains(sink, "HTTP 500"),
		"the sink has its unsent calls and their last error (%q)",
		sink,
	)
	if err := r.fates(at); err != nil {
		return err
	}
	return r.nothing(ctx, s)
}

// sentence checks the first line.
func (r *run) sentence() error {
	line, err := eval[string](r, `document.querySelector("main").innerText.trim().split("\n")[0]`)
	if err != nil {
		return err
	}
	needs, err := eval[int](r, `document.querySelectorAll(".need").length`)
	if err != nil {
		return err
	}
	is, err := eval[bool](
		r,
		`new RegExp("^" + document.querySelectorAll(".need").length + " things need you: the first is `+
			`.+\\.$").test(document.querySelector("h1").innerText)`,
	)
	r.check(is, "the first line says what needs a person, with %d needs (%q)", needs, line)
	return err
}

// charts checks that each chart has a line, and a text for those who do not see it.
func (r *run) charts() error {
	for _, id := range []string{"lag", "rate", "unsent"} {
		// The rate is known once the page has looked twice.
		if err := r.until("the chart of "+id+" has a line", func() (bool, error) {
			return eval[bool](r, `document.querySelector("#`+id+`-said")?.closest("svg").querySelector(".line") !== null`)
		}); err != nil {
			return err
		}
		said, err := eval[string](r, `(() => {
			const svg = document.querySelector("#`+id+`-said").closest("svg");
			const labels = svg.getAttribute("aria-labelledby").split(" ").map(i => document.getElementById(i).textContent);
			return svg.getAttribute("role") + " " + labels.join(" ");
		})()`)
		if err != nil {
			return err
		}
		r.check(
			strings.HasPrefix(said, "img ") && strings.Contains(said, ", the last hour In the last "),
			"the chart of %s is said in words (%q)",
			id,
			said,
		)
	}
	return nil
}

// fates checks that explain begins with what became of a thing.
func (r *run) fates(at string) error {
	for asked, want := range map[string]string{
		"q=order-1":                 "It is parked as row 1",
		"q=key-1&tenant=acct_1":     "It is the Idempotency-Key of POST /v1/charges, tenant acct_1",
		"q=never-seen":              "Nothing is stored of this id in any scope.",
		"q=orders/1/47001":          "Scope stock has parked it as row 1",
		"q=order-1&scope=stok":      "It is not known",
		"q=key-9&scope=http+POST+/": "It is not known",
	} {
		if err := r.open(at + "/explain?" + asked); err != nil {
			return err
		}
		said, err := eval[string](r, `document.querySelector(".said")?.innerText || document.body.innerText`)
		if err != nil {
			return err
		}
		r.check(strings.Contains(said, want), "explain %s begins with its fate (%q)", asked, said)
	}
	return nil
}

// nothing checks the first line of a database that needs nobody.
func (r *run) nothing(ctx context.Context, s *server) error {
	_, at, err := s.filled(
		ctx,
		console.Config{Authorize: as("vic", console.View)},
		func(context.Context, *pgxpool.Pool) error { return nil },
	)
	if err != nil {
		return err
	}
	if err := r.open(at + "/"); err != nil {
		return err
	}
	line, err := eval[string](r, `document.querySelector("h1").innerText`)
	r.check(line == "Nothing needs you.", "a database that needs nobody says so first (%q)", line)
	return err
}

// stacked checks a page in a narrow window: the values of tables with an error or a sentence are
// all on the screen, no row is higher than what is seen of it, and no card is a list.
func (r *run) stacked(what string) error {
	off, err := eval[string](r, `[...document.querySelectorAll("table.stacks td")].filter(td => {
		const b = td.getBoundingClientRect();
		return b.width > 0 && (b.left < 0 || b.right > innerWidth);
	}).map(td => td.innerText).slice(0, 3).join(" | ")`)
	if err != nil {
		return err
	}
	r.check(off == "", "%s: each value of a row with a sentence is on the screen (%s)", what, off)
	high, err := eval[string](r, `[...document.querySelectorAll("tbody tr")].filter(tr => {
		const seen = [...tr.cells].map(td => td.getBoundingClientRect()).filter(b => b.width > 0 && b.left < innerWidth && b.right > 0);
		const text = [...tr.cells].filter(td => { const b = td.getBoundingClientRect(); return b.width > 0 && b.left < innerWidth; })
			.map(td => {
				const range = document.createRange();
				range.selectNodeContents(td);
				return range.getBoundingClientRect().bottom;
			});
		return seen.length > 0 && tr.getBoundingClientRect().bottom - Math.max(...text) > 16;
	}).map(tr => tr.innerText).slice(0, 3).join(" | ")`)
	if err != nil {
		return err
	}
	r.check(high == "", "%s: no row is higher than what is seen of it (%s)", what, high)
	lines, err := eval[float64](
		r,
		`Math.max(0, ...[...document.querySelectorAll(".ledger dd:not(.sub)")].map(d => d.getBoundingClientRect().height / 26))`,
	)
	r.check(lines < 4.5, "%s: no card has more than four lines (%.1f)", what, lines)
	return err
}
