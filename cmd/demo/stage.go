package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/testscripts/gitserver"
	"gitopsd.dev/testscripts/registry"
	"gitopsd.dev/testscripts/runtimeimage"
	"gitopsd.dev/testscripts/sigstore"
	"gitopsd.dev/testscripts/upstream"
)

// canonical is the registry that the example fleet names. The demo's own registry is a
// mirror of it.
const canonical = "registry.example.com"

// daemon is the name of the daemon among the programs.
const daemon = "gitopsd"

// fleet is the repository's name on the Git server, and user and password are its
// credentials.
const fleet, user, password = "fleet", "gitopsd", "demo-password"

// publicKey is the file with the public key that verifies the example fleet's packages.
const publicKey = "examples/fleet/base/cosign.pub"

// standIn is the name under which this program serves Cluster API's webhooks. It denies
// clusters at deniedHost, and adds the annotation mark to all others.
const standIn, deniedHost, mark = "cluster-api-stand-in", "localhost", "example.com/seen-by"

// clusterNames are the clusters of the example fleet.
var clusterNames = []string{"hub", "dev", "prod"}

// stage holds the servers and files of the demo, and tells the story.
type stage struct {
	*teller
	dir    string // everything is in it
	source string // the checkout

	registry *registry.Registry
	signer   *sigstore.Signer
	git      *gitserver.Server
	repo     *gitserver.Repo
	clone    string
	procs    []*process
	api      string // the daemon's URL
}

// process is a program in the background.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
}

func (s *stage) kubeconfigs() string        { return filepath.Join(s.dir, "clusters") }
func (s *stage) kubeconfig(n string) string { return filepath.Join(s.kubeconfigs(), n+".kubeconfig") }

// log returns the log file of a program.
func (s *stage) log(name string) string { return filepath.Join(s.dir, name+".log") }

// bin returns the path of a program that was built from the checkout.
func (s *stage) bin(name string) string { return filepath.Join(s.source, "bin", name) }

// etcdDir is the directory of the daemon's etcd.
func (s *stage) etcdDir() string { return filepath.Join(s.dir, "etcd") }

// set starts the servers and fills them.
func (s *stage) set(ctx context.Context) error {
	s.step("Three real control planes: kube-apiserver, controllers and a node each, on one etcd")
	began := time.Now()
	devcluster := exec.Command(s.bin("devcluster"), "up", "--foreground", "--dir", s.kubeconfigs(), "--clusters", strings.Join(clusterNames, ","))
	if err := s.background("devcluster", devcluster); err != nil {
		return err
	}
	for _, name := range clusterNames {
		if err := s.wait(ctx, 2*time.Minute, "cluster "+name, func() bool { return answers(s.kubeconfig(name)) }); err != nil {
			return err
		}
	}
	s.say("   %s are ready after %s", strings.Join(clusterNames, ", "), time.Since(began).Round(100*time.Millisecond))
	if err := s.runStandIn(ctx); err != nil {
		return err
	}

	s.step("A registry, with signed packages made of the types of real projects at two of their releases")
	var err error
	if s.registry, err = registry.New(registry.Config{}); err != nil {
		return err
	}
	if s.signer, err = sigstore.NewKey(); err != nil {
		return err
	}
	for _, p := range packages {
		dir := filepath.Join(s.dir, "packages", p.project+"-"+p.version)
		if err := upstream.Write(ctx, p.project, p.version, dir, s.w); err != nil {
			return err
		}
		if err := s.publish(ctx, dir, p.project, p.version, true); err != nil {
			return err
		}
	}
	if err := s.publish(ctx, filepath.Join(s.source, "examples/packages/platform"), "platform", "v1.0.0", false); err != nil {
		return err
	}

	s.step("A Git server, and in it a fleet: this project's own clusters.yaml and examples/")
	if s.git, err = gitserver.New(gitserver.Config{Root: filepath.Join(s.dir, "git"), Username: user, Password: password}); err != nil {
		return err
	}
	if s.repo, err = s.git.Create(ctx, fleet); err != nil {
		return err
	}
	files, err := example(s.source)
	if err != nil {
		return err
	}
	files[publicKey] = string(s.signer.PublicKey()) // the private key of the example's does not exist
	if _, err := s.repo.Commit(ctx, "main", "Register hub, dev and prod", files); err != nil {
		return err
	}
	s.clone = filepath.Join(s.dir, "clone")
	// The daemon follows the same address, which identifies the fleet.
	from := strings.Replace(s.git.URL(fleet), "://", "://"+user+":"+password+"@", 1)
	if _, err := s.command(ctx, s.dir, "git", "clone", "-q", from, s.clone); err != nil {
		return err
	}
	if err := s.introduce(ctx); err != nil {
		return err
	}
	s.say("   %s", s.git.URL(fleet))
	return nil
}

