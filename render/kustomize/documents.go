package kustomize

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"

	"gitopsd.dev/sources"
)

// documents decodes the YAML documents of a file, within the build's limits. It
// is stricter than kustomize: duplicate keys, unknown tags and numbers that JSON
// cannot represent are errors.
func (in *inspection) documents(file string, content []byte) ([]sources.Document, error) {
	_, values := sources.CountYAML(content)
	if err := in.turn.count(values); err != nil {
		return nil, err
	}
	docs, err := sources.DecodeYAML(bytes.NewReader(content), sources.Limits{
		Documents: maxObjects + 1, Nodes: in.budget.values + 1, TotalNodes: in.budget.values + 1,
	})
	if err != nil {
		return nil, yamlError(file, err)
	}
	n := 0
	for _, doc := range docs {
		n += in.budget.widths.add(doc.Tree)
	}
	if err := in.budget.parse(n); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return docs, nil
}

// documentsOrList decodes a file's documents, or the items of a single list.
func (in *inspection) documentsOrList(file string, content []byte) (docs []sources.Document, items []any, err error) {
	docs, err = in.documents(file, content)
	if err == nil || errors.Is(err, sources.ErrLimit) {
		return docs, nil, err
	}
	if _, values := sources.CountYAML(content); values > sources.DefaultMaxSeparators {
		return nil, nil, err
	}
	list, errList := yaml.YAMLToJSON(content)
	if errList != nil || len(list) == 0 || list[0] != '[' {
		return nil, nil, err
	}
	docs, err = in.documents(file, slices.Concat([]byte(`{"list":`), list, []byte("}")))
	if err != nil {
		return nil, nil, err
	}
	items, _ = docs[0].Tree["list"].([]any)
	return docs, items, nil
}
