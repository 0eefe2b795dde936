package main

// loginRules are mutants of the program's logins: rule S4.
var loginRules = []mutant{
	{rule: "S4 certificate is read once", in: "cmd/onlyonce", decl: "(*section).tlsConfig",
		old: `if _, err := cfg.GetClientCertificate(nil); err != nil { s.fault("tls_cert", "%v", err) }`,
		new: `c, err := cfg.GetClientCertificate(nil); cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, err }`, test: "TestRelayClientCertificate"},
	{rule: "S4 token is read once", in: "cmd/onlyonce", decl: "(*section).mechanism",
		old: "extensions := s.extensions()",
		new: `extensions := s.extensions(); if token != nil { word, err := token(context.Background()); token = func(context.Context) (string, error) { return word, err } }`, test: "TestBearer"},
	{rule: "S4 refused token is taken for accepted", in: "cmd/onlyonce", decl: "bearer.Next",
		old: "len(answer) > 0", new: "false", test: "TestBearer"},
	{rule: "S4 database's password is read once", in: "cmd/onlyonce", decl: "renewer",
		old: "password = fromFile(file)",
		new: `word, err := fromFile(file)(context.Background()); password = func(context.Context) (string, error) { return word, err }`, test: "TestPasswordFile"},
	{rule: "S4 database's certificate is lost with its configuration", in: "cmd/onlyonce", decl: "renewer",
		old: "renewAuthorities(c.TLSConfig, now.TLSConfig)", new: "c.TLSConfig = now.TLSConfig", test: "TestPostgresLogin"},
	{rule: "S4 password_file is sent to the server", in: "cmd/onlyonce", decl: "renewer",
		old: `delete(cfg.RuntimeParams, "password_file")`, new: "", test: "TestPasswordFile"},
}
