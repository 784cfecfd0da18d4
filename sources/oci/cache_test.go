package oci

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/registry"
)

// cacheFiles are the names in a cache.
func cacheFiles(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "sha256"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestCache: what was fetched is not asked for again, by another client either,
// and what is damaged is.
func TestCache(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{})
	dir := t.TempDir()
	p := push(t, newClient(t, reg, Config{}), reg.Host()+"/acme/types", "v1", bytes.Repeat([]byte("content "), 1000))
	fetch := func(what string, requests int) string {
		t.Helper()
		var log capture
		c := newClient(t, reg, Config{CacheDir: dir, Log: log.logger()})
		reg.ResetCounts()
		raw, err := c.Manifest(t.Context(), p.repository, p.manifest)
		if err != nil || !bytes.Equal(raw, p.raw) {
			t.Errorf("%s: manifest %s, %v", what, raw, err)
		}
		content, err := readBlob(t.Context(), c, p)
		if err != nil || !bytes.Equal(content, p.content) {
			t.Errorf("%s: blob of %d bytes, %v", what, len(content), err)
		}
		if n := reg.Count("GET", "/v2/acme"); n != requests {
			t.Errorf("%s: %d requests, want %d", what, n, requests)
		}
		return log.String()
	}
	fetch("at first", 2)
	fetch("again", 0)
	if n := len(cacheFiles(t, dir)); n != 2 {
		t.Fatalf("%d files in the cache", n)
	}
	for what, garble := range map[string]func(path string) error{
		"garbled":   func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), len(p.content)), 0o600) },
		"truncated": func(path string) error { return os.Truncate(path, 10) },
		"longer": func(path string) error {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("more")
			return err
		},
		"removed": os.Remove,
	} {
		if err := garble(filepath.Join(dir, "sha256", p.blob.Hex())); err != nil {
			t.Fatal(err)
		}
		log := fetch(what, 1)
		if damaged := strings.Contains(log, "dropping a damaged entry"); damaged == (what == "removed") {
			t.Errorf("%s: log %q", what, log)
		}
		fetch("after "+what, 0)
	}
}

// TestCacheUnusable: a cache that cannot be written costs a warning, once.
func TestCacheUnusable(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{})
	p := push(t, newClient(t, reg, Config{}), reg.Host()+"/acme/types", "v1", []byte("content"))
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log capture
	c := newClient(t, reg, Config{CacheDir: file, Log: log.logger()})
	for range 3 {
		if content, err := readBlob(t.Context(), c, p); err != nil || !bytes.Equal(content, p.content) {
			t.Errorf("blob %q, %v", content, err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want one: %s", n, log.String())
	}
}

// TestCacheWriteFails: a disk that takes no more in the middle leaves nothing
// behind. Here it is a file that is open for reading only, which fails on every
// machine alike.
func TestCacheWriteFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log capture
	c := &cache{dir: dir, max: 1 << 20, log: log.logger()}
	content := []byte("content")
	e := c.create(sources.DigestOf(content), int64(len(content)))
	failing, err := os.Open(e.f.Name())
	if err != nil {
		t.Fatal(err)
	}
	e.f.Close()
	e.f = failing
	e.write(content)
	e.write(content)
	e.commit()
	if files := cacheFiles(t, dir); len(files) != 0 || !strings.Contains(log.String(), "bad file descriptor") {
		t.Errorf("files %v, log %s", files, log.String())
	}
	c.put(sources.DigestOf(content), content)
	if got, ok := c.get(sources.DigestOf(content), 100); !ok || !bytes.Equal(got, content) {
		t.Error("the cache does not work once writes succeed again")
	}
}

// TestCacheBound: what was used least recently goes first, and what is being
// written by others stays.
func TestCacheBound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &cache{dir: dir, max: 1000, log: (&capture{}).logger()}
	contents := make([][]byte, 12)
	for i := range contents {
		contents[i] = bytes.Repeat([]byte{byte(i)}, 100)
	}
	put := func(i int) {
		c.put(sources.DigestOf(contents[i]), contents[i])
		// Older than what comes next, whatever the file system's resolution.
		used := time.Now().Add(time.Duration(i-len(contents)) * time.Minute)
		if err := os.Chtimes(c.path(sources.DigestOf(contents[i])), used, used); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		put(i)
	}
	if n := len(cacheFiles(t, dir)); n != 10 {
		t.Fatalf("%d entries at the bound, want 10", n)
	}
	if c.open(sources.DigestOf(contents[0]), 100) == nil { // is used
		t.Fatal("the first entry is gone")
	}
	writing, stale := filepath.Join(dir, "sha256", temporary+"1"), filepath.Join(dir, "sha256", temporary+"2")
	for _, name := range []string{writing, stale} {
		if err := os.WriteFile(name, make([]byte, 5000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * staleAfter)
	if err := os.Chtimes(stale, old, old); err != nil {
		t.Fatal(err)
	}
	put(10)
	for i, want := range []bool{true, false, false, true, true, true, true, true, true, true, true, false} {
		if _, ok := c.get(sources.DigestOf(contents[i]), 100); ok != want {
			t.Errorf("entry %d is there: %v, want %v", i, ok, want)
		}
	}
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("what is being written: %v", err)
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("what a dead process wrote is still there")
	}
	big := make([]byte, 1001)
	c.put(sources.DigestOf(big), big)
	if _, ok := c.get(sources.DigestOf(big), 2000); ok {
		t.Error("an entry larger than the cache was kept")
	}
}

// TestCacheShared: clients that know nothing of each other, as processes do, use
// one directory at the same time, and make room in it.
func TestCacheShared(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{})
	up := newClient(t, reg, Config{})
	var all []pushed
	for i := range 8 {
		all = append(all, push(t, up, fmt.Sprintf("%s/acme/types-%d", reg.Host(), i), "v1", bytes.Repeat([]byte{byte(i)}, 20_000)))
	}
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		c := newClient(t, reg, Config{CacheDir: dir, maxCacheBytes: 100_000})
		wg.Go(func() {
			for range 3 {
				for _, p := range all {
					content, err := readBlob(t.Context(), c, p)
					if err != nil || !bytes.Equal(content, p.content) {
						t.Errorf("blob of %d bytes, %v", len(content), err)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, name := range cacheFiles(t, dir) {
		if strings.HasPrefix(name, temporary) {
			t.Errorf("%s is left behind", name)
		}
	}
}

// TestPartialRead: with a cache a blob is there whole before it is read, and a
// reader that stops early has no part in that; without one, nothing is kept.
func TestPartialRead(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{})
	dir := t.TempDir()
	p := push(t, newClient(t, reg, Config{}), reg.Host()+"/acme/types", "v1", bytes.Repeat([]byte("content "), 1000))
	for _, cacheDir := range []string{dir, ""} {
		c := newClient(t, reg, Config{CacheDir: cacheDir})
		r, err := c.Blob(t.Context(), p.repository, p.blob, int64(len(p.content)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		r.Close()
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Error("reading goes on after Close")
		}
		if files := cacheFiles(t, dir); len(files) != 1 {
			t.Errorf("the cache has %v", files)
		}
	}
}
