package live

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
)

// definitionPage is the number of definitions in a page of a list: a CRD may have a megabyte.
const definitionPage = 50

// content identifies a definition by the bytes of its spec. API servers of one version
// write equal specs as equal bytes.
type content struct {
	apiVersion, name string
	spec             [sha256.Size]byte
}

// known is a decoded content.
type known struct {
	kind, group, scope string
	resources          []string
	types              []types.Type
	// converts reports whether a webhook converts objects. Its address may name the digest
	// of conversion rules, asks, and a cluster, in. converter is all of the address
	// ([verify.ConverterOf]).
	converts            bool
	asks, in, converter string
}

// envelope is the part of a definition that is always decoded.
type envelope struct {
	Metadata struct {
		Name            string            `json:"name"`
		UID             string            `json:"uid"`
		Labels          map[string]string `json:"labels"`
		OwnerReferences []struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			UID        string `json:"uid"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

// definitions reads XRDs, if the cluster serves them, and then all CRDs. Crossplane makes some
// of the CRDs from XRDs.
func (in *reading) definitions(ctx context.Context) error {
	offered := make(map[string][]string)
	t, err := in.composites(ctx)
	if err == nil {
		err = in.list(ctx, t, offered)
	}
	if err != nil && kube.ClassOf(err) != kube.NoSuchType {
		return err
	}
	t, err = in.kube.Type(ctx, manifest.CRD.APIVersion("v1"), manifest.CRD.Kind)
	if err != nil {
		return err
	}
	return in.list(ctx, t, offered)
}

// composites returns the type of XRDs, in the version in which they are rendered: the
// canonical form of a type depends on it.
func (in *reading) composites(ctx context.Context) (kube.Type, error) {
	for id := range in.facts.Definitions {
		if id.Is(manifest.XRD) {
			return in.kube.Type(ctx, in.wanted.Objects.Get(id).APIVersion(), manifest.XRD.Kind)
		}
	}
	return in.kube.Kind(ctx, manifest.XRD.Group, manifest.XRD.Kind)
}

// list reads definitions. offered are the names of the CRDs that Crossplane makes from the
// XRDs read so far, by the XRD's UID. An owner reference alone proves nothing, since anyone
// can write one.
func (in *reading) list(ctx context.Context, t kube.Type, offered map[string][]string) error {
	var bad error
	err := in.kube.ListRaw(ctx, t, kube.ListOptions{Page: definitionPage}, func(item []byte) bool {
		var e envelope
		if bad = json.Unmarshal(item, &e); bad != nil {
			return false
		}
		if t.Kind == manifest.XRD.Kind {
			offered[e.Metadata.UID] = e.offers()
		}
		if in.facts.Definitions[t.ID("", e.Metadata.Name)] == nil && e.composed(offered) {
			return true
		}
		if err := in.definition(ctx, t, &e); err != nil {
			in.facts.Gap(fmt.Errorf("%s: %w", t.ID("", e.Metadata.Name), err))
		}
		return true
	})
	if err == nil {
		err = bad
	}
	return err
}

// composed reports whether Crossplane made a CRD from an XRD that exists.
func (e *envelope) composed(offered map[string][]string) bool {
	for _, o := range e.Metadata.OwnerReferences {
		if group, _ := manifest.GroupVersion(o.APIVersion); group == manifest.XRD.Group && o.Kind == manifest.XRD.Kind && slices.Contains(offered[o.UID], e.Metadata.Name) {
			return true
		}
	}
	return false
}

// offers returns the names of the CRDs that Crossplane makes from an XRD, for composites and
// claims.
func (e *envelope) offers() []string {
	type names struct {
		Plural string `json:"plural"`
	}
	var spec struct {
		Group      string `json:"group"`
		Names      names  `json:"names"`
		ClaimNames *names `json:"claimNames"`
	}
	if err := json.Unmarshal(e.Spec, &spec); err != nil {
		return nil // definition returns the error
	}
	all := []string{spec.Names.Plural + "." + spec.Group}
	if spec.ClaimNames != nil {
		all = append(all, spec.ClaimNames.Plural+"."+spec.Group)
	}
	return all
}

// definition adds a live definition to the facts.
func (in *reading) definition(ctx context.Context, t kube.Type, e *envelope) error {
	id := t.ID("", e.Metadata.Name)
	d := in.facts.Definitions[id]
	ours := e.Metadata.Labels[plan.PartOfLabel] != ""
	if d == nil && ours && in.wanted.Keeps != nil && in.wanted.Keeps(id, e.Metadata.Labels[manifest.PackageLabel]) {
		return nil // its package could not be rendered, which is a gap
	}
	k, err := in.read(t, e)
	if err != nil {
		delete(in.facts.Definitions, id)
		return err
	}
	if d == nil {
		in.facts.Definitions[id] = &verify.Definition{ID: id, Kind: k.kind, Group: k.group, Resources: k.resources, Scope: k.scope, Live: k.types}
		return nil
	}
	d.Converted = k.converted(d, in.facts.Name)
	if slices.Equal(d.Rendered, k.types) {
		d.Live = d.Rendered // so that only one of them is kept
		return nil
	}
	d.Live = k.types
	tree, err := e.tree(t)
	if err != nil {
		return err
	}
	report, err := compat.Compare(ctx, in.wanted.Objects.Get(id).Tree(), tree, compat.Options{})
	d.Drift = report.Findings
	return err
}

func (r *Reader) read(t kube.Type, e *envelope) (*known, error) {
	key := content{t.APIVersion(), e.Metadata.Name, sha256.Sum256(e.Spec)}
	r.mu.Lock()
	k := r.known[key]
	r.mu.Unlock()
	if k != nil {
		return k, nil
	}
	tree, err := e.tree(t)
	if err != nil {
		return nil, err
	}
	defined := types.Read(tree)
	k = &known{kind: defined.Names.Kind, group: defined.Group}
	k.resources, k.scope = verify.Resources(defined)
	k.converts = defined.Converts
	k.in, k.asks = conversion.Asked(tree)
	k.converter = verify.ConverterOf(tree)
	if k.types, err = types.Sorted(tree); err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.known[key] = k
	r.mu.Unlock()
	return k, nil
}

// converted returns the live way of conversion in words; empty if it is the rendered one. Only
// the whole address proves that: anybody's server may have a path with the digest of the rules.
func (k *known) converted(d *verify.Definition, cluster string) string {
	switch {
	case d.Conversion == k.asks && (k.asks == "" || k.in == cluster) && (d.Converter == "" || d.Converter == k.converter):
		return ""
	case k.asks != "" && k.in != cluster:
		return "conversion rules of cluster " + k.in
	case k.asks != "" && k.asks != d.Conversion:
		return "other conversion rules (" + verify.Brief(k.asks) + ")"
	case k.converts:
		return "another webhook (" + verify.Host(k.converter) + ")"
	}
	return "nothing"
}

// tree returns the definition with only its name and spec.
func (e *envelope) tree(t kube.Type) (map[string]any, error) {
	var spec map[string]any
	if err := utiljson.Unmarshal(e.Spec, &spec); err != nil {
		return nil, err
	}
	return map[string]any{
		"apiVersion": t.APIVersion(), "kind": t.Kind,
		"metadata": map[string]any{"name": e.Metadata.Name}, "spec": spec,
	}, nil
}

// compositions reads the Compositions and Functions behind the composite types that are
// rendered.
func (in *reading) compositions(ctx context.Context) error {
	of := make(map[manifest.GroupKind][]*verify.Definition)
	functions := false
	for id, d := range in.facts.Definitions {
		if d.Rendered != nil && d.Live != nil && id.Is(manifest.XRD) && d.Behaviour != nil && d.Behaviour.Workload == (manifest.ID{}) {
			key := manifest.GroupKind{Group: d.Group, Kind: d.Kind}
			of[key] = append(of[key], d)
			functions = functions || len(d.Behaviour.Functions) > 0
		}
	}
	if len(of) == 0 {
		return nil
	}
	trees := make(map[manifest.GroupKind][]map[string]any)
	err := in.all(ctx, manifest.Composition, func(tree map[string]any) {
		if key := behaviour.CompositeOf(tree); of[key] != nil {
			trees[key] = append(trees[key], map[string]any{"metadata": tree["metadata"], "spec": tree["spec"]})
		}
	})
	if err != nil {
		return err
	}
	running := make(map[string]string)
	if functions {
		if running, err = in.functions(ctx); err != nil {
			return err
		}
	}
	for key, all := range of {
		for _, d := range all {
			d.Composed = behaviour.Composed(trees[key], func(f string) string { return running[f] })
		}
	}
	return nil
}
