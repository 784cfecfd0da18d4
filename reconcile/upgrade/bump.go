package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/versions"
)

// Request asks for a [Bump].
type Request struct {
	// Package is a repository, its last part, or the name of a declaration.
	Package string
	// Version is a tag, a digest, tag@digest, "latest" or a range; empty for the newest of
	// the major version that a cluster has.
	Version string
	// Clusters are the clusters to edit; empty for all that declare the package.
	Clusters []string
	// all is set by BumpAll: declarations stay if their version gives no newer ones.
	all bool
}

// Bump is the result of a [Request]. If there is nothing to do, Edits is empty and Notes have
// the reasons.
type Bump struct {
	// Repository is the repository of the package.
	Repository string
	// Edits are sorted by file and line.
	Edits []Edit
	// Files are the changed declarations by path, without the lock.
	Files map[string][]byte
	// Before is the lock before the edit, and Lock the lock after it.
	Before, Lock *lockfile.File
	// Moves are the changes of versions in clusters, dependencies included.
	Moves []*Move
	// Notes are about declarations that stay, or cannot be read.
	Notes []*Note
}

// Note is the reason why declarations stay, or a warning about a version.
type Note struct {
	// Package is the last part of the repository; empty for a request of one package.
	Package string
	// Clusters are the clusters with these declarations; empty for all.
	Clusters []string
	Text     string
	// newest: there is no newer version.
	newest bool
}

// String returns the note, on one line unless an error in it has several.
func (n *Note) String() string {
	text := n.Text
	if len(n.Clusters) > 0 {
		text = prose.Some(n.Clusters, 4) + ": " + text
	}
	if n.Package != "" {
		text = n.Package + ": " + text
	}
	return text
}

// Edit is one change to a file.
type Edit struct {
	edit.Place
	// To replaces Text.
	To string
	// Clusters are the clusters that the edit changes, sorted.
	Clusters []string
}

// target is a declaration to move.
type target struct {
	cluster *desired.Unit
	edit.Declared
	declaration sources.Declaration
	// written is spec.package as written.
	written string
	// to is the reference to write; zero if the declaration stays.
	to sources.Ref
}

// Bump computes the edit. If it fails, the caller must write nothing. Problems of other packages
// and clusters are not errors.
func (u *Upgrader) Bump(ctx context.Context, commit sources.Commit, req Request) (*Bump, error) {
	before, err := u.cfg.Computer.Compute(ctx, commit, desired.Earlier{})
	if err != nil {
		return nil, err
	}
	b, after, err := u.bump(ctx, before, req)
	if err != nil {
		return nil, err
	}
	b.Moves = u.moves(ctx, before, after)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.leaveOut(before, req.Clusters, func(d sources.Declaration) bool {
		return d.Ref.Repository == "" || Matches(req.Package, d.Ref.Repository, d.Name)
	})
	return b, nil
}

// leaveOut adds notes about declarations that are not moved, since they cannot be read: such
// declarations in the named clusters, or in all if none is named.
func (b *Bump) leaveOut(state *desired.State, clusters []string, such func(sources.Declaration) bool) {
	if len(clusters) == 0 && state.RegistryErr != nil {
		b.note("", Note{Text: "clusters whose documents cannot be read are left out: " + problem.Message(state.RegistryErr)})
	}
	for _, c := range state.Clusters {
		if len(clusters) > 0 && !slices.Contains(clusters, c.Name) {
			continue
		}
		if c.Err != nil && len(c.Declared)+len(c.Unreadable) == 0 {
			b.note(c.Name, Note{Text: "left out, since its manifests cannot be read: " + problem.Message(c.Err)})
		}
		for _, d := range c.Unreadable {
			if such(d) {
				b.note(c.Name, Note{Text: fmt.Sprintf("the declaration of %s is left out, since it has errors (%s)", d.Name, d.Place())})
			}
		}
	}
}

