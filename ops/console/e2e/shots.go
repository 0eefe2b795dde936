package main

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/chromedp/chromedp"
)

// shoot writes a screenshot: of the wide window in light, and of the overview in wide and narrow
// dark ones; with -all of each page in each look.
func (r *run) shoot(name string, l look) error {
	usual := l == looks[0] || name == "overview" && l.dark && l.width != middle
	if r.shots == "" || !r.each && !usual {
		return nil
	}
	if l != looks[0] {
		name += "-" + strings.ReplaceAll(l.name, ", ", "-")
	}
	ctx, cancel := context.WithTimeout(r.ctx, within)
	defer cancel()
	shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	small, err := withPalette(shot)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.shots, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.shots, "console-"+name+".png"), small, 0o644)
}

// colors is how many a screenshot keeps: a page has two dozen, and the shades of their edges.
const colors = 256

// withPalette makes a PNG smaller: it keeps its most frequent colors, and each other pixel gets the
// nearest of them.
func withPalette(shot []byte) ([]byte, error) {
	whole, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	frequency := map[color.RGBA]int{}
	bounds := whole.Bounds()
	rgba := image.NewRGBA(bounds)
	draw.Draw(rgba, bounds, whole, bounds.Min, draw.Src)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			frequency[rgba.RGBAAt(x, y)]++
		}
	}
	found := make([]color.RGBA, 0, len(frequency))
	for c := range frequency {
		found = append(found, c)
	}
	slices.SortFunc(found, func(a, b color.RGBA) int { return frequency[b] - frequency[a] })
	palette := make(color.Palette, 0, colors)
	for _, c := range found[:min(colors, len(found))] {
		palette = append(palette, c)
	}
	small := image.NewPaletted(bounds, palette)
	nearest := map[color.RGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := rgba.RGBAAt(x, y)
			i, known := nearest[c]
			if !known {
				i = uint8(palette.Index(c))
				nearest[c] = i
			}
			small.SetColorIndex(x, y, i)
		}
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err = encoder.Encode(&out, small)
	return out.Bytes(), err
}
