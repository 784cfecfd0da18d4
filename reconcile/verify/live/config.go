package live

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// config reads the ConfigMaps and Secrets that running workloads refer to, with one list of
// each kind in each of their namespaces. Secrets that may not be read are left out.
func (in *reading) config(ctx context.Context) error {
	byNamespace := make(map[string][]*controller)
	for _, c := range in.running {
		namespace := c.Wanted.Workload.Namespace
		byNamespace[namespace] = append(byNamespace[namespace], c)
	}
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		for _, kind := range []manifest.GroupKind{manifest.ConfigMap, manifest.Secret} {
			err := in.contents(ctx, kind, namespace, byNamespace[namespace])
			if kind == manifest.Secret && kube.ClassOf(err) == kube.Forbidden {
				in.omitSecrets(namespace, byNamespace[namespace], err)
				continue
			}
			if kube.IsClusterWide(err) {
				return err
			}
			in.facts.Gap(err)
		}
	}
	return nil
}

// omitSecrets notes that the Secrets of a namespace may not be read.
func (in *reading) omitSecrets(namespace string, controllers []*controller, err error) {
	var names []string
	for _, c := range controllers {
		for _, r := range c.template.References {
			if r.Kind == manifest.Secret {
				names = append(names, r.Name)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	why := "may not be read"
	if all := problem.Of(err); len(all) > 0 {
		why = all[0].WithoutCluster().String()
	}
	in.facts.Omitted = append(in.facts.Omitted, verify.Omission{
		What:   fmt.Sprintf("%s in namespace %s (%s)", prose.Count(len(names), manifest.Secret.Kind), namespace, prose.Some(names, 4)),
		Reason: why, Unknown: true,
	})
}

// contents reads the ConfigMaps or Secrets of a namespace that controllers refer to.
func (in *reading) contents(ctx context.Context, kind manifest.GroupKind, namespace string, controllers []*controller) error {
	wanted := make(map[string]map[string]any)
	references := make(map[*controller][]behaviour.Reference)
	for _, c := range controllers {
		for _, r := range c.template.References {
			if r.Kind == kind {
				references[c] = append(references[c], r)
				wanted[r.Name] = nil
			}
		}
	}
	if len(wanted) > 0 {
		if err := in.named(ctx, kind, namespace, wanted); err != nil {
			return err
		}
	}
	sum := func(value []byte) string {
		h := hmac.New(sha256.New, in.key[:])
		h.Write(value)
		return string(h.Sum(nil))
	}
	for _, c := range controllers {
		to := &c.ConfigMaps
		if kind == manifest.Secret {
			to = &c.Secrets
		}
		live := behaviour.Config(references[c], func(_ manifest.GroupKind, name string) map[string]any { return wanted[name] }, sum)
		*to = verify.Context{Read: true, Parts: live}
		for _, r := range references[c] {
			if o := in.wanted.Objects.Get(kind.ID(namespace, r.Name)); o != nil {
				if drift := drifted(r, o.Tree(), wanted[r.Name], sum); len(drift) > 0 {
					to.Drift = append(to.Drift, drift...)
					in.differs(to, o.ID())
				}
			}
		}
		for _, p := range live {
			if p.Value == behaviour.Certificates {
				in.facts.Omitted = append(in.facts.Omitted, verify.Omission{
					What:   strings.Replace(p.Name, kind.Kind+" ", fmt.Sprintf("%s %s/", kind.Kind, namespace), 1),
					Reason: "it holds certificates or tokens, of which every cluster has its own",
				})
			}
		}
	}
	return nil
}

// drifted returns the names of the parts of a reference that differ from the rendered
// content. Certificates that others add are left out, and so is any content of an object
// that is rendered empty: it is there for others to fill, and gitopsd leaves it alone.
func drifted(r behaviour.Reference, rendered, live map[string]any, sum func([]byte) string) []string {
	parts := func(tree map[string]any) []behaviour.Part {
		return behaviour.Config([]behaviour.Reference{r}, func(manifest.GroupKind, string) map[string]any { return tree }, sum)
	}
	if live != nil && behaviour.Empty(r.Kind, rendered) {
		return nil
	}
	want := parts(rendered)
	have := slices.DeleteFunc(parts(live), func(p behaviour.Part) bool {
		return p.Value == behaviour.Certificates && len(behaviour.Only([]behaviour.Part{p}, want)) == 0
	})
	return behaviour.Differing(want, have)
}

// named reads the objects of a namespace that wanted has the names of.
func (in *reading) named(ctx context.Context, kind manifest.GroupKind, namespace string, wanted map[string]map[string]any) error {
	t, err := in.kube.Type(ctx, kind.APIVersion("v1"), kind.Kind)
	if err != nil {
		return err
	}
	var bad error
	err = in.kube.ListRaw(ctx, t, kube.ListOptions{Namespace: namespace}, func(item []byte) bool {
		var e struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if bad = json.Unmarshal(item, &e); bad != nil {
			return false
		}
		if _, ok := wanted[e.Metadata.Name]; !ok {
			return true
		}
		var tree map[string]any
		if bad = json.Unmarshal(item, &tree); bad != nil {
			return false
		}
		tree["apiVersion"], tree["kind"] = t.APIVersion(), t.Kind // items of built-in types come without these
		in.note(kind.ID(namespace, e.Metadata.Name), tree)
		wanted[e.Metadata.Name] = map[string]any{"type": tree["type"], "data": tree["data"], "binaryData": tree["binaryData"]}
		return true
	})
	if err == nil && bad != nil {
		err = fmt.Errorf("list of %s in namespace %s: %w", kind.Kind, namespace, bad)
	}
	return err
}
