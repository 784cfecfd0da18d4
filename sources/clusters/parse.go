package clusters

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/sources"
)

// maxBytes bounds one document: a registry entry is some hundred bytes, its
// patches a few thousand.
const maxBytes = 1 << 20

type parser struct {
	file     string
	registry Registry
	errs     []error
	// unnamed reports whether a document has no name that can be read.
	unnamed bool
	seen    map[string]int // a cluster's name -> the line of its document
	rulesAt int            // the line of the Packages document
	// fleetBreaking is the Packages document's spec.breaking.
	fleetBreaking string
}

// document is the shape of a Cluster document as it is written.
type document struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       Spec     `yaml:"spec"`
}

type metadata struct {
	Name        string             `yaml:"name"`
	Labels      map[string]*string `yaml:"labels"` // nil for null
	Annotations map[string]*string `yaml:"annotations"`
}

func (p *parser) fail(line int, key, format string, args ...any) {
	p.errs = append(p.errs, &Error{File: p.file, Line: line, Key: key, Msg: fmt.Sprintf(format, args...)})
}

// failFunc reports a fault of a field, given as a path with dots; "" is the value that
// all its fields are in.
type failFunc func(field, format string, args ...any)

// failBelow returns a failFunc for the fields of the value that keys lead to.
func (p *parser) failBelow(at finder, keys ...string) failFunc {
	return func(field, format string, args ...any) {
		full := slices.Clone(keys)
		if field != "" {
			full = append(full, strings.Split(field, ".")...)
		}
		p.fail(at.line(full...), strings.Join(full, "."), format, args...)
	}
}

// oneOf checks that a field has one of the values, and sets it to the first if it is
// empty.
func oneOf(fail failFunc, field string, value *string, values ...string) {
	if *value == "" {
		*value = values[0]
	}
	if !slices.Contains(values, *value) {
		fail(field, "%q; use %s", *value, strings.Join(values, " or "))
	}
}

// leaves reports whether a path may lead out of the directory that it is relative to.
func leaves(name string) bool {
	clean := path.Clean(name)
	return path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsAny(name, "\\\x00")
}

func (p *parser) document(c chunk) {
	before := len(p.errs)
	if len(c.text) > maxBytes {
		p.fail(c.line, "", "the document has %d bytes; at most %d are read", len(c.text), maxBytes)
		p.unreadable(c, c.line)
		return
	}
	for i, text := range strings.Split(c.text, "\n") {
		if !utf8.ValidString(text) {
			p.fail(c.line+i, "", "not valid UTF-8: save the file as UTF-8")
			p.unreadable(c, c.line)
			return
		}
	}
	var root, next yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(c.text))
	if err := dec.Decode(&root); err != nil && err != io.EOF {
		line, msg := position(sources.ExplainYAML(c.text, err), c.line)
		p.fail(line, "", "%s", msg)
		p.unreadable(c, line)
		return
	} else if err == nil {
		if err := dec.Decode(&next); err != io.EOF {
			line := c.line + next.Line - 1
			if err != nil {
				line, _ = position(sources.ExplainYAML(c.text, err), c.line)
			}
			p.fail(line, "", "the document ends here: begin another one with a line of ---, or correct the indentation")
			p.unreadable(c, line)
			return
		}
	}
	if root.Kind == 0 || root.Content[0].Tag == "!!null" {
		return
	}
	at := finder{root: root.Content[0], first: c.line}
	line := at.line()
	if k := root.Content[0].Kind; k != yaml.MappingNode {
		p.fail(line, "", "a document must be a mapping with apiVersion, kind, metadata and spec")
		p.unreadable(c, line)
		return
	}
	if isPackages(at) {
		p.packages(c, at)
		return
	}
	if hasRules(at) {
		p.packagesUnknown(line)
	}
	var d document
	p.decode(c, at, &d)
	switch {
	case d.APIVersion != APIVersion:
		p.fail(at.line("apiVersion"), "apiVersion", "%q; this file holds %s documents", d.APIVersion, APIVersion)
	case d.Kind == "Rollout":
		p.errs = p.errs[:before] // its spec is not a Cluster's
		p.fail(at.line("kind"), "kind", "Rollout is not supported by this version: all clusters are rolled out together; remove the document")
		return
	case d.Kind != "Cluster":
		p.fail(at.line("kind"), "kind", "%q; this file holds documents of kind Cluster and one of kind %s", d.Kind, packagesKind)
	}
	cl := Cluster{Name: d.Metadata.Name, Line: line, Spec: d.Spec}
	cl.Labels = p.texts(at, "labels", d.Metadata.Labels)
	cl.Annotations = p.texts(at, "annotations", d.Metadata.Annotations)
	p.name(&cl, at)
	if name, ok := cl.Annotations[RemoveAnnotation]; ok && name != cl.Name {
		p.fail(at.line("metadata", "annotations", RemoveAnnotation), "metadata.annotations."+RemoveAnnotation, "%q is not the name of this cluster; to have everything removed that was applied to it, write %q", name, cl.Name)
	} else {
		cl.Remove = ok
	}
	p.labels(&cl, at)
	for _, key := range slices.Sorted(maps.Keys(cl.Annotations)) {
		if strings.HasPrefix(key, "gitopsd.dev/") && !slices.Contains(annotations, key) {
			p.fail(at.line("metadata", "annotations", key), "metadata.annotations."+key, "is no annotation of a Cluster%s", sources.MeantOrAll(key, annotations))
		}
	}
	if len(p.errs) == before {
		// A misspelt key would be reported a second time, as missing.
		p.spec(&cl, at)
	}
	if cl.Name == "" {
		p.unnamed = true
		return
	}
	if len(p.errs) > before {
		p.registry.Broken = append(p.registry.Broken, cl.Name)
		return
	}
	p.registry.Clusters = append(p.registry.Clusters, cl)
}

