// Package conformance runs tests of other projects through gitopsd's proxy: Kubernetes' tests of
// its storage, and etcd's tests of keys, watches, leases and transactions.
//
// The tests come from the projects' Go modules at pinned releases, which are copied. In the copy,
// the function that returns a client of etcd is replaced (testdata): it starts a proxy, and returns a
// client of a namespace. Tests that do not pass are listed in testdata with the reason. A test that
// fails or is skipped without being listed fails this test, and so does a listed one that passes.
//
// `make conformance` runs it.
package conformance

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/testscripts/upstream"
)

var all = flag.Bool("all", false, "run the tests of etcd and Kubernetes, which takes minutes")

// suite is a project's tests.
type suite struct {
	module upstream.Module
	// files are copied from testdata, by their path in the module.
	files map[string]string
	// edits are made in files of the module.
	edits []edit
	// without are files and requirements that are left out.
	without struct{ files, requirements []string }
	tags    string
	runs    []run
	// known is the file of testdata with what does not pass.
	known string
}

// run is some of the tests of packages.
type run struct {
	packages []string // below the module
	pattern  string   // as for go test -run
}

// edit replaces the only occurrence of a text in a file.
type edit struct{ file, old, new string }

// The storage of API servers works on a namespace as on an etcd.
func TestKubernetes(t *testing.T) {
	suite{
		module: upstream.APIServerModule,
		files: map[string]string{
			"kubernetes/gitopsd.go":      "pkg/storage/etcd3/testserver/gitopsd.go",
			"kubernetes/certificates.go": "pkg/storage/etcd3/testing/testingcert/certificates.go",
		},
		edits: []edit{{"pkg/storage/etcd3/testserver/test_server.go", "func RunEtcd(", "func runEtcdWithoutProxy("}},
		runs: []run{{
			packages: []string{"pkg/storage/etcd3/...", "pkg/storage/cacher/...", "pkg/storage/storagebackend/...", "pkg/registry/generic/registry"},
			pattern:  "^Test",
		}},
		known: "kubernetes.txt",
	}.test(t)
}

// etcd's own tests pass behind the proxy.
func TestEtcd(t *testing.T) {
	s := suite{
		module: upstream.EtcdTestsModule,
		files:  map[string]string{"etcd/gitopsd.go": "framework/integration/cluster_direct.go"},
		edits:  []edit{{"framework/integration/testing.go", "	return clientv3.New(cfg)\n", "	return newClientV3(cfg)\n"}},
		tags:   "integration",
		runs: []run{
			{[]string{"common"}, "^Test(KV|Watch|Lease|Txn)"},
			{[]string{"integration/clientv3/watch"}, "^Test"},
			{[]string{"integration/clientv3/lease"}, "^Test"},
			{[]string{"integration/clientv3/concurrency"}, "^Test"},
			{[]string{"integration"}, "^TestV3(Put|Txn|Range|DeleteRange|Compact|KV|Stream|Hash|Storage|TooLarge|Lease|STM)|^TestSTM|^TestLease|^TestKV"},
			{[]string{"integration/clientv3"}, "^Test(KV|Txn|Namespace)"},
		},
		known: "etcd.txt",
	}
	// Tests of a cache for clients, a module of its own of which no release was published.
	s.without.files = []string{"integration/cache_test.go"}
	s.without.requirements = []string{"go.etcd.io/etcd/cache/v3"}
	s.test(t)
}

func (s suite) test(t *testing.T) {
	if !*all {
		t.Skip("-all was not given: it compiles others' tests and runs them for minutes")
	}
	dir := filepath.Join(t.TempDir(), "module")
	if err := s.copy(t, dir); err != nil {
		t.Fatal(err)
	}
	known, err := readKnown(filepath.Join("testdata", s.known))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range proxytest.Kinds {
		t.Run(kind.Name, func(t *testing.T) { s.through(t, dir, kind, known) })
	}
}

