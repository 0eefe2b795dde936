//go:build unix

package devenv_test

import (
	"net"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv"
)

func TestGivenAddressWins(t *testing.T) {
	p := startPostgres(t, devenv.Options{})
	withPassword := strings.Replace(p.URL, "postgres@", "postgres:secret@", 1)
	t.Setenv(devenv.EnvPostgresURL, withPassword)
	t.Setenv(devenv.EnvForce, devenv.KindDocker)
	var log lines
	given, err := devenv.StartPostgres(t.Context(), devenv.Options{Log: log.log})
	if err != nil {
		t.Fatal(err)
	}
	good := given.Kind == devenv.KindURL &&
		given.URL == withPassword &&
		given.Dir == "" &&
		given.PID() == 0
	if !good {
		t.Errorf("%+v", given)
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the password is in the log: %s", log.String())
	}
	if err := given.Kill(t.Context()); err == nil {
		t.Error("a server that we did not start can be killed")
	}
	if err := given.Stop(); err != nil {
		t.Error(err)
	}
	mustQuery(t, p.URL, "select 1::text") // Stop did not stop it
}

// An address that does not answer is not replaced by another server.
func TestGivenAddressDead(t *testing.T) {
	t.Setenv(devenv.EnvPostgresURL, "postgres://u:secret@127.0.0.1:1/db")
	_, err := devenv.StartPostgres(t.Context(), devenv.Options{})
	if err == nil || !strings.Contains(err.Error(), devenv.EnvPostgresURL) || strings.Contains(err.Error(), "secret") {
		t.Errorf("postgres: %v", err)
	}
	t.Setenv(devenv.EnvKafkaBrokers, "127.0.0.1:1")
	_, err = devenv.StartKafka(t.Context(), devenv.Options{AllowFake: true})
	if err == nil || !strings.Contains(err.Error(), devenv.EnvKafkaBrokers) {
		t.Errorf("kafka: %v", err)
	}
}

func TestForcedNonsense(t *testing.T) {
	t.Setenv(devenv.EnvForce, "podman")
	_, err := devenv.StartPostgres(t.Context(), devenv.Options{})
	if err == nil || !strings.Contains(err.Error(), `ONLYONCE_ENV is "podman"; it can be local, embedded or docker`) {
		t.Errorf("error %v", err)
	}
	_, err = devenv.StartKafka(t.Context(), devenv.Options{Force: "fake"})
	if err == nil || !strings.Contains(err.Error(), `Options.Force is "fake"`) {
		t.Errorf("error %v", err)
	}
}

// A forced way that is not possible is an error, and no other way is tried.
func TestForcedAndImpossible(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		t.Setenv("JAVA_HOME", "/no/java/here")
		t.Setenv(devenv.EnvForce, devenv.KindLocal)
		var log lines
		_, err := devenv.StartKafka(t.Context(), devenv.Options{AllowFake: true, Log: log.log})
		if err == nil || !strings.Contains(err.Error(), "local was forced") || !strings.Contains(err.Error(), "/no/java/here") {
			t.Errorf("error %v", err)
		}
		if log.String() != "" {
			t.Errorf("went on: %s", log.String())
		}
	})
	t.Run("distribution", func(t *testing.T) {
		t.Setenv("KAFKA_HOME", "/no/kafka/here")
		_, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindLocal})
		if err == nil {
			t.Fatal("no error")
		}
		if !strings.Contains(err.Error(), "/no/kafka/here") && !strings.Contains(err.Error(), "java") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("docker", func(t *testing.T) {
		// In a program of its own: the library looks for the engine once.
		needNoDocker(t)
		p := startProgram(t, "postgres", nil, devenv.EnvForce+"=docker", "DOCKER_HOST=tcp://127.0.0.1:1", "HOME=/nonexistent")
		if !strings.Contains(p.Error, "docker was forced") || !strings.Contains(p.Error, "no Docker engine") {
			t.Errorf("error %q", p.Error)
		}
	})
	t.Run("docker that does not answer", func(t *testing.T) {
		needNoDocker(t)
		l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		p := startProgram(t, "postgres", nil, devenv.EnvForce+"=docker", "DOCKER_HOST=tcp://"+l.Addr().String(), "HOME=/nonexistent")
		if !strings.Contains(p.Error, "no Docker engine answered within 2s") {
			t.Errorf("error %q", p.Error)
		}
	})
	t.Run("fake where a real one is required", func(t *testing.T) {
		_, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindEmbedded})
		if err == nil || !strings.Contains(err.Error(), "not a real broker") {
			t.Errorf("error %v", err)
		}
	})
}

// If no other way works, the fake is taken, if it is allowed. Every way that was passed over is
// reported with its reason in one line.
func TestKafkaFallsThroughToTheFake(t *testing.T) {
	needNoDocker(t)
	t.Setenv("JAVA_HOME", "/no/java/here")
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
	var log lines
	k, err := devenv.StartKafka(t.Context(), devenv.Options{AllowFake: true, Log: log.log})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Stop(); err != nil {
		t.Error(err)
	}
	if k.Real || k.Kind != devenv.KindEmbedded {
		t.Errorf("real %t, kind %s", k.Real, k.Kind)
	}
	for i, want := range []string{"kafka: not local: ", "kafka: not docker: ", "kafka: kfake"} {
		if len(log.all) != 3 || !strings.HasPrefix(log.all[i], want) {
			t.Errorf("line %d does not begin with %q:\n%s", i, want, log.String())
			break
		}
	}
	_, err = devenv.StartKafka(t.Context(), devenv.Options{})
	if err == nil || !strings.Contains(err.Error(), "no kafka") || !strings.Contains(err.Error(), "java") {
		t.Errorf("without the fake: %v", err)
	}
}

// needNoDocker skips the test if an engine runs: the library finds its socket whatever DOCKER_HOST
// says.
func needNoDocker(t *testing.T) {
	t.Helper()
	if conn, err := net.Dial("unix", "/var/run/docker.sock"); err == nil {
		_ = conn.Close()
		t.Skip("a Docker engine runs here")
	}
}

// If a version was asked for, that version is taken, whatever the machine has, or it is an error.
func TestPostgresVersion(t *testing.T) {
	t.Setenv(devenv.EnvPostgresVersion, "9")
	if _, err := devenv.StartPostgres(t.Context(), devenv.Options{}); err == nil ||
		!strings.Contains(err.Error(), `ONLYONCE_POSTGRES_VERSION is "9"; it can be one of 14, 15, 16, 17, 18`) {
		t.Errorf("error %v", err)
	}
	t.Setenv(devenv.EnvPostgresVersion, "18")
	p, err := devenv.StartPostgres(t.Context(), devenv.Options{})
	if err != nil {
		unreachable(t, err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	if p.Kind != devenv.KindEmbedded || !strings.HasPrefix(p.Version, "18.") || mustQuery(t, p.URL, "show server_version") != p.Version {
		t.Errorf("kind %s, version %s", p.Kind, p.Version)
	}
	t.Setenv(devenv.EnvPostgresURL, p.URL)
	if _, err := devenv.StartPostgres(t.Context(), devenv.Options{PostgresVersion: "17"}); err == nil ||
		!strings.Contains(err.Error(), "PostgreSQL 17 was asked for, and ONLYONCE_POSTGRES_URL leads to 18.") {
		t.Errorf("error %v", err)
	}
}
