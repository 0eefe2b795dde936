package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

func planStorageCommand() command {
	return command{
		name:    "plan storage",
		args:    storageArgs() + " [-json]",
		summary: "work out what space a database needs",
		json:    []reflect.Type{reflect.TypeFor[reports.StoragePlan]()},
		lines:   true,
		help: `
Works out what the tables of onlyonce take on disk once rows are deleted as fast as they come: rate,
size and retention of each kind that a program has. It needs no database and changes nothing. Give
the rates of those that you have, in a second, minute, hour or day (20/s, 1e6/d).

KIND is: ` + storageHelp() + ` -KIND-bytes is the size of what your program stores in one.
-KIND-keep is how long rows are kept: for ids the horizon (with several classes, call it for each;
"onlyonce inbox plan" has the memory too), for calls and captured RelayConfig.Retention, for events
SourceConfig.Retention, for parked "onlyonce retention", for requests Config.TTL. A call that
captures its answer counts for calls and for captured. Indexes are counted, and tables that are
emptied as a whole. Not counted: WAL, backups, your own tables, and what a vacuum that is held up
leaves.

Examples:
  onlyonce plan storage -ids 1e6/d -calls 1e6/d -captured 1e6/d
  onlyonce plan storage -events 20/s -events-bytes 4000 -events-keep 3d -parked 100/d -requests 5e5/d`,
		setup: setUpPlanStorage,
	}
}

// storageArgs are the flags of all kinds.
func storageArgs() string {
	var all []string
	for _, k := range reports.StorageKinds() {
		bytes := ""
		if k.Of != "" {
			bytes = fmt.Sprintf(" [-%s-bytes N]", k.Name)
		}
		all = append(all, fmt.Sprintf("[-%s N/d%s [-%s-keep D]]", k.Name, bytes, k.Name))
	}
	return strings.Join(all, " ")
}

// storageHelp is a line for each kind, with its defaults.
func storageHelp() string {
	var b strings.Builder
	for _, k := range reports.StorageKinds() {
		fmt.Fprintf(&b, "  %-9s %s, kept for %s", k.Name, k.What, show.Span(k.Keep))
		if k.Of != "" {
			fmt.Fprintf(&b, "; %d bytes of %s", k.Bytes, k.Of)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func setUpPlanStorage(fs *flag.FlagSet) func(context.Context, *app) error {
	kinds := reports.StorageKinds()
	asked := make([]reports.StorageQuestion, len(kinds))
	for i := range kinds {
		storageFlags(fs, &kinds[i], &asked[i])
	}
	asJSON := jsonVar(fs)
	return func(_ context.Context, a *app) error {
		var plans []reports.StoragePlan
		for i := range kinds {
			if asked[i].Rate > 0 {
				plans = append(plans, kinds[i].Plan(asked[i]))
			}
		}
		if len(plans) == 0 {
			return usagef("say what comes: -ids, -calls, -captured, -events, -parked or -requests")
		}
		return a.writeStorage(plans, *asJSON)
	}
}

// storageFlags declares the flags of a kind.
func storageFlags(fs *flag.FlagSet, k *reports.StorageKind, q *reports.StorageQuestion) {
	q.Bytes = k.Bytes
	q.Keep = k.Keep
	fs.Func(k.Name, k.What+" that come in a unit of time, `N/d`", func(s string) (err error) {
		q.Rate, err = parseRate(s)
		return err
	})
	fs.Func(
		k.Name+"-keep",
		fmt.Sprintf("how long they are kept, a `duration` (default %s)", show.Span(k.Keep)),
		func(s string) (err error) {
			q.Keep, err = operate.ParseDays(s)
			return err
		},
	)
	if k.Of != "" {
		fs.Func(
			k.Name+"-bytes",
			fmt.Sprintf("`bytes` of %s in one (default %d)", k.Of, k.Bytes),
			func(s string) (err error) {
				q.Bytes, err = parseBytes(s)
				return err
			},
		)
	}
}

// parseBytes parses a size in bytes.
func parseBytes(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<30 {
		return 0, errors.New("must be a number of bytes from 0 to 1073741824")
	}
	return n, nil
}

// perDay writes a rate in rows a day.
func perDay(rate float64) string {
	n := rate * 86400
	if n < 10 {
		return fmt.Sprintf("%.2g", n)
	}
	return fmt.Sprintf("%.0f", n)
}

func (a *app) writeStorage(plans []reports.StoragePlan, asJSON bool) error {
	if asJSON {
		for i := range plans {
			if err := a.writeJSON(&plans[i]); err != nil {
				return err
			}
		}
		return nil
	}
	var rows [][]string
	disk := 0.0
	for _, p := range plans {
		disk += p.Disk
		keep := show.Span(time.Duration(p.Keep * float64(time.Second)))
		rows = append(rows, []string{
			p.Kind,
			perDay(p.Rate),
			keep,
			fmt.Sprintf("%.0f", p.RowBytes),
			fmt.Sprintf("%.3g", p.Rows),
			show.Size(p.Disk),
			p.What,
		})
	}
	a.table([]string{"KIND", "A DAY", "KEPT", "BYTES EACH", "ROWS AT MOST", "DISK", "WHAT"}, rows)
	a.say("together %s", show.Size(disk))
	return nil
}