// through runs the tests through a kind of proxy.
func (s suite) through(t *testing.T, dir string, kind proxytest.Kind, known map[string]expectation) {
	results := make(map[string]result)
	for _, r := range s.runs {
		maps.Copy(results, s.run(t, dir, r, kind, known))
	}
	problems := compare(known, results)
	for _, r := range again(problems) {
		t.Logf("%s in %s: once more, since some of them have limits that a busy machine passes", r.pattern, r.packages[0])
		maps.Copy(results, s.run(t, dir, r, kind, known))
	}
	if len(problems) > 0 {
		problems = compare(known, results)
	}
	passed := 0
	for _, r := range results {
		if r.outcome == "pass" {
			passed++
		}
	}
	for _, p := range problems {
		t.Error(p.text)
	}
	t.Logf("%d tests passed; %d are listed in %s", passed, len(known), s.known)
	if passed < 100 {
		t.Errorf("only %d tests passed; were they run?", passed)
	}
}

// copy copies the module and changes the copy.
func (s suite) copy(t *testing.T, dir string) error {
	if err := s.module.Copy(t.Context(), dir, os.Stderr); err != nil {
		return err
	}
	for from, to := range s.files {
		text, err := os.ReadFile(filepath.Join("testdata", from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o644); err != nil {
			return err
		}
	}
	for _, e := range s.edits {
		name := filepath.Join(dir, e.file)
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			return fmt.Errorf("%s has %q %d times", e.file, e.old, n)
		}
		if err := os.WriteFile(name, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o644); err != nil {
			return err
		}
	}
	for _, name := range s.without.files {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return require(t, dir, s.without.requirements)
}

// require makes the copy use this module, and drops the modules that are left out. The copy's go.mod may
// replace modules by directories that were not copied.
func require(t *testing.T, dir string, without []string) error {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	cmd := upstream.Command(t, "go", "mod", "edit", "-json")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go mod edit: %w", err)
	}
	var mod struct {
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return err
	}
	args := []string{"mod", "edit", "-require=gitopsd.dev@v0.0.0", "-replace=gitopsd.dev=" + root}
	for _, r := range mod.Replace {
		args = append(args, "-dropreplace="+r.Old.Path)
	}
	for _, module := range without {
		args = append(args, "-droprequire="+module)
	}
	cmd = upstream.Command(t, "go", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go mod edit: %w\n%s", err, out)
	}
	ours, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "go.sum"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(ours)
	return errors.Join(err, f.Close())
}

// result is the result of a test, with its output.
type result struct{ outcome, output string }

