package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
)

// shown are the pages over the sample, by the names of their screenshots.
var shown = [][2]string{
	{"overview", "/"}, {"consumers", "/consumers"},
	{"cursor", "/consumers/cursor?scope=stock&topic=orders&partition=4"}, {"parked", "/parked"},
	{"parked-group", "/parked?kind=message&scope=stock&parked-for=exhausted&state=waiting"},
	{"parked-row", "/parked/1"}, {"explain", "/explain?q=order-1"}, {"outbox", "/outbox"},
	{"calls", "/outbox?sink=payments"}, {"requests", "/requests"}, {"events", "/events"},
	{"event", "/events/at?topic=webhook.stripe&partition=0&offset=1"}, {"keys", "/keys"},
	{"places", "/places"}, {"audit", "/audit"}, {"doctor", "/doctor"},
	{"act-adopt", "/act/adopt?scope=stock&topic=orders&partition=4&at=52300"},
	{"bulk", "/act/redrive?all=1&kind=message&scope=stock&parked-for=exhausted&state=waiting"},
	{"decision", "/audit/3"},
}

// look is a window and a color scheme.
type look struct {
	name          string
	width, height int64
	dark          bool
}

const (
	middle = 820
	narrow = 400
)

var looks = []look{
	{"wide, light", 1280, 900, false},
	{"wide, dark", 1280, 900, true},
	{"middle, light", middle, 1100, false},
	{"middle, dark", middle, 1100, true},
	{"narrow, light", narrow, 844, false},
	{"narrow, dark", narrow, 844, true},
}

func (r *run) set(l look) error {
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	return r.do(chromedp.EmulateViewport(l.width, l.height), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

// pages checks every page in every look: that it shows no payload, does not run over the window,
// has no script error, and no serious finding of axe.
func (r *run) pages(ctx context.Context, s *server) error {
	_, at, err := s.filled(ctx, console.Config{Authorize: as("ann", console.Operate)}, consoledata.Fill)
	if err != nil {
		return err
	}
	for _, p := range shown {
		for _, l := range looks {
			if err := r.set(l); err != nil {
				return err
			}
			if err := r.open(at + p[1]); err != nil {
				return err
			}
			if err := r.fits(p[0] + ", " + l.name); err != nil {
				return err
			}
			if l.width == narrow {
				if err := r.stacked(p[0] + ", " + l.name); err != nil {
					return err
				}
			}
			if err := r.accessible(p[0] + ", " + l.name); err != nil {
				return err
			}
			if err := r.shoot(p[0], l); err != nil {
				return err
			}
		}
		text, err := r.text()
		if err != nil {
			return err
		}
		r.check(!strings.Contains(text, consoledata.Secret), "%s: no payload is shown", p[0])
	}
	if err := r.set(looks[0]); err != nil {
		return err
	}
	return r.keyboard(at)
}

// fits checks that the page itself does not scroll sideways.
func (r *run) fits(what string) error {
	over, err := eval[int](r, `document.documentElement.scrollWidth - document.documentElement.clientWidth`)
	r.check(over <= 0, "%s: fits the window (%d over)", what, over)
	return err
}

// accessible checks that axe has no serious finding.
func (r *run) accessible(what string) error {
	type finding struct {
		ID, Impact string
		Nodes      []struct{ HTML string }
	}
	// The policy of the console runs no script of others: axe runs in the inspector's own right.
	if _, err := eval[int](r, r.axe+"; 0"); err != nil {
		return fmt.Errorf("axe: %w", err)
	}
	text, err := eval[string](
		r,
		`axe.run(document, {resultTypes: ["violations"]}).then(a => JSON.stringify(a.violations.map(v => ({ID: v.id, Impact: `+
			`v.impact, Nodes: v.nodes.map(n => ({HTML: n.html}))}))))`,
	)
	if err != nil {
		return fmt.Errorf("axe: %w", err)
	}
	var all []finding
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return fmt.Errorf("axe: %w: %s", err, text)
	}
	var serious []string
	for _, f := range all {
		if f.Impact == "serious" || f.Impact == "critical" {
			serious = append(serious, f.ID+" "+f.Nodes[0].HTML)
		}
	}
	r.check(len(serious) == 0, "%s: axe has no serious finding: %s", what, strings.Join(serious, "; "))
	return nil
}

// keyboard checks that a person needs no mouse.
func (r *run) keyboard(at string) error {
	if err := r.open(at + "/parked"); err != nil {
		return err
	}
	if err := r.do(press("/")); err != nil {
		return err
	}
	focus, err := eval[string](r, `document.activeElement.id`)
	if err != nil {
		return err
	}
	r.check(focus == "find", "/ goes to the search (%q)", focus)
	if err := r.do(chromedp.KeyEvent("order-1"), chromedp.KeyEvent(kb.Enter)); err != nil {
		return err
	}
	if err := r.until("Enter asks", func() (bool, error) { return eval[bool](r, `document.querySelector(".said") !== null`) }); err != nil {
		text, _ := r.text()
		return fmt.Errorf("%w: %s", err, text)
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	r.check(
		strings.Contains(text, "order-1 of scope stock was claimed") && !strings.Contains(text, "onlyonce_segments.consumer_keys_0"),
		"an id is explained in sentences, and the rest is folded",
	)
	if err := r.open(at + "/parked"); err != nil {
		return err
	}
	if err := r.do(chromedp.KeyEvent("jj"), chromedp.KeyEvent(kb.Enter)); err != nil {
		return err
	}
	if err := r.until("Enter opens", func() (bool, error) {
		return eval[bool](r, `document.querySelector("form.filter a") !== null`)
	}); err != nil {
		return err
	}
	where, err := eval[string](r, `location.search`)
	r.check(strings.Contains(where, "parked-for="), "j and Enter open a group (%s)", where)
	return err
}

// press presses a key as a keyboard does: if the page takes the key, nothing is typed.
// chromedp.KeyEvent types it in an event of its own, which the page cannot prevent.
func press(key string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for _, e := range []input.DispatchKeyEventParams{
			{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: key},
			{Type: input.DispatchKeyEventTypeKeyUp, Key: key},
		} {
			if _, err := cdp.Call(ctx, t, input.DispatchKeyEvent, e); err != nil {
				return err
			}
		}
		return nil
	})
}
