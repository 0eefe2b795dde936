package main

import (
	"os"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
)

// mostNextRequests is for how many requests a list says what an operator can do.
const mostNextRequests = 3

func (a *app) writeNextRequests(_ *reports.RequestFilter, rows []ops.Request, _ *reports.ParkedTotals) {
	said := 0
	for i := range rows {
		steps := operate.NextOfRequest(&rows[i])
		if len(steps) == 0 {
			continue
		}
		if said++; said > mostNextRequests {
			a.say("\nMore of them wait for an operator: the commands are the same, with their IDs.")
			return
		}
		a.say("\nRequest %s (%s)", rows[i].ID, rows[i].State)
		a.writeSteps(steps)
	}
}

// readSealKeys reads the keys that a layer seals with; the first one seals.
func readSealKeys(file string, env func(string) string) (*seal.Sealer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("-seal-keys: %v", err)
	}
	read := settings.File{Env: env}
	var keys settings.SealKeys
	read.Decode(data, "", &keys)
	if len(keys.Keys) == 0 && len(read.Faults()) == 0 {
		read.Fault("seal_keys", "holds no key")
	}
	if err := read.Err(); err != nil {
		return nil, usagef("-seal-keys: %s: %s", file, oneLine(err.Error()))
	}
	return keys.Sealer(), nil
}