// texts returns the labels or annotations of a document. Null is an error: in {a: b, c} the c is
// most likely a part of the value before it.
func (p *parser) texts(at finder, field string, values map[string]*string) map[string]string {
	if values == nil {
		return nil
	}
	texts := make(map[string]string, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if values[key] == nil {
			p.fail(at.line("metadata", field, key), "metadata."+field+"."+key, "has no value: if it is a part of the value before a comma, quote the whole value; else write \"\" for an empty one")
			continue
		}
		texts[key] = *values[key]
	}
	return texts
}

// unreadable notes a document that is not valid YAML, or not a mapping.
func (p *parser) unreadable(c chunk, line int) {
	p.unnamed = true
	if packagesText.MatchString(c.text) {
		p.packagesUnknown(line)
	}
}

var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (p *parser) name(c *Cluster, at finder) {
	line := at.line("metadata", "name")
	if !dnsLabel.MatchString(c.Name) {
		p.fail(line, "metadata.name", "%q is no cluster name: lower-case letters, digits and '-', at most 63", c.Name)
		return
	}
	if first, twice := p.seen[c.Name]; twice {
		p.fail(line, "metadata.name", "%q is the name of the cluster at line %d already", c.Name, first)
		// Nobody knows which of the two is meant: neither is used.
		p.registry.Clusters = slices.DeleteFunc(p.registry.Clusters, func(o Cluster) bool { return o.Name == c.Name })
		return
	}
	if p.seen == nil {
		p.seen = make(map[string]int)
	}
	p.seen[c.Name] = line
}

// labels checks that a KubernetesTarget may have a cluster's labels.
func (p *parser) labels(c *Cluster, at finder) {
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		line, value := at.line("metadata", "labels", key), c.Labels[key]
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			p.fail(line, "metadata.labels", "%q: %s", key, wrong[0])
		} else if prefix, _, _ := strings.Cut(key, "/"); prefix == "gitopsd.dev" || prefix == "applyset.kubernetes.io" {
			p.fail(line, "metadata.labels."+key, "is gitopsd's own to set")
		} else if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			p.fail(line, "metadata.labels."+key, "%q: %s", value, wrong[0])
		}
	}
}

