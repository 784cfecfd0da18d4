package connect

import (
	"slices"
	"testing"
)

// Versions in which a role reaches beyond its range are refused, and newer ones are not.
func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"3.6.14": true, "3.6.15": true, "3.7.1": true, "3.7.3": true, "3.8.0": true, "3.8.0-alpha.0": true, "3.12.0": true, "4.0.0": true,
		"3.6.13": false, "3.7.0": false, "3.7.1-rc.0": false, "3.6.14-rc.1": false, "3.5.99": false, "3.4.0": false, "2.9.0": false, "3.0.0": false,
		"": false, "3.7": false, "v3.7.3": false, "not decided": false,
	} {
		if err := checkVersion(version); (err == nil) != want {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// An endpoint may be written with a slash at its end. Members name theirs without, and
// whoever is named in both ways would be asked twice.
func TestEndpoints(t *testing.T) {
	given := []string{"https://127.0.0.1:1/", "https://127.0.0.1:2"}
	c, err := Config{Endpoints: given, CAFile: "ca", CertFile: "cert", KeyFile: "key", Fleet: "fleet"}.Complete()
	if want := []string{"https://127.0.0.1:1", "https://127.0.0.1:2"}; err != nil || !slices.Equal(c.Endpoints, want) {
		t.Errorf("%q, %v; want %q", c.Endpoints, err, want)
	}
	if given[0] != "https://127.0.0.1:1/" {
		t.Errorf("the caller's endpoints became %q", given)
	}
}