// bump computes the edit, and the state after it: before, if there is no edit.
func (u *Upgrader) bump(ctx context.Context, before *desired.State, req Request) (*Bump, *desired.State, error) {
	targets, err := find(before, req)
	if err != nil {
		return nil, nil, err
	}
	b := &Bump{Repository: targets[0].declaration.Ref.Repository, Before: before.Committed, Lock: before.Lock}
	if err := u.choose(ctx, before, req, targets, b); err != nil {
		return nil, nil, err
	}
	moving := slices.DeleteFunc(slices.Clone(targets), func(t *target) bool { return t.to == t.declaration.Ref })
	if len(moving) == 0 {
		return b, before, selected(before, targets)
	}
	if err := b.edit(ctx, before, req, moving); err != nil {
		return nil, nil, err
	}
	commit := before.Commit
	commit.Files = edit.Overlay(commit.Files, b.Files)
	after, err := u.cfg.Computer.Compute(ctx, commit, desired.Earlier{})
	if err != nil {
		return nil, nil, err
	}
	if err := verify(before, after, moving); err != nil {
		return nil, nil, fmt.Errorf("nothing was written, since then: %w", err)
	}
	if err := selected(after, targets); err != nil {
		return nil, nil, fmt.Errorf("nothing was written: %w", err)
	}
	if err := elsewhere(before, after, req, moving); err != nil {
		return nil, nil, fmt.Errorf("nothing was written: %w", err)
	}
	b.Lock = after.Lock
	return b, after, nil
}

// find returns the declarations that a request names.
func find(state *desired.State, req Request) ([]*target, error) {
	if err := readable(state, req.Clusters); err != nil {
		return nil, err
	}
	var targets []*target
	repositories := make(map[string]bool)
	declaring := make(map[string]bool)
	for _, c := range state.Clusters {
		if len(req.Clusters) > 0 && !slices.Contains(req.Clusters, c.Name) {
			continue
		}
		for _, d := range c.Declared {
			if !Matches(req.Package, d.Ref.Repository, d.Name) {
				continue
			}
			targets = append(targets, &target{
				cluster: c, declaration: d, written: manifest.Text(d.Document.Tree, "spec", "package"),
				Declared: edit.Declared{Cluster: c.Name, Kind: d.Kind, Name: d.Name},
			})
			repositories[d.Ref.Repository] = true
			declaring[c.Name] = true
		}
	}
	if repositories[req.Package] { // a full name is never ambiguous
		targets = slices.DeleteFunc(targets, func(t *target) bool { return t.declaration.Ref.Repository != req.Package })
		repositories = map[string]bool{req.Package: true}
	}
	switch {
	case len(repositories) > 1:
		return nil, ambiguous(req.Package, slices.Sorted(maps.Keys(repositories)))
	case len(targets) == 0:
		return nil, notDeclared(state, req)
	}
	for _, name := range req.Clusters {
		if !declaring[name] {
			return nil, fmt.Errorf("cluster %s does not declare %s", name, targets[0].declaration.Ref.Repository)
		}
	}
	return targets, nil
}

// readable returns an error if one of the named clusters is not registered, or cannot be
// rendered.
func readable(state *desired.State, clusters []string) error {
	for _, name := range clusters {
		switch c := state.Get(name); {
		case c == nil && state.Registry.Removed(name):
			return fmt.Errorf("cluster %q is not registered in %s", name, sources.RegistryFile)
		case c == nil:
			return fmt.Errorf("cluster %s: its registration has errors: %w", name, state.RegistryErr)
		case c.Err != nil:
			return problem.In(name, c.Err)
		}
	}
	return nil
}

// nothingDeclares returns the beginning of a sentence about the named clusters, or all.
func nothingDeclares(clusters []string) string {
	if len(clusters) > 0 {
		return strings.Join(clusters, " and ") + ": nothing declares"
	}
	return "no cluster declares"
}

// notDeclared returns the error for a package that is not declared, with the declared ones.
func notDeclared(state *desired.State, req Request) error {
	declared := make(map[string]bool)
	for _, c := range state.Clusters {
		for _, s := range c.Packages {
			repo, used := s.Repository(), s.Pin.Ref.Repository
			if s.Parent == "" || !Matches(req.Package, repo, s.Declaration.Name) && !Matches(req.Package, used, s.Declaration.Name) {
				continue
			}
			if selected, by := state.Registry.Rules.Selected(repo), state.Registry.Rules.Fixed(repo); by != nil {
				return fmt.Errorf("%s is declared nowhere: %s depends on it, and it is replaced at %s; change that entry", repo, s.Parent, by.Place)
			} else if selected != nil {
				return fmt.Errorf("%s is declared nowhere: %s depends on it, and its version is selected at %s; change that entry", repo, s.Parent, selected.Place)
			}
			return fmt.Errorf("%s is declared nowhere: %s depends on it. `gitopsd lock --update=%s` takes the newest version that suits all who do; or declare it, with the version you want", repo, s.Parent, used)
		}
		for _, d := range c.Declared {
			declared[d.Ref.Repository] = true
		}
	}
	where := nothingDeclares(req.Clusters)
	if err := state.Err(); err != nil && len(declared) == 0 {
		return err // which may be why nothing is declared
	}
	if len(declared) == 0 {
		return fmt.Errorf("%s a package %q, or any other", where, req.Package)
	}
	return errors.Join(state.Err(), fmt.Errorf("%s a package %q; there are %s", where, req.Package, strings.Join(slices.Sorted(maps.Keys(declared)), ", ")))
}

