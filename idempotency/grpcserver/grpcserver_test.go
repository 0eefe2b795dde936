package grpcserver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/grpcserver"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const (
	charge  = "/pay.v1.Payments/Charge"
	preview = "/pay.v1.Payments/Preview"
	lookUp  = "/pay.v1.Payments/LookUp"
)

// payments is a service without generated code: each method takes a StringValue, and returns what
// the test's function returns.
type payments struct {
	runs   atomic.Int64
	handle func(ctx context.Context, in string) (proto.Message, error)
}

func (p *payments) desc() *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: "pay.v1.Payments", HandlerType: (*any)(nil)}
	for _, name := range []string{"Charge", "Preview", "LookUp"} {
		d.Methods = append(d.Methods, grpc.MethodDesc{
			MethodName: name,
			Handler: func(_ any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
				in := &wrapperspb.StringValue{}
				if err := decode(in); err != nil {
					return nil, err
				}
				return around(
					ctx,
					in,
					&grpc.UnaryServerInfo{Server: p, FullMethod: "/pay.v1.Payments/" + name},
					func(ctx context.Context, req any) (any, error) {
						p.runs.Add(1)
						return p.handle(ctx, req.(*wrapperspb.StringValue).GetValue())
					},
				)
			},
		})
	}
	return d
}

// rig is a server with the interceptor, and a client.
type rig struct {
	t      *testing.T
	pool   *pgxpool.Pool
	svc    *payments
	guard  *grpcserver.Interceptor
	server *grpc.Server
	conn   *grpc.ClientConn
}

func newRig(t *testing.T) *rig {
	t.Helper()
	pool := pgtest.DB(t)
	return newRigOn(t, pool, pool)
}

