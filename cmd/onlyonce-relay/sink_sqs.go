package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/outbox/sqssink"
)

// sqsSink is a sink of type "sqs".
type sqsSink struct {
	common
	settings.TLS
	Queues          []string         `json:"queues"`
	Region          string           `json:"region"`
	Endpoint        string           `json:"endpoint"`
	AccessKeyID     *settings.Secret `json:"access_key_id"`
	SecretAccessKey *settings.Secret `json:"secret_access_key"`
	SessionToken    *settings.Secret `json:"session_token"`
}

// sqsConnection is a sink whose connections end with the process.
type sqsConnection struct{ *sqssink.Sink }

// Close does nothing: idle connections hold nothing.
func (sqsConnection) Close() {}

func (s *sqsSink) make(f *settings.File, path string, _ *slog.Logger) (closer, error) {
	if s.Region == "" {
		f.Fault(path+"region", "must not be empty, as eu-central-1")
	}
	if (s.AccessKeyID == nil) != (s.SecretAccessKey == nil) || s.SessionToken != nil && s.AccessKeyID == nil {
		f.Fault(path+"access_key_id",
			"needs secret_access_key, and secret_access_key and session_token need access_key_id")
	}
	// The SDK's own client: it also takes the authorities of AWS_CA_BUNDLE.
	client := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = 100
		if s.TLS.Given() {
			t.TLSClientConfig = s.TLS.Config()
		}
	})
	options := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithRegion(s.Region),
		awsconfig.WithHTTPClient(client),
	}
	loaded, err := awsconfig.LoadDefaultConfig(context.Background(), options...)
	if err != nil {
		return nil, err
	}
	queues := sqs.NewFromConfig(loaded, func(o *sqs.Options) {
		if s.AccessKeyID != nil { // without a cache: the secrets are read anew for each request
			o.Credentials = aws.CredentialsProviderFunc(s.credentials)
		}
		if s.Endpoint != "" {
			o.BaseEndpoint = &s.Endpoint
		}
	})
	sink, err := sqssink.New(queues, sqssink.Config{
		Name:      s.Name,
		Queues:    s.Queues,
		KeyWindow: s.window(),
		Timeout:   s.timeout(),
	})
	if err != nil {
		return nil, err
	}
	return sqsConnection{sink}, nil
}

// credentials reads the keys. Without them in the file the SDK finds its own, for example those of
// the pod's service account, and renews them.
func (s *sqsSink) credentials(ctx context.Context) (c aws.Credentials, err error) {
	c.Source = "the relay's configuration"
	var faults [3]error
	c.AccessKeyID, faults[0] = s.AccessKeyID.Read(ctx)
	c.SecretAccessKey, faults[1] = s.SecretAccessKey.Read(ctx)
	if s.SessionToken != nil {
		c.SessionToken, faults[2] = s.SessionToken.Read(ctx)
	}
	return c, errors.Join(faults[:]...)
}
