package cli

import (
	"io"
	"testing"
)

// There are colours on a terminal, elsewhere only on request, and never with NO_COLOR.
func TestColour(t *testing.T) {
	for _, tt := range []struct {
		env  map[string]string
		want bool
	}{
		{env: nil},
		{env: map[string]string{"CLICOLOR": "1"}},
		{env: map[string]string{"CLICOLOR_FORCE": "0"}},
		{env: map[string]string{"CLICOLOR_FORCE": "1"}, want: true},
		{env: map[string]string{"CLICOLOR_FORCE": "1", "TERM": "dumb"}, want: true},
		{env: map[string]string{"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}},
	} {
		g := &global{env: &Env{LookupEnv: variables(tt.env)}}
		if have := g.colour(io.Discard); have != tt.want {
			t.Errorf("%v: %t, want %t", tt.env, have, tt.want)
		}
	}
}
