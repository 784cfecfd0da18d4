// Package checkpoint stores the state of each unit of work that had nothing left to do,
// together with the input of its computation. A daemon that restarts on the same commit,
// and finds the cluster unchanged, reads and renders no packages until something changes.
//
// Beside the records it keeps the last registry of clusters that had no errors, so that a
// daemon that starts while the repository cannot be used knows which clusters it serves.
//
// It is a cache: what is missing or unreadable only costs time. reconcile/apply defines the
// state of a cluster, and reconcile decides when a record may be used.
package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/status"
)

// Record is a cluster at rest, or what is left to know of one that is not.
type Record struct {
	// Input identifies all inputs of the computation: equal inputs give equal
	// results.
	Input string `json:"input"`
	// Cluster is the state of the cluster; nil if it was not at rest, and only its
	// certificates are of use.
	Cluster *apply.Checkpoint `json:"cluster,omitempty"`
	// Again is when the cluster must be looked at again although nothing changed; zero
	// for never.
	Again time.Time `json:"again,omitzero"`
	// The rest is for the status.
	Objects      int                   `json:"objects"`
	Packages     []status.PackageState `json:"packages,omitempty"`
	Certificates []status.Certificate  `json:"certificates,omitempty"`
	Notes        []string              `json:"notes,omitempty"`
}

// Equal reports whether two records are the same; either may be nil.
func (r *Record) Equal(o *Record) bool { return reflect.DeepEqual(r, o) }

// Store is a directory of records. It is safe for concurrent use on different
// clusters, also by several processes.
type Store struct{ Dir string }

func (s *Store) file(cluster string) string { return filepath.Join(s.Dir, cluster+".json") }

// Load returns the record of a cluster at rest; nil if there is none with that input, or it
// cannot be read.
func (s *Store) Load(cluster, input string) *Record {
	if r := s.read(cluster); r.Cluster != nil && r.Input == input {
		return r
	}
	return nil
}

// Certificates returns the certificates that a cluster had last, whatever the input was.
func (s *Store) Certificates(cluster string) []status.Certificate {
	return s.read(cluster).Certificates
}

// read returns the record of a cluster; the zero Record if it cannot be read.
func (s *Store) read(cluster string) *Record {
	r := new(Record)
	text, err := os.ReadFile(s.file(cluster))
	if err != nil || json.Unmarshal(text, r) != nil {
		return new(Record)
	}
	return r
}

// Save replaces the record of a cluster. The error is the file system's; the old record
// stays then.
func (s *Store) Save(cluster string, r *Record) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = s.write(s.file(cluster), text)
	}
	if err != nil {
		return fmt.Errorf("checkpoint of cluster %s: %w", cluster, err)
	}
	return nil
}

// registry is the name of a registry's file, which no cluster has.
const registry = "clusters.yaml"

// LoadRegistry returns the text of the registry, and when it was saved; empty if there is none.
// The error is the file system's.
func (s *Store) LoadRegistry(context.Context) (text []byte, saved time.Time, err error) {
	name := filepath.Join(s.Dir, registry)
	info, err := os.Stat(name)
	if err == nil {
		text, err = os.ReadFile(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, time.Time{}, nil
	case err != nil:
		return nil, time.Time{}, err
	}
	return text, info.ModTime(), nil
}

// SaveRegistry replaces the text of the registry. The error is the file system's; the old
// text stays then.
func (s *Store) SaveRegistry(_ context.Context, text []byte) error {
	if err := s.write(filepath.Join(s.Dir, registry), text); err != nil {
		return fmt.Errorf("the registry of clusters in the cache: %w", err)
	}
	return nil
}

func (s *Store) write(file string, text []byte) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.Dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	// Not synced: whoever loads ignores what a crash of the machine left half written.
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Delete removes the record of a cluster, if there is one.
func (s *Store) Delete(cluster string) error {
	if err := os.Remove(s.file(cluster)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checkpoint of cluster %s: %w", cluster, err)
	}
	return nil
}
