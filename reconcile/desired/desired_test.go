package desired

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

// files is a fleet repository, path to content.
type files map[string]string

func (f files) commit() sources.Commit {
	tree := make(fstest.MapFS)
	for name, text := range f {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return sources.Commit{Hash: "c", Files: tree}
}

func cluster(name string) string {
	return fmt.Sprintf("---\napiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec: {path: c/%s, kubeconfig: {file: %s}}\n", name, name, name)
}

func configuration(name, ref string) string {
	return fmt.Sprintf("---\napiVersion: pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: %s}\nspec: {package: %s}\n", name, ref)
}

const configMap = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm, namespace: default}\n"

// shelf resolves every tag but "missing", and counts what is fetched.
func shelf(fetched *int) resolve.Config {
	return resolve.Config{
		Digest: func(_ context.Context, from sources.Origin, tag string) (sources.Digest, error) {
			ref := sources.Ref{Repository: from.Repository, Tag: tag}
			if ref.Tag == "missing" {
				return "", fmt.Errorf("%s: not found", ref)
			}
			return sources.DigestOf([]byte(ref.String())), nil
		},
		Fetch: func(_ context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			*fetched++
			return &sources.Package{Repository: from.Repository, Digest: d, Content: d, Meta: sources.PackageMeta{Kind: sources.Configuration, Name: "x"}}, nil
		},
	}
}

// What is wrong with one cluster or package stays there, and everything else is
// computed.
func TestFaultsStayWhereTheyAre(t *testing.T) {
	var fetched int
	f := files{
		"clusters.yaml":  cluster("good") + cluster("half") + cluster("bad") + cluster("gone") + strings.Replace(cluster("typo"), "path", "paht", 1),
		"c/good/a.yaml":  configuration("a", "reg.io/a:v1") + configMap,
		"c/half/a.yaml":  configuration("a", "reg.io/a:v1") + configuration("b", "reg.io/b:missing") + configMap,
		"c/bad/a.yaml":   "kind: [\n",
		"clusters.lock":  "@bad reg.io/a v0\n@left reg.io/a v0\n@typo reg.io/a v0\n",
		"c/unused/x.txt": "",
	}
	s, err := New(Config{Resolve: shelf(&fetched)}).Compute(t.Context(), f.commit(), Earlier{})
	if err != nil {
		t.Fatal(err)
	}
	if good := s.Get("good"); !good.Complete() || good.Objects.Len() != 1 || len(good.Packages) != 1 {
		t.Errorf("good: %v %v", good.Err, good.Faults)
	}
	half := s.Get("half")
	if half.Complete() || half.Err != nil || half.Objects.Len() != 1 || len(half.Packages) != 1 {
		t.Errorf("half: %v %v", half.Err, half.Faults)
	}
	if !half.Keeps(manifest.ID{Kind: "X", Name: "x"}, "b") || half.Keeps(manifest.ID{Kind: "X", Name: "x"}, "") {
		t.Error("half does not keep what the package that cannot be resolved has, and that alone")
	}
	if bad := s.Get("bad"); bad.Err == nil || bad.Objects != nil {
		t.Errorf("bad: %v", bad.Err)
	}
	if gone := s.Get("gone"); gone.Err == nil || !strings.Contains(gone.Err.Error(), "there is no c/gone in the repository") {
		t.Errorf("gone: %v", gone.Err)
	}
	// What the files decide lasts; that a package was not found may pass.
	for _, p := range s.AllProblems() {
		if lasts := p.Package == ""; p.Lasting != lasts {
			t.Errorf("%s lasts: %t", p, p.Lasting)
		}
	}
	if s.Get("typo") != nil || s.RegistryErr == nil {
		t.Errorf("typo: %v", s.RegistryErr)
	}
	for _, want := range []string{"clusters.yaml:25: paht", "c/bad/a.yaml:1", "reg.io/b:missing: not found", "there is no c/gone"} {
		if !strings.Contains(s.Err().Error(), want) {
			t.Errorf("%q is not in\n%v", want, s.Err())
		}
	}
	lock := string(s.Lock.Format())
	for line, stays := range map[string]bool{"@bad reg.io/a v0\n": true, "@typo reg.io/a v0\n": true, "@left ": true, "@good reg.io/a v1\n": true, "@half reg.io/b": false} {
		if strings.Contains(lock, line) != stays {
			t.Errorf("lock: %q there: %t\n%s", line, !stays, lock)
		}
	}
	// Only a registry without errors says that a cluster left.
	f["clusters.yaml"] = strings.Replace(f["clusters.yaml"], "paht", "path", 1)
	if s, err = New(Config{Resolve: shelf(new(int))}).Compute(t.Context(), f.commit(), Earlier{}); err != nil || s.RegistryErr != nil {
		t.Fatal(err, s.RegistryErr)
	}
	if lock := string(s.Lock.Format()); strings.Contains(lock, "@left ") {
		t.Errorf("the cluster that left is in the lock\n%s", lock)
	}
	if fetched != 1 {
		t.Errorf("the package of two clusters was fetched %d times", fetched)
	}
}

