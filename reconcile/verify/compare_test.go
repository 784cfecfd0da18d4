package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// digest is a digest that is told by one character.
func digest(c string) sources.Digest { return sources.Digest("sha256:" + strings.Repeat(c, 64)) }

// The lock of the tests: widgets v1 is an index of 1 with the platforms 2 and 3,
// v2 is the single manifest 4.
var known = []lockfile.Image{
	{Repository: "reg.io/widgets", Version: "v1", Digest: digest("1"), Platforms: []sources.Digest{digest("2"), digest("3")}},
	{Repository: "reg.io/widgets", Version: "v2", Digest: digest("4")},
}

// typed are types with a digest that is told by a word.
func typed(kind, schema string) []types.Type {
	return []types.Type{{Group: "acme.example", Version: "v1", Kind: kind, Digest: "h1:" + schema}}
}

func definitionID(kind string) manifest.ID {
	return manifest.ID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: strings.ToLower(kind) + "s.acme.example"}
}

// fleet makes clusters that are all alike: package widgets v1 with the kinds
// Gadget and Widget, and a controller that runs.
func fleet(names ...string) []Facts {
	var all []Facts
	for _, name := range names {
		c := Facts{Name: name, Definitions: make(map[manifest.ID]*Definition), Controllers: make(map[manifest.ID]*Controller)}
		settings := []behaviour.Part{{Name: "package-runtime argument --debug", Value: "off"}}
		wanted := &behaviour.Identity{
			Workload: manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "gitopsd-system", Name: "widgets"},
			Images:   []behaviour.Part{{Name: "package-runtime", Value: string(digest("1"))}}, Settings: settings,
		}
		for _, kind := range []string{"Gadget", "Widget"} {
			c.Definitions[definitionID(kind)] = &Definition{
				ID: definitionID(kind), Kind: kind, Group: "acme.example", Package: "widgets", Source: "reg.io/widgets v1",
				Rendered: typed(kind, "one"), Live: typed(kind, "one"), Behaviour: wanted,
			}
		}
		c.Controllers[wanted.Workload] = &Controller{Wanted: wanted, Source: "reg.io/widgets v1", Instances: []Instance{running("1")}}
		c.Webhooks = []Webhook{{ID: manifest.ID{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration", Name: "widgets"}, Package: "widgets", Rendered: "sha256:one"}}
		all = append(all, c)
	}
	return all
}

// running is a pod with an image ID.
func running(id string) Instance {
	return Instance{
		Pod: "gitopsd-system/widgets-x", Pods: 1,
		Images:   []behaviour.Part{{Name: "package-runtime", Value: "mirror.example.org/w@" + string(digest(id))}},
		Settings: []behaviour.Part{{Name: "package-runtime argument --debug", Value: "off"}},
	}
}

// beside returns a pod with the image IDs of two containers, "" for one without.
func beside(id, proxy string) Instance {
	i := running(id)
	i.Images = []behaviour.Part{{Name: "package-runtime"}, {Name: "proxy"}}
	for n, id := range []string{id, proxy} {
		if id != "" {
			i.Images[n].Value = "mirror.example.org/w@" + string(digest(id))
		}
	}
	return i
}

// half returns a pod in which only the containers with an image ID were started.
func half(id, proxy string) Instance {
	i := beside(id, proxy)
	i.Partly = true
	return i
}

// replicas sets the pods of a controller that is rendered with two containers.
func (c *Controller) replicas(all ...Instance) {
	c.Wanted.Images = append(c.Wanted.Images, behaviour.Part{Name: "proxy", Value: string(digest("4"))})
	c.Instances, c.Waiting = all, []string{"pod a/b: container proxy: ImagePullBackOff"}
}

func (c *Facts) widget() *Definition { return c.Definitions[definitionID("Widget")] }

func (c *Facts) controller() *Controller {
	for _, only := range c.Controllers {
		return only
	}
	return nil
}

// options are those of the tests: schemas cannot be read.
var options = Options{
	Images: known,
	Tree:   func(string, manifest.ID) (map[string]any, error) { return nil, errors.New("not here") },
}

// Where the workload itself has the image, deleting pods is no remedy, and nobody is
// told to; the same image on a node of another cluster is a finding of its own.
func TestHeldImage(t *testing.T) {
	for _, id := range []string{"9", "4"} { // unknown, and of another version in the lock
		clusters := fleet("dev", "prod", "staging")
		const held = "Deployment gitopsd-system/widgets itself has the image x for container package-runtime, set by kubectl-set"
		clusters[0].controller().Instances = []Instance{running(id)}
		clusters[1].controller().Instances = []Instance{running(id)}
		clusters[1].controller().Held = []string{held}
		r := Compare(t.Context(), clusters, options)
		if len(r.Findings) != 2 {
			t.Fatalf("%s: findings %+v", id, r.Findings)
		}
		for _, f := range r.Findings {
			by := f.Sides[0].Clusters[0] == "prod"
			if len(f.Sides[0].Clusters) != 1 || by != slices.Contains(f.Details, "prod: "+held) || by != (f.Advice == heldAdvice[f.Kind]) || by == strings.Contains(f.Advice, advice[f.Kind]) {
				t.Errorf("%s: %+v", id, f)
			}
		}
	}
}

// A package without a controller is said to have none.
func TestTypesAlone(t *testing.T) {
	clusters := fleet("dev", "prod")
	for i := range clusters {
		for _, d := range clusters[i].Definitions {
			d.Behaviour = nil
		}
		clusters[i].Controllers = nil
	}
	r := Compare(t.Context(), clusters, options)
	if len(r.Findings) != 0 || !slices.Equal(r.Groups[0].NoController, []string{"Gadget.acme.example", "Widget.acme.example"}) {
		t.Errorf("%+v, %+v", r.Findings, r.Groups)
	}
	// In one cluster it has one, by a DeploymentRuntimeConfig for example.
	clusters[0] = fleet("dev")[0]
	r = Compare(t.Context(), clusters, options)
	if len(r.Findings) != 1 || r.Findings[0].Kind != ControllerDiffers || r.Findings[0].Sides[1].What != "no controller: its package has types alone" {
		t.Errorf("%+v", r.Findings)
	}
}

func TestCompare(t *testing.T) {
	both := "2 types of package widgets: "
	for _, tt := range []struct {
		name   string
		change func(dev, prod, staging *Facts)
		want   []string // titles
		what   string   // in a side or detail of the first finding
	}{
		{name: "all the same", change: func(_, _, _ *Facts) {}},
		{name: "a node reports its platform", change: func(_, prod, staging *Facts) {
			prod.controller().Instances = []Instance{running("2")}
			staging.controller().Instances = []Instance{running("3")}
		}},
		{
			name:   "a type that one cluster is not to have",
			change: func(_, prod, _ *Facts) { delete(prod.Definitions, definitionID("Widget")) },
		},
		{
			name: "conversion rules of one cluster",
			change: func(dev, prod, staging *Facts) {
				dev.widget().Conversion, prod.widget().Conversion, staging.widget().Conversion = "h1:a", "h1:b", "h1:a"
				prod.widget().Patches = []string{"conversion rules (c/prod/rules.yaml:1)"}
			},
			want: []string{"Widget.acme.example: the conversion rules differ in prod from dev and staging"},
			what: "prod: changed by its own conversion rules (c/prod/rules.yaml:1)",
		},
		{
			name: "conversion rules of other types of one name",
			change: func(dev, prod, staging *Facts) {
				dev.widget().Conversion, prod.widget().Conversion, staging.widget().Conversion = "h1:a", "h1:b", "h1:a"
				prod.widget().Rendered, prod.widget().Live = typed("Widget", "two"), typed("Widget", "two")
			},
			want: []string{"Widget.acme.example: the schema differs in prod from dev and staging"},
		},
		{
			name: "conversion rules that somebody replaced",
			change: func(dev, prod, staging *Facts) {
				dev.widget().Conversion, prod.widget().Conversion, staging.widget().Conversion = "h1:a", "h1:a", "h1:a"
				prod.widget().Converted = "other conversion rules (h1:b)"
			},
			want: []string{"Widget.acme.example: not converted as declared in prod"},
			what: "asks other conversion rules (h1:b)",
		},
		{
			name:   "another image than any in the lock",
			change: func(_, prod, _ *Facts) { prod.controller().Instances = []Instance{running("9")} },
			want:   []string{both + "nobody knows what acts on them in prod: the image that runs is not in clusters.lock"},
			what:   "unknown image sha256:999999999999 in place of reg.io/widgets v1 (sha256:111111111111)",
		},
		{
			name: "a container that somebody added",
			change: func(_, prod, _ *Facts) {
				i := &prod.controller().Instances[0]
				i.Images = append([]behaviour.Part{{Name: "extra", Value: string(digest("9"))}}, i.Images...)
			},
			want: []string{both + "nobody knows what acts on them in prod: the image that runs is not in clusters.lock"},
			what: "reg.io/widgets v1 (sha256:111111111111), with unknown image sha256:999999999999 in the added container extra",
		},
		{
			name: "a locked image in a container that somebody added",
			change: func(_, prod, _ *Facts) {
				i := &prod.controller().Instances[0]
				i.Images = append(i.Images, behaviour.Part{Name: "z", Value: string(digest("4"))})
			},
			want: []string{both + "another controller than declared acts on them in prod"},
			what: "reg.io/widgets v1 (sha256:111111111111), with reg.io/widgets v2 (sha256:444444444444) in the added container z",
		},
		{
			name:   "no image ID",
			change: func(_, prod, _ *Facts) { prod.controller().Instances[0].Images[0].Value = "" },
			want:   []string{both + "nobody knows what acts on them in prod: the image that runs is not in clusters.lock"},
			what:   "no image ID reported",
		},
		{
			name:   "another version than rendered",
			change: func(_, prod, _ *Facts) { prod.controller().Instances = []Instance{running("4")} },
			want:   []string{both + "another controller than declared acts on them in prod"},
			what:   "reg.io/widgets v2 (sha256:444444444444)",
		},
		{
			name:   "an old revision that is not gone",
			change: func(_, prod, _ *Facts) { prod.controller().Instances = []Instance{running("1"), running("4")} },
			want:   []string{both + "two controllers act on them at once in prod"},
			what:   "reg.io/widgets v1 (sha256:111111111111), and reg.io/widgets v2 (sha256:444444444444)",
		},
		{
			name: "the same controller a second time",
			change: func(_, prod, _ *Facts) {
				second := running("1")
				second.Elsewhere = true
				prod.controller().Instances = append(prod.controller().Instances, second)
			},
			want: []string{both + "two controllers act on them at once in prod"},
			what: "the same a second time",
		},
		{
			name: "nothing runs",
			change: func(_, prod, _ *Facts) {
				prod.controller().Instances = nil
				prod.controller().Waiting = []string{"pod a/b: ImagePullBackOff"}
			},
			want: []string{both + "nothing acts on them in prod: the controller does not run"},
			what: "prod: pod a/b: ImagePullBackOff",
		},
		{
			name: "not all containers run",
			change: func(_, prod, _ *Facts) {
				prod.controller().Instances[0].Partly = true
				prod.controller().Waiting = []string{"pod a/b: container proxy: CrashLoopBackOff"}
			},
			want: []string{both + "nothing acts on them in prod: the controller does not run"},
			what: "prod: pod a/b: container proxy: CrashLoopBackOff",
		},
		{
			name:   "another image in the workload, which no pod has yet",
			change: func(_, prod, _ *Facts) { prod.controller().Held = []string{"Deployment a/b itself has the image x"} },
			want:   []string{both + "the controller runs with other settings than declared in prod"},
			what:   "prod: Deployment a/b itself has the image x",
		},
		{
			name: "another image in the workload, of which no replica is wanted",
			change: func(dev, prod, staging *Facts) {
				for _, c := range []*Facts{dev, prod, staging} {
					c.controller().Instances, c.controller().Idle = nil, true
				}
				prod.controller().Held = []string{"Deployment a/b itself has the image x"}
			},
			want: []string{both + "the controller runs with other settings than declared in prod"},
			what: "prod: Deployment a/b itself has the image x",
		},
		{
			name: "another image in the workload, and other settings",
			change: func(_, prod, _ *Facts) {
				prod.controller().Instances[0].Settings = nil
				prod.controller().Held = []string{"Deployment a/b itself has the image x"}
			},
			want: []string{both + "the controller runs with other settings than declared in prod"},
			what: "prod: Deployment a/b itself has the image x",
		},
		{
			name: "another image in the workload, which one pod has",
			change: func(_, prod, _ *Facts) {
				prod.controller().Instances = []Instance{running("1"), running("9")}
				prod.controller().Held = []string{"Deployment a/b itself has the image x"}
			},
			want: []string{both + "two controllers act on them at once in prod"},
			what: "prod: Deployment a/b itself has the image x",
		},
		{
			name: "another image in the workload, which cannot be pulled",
			change: func(_, prod, _ *Facts) {
				prod.controller().Instances = nil
				prod.controller().Held = []string{"Deployment a/b itself has the image x"}
			},
			want: []string{both + "nothing acts on them in prod: the controller does not run"},
			what: "prod: Deployment a/b itself has the image x",
		},
		{
			name: "another image, and not all containers run",
			change: func(_, prod, _ *Facts) {
				prod.controller().Instances = []Instance{running("9")}
				prod.controller().Instances[0].Partly = true
			},
			want: []string{both + "nobody knows what acts on them in prod: the image that runs is not in clusters.lock"},
		},
		{
			name: "a second replica that is half started",
			change: func(dev, prod, staging *Facts) {
				dev.controller().replicas(beside("1", "4"))
				prod.controller().replicas(half("2", ""), beside("1", "4"), half("1", ""))
				staging.controller().replicas(beside("1", "4"))
			},
		},
		{
			name:   "two replicas that are half started, each with another container",
			change: func(_, prod, _ *Facts) { prod.controller().replicas(half("1", ""), half("", "4")) },
			want:   []string{both + "nothing acts on them in prod: the controller does not run"},
			what:   "prod: pod a/b: container proxy: ImagePullBackOff",
		},
		{
			name:   "a second replica that is half started with another image",
			change: func(_, prod, _ *Facts) { prod.controller().replicas(beside("1", "4"), half("9", "")) },
			want:   []string{both + "two controllers act on them at once in prod"},
			what:   "prod: pod a/b: container proxy: ImagePullBackOff",
		},
		{
			name: "a second replica that is half started with other settings",
			change: func(_, prod, _ *Facts) {
				second := half("1", "")
				second.Settings = nil
				prod.controller().replicas(beside("1", "4"), second)
			},
			want: []string{both + "two controllers act on them at once in prod"},
		},
		{
			name: "a second replica with other settings for a container that has not started",
			change: func(dev, prod, staging *Facts) {
				second := half("1", "")
				second.Settings = append(slices.Clone(second.Settings), behaviour.Part{Name: "proxy argument --debug", Value: "on"}, behaviour.Part{Name: "proxy variable A", Value: "a"})
				dev.controller().replicas(beside("1", "4"))
				prod.controller().replicas(beside("1", "4"), second)
				staging.controller().replicas(beside("1", "4"))
			},
		},
		{
			name:   "a second replica without an image ID",
			change: func(_, prod, _ *Facts) { prod.controller().replicas(beside("1", "4"), beside("1", "")) },
			want:   []string{both + "two controllers act on them at once in prod"},
			what:   "no image ID reported",
		},
		{
			name: "replicas on nodes of several platforms, one of which has the image from elsewhere",
			change: func(_, prod, _ *Facts) {
				third := running("1")
				third.Images = []behaviour.Part{{Name: "package-runtime", Value: "reg.io/widgets@" + string(digest("1"))}}
				prod.controller().Instances = []Instance{running("1"), running("2"), running("3"), third}
			},
		},
		{
			name: "nothing is to run",
			change: func(dev, prod, staging *Facts) {
				for _, c := range []*Facts{dev, prod, staging} {
					c.controller().Instances, c.controller().Idle = nil, true
				}
			},
		},
		{
			name:   "one runs where none is to run",
			change: func(_, prod, _ *Facts) { prod.controller().Idle = true },
			want:   []string{both + "the controller runs with other settings than declared in prod"},
			what:   "reg.io/widgets v1 (sha256:111111111111), and no replica is wanted",
		},
		{
			name: "the last pod ends where none is to run",
			change: func(dev, prod, staging *Facts) {
				for _, c := range []*Facts{dev, prod, staging} {
					c.controller().Instances, c.controller().Idle = nil, true
				}
				prod.controller().Instances = []Instance{running("1")}
				prod.controller().Instances[0].Ending = true
			},
		},
		{
			name: "another one ends where none is to run",
			change: func(_, prod, _ *Facts) {
				prod.controller().Idle, prod.controller().Instances = true, []Instance{running("9")}
				prod.controller().Instances[0].Ending = true
			},
			want: []string{both + "nobody knows what acts on them in prod: the image that runs is not in clusters.lock"},
		},
		{
			name:   "settings changed",
			change: func(_, prod, _ *Facts) { prod.controller().Instances[0].Settings[0].Value = "hunter2" },
			want:   []string{both + "the controller runs with other settings than declared in prod"},
			what:   "prod: other than rendered: package-runtime argument --debug",
		},
		{
			name: "settings declared differently",
			change: func(_, prod, _ *Facts) {
				wanted := *prod.controller().Wanted
				wanted.Settings = []behaviour.Part{{Name: "package-runtime argument --debug", Value: "hunter2"}}
				prod.controller().Wanted = &wanted
				prod.controller().Instances[0].Settings = wanted.Settings
				prod.controller().Patches = []string{"spec.patches[1] (clusters.yaml:7)"}
			},
			want: []string{both + "the controller's settings differ in prod from dev and staging"},
			what: "prod: changed by its own spec.patches[1] (clusters.yaml:7)",
		},
		{
			name: "versions declared differently",
			change: func(_, prod, _ *Facts) {
				wanted := *prod.controller().Wanted
				wanted.Images = []behaviour.Part{{Name: "package-runtime", Value: string(digest("4"))}}
				prod.controller().Wanted, prod.controller().Source = &wanted, "reg.io/widgets v2"
				prod.controller().Instances = []Instance{running("4")}
				prod.widget().Rendered, prod.widget().Live = typed("Widget", "two"), typed("Widget", "two")
			},
			want: []string{
				both + "the controller differs in prod from dev and staging",
				"Widget.acme.example: the schema differs in prod from dev and staging",
			},
			what: "reg.io/widgets v2 (sha256:444444444444)",
		},
		{
			name: "changed by hand",
			change: func(_, prod, _ *Facts) {
				prod.widget().Live = typed("Widget", "two")
				prod.widget().Drift = []compat.Finding{{Name: "field-removed", Severity: compat.Breaking, Path: ".spec.size"}}
			},
			want: []string{"Widget.acme.example: changed by somebody in prod"},
			what: "not what was rendered",
		},
		{
			name:   "gone",
			change: func(_, prod, _ *Facts) { prod.widget().Live = nil },
			want:   []string{"Widget.acme.example: missing in prod"},
			what:   "rendered, and not there",
		},
		{
			name: "there by hand",
			change: func(_, prod, _ *Facts) {
				*prod.widget() = Definition{ID: definitionID("Widget"), Kind: "Widget", Group: "acme.example", Live: typed("Widget", "two")}
			},
			want: []string{
				"Widget.acme.example: the schema differs in prod from dev and staging",
				"Widget.acme.example: live in prod, where nothing declares it",
			},
			what: "defined by nothing in the repository (h1:",
		},
		{
			name: "unmanaged everywhere, and the same",
			change: func(dev, prod, _ *Facts) {
				for _, c := range []*Facts{dev, prod} {
					c.Definitions[definitionID("Node")] = &Definition{ID: definitionID("Node"), Kind: "Node", Group: "acme.example", Live: typed("Node", "one")}
				}
			},
		},
		{
			name: "unmanaged everywhere, and not the same",
			change: func(dev, prod, _ *Facts) {
				for i, c := range []*Facts{dev, prod} {
					c.Definitions[definitionID("Node")] = &Definition{ID: definitionID("Node"), Kind: "Node", Group: "acme.example", Live: typed("Node", fmt.Sprint(i))}
				}
			},
			want: []string{"Node.acme.example: the schema differs between dev and prod"},
		},
		{
			name: "no majority",
			change: func(_, prod, staging *Facts) {
				prod.widget().Rendered, prod.widget().Live = typed("Widget", "two"), typed("Widget", "two")
				staging.widget().Rendered, staging.widget().Live = typed("Widget", "three"), typed("Widget", "three")
			},
			want: []string{"Widget.acme.example: the schema differs between 3 groups of clusters"},
		},
		{
			name: "images by tag",
			change: func(dev, prod, staging *Facts) {
				for i, c := range []*Facts{dev, prod, staging} {
					c.controller().Wanted.Images[0].Value = "reg.io/w:v1"
					c.controller().Instances = []Instance{running(fmt.Sprint(7 + i/2))}
				}
			},
			want: []string{both + "the controller differs in staging from dev and prod"},
			what: "reg.io/w:v1 (sha256:888888888888)",
		},
		{
			name:   "a controller that only one cluster names",
			change: func(_, prod, _ *Facts) { prod.widget().Behaviour, prod.widget().Package = nil, "" },
			want:   []string{"Widget.acme.example: the controller differs in prod from dev and staging"},
			what:   "nobody knows what: no package, and no annotation gitopsd.dev/controller",
		},
		{
			name:   "a webhook configuration that is gone",
			change: func(_, prod, _ *Facts) { prod.Webhooks[0].Missing = true },
			want:   []string{"validatingwebhookconfiguration.admissionregistration.k8s.io/widgets: not as declared in prod"},
			what:   "rendered, and not there",
		},
		{
			name:   "a webhook configuration that was changed",
			change: func(_, prod, _ *Facts) { prod.Webhooks[0].Drift = []string{"webhooks[name=w].failurePolicy"} },
			want:   []string{"validatingwebhookconfiguration.admissionregistration.k8s.io/widgets: not as declared in prod"},
			what:   "not as rendered: webhooks[name=w].failurePolicy",
		},
		{
			name:   "a webhook configuration that is another",
			change: func(_, prod, _ *Facts) { prod.Webhooks[0].Rendered = "sha256:two" },
			want:   []string{"validatingwebhookconfiguration.admissionregistration.k8s.io/widgets: differs in prod from dev and staging"},
		},
		{
			name:   "a webhook configuration that waits",
			change: func(_, prod, _ *Facts) { prod.Webhooks[0].Missing, prod.Webhooks[0].Held = true, true },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all := fleet("dev", "prod", "staging")
			tt.change(&all[0], &all[1], &all[2])
			r := Compare(t.Context(), all, options)
			var titles, texts []string
			for i := range r.Findings {
				titles = append(titles, r.Findings[i].Title())
			}
			if len(r.Findings) > 0 {
				for _, s := range r.Findings[0].Sides {
					texts = append(texts, s.What)
				}
				texts = append(texts, r.Findings[0].Details...)
			}
			if !slices.Equal(titles, tt.want) {
				t.Errorf("findings\n%s\nwant\n%s", strings.Join(titles, "\n"), strings.Join(tt.want, "\n"))
			}
			if tt.what != "" && !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, tt.what) }) {
				t.Errorf("no %q in %q", tt.what, texts)
			}
			if want := map[bool]Verdict{true: Same, false: Different}[len(tt.want) == 0]; r.Verdict != want {
				t.Errorf("verdict %s, want %s", r.Verdict, want)
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "hunter2") {
				t.Errorf("the value of a setting is in the report\n%s", text)
			}
		})
	}
}

