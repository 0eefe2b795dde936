package program

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

// S4: the password of a database is read anew for each connection.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	address := "postgres://u@127.0.0.1:1/x?password_file=" + file
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	renew, err := renewer(address, cfg)
	if err != nil || cfg.RuntimeParams["password_file"] != "" {
		t.Fatal(err, cfg.RuntimeParams)
	}
	for _, word := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(word+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := renew(context.Background(), cfg); err != nil || cfg.Password != word {
			t.Errorf("password %q, want %q (%v)", cfg.Password, word, err)
		}
	}
}
