package devenv

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// defaultKafkaVersion is the version of the image, and of kafka-pom.xml.
const defaultKafkaVersion = "4.3.0"

// kafkaVersion is that of EnvKafkaVersion, or ours.
func kafkaVersion() string { return cmp.Or(os.Getenv(EnvKafkaVersion), defaultKafkaVersion) }

// mvnTimeout bounds the one download of 43 MB. For example it took 6 s on the machine on which this
// was written.
const mvnTimeout = 5 * time.Minute

// copyPlugin is named in full: by its short name Maven would take whatever version
// it came with.
const copyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

//go:embed kafka-pom.xml
var kafkaPOM []byte

// KafkaProgram returns the Java and the class path that StartKafka starts a broker with. The broker
// is fetched if it is not there.
func KafkaProgram(ctx context.Context, o Options) (java, classPath string, err error) {
	if java, _, err = findJava(ctx); err != nil {
		return "", "", err
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-kafka-"})
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, sup.Close()) }()
	classPath, _, err = kafkaClasses(ctx, o, sup, java)
	return java, classPath, err
}

// kafkaClasses returns the broker's class path, and where it is from.
func kafkaClasses(ctx context.Context, o Options, sup *supervise.Supervisor, java string) (classPath, from string, err error) {
	if home := os.Getenv("KAFKA_HOME"); home != "" {
		libs := filepath.Join(home, "libs")
		if found, _ := filepath.Glob(filepath.Join(libs, "kafka-clients-*.jar")); len(found) == 0 {
			return "", "", fmt.Errorf("KAFKA_HOME is %s, and there is no libs/kafka-clients-*.jar in it", home)
		}
		return filepath.Join(libs, "*"), home, nil
	}
	cache, err := userCache()
	if err != nil {
		return "", "", err
	}
	version := kafkaVersion()
	dir := filepath.Join(cache, "kafka-"+version)
	err = fetchOnce(ctx, dir, func(ctx context.Context, partial string) error {
		o.log("kafka: fetching Apache Kafka %s (43 MB) with mvn into %s, this once", version, dir)
		return fetchKafka(ctx, sup, java, partial, version)
	})
	if err != nil {
		return "", "", err
	}
	return filepath.Join(dir, "*"), dir, nil
}

// fetchKafka copies the broker's jars into dir. mvn runs below the supervisor,
// so that it ends with this process.
func fetchKafka(ctx context.Context, sup *supervise.Supervisor, java, dir, version string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("the broker is not in the cache, mvn to fetch it is not in PATH, and KAFKA_HOME does not name a distribution")
	}
	pom := filepath.Join(sup.Dir(), "pom.xml")
	if err := os.WriteFile(pom, bytes.Replace(kafkaPOM, []byte(defaultKafkaVersion), []byte(version), 1), 0o644); err != nil {
		return err
	}
	env := os.Environ()
	if os.Getenv("JAVA_HOME") == "" { // the java that we have checked
		if home := javaHome(java); home != "" {
			env = append(env, "JAVA_HOME="+home)
		}
	}
	command := supervise.Command{
		Argv: []string{mvn, "-B", "-f", pom, "--strict-checksums",
			copyPlugin, "-DoutputDirectory=" + dir, "-DincludeScope=runtime"},
		Env: env, Log: "mvn.log",
	}
	if !mavenHasHome() {
		command.Argv = append(command.Argv, "-Dmaven.repo.local="+filepath.Join(sup.Dir(), "m2"))
	}
	log := filepath.Join(sup.Dir(), command.Log)
	ctx, cancel := context.WithTimeoutCause(ctx, mvnTimeout, fmt.Errorf("mvn took more than %v", mvnTimeout))
	defer cancel()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	go giveUpWithoutProgress(ctx, log, give)
	if _, err := sup.Run(ctx, command); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx) // mvn ends with the supervisor
		}
		return fmt.Errorf("%w: %s", err, firstError(log))
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "kafka_*.jar")); len(found) == 0 {
		return errors.New("mvn ended well and copied no broker")
	}
	return nil
}

// mavenHasHome reports whether Maven can keep its own copies of what it fetches:
// it fails without, as for system users, whose home is not there.
func mavenHasHome() bool {
	u, err := user.Current() // Java, too, asks the user database, not HOME
	return err == nil && os.MkdirAll(filepath.Join(u.HomeDir, ".m2"), 0o755) == nil
}

// giveUpWithoutProgress cancels the fetch when nothing arrives: a registry that
// drops packets would else cost minutes, by Maven's own timeouts and retries. Its
// log has a line for every file; until the first has come less patience is due
// than later, when a large one may be under way on a slow line.
func giveUpWithoutProgress(ctx context.Context, log string, give context.CancelCauseFunc) {
	const patienceAtFirst, patience = 10 * time.Second, time.Minute
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	size := -1
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		text, err := os.ReadFile(log)
		limit := patience
		if !bytes.Contains(text, []byte("Downloaded from")) {
			limit = patienceAtFirst
		}
		if err == nil && len(text) != size {
			size = len(text)
			last = time.Now()
		}
		if time.Since(last) > limit {
			give(fmt.Errorf("mvn: nothing came from the registry for %v", limit))
			return
		}
	}
}

// firstError is what mvn says first about an error; the rest is advice.
func firstError(log string) string {
	text, err := os.ReadFile(log)
	if m := regexp.MustCompile(`\[ERROR\] (\S.{1,300})`).FindSubmatch(text); err == nil && m != nil {
		return string(m[1])
	}
	return "it does not say why"
}

// findJava returns a Java of version 17 or later, from JAVA_HOME or PATH.
func findJava(ctx context.Context) (path string, version int, err error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		path = filepath.Join(home, "bin", supervise.Exe("java"))
	} else if path, err = exec.LookPath("java"); err != nil {
		return "", 0, errors.New("no java (17 or later) in JAVA_HOME or PATH")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return "", 0, fmt.Errorf("%s -version: %w", path, err)
	}
	m := regexp.MustCompile(`version "(\d+)`).FindSubmatch(out)
	if m == nil {
		return "", 0, fmt.Errorf("%s -version does not tell its version", path)
	}
	if version, err = strconv.Atoi(string(m[1])); err != nil {
		return "", 0, err
	}
	if version < 17 {
		return "", 0, fmt.Errorf("%s is version %d; the broker needs 17", path, version)
	}
	return path, version, nil
}

// javaHome is the directory of the JDK that a path leads to, through the links that distributions
// make. It is empty if it cannot be found.
func javaHome(java string) string {
	target, err := filepath.EvalSymlinks(java)
	if err != nil || filepath.Base(filepath.Dir(target)) != "bin" {
		return ""
	}
	return filepath.Dir(filepath.Dir(target))
}
