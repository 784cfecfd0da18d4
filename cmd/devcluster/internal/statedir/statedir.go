// Package statedir owns the directory with devcluster's state: the clusters and their
// ports, the running processes, and their logs, keys and data.
//
//	devcluster.json        clusters and ports ([State])
//	lock                   held by a command while it changes something
//	NAME.kubeconfig        the kubeconfig for users
//	NAME/                  keys, certificates and component kubeconfigs of a cluster
//	NAME/images.json       commands that stand for images
//	NAME/pods/UID/         volumes of a pod with processes
//	NAME/logs/NAMESPACE/POD/CONTAINER.log  their output, also after their end
//	etcd/                  keys and certificates of etcd
//	etcd/data/             etcd's data, all clusters
//	logs/COMPONENT.log     output of each process
//	run/COMPONENT.json     identity of each process
//	run/owner.json         identity of `up --foreground`
//
// COMPONENT is "etcd" or NAME.WHAT, such as "hub.kube-apiserver".
//
// Files are replaced by rename, so a crash leaves the old or the new one.
package statedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"gitopsd.dev/cmd/devcluster/internal/process"
)

// State is the state that survives a restart. The zero State is a fresh
// directory.
type State struct {
	// Etcd are the ports of the etcd that all clusters share.
	Etcd Etcd `json:"etcd"`
	// Clusters are in the order in which they were added.
	Clusters []Cluster `json:"clusters"`
}

// Etcd holds ports on 127.0.0.1.
type Etcd struct {
	// ClientPort serves gRPC, PeerPort is required by etcd and unused, and
	// HTTPPort serves health: gRPC is faster on a port of its own.
	ClientPort int `json:"clientPort"`
	PeerPort   int `json:"peerPort"`
	HTTPPort   int `json:"httpPort"`
}

// Cluster is one control plane.
type Cluster struct {
	// Name is also the kubeconfig's context and the key prefix in the shared etcd.
	Name string `json:"name"`
	// Port is the API server's, on 127.0.0.1.
	Port int `json:"port"`
	// ControllerManager is set if Kubernetes' controllers run in the cluster.
	ControllerManager bool `json:"controllerManager"`
	// StorageMigration is set if it offers Kubernetes' own migration of stored
	// objects.
	StorageMigration bool `json:"storageMigration,omitempty"`
	// Etcd is set if the cluster does not use the shared etcd.
	Etcd *ExternalEtcd `json:"etcd,omitempty"`
}