// choose sets the new reference of each target.
func (u *Upgrader) choose(ctx context.Context, state *desired.State, req Request, targets []*target, b *Bump) error {
	var list []string
	var listErr error
	listed := false
	var r *ruling
	version, digest, _ := strings.Cut(req.Version, "@")
	if _, err := sources.ParseDigest(req.Version); err == nil {
		version, digest = "", req.Version
	}
	if digest != "" && version != versions.Latest && isTag(b.Repository, version) {
		// A person may go back to what a moved tag was, but should know.
		now, err := u.cfg.Digest(ctx, state.Origin(b.Repository), version)
		if err == nil && string(now) != digest {
			b.note("", Note{Text: fmt.Sprintf("%s has another digest in its registry: %s", version, now)})
		}
	}
	for _, t := range targets {
		t.to = t.declaration.Ref
		if digest != "" {
			d, err := sources.ParseDigest(digest)
			if err != nil {
				return err
			}
			t.to.Tag, t.to.Digest = version, d
			if _, err := sources.ParseRef(t.to.String()); err != nil {
				return err
			}
			continue
		}
		if !listed {
			list, listErr = u.cfg.Tags(ctx, state.Origin(b.Repository))
			r = u.ruling(ctx, state, &Versions{Repository: b.Repository, Clusters: clustersOf(targets)}, list)
			listed = true
		}
		named := names(b.Repository, version, list, listErr)
		if named {
			_, _ = u.refuse(ctx, state, r, version) // a missing digest is an error of the new state
		}
		if why := r.why(version); why != "" && named {
			if e := r.rules.Excluded(sources.Ref{Repository: b.Repository, Tag: version, Digest: r.digests[version]}); e != nil {
				return fmt.Errorf("%s: %s is %s", b.Repository, version, e)
			}
			b.note("", Note{Text: fmt.Sprintf("%s is %s", version, why)}) // a person asks for it by name
		}
		tag, note, err := u.version(t, version, list, listErr, r)
		for again := !named; again && err == nil; {
			if again, err = u.refuse(ctx, state, r, tag); again {
				tag, note, err = u.version(t, version, list, listErr, r)
			}
		}
		if err == nil && tag != "" && r.unknown != nil {
			if tag != version {
				return fmt.Errorf("%s: %w", b.Repository, r.unknown)
			}
			b.note("", Note{Text: fmt.Sprintf("it is unknown whether %s is retracted: %v", tag, r.unknown)})
		}
		if stays, ok := errors.AsType[unversioned](err); ok && req.all {
			b.note("", Note{Text: stays.Error()})
			continue
		}
		if err != nil {
			return err
		}
		if version == "" || version == versions.Latest {
			for _, text := range r.skipped(list, t.declaration.Ref.Tag, u.options(t)) {
				b.note(t.Cluster, Note{Text: text})
			}
		}
		if note.Text != "" {
			b.note(t.Cluster, note)
		}
		if tag == "" {
			continue
		}
		if err := u.form(ctx, state, t, tag); err != nil {
			return err
		}
		if t.to == t.declaration.Ref {
			b.note(t.Cluster, Note{Text: tag + " is declared already"})
		}
	}
	return nil
}

// note adds a note about a cluster's declaration, or about all. Equal notes of several clusters
// are one.
func (b *Bump) note(cluster string, n Note) {
	i := slices.IndexFunc(b.Notes, func(o *Note) bool { return o.Package == n.Package && o.Text == n.Text })
	if i < 0 {
		i, b.Notes = len(b.Notes), append(b.Notes, &n)
	}
	if cluster != "" && !slices.Contains(b.Notes[i].Clusters, cluster) {
		b.Notes[i].Clusters = append(b.Notes[i].Clusters, cluster)
	}
}

