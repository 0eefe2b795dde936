package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// S4: the mechanism reads its token anew for each connection, and writes it as RFC 7628 says.
func TestBearer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := File{Env: os.Getenv}
	var way Kafka
	f.Decode(
		fmt.Appendf(nil, `{"sasl": "oauthbearer", "token": {"file": %q}, "token_extensions": {"logicalCluster": "lkc-1"}}`, file),
		"",
		&way,
	)
	m := way.Mechanism()
	if f.Err() != nil || m.Name() != "OAUTHBEARER" {
		t.Fatal(f.Err())
	}
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		state, first, err := m.Start(t.Context())
		if want := "n,,\x01auth=Bearer " + token + "\x01logicalCluster=lkc-1\x01\x01"; err != nil || string(first) != want {
			t.Fatalf("%q, %v; want %q", first, err, want)
		}
		if done, _, err := state.Next(t.Context(), nil); !done || err != nil {
			t.Errorf("accepted: %v, %v", done, err)
		}
		if done, _, err := state.Next(t.Context(), []byte(`{"status":"invalid_token"}`)); done ||
			err == nil ||
			!strings.Contains(err.Error(), "invalid_token") {
			t.Errorf("refused: %v, %v", done, err)
		}
	}
}
