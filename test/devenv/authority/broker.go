package authority

import (
	"os"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// Broker starts a real broker with a listener that asks for a certificate of the authority and for
// a token that it has signed. It returns the listener's address, and those without a login. The
// certificate "server" must have been issued.
func (a *Authority) Broker() (login string, plain []string) {
	a.t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(a.File(name))
		if err != nil {
			a.t.Fatal(err)
		}
		return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", `\n`)
	}
	ports, err := supervise.FreePorts(1)
	if err != nil {
		a.t.Fatal(err)
	}
	login = supervise.Loopback(ports[0])
	allowed := "file://" + a.Keys()
	k, err := devenv.StartKafka(a.t.Context(), devenv.Options{
		Force:           devenv.KindLocal,
		Own:             true,
		KafkaProperties: []string{"org.apache.kafka.sasl.oauthbearer.allowed.urls=" + allowed},
		KafkaSettings: map[string]string{
			"listeners":                                   "LOGIN://" + login,
			"listener.security.protocol.map":              "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL",
			"connections.max.reauth.ms":                   "3600000",
			"listener.name.login.sasl.enabled.mechanisms": "OAUTHBEARER",
			"listener.name.login.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule " +
				"required;",
			"listener.name.login.oauthbearer.sasl.server.callback.handler.class": "" +
				"org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
			"listener.name.login.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": allowed,
			"listener.name.login.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
			"listener.name.login.ssl.client.auth":                                "required",
			"listener.name.login.ssl.keystore.type":                              "PEM",
			"listener.name.login.ssl.keystore.certificate.chain":                 read("server.crt"),
			"listener.name.login.ssl.keystore.key":                               read("server.key"),
			"listener.name.login.ssl.truststore.type":                            "PEM",
			"listener.name.login.ssl.truststore.certificates":                    read("ca.crt"),
		},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			a.t.Error(err)
		}
	})
	return login, k.Brokers
}
