package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"sigs.k8s.io/yaml"

	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/upstream"
)

// allCRDs is the number of CRDs in provider-aws.
const allCRDs = 927

// types compares, from YAML, computing the digests of all types of the largest package, and
// the findings between two releases of it, with only parsing the same by sigs.k8s.io/yaml.
// The second release is the first with a field added, a field removed and every rule changed
// in each type. Memory is compared with parsing and keeping both packages.
func (b *bench) types(ctx context.Context, f *fixture) error {
	before, err := f.crds(ctx, allCRDs)
	if err != nil {
		return err
	}
	after := filepath.Join(f.dir, "bumped.yaml")
	if err := bump(before, after); err != nil {
		return err
	}
	return b.eachRound(ctx, "types", [][]string{
		{"digest-types", before}, {"parse-rival", before},
		{"compare", before, after}, {"parse-rival", before, after}, {"parse", before, after},
	}, func(u []usage) error {
		b.add("types-digest", u[0].cpu, u[1].cpu)
		b.add("types-compat", u[2].cpu, u[3].cpu)
		b.add("types-rss", u[2].rss, u[4].rss)
		return nil
	})
}

// bump writes the second release of the definitions in a file to another.
func bump(from, to string) error {
	docs, err := decode(from)
	if err != nil {
		return err
	}
	var all bytes.Buffer
	for _, d := range docs {
		next, err := upstream.Bumped(d.Tree)
		if err != nil {
			return err
		}
		text, err := yaml.Marshal(next)
		if err != nil {
			return err
		}
		fmt.Fprintf(&all, "---\n%s", text)
	}
	return os.WriteFile(to, all.Bytes(), 0o600)
}

func decode(name string) ([]sources.Document, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return sources.DecodeYAML(f, sources.Limits{})
}

// parse parses files and keeps all documents.
func parse(files []string) (float64, error) {
	n := 0
	kept := make([][]sources.Document, len(files))
	for i, name := range files {
		docs, err := decode(name)
		if err != nil {
			return 0, err
		}
		kept[i] = docs
		n += len(docs)
	}
	runtime.KeepAlive(kept)
	return float64(n), nil
}

// parseRival does the same with sigs.k8s.io/yaml, a document at a time.
func parseRival(files []string) (float64, error) {
	var kept []map[string]any
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var tree map[string]any
			if err := yaml.Unmarshal(doc, &tree); err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			kept = append(kept, tree)
		}
	}
	if want := len(files) * renderCRDs; len(kept) < want {
		return 0, fmt.Errorf("%d documents, want %d at least", len(kept), want)
	}
	return float64(len(kept)), nil
}

// digestTypes computes the digests of all types in a file.
func digestTypes(files []string) (float64, error) {
	docs, err := decode(files[0])
	if err != nil {
		return 0, err
	}
	all, err := types.All(docs)
	return float64(len(all)), err
}

// compare counts the findings between the definitions of two files, which have the same
// definitions in the same order.
func compare(files []string) (float64, error) {
	old, err := decode(files[0])
	if err != nil {
		return 0, err
	}
	now, err := decode(files[1])
	if err != nil {
		return 0, err
	}
	if len(old) != len(now) {
		return 0, errors.New("the releases do not have the same definitions")
	}
	findings := 0
	for i := range old {
		report, err := compat.Compare(context.Background(), old[i].Tree, now[i].Tree, compat.Options{})
		if err != nil {
			return 0, err
		}
		if len(report.Findings) == 0 {
			return 0, fmt.Errorf("document %d: nothing was found", i)
		}
		findings += len(report.Findings)
	}
	return float64(findings), nil
}
