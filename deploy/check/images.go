package main

import (
	"archive/tar"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// configDir is Docker's configuration below the run's directory, with the plugin Compose.
const configDir = "config"

// sources are what images are made of, all of it on this machine, and what plays the commands.
type sources struct {
	Compose  string // its version
	GoRoot   string
	ModCache string
	Modules  []string // files of ModCache that builds read
	Postgres string   // for example /usr/lib/postgresql/15
	Java     string   // the program
	Kafka    string   // the jars
}

// fetch downloads what the run needs and this machine does not have, and builds Compose.
func fetch(ctx context.Context, dir string) (from sources, err error) {
	plugin := filepath.Join(dir, configDir, "cli-plugins", "docker-compose")
	build := exec.CommandContext(ctx, "go", "-C", "testdata/compose", "build", "-ldflags=-s -w",
		"-o", plugin, "github.com/docker/compose/v2/cmd")
	if out, err := build.CombinedOutput(); err != nil {
		return from, fmt.Errorf("building Compose: %w: %s", err, out)
	}
	list := exec.CommandContext(ctx, "go", "-C", "testdata/compose", "list", "-m", "-f", "{{.Version}}", "github.com/docker/compose/v2")
	version, err := list.Output()
	if err != nil {
		return from, fmt.Errorf("the version of Compose: %w", err)
	}
	from.Compose = strings.TrimSpace(string(version))
	if from.GoRoot, err = goEnv(ctx, "GOROOT"); err != nil {
		return from, err
	}
	if from.ModCache, err = goEnv(ctx, "GOMODCACHE"); err != nil {
		return from, err
	}
	if from.Modules, err = modules(ctx, from.ModCache); err != nil {
		return from, err
	}
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		return from, errors.Join(err, errors.New("no PostgreSQL in /usr/lib/postgresql (Debian: postgresql)"))
	}
	from.Postgres = filepath.Dir(bins[len(bins)-1])
	java, jars, err := devenv.KafkaProgram(ctx, devenv.Options{})
	if err != nil {
		return from, err
	}
	from.Kafka = filepath.Dir(jars)
	from.Java, err = filepath.EvalSymlinks(java)
	return from, err
}

func goEnv(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}

