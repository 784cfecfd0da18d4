package desired

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
)

// A published cluster has its account, and its home the target. While the registry has
// errors, what may be published by the document at fault stays; a cluster that is to be
// emptied is published no more.
func TestPublish(t *testing.T) {
	published := strings.Replace(cluster("prod"), "file: prod}}", "file: prod}, publish: [{cluster: hub, namespace: team, role: edit}]}", 1)
	made := target.Target.ID("team", "prod")
	definition := manifest.CRD.ID("", "kubernetestargets.workload.crossplane.io")
	for _, tt := range []struct {
		name, registry                         string
		target, definition, grant, keeps, bare bool
	}{
		{name: "published, without objects of their own", registry: published, target: true, definition: true, grant: true, bare: true},
		{name: "published", registry: published, target: true, definition: true, grant: true},
		{name: "its document has errors", registry: strings.Replace(published, "path:", "pth:", 1), keeps: true},
		{name: "being emptied", registry: strings.Replace(published, "{name: prod}", "{name: prod, annotations: {gitopsd.dev/remove: prod}}", 1), definition: true},
		{name: "not published", registry: cluster("prod")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			repo := files{"clusters.yaml": cluster("hub") + tt.registry, "c/hub/cm.yaml": configMap, "c/prod/cm.yaml": configMap}
			if tt.bare {
				repo["c/hub/cm.yaml"], repo["c/prod/cm.yaml"] = "", ""
			}
			s, err := New(Config{}).Compute(t.Context(), repo.commit(), Earlier{})
			if err != nil {
				t.Fatal(err)
			}
			hub, prod := s.Get("hub"), s.Get("prod")
			if hub.Err != nil {
				t.Fatal(hub.Err)
			}
			if hub.Bare != tt.bare || prod != nil && prod.Bare != tt.bare && !prod.Remove {
				t.Errorf("no objects of their own: hub %v, prod %v", hub.Bare, prod != nil && prod.Bare)
			}
			if has := hub.Objects.Get(made) != nil; has != tt.target {
				t.Errorf("the target is there: %v", has)
			}
			if has := hub.Objects.Get(definition) != nil; has != tt.definition {
				t.Errorf("the definition is there: %v", has)
			}
			if has := prod != nil && prod.Objects.Get(target.Account("hub", "team")) != nil; has != tt.grant {
				t.Errorf("the account is there: %v", has)
			}
			if !tt.target && (hub.Keeps(made, "") != tt.keeps || hub.Keeps(definition, "") != tt.keeps) {
				t.Errorf("the target stays: %v, its definition: %v", hub.Keeps(made, ""), hub.Keeps(definition, ""))
			}
			if hub.Keeps(manifest.ConfigMap.ID("team", "x"), "") {
				t.Error("something else stays")
			}
		})
	}
}
