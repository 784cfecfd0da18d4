package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/sources/errgroup"
)

// forgotten counts the objects of a CRD in a cluster that keep values for a version, before or
// after these were removed.
type forgotten struct {
	Cluster string `json:"cluster"`
	migrate.Forgotten
	Error string `json:"error,omitempty"`

	err error
}

// forgetAll runs `gitopsd migrate --forget` for one CRD in all clusters that have it. faults is
// the error about clusters that cannot be read.
func (o *migrateOptions) forgetAll(ctx context.Context, cmd *cobra.Command, g *global, list []asked, faults error, name string, progress *progress) error {
	found := make([]*forgotten, len(list)) // nil where there is no such CRD
	errs := make([]error, len(list))
	var all errgroup.Group
	all.SetLimit(readAtOnce)
	for i, p := range list {
		all.Go(func() error {
			found[i], errs[i] = o.forgetIn(ctx, g, p, name, progress)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	progress.stop()
	there := []*forgotten{} // JSON has a list, also if empty
	for _, f := range found {
		if f != nil {
			there = append(there, f)
		}
	}
	w := cmd.OutOrStdout()
	var err error
	if o.output.format == "json" {
		err = show.JSON(w, there)
	} else {
		err = o.writeForgotten(w, there, show.Options{Colour: g.colour(w), Width: columns(w)})
	}
	if err != nil {
		return err
	}
	if err := o.absent(list, func(i int, _ string) bool { return found[i] != nil }, errs, []string{name}); err != nil {
		errs = append(errs, err)
	}
	todo := false
	for _, f := range there {
		errs = append(errs, f.err)
		todo = todo || f.Objects > 0
		if n := len(f.Failures); n > 0 {
			errs = append(errs, fmt.Errorf("%s: %s not be written; correct what refuses them, and run this again", f.Cluster, prose.Agree(n, "object could", "objects could")))
		}
	}
	if cmd.Context().Err() != nil {
		return context.Cause(cmd.Context())
	}
	if err := errors.Join(append(errs, faults)...); err != nil {
		return err
	}
	if todo && !o.yes {
		return exitError(2)
	}
	return nil
}

// forgetIn returns the result for one cluster, nil if it has no such CRD. The error is about
// the cluster as a whole.
func (o *migrateOptions) forgetIn(ctx context.Context, g *global, p asked, name string, progress *progress) (*forgotten, error) {
	f := &forgotten{Cluster: p.Name}
	if err := o.with(ctx, g, p, progress, func(m *migrate.Migrator) error {
		f.Forgotten, f.err = m.Forget(ctx, name, o.forget, o.yes && !p.Spec.Suspend)
		return nil
	}); err != nil {
		return nil, err
	}
	if kube.ClassOf(f.err) == kube.NotFound {
		return nil, nil
	}
	if f.err == nil && o.yes && p.Spec.Suspend && f.Objects > 0 {
		f.err = problem.In(p.Name, errors.New("nothing was changed, since the cluster is suspended (spec.suspend)"))
	}
	if f.err != nil {
		f.Error = problem.Message(f.err)
	}
	return f, nil
}

func (o *migrateOptions) writeForgotten(w io.Writer, all []*forgotten, opts show.Options) error {
	t := show.NewText(w, opts)
	todo := false
	for _, f := range all {
		colour := show.Plain
		switch {
		case f.err != nil || len(f.Failures) > 0:
			colour = show.Red
		case f.Objects > f.Done:
			colour, todo = show.Yellow, true
		}
		t.Line("%s", t.Paint(show.Bold, "Cluster "+f.Cluster))
		t.Indented("  ", colour, f.Name+": "+f.text())
		writeFailures(t, f.Failures)
	}
	if todo && !o.yes {
		t.Line("")
		t.Say(show.Plain, fmt.Sprintf("Nothing was changed. With --yes these values are removed. If %s comes back, the objects will not have them.", o.forget))
	}
	return t.Flush()
}

// text says what there is, or what was done.
func (f *forgotten) text() string {
	done := prose.Count(f.Objects, "object")
	if f.Done < f.Objects {
		done = fmt.Sprintf("%d of %s", f.Done, done)
	}
	done = fmt.Sprintf("values for %s removed from %s", f.Version, done)
	switch {
	case f.err != nil && f.Done > 0:
		return done + "; then: " + oneLine(f.Error)
	case f.err != nil:
		return oneLine(f.Error)
	case f.Objects == 0:
		return "no object keeps values for " + f.Version
	case f.Stopped:
		return done + ", stopped after " + prose.Count(len(f.Failures), "failure")
	case f.Done > 0 || len(f.Failures) > 0:
		return done
	}
	return prose.Agree(f.Objects, "object keeps", "objects keep") + " values for " + f.Version + ", which was removed"
}
