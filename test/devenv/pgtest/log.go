package pgtest

import (
	"log/slog"
	"strings"
	"sync"
)

// Logged returns a logger, and a function that returns what was logged so far, as lines of text.
func Logged() (logger *slog.Logger, text func() string) {
	l := &logged{}
	return slog.New(slog.NewTextHandler(l, nil)), l.text
}

type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