// run runs tests, and returns results by package and name, "pkg/storage/etcd3 TestCreate".
// A test that is listed as not run is not.
func (s suite) run(t *testing.T, dir string, r run, kind proxytest.Kind, known map[string]expectation) map[string]result {
	t.Helper()
	args := []string{"test", "-mod=mod", "-json", "-count", "1", "-vet", "off", "-timeout", "25m", "-tags", s.tags, "-run", r.pattern}
	if omitted := omittedBy(known, r.packages); omitted != "" {
		args = append(args, "-skip", omitted)
	}
	for _, p := range r.packages {
		args = append(args, "./"+p)
	}
	cmd := upstream.Command(t, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath", kind.Env())
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	results, broken := read(s.module.Path, stdout)
	// Tests may fail as expected; what could not be built or ended early may not.
	if err := cmd.Wait(); err != nil && (len(results) == 0 || broken != "") {
		t.Fatalf("go %s: %v\n%s%s", strings.Join(args, " "), err, stderr.String(), broken)
	}
	return results
}

// read reads the output of go test -json. broken is the output of packages that failed
// without a test that did.
func read(module string, r io.Reader) (results map[string]result, broken string) {
	type key struct{ pkg, test string }
	results = make(map[string]result)
	outputs := make(map[key]*strings.Builder)
	failed := make(map[string]bool)
	for decoder := json.NewDecoder(r); ; {
		var e struct{ Action, Package, ImportPath, Test, Output string }
		if err := decoder.Decode(&e); err != nil {
			return results, broken
		}
		k := key{e.Package, e.Test}
		if outputs[k] == nil {
			outputs[k] = new(strings.Builder)
		}
		switch e.Action {
		case "output", "build-output":
			outputs[k].WriteString(e.Output)
			if e.Action == "build-output" {
				broken += e.Output
			}
		case "pass", "fail", "skip":
			if e.Test == "" {
				if e.Action == "fail" && !failed[e.Package] {
					for of, output := range outputs { // tests that did not end, too
						if of.pkg == e.Package {
							broken += output.String()
						}
					}
				}
				continue
			}
			failed[e.Package] = failed[e.Package] || e.Action == "fail"
			name := strings.TrimPrefix(e.Package, module+"/") + " " + e.Test
			results[name] = result{e.Action, outputs[k].String()}
			delete(outputs, k)
		}
	}
}

// expectation is a line of a list: tests that do not pass. Their names may be a pattern of
// path.Match.
type expectation struct {
	// outcome is "fail", "skip", or "omit": not run, nor what is below it.
	outcome string
	reason  string
}

// readKnown reads a list: lines such as "fail pkg/storage/etcd3 TestCreate: the reason".
func readKnown(file string) (map[string]expectation, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	known := make(map[string]expectation)
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		what, reason, ok := strings.Cut(line, ": ")
		words := strings.Fields(what)
		if _, err := path.Match(what, ""); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		if !ok || reason == "" || len(words) != 3 || !slices.Contains([]string{"fail", "skip", "omit"}, words[0]) {
			return nil, fmt.Errorf("%s:%d: want fail, skip or omit, a package, a test, a colon and a reason", file, i+1)
		}
		name := words[1] + " " + words[2]
		if _, twice := known[name]; twice {
			return nil, fmt.Errorf("%s:%d: %s is listed twice", file, i+1, name)
		}
		known[name] = expectation{words[0], reason}
	}
	return known, nil
}

// omittedBy returns a pattern for go test -skip.
func omittedBy(known map[string]expectation, packages []string) string {
	var names []string
	for name, e := range known {
		pkg, test, _ := strings.Cut(name, " ")
		if e.outcome == "omit" && slices.ContainsFunc(packages, func(p string) bool { return matches(p, pkg) }) {
			names = append(names, "^"+regexp.QuoteMeta(test)+"$")
		}
	}
	slices.Sort(names)
	return strings.Join(names, "|")
}

// matches reports whether a pattern of packages, as in "pkg/storage/...", has a package.
func matches(pattern, pkg string) bool {
	parent, tree := strings.CutSuffix(pattern, "/...")
	return pkg == parent || tree && strings.HasPrefix(pkg, parent+"/")
}

// problem is a difference from the list, with the test or the line of the list.
type problem struct{ name, text string }

// again returns how to run the tests with problems again, each as a whole.
func again(problems []problem) (runs []run) {
	tests := make(map[string][]string) // by package
	for _, p := range problems {
		pkg, test, _ := strings.Cut(p.name, " ")
		test, _, _ = strings.Cut(test, "/")
		tests[pkg] = append(tests[pkg], regexp.QuoteMeta(test))
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		names := slices.Compact(slices.Sorted(slices.Values(tests[pkg])))
		runs = append(runs, run{[]string{pkg}, "^(" + strings.Join(names, "|") + ")$"})
	}
	return runs
}

