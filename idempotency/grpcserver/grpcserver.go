// Package grpcserver makes a call of gRPC that is sent twice take effect once. Its interceptor does
// for unary methods what an idempotency.Layer does for handlers of HTTP, by idempotency.Do.
//
//	guard, err := grpcserver.New(layer, grpcserver.Config{
//		Scope: customerOf,
//		Methods: map[string]grpcserver.Method{
//			"/pay.v1.Payments/Charge": {Doer: idempotency.DoerConfig{NoCalls: true}},
//		},
//	})
//	...
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, guard.Unary()))
//	paypb.RegisterPaymentsServer(server, payments)
//	err = guard.Check(server)
//
// The client sends the key in the metadata "idempotency-key", the same at each attempt. A handler
// writes through [TxOf], in the transaction that stores its answer. Each later call with the key
// gets the same answer, or the same final error with its details, and the metadata that the handler
// has set (grpc.SetHeader, grpc.SetTrailer). They are sent with the answer, and those of a run that
// was undone are not.
//
// Only unary methods are protected. [Interceptor.Check] finds methods of the configuration that the
// server does not have or that stream: call it once all services are registered.
package grpcserver

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// The metadata of calls and answers.
const (
	// KeyMetadata carries the key.
	KeyMetadata = "idempotency-key"
	// StatusMetadata is in the header of each answer: an idempotency.ServeOutcome.
	StatusMetadata = "idempotency-status"
)

// ErrorDomain is the domain of the errdetails.ErrorInfo in the interceptor's own errors. Its reason
// is a code of the HTTP layer, for example "key-reused".
const ErrorDomain = "onlyonce"

// Config configures an [Interceptor].
type Config struct {
	// Scope returns the owner of a call, after your authentication has run. If it returns an error,
	// the call fails with codes.PermissionDenied. Required.
	Scope func(ctx context.Context) (idempotency.Scope, error)

	// Methods are the unary methods for which keys count, by their full name, for example
	// "/pay.v1.Payments/Charge". All others run as if without the interceptor. At least one is
	// required.
	Methods map[string]Method

	// Logger receives the causes of refused calls, which clients do not see, for example an
	// unreachable database. Defaults to slog.Default().
	Logger *slog.Logger
}

// Method configures one method. Its zero value is a configuration.
type Method struct {
	// Doer has the bounds and times. Scope, Codec and FingerprintJSON must be empty: the scope is
	// the full name of the method, and messages are stored as protobuf.
	Doer idempotency.DoerConfig

	// KeyOptional runs calls without a key unprotected; [TxOf] then returns ErrNoTx. Defaults to
	// false: they fail with codes.InvalidArgument.
	KeyOptional bool

	// Final are the codes of errors that will be the same at each retry. Such an error is stored,
	// and the handler's writes are undone. Errors with other codes are not stored. Defaults to
	// InvalidArgument, NotFound, AlreadyExists, FailedPrecondition and OutOfRange.
	Final []codes.Code
}

// Interceptor protects the methods of a server. It is safe for concurrent use.
type Interceptor struct {
	scope   func(ctx context.Context) (idempotency.Scope, error)
	methods map[string]*method
}

type method struct {
	Method
	name   string
	doer   *idempotency.Doer
	logger *slog.Logger
}

// fullName matches a method's name as calls have it.
var fullName = regexp.MustCompile(`^/[^/]+/[^/]+$`)

// New checks the configuration without connecting. If it is wrong, the error lists every fault and
// wraps idempotency.ErrConfig. The layer's Run purges the records.
func New(layer *idempotency.Layer, cfg Config) (*Interceptor, error) {
	l := fields.List{
		Sentinel: fields.Named("grpcserver: invalid configuration", idempotency.ErrConfig),
		Struct:   "Config",
	}
	if cfg.Scope == nil {
		l.Add("Scope", "must be set: it returns the owner of a call")
	}
	if len(cfg.Methods) == 0 {
		l.Add("Methods", "must not be empty")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	i := &Interceptor{scope: cfg.Scope, methods: make(map[string]*method)}
	for name, m := range cfg.Methods {
		field := fmt.Sprintf("Methods[%q]", name)
		if !fullName.MatchString(name) {
			l.Add(field, "must be a full name, for example /pay.v1.Payments/Charge: no call would have this "+
				"one, and all would run unprotected")
		}
		if m.Doer.Scope != "" || m.Doer.Codec != nil || m.Doer.FingerprintJSON {
			l.Add(field+".Doer", "Scope, Codec and FingerprintJSON must be empty")
		}
		if slices.Contains(m.Final, codes.OK) {
			l.Add(field+".Final", "OK is no error")
		}
		if m.Final == nil {
			m.Final = []codes.Code{
				codes.InvalidArgument,
				codes.NotFound,
				codes.AlreadyExists,
				codes.FailedPrecondition,
				codes.OutOfRange,
			}
		}
		m.Doer.Scope, m.Doer.Codec = name, codec{}
		doer, err := idempotency.NewDoer(layer, m.Doer)
		for _, fault := range fields.Split(err) {
			l.Add(field+".Doer", "%v", fault)
		}
		i.methods[name] = &method{m, name, doer, cfg.Logger}
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return i, nil
}

// Check compares the configuration with the services of a server, once all are registered. A method
// that the server does not have, or that streams, would run unprotected. The error lists each, and
// wraps idempotency.ErrConfig.
func (i *Interceptor) Check(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}) error {
	unary := map[string]bool{}
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			unary["/"+service+"/"+m.Name] = !m.IsClientStream && !m.IsServerStream
		}
	}
	l := fields.List{
		Sentinel: fields.Named("grpcserver: invalid configuration", idempotency.ErrConfig),
		Struct:   "Config",
	}
	for _, name := range slices.Sorted(maps.Keys(i.methods)) {
		protects, has := unary[name]
		switch {
		case !has:
			l.Add(fmt.Sprintf("Methods[%q]", name), "the server has no such method: its calls would run unprotected")
		case !protects:
			l.Add(fmt.Sprintf("Methods[%q]", name), "the method streams: only unary ones are protected")
		}
	}
	return l.Err()
}

