// Command idemcheck tests what any HTTP server promises about Idempotency-Key, in whatever language
// it is written. It makes real requests: give it a server of a test environment.
//
//	idemcheck -config check.json
//	idemcheck -config check.json -only replay/ -json
//	idemcheck -config check.json -junit report.xml
//	idemcheck -list
//
// It exits with 0 if no check failed, with 1 if one did, and with 2 if it was called wrongly. A
// check that needs what the configuration does not have is skipped, and says what it needs.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/onlyonce/onlyonce/cmd/idemcheck/suite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// The exit statuses.
const (
	good   = 0
	failed = 1
	usage  = 2
)

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("idemcheck", flag.ContinueOnError)
	flags.SetOutput(errs)
	path := flags.String("config", "", "file with the configuration, as JSON; see docs/guide/idemcheck.md")
	address := flags.String("url", "", "address of the server, in place of the configuration's")
	only := flags.String("only", "", "run the checks whose names begin so, for example replay/")
	asJSON := flags.Bool("json", false, "print one object a line")
	junit := flags.String("junit", "", "file to which a report for CI servers is written (JUnit XML)")
	list := flags.Bool("list", false, "print the checks, and run none")
	if err := flags.Parse(args); err != nil {
		return usage
	}
	if *list {
		for _, check := range suite.Checks() {
			_, _ = fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", check.Name, check.Clause, check.Sends, check.Expects)
		}
		return good
	}
	c, err := configuration(*path, *address)
	if err != nil {
		_, _ = fmt.Fprintln(errs, err)
		return usage
	}
	var all []suite.Result
	print := printText
	if *asJSON {
		print = printJSON
	}
	suite.Run(ctx, c, *only, func(r suite.Result) {
		all = append(all, r)
		print(out, r)
	})
	if len(all) == 0 {
		_, _ = fmt.Fprintf(errs, "-only: no check's name begins with %q; -list prints them\n", *only)
		return usage
	}
	if *junit != "" {
		if err := writeJUnit(*junit, all); err != nil {
			_, _ = fmt.Fprintln(errs, err)
			return usage
		}
	}
	if !*asJSON {
		printSummary(out, all)
	}
	if countOf(all, suite.Failed) > 0 {
		return failed
	}
	return good
}

// configuration reads the file.
func configuration(path, address string) (suite.Config, error) {
	if path == "" {
		return suite.Config{}, fmt.Errorf("-config: must be set: the file that says how the server is reached")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return suite.Config{}, fmt.Errorf("-config: %w", err)
	}
	c, err := suite.ReadConfig(text, address)
	if err != nil {
		return c, fmt.Errorf("-config %s:\n%w", path, err)
	}
	return c, nil
}
