// Package sites finds where an operator can change the product a little.
package sites

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// Site is one small change of the product: what an operator makes of a piece of its source.
type Site struct {
	File     string // from the root
	From, To int    // bytes of the file that are replaced
	New      string
	Operator string
	Decl     string // where it stands, for example (*engine).run or function onlyonce.fence
	Line     int
	Old      string
	SQL      bool
	Moot     bool // only a line that is logged depends on it, or only a microsecond: it is not drawn
	nth      int  // of those that have all else in common
}

// ID names the site as long as its declaration keeps that piece of source, wherever it stands.
func (s Site) ID() string {
	change := sha256.Sum256([]byte(s.Old + "\x00" + s.New))
	id := fmt.Sprintf("%s %s %s %s",
		filepath.Dir(s.File),
		strings.ReplaceAll(s.Decl, " ", "_"),
		strings.ReplaceAll(s.Operator, " ", "-"),
		hex.EncodeToString(change[:4]))
	if s.nth > 0 {
		id += fmt.Sprint("#", s.nth+1)
	}
	return id
}

func (s Site) String() string {
	return fmt.Sprintf("%s:%d %s in %s: %s -> %s", s.File, s.Line, s.Operator, s.Decl, brief(s.Old), brief(s.New))
}

// brief is a text on one line, shortened.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 90 {
		text = text[:60] + " ... " + text[len(text)-25:]
	}
	return "`" + text + "`"
}

// Mutated is the text of the file with the change.
func (s Site) Mutated(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, s.File))
	if err != nil {
		return "", err
	}
	return string(text[:s.From]) + s.New + string(text[s.To:]), nil
}

// engines are the packages that hold what is promised.
var engines = []string{
	"consumer", "dedupe", "idempotency", "idempotency/client", "outbox", "outbox/httpsink", "queue", "seal", "sqltx", "webhook",
}

// Schema is the directory of the schema.
const Schema = "migrations/0001"

// Scope is where changes are drawn: the engines, the packages of ours that they share, and the
// schema. A package that an engine begins to import is in it without being named.
func Scope(list *source.Listing) ([]string, error) {
	all, err := list.Closure(engines...)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(dir string) bool {
		return dir == "internal/fault" // tests set what it does
	})
	return append(all, Schema), nil
}

// All returns all sites of directories, in a fixed order.
func All(root string, list *source.Listing, dirs []string) (all []Site, err error) {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
			return nil, err
		}
		inGo, err := goSites(root, list, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		inSQL, err := chapterSites(root, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		all = append(all, inGo...)
		all = append(all, inSQL...)
	}
	slices.SortFunc(all, func(a, b Site) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.From, b.From),
			cmp.Compare(a.To, b.To),
			cmp.Compare(a.Operator, b.Operator),
			cmp.Compare(a.New, b.New),
		)
	})
	seen := map[string]int{}
	for i := range all {
		id := all[i].ID()
		all[i].nth = seen[id]
		seen[id]++
	}
	return all, nil
}

// Draw shuffles the sites by a seed and returns those of part k of n: every n-th one, but for those
// that are moot. So parts have none in common, whatever their length.
func Draw(all []Site, seed uint64, k, n int) (part []Site) {
	shuffled := slices.Clone(all)
	rand.New(rand.NewPCG(seed, seed)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for i := k - 1; i < len(shuffled); i += n {
		if !shuffled[i].Moot {
			part = append(part, shuffled[i])
		}
	}
	return part
}