// A type that cannot be read is not the same as any other, and hides no other finding.
func TestNotVerified(t *testing.T) {
	all := fleet("dev", "prod", "staging")
	all[0].controller().Instances = []Instance{running("9")}
	all[1].Unread, all[1].Gaps = true, []string{"no answer"}
	all[2].controller().Unread, all[2].Gaps = true, []string{"pods: forbidden"}
	all[2].controller().Instances = nil
	r := Compare(t.Context(), all, options)
	if r.Verdict != NotVerified || len(r.NotVerified) != 2 || len(r.Findings) != 1 || r.Findings[0].Kind != UnknownImage {
		t.Errorf("have %+v", r)
	}
	for _, s := range r.Groups[0].States {
		if slices.Contains(s.Clusters, "prod") {
			t.Errorf("something is said of a cluster of which nothing is known: %+v", s)
		}
		if slices.Contains(s.Clusters, "staging") && s.State != NotVerifiedState {
			t.Errorf("a cluster whose pods were not read is %q", s.State)
		}
	}
	// A type whose annotation names a controller that is not rendered is neither the same nor without a controller.
	all = fleet("dev", "prod")
	all[1].AdmissionRead, all[1].Actors, all[1].Gaps = true, new(Actors), []string{"there is no Deployment a/b"}
	all[1].controller().Rights.Read, all[1].controller().ConfigMaps.Read = true, true
	all[1].widget().Behaviour, all[1].widget().Misnamed = nil, true
	r = Compare(t.Context(), all, options)
	if s := r.Groups[0].States; len(r.Findings) > 0 || r.DefinitionOnly > 0 || len(s) != 2 || s[1].State != NotVerifiedState || s[1].Types != 1 || s[1].Clusters[0] != "prod" {
		t.Errorf("have %+v", r)
	}
}

