package main

// loginRules are mutants of the program's logins: rule S4.
var loginRules = []mutant{
	{
		rule: "S4 certificate is read once",
		in:   "internal/settings",
		decl: "(*TLS).Config",
		old:  `if t.Cert != "" {`,
		new:  `c, err := t.certificate(); if err == nil { cfg.Certificates = []tls.Certificate{*c} } else {`,
		pkg:  "cmd/onlyonce-relay",
		test: "TestRelayClientCertificate",
	},
	{
		rule: "S4 token is read once",
		in:   "internal/settings",
		decl: "(*Secret).Check",
		old:  "s.read = read",
		new:  "word, err := read(context.Background()); s.read = func(context.Context) (string, error) { return word, err }",
		test: "TestBearer",
	},
	{rule: "S4 refused token is taken for accepted", in: "internal/settings", decl: "bearer.Next",
		old: "len(answer) > 0", new: "false", test: "TestBearer"},
	{
		rule: "S4 database's password is read once",
		in:   "internal/program",
		decl: "renewer",
		old:  "password = settings.FromFile(file)",
		new: `word, err := settings.FromFile(file)(context.Background()); password = func(context.Context) (string, error) { return ` +
			`word, err }`,
		test: "TestPasswordFile",
	},
	{
		rule: "S4 database's certificate is lost with its configuration",
		in:   "internal/program",
		decl: "renewer",
		old:  "renewAuthorities(c.TLSConfig, now.TLSConfig)",
		new:  "c.TLSConfig = now.TLSConfig",
		pkg:  "cmd/onlyonce-relay",
		test: "TestPostgresLogin",
	},
	{rule: "S4 password_file is sent to the server", in: "internal/program", decl: "renewer",
		old: `delete(cfg.RuntimeParams, "password_file")`, new: "", test: "TestPasswordFile"},
	{rule: "S4 password of RabbitMQ is read once", in: "outbox/rabbitsink", decl: "(*link).connect",
		old: "client.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}",
		new: "if l.client.SASL == nil { l.client.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: " +
			"user, Password: password}} }; client.SASL = l.client.SASL",
		pkg: "cmd/onlyonce-relay", test: "TestRabbitMQ"},
	{
		rule: "S4 keys of SQS are kept by the SDK",
		in:   "cmd/onlyonce-relay",
		decl: "(*sqsSink).make",
		old:  "aws.CredentialsProviderFunc(s.credentials)",
		new:  "aws.NewCredentialsCache(aws.CredentialsProviderFunc(s.credentials))",
		test: "TestSQS",
	},
	{rule: "S4 NATS gives up after a login that was refused", in: "cmd/onlyonce-relay", decl: "(*natsSink).options",
		old: "nats.IgnoreAuthErrorAbort(),", new: "", test: "TestNATS"},
	{rule: "O6 relay that does not warn of a server that syncs later", in: "outbox/natssink", decl: "(*Sink).judge",
		old: "!t.Config.SyncAlways", new: "false", pkg: "cmd/onlyonce-relay", test: "TestNATS"},
}