func newRigOn(t *testing.T, layers, pool *pgxpool.Pool) *rig {
	t.Helper()
	r := &rig{t: t, pool: pool, svc: &payments{}}
	if _, err := pool.Exec(t.Context(), `create table effects (v text not null)`); err != nil {
		t.Fatal(err)
	}
	r.svc.handle = r.pay
	layer, err := idempotency.New(layers, idempotency.Config{
		Scope:           idempotency.GlobalScope(),
		FingerprintKeys: seal.Keys{ByID: map[uint32]seal.Key{0: {1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := grpcserver.New(layer, grpcserver.Config{
		Scope: func(ctx context.Context) (idempotency.Scope, error) {
			if tenants := metadata.ValueFromIncomingContext(ctx, "tenant"); len(tenants) == 1 {
				return idempotency.Scope{Tenant: tenants[0]}, nil
			}
			return idempotency.Scope{}, errors.New("who is it?")
		},
		Methods: map[string]grpcserver.Method{
			charge:  {Doer: idempotency.DoerConfig{NoCalls: true}},
			preview: {KeyOptional: true, Doer: idempotency.DoerConfig{NoCalls: true}},
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary()))
	r.guard = guard
	r.server = server
	server.RegisterService(r.svc.desc(), r.svc)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	if r.conn, err = grpc.NewClient("passthrough:///payments", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	return r
}

// pay writes an effect and returns the number of the run.
func (r *rig) pay(ctx context.Context, in string) (proto.Message, error) {
	tx, err := grpcserver.TxOf(ctx)
	if errors.Is(err, idempotency.ErrNoTx) {
		return wrapperspb.String("unprotected"), nil
	}
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `insert into effects values ($1)`, in)
	return wrapperspb.String("paid " + in), err
}

// answer is what a call returned.
type answer struct {
	text, mark      string
	header, trailer metadata.MD
	err             error
}

func (a answer) code() codes.Code { return status.Code(a.err) }

// reason is that of the interceptor's own errors.
func (a answer) reason() string {
	for _, d := range status.Convert(a.err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == grpcserver.ErrorDomain {
			return info.GetReason()
		}
	}
	return ""
}

// call makes a call; metadata comes in pairs.
func (r *rig) call(method, in string, pairs ...string) (a answer) {
	r.t.Helper()
	var out wrapperspb.StringValue
	ctx := metadata.AppendToOutgoingContext(r.t.Context(), pairs...)
	a.err = r.conn.Invoke(ctx, method, wrapperspb.String(in), &out, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	if marks := a.header.Get(grpcserver.StatusMetadata); len(marks) == 1 {
		a.mark = marks[0]
	}
	a.text = out.GetValue()
	return a
}

func (r *rig) charge(key, in string) answer {
	r.t.Helper()
	return r.call(charge, in, "tenant", "acme", grpcserver.KeyMetadata, key)
}

func (r *rig) effects() (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), `select count(*) from effects`).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestFirstAnswerIsGivenAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, mark := range []string{"created", "replayed", "replayed"} {
		if a := r.charge("k", "10 EUR"); a.err != nil || a.text != "paid 10 EUR" || a.mark != mark {
			t.Errorf("%+v, want %s", a, mark)
		}
	}
	if a := r.charge("k", "20 EUR"); a.code() != codes.InvalidArgument || a.reason() != "key-reused" || a.mark != "mismatch" {
		t.Errorf("another request: %+v", a)
	}
	if a := r.call(charge, "20 EUR", "tenant", "other", grpcserver.KeyMetadata, "k"); a.err != nil || a.mark != "created" {
		t.Errorf("another tenant: %+v", a)
	}
	if r.effects() != 2 || r.svc.runs.Load() != 2 {
		t.Errorf("%d effects, %d runs", r.effects(), r.svc.runs.Load())
	}
}

func TestKeysAndScopes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for what, c := range map[string]struct {
		a      answer
		code   codes.Code
		reason string
		mark   string
	}{
		"no key": {r.call(charge, "x", "tenant", "acme"), codes.InvalidArgument, "key-missing", "rejected"},
		"two keys": {
			r.call(charge, "x", "tenant", "acme", grpcserver.KeyMetadata, "a", grpcserver.KeyMetadata, "b"),
			codes.InvalidArgument,
			"key-invalid",
			"rejected",
		},
		"empty key":         {r.charge("", "x"), codes.InvalidArgument, "key-invalid", "rejected"},
		"no scope":          {r.call(charge, "x", grpcserver.KeyMetadata, "k"), codes.PermissionDenied, "", ""},
		"optional":          {r.call(preview, "x", "tenant", "acme"), codes.OK, "", "bypassed"},
		"optional, with it": {r.call(preview, "x", "tenant", "acme", grpcserver.KeyMetadata, "k"), codes.OK, "", "created"},
		"another method":    {r.call(lookUp, "x"), codes.OK, "", ""},
	} {
		if c.a.code() != c.code || c.a.reason() != c.reason || c.a.mark != c.mark {
			t.Errorf("%s: %+v, reason %q", what, c.a, c.a.reason())
		}
	}
	if r.effects() != 1 {
		t.Errorf("%d effects", r.effects())
	}
}

// A final error is given again with its details, and its writes are undone. Another error leaves
// nothing, and the next call runs.
func TestErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for code, final := range map[codes.Code]bool{codes.FailedPrecondition: true, codes.Unavailable: false, codes.PermissionDenied: false} {
		r.svc.handle = func(ctx context.Context, in string) (proto.Message, error) {
			if _, err := r.pay(ctx, in); err != nil {
				return nil, err
			}
			s, err := status.New(code, "declined").WithDetails(&errdetails.ErrorInfo{Reason: "card", Domain: "pay"})
			return nil, errors.Join(err, s.Err())
		}
		before := r.svc.runs.Load()
		marks := []string{"released", "released"}
		if final {
			marks = []string{"created", "replayed"}
		}
		for n, mark := range marks {
			a := r.charge(code.String(), "x")
			s := status.Convert(a.err)
			if a.code() != code || len(s.Details()) != 1 || a.mark != mark {
				t.Errorf("%s, call %d: %+v, details %v", code, n, a, s.Details())
			}
		}
		if runs := r.svc.runs.Load() - before; final != (runs == 1) || r.effects() != 0 {
			t.Errorf("%s: %d runs, %d effects", code, runs, r.effects())
		}
	}
}

// H12, H13: the metadata that a handler sets belong to its answer. They are sent with it, and again
// with each replay but for what is never stored; those of a run that was undone are not.
func TestH13Metadata(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
	}{{"answer", nil}, {"final error", status.Error(codes.NotFound, "no such account")}} {
		r := newRig(t)
		r.svc.handle = func(ctx context.Context, in string) (proto.Message, error) {
			run := fmt.Sprint(r.svc.runs.Load())
			header := metadata.Pairs("x-run",
				run,
				"x-two",
				"1",
				"x-two",
				"2",
				"x-raw-bin",
				"\xff\x00",
				"set-cookie",
				"session=1",
				grpcserver.StatusMetadata,
				"mine")
			if err := errors.Join(grpc.SendHeader(ctx, header), grpc.SetTrailer(ctx, metadata.Pairs("x-sum", run))); err != nil {
				t.Error(err)
			}
			if run == "1" {
				tx, err := grpcserver.TxOf(ctx)
				if err == nil {
					_, err = tx.Exec(ctx, `do 'begin raise exception using errcode = ''40001''; end'`)
				}
				return nil, err // runs again
			}
			if c.err != nil {
				return nil, c.err
			}
			return r.pay(ctx, in)
		}
		for _, mark := range []string{"created", "replayed"} {
			a := r.charge("k", "x")
			if a.code() != status.Code(c.err) || a.mark != mark {
				t.Fatalf("%s: %+v, want %s", c.name, a, mark)
			}
			for name, want := range map[string][]string{
				"x-run":                   {"2"},
				"x-two":                   {"1", "2"},
				"x-raw-bin":               {"\xff\x00"},
				grpcserver.StatusMetadata: {mark},
			} {
				if got := a.header.Get(name); !slices.Equal(got, want) {
					t.Errorf("%s, %s: header %s is %q, want %q", c.name, mark, name, got, want)
				}
			}
			if got := a.header.Get("set-cookie"); len(got) > 0 == (mark == "replayed") {
				t.Errorf("%s, %s: cookies %q", c.name, mark, got)
			}
			if got := a.trailer.Get("x-sum"); !slices.Equal(got, []string{"2"}) {
				t.Errorf("%s, %s: trailer %q", c.name, mark, got)
			}
		}
	}
}

// A method that the server does not have, or that streams, is a fault.
func TestCheck(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := r.guard.Check(r.server); err != nil {
		t.Error(err)
	}
	streaming := grpc.NewServer()
	desc := r.svc.desc()
	desc.Methods = slices.DeleteFunc(desc.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == "Charge" })
	desc.Streams = []grpc.StreamDesc{{StreamName: "Charge", ServerStreams: true}}
	streaming.RegisterService(desc, r.svc)
	err := r.guard.Check(streaming)
	good := errors.Is(err, idempotency.ErrConfig) &&
		strings.Contains(err.Error(), charge) &&
		strings.Contains(err.Error(), "streams") &&
		!strings.Contains(err.Error(), preview)
	if !good {
		t.Error(err)
	}
	err = r.guard.Check(grpc.NewServer())
	if !errors.Is(err, idempotency.ErrConfig) || !strings.Contains(err.Error(), charge) || !strings.Contains(err.Error(), preview) {
		t.Error(err)
	}
}

// While a call runs, another one under its key is told to come again; and a lost answer to COMMIT
// is found out.
func TestCallsAtOnceAndLostCommits(t *testing.T) {
	t.Parallel()
	base := pgtest.DB(t)
	w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
		if n == 1 {
			return pgtest.Unheard
		}
		return pgtest.Pass
	}}
	r := newRigOn(t, pgtest.Wired(t, base, pgx.QueryExecModeCacheStatement, w, nil), base)
	begun, proceed := make(chan struct{}), make(chan struct{})
	r.svc.handle = func(ctx context.Context, in string) (proto.Message, error) {
		close(begun) // a second run would panic
		<-proceed
		return r.pay(ctx, in)
	}
	first := make(chan answer, 1)
	go func() { first <- r.charge("k", "x") }()
	<-begun
	a := r.charge("k", "x")
	retry := false
	for _, d := range status.Convert(a.err).Details() {
		info, ok := d.(*errdetails.RetryInfo)
		retry = retry || ok && info.GetRetryDelay().AsDuration() > 0
	}
	good := a.code() == codes.Aborted &&
		a.reason() == "request-in-progress" &&
		a.mark == "in-progress" &&
		retry
	if !good {
		t.Errorf("%+v", a)
	}
	close(proceed)
	if a := <-first; a.err != nil || a.text != "paid x" || w.Cuts.Load() != 1 {
		t.Errorf("%+v, %d cuts", a, w.Cuts.Load())
	}
	if a := r.charge("k", "x"); a.text != "paid x" || a.mark != "replayed" || r.effects() != 1 {
		t.Errorf("%+v, %d effects", a, r.effects())
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := grpcserver.New(nil, grpcserver.Config{Methods: map[string]grpcserver.Method{charge: {
		Doer:  idempotency.DoerConfig{Scope: "s", NoCalls: true, MaxResult: -1},
		Final: []codes.Code{codes.OK},
	}}})
	if !errors.Is(err, idempotency.ErrConfig) {
		t.Fatal(err)
	}
	if _, err := grpcserver.New(nil, grpcserver.Config{}); !errors.Is(err, idempotency.ErrConfig) {
		t.Error(err)
	}
	const wrong = "must be a full name"
	for name, want := range map[string]bool{
		charge:       false,
		"":           true,
		"/":          true,
		"//":         true,
		charge[1:]:   true,
		charge + "/": true,
		"/Charge":    true,
		"Charge":     true,
	} {
		_, err := grpcserver.New(nil, grpcserver.Config{Methods: map[string]grpcserver.Method{name: {}}})
		if strings.Contains(err.Error(), wrong) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
}
