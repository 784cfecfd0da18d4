package cel

import (
	"github.com/google/cel-go/cel"
	apiserver "k8s.io/apiserver/pkg/cel/environment"
)

// Known has the expressions that a definition has already. The API server's compiler takes
// it as its EnvLoader: such expressions may use functions that older API servers lack, and
// new ones may not.
type Known struct {
	// Rules and Messages are sets of rules and of their messageExpressions.
	Rules, Messages map[string]bool
}

func (k Known) RuleEnv(set *apiserver.EnvSet, expression string) *cel.Env {
	return env(set, k.Rules[expression])
}

func (k Known) MessageExpressionEnv(set *apiserver.EnvSet, expression string) *cel.Env {
	return env(set, k.Messages[expression])
}

func env(set *apiserver.EnvSet, known bool) *cel.Env {
	if known {
		return set.StoredExpressionsEnv()
	}
	return set.NewExpressionsEnv()
}
