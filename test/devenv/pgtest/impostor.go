package pgtest

import (
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Impostor starts a server that speaks PostgreSQL's protocol and returns its address. It answers
// the query of its version with version, and with dsql whether it has the view by which Aurora DSQL
// is known. Transactions begin and end; any other statement fails with 0A000. It is a fake: it says
// what such a server reports, and nothing of how it behaves.
func Impostor(t testing.TB, version string, dsql bool) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go (&impostor{Backend: pgproto3.NewBackend(c, c), version: version, dsql: dsql}).serve(c)
		}
	}()
	return "postgres://postgres@" + l.Addr().String() + "/postgres?sslmode=disable"
}

type impostor struct {
	*pgproto3.Backend
	version string
	dsql    bool
	sql     string // of the last Parse or Query
	failed  bool   // until Sync
	binary  bool   // how results are asked for
}

func (s *impostor) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	if _, err := s.ReceiveStartupMessage(); err != nil {
		return
	}
	s.Send(&pgproto3.AuthenticationOk{})
	s.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	s.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	s.ready()
	for {
		m, err := s.Receive()
		if err != nil {
			return
		}
		s.answer(m)
		if s.Flush() != nil {
			return
		}
	}
}

func (s *impostor) ready() {
	s.failed = false
	s.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	_ = s.Flush() // the next Receive reports a lost connection
}

func (s *impostor) answer(m pgproto3.FrontendMessage) {
	if _, is := m.(*pgproto3.Sync); s.failed && !is {
		return
	}
	switch m := m.(type) {
	case *pgproto3.Query:
		s.sql = m.String
		s.execute()
		s.ready()
	case *pgproto3.Parse:
		s.sql = m.Query
		s.Send(&pgproto3.ParseComplete{})
	case *pgproto3.Bind:
		s.binary = len(m.ResultFormatCodes) > 0 && m.ResultFormatCodes[len(m.ResultFormatCodes)-1] == pgproto3.BinaryFormat
		s.Send(&pgproto3.BindComplete{})
	case *pgproto3.Describe:
		if m.ObjectType == 'S' {
			s.Send(&pgproto3.ParameterDescription{})
		}
		s.describe()
	case *pgproto3.Execute:
		s.execute()
	case *pgproto3.Sync:
		s.ready()
	}
}

func (s *impostor) asksKind() bool { return strings.Contains(s.sql, "version()") }

func (s *impostor) describe() {
	if !s.asksKind() {
		s.Send(&pgproto3.NoData{})
		return
	}
	format := int16(pgproto3.TextFormat)
	if s.binary {
		format = pgproto3.BinaryFormat
	}
	s.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
		{Name: []byte("version"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1},
		{Name: []byte("dsql"), DataTypeOID: 16, DataTypeSize: 1, TypeModifier: -1, Format: format}}})
}

func (s *impostor) execute() {
	word, _, _ := strings.Cut(strings.TrimSpace(s.sql), " ")
	switch {
	case s.asksKind():
		no := "f"
		yes := "t"
		if s.binary {
			no = "\x00"
			yes = "\x01"
		}
		if !s.dsql {
			yes = no
		}
		s.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(s.version), []byte(yes)}})
		s.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	case word == "begin" || word == "rollback" || word == "commit":
		s.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(word))})
	default:
		s.failed = true
		s.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "0A000", Message: "not supported here: " + word})
	}
}
