package health

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"sync"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// rules are the rules that are part of gitopsd, for kinds that no general rule can judge. Each
// is a file named after a kind, with test cases in a file of the same name in shipped/cases.
//
//go:embed shipped/rules
var rules embed.FS

// readShipped reads the rules that are part of gitopsd, by kind.
func readShipped() (map[manifest.GroupKind]Rule, error) {
	const dir = "shipped/rules"
	files, err := fs.ReadDir(rules, dir)
	if err != nil {
		return nil, err
	}
	all := make(map[manifest.GroupKind]Rule, len(files))
	for _, f := range files {
		r, err := readRule(path.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		all[r.Kind] = r
	}
	return all, nil
}

func readRule(name string) (Rule, error) {
	f, err := rules.Open(name)
	if err != nil {
		return Rule{}, err
	}
	defer f.Close()
	docs, err := sources.DecodeYAML(f, sources.Limits{Bytes: maxText})
	if err != nil || len(docs) != 1 {
		return Rule{}, fmt.Errorf("%d documents: %w", len(docs), err)
	}
	tree := maps.Clone(docs[0].Tree)
	group, _ := tree["group"].(string)
	kind, _ := tree["kind"].(string)
	delete(tree, "group")
	delete(tree, "kind")
	r := Rule{Kind: manifest.GroupKind{Group: group, Kind: kind}, From: "shipped for " + kind + "." + group}
	return r, r.read(tree)
}

// shipped has a function for each rule that is part of gitopsd, which compiles the rule on first
// use.
var shipped = sync.OnceValue(func() map[manifest.GroupKind]func() *compiledRule {
	all, err := readShipped()
	if err != nil {
		return nil // a test checks that there is no error
	}
	compilers := make(map[manifest.GroupKind]func() *compiledRule, len(all))
	for gk, r := range all {
		compilers[gk] = sync.OnceValue(func() *compiledRule {
			c, _ := compileRule(r, nil) // a test checks that there is no error
			return c
		})
	}
	return compilers
})

// shippedFor returns the rule for a kind that is part of gitopsd; nil if there is none.
func shippedFor(gk manifest.GroupKind) *compiledRule {
	if compile := shipped()[gk]; compile != nil {
		return compile()
	}
	return nil
}