// Packages are kept between computations, for as long as a cluster uses them.
func TestPackagesAreKept(t *testing.T) {
	var fetched int
	c := New(Config{Resolve: shelf(&fetched)})
	f := files{"clusters.yaml": cluster("dev"), "c/dev/a.yaml": configuration("a", "reg.io/a:v1")}
	for range 3 {
		if _, err := c.Compute(t.Context(), f.commit(), Earlier{}); err != nil {
			t.Fatal(err)
		}
	}
	if fetched != 1 {
		t.Errorf("%d fetches for three computations", fetched)
	}
	f["c/dev/a.yaml"] = configMap
	if _, err := c.Compute(t.Context(), f.commit(), Earlier{}); err != nil {
		t.Fatal(err)
	}
	if len(c.packages) != 0 {
		t.Error("a package that nobody uses is kept")
	}
}

func TestAllowances(t *testing.T) {
	var fetched int
	declared := func(text string) *Unit {
		f := files{"clusters.yaml": cluster("dev"), "c/dev/a.yaml": strings.Replace(configuration("a", "reg.io/a:v2"), "{name: a}", "{name: a, annotations: {gitopsd.dev/allow-breaking: '"+text+"'}}", 1)}
		s, err := New(Config{Resolve: shelf(&fetched)}).Compute(t.Context(), f.commit(), Earlier{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Get("dev")
	}
	name := compat.Names()[0]
	finding := compat.Finding{Name: name, Severity: compat.Breaking}
	if reason, ok := declared("v2:"+name+"=checked").Allows("a", finding); !ok || reason != "checked" {
		t.Errorf("allowed %t: %q", ok, reason)
	}
	if _, ok := declared("v1:"+name+"=checked").Allows("a", finding); ok {
		t.Error("an allowance outlives its version")
	}
	wrong := declared("v2:nonsense=checked")
	const fault = `cluster dev: package a: annotation gitopsd.dev/allow-breaking: there is no finding "nonsense": take the name from the plan (c/dev/a.yaml:2)`
	if _, ok := wrong.Allows("a", finding); ok || len(wrong.Faults) != 1 || wrong.Faults[0].Error() != fault || wrong.Objects == nil {
		t.Errorf("an allowance that cannot be read: faults %v", wrong.Faults)
	}
	named := func(kind sources.PackageKind, allow string) sources.Selected {
		tree := map[string]any{"metadata": map[string]any{"annotations": map[string]any{manifest.AllowBreakingAnnotation: allow}}}
		return sources.Selected{Declaration: sources.Declaration{Kind: kind, Name: "a", Document: sources.Document{Tree: tree}}, Pin: sources.Pin{Ref: sources.Ref{Tag: "v2"}}}
	}
	beside := &Unit{Packages: []sources.Selected{named(sources.Provider, ""), named(sources.Function, "v2:"+name+"=checked")}}
	beside.readAllowances()
	if _, ok := beside.Allows("a", finding); ok {
		t.Error("a Function allows what a Provider of its name breaks")
	}
}

// What is wrong in several clusters alike is listed once, and what is wrong in one
// with its name.
func TestProblems(t *testing.T) {
	var fetched int
	f := files{
		"clusters.yaml": cluster("one") + cluster("two") + cluster("twice") + strings.Replace(cluster("typo"), "path", "paht", 1),
		"c/one/a.yaml":  configuration("a", "reg.io/a:missing") + configuration("b", "reg.io/b:missing"),
		"c/two/a.yaml":  configuration("a", "reg.io/a:missing"), "c/twice/a.yaml": configMap, "c/twice/b.yaml": configMap,
	}
	s, err := New(Config{Resolve: shelf(&fetched)}).Compute(t.Context(), f.commit(), Earlier{})
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, p := range s.Problems() {
		have = append(have, p.String())
	}
	want := []string{
		"clusters.yaml:20: paht: is not a field here; did you mean path?",
		"package a: reg.io/a:missing: not found (c/one/a.yaml:2, c/two/a.yaml:2)",
		"cluster one: package b: reg.io/b:missing: not found (c/one/a.yaml:7)",
		"cluster twice: c/twice: ConfigMap cm is defined more than once: by c/twice/a.yaml:2 and by c/twice/b.yaml:2; keep one definition",
	}
	if !slices.Equal(have, want) {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	if again := problem.Of(s.Err()); !slices.Equal(again, s.Problems()) {
		t.Errorf("the error has %v", again)
	}
}

func TestNothingToCompute(t *testing.T) {
	var fetched int
	for _, tt := range []struct {
		name string
		only []string
		f    files
		want string
	}{
		{name: "no registry", f: files{"a": ""}, want: "no clusters.yaml at the root"},
		{name: "garbled lock", f: files{"clusters.yaml": cluster("dev"), "clusters.lock": "x\n"}, want: "want REPOSITORY VERSION[/ITEM] SUM; delete the line, or restore the file from Git, then run `gitopsd lock`"},
		{name: "lock cut off", f: files{"clusters.yaml": cluster("dev"), "clusters.lock": "x"}, want: "or delete the line and run `gitopsd lock`"},
		{name: "unknown cluster", only: []string{"prod"}, f: files{"clusters.yaml": cluster("dev")}, want: `cluster "prod" is not registered`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(Config{Resolve: shelf(&fetched), Only: tt.only}).Compute(t.Context(), tt.f.commit(), Earlier{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			if of := problem.Of(err); of[0].Lasting == (tt.only != nil) { // which the command line decides
				t.Errorf("lasting: %+v", of)
			}
			if errors.Is(err, ErrNoRegistry) != (tt.name == "no registry") {
				t.Errorf("ErrNoRegistry: %v", err)
			}
		})
	}
}

// The image that a DeploymentRuntimeConfig gives a controller is under the
// policies as the package is; a policy that concerns nothing is a note.
func TestControllersAreVerified(t *testing.T) {
	var fetched int
	cfg := shelf(&fetched)
	fetch := cfg.Fetch
	cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		pkg, err := fetch(ctx, from, d)
		pkg.Meta.Kind = sources.Provider
		return pkg, err
	}
	var verified []string
	refusal := errors.New("nobody has signed it")
	cfg.Verify = func(_ context.Context, from sources.Origin, d sources.Digest, p *sources.Verification) (string, error) {
		verified = append(verified, from.Repository+"@"+string(d)+" by "+p.ImageConfig)
		return "", refusal
	}
	image := "ctl.io/c@" + string(sources.DigestOf([]byte("c")))
	policy := func(name, prefix string) string {
		return fmt.Sprintf("---\napiVersion: pkg.crossplane.io/v1beta1\nkind: ImageConfig\nmetadata: {name: %s}\nspec: {matchImages: [{prefix: %s}], verification: {provider: Cosign, cosign: {authorities: "+
			"[{name: a, keyless: {identities: [{issuer: i, subject: s}]}}]}}}\n", name, prefix)
	}
	runtime := fmt.Sprintf("---\napiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata: {name: default}\nspec: {deploymentTemplate: {spec: {selector: {}, template: {spec: "+
		"{containers: [{name: package-runtime, image: '%s'}]}}}}}\n", image)
	provider := strings.Replace(configuration("a", "reg.io/a:v1"), "kind: Configuration", "kind: Provider", 1)
	f := files{
		"clusters.yaml":   cluster("plain") + cluster("signed"),
		"c/plain/a.yaml":  provider + configMap + policy("other", "reg.example.org/"),
		"c/signed/a.yaml": provider + configMap + policy("controllers", "CTL.io/") + runtime,
	}
	s, err := New(Config{Resolve: cfg}).Compute(t.Context(), f.commit(), Earlier{})
	if err != nil {
		t.Fatal(err)
	}
	plain, signed := s.Get("plain"), s.Get("signed")
	if !plain.Complete() || len(plain.Packages) != 1 {
		t.Errorf("plain: %v, %v", plain.Err, plain.Faults)
	}
	if want := `ImageConfig other: no package of this cluster begins with "reg.example.org/"`; len(plain.Notes) == 0 || !strings.Contains(plain.Notes[0], want) {
		t.Errorf("notes %q, want %q", plain.Notes, want)
	}
	if len(signed.Packages) != 0 || len(signed.Faults) != 1 || !strings.HasSuffix(signed.Faults[0].Reason, refusal.Error()) || len(signed.Notes) != 0 {
		t.Errorf("signed: %v, %v, notes %q", signed.Packages, signed.Faults, signed.Notes)
	}
	if !signed.Keeps(manifest.ID{Kind: "X", Name: "x"}, "a") {
		t.Error("what the package has is not kept")
	}
	if want := []string{image + " by controllers"}; !slices.Equal(verified, want) {
		t.Errorf("verified %q, want %q", verified, want)
	}
	if lock := string(s.Lock.Format()); !strings.Contains(lock, "@signed reg.io/a v1\n") {
		t.Errorf("the lock forgets the package:\n%s", lock)
	}
}

func TestParseID(t *testing.T) {
	for name, want := range map[string]ID{
		"prod": {Cluster: "prod"}, "prod.shop": {Cluster: "prod", Name: "shop"}, "prod.shop.team-a": {Cluster: "prod", Name: "shop.team-a"},
	} {
		if id := ParseID(name); id != want || id.String() != name {
			t.Errorf("ParseID(%q) = %+v, which is %s", name, id, id)
		}
	}
}

// The order of a package is not lost to one of another kind with its name.
func TestOrder(t *testing.T) {
	named := func(kind sources.PackageKind, after string) sources.Selected {
		tree := map[string]any{"metadata": map[string]any{"annotations": map[string]any{manifest.DependsOnAnnotation: after}}}
		return sources.Selected{Declaration: sources.Declaration{Kind: kind, Name: "platform", Document: sources.Document{Tree: tree}}}
	}
	for _, afters := range [][2]string{{"package/x", ""}, {"", "package/x"}, {"package/x", "package/y"}} {
		u := &Unit{Packages: []sources.Selected{named(sources.Provider, afters[0]), named(sources.Configuration, afters[1])}}
		have := u.Order()["platform"].DependsOn
		for _, after := range afters {
			if !strings.Contains(have, after) {
				t.Errorf("%q: %q", afters, have)
			}
		}
	}
}