// runStandIn makes pods of Cluster API's controller run the demo's own webhook server:
// nodes here run no images.
func (s *stage) runStandIn(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range clusterNames {
		_, err := s.command(ctx, s.dir, s.bin("devcluster"), "image", "--dir", s.kubeconfigs(),
			name, canonical+"/platform/"+upstream.ClusterAPI, program, standIn,
			"-deny-field", "spec.controlPlaneEndpoint.host="+deniedHost, "-annotate", mark+"="+standIn)
		if err != nil {
			return err
		}
	}
	// Pods of gitopsd's own image run this build.
	_, err = s.command(ctx, s.dir, s.bin("devcluster"), "image", "--dir", s.kubeconfigs(),
		"dev", gitopsdImage, s.bin("gitopsd"))
	if err != nil {
		return err
	}
	s.say("   Nodes here run no images. A small webhook server of the demo's own answers in the place of")
	s.say("   Cluster API's controller, by real Services and certificates; no other controller runs")
	return nil
}

// packages lists the packages of real projects in the demo's registry: those that
// examples/ names or depends on, and the release to upgrade to.
var packages = []struct{ project, version string }{
	{upstream.CertManager, upstream.CertManagerNew},
	{upstream.ClusterAPI, upstream.ClusterAPIOld},
	{upstream.ClusterAPI, upstream.ClusterAPINew},
}

// publish builds a package from a directory, pushes it with the commands that a team
// would use, and signs it as cosign does. A controlled package is built on a stand-in for
// its controller's image.
func (s *stage) publish(ctx context.Context, dir, name, version string, controlled bool) error {
	file := filepath.Join(s.dir, name+"-"+version+".xpkg")
	build := []string{"package", "build", dir, "-o", file}
	if controlled {
		image := filepath.Join(s.dir, "runtime.tar")
		if err := runtimeimage.Write(image); err != nil {
			return err
		}
		build = append(build, "--runtime-image", image)
	}
	if _, err := s.gitopsd(ctx, build...); err != nil {
		return err
	}
	pushed, err := s.gitopsd(ctx, "package", "push", file, fmt.Sprintf("%s/platform/%s:%s", s.registry.Host(), name, version))
	if err != nil {
		return err
	}
	_, digest, _ := strings.Cut(strings.TrimSpace(pushed), "@")
	if err := s.sign(ctx, s.registry.Host()+"/platform/"+name, sources.Digest(digest)); err != nil {
		return err
	}
	s.say("   %s/platform/%s:%s is %s", canonical, name, version, digest)
	return nil
}

func (s *stage) sign(ctx context.Context, repository string, d sources.Digest) error {
	client, err := oci.New(oci.Config{})
	if err != nil {
		return err
	}
	defer client.Close()
	signature, err := s.signer.Bundle(d, sigstore.SignPredicate)
	if err != nil {
		return err
	}
	return sigstore.Push(ctx, client, repository, d, signature)
}

// example returns the files of the fleet repository: clusters.yaml and examples/.
func example(source string) (map[string]string, error) {
	files := make(map[string]string)
	root := os.DirFS(source)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && name != "examples" && !strings.HasPrefix(name, "examples/") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || name != "clusters.yaml" && !strings.HasPrefix(name, "examples/") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		files[name] = string(text)
		return err
	})
	return files, err
}

