package apply_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
)

// copied is a member as others copy it, under another name or namespace, with
// everything that gitopsd wrote to it.
func (b *bed) copied(member, name, namespace string) string {
	b.t.Helper()
	o := b.get(member)
	meta := o["metadata"].(map[string]any)
	o["metadata"] = map[string]any{"name": name, "namespace": namespace, "labels": meta["labels"], "annotations": meta["annotations"]}
	delete(o, "status")
	text, err := json.Marshal(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// Copies of members are somebody else's: they are not pruned, are no drift, keep no
// kind in the inventory, and cost nothing.
func TestCopies(t *testing.T) {
	b := newBed(t)
	set := b.set(two + "---\n{apiVersion: v1, kind: Namespace, metadata: {name: $NAME-other}}\n")
	b.apply(set)
	entries, err := json.Marshal(b.get(cm("a"))["metadata"].(map[string]any)["managedFields"])
	if err != nil {
		t.Fatal(err)
	}
	b.as("kubectl", b.copied(cm("a"), "copy", "$NAME"))
	b.as("hnc", b.copied(cm("a"), "a", "$NAME-other"))
	restored := b.copied(cm("b"), "b", "$NAME-other")
	b.as("velero", restored)
	b.edit("velero", restored, `{"metadata":{"managedFields":`+string(entries)+`}}`)
	b.settled(set)
	if b.rest(set) == nil {
		t.Error("they keep the cluster from being at rest")
	}

	// As in a watch.
	b.restart()
	notified := b.followed(set)
	b.edit("kubectl-edit", b.copied(cm("a"), "copy", "$NAME"), `{"data":{"color":"red"}}`)
	b.edit("kubectl-edit", cm("b"), `{"data":{"color":"red"}}`) // comes after it
	b.want("steps", b.stepsAfter(notified, set), "configure configmap/$NAME/b drift: data changed by kubectl-edit")

	namespaces := b.set(strings.Split(two, "---")[0] + "---\n{apiVersion: v1, kind: Namespace, metadata: {name: $NAME-other}}\n")
	for range 2 {
		b.restart()
		b.wantNothing("changes of copies", without(b.steps(b.plan(namespaces, apply.PlanOptions{})), "prune configmap/$NAME/a", "prune configmap/$NAME/b"))
		_, results := b.apply(namespaces)
		b.wantNothing("results", results)
	}
	for _, o := range []string{cm("copy"), restored, strings.Replace(restored, `"b"`, `"a"`, 1)} {
		if b.get(o) == nil {
			t.Errorf("%s was pruned", o)
		}
	}
	if k := b.parent()[kinds]; k != "Namespace" {
		t.Errorf("the inventory holds %s", k)
	}
}

// A member that is restored under its own name is ours, whatever its UID and its
// managedFields.
func TestRestored(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	backup := b.copied(cm("a"), "a", "$NAME")
	b.delete(cm("a"))
	b.as("velero", backup)
	b.restart()
	b.apply(set)
	b.settled(set)
	b.delete(cm("a"))
	b.as("velero", backup)
	b.edit("velero", cm("a"), `{"metadata":{"managedFields":[{}]}}`)
	b.restart()
	steps, _ := b.apply(b.set(strings.Split(two, "---")[0]))
	b.want("steps", steps, "prune configmap/$NAME/a", "prune configmap/$NAME/b")
}

// Members that an older gitopsd applied are recorded anew, once.
func TestOlderRecord(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	annotations := b.get(cm("a"))["metadata"].(map[string]any)["annotations"].(map[string]any)
	old := maps.Clone(annotations)
	old["gitopsd.dev/applied"], _, _ = strings.Cut(old["gitopsd.dev/applied"].(string), ".")
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": old}})
	if err != nil {
		t.Fatal(err)
	}
	b.edit("gitopsd", cm("a"), string(text))
	b.restart()
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps, "configure configmap/$NAME/a unchanged in the repository; renewing the record of an older gitopsd, which copies share")
	b.settled(set)
	b.edit("gitopsd", cm("a"), string(text))
	b.restart()
	steps, _ = b.apply(b.set(strings.Split(two, "---")[0]))
	b.want("steps", steps, "prune configmap/$NAME/a", "prune configmap/$NAME/b")
}

func without(lines []string, expected ...string) []string {
	var rest []string
	for _, line := range lines {
		found := false
		for _, e := range expected {
			found = found || line == e
		}
		if !found {
			rest = append(rest, line)
		}
	}
	return rest
}