// A report lacks what the repository has errors in: it does not say that all is the same.
func TestErrorsOfTheRepository(t *testing.T) {
	for _, tt := range []struct {
		name     string
		clusters []Facts
		errors   []string
		verdict  Verdict
		want     string
	}{
		{"none", fleet("dev", "prod"), nil, Same, "verified"},
		{"beside clusters", fleet("dev", "prod"), []string{"clusters.yaml:7: no"}, NotVerified, "types in 2 clusters: not everything could be verified (1 error)"},
		{"alone", nil, []string{"clusters.yaml:7: no", "clusters.yaml:9: no"}, NotVerified, "nothing was verified: 2 errors"},
	} {
		r := Compare(t.Context(), tt.clusters, options)
		if r.Fail(tt.errors...); r.Verdict != tt.verdict || !strings.Contains(r.Summary(), tt.want) || len(r.Errors) != len(tt.errors) {
			t.Errorf("%s: %s, %q, errors %q; want %s, %q", tt.name, r.Verdict, r.Summary(), r.Errors, tt.verdict, tt.want)
		}
	}
}

// An undeclared Function is compared between clusters, and not by the repository that a node
// pulled its image from.
func TestUndeclaredFunction(t *testing.T) {
	for _, tt := range []struct{ dev, prod, want string }{
		{"reg.io/f@" + string(digest("4")), "mirror.io/f@" + string(digest("4")), ""},
		{"reg.io/f@" + string(digest("4")), "reg.io/f@" + string(digest("9")), "function patch runs unknown image sha256:999999999999"},
	} {
		all := fleet("dev", "prod")
		for i, id := range []string{tt.dev, tt.prod} {
			composed := func(id string) *behaviour.Identity {
				return &behaviour.Identity{Compositions: []behaviour.Part{{Name: "db", Value: "h1:a"}}, Functions: []behaviour.Part{{Name: "patch", Value: id}}}
			}
			all[i].widget().Behaviour, all[i].widget().Composed = composed(""), composed(id)
		}
		r := Compare(t.Context(), all, options)
		switch {
		case tt.want == "" && len(r.Findings) > 0:
			t.Errorf("found %+v", r.Findings)
		case tt.want != "" && (len(r.Findings) != 1 || r.Findings[0].Kind != ControllerDiffers || !strings.Contains(r.Findings[0].Sides[1].What, tt.want)):
			t.Errorf("found %+v, want %q", r.Findings, tt.want)
		}
	}
}

