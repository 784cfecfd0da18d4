package target

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/target/connection"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources/clusters"
)

// ofAnnotation is an annotation of a connection Secret with the cluster and the kind of
// credentials. Whoever can write Secrets in the namespace can write it, so it counts only
// until the content was compared with the cluster's registration.
const ofAnnotation = manifest.ConnectionLabel

// held is a target's connection Secret as it was read; zero if there is none.
type held struct {
	// uid is empty if gitopsd did not write the Secret; then only version is known.
	uid, version string
	data         map[string]string // base64
	of           string
	// compared reports whether data was compared with the registration of the cluster.
	compared bool
	// refused is why the daemon must not use the connection itself; empty if it may. It is
	// known once data was compared.
	refused string
	// expires is when the connection expires, and renew when it should be replaced; zero for
	// never.
	expires, renew time.Time
}

// of returns the value of ofAnnotation for a connection.
func of(cluster string, p clusters.Publication) string { return cluster + " " + p.Credentials }

// fits reports whether the Secret holds a connection to the cluster with the kind of
// credentials of the publication.
func (h *held) fits(cluster string, p clusters.Publication) bool {
	return h.uid != "" && h.of == of(cluster, p)
}

// same reports whether the Secret holds exactly this.
func (h *held) same(data map[string][]byte) bool {
	if len(h.data) != len(data) {
		return false
	}
	for key, value := range data {
		if h.data[key] != base64.StdEncoding.EncodeToString(value) {
			return false
		}
	}
	return true
}

// secretID returns the Secret that gitopsd writes for a target.
func (k *known) secretID() manifest.ID {
	return manifest.Secret.ID(k.meta.Namespace, secretName(k.meta.Name))
}

// ours reports whether gitopsd wrote a Secret for this target: not if it is a copy, or was
// written for an earlier target of the name.
func (k *known) ours(m *metav1.ObjectMeta) bool {
	return m.Labels[manifest.ConnectionLabel] == "true" && slices.ContainsFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == k.meta.UID })
}

// look reads the Secret of a target if it may have changed since the last time.
func (p *pass) look(ctx context.Context, k *known) error {
	meta, err := p.Object(home.Secrets, k.meta.Namespace, secretName(k.meta.Name))
	switch {
	case err != nil:
		return err
	case meta == nil && k.held.uid == "" && k.held.version == "", meta != nil && k.held.version == meta.ResourceVersion:
		return nil
	}
	return p.readSecret(ctx, k)
}

func (p *pass) readSecret(ctx context.Context, k *known) error {
	tree, meta, err := p.Client.Get(ctx, secretType, k.secretID())
	if kube.IsMissing(err) {
		k.held = held{}
		return nil
	}
	if err != nil {
		return err
	}
	if !k.ours(&meta.ObjectMeta) {
		k.held = held{version: meta.ResourceVersion}
		return nil
	}
	data := make(map[string]string)
	for key := range manifest.Mapping(tree, "data") {
		data[key] = manifest.Text(tree, "data", key)
	}
	before := k.held
	k.held = held{uid: string(meta.UID), version: meta.ResourceVersion, data: data, of: meta.Annotations[ofAnnotation]}
	if before.compared && before.of == k.held.of && maps.Equal(before.data, data) {
		k.held.compared, k.held.refused, k.held.expires, k.held.renew = true, before.refused, before.expires, before.renew
		return nil
	}
	k.held.expires, k.held.renew = p.validity(k.held.token())
	return nil
}

// token returns the token in the Secret, empty for none.
func (h *held) token() string {
	text, err := base64.StdEncoding.DecodeString(h.data[connection.KeyToken])
	if err != nil {
		return ""
	}
	return string(text)
}

// reaches reports whether the Secret is a connection to this API server. Its token must not be
// sent to another.
func (h *held) reaches(c *api.Cluster) bool {
	is := func(key string, value []byte) bool { return h.data[key] == base64.StdEncoding.EncodeToString(value) }
	return is(connection.KeyEndpoint, []byte(c.Server)) && is(connection.KeyCA, c.CertificateAuthorityData)
}

