package main

import (
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
  const hit = document.querySelector("#found a");
  return {
    Title: document.querySelector("h1").textContent.trim(),
    Background: getComputedStyle(document.body).backgroundColor,
    Width: document.documentElement.scrollWidth,
    Hit: hit ? hit.textContent : "",
    There: hit ? (await fetch(hit.href)).ok : false,
  };
})()`

type seen struct {
	Title, Background, Hit string
	Width                  int64
	There                  bool
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

// browse opens ten pages in Chromium, in each look in turn, and searches on each.
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
	for i := range 10 {
		p, l := s.pages[i*len(s.pages)/10], looks[i%len(looks)]
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
		if got.Title != p.Title || got.Background != l.background || got.Width > l.width || got.Hit == "" || !got.There {
			faults = append(faults, fmt.Errorf("%s, %s, %d wide: %+v", p.URL, l.scheme, l.width, got))
		}
	}
	return errors.Join(faults...)
}
