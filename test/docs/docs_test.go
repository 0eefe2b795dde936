package docs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const root = "../.."

// pages are README.md and the pages of the guide, by their paths from the root.
func pages(t *testing.T) []string {
	t.Helper()
	guide, err := filepath.Glob(root + "/docs/guide/*.md")
	if err != nil || len(guide) < 10 {
		t.Fatalf("%d pages in the guide: %v", len(guide), err)
	}
	all := []string{"README.md", "docs/performance.md"}
	for _, g := range guide {
		all = append(all, "docs/guide/"+filepath.Base(g))
	}
	return all
}

// block is a fenced block of a page.
type block struct {
	line int    // of its fence
	tag  string // go, sql, sh, text, mermaid
	file string // the last file that the text before it names, for example `main.go`
	code string
}

func blocks(t *testing.T, page string) (found []block) {
	t.Helper()
	f, err := os.Open(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var open *block
	name := ""
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		n++
		line := s.Text()
		switch tag, fence := strings.CutPrefix(line, "```"); {
		case open == nil && fence:
			open = &block{line: n, tag: tag, file: name}
		case open != nil && line == "```":
			found = append(found, *open)
			open = nil
		case open != nil:
			open.code += line + "\n"
		default:
			for i, word := range strings.Split(line, "`") {
				if i%2 == 1 && slices.Contains([]string{".go", ".sql"}, filepath.Ext(word)) {
					name = word
				}
			}
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: the block does not end", page, open.line)
	}
	return found
}

// only returns the page's blocks of one kind.
func only(all []block, tag string) []block {
	return slices.DeleteFunc(slices.Clone(all), func(b block) bool { return b.tag != tag })
}

// sources is the text of all files of the repository whose names end so, for example in ".go".
func sources(t *testing.T, suffix string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestGoBlocksAreCodeThatCompiles(t *testing.T) {
	t.Parallel()
	all := sources(t, ".go")
	n := 0
	for _, page := range pages(t) {
		for _, b := range only(blocks(t, page), "go") {
			n++
			if !strings.Contains(all, b.code) {
				t.Errorf("%s:%d: no file holds this block as it is", page, b.line)
			}
		}
	}
	if n < 8 {
		t.Errorf("%d blocks", n)
	}
}

func TestEveryBlockHasATag(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			if !slices.Contains([]string{"go", "sql", "sh", "text", "mermaid"}, b.tag) {
				t.Errorf("%s:%d: a block of kind %q", page, b.line, b.tag)
			}
		}
	}
}

// The SQL of a page runs in its order, in a database with the schema.
func TestSQLBlocksRun(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		found := only(blocks(t, page), "sql")
		if len(found) == 0 {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			s := session{dir: root, pool: pgtest.DB(t)}
			for _, b := range found {
				if err := s.exec(t.Context(), b.code); err != nil {
					t.Errorf("%s:%d: %v", page, b.line, err)
				}
			}
		})
	}
}

// codeBlock is a block of code, in which a type argument before an argument looks like a link.
var codeBlock = regexp.MustCompile("(?s)```.*?```")

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range tracked(t, "*.md") {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(codeBlock.ReplaceAllString(string(text), ""), "](")[1:] {
			to, _, _ := strings.Cut(part, ")")
			if strings.Contains(to, "://") {
				continue
			}
			path, anchor, _ := strings.Cut(to, "#")
			if path == "" {
				path = filepath.Base(page)
			}
			path = filepath.Join(root, filepath.Dir(page), path)
			target, err := os.ReadFile(path)
			if anchor == "" {
				_, err = os.Stat(path)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", page, to, err)
			} else if anchor != "" && !slices.Contains(anchors(string(target)), anchor) {
				t.Errorf("%s: %s: no such heading", page, to)
			}
		}
	}
}

// anchors are the names that GitHub gives to a page's headings.
func anchors(page string) (names []string) {
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		title = strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
				return r
			}
			return -1
		}, title)
		names = append(names, title)
	}
	return names
}

// session runs the lines of blocks of shell, in a directory and with servers.
type session struct {
	dir    string
	bin    string // the directory of onlyonce, or empty: go run ./cmd/onlyonce is written out
	pool   *pgxpool.Pool
	broker string
}

// environment is the environment of the commands.
func (s *session) environment() []string {
	return append(
		os.Environ(),
		"ONLYONCE_POSTGRES_URL="+s.pool.Config().ConnString(),
		"ONLYONCE_KAFKA_BROKERS="+s.broker,
		"GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod",
		"GOWORK=off",
		"PATH="+s.bin+string(os.PathListSeparator)+os.Getenv("PATH"),
	)
}

