// Package results remembers how the parts of a long run ended, so that they can be run on different
// days. It keeps a file for each kind of check in the user's cache directory.
package results

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Store is a file with a JSON object on each line: results, the newest last. Several processes may
// use it at once. It can be deleted at any time.
type Store struct {
	file   string
	commit string // what Add records
}

// Result is how a check ended.
type Result struct {
	Check   string // names the check, and the form in which it was played
	Verdict string
	Commit  string // see [Commit]
	Date    string
}

// Open returns the store of a kind of check, for the code in the working directory.
func Open(kind string) (*Store, error) {
	commit, err := Commit(context.Background())
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "onlyonce")
	return &Store{filepath.Join(dir, kind+".jsonl"), commit}, os.MkdirAll(dir, 0o755)
}

// Read returns the newest result of each check.
func (s *Store) Read() (map[string]Result, error) {
	text, err := os.ReadFile(s.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	newest := map[string]Result{}
	for lines := json.NewDecoder(bytes.NewReader(text)); ; {
		var r Result
		if err := lines.Decode(&r); errors.Is(err, io.EOF) {
			return newest, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w; delete it to begin anew", s.file, err)
		}
		newest[r.Check] = r
	}
}

// Add records a result.
func (s *Store) Add(check, verdict string) error {
	line, err := json.Marshal(Result{check, verdict, s.commit, time.Now().UTC().Format(time.DateOnly)})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write, because another process may add a line meanwhile
	return errors.Join(err, f.Close())
}

// Current reports whether a result is of the code as it is now. A tree with changes is no commit.
func (s *Store) Current(r Result) bool {
	return r.Commit == s.commit && !strings.HasSuffix(s.commit, "+")
}

// Part is part K of N, counted from 1.
type Part struct{ K, N int }

// ParsePart reads "k/n".
func ParsePart(s string) (p Part, err error) {
	k, n, ok := strings.Cut(s, "/")
	if ok {
		p.K, err = strconv.Atoi(k)
		if err == nil {
			p.N, err = strconv.Atoi(n)
		}
	}
	inside := p.K >= 1 && p.K <= p.N
	if !ok || err != nil || !inside {
		return Part{}, fmt.Errorf("part %q: must be k/n with 1 <= k <= n, for example 3/20", s)
	}
	return p, nil
}

func (p Part) String() string { return fmt.Sprintf("%d/%d", p.K, p.N) }

// Range returns the bounds of the part of a list of length items. All parts together are the whole
// list.
func (p Part) Range(length int) (from, to int) { return length * (p.K - 1) / p.N, length * p.K / p.N }

// Commit returns the last commit that changed anything but docs/results, with "+" added if the tree
// has further changes. So a commit of results does not make them old.
func Commit(ctx context.Context) (string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append(args, "--", ".", ":!docs/results")...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	commit, err := git("log", "-1", "--format=%h", "--abbrev=9")
	if err != nil {
		return "", err
	}
	changes, err := git("status", "--porcelain")
	if err != nil {
		return "", err
	}
	if changes != "" {
		commit += "+"
	}
	return commit, nil
}
