package namespaces

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
)

// Only declared objects get anything, and nothing is removed while it may be declared.
func TestDecide(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		subject
		want   action
		reason string
		told   string
	}{
		{"declared", subject{declared: true, etcd: true}, keep, "", ""},
		{"declared with errors", subject{declared: true, etcd: true, fault: errors.New("spec.prefix: bad")}, refuse, invalid, "spec.prefix: bad"},
		{"declared, without an etcd", subject{declared: true}, refuse, etcdMissing, "--etcd-embedded DIR"},
		{"made with kubectl", subject{etcd: true}, refuse, notDeclared, "add it to the manifests of the cluster"},
		{"made with kubectl, without an etcd", subject{}, refuse, notDeclared, "add it to the manifests"},
		{"made with kubectl, and deleted", subject{etcd: true, deleting: true}, leave, "", ""},
		{"perhaps declared", subject{etcd: true, unclear: true}, leave, "", ""},
		{"to be pruned", subject{etcd: true, member: true, finalized: true}, leave, "", ""},
		{"pruned", subject{etcd: true, deleting: true, finalized: true, member: true}, remove, "", ""},
		{"pruned, without an etcd", subject{deleting: true, finalized: true}, leave, "", "what it has in etcd cannot be removed"},
		{"deleted, and perhaps declared", subject{etcd: true, deleting: true, finalized: true, unclear: true}, leave, "", "its keys stay until then"},
		{"deleted, and declared", subject{etcd: true, deleting: true, finalized: true, declared: true}, release, "", ""},
		{"deleted, and declared with errors", subject{etcd: true, deleting: true, finalized: true, declared: true, fault: errors.New("bad")}, release, "", ""},
		{"deleted and declared, without an etcd", subject{deleting: true, finalized: true, declared: true}, release, "", ""},
	} {
		do, why := decide(tt.subject)
		if do != tt.want || why.reason != tt.reason || !strings.Contains(why.message, tt.told) || (tt.told == "") != (why.message == "") {
			t.Errorf("%s: %d %+v, want %d %s %q", tt.name, do, why, tt.want, tt.reason, tt.told)
		}
	}
}

// A daemon that has not seen the declaration deletes keys only if gitopsd alone set the
// policy.
func TestOnlyOurs(t *testing.T) {
	t.Parallel()
	entry := func(manager string, op metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: op, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const policy, other = `{"f:spec":{"f:deletion":{}}}`, `{"f:spec":{"f:prefix":{}}}`
	ours := entry("gitopsd", metav1.ManagedFieldsOperationApply, policy)
	for _, tt := range []struct {
		name    string
		entries []metav1.ManagedFieldsEntry
		want    bool
	}{
		{"nobody", nil, false},
		{"gitopsd", []metav1.ManagedFieldsEntry{ours}, true},
		{"gitopsd, and somebody another field", []metav1.ManagedFieldsEntry{ours, entry("kubectl-edit", metav1.ManagedFieldsOperationUpdate, other)}, true},
		{"somebody", []metav1.ManagedFieldsEntry{entry("kubectl-edit", metav1.ManagedFieldsOperationUpdate, policy)}, false},
		{"both", []metav1.ManagedFieldsEntry{ours, entry("kubectl", metav1.ManagedFieldsOperationApply, policy)}, false},
		{"garbled", []metav1.ManagedFieldsEntry{{Manager: "gitopsd", FieldsV1: metav1.NewFieldsV1("{")}, {Manager: "gitopsd"}}, false},
	} {
		if have := onlyOurs(tt.entries); have != tt.want {
			t.Errorf("%s: %v", tt.name, have)
		}
	}
}

// Objects of an EtcdNamespace are recognized by name and namespace.
func TestMark(t *testing.T) {
	t.Parallel()
	of := manifest.EtcdNamespace.ID("a", "sample")
	marks := make(map[string]bool)
	for _, id := range []manifest.ID{manifest.Secret.ID("a", "x"), manifest.Secret.ID("b", "x"), manifest.Secret.ID("a", "y"), manifest.ConfigMap.ID("a", "x")} {
		marks[mark(id, of)] = true
	}
	marks[mark(manifest.Secret.ID("a", "x"), manifest.EtcdNamespace.ID("a", "other"))] = true
	if len(marks) != 5 {
		t.Errorf("%v", marks)
	}
}

// A status is read as it was written.
func TestShown(t *testing.T) {
	t.Parallel()
	s := &shown{state: state{address: "https://a", prefix: "/p/", counted: true, keys: 7, sized: true, bytes: 16, used: "50%"}, generation: 3}
	s.set(provisionedCondition, true, available, "")
	s.set(certificatesCondition, false, certificatesMissing, "wait")
	s.conclude()
	for i := range s.conditions {
		s.conditions[i].since = metav1.Unix(1700000000, 0).UTC()
	}
	if again := readShown(map[string]any{"status": s.tree()}); again.trouble() != "wait" || len(again.conditions) != 3 || again.conditions[2] != s.conditions[2] || again.keys != 7 || !again.sized || again.bytes != 16 || again.used != "50%" || again.generation != 3 {
		t.Errorf("read %+v\nof %+v", again, s)
	}
}
