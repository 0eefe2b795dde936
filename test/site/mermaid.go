package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// The library that draws the diagrams in the reader's browser. It is part of the site, so a reader
// needs no other server. npm fetches it once; its sum is pinned here.
const (
	mermaidVersion = "11.9.0"
	mermaidSum     = "YdPXn9slEwO0omQfQIsW6vS84weVQftIyyTGAZCwM//MGhPzL1+l6vO6bkf0wnP4tHigH1alZ5Ooy3HXI2gOag=="
	mermaidFile    = "package/dist/mermaid.min.js"
)

// mermaid returns the library.
func mermaid() ([]byte, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "onlyonce-site")
	archive := filepath.Join(dir, "mermaid-"+mermaidVersion+".tgz")
	if _, err := os.Stat(archive); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a cache
			return nil, err
		}
		pack := exec.Command("npm", "pack", "--silent", "mermaid@"+mermaidVersion) //nolint:noctx // bounded by npm
		pack.Dir = dir
		if out, err := pack.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("npm pack mermaid@%s: %w\n%s", mermaidVersion, err, out)
		}
	}
	return unpack(archive)
}

// unpack returns the library's file in the archive, once the archive's sum is the pinned one.
func unpack(archive string) ([]byte, error) {
	f, err := os.Open(archive) //nolint:gosec // of its own cache
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	sum := sha512.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, err
	}
	if got := base64.StdEncoding.EncodeToString(sum.Sum(nil)); got != mermaidSum {
		return nil, fmt.Errorf("%s has the sum %s, not the pinned one: remove it", archive, got)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	plain, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(plain); ; {
		h, err := files.Next()
		if err != nil {
			return nil, fmt.Errorf("%s in %s: %w", mermaidFile, archive, err)
		}
		if h.Name == mermaidFile {
			return io.ReadAll(files)
		}
	}
}
