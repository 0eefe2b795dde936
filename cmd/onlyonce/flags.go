package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// textVar declares a flag whose text, if it is given, must not be empty. Nil: not given.
func textVar(fs *flag.FlagSet, p **string, name, usage string) {
	fs.Func(name, usage, func(s string) error {
		switch {
		case strings.TrimSpace(s) == "":
			return errors.New("must not be empty")
		case !utf8.ValidString(s):
			return errors.New("must be valid UTF-8")
		}
		*p = &s
		return nil
	})
}

// numberVar declares a flag that takes a whole number in a range. Nil: not given.
func numberVar(fs *flag.FlagSet, p **int64, name, usage string, least, most int64) {
	fs.Func(name, usage, func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		*p = &n
		return nil
	})
}

// jsonVar declares -json.
func jsonVar(fs *flag.FlagSet) *bool {
	return fs.Bool("json", false, "write JSON")
}
