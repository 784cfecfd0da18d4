package cel

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	apiserver "k8s.io/apiserver/pkg/cel/environment"
)

// Only what is known already may use functions that are newer than the API server.
func TestKnown(t *testing.T) {
	const newer = `ip('127.0.0.1').isLoopback()` // since Kubernetes 1.31
	set := apiserver.MustBaseEnvSet(version.MajorMinor(1, 29))
	for _, tt := range []struct {
		known         Known
		rule, message bool
	}{
		{Known{}, false, false},
		{Known{Rules: map[string]bool{newer: true}}, true, false},
		{Known{Messages: map[string]bool{newer: true}}, false, true},
	} {
		_, ruleIssues := tt.known.RuleEnv(set, newer).Compile(newer)
		_, messageIssues := tt.known.MessageExpressionEnv(set, newer).Compile(newer)
		if rule, message := ruleIssues.Err() == nil, messageIssues.Err() == nil; rule != tt.rule || message != tt.message {
			t.Errorf("%+v: as a rule %t, as a message %t", tt.known, rule, message)
		}
	}
}
