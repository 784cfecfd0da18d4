package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// migrateOptions are the flags of `gitopsd migrate`.
type migrateOptions struct {
	placeOptions
	output  outputFlag
	yes     bool
	rate    float64
	settle  time.Duration
	timeout time.Duration
	forget  string
	drop    bool
}

func newMigrate(g *global) *cobra.Command {
	var o migrateOptions
	cmd := &cobra.Command{
		Use:   "migrate [CRD]...",
		Short: "Store objects again in their storage version, so that old versions can be removed",
		Long: `An object stays in etcd in the version in which it was last written. A CRD lists all
versions that its objects may be stored in (status.storedVersions). The API server
refuses to remove one of these from the CRD, even if no object is stored in it any
more. Nothing shortens the list by itself.

Migrate lists the CRDs with old versions, by cluster, and changes nothing. With --yes
it has the API server store every object again, and then removes the old versions from
the list. The request changes nothing. But as with every write, defaults and mutating
webhooks apply. If a webhook or a policy refuses an object, migrate names it, stores the
others again, and leaves the list as it is.

The API server drops fields that the storage version does not have, unless a webhook
converts. If an object has a value in such a field of an old version, migrate names the
field and the object, and does not store the objects of that CRD again. It refuses that
too if the old version is not served, since then nobody can see the values. With
--drop-fields it drops them.

For a minute after a change of a CRD, requests that began before may still store in
the old version: a migration waits that long.

A cluster that offers storagemigration.k8s.io (Kubernetes 1.37) does the work itself. If
a CRD changes meanwhile, its migration starts over. An interrupted migration can be run
again: an object that is in the storage version already costs a request and no write.

The account needs to list and patch the objects, to get and list CRDs and APIServices,
and to patch the status of the CRDs. It must see all objects: one that a proxy leaves out of a list
stays in the old version.

Without the name of a CRD, such as widgets.acme.example, migrate lists all CRDs, and
--yes migrates those that gitopsd has applied.

Where conversion rules convert, the annotation
` + manifest.ConversionStashAnnotation + ` of an object keeps values that some version cannot
hold. Values for a version stay when the CRD loses that version, in case it comes
back. With --forget VERSION migrate counts the objects of the CRD that keep values for
the version, and with --yes removes them. Values for other versions stay. A version that
the CRD still has is refused.

The exit status is 0 if there is nothing left to migrate, 2 if --yes is to migrate
something, even if it would refuse that, and 1 for an error or if objects were not
stored again.`,
		Example: `  gitopsd migrate
  gitopsd migrate --cluster dev --yes widgets.acme.example
  gitopsd migrate --context my-context --yes --rate 200
  gitopsd migrate --forget v1alpha1 widgets.acme.example`,
		ValidArgsFunction: completeNothing,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, g, args) },
	}
	o.register(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "store the objects again, and take the old versions out of status.storedVersions")
	f.BoolVar(&o.drop, "drop-fields", false, "with --yes, drop values of fields that the storage version does not have")
	f.Float64Var(&o.rate, "rate", migrate.DefaultRate, "objects to write in a second, in each cluster; not for Kubernetes' own migration")
	f.DurationVar(&o.settle, "settle", migrate.DefaultSettle, "how long to wait after a change of a CRD: longer than a request, and longer than an API server is behind")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "longest time for everything")
	f.StringVar(&o.forget, "forget", "", "take off what the objects of the CRD keep for this version, which was removed from it")
	refuseEmpty(f, "forget")
	o.output.register(cmd, "text", "json")
	return cmd
}

// migration is a CRD of a cluster, before or after its migration.
type migration struct {
	Cluster string `json:"cluster"`
	migrate.Result
	// Foreign reports whether gitopsd has not applied it and it was not named. --yes leaves it.
	Foreign bool   `json:"foreign,omitempty"`
	Error   string `json:"error,omitempty"`

	err error
}

