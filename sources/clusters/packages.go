package clusters

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/rules"
)

// PackagesKind is the kind of the document with rules for the versions of
// packages. A registry has at most one.
const PackagesKind = "Packages"

// packages is the shape of a Packages document.
type packages struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       struct {
		Exclude []exclusion   `yaml:"exclude"`
		Select  []selection   `yaml:"select"`
		Replace []replacement `yaml:"replace"`
		// Breaking is the clusters' default; see [Spec].
		Breaking string `yaml:"breaking"`
	} `yaml:"spec"`
}

type exclusion struct {
	// Package is a repository; Version is a [rules.Range].
	Package string `yaml:"package"`
	Version string `yaml:"version"`
	Reason  string `yaml:"reason"`
}

type selection struct {
	Package string `yaml:"package"`
	// Version is a tag, a digest, or tag@digest.
	Version string `yaml:"version"`
}

type replacement struct {
	Package string `yaml:"package"`
	// Version is a tag; empty for all versions.
	Version string `yaml:"version"`
	// With is a repository, with or without a tag and a digest.
	With string `yaml:"with"`
	// Directory is a path in the fleet repository.
	Directory string `yaml:"directory"`
}

// maxRules bounds the entries of a Packages document.
const maxRules = 10_000

// packagesText finds a Packages document in text that is no YAML.
var packagesText = regexp.MustCompile(`(?mi)^(?:\{\s*)?["']?kind["']?\s*:\s*["']?packages?\b|^\s*(?:exclude|select|replace):`)

// isPackages reports whether a document is a Packages document, or was meant to
// be one. One that says to be a Cluster is none (hasRules).
func isPackages(at finder) bool {
	name := ""
	if kind := fold(at.root, "kind"); kind != nil {
		name = strings.ToLower(kind.Value)
	}
	switch {
	case name == "cluster" || name == "rollout":
		return false
	case len(name) <= 2:
	case strings.HasPrefix("packages", name), sources.Distance(name, "packages") <= 2:
		return true // a file that was cut off has its beginning
	}
	return hasRules(at)
}

// hasRules reports whether a document has rules for packages, whatever its kind.
func hasRules(at finder) bool {
	return slices.ContainsFunc([]string{"exclude", "select", "replace"}, func(key string) bool {
		return fold(at.root, key) != nil || fold(fold(at.root, "spec"), key) != nil
	})
}

// fold returns the value of a key of a mapping, in upper or lower case; nil if
// there is none.
func fold(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if strings.EqualFold(n.Content[i].Value, key) {
			return n.Content[i+1]
		}
	}
	return nil
}

// packagesUnknown notes that a Packages document cannot be read. What it excludes
// is then not known, and nobody may choose versions.
func (p *parser) packagesUnknown(line int) {
	if p.registry.RulesErr == nil {
		p.registry.RulesErr = fmt.Errorf("%s:%d: the %s document has errors; every package stays as it is until they are corrected", p.file, line, PackagesKind)
	}
}

// packages reads a Packages document.
func (p *parser) packages(c chunk, at finder) {
	before := len(p.errs)
	line := at.line()
	fail := func(keys []string, format string, args ...any) {
		p.fail(at.line(keys...), strings.Join(keys, "."), format, args...)
	}
	if p.rulesAt > 0 {
		fail(nil, "there is a %s document at line %d already; put all entries into one", PackagesKind, p.rulesAt)
		p.packagesUnknown(line)
		return
	}
	p.rulesAt = line
	var d packages
	dec := yaml.NewDecoder(bytes.NewReader([]byte(c.text)))
	dec.KnownFields(true)
	if err := dec.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		p.decodeErrors(err, c.line)
	}
	switch {
	case d.APIVersion != APIVersion:
		fail([]string{"apiVersion"}, "%q; this file holds %s documents", d.APIVersion, APIVersion)
	case d.Kind != PackagesKind:
		fail([]string{"kind"}, "%q; did you mean %s?", d.Kind, PackagesKind)
	case len(d.Spec.Exclude)+len(d.Spec.Select)+len(d.Spec.Replace) > maxRules:
		fail([]string{"spec"}, "has more than %d entries; use ranges", maxRules)
	case d.Spec.Breaking != "" && d.Spec.Breaking != Schema && d.Spec.Breaking != Data:
		fail([]string{"spec", "breaking"}, "%q; use schema or data", d.Spec.Breaking)
	}
	p.fleetBreaking = d.Spec.Breaking
	if len(p.errs) == before {
		p.registry.Rules = rules.Rules{Excludes: p.excludes(d.Spec.Exclude, at, fail)}
		p.selects(d.Spec.Select, at, fail)
		p.replaces(d.Spec.Replace, at, fail)
	}
	if len(p.errs) > before {
		p.registry.Rules = rules.Rules{}
		p.packagesUnknown(line)
	}
}

