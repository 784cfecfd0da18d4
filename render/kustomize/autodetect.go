package kustomize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/types"

	"gitopsd.dev/sources"
)

// autodetect makes the kustomization file of a directory that has none, and returns its path.
func (in *inspection) autodetect(ctx context.Context, dir string) (string, error) {
	found := []string{}
	var unread []string // although they look like manifests
	entries := maxEntries
	err := fs.WalkDir(in.repo, dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", dir, err)
		case ctx.Err() != nil:
			return ctx.Err()
		case name == dir || name == sources.RegistryFile: // which registers clusters, and is no object of one
			return nil
		}
		if err := spend(&entries, 1, "more than %d files and directories; add a kustomization.yaml that lists the resources", maxEntries); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if !utf8.ValidString(entry.Name()) {
			return fmt.Errorf("%s: %q is not a name in UTF-8; rename it", dir, entry.Name())
		}
		relative := "./" + strings.TrimPrefix(name, dir+"/")
		if entry.IsDir() {
			switch _, err := in.kustomizationFile(name); {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			}
			found = append(found, relative)
			return fs.SkipDir
		}
		ext := path.Ext(name)
		if !entry.Type().IsRegular() && !in.otherFile(name, entry) {
			// What is in a submodule or in the directory that a link leads to would be missing, and
			// be pruned.
			_, err := in.mode(name)
			return err
		}
		switch {
		case ext == ".yaml" || ext == ".yml":
			found = append(found, relative)
		case strings.EqualFold(ext, ".yaml") || strings.EqualFold(ext, ".yml") || strings.EqualFold(ext, ".json"):
			unread = append(unread, strings.TrimPrefix(relative, "./"))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if len(unread) > 0 {
		more := ""
		if n := len(unread) - 5; n > 0 {
			unread, more = unread[:5], fmt.Sprintf(" and %d more", n)
		}
		in.notes = append(in.notes, fmt.Sprintf("%s: without a kustomization only .yaml and .yml files are read, so not %s%s", dir, strings.Join(unread, ", "), more))
	}
	content, err := json.Marshal(map[string]any{"kind": types.KustomizationKind, "resources": found})
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	file := path.Join(dir, konfig.DefaultKustomizationFileName())
	in.given.add(file, content)
	in.modes[file] = 0
	return file, nil
}

// otherFile reports whether an entry is a symbolic link to a regular file of the repository, and has no
// name of manifests. Such a link is like that file. Its name alone says nothing about what it leads to:
// "acme.io" and "conf.d" may be directories.
func (in *inspection) otherFile(name string, entry fs.DirEntry) bool {
	ext := path.Ext(name)
	if entry.Type() != fs.ModeSymlink || strings.EqualFold(ext, ".yaml") || strings.EqualFold(ext, ".yml") {
		return false
	}
	target, err := fs.ReadLink(in.repo, name)
	if err != nil || path.IsAbs(target) {
		return false
	}
	mode, err := in.mode(path.Join(path.Dir(name), target))
	return err == nil && mode.IsRegular()
}
