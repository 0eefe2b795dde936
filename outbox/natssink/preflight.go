package natssink

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// monitorTimeout bounds the question to one server.
const monitorTimeout = 5 * time.Second

// told is the part of a server's monitoring about JetStream (/jsz).
type told struct {
	Disabled bool `json:"disabled"`
	Config   struct {
		SyncInterval time.Duration `json:"sync_interval"`
		SyncAlways   bool          `json:"sync_always"`
	} `json:"config"`
	Accounts []struct {
		Streams []struct {
			Name   string `json:"name"`
			Config struct {
				Subjects []string `json:"subjects"`
				Storage  string   `json:"storage"`
			} `json:"config"`
		} `json:"stream_detail"`
	} `json:"account_details"`
}

// Preflight asks each of Config.Monitors whether a message is on disk when it is acknowledged. The
// protocol of NATS itself does not tell that.
func (s *Sink) Preflight(ctx context.Context) (warnings []string) {
	for _, monitor := range s.cfg.Monitors {
		t, err := ask(ctx, monitor)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("%s does not tell whether it syncs: %v", monitor, err))
			continue
		}
		warnings = append(warnings, s.judge(monitor, t)...)
	}
	return warnings
}

// judge returns what is wrong with a server.
func (s *Sink) judge(monitor string, t *told) (warnings []string) {
	if !t.Disabled && !t.Config.SyncAlways {
		warnings = append(warnings, fmt.Sprintf("%s acknowledges messages up to %v before they are on disk: "+
			"calls that were delivered are lost if a majority of the servers loses power: "+
			"set sync_interval: always in its jetstream block", monitor, t.Config.SyncInterval))
	}
	for _, account := range t.Accounts {
		for _, stream := range account.Streams {
			ours := slices.ContainsFunc(stream.Config.Subjects, func(subject string) bool {
				return slices.ContainsFunc(s.cfg.Subjects, func(of string) bool { return overlap(subject, of) })
			})
			if ours && stream.Config.Storage == "memory" {
				warnings = append(warnings, fmt.Sprintf("stream %s at %s is in memory: "+
					"calls that were delivered are lost with its servers", stream.Name, monitor))
			}
		}
	}
	return warnings
}

// overlap reports whether a subject can match both patterns.
func overlap(a, b string) bool {
	one := strings.Split(a, ".")
	two := strings.Split(b, ".")
	for i := range min(len(one), len(two)) {
		if one[i] == ">" || two[i] == ">" {
			return true
		}
		if one[i] != two[i] && one[i] != "*" && two[i] != "*" {
			return false
		}
	}
	return len(one) == len(two)
}

// ask asks a server.
func ask(ctx context.Context, monitor string) (*told, error) {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+
		"/jsz?accounts=true&streams=true&config=true", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	t := &told{}
	return t, json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(t)
}
