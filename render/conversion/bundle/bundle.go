// Package bundle stores conversion rules in a ConfigMap of the cluster, so that another
// process can serve them. A bundle has the rules as their author wrote them, and the
// schemas that they were compiled against.
//
// Bundles are not trusted. [Read] compiles the rules again, and their digest, not the
// name of the ConfigMap, identifies them.
package bundle

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
)

const (
	// Prefix begins the names of the ConfigMaps that hold bundles.
	Prefix = "conversion."

	dataKey = "rules.json.gz"
	format  = 1

	// maxPacked limits the compressed size; a ConfigMap holds 1 MiB.
	maxPacked = 700 << 10
	// maxUnpacked limits the decompressed size.
	maxUnpacked = 16 << 20
)

// ID returns the ID of the ConfigMap for the rules of a CustomResourceDefinition with
// this digest; see [conversion.Set.Digest].
func ID(crd, digest string) manifest.ID {
	const longest = 253
	sum := sha256.Sum256([]byte(crd + "\n" + digest))
	hash := hex.EncodeToString(sum[:5])
	name := crd[:min(len(crd), longest-len(Prefix)-1-len(hash))]
	return manifest.ConfigMap.ID(runtime.Namespace, Prefix+name+"."+hash)
}

// Object returns the ConfigMap of a set that was compiled from definition and documents.
// The error says that the rules or schemas are too large.
func Object(set *conversion.Set, definition map[string]any, documents []conversion.Document) (*manifest.Object, error) {
	data, err := Pack(set, definition, documents)
	if err != nil {
		return nil, err
	}
	id := ID(set.Name(), set.Digest())
	return manifest.New(map[string]any{
		"apiVersion": manifest.ConfigMap.APIVersion("v1"), "kind": id.Kind,
		"metadata":   map[string]any{"name": id.Name, "namespace": id.Namespace, "labels": map[string]any{manifest.ConversionLabel: "true"}},
		"binaryData": map[string]any{dataKey: base64.StdEncoding.EncodeToString(data)},
	}, manifest.Origin{For: "spec.conversion of the Cluster"})
}

// Pack returns the rules of a set and the schemas of their definition as bytes. It leaves
// out fields that do not matter to a conversion, so that most changes of a definition do
// not change the bundle.
func Pack(set *conversion.Set, definition map[string]any, documents []conversion.Document) ([]byte, error) {
	d := types.Read(definition)
	name := manifest.Text(definition, "metadata", "name")
	var versions []any
	for _, v := range d.Versions() {
		version := map[string]any{"name": v.Name, "schema": map[string]any{"openAPIV3Schema": v.Schema}}
		if slices.Contains(set.Versions(), v.Name) {
			version["served"] = true // so that it is converted, even if no rule names it
		}
		versions = append(versions, version)
	}
	var trees []any
	for _, doc := range documents {
		trees = append(trees, map[string]any{
			"apiVersion": doc.Tree["apiVersion"], "kind": doc.Tree["kind"], "spec": doc.Tree["spec"],
			"metadata": map[string]any{"name": manifest.Text(doc.Tree, "metadata", "name")},
		})
	}
	slices.SortFunc(trees, func(a, b any) int {
		x, _ := exact.Encode(a) // the error comes up again below
		y, _ := exact.Encode(b)
		return bytes.Compare(x, y)
	})
	text, err := exact.Encode(map[string]any{
		"format": int64(format), "rules": trees,
		"definition": map[string]any{
			"apiVersion": manifest.CRD.APIVersion("v1"), "kind": manifest.CRD.Kind, "metadata": map[string]any{"name": name},
			"spec": map[string]any{"group": d.Group, "names": map[string]any{"kind": d.Names.Kind, "plural": d.Names.Plural}, "versions": versions},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: the conversion rules cannot be written: %w", name, err)
	}
	if len(text) > maxUnpacked {
		return nil, fmt.Errorf("%s: the schemas and conversion rules have %d MiB, and the server reads %d MiB: shorten the descriptions in the schemas", name, len(text)>>20, maxUnpacked>>20)
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() > maxPacked {
		return nil, fmt.Errorf("%s: the schemas and conversion rules have %d KiB even when compressed; a ConfigMap has room for %d KiB: shorten the descriptions in the schemas", name, b.Len()>>10, maxPacked>>10)
	}
	return b.Bytes(), nil
}

// Unpack is the inverse of [Pack]. Errors never quote the data.
func Unpack(data []byte) (definition map[string]any, documents []conversion.Document, err error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, nil, errors.New("it is not compressed by gzip")
	}
	text, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	switch {
	case err != nil:
		return nil, nil, errors.New("it is cut short or damaged")
	case len(text) > maxUnpacked:
		return nil, nil, fmt.Errorf("it has more than %d MiB", maxUnpacked>>20)
	}
	tree, err := conversion.Decode(text)
	if err != nil {
		return nil, nil, errors.New("it is not a JSON object")
	}
	if tree["format"] != int64(format) {
		return nil, nil, fmt.Errorf("its format is not %d, the only one that this gitopsd reads; use the version of gitopsd that wrote it", format)
	}
	definition = manifest.Mapping(tree, "definition")
	for i, r := range manifest.List(tree, "rules") {
		rules, ok := r.(map[string]any)
		if !ok {
			return nil, nil, fmt.Errorf("rules.%d is not a mapping", i)
		}
		where := manifest.Origin{File: cmp.Or(manifest.Text(rules, "kind"), "rules") + " " + manifest.Text(rules, "metadata", "name")}
		documents = append(documents, conversion.Document{Origin: where, Tree: rules})
	}
	if len(definition) == 0 || len(documents) == 0 {
		return nil, nil, errors.New("it lacks the definition or the rules")
	}
	return definition, documents, nil
}

// Read compiles the set in a ConfigMap. Errors do not name the ConfigMap.
func Read(configMap map[string]any) (*conversion.Set, error) {
	text := manifest.Text(configMap, "binaryData", dataKey)
	if text == "" {
		return nil, fmt.Errorf("it has no binaryData %q", dataKey)
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("binaryData %q is not base64", dataKey)
	}
	definition, documents, err := Unpack(data)
	if err != nil {
		return nil, fmt.Errorf("binaryData %q: %w", dataKey, err)
	}
	return conversion.Compile(definition, documents)
}
