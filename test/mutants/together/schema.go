package together

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
)

// schemaVariable names the directory of the migrations that a process applies instead of its own.
const schemaVariable = "ONLYONCE_CHANGED_SCHEMA"

const (
	migrations = "migrations"
	embedded   = "var FS embed.FS"
)

// schemaText is what the package of the migrations gets, to read a directory instead.
const schemaText = `package migrations

import (
	"embed"
	"io/fs"
	"os"
)

// FS holds the migrations, or those of the directory that is to be read instead.
var FS = changedFS{embedded}

type changedFS struct{ embed.FS }

func (c changedFS) Open(name string) (fs.File, error) {
	if dir := os.Getenv("` + schemaVariable + `"); dir != "" {
		return os.DirFS(dir).Open(name)
	}
	return c.FS.Open(name)
}

func (c changedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if dir := os.Getenv("` + schemaVariable + `"); dir != "" {
		return fs.ReadDir(os.DirFS(dir), name)
	}
	return c.FS.ReadDir(name)
}

func (c changedFS) ReadFile(name string) ([]byte, error) {
	if dir := os.Getenv("` + schemaVariable + `"); dir != "" {
		return fs.ReadFile(os.DirFS(dir), name)
	}
	return c.FS.ReadFile(name)
}
`

// addSchema makes the migrations those of a directory, if a process is given one.
func (s *Set) addSchema() error {
	if len(s.chapter) == 0 {
		return nil
	}
	file := filepath.Join(migrations, "migrations.go")
	text, err := os.ReadFile(filepath.Join(s.root, file))
	if err != nil {
		return err
	}
	if strings.Count(string(text), embedded) != 1 {
		return fmt.Errorf("%s: %q does not stand there once", file, embedded)
	}
	s.texts[file] = strings.Replace(string(text), embedded, "var embedded embed.FS", 1)
	s.texts[filepath.Join(migrations, "zz_changed.go")] = schemaText
	return nil
}

// writeSchema writes the migrations with the site's change into a directory.
func (s *Set) writeSchema(site sites.Site, number int) (dir string, err error) {
	dir = filepath.Join(s.dir, fmt.Sprintf("schema%d", number))
	names, err := filepath.Glob(filepath.Join(s.root, migrations, "[0-9]*", "*.sql"))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		rel, err := filepath.Rel(filepath.Join(s.root, migrations), name)
		if err != nil {
			return "", err
		}
		if filepath.Join(migrations, rel) == site.File {
			changed, err := site.Mutated(s.root)
			if err != nil {
				return "", err
			}
			text = []byte(changed)
		}
		// Tests that start a server run as another user.
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(rel)), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, rel), text, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}