// todo reports whether the CRD is one that --yes is to migrate.
func (m migration) todo() bool { return m.Needed() && !m.Foreign }

// refused reports whether --yes alone does not migrate the CRD.
func (o *migrateOptions) refused(m migration) bool { return len(m.Drops) > 0 && !o.drop }

func (o *migrateOptions) run(cmd *cobra.Command, g *global, names []string) error {
	if err := o.output.check(); err != nil {
		return err
	}
	if !(o.rate > 0) { // NaN is not
		return errors.New("--rate must be more than 0")
	}
	if o.forget != "" && len(names) != 1 {
		return errors.New("--forget is about a version of one CRD; name it as kubectl does, <plural>.<group>")
	}
	list, faults := o.places(cmd.Context())
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	progress := startProgress(cmd.ErrOrStderr())
	defer progress.stop()
	progress.step("reading %s", prose.Count(len(list), "cluster"))
	if o.forget != "" {
		return o.forgetAll(ctx, cmd, g, list, faults, names[0], progress)
	}
	found := make([][]migration, len(list))
	errs := make([]error, len(list))
	var all errgroup.Group
	reading := make(chan struct{}, readAtOnce) // a migration takes long, and holds up no other cluster
	for i, p := range list {
		all.Go(func() error {
			found[i], errs[i] = o.cluster(ctx, g, p, names, reading, progress)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	progress.stop()
	flat := slices.Concat(found...)
	w := cmd.OutOrStdout()
	var err error
	if o.output.format == "json" {
		all := []any{} // a list, also if empty
		for _, m := range flat {
			all = append(all, m)
		}
		err = show.JSON(w, append(all, unread(list, errs)...))
	} else {
		err = o.write(w, list, found, errs, show.Options{Colour: g.colour(w), Width: columns(w)})
	}
	if err != nil {
		return err
	}
	has := func(i int, name string) bool {
		return slices.ContainsFunc(found[i], func(m migration) bool { return m.Name == name })
	}
	if err := o.absent(list, has, errs, names); err != nil {
		errs = append(errs, err)
	}
	return o.exit(cmd.Context(), flat, append(errs, faults))
}

// unread returns an entry with the error for each cluster with one, for JSON.
func unread(list []asked, errs []error) []any {
	var all []any
	for i, p := range list {
		if errs[i] != nil {
			all = append(all, struct {
				Cluster string `json:"cluster"`
				Error   string `json:"error"`
			}{p.Name, problem.Message(errs[i])})
		}
	}
	return all
}

// exit returns the error, or the exit status.
func (o *migrateOptions) exit(ctx context.Context, all []migration, errs []error) error {
	todo, failed := false, 0
	for _, m := range all {
		errs = append(errs, m.err)
		if len(m.Failures) > 0 {
			failed++
		}
		todo = todo || m.todo()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for i, err := range errs {
		// Not if only a single request timed out.
		if c := kube.ClassOf(err); errors.Is(err, context.DeadlineExceeded) && (c == "" || c == kube.Canceled) {
			errs[i] = fmt.Errorf("%s; give it longer with --timeout (now %s): what was done stays done", problem.Message(err), o.timeout)
		}
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%s objects that could not be stored again; correct what refuses them, and run this again", prose.Agree(failed, "definition has", "definitions have")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if todo && !o.yes {
		return exitError(2)
	}
	return nil
}

// absent returns an error for each name that no cluster has, or that a cluster named by
// --cluster lacks.
func (o *migrateOptions) absent(list []asked, has func(i int, name string) bool, errs []error, names []string) error {
	var missing []error
	for _, name := range names {
		var without []string
		read := 0
		for i, p := range list {
			if errs[i] != nil {
				continue
			}
			read++
			if !has(i, name) {
				without = append(without, p.Name)
			}
		}
		if len(without) == 0 || len(without) < read && len(o.clusters) == 0 {
			continue
		}
		missing = append(missing, fmt.Errorf("%s has no CustomResourceDefinition %s; name it as kubectl does, <plural>.<group>", clusterNames(without), name))
	}
	return errors.Join(missing...)
}

// cluster lists the CRDs of a cluster that have old versions or are named, and with --yes
// migrates them. The error is about the cluster as a whole.
func (o *migrateOptions) cluster(ctx context.Context, g *global, p asked, names []string, reading chan struct{}, progress *progress) (all []migration, err error) {
	reading <- struct{}{}
	read := sync.OnceFunc(func() { <-reading })
	defer read()
	err = o.with(ctx, g, p, progress, func(m *migrate.Migrator) error {
		stored, err := list(ctx, m, names)
		if err != nil {
			return err
		}
		if o.yes {
			read()
		}
		for _, s := range stored {
			if len(names) == 0 && !s.Needed() {
				continue
			}
			one := o.one(ctx, m, p, s, len(names) == 0 && !s.Ours)
			all = append(all, one)
			if ctx.Err() != nil || kube.IsClusterWide(one.err) {
				break
			}
		}
		return nil
	})
	return all, err
}

// one counts the objects of one CRD, or migrates them.
func (o *migrateOptions) one(ctx context.Context, m *migrate.Migrator, p asked, s migrate.Storage, foreign bool) migration {
	one := migration{Cluster: p.Name, Result: migrate.Result{Storage: s}, Foreign: foreign}
	switch do := o.yes && one.todo(); {
	case do && p.Spec.Suspend:
		one.err = problem.In(p.Name, fmt.Errorf("%s has to be migrated, and the cluster is suspended (spec.suspend)", s.Name))
	case do:
		one.Result, one.err = m.Run(ctx, s.Name)
	case s.Blocked == "":
		if one.Objects, one.err = m.Count(ctx, s); one.err == nil {
			one.Drops, one.err = m.Drops(ctx, s)
		}
	}
	if one.err != nil {
		one.Error = problem.Message(one.err)
	}
	return one
}

// with connects to a cluster, and calls do with a Migrator that shows its progress.
func (o *migrateOptions) with(ctx context.Context, g *global, p asked, progress *progress, do func(*migrate.Migrator) error) error {
	cluster, err := p.connect(ctx)
	if err != nil {
		return problem.In(p.Name, err)
	}
	defer cluster.Close()
	name := cluster.Name()
	m, err := migrate.New(migrate.Config{Cluster: cluster, Rate: o.rate, Settle: o.settle, DropFields: o.drop, Log: g.log(false), Progress: func(at migrate.Progress) {
		switch {
		case at.Wait > 0:
			progress.line("cluster %s: %s has just changed: waiting until %s, since requests that began before may still store the old version",
				name, at.Name, time.Now().Add(at.Wait).Format(time.DateTime))
			progress.step("%s: waiting before %s is migrated", name, at.Name)
		case at.Kubernetes:
			progress.step("%s: Kubernetes migrates %s", name, at.Name)
		default:
			progress.step("%s: %s, %d of %d objects", name, at.Name, at.Done, at.All)
		}
	}})
	if err != nil {
		return err
	}
	return do(m)
}

// list reads the named CRDs that exist, or all.
func list(ctx context.Context, m *migrate.Migrator, names []string) ([]migrate.Storage, error) {
	if len(names) == 0 {
		return m.List(ctx)
	}
	var all []migrate.Storage
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		some, err := m.List(ctx, name)
		if err != nil && kube.ClassOf(err) != kube.NotFound {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// write writes all as text.
func (o *migrateOptions) write(w io.Writer, list []asked, found [][]migration, errs []error, opts show.Options) error {
	t := show.NewText(w, opts)
	todo, stores := false, false
	for i, p := range list {
		switch {
		case errs[i] != nil:
			continue
		case len(found[i]) == 0:
			t.Heading("", "Cluster "+p.Name, "nothing to migrate")
			continue
		}
		t.Line("%s", t.Paint(show.Bold, "Cluster "+p.Name))
		for _, m := range found[i] {
			t.Indented("  ", m.colour(), m.Name+": "+m.text())
			if err := m.Refusal(m.Drops); err != nil && (m.Foreign || !o.yes) {
				t.Indented("    ! ", show.Red, oneLine(err.Error()))
			}
			writeFailures(t, m.Failures)
			todo = todo || m.todo()
			stores = stores || m.todo() && !o.refused(m)
		}
	}
	if todo && !o.yes {
		t.Line("")
		text := "Nothing was changed."
		if stores {
			text += " With --yes the objects are stored again, and the old versions are taken out of status.storedVersions."
		}
		t.Say(show.Plain, text)
	}
	return t.Flush()
}

// writeFailures writes the objects that could not be written, a few of many, with reasons.
func writeFailures(t *show.Text, all []migrate.Failure) {
	const most = 20
	shown, folded := t.Fold(len(all), most)
	for _, f := range all[:shown] {
		t.Indented("    ! ", show.Red, f.Object+": "+oneLine(f.Reason))
	}
	if folded > 0 {
		t.Line("    … and %d more (-o json has all)", folded)
	}
}

func (m migration) colour() show.Colour {
	switch {
	case m.err != nil || len(m.Failures) > 0:
		return show.Red
	case m.todo():
		return show.Yellow
	}
	return show.Plain
}

// text says what is stored, or what was done.
func (m migration) text() string {
	old := strings.Join(m.Old(), ", ")
	switch {
	case m.err != nil && m.Migrated > 0:
		return fmt.Sprintf("%d of %s stored again in %s; then: %s", m.Migrated, prose.Count(m.Objects, "object"), m.Version, oneLine(m.Error))
	case m.err != nil:
		return oneLine(m.Error)
	case len(m.Removed) > 0:
		return m.outcome() + "; " + strings.Join(m.Removed, ", ") + " taken out of status.storedVersions"
	case len(m.Failures) > 0:
		return m.outcome() + "; status.storedVersions keeps " + old
	case !m.Needed():
		return "everything is stored in " + m.Version
	}
	text := fmt.Sprintf("the storage version is %s; %s may also be stored in %s", m.Version, prose.Count(m.Objects, "object"), old)
	if m.Objects == 0 && m.Blocked == "" {
		text = fmt.Sprintf("the storage version is %s; there are no objects, but status.storedVersions has %s", m.Version, old)
	}
	switch {
	case m.Foreign:
		text += "; gitopsd has not applied it: name it to migrate it"
	case m.Blocked != "":
		text = fmt.Sprintf("the storage version is %s, and status.storedVersions has %s, but it cannot be migrated: %s", m.Version, old, m.Blocked)
	}
	return text
}

// outcome says how many objects were stored again.
func (m migration) outcome() string {
	in := m.Version
	if fields := m.dropped(); fields != "" {
		in += " without " + fields
	}
	text := fmt.Sprintf("%s stored again in %s", prose.Count(m.Migrated, "object"), in)
	switch {
	case m.Kubernetes:
		text = "Kubernetes stored all objects again in " + in
	case m.Objects == 0:
		text = "no objects"
	case len(m.Failures) > 0:
		text = fmt.Sprintf("%d of %s stored again in %s", m.Migrated, prose.Count(m.Objects, "object"), in)
	}
	if m.Stopped {
		return text + ", stopped after " + prose.Count(len(m.Failures), "failure")
	}
	if gone := m.Objects - m.Migrated - len(m.Failures); gone > 0 && !m.Kubernetes {
		text += fmt.Sprintf(", %d deleted meanwhile", gone)
	}
	return text
}

// dropped names the fields that objects are known to lose.
func (m migration) dropped() string {
	var all []string
	for _, d := range m.Drops {
		if d.Survey.Harmed > 0 {
			all = append(all, d.Fields...)
		}
	}
	slices.Sort(all)
	const most = 5
	return prose.Some(slices.Compact(all), most)
}
