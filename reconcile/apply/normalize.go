package apply

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
)

// normalize gives objects the form in which the API server keeps them, if applying
// another form would go wrong:
//
//   - Objects of cluster-wide kinds lose their namespace, as with kubectl:
//     kustomize's namespace field cannot know the scope of a custom resource.
//   - A Secret's stringData becomes data. The API server does the same, but
//     whoever applied stringData does not own the data: changes to it would be no
//     drift, and a removed key would stay.
//
// namespaced tells which kinds live in namespaces; objects of unknown kinds are left
// as they are. The set itself is returned if nothing changes. Of objects that are the same
// one without their namespaces, the first is in the set, and ambiguous has the reason why
// none of them can be applied.
func normalize(desired *manifest.Set, namespaced map[schema.GroupVersionKind]bool) (set *manifest.Set, ambiguous map[manifest.ID]string, err error) {
	objects := desired.All()
	cloned := false
	for i, o := range desired.All() {
		id := o.ID()
		inside, known := namespaced[schema.FromAPIVersionAndKind(o.APIVersion(), id.Kind)]
		stray := id.Namespace != "" && known && !inside
		_, secret := plainData(o)
		_, was := plainData(o.Rendered())
		if !stray && !secret && !was {
			continue
		}
		other, err := o.Rewrite(func(o *manifest.Object) map[string]any {
			tree := o.Tree()
			if stray {
				tree = manifest.Without(tree, "metadata", "namespace")
			}
			if plain, ok := plainData(o); ok {
				tree = manifest.With(manifest.Without(tree, "stringData"), plain, "data")
			}
			return tree
		})
		if err != nil {
			return nil, nil, err
		}
		if !cloned {
			objects, cloned = slices.Clone(objects), true
		}
		objects[i] = other
	}
	if !cloned {
		return desired, nil, nil
	}
	set, duplicates := manifest.NewSet(objects)
	if len(duplicates) == 0 {
		return set, nil, nil
	}
	ambiguous = make(map[manifest.ID]string)
	objects = slices.Clone(set.All())
	for _, d := range duplicates {
		ambiguous[d.ID] = fmt.Sprintf("it %s; keep one definition, as its kind is cluster-wide, and namespaces do not tell objects apart", d.Reason())
		objects = append(objects, d.Objects[0])
	}
	set, _ = manifest.NewSet(objects)
	return set, ambiguous, nil
}

// plainData returns a Secret's data with its stringData merged in, which wins. ok is
// false if there is no stringData, or if either is malformed, which the API server
// reports.
func plainData(o *manifest.Object) (data map[string]any, ok bool) {
	id, tree := o.ID(), o.Tree()
	text, ok := tree["stringData"].(map[string]any)
	if !id.Is(manifest.Secret) || !ok {
		return nil, false
	}
	data = make(map[string]any, len(text))
	if tree["data"] != nil {
		old, ok := tree["data"].(map[string]any)
		if !ok {
			return nil, false
		}
		maps.Copy(data, old)
	}
	for k, v := range text {
		s, ok := v.(string)
		if !ok {
			return nil, false
		}
		data[k] = base64.StdEncoding.EncodeToString([]byte(s))
	}
	return data, true
}