// version returns the tag that a target moves to, or why it stays. The error names the
// repository, as errors of registries do.
func (u *Upgrader) version(t *target, query string, tags []string, tagsErr error, r *ruling) (tag string, note Note, err error) {
	opts := u.options(t)
	repository := t.declaration.Ref.Repository
	current := t.declaration.Ref.Tag
	switch {
	case query == "" && current == "":
		return "", Note{}, unversioned{fmt.Errorf("%s: cluster %s declares it by its digest alone, which says nothing about versions; name the one to go to: %s@VERSION", repository, t.Cluster, path.Base(repository))}
	case names(repository, query, tags, tagsErr):
		return query, Note{}, nil
	case tagsErr != nil:
		return "", Note{}, tagsErr
	case query != "":
		if tag, err = versions.Select(query, r.open, current, opts); err != nil {
			return "", Note{}, fmt.Errorf("%s: %w%s", repository, err, r.leftOut(query, tags, current, opts))
		}
		return tag, Note{}, nil
	}
	newer, err := versions.Find(r.open, current, opts)
	switch {
	case err != nil:
		return "", Note{}, unversioned{fmt.Errorf("%s: cluster %s: %w; name the version to go to: %s@VERSION", repository, t.Cluster, err, path.Base(repository))}
	case newer.Update != "":
		return newer.Update, Note{}, nil
	case newer.Latest != "" && len(newer.Held) > 0:
		return "", Note{Text: fmt.Sprintf("%s stays, since %s is not %s", current, newer.Latest, newer.Held[0])}, nil
	case newer.Latest != "":
		return "", Note{Text: fmt.Sprintf("%s is the newest of its major version; %s@%s goes to the next", current, path.Base(repository), newer.Latest)}, nil
	}
	return "", Note{Text: current + " is the newest", newest: true}, nil
}

// names reports whether a query is a tag of the repository. "1.2" may be a range, too: so it is a
// tag only if the registry has it, or cannot list its tags.
func names(repository, query string, tags []string, tagsErr error) bool {
	return query != versions.Latest && isTag(repository, query) && (tagsErr != nil || slices.Contains(tags, query))
}

func (u *Upgrader) options(t *target) versions.Options {
	opts := versions.Options{Prerelease: u.cfg.Prerelease}
	opts.Needs, _ = needs(t.cluster, t.declaration.Ref.Repository)
	return opts
}

func clustersOf(targets []*target) []string {
	var names []string
	for _, t := range targets {
		names = append(names, t.Cluster)
	}
	return names
}

func isTag(repository, s string) bool {
	_, err := sources.ParseRef(repository + ":" + s)
	return err == nil
}

// form sets a target's new reference in the form of its present one: a tag, a digest, or both.
func (u *Upgrader) form(ctx context.Context, state *desired.State, t *target, tag string) error {
	t.to = sources.Ref{Repository: t.declaration.Ref.Repository, Tag: tag}
	if t.declaration.Ref.Digest == "" {
		return nil
	}
	d, err := u.digest(ctx, state, t.to)
	if err != nil {
		return err
	}
	t.to.Digest = d
	if t.declaration.Ref.Tag == "" {
		t.to.Tag = ""
	}
	return nil
}

// edit finds the references of the targets and computes the changed files.
func (b *Bump) edit(ctx context.Context, state *desired.State, req Request, moving []*target) error {
	var inputs []render.Input
	for _, c := range state.Clusters {
		in := c.Input(state.Commit.Files)
		inputs = append(inputs, render.Input{Cluster: in.Cluster, Files: in.Files, Path: in.Path, Remote: in.Remote})
	}
	var written []string
	for _, t := range moving {
		written = append(written, t.written)
	}
	found, err := edit.Find(ctx, inputs, written)
	if err != nil {
		return err
	}
	changes := make(map[edit.Place]string)
	users := make(map[edit.Place][]string)
	wanted := make(map[edit.Declared]*target)
	for _, t := range moving {
		wanted[t.Declared] = t
		p, ok := found.Places[t.Declared]
		if _, _, remote := t.cluster.Input(nil).Remote.Split(t.declaration.File); !ok && remote {
			return fmt.Errorf("cluster %s: %s is in another repository, which is not changed; move on to a commit of it with that version, or give %[1]s one of its own in its kustomization:\n%[3]s", t.Cluster, t.declaration.File, ownVersion(t.Declared, edit.Version(t.written, t.to)))
		}
		if err := found.Err[t.Cluster]; !ok && err != nil {
			return fmt.Errorf("cluster %s: %s %s gets %s, and with another version in its place the manifests cannot be rendered: %w; change it by hand in all places, and run `gitopsd lock`", t.Cluster, t.Kind, t.Name, t.written, err)
		}
		if !ok {
			return fmt.Errorf("cluster %s: %s %s gets %s, which stands in one piece in none of the files below %s; change it by hand where its parts are written, and run `gitopsd lock`", t.Cluster, t.Kind, t.Name, t.written, t.cluster.Spec.Path)
		}
		changes[p] = edit.Version(t.written, t.to)
		users[p] = append(users[p], t.Cluster)
	}
	for d, p := range found.Places {
		to, changed := changes[p]
		if t := wanted[d]; changed && (t == nil || edit.Version(t.written, t.to) != to) {
			return shared(p, d, users[p], wanted, to)
		}
	}
	for _, name := range found.Unknown {
		for p := range changes {
			if len(req.Clusters) > 0 && !slices.Contains(req.Clusters, name) && slices.Contains(found.Read[name], p.File) {
				return fmt.Errorf("%s may decide for cluster %s too, which cannot be rendered: %w", p, name, cmp.Or(problem.Join(state.Get(name).Problems()), found.Err[name]))
			}
		}
	}
	if b.Files, err = edit.Apply(state.Commit.Files, changes); err != nil {
		return err
	}
	for p, to := range changes {
		slices.Sort(users[p])
		b.Edits = append(b.Edits, Edit{Place: p, To: to, Clusters: slices.Compact(users[p])})
	}
	slices.SortFunc(b.Edits, func(x, y Edit) int { return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Offset, y.Offset)) })
	return nil
}