func (p *parser) spec(c *Cluster, at finder) {
	s := &c.Spec
	fail := p.failBelow(at, "spec")
	switch {
	case s.Path == "":
		fail("path", "is missing: name the directory that holds the cluster's kustomization")
	case leaves(s.Path):
		fail("path", "%q leaves the repository; paths are relative to its root", s.Path)
	default:
		s.Path = path.Clean(s.Path)
	}
	p.kubeconfig(s.Kubeconfig, at)
	oneOf(fail, "packages", &s.Packages, Expand, Delegate)
	oneOf(fail, "drift", &s.Drift, Correct, Report)
	oneOf(fail, "pins", &s.Pins, Check, Enforce)
	if s.Breaking != "" { // p.breaking sets the default
		oneOf(fail, "breaking", &s.Breaking, Schema, Data)
	}
	if s.ServiceAccount != "" {
		ns, name, both := strings.Cut(s.ServiceAccount, "/")
		if !both {
			ns, name = ownNamespace, ns
		}
		if !dnsLabel.MatchString(ns) || !dnsLabel.MatchString(name) {
			fail("serviceAccount", "%q is neither a name nor namespace/name", s.ServiceAccount)
		}
		s.ServiceAccount = ns + "/" + name
	}
	oneOf(fail, "unknownHealth", &s.UnknownHealth, Ready, Unready)
	if name := s.Certificates.Authority; name != "" && (len(name) > 253 || !dnsName.MatchString(name)) {
		fail("certificates.authority", "%q is no name of a Secret; it is looked for in the cluster's namespace %s", name, ownNamespace)
	}
	p.conversion(s.Conversion, at)
	p.etcd(s.Etcd, at)
	p.health(s.Health, at)
	p.publish(c, at)
	for i, patch := range s.Patches {
		s.Patches[i].Line = at.line("spec", "patches", strconv.Itoa(i))
		if strings.TrimSpace(patch.Patch) == "" {
			fail(fmt.Sprintf("patches.%d.patch", i), "is missing")
		}
	}
}

// breaking sets the default of spec.breaking: the Packages document's, or Schema, which
// is stricter, if that cannot be read.
func (p *parser) breaking() {
	fleet := p.fleetBreaking
	if fleet == "" || p.registry.RulesErr != nil {
		fleet = Schema
	}
	for i := range p.registry.Clusters {
		if s := &p.registry.Clusters[i].Spec; s.Breaking == "" {
			s.Breaking = fleet
		}
	}
}

// health checks that each rule has a kind of its own and an expression for healthy
// objects. The expressions are checked where they are compiled.
func (p *parser) health(rules []HealthRule, at finder) {
	type kind struct{ group, name string }
	seen := make(map[kind]int)
	for i := range rules {
		r := &rules[i]
		key := []string{"spec", "health", strconv.Itoa(i)}
		r.Line = at.line(key...)
		fail := p.failBelow(at, key...)
		first, twice := seen[kind{r.Group, r.Kind}]
		switch {
		case r.Kind == "":
			fail("kind", "is missing: name the kind of the objects to judge, and its group")
		case strings.Contains(r.Group, "/"):
			fail("group", "%q; leave the version out: a rule is for all versions of a kind", r.Group)
		case twice:
			fail("kind", "%s has a rule at line %d already", r.Kind, first)
		}
		seen[kind{r.Group, r.Kind}] = r.Line
		if strings.TrimSpace(r.Current) == "" {
			fail("current", "is missing: the expression that holds for a healthy object")
		}
	}
}

