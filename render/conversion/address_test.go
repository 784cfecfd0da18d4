package conversion

import "testing"

func TestAsked(t *testing.T) {
	const digest = "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	path := Path("prod", "widgets.example.io", digest)
	if want := "/convert/prod/widgets.example.io/000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"; path != want {
		t.Errorf("path %s, want %s", path, want)
	}
	service := func(path string) map[string]any { return map[string]any{"service": map[string]any{"path": path}} }
	for _, tt := range []struct {
		name     string
		strategy string
		client   map[string]any
		want     string
	}{
		{"service", "Webhook", service(path), digest},
		{"url", "Webhook", map[string]any{"url": "https://example.org/convert/x" + path}, digest},
		{"strategy None", "None", service(path), ""},
		{"another definition", "Webhook", service(Path("prod", "gadgets.example.io", digest)), ""},
		{"another path", "Webhook", service("/convert"), ""},
		{"cut off", "Webhook", service(path[:len(path)-1]), ""},
		{"no sum", "Webhook", service("/convert/prod/widgets.example.io/"), ""},
		{"nothing", "Webhook", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cluster, have := Asked(map[string]any{
				"metadata": map[string]any{"name": "widgets.example.io"},
				"spec":     map[string]any{"conversion": map[string]any{"strategy": tt.strategy, "webhook": map[string]any{"clientConfig": tt.client}}},
			})
			if have != tt.want || (cluster == "prod") != (tt.want != "") {
				t.Errorf("cluster %q, digest %q, want %q", cluster, have, tt.want)
			}
		})
	}
}