// shared returns the error for a place that also sets the version of another cluster.
func shared(p edit.Place, other edit.Declared, users []string, wanted map[edit.Declared]*target, to string) error {
	slices.Sort(users)
	var patch string
	for d := range wanted {
		if d.Cluster == users[0] {
			patch = ownVersion(d, to)
		}
	}
	return fmt.Errorf("%s decides for cluster %s too, which is not to be moved; leave out --cluster to move both, or give %s a version of its own in its kustomization:\n%s", p, other.Cluster, users[0], patch)
}

// ownVersion returns a patch for a cluster's kustomization.
func ownVersion(d edit.Declared, to string) string {
	return fmt.Sprintf(`
    patches:
    - target: {group: pkg.crossplane.io, kind: %s, name: %s}
      patch: |
        - op: replace
          path: /spec/package
          value: %s`, d.Kind, d.Name, to)
}

// verify returns an error if the edit causes problems, or does not change exactly the moving
// declarations.
func verify(before, after *desired.State, moving []*target) error {
	known := make(map[string]bool) // in any cluster
	for _, p := range before.Problems() {
		known[p.Key()] = true
	}
	fresh := slices.DeleteFunc(after.Problems(), func(p problem.Problem) bool { return known[p.Key()] })
	if len(fresh) > 0 {
		return problem.Join(fresh)
	}
	moved := make(map[edit.Declared]sources.Ref)
	for _, t := range moving {
		moved[t.Declared] = t.to
	}
	for _, c := range after.Clusters {
		for _, was := range before.Get(c.Name).Declared {
			want, ok := moved[edit.Declared{Cluster: c.Name, Kind: was.Kind, Name: was.Name}]
			if !ok {
				want = was.Ref
			}
			if !slices.ContainsFunc(c.Declared, func(d sources.Declaration) bool { return d.Kind == was.Kind && d.Name == was.Name && d.Ref == want }) {
				return fmt.Errorf("cluster %s does not get %s as %s any more; change the files by hand", c.Name, want, was.Name)
			}
		}
	}
	return nil
}

// selected returns an error if a cluster does not get the new version.
func selected(state *desired.State, targets []*target) error {
	for _, t := range targets {
		c := state.Get(t.Cluster)
		if !slices.ContainsFunc(c.Packages, func(s sources.Selected) bool { return s.Pin.Ref == t.to || s.Replaces == t.to }) {
			return fmt.Errorf("cluster %s does not get %s: %w", t.Cluster, t.to, problem.Join(c.Problems()))
		}
	}
	return nil
}

// elsewhere returns an error if a tag moves in a cluster that the request does not name.
func elsewhere(before, after *desired.State, req Request, moving []*target) error {
	for _, c := range after.Clusters {
		if len(req.Clusters) == 0 || slices.Contains(req.Clusters, c.Name) {
			continue
		}
		for _, now := range c.Packages {
			tag := sources.Ref{Repository: now.Repository(), Tag: now.Pin.Ref.Tag}
			had := func(was sources.Selected) bool {
				return tag.Tag != "" && was.Repository() == tag.Repository && was.Pin.Ref.Tag == tag.Tag && was.Pin.Digest != now.Pin.Digest
			}
			named := func(t *target) bool { return t.to.Repository == tag.Repository && t.to.Digest == now.Pin.Digest }
			if slices.ContainsFunc(before.Get(c.Name).Packages, had) && slices.ContainsFunc(moving, named) {
				return fmt.Errorf("cluster %s has %s too, and a tag has one digest in the whole fleet; leave out --cluster to move it in all clusters, or name the digest alone: %s@%s",
					c.Name, tag, path.Base(tag.Repository), now.Pin.Digest)
			}
		}
	}
	return nil
}
