package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// cyclonedx lists the modules of a program from what the go command wrote into it.
const cyclonedx = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"

// programs are the commands that a release has binaries of.
var programs = []string{"onlyonce", "onlyonce-relay"}

// program builds each command for each platform, as "go install" does for a user. The second build
// begins with an empty build cache in another directory, and must give the same bytes.
func (r *release) program() error {
	var sums bytes.Buffer
	for _, platform := range r.platforms {
		for _, program := range programs {
			if err := r.binary(program, platform, &sums); err != nil {
				return fmt.Errorf("%s for %s: %w", program, platform, err)
			}
		}
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// binary builds a command for a platform, and adds its sums.
func (r *release) binary(program, platform string, sums *bytes.Buffer) error {
	system, arch, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("-platforms: %q has no form as linux/amd64", platform)
	}
	built, err := r.build(program, "program", system, arch)
	if err != nil {
		return err
	}
	if r.twice {
		again, err := r.build(program, "again", system, arch, "GOCACHE="+filepath.Join(r.scratch, "again-cache"))
		if err != nil {
			return err
		}
		if !bytes.Equal(built, again) {
			return errors.New("two builds of one version differ")
		}
	}
	name := fmt.Sprintf("%s_%s_%s_%s", program, r.version, system, arch)
	path := filepath.Join(r.out, name)
	if err := os.WriteFile(path, built, 0o755); err != nil {
		return err
	}
	bill := command(r.scratch, "go", "run", cyclonedx, "bin", "-json", "-noserial", "-notimestamp", "-output", path+".cdx.json", path)
	bill.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOPROXY="+upstream())
	if err := bill.Run(); err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	for _, file := range []string{name, name + ".cdx.json"} {
		data, err := os.ReadFile(filepath.Join(r.out, file))
		if err != nil {
			return err
		}
		fmt.Fprintf(sums, "%x  %s\n", sha256.Sum256(data), file)
	}
	return nil
}

// build installs a command from the proxy and returns its bytes.
func (r *release) build(program, name, system, arch string, env ...string) ([]byte, error) {
	install := command(r.scratch, "go", "install", "-ldflags=-s -w", root+"/cmd/"+program+"@"+r.version)
	install.Env = r.goEnv(name, append([]string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + arch, "GOBIN="}, env...)...)
	if err := install.Run(); err != nil {
		return nil, fmt.Errorf("%s/%s: go install: %w", system, arch, err)
	}
	bin := filepath.Join(r.scratch, name, "bin")
	if system != runtime.GOOS || arch != runtime.GOARCH {
		bin = filepath.Join(bin, system+"_"+arch)
	}
	data, err := os.ReadFile(filepath.Join(bin, program))
	return data, errors.Join(err, os.RemoveAll(filepath.Join(r.scratch, name, "bin")))
}
