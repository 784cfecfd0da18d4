package kustomize

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

// MissingError is the error for allowed remote bases that were not given to the build. They
// may name further ones.
type MissingError struct {
	Bases []Missing
}

func (e *MissingError) Error() string {
	var errs []error
	for _, m := range e.Bases {
		errs = append(errs, m.Fault(errors.New("was not fetched")))
	}
	return errors.Join(errs...).Error()
}

// Missing is a remote base that was not given to the build, and the place that names it.
type Missing struct {
	remote.Base
	field field
	entry string
}

// Fault returns an error about the base, with the file, line and entry that name it.
func (m Missing) Fault(err error) error {
	return m.field.fault(m.entry, fmt.Errorf("%s: %q: %w", m.field.name, remote.Shown(m.entry), err))
}

// base checks an entry that names a file or directory of the repository, or a remote base.
// It returns the path in the build; "" for a remote base that is missing.
func (in *inspection) base(v *visit, f field, entry string) (string, error) {
	if !remote.Looks(entry) || v.as == plugins {
		return in.path(f, v.dir, entry)
	}
	base, err := in.bases.Allowed.Base(entry)
	here := Missing{Base: base, field: f, entry: entry}
	if err != nil {
		return "", here.Fault(err)
	}
	root := remote.Root(base.Tree)
	if in.mounts[root] == nil {
		files := in.bases.Trees[base.Tree]
		known := slices.ContainsFunc(in.missing, func(m Missing) bool { return m.Tree == base.Tree })
		if !known && len(in.mounts)+len(in.missing) == maxRemotes {
			return "", here.Fault(fmt.Errorf("the build has more than %d commits of other repositories: %w", maxRemotes, sources.ErrLimit))
		}
		if files == nil {
			if !known {
				in.missing = append(in.missing, here)
			}
			return "", nil
		}
		if in.mounts == nil {
			in.mounts, in.localised = make(map[string]fs.FS), make(map[string][]byte)
		}
		in.mounts[root], in.modes[root] = files, fs.ModeDir
	}
	name := base.Name()
	switch mode, err := in.mode(name); {
	case errors.Is(err, fs.ErrNotExist):
		return "", here.Fault(fmt.Errorf("that commit has no %s", base.Dir))
	case err != nil:
		return "", here.Fault(err)
	case !mode.IsDir():
		return "", here.Fault(errors.New("is a file there; a remote base is a directory with a kustomization"))
	}
	in.given.addDir(name)
	return name, nil
}

// mount returns the root of the remote tree that contains a path of the build; "" for the
// fleet repository.
func (in *inspection) mount(name string) string {
	for root := range in.mounts {
		if within(name, root) {
			return root
		}
	}
	return ""
}

// place returns the file system of a path of the build, and the path in it.
func (in *inspection) place(name string) (files fs.FS, at string) {
	root := in.mount(name)
	switch root {
	case "":
		return in.repo, name
	case name:
		return in.mounts[root], "."
	}
	return in.mounts[root], strings.TrimPrefix(name, root+"/")
}

// localise records a kustomization with its remote bases replaced by their directories in
// the build.
func (in *inspection) localise(dir, file string, k *types.Kustomization) error {
	if len(in.mounts) == 0 {
		return nil
	}
	replaced := false
	replace := func(entries []string) []string {
		var all []string
		for _, entry := range entries {
			if remote.Looks(entry) {
				base, err := in.bases.Allowed.Base(entry)
				if err == nil { // otherwise base has failed
					entry, replaced = relative(dir, base.Name()), true
				}
			}
			all = append(all, entry)
		}
		return all
	}
	local := *k
	local.Resources, local.Components = replace(k.Resources), replace(k.Components)
	if !replaced {
		return nil
	}
	content, err := encode(&local)
	if err != nil {
		return at(file, 0, err)
	}
	in.localised[file] = content
	return nil
}

// encode returns the YAML of a kustomization. It fails if kustomize would not read the same
// kustomization.
func encode(k *types.Kustomization) ([]byte, error) {
	content, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	var read types.Kustomization
	if err := read.Unmarshal(content); err != nil {
		return nil, err
	}
	read.FixKustomization()
	if again, err := yaml.Marshal(read); err != nil || string(again) != string(content) {
		return nil, errors.New("has a field that cannot be used in a kustomization with remote bases")
	}
	return content, nil
}

// relative returns the relative path from dir to name, in a form that kustomize does not
// read as an address.
func relative(dir, name string) string {
	up := 0
	if dir != "." {
		up = 1 + strings.Count(dir, "/")
	}
	return "./" + strings.Repeat("../", up) + path.Clean(name)
}
