package rolling

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/onlyonce/onlyonce/migrations"
)

//go:embed testdata/1_made_up.sql
var madeUp []byte

// Build builds a program of this repository into a directory: of this version, or of the made-up
// next one, which has one more migration. It returns the program's path.
func Build(ctx context.Context, pkg, dir string, next bool) (program string, err error) {
	overlay := ""
	if next {
		if overlay, err = writeOverlay(ctx, dir); err != nil {
			return "", err
		}
	}
	program = filepath.Join(dir, fmt.Sprintf("%s-next-%t", filepath.Base(pkg), next))
	_, err = goCommand(ctx, "build", "-overlay", overlay, "-o", program, pkg)
	return program, err
}

func goCommand(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// writeOverlay writes the overlay for go build that makes the next version of this code, and
// returns its file: one more migration, and the number of it.
func writeOverlay(ctx context.Context, dir string) (file string, err error) {
	root, err := goCommand(ctx, "list", "-m", "-f", "{{.Dir}}", "github.com/onlyonce/onlyonce")
	if err != nil {
		return "", err
	}
	code, err := os.ReadFile(filepath.Join(root, "migrations/migrations.go"))
	if err != nil {
		return "", err
	}
	latest := "const Latest = %d\n"
	now := fmt.Sprintf(latest, migrations.Latest)
	then := fmt.Sprintf(latest, migrations.Latest+1)
	if strings.Count(string(code), now) != 1 {
		return "", fmt.Errorf("migrations.go does not say %q once", now)
	}
	chapters := filepath.Join(root, "migrations", fmt.Sprintf("%04d", migrations.Latest+1))
	replace := map[string]string{}
	for _, f := range []struct{ replaced, name, content string }{
		{filepath.Join(root, "migrations/migrations.go"), "migrations.go", strings.Replace(string(code), now, then, 1)},
		{filepath.Join(chapters, "1_made_up.sql"), "made_up.sql", string(madeUp)},
		{
			filepath.Join(chapters, "2_version.sql"),
			"version.sql",
			fmt.Sprintf("insert into onlyonce.schema_version (version) values (%d);\n", migrations.Latest+1),
		},
	} {
		replace[f.replaced] = filepath.Join(dir, f.name)
		if err := os.WriteFile(replace[f.replaced], []byte(f.content), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}