// compare returns the differences from the list. A test fails with its listed subtests, without being
// listed itself.
func compare(known map[string]expectation, results map[string]result) (problems []problem) {
	wrong := func(name, format string, args ...any) {
		problems = append(problems, problem{name, name + ": " + fmt.Sprintf(format, args...)})
	}
	listed, ran := make(map[string]expectation), make(map[string]bool) // by test, and by line
	for name := range results {
		for pattern, e := range known {
			if ok, _ := path.Match(pattern, name); ok {
				listed[name], ran[pattern] = e, true
			}
		}
	}
	below := func(name string) bool {
		depth := strings.Count(name, "/") + 1
		for k, e := range known {
			parts := strings.Split(k, "/")
			if e.outcome != "fail" || len(parts) <= depth {
				continue
			}
			if ok, _ := path.Match(strings.Join(parts[:depth], "/"), name); ok {
				return true
			}
		}
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r, k := results[name], listed[name]
		switch {
		case r.outcome == "pass" && k.outcome == "", r.outcome == k.outcome:
		case r.outcome == "fail" && below(name):
		case k.outcome == "":
			wrong(name, "%s, and is not listed:\n%s", r.outcome, r.output)
		default:
			wrong(name, "%s, and is listed as %s, since %s", r.outcome, k.outcome, k.reason)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !ran[name] && known[name].outcome != "omit" {
			wrong(name, "is listed as %s, and was not run", known[name].outcome)
		}
	}
	return problems
}

// Both kinds of differences from the list are detected.
func TestCompare(t *testing.T) {
	known := map[string]expectation{
		"a TestListed": {"fail", "r"}, "a TestParent/sub": {"fail", "r"}, "a TestSkipped": {"skip", "r"}, "a TestOmitted": {"omit", "r"},
		"a TestMany/*/x": {"skip", "r"}, "a TestDeep/*/x": {"fail", "r"},
	}
	as := func(more ...string) map[string]result {
		m := map[string]result{"a TestListed": {"fail", ""}, "a TestParent": {"fail", ""}, "a TestParent/sub": {"fail", ""}, "a TestSkipped": {"skip", ""}, "a TestGood": {"pass", ""},
			"a TestMany/0/x": {"skip", ""}, "a TestMany/1/x": {"skip", ""}, "a TestDeep/0/x": {"fail", ""}, "a TestDeep/0": {"fail", ""}, "a TestDeep": {"fail", ""}}
		for _, change := range more {
			name, outcome, _ := strings.Cut(change, "=")
			m[name] = result{outcome, ""}
			if outcome == "" {
				delete(m, name)
			}
		}
		return m
	}
	for change, want := range map[string]int{
		"a TestGood=pass":       0,
		"a TestGood=fail":       1,
		"a TestGood=skip":       1,
		"a TestListed=pass":     1,
		"a TestListed=skip":     1,
		"a TestListed=":         1,
		"a TestSkipped=pass":    1,
		"a TestSkipped=fail":    1,
		"a TestParent/sub=pass": 1,
		"a TestOther=fail":      1,
		"b TestListed=fail":     1,
		"a TestOmitted=pass":    1,
		"a TestMany/1/x=pass":   1,
		"a TestMany/1/x=":       0,
		"a TestMany/2/x=skip":   0,
		"a TestMany/1/y=skip":   1,
		"a TestDeep/0/y=fail":   1,
		"a TestDeep/1=pass":     0,
	} {
		if problems := compare(known, as(change)); len(problems) != want {
			t.Errorf("%s: %v", change, problems)
		}
	}
}

// Tests that differ from the list are run again, by test and package.
func TestAgain(t *testing.T) {
	runs := again([]problem{{name: "b TestX/sub"}, {name: "a TestY"}, {name: "b TestZ/*/1"}, {name: "b TestX/other"}})
	if want := []run{{[]string{"a"}, "^(TestY)$"}, {[]string{"b"}, "^(TestX|TestZ)$"}}; !reflect.DeepEqual(runs, want) {
		t.Errorf("%v", runs)
	}
}

// The output of go test is parsed, also for a package that fails before its tests.
func TestRead(t *testing.T) {
	const text = `{"Action":"run","Package":"m/a","Test":"TestX"}
{"Action":"output","Package":"m/a","Test":"TestX","Output":"why\n"}
{"Action":"fail","Package":"m/a","Test":"TestX"}
{"Action":"fail","Package":"m/a"}
{"Action":"output","Package":"m/b","Output":"no main\n"}
{"Action":"fail","Package":"m/b"}
`
	results, broken := read("m", strings.NewReader(text))
	if r := results["a TestX"]; len(results) != 1 || r != (result{"fail", "why\n"}) || broken != "no main\n" {
		t.Errorf("%v, %q", results, broken)
	}
}