func (s *session) exec(ctx context.Context, sql string) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// run runs a line. psql is simulated, because a machine may not have it.
func (s *session) run(t *testing.T, line string) {
	t.Helper()
	args, _, _ := strings.Cut(line, " # ")
	args = strings.TrimSpace(args)
	if file, ok := strings.CutPrefix(args, `psql "$ONLYONCE_POSTGRES_URL" -f `); ok {
		text, err := os.ReadFile(filepath.Join(s.dir, file))
		if err == nil {
			err = s.exec(t.Context(), string(text))
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return
	}
	if sql, ok := strings.CutPrefix(args, `psql "$ONLYONCE_POSTGRES_URL" -c '`); ok {
		if err := s.exec(t.Context(), strings.TrimSuffix(sql, "'")); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", args)
	cmd.Dir, cmd.Env = s.dir, s.environment()
	out, err := cmd.CombinedOutput()
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 1 && strings.HasPrefix(args, "onlyonce ") {
		err = nil // the answer was no, for example that nothing matches
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// start builds a program and runs it until stop, which interrupts it: it must exit with status 0.
func (s *session) start(t *testing.T, pkg string) (stop func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg)
	build.Dir, build.Env = s.dir, s.environment()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir, cmd.Env = s.dir, s.environment()
	var out strings.Builder
	cmd.Stdout = &out
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the consumer ended with %v\n%s", err, out.String())
		}
	}
}

// holds waits until the given amount of tea is held.
func (s *session) holds(t *testing.T, want int) {
	t.Helper()
	var held int
	var err error
	pgtest.Until(t, 2*time.Minute, fmt.Sprintf("%d are held", want), func() bool {
		err = s.pool.QueryRow(t.Context(), `select held from stock where sku = 'tea'`).Scan(&held)
		return err == nil && held == want
	})
}

// lines are the commands of a page's blocks of shell.
func lines(t *testing.T, page string) (all []string) {
	t.Helper()
	for _, b := range only(blocks(t, page), "sh") {
		for line := range strings.Lines(b.code) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// elsewhere are lines that CI runs as they are, that take too long for a test (make bench), or that
// only set what a test sets itself. Those of Helm are run by nobody: there is no cluster.
var elsewhere = []string{
	"go run ./examples/quickstart",
	"make test",
	"make bench",
	"export ONLYONCE_POSTGRES_URL='postgres://postgres:onlyonce@127.0.0.1:5432/postgres?sslmode=disable'",
	"export ONLYONCE_KAFKA_BROKERS=127.0.0.1:9092",
	// make image: Compose builds what the last of these builds.
	"docker compose up -d --wait                          # PostgreSQL and Kafka, to try things out",
	"docker compose --profile relay up -d --build         # and a relay of deploy/relay.json",
	"docker build -f deploy/Dockerfile --build-arg VERSION=v0.1.0 -t registry.example/onlyonce:v0.1.0 .",
	// Tests of deploy/check lint and render the chart with Helm's library.
	"helm install onlyonce deploy/chart --set image.repository=registry.example/onlyonce -f values.yaml",
	"helm template onlyonce deploy/chart -f values.yaml   # plain manifests",
}

// README's program, in this module.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Fake(t)
	s := &session{dir: root, pool: pgtest.Empty(t), broker: brokers[0]}
	sql := only(blocks(t, "README.md"), "sql")
	if file, err := os.ReadFile(root + "/examples/minimal/stock.sql"); err != nil || len(sql) != 1 || sql[0].code != string(file) {
		t.Errorf("README.md does not show examples/minimal/stock.sql as it is (%v)", err)
	}
	for _, line := range lines(t, "README.md") {
		switch command, _, _ := strings.Cut(line, " # "); {
		case slices.Contains(elsewhere, line):
		case strings.TrimSpace(command) == "go run ./examples/minimal":
			stop := s.start(t, "./examples/minimal")
			s.holds(t, 3)
			stop()
			s.holds(t, 3)
		default:
			s.run(t, line)
		}
	}
}

// The page's commands and files, from an empty directory. Only the source of onlyonce is another:
// this checkout.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	const page = "docs/guide/getting-started.md"
	brokers := kafkatest.Fake(t)
	s := &session{dir: t.TempDir(), bin: t.TempDir(), pool: pgtest.Empty(t), broker: brokers[0]}
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, b := range blocks(t, page) {
		if b.tag == "go" || b.tag == "sql" {
			files[b.file] = b.code
		}
	}
	if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"main.go", "produce/main.go", "stock.sql"}) {
		t.Fatalf("the page has the files %q", names)
	}
	for name, text := range files {
		path := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stop := func() {}
	for _, line := range lines(t, page) {
		switch line {
		case "go get github.com/onlyonce/onlyonce@latest":
			s.run(t, "go mod edit -require=github.com/onlyonce/onlyonce@v0.0.0 -replace=github.com/onlyonce/onlyonce="+here)
			s.run(t, "cp "+here+"/go.sum .") // what this machine has
		case "go install github.com/onlyonce/onlyonce/cmd/onlyonce@latest":
			s.run(t, "cd "+here+" && go build -o "+s.bin+"/onlyonce ./cmd/onlyonce")
		case "go run .":
			stop = s.start(t, ".")
			s.holds(t, 3)
		default:
			s.run(t, line)
		}
	}
	stop()
	s.holds(t, 3)
}

// The commands of the other pages are known to the program, with these flags.
func TestCommandsOfTheGuide(t *testing.T) {
	t.Parallel()
	s := &session{dir: root, bin: t.TempDir(), pool: pgtest.DB(t)}
	s.run(t, "go build -o "+s.bin+"/onlyonce ./cmd/onlyonce")
	for _, page := range pages(t) {
		if page == "README.md" || page == "docs/guide/getting-started.md" {
			continue
		}
		for _, line := range lines(t, page) {
			switch {
			case slices.Contains(elsewhere, line):
			case line == "go install github.com/onlyonce/onlyonce/cmd/onlyoncevet@latest":
				s.run(t, "go -C cmd/onlyoncevet build -o "+s.bin+"/onlyoncevet .")
			case strings.HasPrefix(line, "go vet -vettool="):
				s.run(t, strings.Replace(line, "./...", "./examples/minimal", 1)) // cmd/onlyoncevet runs it over all examples
			case strings.HasPrefix(line, "onlyonce "):
				s.run(t, line)
			default:
				t.Errorf("%s: %q is run by no test", page, line)
			}
		}
	}
}
