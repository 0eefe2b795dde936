package suite

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// answerWithin bounds each request.
const answerWithin = 30 * time.Second

// session is one check's view of the server. Each has an operation and a key of its own.
type session struct {
	ctx    context.Context
	config *Config
	key    string
	id     string // replaces {{unique}}
}

// newSession makes a session.
func newSession(ctx context.Context, c *Config) *session {
	return &session{ctx: ctx, config: c, key: strings.ToLower(rand.Text()), id: strings.ToLower(rand.Text())}
}

// answer is what the server answered.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) ok() bool { return a.status >= 200 && a.status < 300 }

func (a answer) refused() bool { return a.status >= 400 && a.status < 500 }

func (a answer) String() string {
	return fmt.Sprintf("%d %.200q", a.status, a.body)
}

// body is the text of the session's request.
func (s *session) body() string { return s.bodyOf(nil) }

// values returns the request's members, some of them replaced.
func (s *session) values(replace map[string]string) map[string]string {
	all := maps.Clone(s.config.Members)
	maps.Copy(all, replace)
	for name, value := range all {
		all[name] = strings.ReplaceAll(value, unique, s.id)
	}
	return all
}

// bodyOf writes the request with some members replaced, in the order of their names.
func (s *session) bodyOf(replace map[string]string) string {
	all := s.values(replace)
	return writeObject(all, slices.Sorted(maps.Keys(all)), "")
}

// writeObject writes members in an order, with white space between all parts.
func writeObject(members map[string]string, order []string, space string) string {
	var parts []string
	for _, name := range order {
		parts = append(parts, fmt.Sprintf("%s%q%s:%s%s", space, name, space, space, members[name]))
	}
	return "{" + strings.Join(parts, ",") + space + "}"
}

// call is a request that a check sends.
type call struct {
	path    string            // the configuration's if empty
	keys    []string          // the lines of the key's header; the session's key if nil
	noKey   bool              // no such header
	name    string            // of the key's header, as it is written; the configuration's if empty
	body    string            // the session's if empty
	headers map[string]string // the configuration's if nil
	media   string            // Content-Type; application/json if empty
}

// post sends the session's request, or another one under its key.
func (s *session) post(bodies ...string) (answer, error) {
	one := call{}
	if len(bodies) > 0 {
		one.body = bodies[0]
	}
	return s.send(one)
}

// request makes the request of a call.
func (s *session) request(c call) (*http.Request, error) {
	path := c.path
	if path == "" {
		path = s.config.Path
	}
	body := c.body
	if body == "" {
		body = s.body()
	}
	req, err := http.NewRequestWithContext(s.ctx, s.config.Method, s.config.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	headers := c.headers
	if headers == nil {
		headers = s.config.Headers
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	media := c.media
	if media == "" {
		media = "application/json"
	}
	req.Header.Set("Content-Type", media)
	if c.noKey {
		return req, nil
	}
	keys := c.keys
	if keys == nil {
		keys = []string{s.key}
	}
	name := c.name
	if name == "" {
		name = s.config.KeyHeader
	}
	req.Header[name] = keys
	return req, nil
}

// send sends a call on a connection of its own, and reads the whole answer.
func (s *session) send(c call) (answer, error) {
	req, err := s.request(c)
	if err != nil {
		return answer{}, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{
		Transport: transport,
		Timeout:   answerWithin,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}).Do(req)
	if err != nil {
		return answer{}, fmt.Errorf("no answer: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, fmt.Errorf("the answer breaks off: %w", err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}, nil
}

// hangUp sends the session's request up to a part of its bytes, reads up to so many bytes of the
// answer, and closes the connection. sent is from 0 to 1; 1 is all.
func (s *session) hangUp(sent float64, read int) error {
	req, err := s.request(call{})
	if err != nil {
		return err
	}
	req.Close = true
	var text bytes.Buffer
	if err := req.Write(&text); err != nil {
		return err
	}
	to, err := url.Parse(s.config.URL)
	if err != nil {
		return err
	}
	host := to.Host
	if to.Port() == "" {
		host = net.JoinHostPort(host, "80")
	}
	conn, err := (&net.Dialer{}).DialContext(s.ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	n := int(sent * float64(text.Len()))
	if _, err := conn.Write(text.Bytes()[:n]); err != nil {
		return err
	}
	if read > 0 {
		_, err = io.CopyN(io.Discard, bufio.NewReaderSize(conn, 16), int64(read))
	}
	return err
}

// count returns how many effects the server has.
func (s *session) count() (int, error) {
	var text string
	if s.config.CountURL != "" {
		req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.config.CountURL, nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		if err != nil {
			return 0, err
		}
		text = string(body)
	} else {
		out, err := exec.CommandContext(s.ctx, s.config.CountCommand[0], s.config.CountCommand[1:]...).Output()
		if err != nil {
			return 0, fmt.Errorf("count_command: %w", err)
		}
		text = string(out)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, errors.New("the count of effects is no number")
	}
	return n, nil
}

// effects runs part of a check, and fails if the number of effects has not grown by want.
func (s *session) effects(want int, part func() error) error {
	before, err := s.count()
	if err != nil {
		return err
	}
	if err := part(); err != nil {
		return err
	}
	after, err := s.count()
	if err != nil {
		return err
	}
	if after-before != want {
		return fmt.Errorf("%d effects, want %d", after-before, want)
	}
	return nil
}
