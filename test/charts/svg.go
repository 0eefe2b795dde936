package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart is a picture of horizontal bars.
type chart struct {
	title  string
	note   string // below the title: what is compared, where and when
	series []string
	most   float64 // the end of the scale
	log    bool    // of 1 and the value
	marks  []float64
	rows   []row
}

// row has a bar for each series.
type row struct {
	label string
	bars  []bar
}

// bar is a value, with the least and the most of its rounds if least < most.
type bar struct {
	value, least, most float64
	text               string // beside the bar
}

const (
	width  = 760
	left   = 330 // where bars begin
	right  = 640 // where the scale ends
	thick  = 15
	apart  = 10
	header = 62
)

// style has the colors of a light page and of a dark one.
const style = `<style>
text { font: 13px system-ui, -apple-system, sans-serif; fill: #1b1f24; }
.title { font-size: 16px; font-weight: 600; }
.note { font-size: 12px; fill: #57606a; }
.s0 { fill: #0b6bcb; } .s1 { fill: #c2570c; } .s2 { fill: #6e7781; }
.scale { stroke: #d0d7de; stroke-width: 1; } .range { stroke: #1b1f24; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #dfe4ea; } .note { fill: #9aa4af; }
  .s0 { fill: #5aa9f2; } .s1 { fill: #ee9654; } .s2 { fill: #8b949e; }
  .scale { stroke: #3a4048; } .range { stroke: #dfe4ea; }
}
</style>
`

// x is where a value is on the scale.
func (c chart) x(value float64) float64 {
	share := min(value, c.most) / c.most
	if c.log {
		share = math.Log1p(min(value, c.most)) / math.Log1p(c.most)
	}
	return left + (right-left)*share
}

// svg draws the chart.
func (c chart) svg() string {
	var b strings.Builder
	y := float64(header)
	if len(c.series) > 1 {
		y += 22
	}
	top := y
	for _, r := range c.rows {
		y += c.draw(&b, r, y)
	}
	bottom := y
	var scale strings.Builder
	for _, m := range c.marks {
		fmt.Fprintf(&scale, `<line class="scale" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", c.x(m), top-4, c.x(m), bottom)
		fmt.Fprintf(&scale, `<text class="note" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", c.x(m), bottom+16, number(m))
	}
	var head strings.Builder
	fmt.Fprintf(&head, `<text class="title" x="12" y="24">%s</text>`+"\n", html.EscapeString(c.title))
	fmt.Fprintf(&head, `<text class="note" x="12" y="44">%s</text>`+"\n", html.EscapeString(c.note))
	for i, s := range c.series {
		if len(c.series) > 1 {
			at := 12 + 150*i
			fmt.Fprintf(&head, `<rect class="s%d" x="%d" y="56" width="12" height="12"/><text x="%d" y="66">%s</text>`+"\n",
				i, at, at+18, html.EscapeString(s))
		}
	}
	height := bottom + 28
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img">`+
		"\n<title>%s</title>\n", width, height, width, height, html.EscapeString(c.title)) +
		style + head.String() + scale.String() + b.String() + "</svg>\n"
}

// draw draws a row at y, and returns how high it is.
func (c chart) draw(b *strings.Builder, r row, y float64) float64 {
	high := float64(thick * len(r.bars))
	fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-10, y+high/2+4.5, html.EscapeString(r.label))
	for i, v := range r.bars {
		at := y + float64(thick*i)
		fmt.Fprintf(b, `<rect class="s%d" x="%d" y="%.1f" width="%.1f" height="%d"/>`+"\n", i, left, at, c.x(v.value)-left, thick-2)
		end := c.x(v.value)
		if v.least < v.most {
			middle := at + float64(thick-2)/2
			fmt.Fprintf(b, `<line class="range" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", c.x(v.least), middle, c.x(v.most), middle)
			end = c.x(v.most)
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`+"\n", end+7, at+thick-4, html.EscapeString(v.text))
	}
	return high + apart
}

// number writes a value without needless digits.
func number(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
}
