package publish

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/dirhash"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// Document is one document of a revision.
type Document struct {
	// Name is its key below the revision, such as "types/example.org/Widget/v1".
	Name string
	Body []byte
}

// Digest returns the digest of documents in any order: "h1:" and the hash of their names and contents, as
// go.sum has it for the files of a module.
func Digest(docs []Document) (string, error) {
	names, bodies := make([]string, len(docs)), make(map[string][]byte, len(docs))
	for i, d := range docs {
		names[i], bodies[d.Name] = d.Name, d.Body
	}
	return dirhash.Hash1(names, func(name string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(bodies[name])), nil
	})
}

// Package is the document packages/<name>: a package of the cluster.
type Package struct {
	// Name is the declaration's.
	Name string              `json:"name"`
	Kind sources.PackageKind `json:"kind"`
	// Repository, Version and Digest are the lock's. Content and Types are the digests of its
	// package.yaml and of the types in that.
	Repository string         `json:"repository"`
	Version    string         `json:"version"`
	Digest     sources.Digest `json:"digest"`
	Content    sources.Digest `json:"content"`
	Types      string         `json:"types,omitempty"`
	// Runtime is the controller's image by digest.
	Runtime string `json:"runtime,omitempty"`
	// Parent is the repository of the package that depends on it; empty if it is declared.
	Parent string `json:"parent,omitempty"`
}

// Type is the document types/<group>/<kind>/<version>: a rendered type.
type Type struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	// Digest is the type's, Conversion the digest of its definition's conversion rules, and
	// Controller the digest of the controller of its objects. The last two are empty if none are
	// declared.
	Digest     string `json:"digest"`
	Conversion string `json:"conversion,omitempty"`
	Controller string `json:"controller,omitempty"`
	// Definition is the ID of its definition, as manifest.ID prints it, and Package the declaration
	// that the definition is from.
	Definition string `json:"definition"`
	Package    string `json:"package,omitempty"`
}

// Documents returns the documents of a unit, sorted by name. Equal units have equal documents: they have
// no time, commit or host. Secrets are never published.
func Documents(u *desired.Unit) ([]Document, error) {
	if !u.Complete() || u.Objects == nil {
		return nil, fmt.Errorf("cluster %s: parts of it could not be rendered, so that nothing is published", u.Name)
	}
	b := builder{types: make(map[string]bool)}
	for _, p := range u.Packages {
		b.addJSON("packages/"+p.Declaration.Name, packageOf(p))
	}
	// CRDs come first: of a type that an XRD defines too, the API server serves the CRD's.
	for _, kind := range manifest.Definitions {
		for _, o := range u.Objects.All() {
			if !o.ID().Is(kind) {
				continue
			}
			if err := b.addTypes(u, o); err != nil {
				return nil, fmt.Errorf("cluster %s: %w", u.Name, err)
			}
		}
	}
	for _, o := range u.Objects.All() {
		id := o.ID()
		switch {
		case id.Is(manifest.ValidatingWebhooks, manifest.MutatingWebhooks):
			b.add("webhooks/"+id.Kind+"/"+id.Name, o.AppendJSON(nil))
		case id.Is(manifest.Target):
			b.add("targets/"+id.Namespace+"/"+id.Name, o.AppendJSON(nil))
		}
	}
	for name, c := range u.Conversions {
		packed, err := bundle.Pack(c.Set, c.Before.Tree(), c.Documents)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: conversion rules of %s: %w", u.Name, name, err)
		}
		b.add("conversions/"+name, packed)
	}
	slices.SortFunc(b.docs, func(a, c Document) int { return strings.Compare(a.Name, c.Name) })
	for _, d := range b.docs {
		if len(d.Body) > maxDocument {
			return nil, fmt.Errorf("cluster %s: %s has %d bytes, and etcd takes no more than %d in one value", u.Name, d.Name, len(d.Body), maxDocument)
		}
	}
	return b.docs, nil
}

// maxDocument is the largest size of a document: etcd's limit of a request, less some overhead.
const maxDocument = 1400 << 10

// builder collects documents. A name must be added once: etcd refuses a transaction that writes a key twice.
type builder struct {
	docs []Document
	// types are the names of types that were added.
	types map[string]bool
}

func (b *builder) add(name string, body []byte) {
	b.docs = append(b.docs, Document{Name: name, Body: body})
}

func (b *builder) addJSON(name string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // structures of strings
	}
	b.add(name, body)
}

// addTypes adds the types of a definition that no other has defined.
func (b *builder) addTypes(u *desired.Unit, definition *manifest.Object) error {
	all, err := types.Of(definition.Tree())
	if err != nil {
		return err
	}
	actor, err := u.Behaviour(definition)
	if err != nil {
		return err
	}
	t := Type{Definition: definition.ID().String(), Package: definition.Label(manifest.PackageLabel)}
	if actor != nil {
		t.Controller = actor.Digest()
	}
	if c := u.Conversions[definition.ID().Name]; c != nil && definition.ID().Is(manifest.CRD) {
		t.Conversion = c.Set.Digest()
	}
	for _, of := range all {
		t.Group, t.Version, t.Kind, t.Digest = of.Group, of.Version, of.Kind, of.Digest
		if name := "types/" + of.Group + "/" + of.Kind + "/" + of.Version; !b.types[name] {
			b.types[name] = true
			b.addJSON(name, t)
		}
	}
	return nil
}

func packageOf(s sources.Selected) Package {
	p := Package{
		Name: s.Declaration.Name, Kind: s.Declaration.Kind, Runtime: s.Runtime, Parent: s.Parent,
		Repository: s.Pin.Ref.Repository, Version: s.Pin.Ref.Version(), Digest: s.Pin.Digest, Content: s.Package.Content,
	}
	if all, err := types.All(s.Package.Documents); err == nil && len(all) > 0 { // otherwise the lock has no digest, either
		p.Types = types.Sum(all)
	}
	return p
}
