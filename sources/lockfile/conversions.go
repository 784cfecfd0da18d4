package lockfile

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Conversion identifies the conversion rules of a CustomResourceDefinition in a cluster.
// It is comparable.
//
// Its line follows from the commit alone, that is, from the rendered rules and definition.
// It decides nothing: if a merge leaves two, the next write of the lock replaces both. With
// it, two clusters with the same lines convert alike, and reviewers see changes of rules.
type Conversion struct {
	Cluster string
	// Definition is the CustomResourceDefinition's name, "widgets.example.io".
	Definition string
	// Digest identifies schemas and rules, "h1:" and 44 characters of base64.
	Digest string
}

// conversionWord takes the place of a selection's version.
const conversionWord = "conversion"

// String returns the line of the conversion rules.
func (c Conversion) String() string {
	return "@" + c.Cluster + " " + c.Definition + " " + conversionWord + " " + c.Digest
}

// Conversions returns the conversion rules of a cluster, sorted.
func (f *File) Conversions(cluster string) []Conversion {
	return slices.SortedFunc(maps.Keys(f.conversions[cluster]), func(a, b Conversion) int { return cmp.Compare(a.String(), b.String()) })
}

// Convert replaces the conversion rules of a cluster. It panics if any are another
// cluster's.
func (f *File) Convert(cluster string, conversions []Conversion) {
	delete(f.conversions, cluster)
	for _, c := range conversions {
		if c.Cluster != cluster {
			panic("lockfile: conversion rules of " + c.Cluster + " given for " + cluster)
		}
		f.convert(c, 0)
	}
}

func (f *File) convert(c Conversion, line int) { f.conversions.add(c.Cluster, c, line) }

// Leave removes all lines of a cluster.
func (f *File) Leave(cluster string) {
	f.Select(cluster, nil)
	f.Convert(cluster, nil)
}

// definitionName matches a DNS subdomain of at least two labels.
var definitionName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`)

// maxName is the maximal length of an object's name.
const maxName = 253

// isConversion reports whether a line that starts with @ is about conversion rules.
func isConversion(text string) bool {
	fields := strings.SplitN(text, " ", 4)
	return len(fields) > 2 && fields[2] == conversionWord && !strings.Contains(fields[1], "/")
}

func parseConversion(text string) (Conversion, error) {
	fields := strings.Split(strings.TrimPrefix(text, "@"), " ")
	if len(fields) != 4 {
		return Conversion{}, fmt.Errorf("%q is not about conversion rules: want @CLUSTER DEFINITION %s SUM", text, conversionWord)
	}
	c := Conversion{Cluster: fields[0], Definition: fields[1], Digest: fields[3]}
	switch {
	case !clusterName.MatchString(c.Cluster):
		return Conversion{}, fmt.Errorf("%q is not a cluster's name", c.Cluster)
	case len(c.Definition) > maxName || !definitionName.MatchString(c.Definition):
		return Conversion{}, fmt.Errorf("%q is not the name of a CustomResourceDefinition", c.Definition)
	case !typesSum.MatchString(c.Digest):
		return Conversion{}, fmt.Errorf("%q is not a digest of conversion rules: want h1: and 44 characters of base64", c.Digest)
	}
	return c, nil
}
