package clusters

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/rules"
)

// packagesKind is the kind of the document with rules for the versions of
// packages. A registry has at most one.
const packagesKind = "Packages"

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

// packagesText matches text that is not valid YAML and was meant to be a Packages
// document.
var packagesText = regexp.MustCompile(`(?mi)^(?:\{\s*)?["']?kind["']?\s*:\s*["']?packages?\b|^\s*(?:exclude|select|replace):`)

// isPackages reports whether a document is a Packages document, or was meant to
// be one. A document of kind Cluster is not, even if it has rules.
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

// fold returns the value of a key of a mapping, ignoring case; nil if there is none.
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

// packagesUnknown notes that a Packages document cannot be read. Its exclusions are
// unknown, and no version may be chosen without them.
func (p *parser) packagesUnknown(line int) {
	if p.registry.RulesErr == nil {
		p.registry.RulesErr = fmt.Errorf("%s:%d: the %s document has errors; every package stays as it is until they are corrected", p.file, line, packagesKind)
	}
}

// packages reads a Packages document.
func (p *parser) packages(c chunk, at finder) {
	before := len(p.errs)
	line := at.line()
	fail := p.failBelow(at)
	if p.rulesAt > 0 {
		fail("", "there is a %s document at line %d already; put all entries into one", packagesKind, p.rulesAt)
		p.packagesUnknown(line)
		return
	}
	p.rulesAt = line
	var d packages
	p.decode(c, at, &d)
	switch {
	case d.APIVersion != APIVersion:
		fail("apiVersion", "%q; this file holds %s documents", d.APIVersion, APIVersion)
	case d.Kind != packagesKind:
		fail("kind", "%q; did you mean %s?", d.Kind, packagesKind)
	case len(d.Spec.Exclude)+len(d.Spec.Select)+len(d.Spec.Replace) > maxRules:
		fail("spec", "has more than %d entries; use ranges", maxRules)
	case d.Spec.Breaking != "":
		oneOf(fail, "spec.breaking", &d.Spec.Breaking, Schema, Data)
	}
	p.fleetBreaking = d.Spec.Breaking
	if len(p.errs) == before {
		p.excludes(d.Spec.Exclude, at)
		p.selects(d.Spec.Select, at)
		p.replaces(d.Spec.Replace, at)
	}
	if len(p.errs) > before {
		p.registry.Rules = rules.Rules{}
		p.packagesUnknown(line)
	}
}

// entry returns the place of an entry of the Packages document, and reports its faults.
func (p *parser) entry(at finder, list string, i int) (place string, fail failFunc) {
	keys := []string{"spec", list, strconv.Itoa(i)}
	return fmt.Sprintf("%s:%d", p.file, at.line(keys...)), p.failBelow(at, keys...)
}

func (p *parser) excludes(list []exclusion, at finder) {
	r := &p.registry.Rules
	for i, e := range list {
		place, fail := p.entry(at, "exclude", i)
		repository := repositoryOf(e.Package, fail)
		versions, err := rules.ParseRange(e.Version)
		if err != nil {
			fail("version", "%v", err)
		}
		reason := strings.Join(strings.Fields(e.Reason), " ")
		if reason == "" {
			fail("reason", "is missing: say why nobody should use it")
		}
		r.Excludes = append(r.Excludes, rules.Exclude{Repository: repository, Versions: versions, Reason: reason, Place: place})
	}
}

func (p *parser) selects(list []selection, at finder) {
	r := &p.registry.Rules
	for i, s := range list {
		place, fail := p.entry(at, "select", i)
		repository := repositoryOf(s.Package, fail)
		if repository == "" {
			continue
		}
		separator := ":"
		if strings.HasPrefix(s.Version, "sha256:") {
			separator = "@"
		}
		ref, err := sources.ParseRef(repository + separator + s.Version)
		if err != nil {
			fail("version", "%q: want a tag, a digest or tag@digest", s.Version)
		} else if first := r.Selected(repository); first != nil {
			fail("package", "%s has a version at %s already; remove one of the two", repository, first.Place)
		} else if e := r.Excluded(ref); e != nil {
			fail("version", "%s is %s", s.Version, e)
		} else {
			r.Selects = append(r.Selects, rules.Select{Ref: ref, Place: place})
		}
	}
}

func (p *parser) replaces(list []replacement, at finder) {
	r := &p.registry.Rules
	for i, e := range list {
		place, fail := p.entry(at, "replace", i)
		by := rules.Replace{Repository: repositoryOf(e.Package, fail), Version: e.Version, Place: place}
		if by.Repository == "" {
			continue
		}
		before := len(p.errs)
		if e.Version != "" {
			if ref, err := sources.ParseRef(by.Repository + ":" + e.Version); err != nil || ref.Digest != "" {
				fail("version", "%q is no tag; leave it out to replace every version", e.Version)
			}
		}
		switch {
		case (e.With == "") == (e.Directory == ""):
			fail("", "needs one of with (another repository) and directory (of this repository)")
		case e.With != "":
			var err error
			if by.With, err = withRef(e.With); err != nil {
				fail("with", "%v", err)
			} else if sources.SameRepository(by.With.Repository, by.Repository) {
				fail("with", "is the same repository; declare or select the version that you want")
			} else if x := r.Excluded(by.With); x != nil {
				fail("with", "%s is %s", e.With, x)
			}
		case leaves(e.Directory):
			fail("directory", "%q leaves the repository; paths are relative to its root", e.Directory)
		default:
			by.Directory = path.Clean(e.Directory)
		}
		if len(p.errs) > before {
			continue
		}
		same := func(o rules.Replace) bool {
			return sources.SameRepository(o.Repository, by.Repository) && o.Version == by.Version
		}
		if j := slices.IndexFunc(r.Replaces, same); j >= 0 {
			fail("", "%s is replaced at %s already; remove one of the two", by.Repository, r.Replaces[j].Place)
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
	repository, ok := sources.ParseRepository(text)
	if !ok {
		return sources.Ref{}, fmt.Errorf("%q: want a repository, or one with a tag, a digest or both", text)
	}
	return sources.Ref{Repository: repository}, nil
}

// repositoryOf checks the repository of an entry, and returns it as references
// have it.
func repositoryOf(name string, fail failFunc) string {
	if name == "" {
		fail("package", "is missing: name a repository")
		return ""
	}
	repository, ok := sources.ParseRepository(name)
	if !ok {
		fail("package", "%q is not a repository; the version goes into its own field", name)
	}
	return repository
}
