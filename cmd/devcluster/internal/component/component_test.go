package component

import (
	"os"
	"testing"
)

func TestEnvironment(t *testing.T) {
	t.Setenv("GOGC", "")
	os.Unsetenv("GOGC")
	if got := Environment(NameAPIServer); len(got) == 0 {
		t.Error("API server: nothing")
	}
	if got := Environment(NameEtcd); len(got) != 0 {
		t.Errorf("etcd: %v", got)
	}
	t.Setenv("GOGC", "50")
	if got := Environment(NameAPIServer); len(got) != 0 {
		t.Errorf("the user's GOGC is overridden: %v", got)
	}
}