// failFunc reports a fault of the value that keys lead to.
type failFunc func(keys []string, format string, args ...any)

func (p *parser) place(at finder, keys ...string) string {
	return fmt.Sprintf("%s:%d", p.file, at.line(keys...))
}

func (p *parser) excludes(list []exclusion, at finder, fail failFunc) []rules.Exclude {
	var all []rules.Exclude
	for i, e := range list {
		key := []string{"spec", "exclude", strconv.Itoa(i)}
		repository := repositoryOf(e.Package, key, fail)
		r, err := rules.ParseRange(e.Version)
		if err != nil {
			fail(append(key, "version"), "%v", err)
		}
		reason := strings.Join(strings.Fields(e.Reason), " ")
		if reason == "" {
			fail(append(key, "reason"), "is missing: say why nobody should use it")
		}
		all = append(all, rules.Exclude{Repository: repository, Versions: r, Reason: reason, Place: p.place(at, key...)})
	}
	return all
}

func (p *parser) selects(list []selection, at finder, fail failFunc) {
	for i, s := range list {
		key := []string{"spec", "select", strconv.Itoa(i)}
		repository := repositoryOf(s.Package, key, fail)
		if repository == "" {
			continue
		}
		separator := ":"
		if strings.HasPrefix(s.Version, "sha256:") {
			separator = "@"
		}
		ref, err := sources.ParseRef(repository + separator + s.Version)
		if err != nil {
			fail(append(key, "version"), "%q: want a tag, a digest or tag@digest", s.Version)
			continue
		}
		if first := p.registry.Rules.Selected(repository); first != nil {
			fail(append(key, "package"), "%s has a version at %s already; remove one of the two", repository, first.Place)
			continue
		}
		if e := p.registry.Rules.Excluded(ref); e != nil {
			fail(append(key, "version"), "%s is %s", s.Version, e)
			continue
		}
		p.registry.Rules.Selects = append(p.registry.Rules.Selects, rules.Select{Ref: ref, Place: p.place(at, key...)})
	}
}

func (p *parser) replaces(list []replacement, at finder, fail failFunc) {
	r := &p.registry.Rules
	for i, e := range list {
		key := []string{"spec", "replace", strconv.Itoa(i)}
		by := rules.Replace{Repository: repositoryOf(e.Package, key, fail), Version: e.Version, Place: p.place(at, key...)}
		if by.Repository == "" {
			continue
		}
		before := len(p.errs)
		if e.Version != "" {
			if ref, err := sources.ParseRef(by.Repository + ":" + e.Version); err != nil || ref.Digest != "" {
				fail(append(key, "version"), "%q is no tag; leave it out to replace every version", e.Version)
			}
		}
		switch clean := path.Clean(e.Directory); {
		case (e.With == "") == (e.Directory == ""):
			fail(key, "needs one of with (another repository) and directory (of this repository)")
		case e.With != "":
			var err error
			if by.With, err = withRef(e.With); err != nil {
				fail(append(key, "with"), "%v", err)
			} else if by.With.Repository == by.Repository {
				fail(append(key, "with"), "is the same repository; declare or select the version that you want")
			} else if x := r.Excluded(by.With); x != nil {
				fail(append(key, "with"), "%s is %s", e.With, x)
			}
		case path.IsAbs(e.Directory) || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsAny(e.Directory, "\\\x00"):
			fail(append(key, "directory"), "%q leaves the repository; paths are relative to its root", e.Directory)
		default:
			by.Directory = clean
		}
		if len(p.errs) > before {
			continue
		}
		if j := slices.IndexFunc(r.Replaces, func(o rules.Replace) bool { return o.Repository == by.Repository && o.Version == by.Version }); j >= 0 {
			fail(key, "%s is replaced at %s already; remove one of the two", by.Repository, r.Replaces[j].Place)
			continue
		}
		r.Replaces = append(r.Replaces, by)
	}
}

// withRef reads a repository with or without a version.
func withRef(text string) (sources.Ref, error) {
	if ref, err := sources.ParseRef(text); err == nil {
		return ref, nil
	}
	ref, err := sources.ParseRef(text + "@" + string(sources.DigestOf(nil)))
	if err != nil || ref.Tag != "" {
		return sources.Ref{}, fmt.Errorf("%q: want a repository, or one with a tag, a digest or both", text)
	}
	return sources.Ref{Repository: ref.Repository}, nil
}

// repositoryOf checks the repository of an entry, and returns it as references
// have it.
func repositoryOf(name string, key []string, fail failFunc) string {
	if name == "" {
		fail(append(key, "package"), "is missing: name a repository")
		return ""
	}
	ref, err := sources.ParseRef(name + "@" + string(sources.DigestOf(nil)))
	if err != nil || ref.Tag != "" {
		fail(append(key, "package"), "%q is not a repository; the version goes into its own field", name)
		return ""
	}
	return ref.Repository
}
