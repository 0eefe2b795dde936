package main

import (
	"flag"
	"math"
)

// cursorFilter selects cursors; nil: any.
type cursorFilter struct {
	scope, topic *string
	partition    *int64
}

// flags declares -scope, -topic and -partition.
func (f *cursorFilter) flags(fs *flag.FlagSet) {
	textVar(fs, &f.scope, "scope", "the scope `S` of the consumer")
	textVar(fs, &f.topic, "topic", "the topic `T`")
	numberVar(fs, &f.partition, "partition", "the partition `N`", 0, math.MaxInt32)
}
