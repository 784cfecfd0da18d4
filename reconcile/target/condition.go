package target

import (
	"context"
	"encoding/json"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
)

// condition is the condition Ready of a target. It is comparable.
type condition struct {
	ready           bool
	reason, message string
	// secret is the Secret with the connection, if it can be used.
	secret string
	// since is when ready last changed, and generation the target's when it was judged.
	since      time.Time
	generation int64
}

const readyType = "Ready"

// shown returns the condition of a target; zero if it has none.
func shown(tree map[string]any) condition {
	c := manifest.Condition(tree, readyType)
	if c == nil {
		return condition{}
	}
	since, _ := time.Parse(time.RFC3339, manifest.Text(c, "lastTransitionTime"))
	generation, _ := c["observedGeneration"].(int64)
	return condition{
		ready: c["status"] == "True", reason: manifest.Text(c, "reason"), message: manifest.Text(c, "message"),
		secret: manifest.Text(tree, "status", "connectionSecretRef", "name"), since: since, generation: generation,
	}
}

// show sets the condition of a target if it differs.
func (p *pass) show(ctx context.Context, k *known, c condition) error {
	c.since, c.generation = k.shown.since, k.generation
	if c.ready != k.shown.ready || c.since.IsZero() {
		c.since = p.now.UTC().Truncate(time.Second)
	}
	if c == k.shown {
		return nil
	}
	id := k.id()
	entry := manifest.NewCondition(readyType, c.ready, c.reason, c.message, c.since.Format(time.RFC3339))
	entry["observedGeneration"] = c.generation
	status := map[string]any{"conditions": []any{entry}}
	if c.secret != "" {
		status["connectionSecretRef"] = map[string]any{"name": c.secret}
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": target.Target.APIVersion(target.Version), "kind": id.Kind,
		"metadata": map[string]any{"name": id.Name, "namespace": id.Namespace, "uid": k.meta.UID},
		"status":   status,
	})
	if err != nil {
		return err
	}
	applied, err := p.Client.Apply(ctx, targetType, id, body, kube.ApplyOptions{Status: true, Force: true})
	if kube.IsStale(err) { // it was deleted, or made anew
		return nil
	}
	if err != nil {
		return err
	}
	if c.ready != k.shown.ready || c.reason != k.shown.reason {
		p.Log.Info("a target has another condition", "target", id.String(), "ready", c.ready, "reason", c.reason, "message", c.message)
	}
	k.shown, k.version = c, applied.Meta.ResourceVersion
	return nil
}
