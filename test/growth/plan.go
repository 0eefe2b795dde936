package main

import (
	"encoding/json"
	"regexp"
	"strings"
)

// plan is what auto_explain says of one statement that has run (format json, analyze, buffers).
type plan struct {
	Text string `json:"Query Text"`
	Plan node   `json:"Plan"`
}

// node is a node of a plan. Blocks are of the node and of all below it, over all of its loops.
type node struct {
	Type      string  `json:"Node Type"`
	Operation string  `json:"Operation"`
	Relation  string  `json:"Relation Name"`
	Index     string  `json:"Index Name"`
	Schema    string  `json:"Schema"`
	Rows      float64 `json:"Actual Rows"` // of each loop
	Loops     float64 `json:"Actual Loops"`
	Hit       int     `json:"Shared Hit Blocks"`
	Read      int     `json:"Shared Read Blocks"`
	Nodes     []node  `json:"Plans"`
}

func readPlan(text string) (*plan, error) {
	var p plan
	return &p, json.Unmarshal([]byte(text), &p)
}

// work is what a statement has read, and what it has returned and written for that.
type work struct {
	pages int  // of tables of ours and their indexes
	rows  int  // asked for in an array, returned, or written: into a table and into each of its indexes
	dead  int  // rows of its tables that are dead: an old snapshot keeps them, or no vacuum has come yet
	cold  bool // it is the first run of its session: its functions are planned, which reads the catalog
	most  string
	peak  int // the pages of the node that has read most; most is its name

	tables map[string]bool
	died   map[string]int // rows that it has updated or deleted, of each table
}

// allowed is how many pages a statement may read: 50, and 8 more for each row. No statement can
// help to pass over what is dead where it looks: so two more for each such row. The first run of a
// session may read 50 pages of the catalog.
func (w *work) allowed() int {
	most := 50 + 8*w.rows + 2*w.dead
	if w.cold {
		most += 50
	}
	return most
}

// load is how much of what is allowed a statement has read.
func (w *work) load() float64 { return float64(w.pages) / float64(w.allowed()) }

// workOf adds up the nodes that read our tables. What a function in the list of results reads is
// not counted here: its statements have plans of their own. indexes says how many a table has.
func workOf(p *plan, indexes map[string]int) (w work) {
	w.rows = int(p.Plan.Rows * p.Plan.Loops)
	w.tables = map[string]bool{}
	w.died = map[string]int{}
	w.add(&p.Plan, indexes)
	return w
}

func (w *work) add(n *node, indexes map[string]int) {
	own := n.Hit + n.Read
	for i := range n.Nodes {
		own -= n.Nodes[i].Hit + n.Nodes[i].Read
		w.add(&n.Nodes[i], indexes)
	}
	name := n.Relation
	if name == "" && n.Index != "" { // a Bitmap Index Scan names no table
		name = n.Index
	}
	if n.Type == "Function Scan" { // that many were asked for, for example keys, or transactions in progress
		w.rows += int(n.Rows * n.Loops)
	}
	if n.Relation != "" {
		w.tables[n.Relation] = true
	}
	if n.Type == "ModifyTable" && len(n.Nodes) > 0 {
		written := 0
		for i := range n.Nodes {
			written = max(written, int(n.Nodes[i].Rows*n.Nodes[i].Loops))
		}
		w.rows += written * (1 + indexes[n.Relation])
		if n.Operation != "Insert" {
			w.died[n.Relation] += written
		}
	}
	if name == "" || strings.HasPrefix(name, "pg_") || n.Relation == "effects" {
		return
	}
	w.pages += own
	if own > w.peak {
		w.peak = own
		w.most = strings.TrimSpace(n.Type + " " + n.Index + " on " + n.Relation)
	}
}

// functionIn finds the function in which a statement has run, in the context that the server gives.
var functionIn = regexp.MustCompile(`(?:PL/pgSQL|SQL) function (?:onlyonce\.)?"?(\w+)`)

// statementOf names a statement: by the function of the schema that it is part of, and its text.
func statementOf(text, where string) (function, normal string) {
	if m := functionIn.FindStringSubmatch(where); m != nil {
		function = m[1]
	}
	return function, strings.Join(strings.Fields(text), " ")
}