type txKey struct{}

// TxOf returns the transaction for a call's effects, from a context of the handler. If the handler
// returns no error, it commits together with the stored answer; otherwise it rolls back. It is
// valid until the handler returns, and for one goroutine at a time. Outside of a protected call the
// error is idempotency.ErrNoTx.
func TxOf(ctx context.Context) (consumer.Tx, error) {
	tx, ok := ctx.Value(txKey{}).(consumer.Tx)
	if !ok {
		return nil, idempotency.ErrNoTx
	}
	return tx, nil
}

// Unary returns the interceptor. Put it after your authentication.
func (i *Interceptor) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		m := i.methods[info.FullMethod]
		if m == nil {
			return handler(ctx, req)
		}
		scope, err := i.scope(ctx)
		if err != nil {
			return nil, status.Error(codes.PermissionDenied, "the owner of the call cannot be determined")
		}
		keys := metadata.ValueFromIncomingContext(ctx, KeyMetadata)
		switch {
		case len(keys) == 0 && m.KeyOptional:
			mark(ctx, idempotency.Bypassed)
			return handler(ctx, req)
		case len(keys) == 0:
			mark(ctx, idempotency.Rejected)
			return nil, problem(codes.InvalidArgument, "key-missing", "metadata "+KeyMetadata+" is required", 0)
		case len(keys) > 1:
			mark(ctx, idempotency.Rejected)
			return nil, problem(codes.InvalidArgument, "key-invalid", "metadata "+KeyMetadata+" occurs twice", 0)
		}
		return m.call(ctx, scope, keys[0], req, handler)
	}
}

// call runs the handler, or returns what an earlier call has stored.
func (m *method) call(
	ctx context.Context,
	scope idempotency.Scope,
	key string,
	req any,
	handler grpc.UnaryHandler,
) (any, error) {
	var last answerMetadata // of the latest run: if one was committed, of that one
	stored, how, err := idempotency.Do(
		ctx,
		m.doer,
		scope,
		key,
		req,
		func(ctx context.Context, tx consumer.Tx) (*storedAnswer, error) {
			run := &runMetadata{method: m.name}
			ctx = grpc.NewContextWithServerTransportStream(ctx, run)
			answer, err := handler(context.WithValue(ctx, txKey{}, tx), req)
			last = run.taken()
			if err != nil {
				return nil, m.storable(err, last)
			}
			message, ok := answer.(proto.Message)
			if !ok {
				return nil, fmt.Errorf("grpcserver: the handler returned %T, which is no protobuf message", answer)
			}
			packed, err := anypb.New(message)
			return &storedAnswer{packed, last}, err
		},
	)
	mark(ctx, how)
	if how == idempotency.Created || how == idempotency.Released {
		last.send(ctx)
	}
	var permanent *idempotency.PermanentError
	var refused *idempotency.RefusedError
	switch {
	case errors.As(err, &permanent):
		again, err := restored(permanent)
		if how == idempotency.Replayed {
			again.send(ctx)
		}
		return nil, err
	case errors.As(err, &refused):
		if refused.Err != nil {
			m.logger.ErrorContext(ctx, "onlyonce: call refused",
				"method", m.name, "code", refused.Code, "error", refused.Err)
		}
		return nil, refusal(ctx, refused)
	case errors.Is(err, idempotency.ErrConfig): // of the key: all else was checked by New
		return nil, problem(codes.InvalidArgument, "key-invalid",
			"metadata "+KeyMetadata+" must be 1 to 255 printable ASCII characters", 0)
	case err != nil:
		return nil, err
	}
	answer, err := stored.message.UnmarshalNew()
	if err != nil {
		return nil, problem(codes.Internal, "record-unreadable", "the stored answer cannot be read", 0)
	}
	if how == idempotency.Replayed {
		stored.metadata.send(ctx)
	}
	return answer, nil
}

