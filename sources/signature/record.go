package signature

import (
	"cmp"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"gitopsd.dev/sources"
)

// maxRecords bounds the files. The least recently used are removed first.
const maxRecords = 4096

// records keeps the evidence that satisfied a policy, in files named by the digest of
// everything that it depends on. Evidence is checked again at each use, so that the
// files need not be trusted.
//
// A nil *records is valid, and keeps nothing.
type records struct {
	dir    string
	log    *slog.Logger
	warned atomic.Bool
}

func (r *records) warn(what string, err error) {
	if !r.warned.Swap(true) {
		r.log.Warn("signatures cannot be kept, they are fetched each time", "dir", r.dir, "doing", what, "error", err)
	}
}

// read returns the evidence under a key, nil if there is none.
func (r *records) read(key sources.Digest) []evidence {
	if r == nil {
		return nil
	}
	f, err := os.Open(filepath.Join(r.dir, key.Hex()))
	if err != nil {
		if !os.IsNotExist(err) {
			r.warn("open", err)
		}
		return nil
	}
	defer f.Close()
	// Evidence is written in base64, which makes it a third larger.
	text, err := io.ReadAll(io.LimitReader(f, 2*maxSignaturesBytes))
	if err != nil {
		r.warn("read", err)
		return nil
	}
	var kept []evidence
	if json.Unmarshal(text, &kept) != nil {
		return nil // the next write replaces it
	}
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now) // for sweep; an error is harmless
	return kept
}

// write stores evidence under a key atomically.
func (r *records) write(key sources.Digest, all []evidence) {
	if r == nil {
		return
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.MkdirAll(r.dir, 0o700)
	}
	var f *os.File
	if err == nil {
		f, err = os.CreateTemp(r.dir, "writing-")
	}
	if err != nil {
		r.warn("create", err)
		return
	}
	_, err = f.Write(text)
	if err = cmp.Or(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(r.dir, key.Hex()))
	}
	if err != nil {
		os.Remove(f.Name())
		r.warn("write", err)
		return
	}
	r.warned.Store(false)
	r.sweep()
}

// sweep removes the least recently used records if there are too many, and a tenth
// more than needed.
func (r *records) sweep() {
	entries, err := os.ReadDir(r.dir)
	if err != nil || len(entries) <= maxRecords {
		return
	}
	type file struct {
		name string
		used time.Time
	}
	var files []file
	for _, e := range entries {
		if fi, err := e.Info(); err == nil {
			files = append(files, file{e.Name(), fi.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	for _, f := range files[:max(0, len(files)-maxRecords*9/10)] {
		os.Remove(filepath.Join(r.dir, f.name))
	}
}
