package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// images maps rendered images to image IDs that nodes report for them.
type images struct {
	// accepted are the IDs that a node may report for a rendered digest, besides the digest
	// itself.
	accepted map[sources.Digest][]sources.Digest
	// names are the names of an ID in the lock, "repository version". Several versions may
	// have one image.
	names map[sources.Digest][]string
}

func newImages(known []lockfile.Image) *images {
	x := &images{accepted: make(map[sources.Digest][]sources.Digest), names: make(map[sources.Digest][]string)}
	for _, i := range known {
		x.accepted[i.Digest] = append(x.accepted[i.Digest], i.Platforms...)
		for _, d := range append([]sources.Digest{i.Digest}, i.Platforms...) {
			if i.Version != "" {
				x.names[d] = append(x.names[d], i.Repository+" "+i.Version)
			}
		}
	}
	return x
}

// stands reports whether id may be the ID of the rendered image.
func (x *images) stands(id, rendered sources.Digest) bool {
	return id == rendered || slices.Contains(x.accepted[rendered], id)
}

// name returns an image ID in words.
func (x *images) name(id string) string {
	d, ok := behaviour.ImageDigest(id)
	switch {
	case id == "":
		return "no image ID reported"
	case !ok:
		return "image ID " + id
	case len(x.names[d]) > 0:
		return x.names[d][0] + " (" + sources.Abbreviate(string(d)) + ")"
	}
	return "unknown image " + sources.Abbreviate(string(d))
}

// rendered returns a controller's rendered image in words, by the name of the
// controller's own package if that has it.
func (x *images) rendered(c *Controller, d sources.Digest) string {
	switch {
	case slices.Contains(x.names[d], c.Source):
		return c.Source + " (" + sources.Abbreviate(string(d)) + ")"
	case len(x.names[d]) > 0:
		return x.name(string(d))
	}
	return sources.Abbreviate(string(d))
}

// verdict is the result for a controller in one cluster.
type verdict struct {
	// problem is empty if the running controller is the rendered one.
	problem Kind
	// what is the running controller in words.
	what string
	// runs is the image that runs in place of the rendered one, in words; may be empty.
	runs string
	// images is equal for clusters that run the same.
	images string
	// settings are those that the clusters have in common.
	settings []behaviour.Part
	details  []string
	// held reports whether the workload itself has another image.
	held bool
}

// judge compares a running controller with the rendered one. If the workload itself has another
// image, new pods run that, whatever runs now.
func (x *images) judge(c *Controller) verdict {
	v := x.running(c)
	if len(c.Held) == 0 {
		return v
	}
	if v.problem == "" {
		v.problem = SettingsDrifted
		v.what += ", and its workload has another image for new pods"
	}
	v.held, v.details = true, slices.Concat(v.details, c.Held)
	return v
}

// running compares the pods of a controller with the rendered workload.
func (x *images) running(c *Controller) verdict {
	v := verdict{what: x.wanted(c)}
	instances := x.joined(c)
	if c.Idle {
		instances = slices.DeleteFunc(instances, func(i Instance) bool { return i.Ending && x.instance(c, i).problem == "" })
	}
	own := slices.IndexFunc(instances, func(i Instance) bool { return !i.Elsewhere })
	switch {
	case len(instances) == 0 && c.Idle:
		v.images = "idle"
		v.what += ", no replica wanted"
		return v
	case own < 0:
		v.problem, v.what, v.details = NoController, "no pod of "+c.Wanted.String()+" runs", slices.Clone(c.Waiting)
		for _, i := range instances {
			v.details = append(v.details, fmt.Sprintf("in its place, pod %s runs %s", pods(i), x.instance(c, i).what))
		}
		return v
	case len(instances) == 1:
		return x.whole(c, instances[0])
	}
	var whats []string
	partly := false
	for _, i := range instances {
		w := x.instance(c, i)
		whats = append(whats, w.what)
		v.details = append(v.details, fmt.Sprintf("pod %s runs %s", pods(i), w.what))
		partly = partly || i.Partly
	}
	if partly {
		v.details = append(v.details, c.Waiting...)
	}
	slices.Sort(whats)
	if whats = slices.Compact(whats); len(whats) == 1 {
		whats = append(whats, "the same a second time")
	}
	v.problem, v.what = TwoControllers, strings.Join(whats, ", and ")
	return v
}

