package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// seenJS returns what a reader sees, after a search.
const seenJS = `(async () => {
  // drawn waits until each diagram is a picture, for 10 s at most.
  const drawn = async () => {
    const undrawn = () => [...document.querySelectorAll("code.language-mermaid")].some(d => !d.querySelector("svg"));
    for (const end = Date.now() + 10000; undrawn() && Date.now() < end;) await new Promise(requestAnimationFrame);
    return !undrawn();
  };
  const hit = document.querySelector("#found a");
  return {
    Title: document.querySelector("h1").textContent.trim(),
    Background: getComputedStyle(document.body).backgroundColor,
    Width: document.documentElement.scrollWidth,
    Hit: hit ? hit.textContent : "",
    There: hit ? (await fetch(hit.href)).ok : false,
    Drawn: await drawn(),
    Elsewhere: performance.getEntriesByType("resource").filter(r => new URL(r.name).origin !== location.origin).length,
  };
})()`

type seen struct {
	Title, Background, Hit string
	Width                  int64
	There, Drawn           bool
	Elsewhere              int64 // requests to other servers
}

// look is a window and a color scheme.
type look struct {
	scheme, background string
	width              int64
}

var looks = []look{
	{"light", "rgb(255, 255, 255)", 1280},
	{"dark", "rgb(20, 24, 29)", 390},
	{"light", "rgb(255, 255, 255)", 390},
	{"dark", "rgb(20, 24, 29)", 1280},
}

// browse opens pages in Chromium, in each look in turn, and searches on each: ten of all, and those
// with diagrams. Each must do without other servers.
func (s *site) browse(out string) error {
	server := httptest.NewServer(http.FileServer(http.Dir(out)))
	defer server.Close()
	limited, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	alloc, free := chromedp.NewExecAllocator(
		limited,
		append(
			slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
			chromedp.NoSandbox,
			chromedp.DisableGPU,
			chromedp.Flag("hide-scrollbars", true),
		)...,
	)
	defer free()
	ctx, leave := chromedp.NewContext(alloc)
	defer leave()
	var faults []error
	var open []*page
	for i := range 10 {
		open = append(open, s.pages[i*len(s.pages)/10])
	}
	for _, p := range s.pages {
		if bytes.Contains(p.source, []byte("```mermaid")) && !slices.Contains(open, p) {
			open = append(open, p)
		}
	}
	for i, p := range open {
		l := looks[i%len(looks)]
		err := chromedp.Do(ctx, chromedp.EmulateViewport(l.width, 800),
			chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
				_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}},
				})
				return err
			}),
			chromedp.Navigate(server.URL+"/"+p.URL), chromedp.SendKeys("#search", "redrive parked"))
		if err != nil {
			return fmt.Errorf("%s: %w", p.URL, err)
		}
		got, err := chromedp.Run(ctx, chromedp.Evaluate[seen](seenJS, chromedp.EvalAwaitPromise))
		if err != nil {
			return fmt.Errorf("%s: %w", p.URL, err)
		}
		looks := got.Title == p.Title && got.Background == l.background && got.Width <= l.width
		works := got.Hit != "" && got.There && got.Drawn && got.Elsewhere == 0
		if !looks || !works {
			faults = append(faults, fmt.Errorf("%s, %s, %d wide: %+v", p.URL, l.scheme, l.width, got))
		}
	}
	return errors.Join(faults...)
}
