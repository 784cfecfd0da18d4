package plan

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseAdopt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want []string
		err  string
	}{
		{text: "flux", want: []string{"flux"}},
		{text: "helm/ingress, argocd ,kubectl", want: []string{"helm/ingress", "argocd", "kubectl"}},
		{text: "manager/some-tool", want: []string{"manager/some-tool"}},
		{text: "controller/ProviderRevision/p", want: []string{"controller/ProviderRevision/p"}},
		{text: "true", err: `"true" is not a source to adopt from; the sources are controller, applyset, manager, kubectl, flux, argocd, helm, kapp, crossplane, fleet`},
		{text: "flux,", err: `"" is not a source`},
		{text: "helm/", err: "want the tool, or the tool, a slash and a name"},
		{text: "manager", err: "need the name"},
		{text: "kubectl/edit", err: "want the tool"},
	} {
		have, err := ParseAdopt(tt.text)
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: the error is %v, want one with %q", tt.text, err, tt.err)
			}
		case err != nil || !slices.Equal(have, tt.want):
			t.Errorf("%q is %q, %v, want %q", tt.text, have, err, tt.want)
		}
	}
}

// Without a tool's mark, the field manager tells the owner.
func TestClaimOfApplier(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		manager, want string
	}{
		{"argocd-controller", "argocd"},
		{"helm", "helm"},
		{"kubectl-client-side-apply", "kubectl"},
		{"some-tool", "manager/some-tool"},
	} {
		have := claimant(&metav1.ObjectMeta{
			Labels:        map[string]string{"app.kubernetes.io/instance": "guestbook"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: tt.manager, Operation: metav1.ManagedFieldsOperationUpdate}},
		}, Inventory{FieldManager: "gitopsd"})
		if !slices.Equal(have.sources, []string{tt.want}) {
			t.Errorf("what %s applied is %q's, want %q", tt.manager, have.sources, tt.want)
		}
	}
}

// Where several wrote, all of them must be adopted from.
// A name that would be read as another source, or as several, is not one to paste.
func TestClaimOfHostileNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		release, want string
	}{
		{"web", "helm/web"},
		{"web,flux", ""},
		{"", ""},
		{" web", "helm/ web"},
		{"web ", ""},
		{"web\nflux", ""},
		{"web\x1b[2J", ""},
	} {
		c := claimant(&metav1.ObjectMeta{Annotations: map[string]string{"meta.helm.sh/release-name": tt.release}}, Inventory{FieldManager: "gitopsd"})
		if have := strings.Join(c.sources, ";"); have != tt.want || !strings.HasPrefix(c.text, "managed by Helm release") {
			t.Errorf("%q is %q's, %s, want %q", tt.release, have, c.text, tt.want)
		}
		if all := c.adopt("").ForAlike(); (all.On == OnCluster) != (tt.want != "") {
			t.Errorf("%q: it is adopted by %+v", tt.release, all)
		}
		if all := c.adopt("web"); (all != nil) != (tt.want != "") {
			t.Errorf("%q: an object of a package is adopted by %+v", tt.release, all)
		}
	}
}

func TestAdoptable(t *testing.T) {
	t.Parallel()
	two := claim{sources: []string{"kubectl", "manager/tool"}}
	for _, tt := range []struct {
		claim claim
		from  string
		want  bool
	}{
		{two, "kubectl", false},
		{two, "kubectl,manager/tool", true},
		{claim{sources: []string{"helm/a"}}, "helm/b", false},
		{claim{sources: []string{"helm/a"}}, "helm", true},
		{claim{}, "helm", false},
	} {
		from, err := ParseAdopt(tt.from)
		if err != nil {
			t.Fatal(err)
		}
		if have := tt.claim.adoptable(from); have != tt.want {
			t.Errorf("what is %q's can be adopted from %q: %t", tt.claim.sources, tt.from, have)
		}
	}
}