// joined returns the instances of a controller, and makes one of those that run the same. The
// nodes of one cluster may report an image by different repositories and platforms.
func (x *images) joined(c *Controller) []Instance {
	var all []Instance
	for _, i := range c.Instances {
		i.Images = slices.Clone(i.Images)
		for n, p := range i.Images {
			i.Images[n].Value = x.plain(p.Value, valueOf(c.Wanted.Images, p.Name))
		}
		all = append(all, i)
	}
	// First those with most IDs: one without some may be like several of them.
	missing := func(i Instance) (n int) {
		for _, p := range i.Images {
			if i.unstarted(p) {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(all, func(a, b Instance) int { return cmp.Compare(missing(a), missing(b)) })
	var joined []Instance
	for _, i := range all {
		n := slices.IndexFunc(joined, func(j Instance) bool { return j.like(i) })
		if n < 0 {
			joined = append(joined, i)
			continue
		}
		j := &joined[n]
		j.Pods += i.Pods
		j.Partly = j.Partly && i.Partly
		j.Ending = j.Ending && i.Ending
		for k, p := range i.Images {
			j.Images[k].Value = cmp.Or(j.Images[k].Value, p.Value)
		}
	}
	return joined
}

// unstarted reports whether a container was never started, so that its image has no ID yet.
func (i *Instance) unstarted(p behaviour.Part) bool { return i.Partly && p.Value == "" }

// like reports whether two instances run the same, as far as their containers were started.
func (i *Instance) like(j Instance) bool {
	unstarted := make(map[string]bool)
	images := slices.EqualFunc(i.Images, j.Images, func(p, q behaviour.Part) bool {
		unstarted[p.Name] = i.unstarted(p) || j.unstarted(q)
		return p == q || p.Name == q.Name && unstarted[p.Name]
	})
	started := func(settings []behaviour.Part) []behaviour.Part {
		return slices.DeleteFunc(slices.Clone(settings), func(s behaviour.Part) bool {
			container, _, _ := strings.Cut(s.Name, " ")
			return unstarted[container]
		})
	}
	return images && i.Elsewhere == j.Elsewhere && slices.Equal(started(i.Settings), started(j.Settings))
}

// plain returns an image ID without its repository, and the rendered image in place of an ID
// that stands for it.
func (x *images) plain(id, rendered string) string {
	digest, ok := behaviour.ImageDigest(id)
	if !ok {
		return id
	}
	if d, err := sources.ParseDigest(rendered); err == nil && x.stands(digest, d) {
		return rendered
	}
	return string(digest)
}

// whole compares the only instance with the rendered workload. If it lacks a running container,
// the workload as rendered does not run.
func (x *images) whole(c *Controller, i Instance) verdict {
	v := x.instance(c, i)
	switch {
	case i.Partly && v.problem != "":
		v.details = append(v.details, c.Waiting...)
	case i.Partly:
		v.problem, v.what, v.details = NoController, "no pod of "+c.Wanted.String()+" runs all of its containers", slices.Clone(c.Waiting)
	case v.problem == "" && c.Idle:
		v.problem, v.details = SettingsDrifted, []string{"pod " + pods(i)}
		v.what += ", and no replica is wanted"
	}
	return v
}

func pods(i Instance) string {
	if i.Pods > 1 {
		return fmt.Sprintf("%s and %d more", i.Pod, i.Pods-1)
	}
	return i.Pod
}

// wanted returns the rendered image in words.
func (x *images) wanted(c *Controller) string {
	var all []string
	for _, p := range c.Wanted.Images {
		if d, err := sources.ParseDigest(p.Value); err != nil {
			all = append(all, p.Value)
		} else {
			all = append(all, x.rendered(c, d))
		}
	}
	return strings.Join(all, " and ")
}

// instance compares an instance with the rendered workload. An image rendered by tag may
// have any ID, and is compared between clusters by that ID.
func (x *images) instance(c *Controller, i Instance) verdict {
	v := verdict{settings: c.Wanted.Common(i.Settings)}
	var runs, same []string
	for _, p := range c.Wanted.Images {
		n := slices.IndexFunc(i.Images, func(q behaviour.Part) bool { return q.Name == p.Name })
		if n < 0 {
			v.problem = worst(v.problem, WrongController)
			runs = append(runs, "no container "+p.Name)
			continue
		}
		id := i.Images[n].Value
		digest, hasDigest := behaviour.ImageDigest(id)
		rendered, err := sources.ParseDigest(p.Value)
		switch {
		case i.unstarted(i.Images[n]):
			// Any image may run there.
		case err != nil && hasDigest:
			same = append(same, p.Name+" "+string(digest))
			runs = append(runs, p.Value+" ("+sources.Abbreviate(string(digest))+")")
		case err == nil && hasDigest && x.stands(digest, rendered):
			same = append(same, p.Name+" "+p.Value)
			runs = append(runs, x.rendered(c, rendered))
		case hasDigest && len(x.names[digest]) > 0:
			v.problem = worst(v.problem, WrongController)
			runs = append(runs, x.name(id))
		default:
			v.problem = worst(v.problem, UnknownImage)
			runs = append(runs, x.name(id))
		}
	}
	v.what, v.images = strings.Join(runs, " and "), strings.Join(same, "\n")
	if v.problem != "" {
		v.what += " in place of " + x.wanted(c)
	}
	x.undeclared(c, i, &v)
	switch differing := behaviour.Differing(c.Wanted.Settings, i.Settings); {
	case v.problem != "":
		v.runs = strings.Join(runs, " and ")
		v.details = []string{"pod " + pods(i)}
	case len(differing) > 0:
		v.problem = SettingsDrifted
		v.what += " with other settings"
		v.details = []string{"pod " + pods(i), "other than rendered: " + prose.Some(differing, 8)}
	}
	return v
}

// undeclared adds the containers that others added to the workload.
func (x *images) undeclared(c *Controller, i Instance, v *verdict) {
	for _, p := range i.Images {
		if slices.ContainsFunc(c.Wanted.Images, func(q behaviour.Part) bool { return q.Name == p.Name }) {
			continue
		}
		kind := UnknownImage
		if digest, ok := behaviour.ImageDigest(p.Value); ok && len(x.names[digest]) > 0 {
			kind = WrongController
		}
		v.problem = worst(v.problem, kind)
		v.what += fmt.Sprintf(", with %s in the added container %s", x.name(p.Value), p.Name)
	}
}

func worst(a, b Kind) Kind {
	if a == "" || b.rank() < a.rank() {
		return b
	}
	return a
}
