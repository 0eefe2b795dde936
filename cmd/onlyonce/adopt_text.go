package main

import (
	"strconv"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// writeAdopted shows the cursor before and after, and what the change means.
func writeAdopted(a *app, d *ops.Adopted) {
	a.writeSaid(operate.Adopted(d))
}

// writeAdoptedTopic shows the partitions that are handed over.
func writeAdoptedTopic(a *app, d *ops.AdoptedTopic) {
	var rows [][]string
	for i := range d.Partitions {
		p := &d.Partitions[i]
		rows = append(rows, []string{strconv.Itoa(int(p.Partition)), number(p.Before.Position), number(p.After.Position), show.OrDash(p.Before.Group), show.OrDash(p.After.Group), yesNo(p.Before.Clean)})
	}
	a.say("Cursors of scope %s, topic %s:", cell(d.Scope), cell(d.Topic))
	a.table([]string{"PARTITION", "POSITION", "THEN", "GROUP NOW", "GROUP THEN", "RELEASED"}, rows)
	skipped, repeated := int64(0), int64(0)
	for i := range d.Partitions {
		skipped += given0(d.Partitions[i].Skipped)
		repeated += given0(d.Partitions[i].Repeated)
	}
	if skipped+repeated == 0 {
		a.say("The positions stay as they are: nothing is skipped, and nothing is handled again.")
		return
	}
	a.say("If the topic is still the same, %d offsets are skipped and never handled, and %d are handled again: keys that are still kept make duplicates of them.", skipped, repeated)
}