func (p *parser) kubeconfig(k Kubeconfig, at finder) {
	fail := p.failBelow(at, "spec", "kubeconfig")
	n := 0
	if k.SecretRef != nil {
		n++
		if k.SecretRef.Name == "" || strings.ContainsAny(k.SecretRef.Name, "/ ") {
			fail("secretRef", "names no Secret; it is looked for in the daemon's own namespace")
		}
	}
	if k.ClusterProfileRef != nil {
		n++
		// The label of its Secret has its name.
		if name := k.ClusterProfileRef.Name; !dnsLabel.MatchString(name) {
			fail("clusterProfileRef", "%q is no name of a ClusterProfile; it is looked for in the daemon's own namespace", name)
		}
	}
	if k.File != "" {
		n++
		if leaves(k.File) {
			fail("file", "%q leaves the directory that the daemon's --kubeconfig-dir names", k.File)
		}
	}
	if k.InCluster {
		n++
	}
	if n != 1 {
		fail("", "has %d of secretRef, clusterProfileRef, file and inCluster: true; exactly one is needed", n)
	}
}

// dependencies checks dependsOn across documents: every name is registered, and there
// is no cycle. A cluster may depend on one with a broken document: it waits.
func (p *parser) dependencies() {
	r := &p.registry
	state := make(map[string]int) // 1 on the current chain, 2 done
	var visit func(c Cluster, chain []string) []string
	visit = func(c Cluster, chain []string) []string {
		chain = append(chain, c.Name)
		switch state[c.Name] {
		case 1:
			return chain[slices.Index(chain, c.Name):]
		case 2:
			return nil
		}
		state[c.Name] = 1
		defer func() { state[c.Name] = 2 }()
		for _, name := range c.Spec.DependsOn {
			if next, ok := r.Get(name); ok {
				if cycle := visit(next, chain); cycle != nil {
					return cycle
				}
			}
		}
		return nil
	}
	bad := make(map[string]bool)
	for _, c := range r.Clusters {
		for _, name := range c.Spec.DependsOn {
			on, there := r.Get(name)
			switch {
			case on.Remove && !c.Remove:
				p.fail(c.Line, "spec.dependsOn", "cluster %s waits for %q, which is to be emptied (%s)", c.Name, name, RemoveAnnotation)
				bad[c.Name] = true
			case !there && !p.unnamed && !slices.Contains(r.Broken, name):
				p.fail(c.Line, "spec.dependsOn", "cluster %s waits for %q, which is not registered", c.Name, name)
				bad[c.Name] = true
			}
		}
		if cycle := visit(c, nil); cycle != nil {
			p.fail(c.Line, "spec.dependsOn", "clusters wait for each other: %s", strings.Join(cycle, " -> "))
			for _, name := range cycle {
				bad[name] = true
			}
		}
	}
	p.spoil(func(c Cluster) bool { return bad[c.Name] })
}

// removals checks across documents which clusters may be emptied: none if the file has
// errors, and none that another document registers too.
func (p *parser) removals() {
	const key = "metadata.annotations." + RemoveAnnotation
	told := make(map[string]bool)
	for _, c := range p.registry.Clusters {
		if !c.Remove {
			continue
		}
		for _, other := range p.registry.Clusters {
			if !other.Remove && other.Spec.Context == c.Spec.Context && other.Spec.Kubeconfig.place() == c.Spec.Kubeconfig.place() {
				p.fail(c.Line, key, "cluster %s is not emptied: its kubeconfig is also cluster %s's; to rename it, remove the old document", c.Name, other.Name)
				told[c.Name] = true
			}
		}
	}
	if len(p.errs) == 0 {
		return
	}
	p.spoil(func(c Cluster) bool {
		if c.Remove && !told[c.Name] {
			p.fail(c.Line, key, "cluster %s is not emptied while %s has errors", c.Name, p.file)
		}
		return c.Remove
	})
}

// spoil marks clusters as broken.
func (p *parser) spoil(which func(Cluster) bool) {
	r := &p.registry
	r.Clusters = slices.DeleteFunc(r.Clusters, func(c Cluster) bool {
		broken := which(c)
		if broken {
			r.Broken = append(r.Broken, c.Name)
		}
		return broken
	})
	slices.Sort(r.Broken)
	r.Broken = slices.Compact(r.Broken)
}