// storedAnswer is what Do stores of an answer that is no error.
type storedAnswer struct {
	message  *anypb.Any
	metadata answerMetadata
}

// finalStatus is the code of a stored error, whose detail is the whole status with the metadata.
const finalStatus = "grpc-status"

// storable returns a handler's error as one that is stored, if its code is final.
func (m *method) storable(err error, with answerMetadata) error {
	s, ok := status.FromError(err)
	if !ok || !slices.Contains(m.Final, s.Code()) {
		return err
	}
	encoded, marshalErr := proto.Marshal(s.Proto())
	if marshalErr != nil {
		return errors.Join(err, marshalErr)
	}
	return &idempotency.PermanentError{
		Code:   finalStatus,
		Detail: base64.StdEncoding.EncodeToString(encodeStored(encoded, with)),
	}
}

// restored returns the status of a stored error, and its metadata.
func restored(e *idempotency.PermanentError) (answerMetadata, error) {
	if e.Code != finalStatus { // of a handler that returned a PermanentError itself
		return answerMetadata{}, problem(codes.FailedPrecondition, e.Code, e.Detail, 0)
	}
	var s spb.Status
	var with answerMetadata
	raw, err := base64.StdEncoding.DecodeString(e.Detail)
	if err == nil {
		raw, with, err = decodeStored(raw)
	}
	if err == nil {
		err = proto.Unmarshal(raw, &s)
	}
	if err != nil {
		return answerMetadata{}, problem(codes.Internal, "record-unreadable", "the stored error cannot be read", 0)
	}
	return with, status.ErrorProto(&s)
}

// refusalCodes are the codes of calls that have neither an answer nor an error of the handler.
var refusalCodes = map[string]codes.Code{
	"key-reused":              codes.InvalidArgument,
	"request-in-progress":     codes.Aborted,
	"key-contended":           codes.Aborted,
	"over-capacity":           codes.ResourceExhausted,
	"store-unavailable":       codes.Unavailable,
	"fingerprint-key-changed": codes.Unavailable,
	"commit-unknown":          codes.Unavailable,
	"rolled-back":             codes.Aborted,
	"response-too-large":      codes.Internal,
	"response-not-replayable": codes.DataLoss,
	"record-unreadable":       codes.Internal,
}

// refusal returns the status for a refused call. It quotes no cause, which may name tables.
func refusal(ctx context.Context, e *idempotency.RefusedError) error {
	if err := ctx.Err(); err != nil && errors.Is(e, err) {
		return status.FromContextError(err).Err()
	}
	c, ok := refusalCodes[e.Code]
	if !ok {
		c = codes.Internal
	}
	return problem(c, e.Code, (&idempotency.RefusedError{Code: e.Code}).Error(), e.RetryAfter)
}

// problem is a status of the interceptor's own.
func problem(c codes.Code, reason, text string, retryAfter time.Duration) error {
	s := status.New(c, text)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: ErrorDomain}}
	if retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	if with, err := s.WithDetails(details...); err == nil {
		s = with
	}
	return s.Err()
}

// mark says in the answer's header what was done.
func mark(ctx context.Context, how idempotency.ServeOutcome) {
	// fails if the header was sent, by a handler that streams none
	_ = grpc.SetHeader(ctx, metadata.Pairs(StatusMetadata, string(how)))
}

// codec stores messages as protobuf. Equal messages have equal bytes within one version of the
// library and of the message; a retry across a deploy that changes either may be refused as another
// request.
type codec struct{}

func (codec) Marshal(v any) ([]byte, error) {
	deterministic := proto.MarshalOptions{Deterministic: true}
	switch v := v.(type) {
	case *storedAnswer:
		message, err := deterministic.Marshal(v.message)
		return encodeStored(message, v.metadata), err
	case proto.Message: // a request
		return deterministic.Marshal(v)
	}
	return nil, fmt.Errorf("grpcserver: %T is no protobuf message", v)
}

func (codec) Unmarshal(data []byte, v any) error {
	into, ok := v.(**storedAnswer)
	if !ok {
		return fmt.Errorf("grpcserver: cannot decode into %T", v)
	}
	message, with, err := decodeStored(data)
	if err != nil {
		return err
	}
	*into = &storedAnswer{&anypb.Any{}, with}
	if err := proto.Unmarshal(message, (*into).message); err != nil {
		return err
	}
	_, err = (*into).message.UnmarshalNew() // the type must be known, or no later call could get the answer
	return err
}
