package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// savedManifest is a manifest as kept on disk, one file for each tag or digest
// it was pushed under. Blobs are kept by the backend.
type savedManifest struct {
	Repository string
	Reference  string
	MediaType  string
	Raw        []byte
}

// store passes a request to the backend, and keeps manifests on disk.
func (r *Registry) store(w http.ResponseWriter, req *http.Request) {
	repository, reference, isManifest := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/manifests/")
	if r.cfg.Dir == "" || !isManifest || req.Method != http.MethodPut {
		r.backend.ServeHTTP(w, req)
		return
	}
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := r.save(savedManifest{repository, reference, req.Header.Get("Content-Type"), raw}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(raw))
	r.backend.ServeHTTP(w, req)
}

func (r *Registry) manifestDir() string { return filepath.Join(r.cfg.Dir, "manifests") }

// save writes a manifest to disk if Dir is set.
func (r *Registry) save(m savedManifest) error {
	if r.cfg.Dir == "" {
		return nil
	}
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.manifestDir(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.manifestDir(), url.PathEscape(m.Repository+"/"+m.Reference)), content, 0o644)
}

// restore gives the backend the manifests that are on disk. Indexes come last,
// since the backend requires their children.
func (r *Registry) restore() error {
	files, err := os.ReadDir(r.manifestDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var all []savedManifest
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(r.manifestDir(), f.Name()))
		if err != nil {
			return err
		}
		var m savedManifest
		if err := json.Unmarshal(content, &m); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		all = append(all, m)
	}
	slices.SortStableFunc(all, func(a, b savedManifest) int {
		return bytes.Compare([]byte{isIndex(a.MediaType)}, []byte{isIndex(b.MediaType)})
	})
	for _, m := range all {
		if err := r.putBackend(m); err != nil {
			return err
		}
	}
	return nil
}

// putBackend stores a manifest in the backend alone.
func (r *Registry) putBackend(m savedManifest) error {
	req := httptest.NewRequest(http.MethodPut, manifestPath(m.Repository, m.Reference), bytes.NewReader(m.Raw))
	req.Header.Set("Content-Type", m.MediaType)
	rec := httptest.NewRecorder()
	r.backend.ServeHTTP(rec, req)
	if rec.Code != http.StatusCreated {
		return fmt.Errorf("manifest %s %s: status %d %s", m.Repository, m.Reference, rec.Code, rec.Body)
	}
	return nil
}

func isIndex(mediaType string) byte {
	if strings.Contains(mediaType, "index") || strings.Contains(mediaType, "manifest.list") {
		return 1
	}
	return 0
}
