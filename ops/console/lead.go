package console

import (
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// leadLength is up to how many characters of a need are in the first line.
const leadLength = 72

// lead is the first line of the first page: whether something needs a person. It does not say that
// nothing does if the database has not answered, or was not counted whole.
func lead(s *status, state asked) string {
	switch {
	case s == nil && state.Schema():
		return "The schema of this database does not fit this console."
	case s == nil:
		return "The database does not answer: nothing is known yet."
	case state.Err != nil:
		return "The database does not answer: what follows is old."
	case len(s.Needs) > 0:
		return needed(s.Needs)
	case !s.Parked.Counted || !s.OutboxCounted:
		return "Nothing needs you, as far as it was counted: counting all took over 2 seconds."
	}
	return operate.Needing(0) + "."
}

// needed says how many things need a person, and the first of them.
func needed(needs []ops.Need) string {
	if len(needs) == 1 {
		return fmt.Sprintf("%s: %s.", operate.Needing(1), clause(needs[0].Text))
	}
	return fmt.Sprintf("%s: the first is “%s”.", operate.Needing(len(needs)), clause(needs[0].Text))
}

// clause is the beginning of a need, without an end: as many of its clauses as fit. The whole
// stands below the first line.
func clause(text string) string {
	text = strings.TrimSuffix(show.OneLine(text), ".")
	if len(text) <= leadLength {
		return text
	}
	end := 0
	for _, mark := range []string{": ", ", ", " ("} {
		end = max(end, strings.LastIndex(text[:leadLength], mark))
	}
	if end < leadLength/3 {
		return show.FirstLine(text, leadLength)
	}
	return text[:end]
}

// leadOf is the first line of a console that has several databases.
func leadOf(rows []fleetRow) string {
	var silent, needing *fleetRow
	needs := 0
	missing := 0
	for i := range rows {
		r := &rows[i]
		switch {
		case r.Bad:
			missing++
			if silent == nil {
				silent = r
			}
		case r.Needs > 0:
			needs++
			if needing == nil {
				needing = r
			}
		}
	}
	var said []string
	if missing > 0 {
		said = append(said, fmt.Sprintf("%d of %s: no answer, the first is %s.",
			missing, databases(len(rows)), silent.Database))
	}
	switch {
	case needing != nil:
		said = append(said, fmt.Sprintf("%d of %s need you: the first is %s, “%s”.",
			needs, databases(len(rows)), needing.Database, clause(needing.First)))
	case missing == 0:
		said = append(said, fmt.Sprintf("Nothing needs you in %s.", databases(len(rows))))
	}
	return strings.Join(said, " ")
}

func databases(n int) string { return show.Count(int64(n), "database") }
