package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
)

// hostile checks that no text of a stranger runs, loads or changes anything on any page, also where
// payloads are shown.
func (r *run) hostile(ctx context.Context, s *server) error {
	_, at, err := s.filled(
		ctx,
		console.Config{
			Authorize: as(console.Actor(consoledata.Hostile[1]), console.Operate),
			Bodies:    func(console.Actor, console.Kind) bool { return true },
		},
		consoledata.FillHostile,
	)
	if err != nil {
		return err
	}
	paths := []string{"/", "/consumers", "/parked", "/parked?all=1", "/outbox", "/audit", "/audit/1", "/doctor"}
	for id := range 2 * len(consoledata.Hostile) {
		paths = append(paths, "/parked/"+itoa(id+1))
	}
	for _, text := range consoledata.Hostile {
		for _, in := range []string{
			"/explain?q=",
			"/parked?error=",
			"/parked?scope=",
			"/consumers?scope=",
			"/outbox?sink=",
			"/requests?scope=",
			"/audit?actor=",
			"/events?topic=",
		} {
			paths = append(paths, in+escape(text))
		}
	}
	owned := ""
	for _, p := range paths {
		if err := r.open(at + p); err != nil {
			return err
		}
		bad, err := eval[string](r, `(() => {
			if (window.owned) return "a script ran";
			if (getComputedStyle(document.body).display === "none") return "a style applied";
			const hostile = "iframe, base, img, svg:not(.chart > svg), svg :not(title, desc, path), [onerror], [onload], " +
				"main [hx-get]:not(#live), main script, main style";
			if (document.querySelector(hostile)) return "an element came in";
			if ([...document.links].some(a => a.protocol !== "http:" || a.host !== location.host)) return "a link leads away";
			const host = f => new URL(f.getAttribute("action"), location.href).host;
			if ([...document.forms].some(f => host(f) !== location.host)) return "a form leads away";
			return "";
		})()`)
		if err != nil {
			return err
		}
		if bad != "" {
			owned = p + ": " + bad
			break
		}
	}
	r.check(owned == "", "%d pages with hostile texts show them as texts: %s", len(paths), owned)
	if err := r.open(at + "/parked/1"); err != nil {
		return err
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	r.check(strings.Count(text, consoledata.Hostile[0]) > 3, "a hostile text is shown as it is")
	res, err := http.Get(at + "/")
	if err != nil {
		return err
	}
	res.Body.Close()
	policy := res.Header.Get("Content-Security-Policy")
	r.check(strings.Contains(policy, "default-src 'none'") && !strings.Contains(policy, "unsafe"), "the policy allows nothing inline")
	r.check(strings.Contains(policy, "frame-ancestors 'none'") && res.Header.Get("X-Frame-Options") == "DENY", "no page may be framed")
	return nil
}