// ExternalEtcd is an etcd, or a server with its API, that devcluster does not run.
type ExternalEtcd struct {
	// Servers are URLs.
	Servers []string `json:"servers"`
	// CAFile, CertFile and KeyFile are absolute paths of the servers' CA and the client's
	// certificate. All are empty without TLS.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// Cluster returns the cluster with this name, or nil.
func (s *State) Cluster(name string) *Cluster {
	i := slices.IndexFunc(s.Clusters, func(c Cluster) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Clusters[i]
}

// Names returns the names of the clusters in order.
func (s *State) Names() []string {
	names := make([]string, 0, len(s.Clusters))
	for _, c := range s.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// validName matches names that can be file names, key prefixes and parts of node names.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// reserved are the names of this directory's own folders.
var reserved = []string{"etcd", "logs", "run", "lock"}

// CheckName returns an error unless a cluster may have that name.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("cluster name %q: use at most 40 lower-case letters, digits and dashes, no dash first or last", name)
	}
	if slices.Contains(reserved, name) {
		return fmt.Errorf("cluster name %q is taken by devcluster itself, choose another", name)
	}
	return nil
}

// Dir is the directory's absolute path.
type Dir string

// Open returns the directory at path, which need not exist.
func Open(path string) (Dir, error) {
	if path == "" {
		return "", errors.New("no directory given: say where with --dir")
	}
	abs, err := filepath.Abs(path)
	return Dir(abs), err
}

// Path joins elements to the directory's path.
func (d Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Kubeconfig is the path of a cluster's kubeconfig for users.
func (d Dir) Kubeconfig(cluster string) string { return d.Path(cluster + ".kubeconfig") }

// Log is the path of a component's log file.
func (d Dir) Log(component string) string { return d.Path("logs", component+".log") }

// PodLogs is the directory of the logs of a cluster's pods,
// NAMESPACE/POD/CONTAINER.log.
func (d Dir) PodLogs(cluster string) string { return d.Path(cluster, "logs") }

func (d Dir) stateFile() string          { return d.Path("devcluster.json") }
func (d Dir) lockFile() string           { return d.Path("lock") }
func (d Dir) runFile(name string) string { return d.Path("run", name+".json") }

// ErrNotUp is returned for a directory without devcluster's state.
var ErrNotUp = errors.New("no devcluster here")

// Load reads the state, or returns [ErrNotUp].
func (d Dir) Load() (*State, error) {
	text, err := os.ReadFile(d.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", d, ErrNotUp)
	}
	if err != nil {
		return nil, err
	}
	var s State
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, fmt.Errorf("%s: %w; written by another version? Bring it down with that one", d.stateFile(), err)
	}
	return &s, nil
}

// Save writes the state and makes the folders beside it.
func (d Dir) Save(s *State) error {
	// The state is written first, since it marks the folders as devcluster's.
	if err := writeJSON(d.stateFile(), s); err != nil {
		return err
	}
	for _, folder := range []string{"logs", "run"} {
		if err := os.MkdirAll(d.Path(folder), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// Create makes the directory unless it exists.
func (d Dir) Create() error { return os.MkdirAll(string(d), 0o700) }

// CheckUnused returns an error if files exist at the paths of new clusters, or, in a fresh
// directory, at the paths that all clusters share.
func (d Dir) CheckUnused(fresh bool, clusters []string) error {
	var ours []string
	if fresh {
		ours = []string{d.Path("etcd"), d.Path("logs"), d.Path("run")}
	}
	for _, name := range clusters {
		ours = append(ours, d.Path(name), d.Kubeconfig(name))
	}
	for _, path := range ours {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s exists and is not devcluster's: choose another --dir, or remove it", path)
		}
	}
	return nil
}

// owner is the run file of `up --foreground`.
const owner = "owner"

// Owner returns the living `up --foreground` that owns all processes, or the zero ID.
func (d Dir) Owner() (process.ID, error) { return d.Running(owner) }

// RecordedOwner returns the recorded owner, which may have ended.
func (d Dir) RecordedOwner() (process.ID, error) { return d.Recorded(owner) }

// SetOwner records the process that owns all others. The zero ID removes the record.
func (d Dir) SetOwner(id process.ID) error {
	if id == (process.ID{}) {
		return d.Forget(owner)
	}
	return d.Record(owner, id)
}

// Record records the process of a component.
func (d Dir) Record(component string, id process.ID) error {
	return writeJSON(d.runFile(component), id)
}

// Forget removes the record of a component's process.
func (d Dir) Forget(component string) error {
	if err := os.Remove(d.runFile(component)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Recorded returns the recorded process of a component, or the zero ID. The process may
// have ended since.
func (d Dir) Recorded(component string) (process.ID, error) {
	text, err := os.ReadFile(d.runFile(component))
	if errors.Is(err, fs.ErrNotExist) {
		return process.ID{}, nil
	}
	if err != nil {
		return process.ID{}, err
	}
	var id process.ID
	if err := json.Unmarshal(text, &id); err != nil {
		return process.ID{}, fmt.Errorf("%s: %w", d.runFile(component), err)
	}
	return id, nil
}

// Running returns the living process of a component, or the zero ID.
func (d Dir) Running(component string) (process.ID, error) {
	id, err := d.Recorded(component)
	if err != nil || !id.Alive() {
		return process.ID{}, err
	}
	return id, nil
}

// LogSize returns the size of a component's log, 0 if there is none.
func (d Dir) LogSize(component string) (int64, error) {
	info, err := os.Stat(d.Log(component))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// LogTail returns the last n lines of a component's log after the offset from, in bytes.
// The processes of a component append to the same log.
func (d Dir) LogTail(component string, from int64, n int) string {
	f, err := os.Open(d.Log(component))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const window = 64 << 10
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	text := make([]byte, min(max(info.Size()-from, 0), window))
	if _, err := f.ReadAt(text, info.Size()-int64(len(text))); err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Temporary is the pattern for names of files and folders that are not complete yet.
const Temporary = ".devcluster-*"

// IsTemporary reports whether a name matches [Temporary].
func IsTemporary(name string) bool {
	return strings.HasPrefix(name, strings.TrimSuffix(Temporary, "*"))
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(text, '\n'))
}

// WriteFile replaces the file at path. Only the owner can read it.
func WriteFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), Temporary)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Remove deletes the state, the lock and temporary files that a crash left, and the
// directory if it is empty then. The caller holds the lock.
func (d Dir) Remove() error {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	paths := []string{d.stateFile(), d.lockFile()}
	for _, e := range entries {
		if IsTemporary(e.Name()) {
			paths = append(paths, d.Path(e.Name()))
		}
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	err = os.Remove(string(d))
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