// The Compositions and Functions behind a composite type.
func TestComposed(t *testing.T) {
	composed := func(composition, function string) *behaviour.Identity {
		return &behaviour.Identity{
			Compositions: []behaviour.Part{{Name: "db", Value: composition}},
			Functions:    []behaviour.Part{{Name: "patch", Value: function}},
		}
	}
	wanted := composed("h1:a", string(digest("1")))
	for _, tt := range []struct {
		name     string
		composed *behaviour.Identity
		want     string
	}{
		{"the same", wanted, ""},
		{"a platform of the function", composed("h1:a", "reg.io/f@"+string(digest("2"))), ""},
		{"another composition", composed("h1:b", string(digest("1"))), "not as rendered: composition db"},
		{"another function", composed("h1:a", string(digest("4"))), "not as rendered: function patch runs reg.io/widgets v2 (sha256:444444444444)"},
		{"platforms of the function, from several repositories", composed("h1:a", "mirror.io/f@"+string(digest("3"))+", reg.io/f@"+string(digest("1"))+", reg.io/f@"+string(digest("2"))), ""},
		{"two functions", composed("h1:a", "reg.io/f@"+string(digest("2"))+", reg.io/f@"+string(digest("4"))), "function patch runs reg.io/widgets v1 (sha256:111111111111) and reg.io/widgets v2 (sha256:444444444444) at once"},
		{"another function, from several repositories", composed("h1:a", "mirror.io/f@"+string(digest("4"))+", reg.io/f@"+string(digest("4"))), "not as rendered: function patch runs reg.io/widgets v2 (sha256:444444444444)"},
		{"no function", composed("h1:a", ""), "not as rendered: function patch does not run"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := fleet("dev")
			all[0].widget().Behaviour, all[0].widget().Composed = wanted, tt.composed
			r := Compare(t.Context(), all, options)
			switch {
			case tt.want == "" && len(r.Findings) > 0:
				t.Errorf("found %+v", r.Findings)
			case tt.want != "" && (len(r.Findings) != 1 || r.Findings[0].Kind != CompositionDrifted || !strings.Contains(r.Findings[0].Sides[0].What, tt.want)):
				t.Errorf("found %+v, want %q", r.Findings, tt.want)
			}
		})
	}
}

// The settings that differ between clusters are those that run, and not those of a pod whose
// container has not started.
func TestSettingsBetween(t *testing.T) {
	all := fleet("dev", "prod")
	for i := range all {
		all[i].controller().replicas(beside("1", "4"))
	}
	prod := all[1].controller()
	prod.Wanted.Settings = []behaviour.Part{{Name: "package-runtime argument --debug", Value: "on"}}
	first, second := half("1", ""), beside("1", "4")
	first.Settings = append(slices.Clone(prod.Wanted.Settings), behaviour.Part{Name: "proxy argument --other", Value: "x"})
	second.Settings = prod.Wanted.Settings
	prod.Instances = []Instance{first, second}
	r := Compare(t.Context(), all, options)
	if len(r.Findings) != 1 || r.Findings[0].Kind != SettingsDiffer || !slices.Equal(r.Findings[0].Details, []string{"differing: package-runtime argument --debug"}) {
		t.Errorf("%+v", r.Findings)
	}
}