var (
	linePrefix   = regexp.MustCompile(`^(?:yaml: )?line (\d+): (?s:(.*))$`)
	unknownField = regexp.MustCompile(`^field (\S+) not found in type .*$`)
	wrongType    = regexp.MustCompile("^cannot unmarshal !!(\\w+)(?: `(.*)`)? into (.*)$")
)

// position splits a parser's message into the line in the file and the rest.
func position(msg string, first int) (int, string) {
	if m := linePrefix.FindStringSubmatch(msg); m != nil {
		n, _ := strconv.Atoi(m[1])
		return first + n - 1, m[2]
	}
	return first, strings.TrimPrefix(msg, "yaml: ")
}

// nulls reports elements of lists without a value, which decoding would leave out: a line with
// a comment alone, say, whose gate or exclusion would be gone without a word.
func (p *parser) nulls(at finder, n *yaml.Node, keys []string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			p.nulls(at, n.Content[i+1], append(keys, n.Content[i].Value))
		}
	case yaml.SequenceNode:
		for i, element := range n.Content {
			keys := append(keys, strconv.Itoa(i))
			if element.Tag == "!!null" {
				p.fail(at.line(keys...), strings.Join(keys, "."), "has no value: write one, or remove the line")
			}
			p.nulls(at, element, keys)
		}
	}
}

// decode decodes a document strictly, and reports each fault.
func (p *parser) decode(c chunk, at finder, into any) {
	p.nulls(at, at.root, nil)
	dec := yaml.NewDecoder(strings.NewReader(c.text))
	dec.KnownFields(true)
	err := dec.Decode(into)
	if err == nil || errors.Is(err, io.EOF) {
		return
	}
	msgs := []string{err.Error()}
	if types, ok := errors.AsType[*yaml.TypeError](err); ok {
		msgs = types.Errors
	}
	for _, msg := range msgs {
		line, msg := position(msg, c.line)
		if m := unknownField.FindStringSubmatch(msg); m != nil {
			p.fail(line, m[1], "is not a field here%s", didYouMean(m[1]))
		} else if m := wrongType.FindStringSubmatch(msg); m != nil {
			p.fail(line, "", "a %s%s stands where %s is wanted", m[1], quoted(m[2]), article(m[3]))
		} else {
			p.fail(line, "", "%s", msg)
		}
	}
}

func quoted(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func article(goType string) string {
	switch {
	case goType == "string":
		return "a string"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	default:
		return "a mapping"
	}
}

// didYouMean suggests the known field that is nearest to name.
func didYouMean(name string) string {
	var fields []string
	for _, t := range []reflect.Type{
		reflect.TypeFor[document](), reflect.TypeFor[metadata](), reflect.TypeFor[Spec](),
		reflect.TypeFor[Kubeconfig](), reflect.TypeFor[SecretRef](), reflect.TypeFor[ClusterProfileRef](), reflect.TypeFor[Patch](), reflect.TypeFor[Selector](), reflect.TypeFor[HealthRule](),
		reflect.TypeFor[Conversion](), reflect.TypeFor[ConversionService](), reflect.TypeFor[Publication](),
		reflect.TypeFor[Etcd](), reflect.TypeFor[EtcdProxy](),
		reflect.TypeFor[packages]().Field(3).Type, reflect.TypeFor[exclusion](), reflect.TypeFor[selection](), reflect.TypeFor[replacement](),
	} {
		for i := range t.NumField() {
			if tag := t.Field(i).Tag.Get("yaml"); tag != "" && tag[0] != ',' {
				fields = append(fields, tag)
			}
		}
	}
	if slices.Contains(fields, name) {
		return "" // of another mapping
	}
	return sources.Meant(name, fields)
}

// finder finds the line of a key in a document.
type finder struct {
	root  *yaml.Node
	first int // the file's line of the document's first
}

// line returns the line of the value that keys lead to, or of its nearest
// parent in the document.
func (f finder) line(keys ...string) int {
	n, line := f.root, f.root.Line
	for _, key := range keys {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == key {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(key); err == nil && i < len(n.Content) {
				next, line = n.Content[i], n.Content[i].Line
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return f.first + line - 1
}