// background starts a program that ends with the demo.
func (s *stage) background(name string, cmd *exec.Cmd) error {
	log, err := os.Create(s.log(name))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the result is in cmd.ProcessState
		log.Close()
	}()
	s.procs = append(s.procs, p)
	return nil
}

// Programs that have not ended after patience are killed. If the daemon has ended, and
// its etcd with it, they get only impatience: an API server without etcd lingers for
// minutes.
const patience, impatience = 30 * time.Second, 3 * time.Second

// close ends everything: first the teams' control planes, all at once, since their etcd
// is the daemon's, then the other programs, last first.
func (s *stage) close() {
	most := patience
	var teams []*process
	var all [][]*process
	for _, p := range slices.Backward(s.procs) {
		if p.name == daemon && p.ended() {
			most = impatience
		}
		if strings.HasPrefix(p.name, teamPrefix) {
			teams = append(teams, p)
		} else {
			all = append(all, []*process{p})
		}
	}
	s.procs = nil
	stop(teams, most)
	for _, one := range all {
		stop(one, most)
	}
	if s.git != nil {
		_ = s.git.Close() // nothing depends on it any more
	}
	if s.registry != nil {
		s.registry.Close()
	}
}

// stop ends programs, and kills those that do not end in time.
func stop(all []*process, most time.Duration) {
	for _, p := range all {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	}
	late := time.After(most)
	for _, p := range all {
		select {
		case <-p.done:
			continue
		case <-late:
			late = time.After(0) // for the others too
		}
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// ended reports whether a program has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits for a condition. It returns an error if one of the programs ends first.
func (s *stage) wait(ctx context.Context, most time.Duration, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("%s: not within %s", what, most))
	defer cancel()
	for !ok() {
		for _, p := range s.procs {
			if p.ended() {
				return fmt.Errorf("%s ended while the demo waited for %s: %s\n%s", p.name, what, p.cmd.ProcessState, s.tail(p.name))
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// logged waits until the daemon's log matches, and returns the match with its groups.
func (s *stage) logged(ctx context.Context, most time.Duration, what string, pattern *regexp.Regexp) (match []string, err error) {
	err = s.wait(ctx, most, what, func() bool {
		text, _ := os.ReadFile(s.log(daemon)) // nothing matches in an unreadable log
		match = pattern.FindStringSubmatch(string(text))
		return match != nil
	})
	return match, err
}

// command runs a program and returns its stdout.
func (s *stage) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// Settings of gitopsd in this environment are for another fleet.
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GITOPSD_") })
	cmd.Env = append(own, gitserver.Env(s.dir)...)
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, out, lastLines(stderr.String()))
	}
	return string(out), nil
}

// gitopsd runs a gitopsd command in the clone.
func (s *stage) gitopsd(ctx context.Context, args ...string) (string, error) {
	dir := s.clone
	if dir == "" {
		dir = s.dir
	}
	return s.command(ctx, dir, s.bin("gitopsd"), args...)
}

// fleetFlags appends the flags for the demo's servers to a gitopsd command.
func (s *stage) fleetFlags(args ...string) []string {
	return append(args, "--kubeconfig-dir", s.kubeconfigs(), "--cache-dir", filepath.Join(s.dir, "cache"),
		"--registry-mirror", canonical+"="+s.registry.Host())
}

// status returns the daemon's status.
func (s *stage) status() (status.Snapshot, error) {
	var snap status.Snapshot
	resp, err := http.Get(s.api + "/status")
	if err != nil {
		return snap, err
	}
	defer resp.Body.Close()
	return snap, json.NewDecoder(resp.Body).Decode(&snap)
}

func lines(text string) iter.Seq[string] {
	return strings.SplitSeq(strings.TrimRight(text, "\n"), "\n")
}

// tail returns the end of a program's log, if it can be read.
func (s *stage) tail(name string) string {
	text, _ := os.ReadFile(s.log(name))
	return lastLines(string(text))
}

func lastLines(text string) string {
	all := slices.Collect(lines(text))
	return strings.Join(all[max(0, len(all)-15):], "\n")
}