// validity returns when a token expires and when it should be replaced, by its own claims; now
// if it has none. False claims cannot delay its replacement beyond that of a new token.
func (p *pass) validity(token string) (expires, renew time.Time) {
	var claims struct {
		Expires int64 `json:"exp"`
		Issued  int64 `json:"iat"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return p.now, p.now
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Issued <= 0 || claims.Expires <= claims.Issued {
		return p.now, p.now
	}
	expires = time.Unix(claims.Expires, 0)
	return expires, p.renewal(time.Unix(claims.Issued, 0), expires)
}

// renewal returns when to replace a token that is valid between two times: when a third of its
// life is left, but not later than for a token requested now, in case the clocks of the
// cluster and of this machine differ.
func (p *pass) renewal(from, until time.Time) time.Time {
	renew, latest := from.Add(until.Sub(from)*2/3), p.now.Add(p.cfg.Lifetime*2/3)
	if latest.Before(renew) {
		return latest
	}
	return renew
}

// write writes the Secret of a target. taken is as in offer.
func (p *pass) write(ctx context.Context, k *known, d decision, data map[string][]byte) (taken string, err error) {
	id := k.secretID()
	encoded := make(map[string]string, len(data))
	for key, value := range data {
		encoded[key] = base64.StdEncoding.EncodeToString(value)
	}
	name := of(d.cluster.Name, d.publication)
	if k.held.uid != "" {
		values := make(map[string]any)
		for key := range k.held.data {
			values[key] = nil
		}
		for key, value := range encoded {
			values[key] = value
		}
		err := p.Client.Patch(ctx, secretType, id, map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{ofAnnotation: name}}, "data": values,
		}, k.held.version)
		if err != nil {
			k.held = held{} // it is read again
			return "", err
		}
		k.held.version = "" // not in the answer
	} else {
		body, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": id.Kind, "type": "Opaque", "data": encoded,
			"metadata": map[string]any{
				"name": id.Name, "namespace": id.Namespace,
				"labels":      map[string]any{manifest.ConnectionLabel: "true"},
				"annotations": map[string]any{ofAnnotation: name},
				"ownerReferences": []any{map[string]any{
					"apiVersion": target.Target.APIVersion(target.Version), "kind": target.Target.Kind,
					"name": k.meta.Name, "uid": k.meta.UID, "controller": true,
				}},
			},
		})
		if err != nil {
			return "", err
		}
		meta, err := p.Client.Create(ctx, secretType, id, body)
		if kube.ClassOf(err) == kube.Exists {
			if err := p.readSecret(ctx, k); err != nil {
				return "", err
			}
			if k.held.uid == "" {
				return fmt.Sprintf("%s exists and is not gitopsd's; delete it, or name it in connectionSecretRef of a target without clusterRef", id), nil
			}
			return "", err // it is ours; the next pass compares it
		}
		if err != nil {
			return "", err
		}
		k.held.uid, k.held.version = string(meta.UID), meta.ResourceVersion
	}
	k.held.data, k.held.of, k.held.compared = encoded, name, true
	p.Log.Info("a connection was written", "secret", id.String(), "cluster", d.cluster.Name)
	return "", nil
}

// withdraw deletes the Secret of a target and the reference to it.
func (p *pass) withdraw(ctx context.Context, k *known) error {
	if err := p.remove(ctx, k); err != nil || k.spec.secret == "" {
		return err
	}
	return p.setReference(ctx, k, nil)
}

// remove deletes the Secret that was written for a target.
func (p *pass) remove(ctx context.Context, k *known) error {
	if k.held.uid == "" {
		return nil
	}
	_, _, err := p.Client.Delete(ctx, secretType, k.secretID(), k.held.uid)
	if err != nil && kube.ClassOf(err) != kube.Changed {
		return err
	}
	p.Log.Info("a connection was withdrawn", "secret", k.secretID().String())
	k.held = held{}
	return nil
}

// refer sets the target's reference to its Secret.
func (p *pass) refer(ctx context.Context, k *known) error {
	if k.spec.secret != "" {
		return nil
	}
	return p.setReference(ctx, k, map[string]any{"name": secretName(k.meta.Name)})
}

func (p *pass) setReference(ctx context.Context, k *known, ref map[string]any) error {
	var value any // a nil map would be an empty mapping
	if ref != nil {
		value = ref
	}
	err := p.Client.Patch(ctx, targetType, k.id(), map[string]any{"spec": map[string]any{"connectionSecretRef": value}}, k.meta.ResourceVersion)
	if err != nil {
		k.generation = 0 // it is read again
		return err
	}
	k.spec.secret = manifest.Text(ref, "name")
	return nil
}

// brought is a Secret that others brought, with the condition that it gives the target.
type brought struct {
	name, uid, version string
	condition          condition
}

// use returns the condition of a target with a Secret that others brought. It reads the Secret
// only if that has changed.
func (p *pass) use(ctx context.Context, k *known) (condition, error) {
	id := manifest.Secret.ID(k.meta.Namespace, k.spec.secret)
	missing := condition{reason: secretNotFound, message: fmt.Sprintf("%s does not exist", id)}
	listed, err := p.Object(home.Secrets, id.Namespace, id.Name)
	if err != nil {
		return condition{}, err
	}
	if listed == nil {
		return missing, nil // an event follows
	}
	if b := k.brought; b.name == id.Name && b.uid == string(listed.UID) && b.version == listed.ResourceVersion {
		return b.condition, nil
	}
	tree, meta, err := p.Client.Get(ctx, secretType, id)
	switch {
	case kube.IsMissing(err):
		return missing, nil
	case kube.ClassOf(err) == kube.Invalid:
		return condition{reason: secretRefused, message: err.Error()}, nil
	case err != nil:
		return condition{}, err
	}
	c := condition{ready: true, reason: available, message: fmt.Sprintf("the connection is in Secret %s", id.Name), secret: id.Name}
	conn, err := connection.ParseSecret(tree, p.cfg.Accept)
	if err == nil {
		err = conn.Check(p.cfg.Reach)
	}
	if meta.Labels[manifest.ClusterLabel] != "" {
		err = fmt.Errorf("by its label %s it is the daemon's own; bring another", manifest.ClusterLabel)
	}
	if err != nil {
		c = condition{reason: secretRefused, message: fmt.Sprintf("%s: %v", id, err)}
	}
	k.brought = brought{name: id.Name, uid: string(meta.UID), version: meta.ResourceVersion, condition: c}
	return c, nil
}