// modules returns the files of this machine's module cache that a build would download.
func modules(ctx context.Context, cache string) (files []string, err error) {
	for _, dir := range []string{top, top + "/cmd/onlyonce-relay"} {
		download := exec.CommandContext(ctx, "go", "mod", "download", "-json")
		download.Dir = dir
		out, err := download.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: go mod download: %w", dir, err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			var m struct{ Zip string }
			if err := d.Decode(&m); err != nil {
				return nil, err
			}
			if m.Zip != "" && !slices.Contains(files, m.Zip) { // one that is replaced has none
				files = append(files, m.Zip)
			}
		}
	}
	// The go.mod files of all: the go command reads more of them than it builds modules.
	err = filepath.WalkDir(filepath.Join(cache, "cache", "download"), func(path string, _ fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); ext == ".mod" || ext == ".info" || ext == ".ziphash" {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// standIns makes the images that docker-compose.yml and deploy/Dockerfile name.
func (d *engine) standIns(ctx context.Context, from sources) error {
	name, err := goImage()
	if err != nil {
		return err
	}
	if err := d.importImage(ctx, content{
		name:     name,
		trees:    append(from.Modules, from.GoRoot),
		programs: []string{"/bin/sh"},
		changes:  []string{"ENV PATH=" + from.GoRoot + "/bin:/bin GOPROXY=off GOTOOLCHAIN=local HOME=/tmp GOMODCACHE=" + from.ModCache},
	}); err != nil {
		return err
	}
	compose, err := loadCompose(ctx)
	if err != nil {
		return err
	}
	postgres, err := postgresContent(from)
	if err != nil {
		return err
	}
	postgres.name = compose.Services["postgres"].Image
	kafka, err := kafkaContent(from)
	if err != nil {
		return err
	}
	kafka.name = compose.Services["kafka"].Image
	return errors.Join(d.importImage(ctx, postgres), d.importImage(ctx, kafka))
}

// goImage is the image of Go that deploy/Dockerfile builds with.
func goImage() (string, error) {
	text, err := os.ReadFile(filepath.Join(top, "deploy", "Dockerfile"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^ARG GO_IMAGE=(\S+)$`).FindSubmatch(text)
	if m == nil {
		return "", errors.New("deploy/Dockerfile names no GO_IMAGE")
	}
	return string(m[1]), nil
}

func postgresContent(from sources) (content, error) {
	programs, err := filepath.Glob(from.Postgres + "/lib/*.so")
	if err != nil {
		return content{}, err
	}
	for _, name := range []string{"initdb", "postgres", "pg_isready"} {
		programs = append(programs, from.Postgres+"/bin/"+name)
	}
	return content{
		trees:    []string{"/usr/share/postgresql/" + filepath.Base(from.Postgres)},
		programs: append(programs, "/bin/sh"),
		own:      "postgres",
		changes: []string{
			"ENV PATH=" + from.Postgres + "/bin:/usr/local/bin:/bin",
			"USER postgres",
			`ENTRYPOINT ["docker-entrypoint.sh"]`,
			`CMD ["postgres"]`,
		},
	}, nil
}

func kafkaContent(from sources) (content, error) {
	bin := filepath.Dir(from.Java)
	home := filepath.Dir(bin)
	programs := []string{"/bin/sh", "/bin/bash", "/bin/mkdir", "/usr/bin/head", from.Java}
	for _, pattern := range []string{"/lib/*.so", "/lib/server/*.so"} {
		libraries, err := filepath.Glob(home + pattern)
		if err != nil {
			return content{}, err
		}
		programs = append(programs, libraries...)
	}
	return content{
		trees:    []string{home, from.Kafka},
		programs: programs,
		own:      "kafka",
		changes: []string{
			"ENV PATH=" + bin + ":/bin:/usr/bin CLUSTER_ID=5L6g3nShT-eMCtK--X86sw CLASSPATH=" + from.Kafka + "/*",
			`CMD ["/etc/kafka/docker/run"]`,
		},
	}, nil
}

// content is what an image has.
type content struct {
	name     string
	trees    []string // directories and files of this machine
	programs []string // ... with the libraries that they are linked with
	own      string   // the folder of images, if it has one
	changes  []string // as in a Dockerfile
}

//go:embed all:images
var ownFiles embed.FS

// library finds the files that a program is linked with.
var library = regexp.MustCompile(`(/\S+) \(0x`)

// importImage makes an image.
func (d *engine) importImage(ctx context.Context, c content) error {
	files := slices.Clone(c.programs)
	for _, program := range c.programs {
		out, err := exec.CommandContext(ctx, "ldd", program).Output()
		if err != nil {
			continue // a static program
		}
		for _, m := range library.FindAllSubmatch(out, -1) {
			files = append(files, filepath.Clean(string(m[1])))
		}
	}
	read, write := io.Pipe()
	go func() {
		w := tar.NewWriter(write)
		err := addTrees(w, append(files, c.trees...))
		if err == nil {
			err = addOwn(w, c.own)
		}
		_ = write.CloseWithError(errors.Join(err, w.Close()))
	}()
	args := []string{"import"}
	for _, change := range c.changes {
		args = append(args, "--change", change)
	}
	_, err := d.docker(ctx, read, append(args, "-", c.name)...)
	_ = read.CloseWithError(err)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// addTrees adds files, and what is below directories. Links are followed, and those that lead
// nowhere are left out.
func addTrees(w *tar.Writer, roots []string) error {
	added := map[string]bool{}
	for _, root := range roots {
		if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || added[path] {
				return err
			}
			added[path] = true
			info, err := os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			h, err := tar.FileInfoHeader(info, "")
			if err != nil {
				return err
			}
			h.Name = strings.TrimPrefix(path, "/")
			h.Uid = 0
			h.Gid = 0
			h.Uname = ""
			h.Gname = ""
			if err := w.WriteHeader(h); err != nil || info.IsDir() {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			_, err = io.Copy(w, f)
			return errors.Join(err, f.Close())
		}); err != nil {
			return err
		}
	}
	return nil
}

// addOwn adds the files of a folder of images, and /tmp for all.
func addOwn(w *tar.Writer, folder string) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil || folder == "" {
		return err
	}
	root := path.Join("images", folder)
	return fs.WalkDir(ownFiles, root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := ownFiles.ReadFile(name)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: strings.TrimPrefix(name, root+"/"), Mode: 0o755, Size: int64(len(text))}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
}
