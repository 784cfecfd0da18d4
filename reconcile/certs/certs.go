// Package certs keeps serving certificates of Services, and fills in the CA bundles of
// webhook configurations, APIServices and CRDs. Annotations ask for both:
// manifest.ServingCertAnnotation on a Service, and manifest.InjectCAAnnotation on the objects
// by which API servers reach it. Its [Completer] is a [unit.Completer].
//
// It owns
//   - the rotation of certificates (package rotation), which reconcile/etcd/identity uses,
//     too;
//   - the Secret with the CA of a Service (keep.go). It is in gitopsd's own namespace, where
//     no pod mounts it. Only this package writes its data, on the condition that the Secret
//     is as it was read. The inventory has the Secret without data, so that no plan shows
//     the data and no other process overwrites it;
//   - the fields for bundles in objects (bundles.go);
//   - certificates and CAs that an operator brings (brought.go).
//
// It does not write serving certificates and bundles: it returns objects with them, which
// reconcile/apply writes like all others.
package certs

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
)

// Config configures a [Completer].
type Config struct {
	// Policy is how long certificates live; see [Config.check].
	Policy rotation.Policy
	// Authority names a Secret with a CA, in gitopsd's namespace of each cluster, for
	// Services that have no other CA by their annotation or their cluster. If it is empty,
	// gitopsd makes CAs for them.
	Authority string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Defaults of the policy.
const (
	DefaultAuthority = 365 * 24 * time.Hour
	DefaultLeaf      = 90 * 24 * time.Hour
)

// check returns an error if a CA could expire before its certificates are renewed, or if there
// is no time to settle.
func (c *Config) check() error {
	p := c.Policy
	switch {
	case p.Leaf < 3*time.Second:
		return fmt.Errorf("certificates that are valid for %s: use at least 3s", p.Leaf)
	case p.Authority < 3*p.Leaf:
		return fmt.Errorf("CAs that are valid for %s: use at least three times the lifetime of certificates, %s", p.Authority, 3*p.Leaf)
	case p.Settle < 0 || p.Settle > p.Leaf/3:
		return fmt.Errorf("settling for %s: use at most a third of the lifetime of certificates, %s", p.Settle, p.Leaf/3)
	case c.Authority != "" && !dnsName.MatchString(c.Authority):
		return fmt.Errorf("%q is no name of a Secret", c.Authority)
	}
	return nil
}

// Completer fills in certificates and bundles. It remembers nothing.
type Completer struct{ cfg Config }

// New makes a Completer. The error is about the configuration.
func New(c Config) (*Completer, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Completer{c}, nil
}

// othersPause is the pause before Secrets of others, or missing ones, are read again: they are
// not watched.
const othersPause = time.Minute

var (
	secrets     = kube.Type{Version: "v1", Kind: manifest.Secret.Kind, Resource: "secrets", Namespaced: true}
	serviceType = kube.Type{Version: "v1", Kind: manifest.Service.Kind, Resource: "services", Namespaced: true}
)

// journalOf returns the Secret that records the CAs of a Service.
func journalOf(service manifest.ID) manifest.ID {
	return manifest.Secret.ID(apply.Namespace, manifest.ServingCAPrefix+service.Namespace+"."+service.Name)
}

// Keys of Secrets with certificates.
const (
	keyCert   = "tls.crt"
	keyKey    = "tls.key"
	keyBundle = "ca.crt"
)

// profileOf returns the profile of the certificates of a Service. API servers connect to
// <name>.<namespace>.svc.
func profileOf(service manifest.ID) rotation.Profile {
	name := service.Name + "." + service.Namespace
	return rotation.Profile{Name: name, DNSNames: []string{name, name + ".svc", name + ".svc.cluster.local"}, Host: name + ".svc"}
}

// service is a Service with manifest.ServingCertAnnotation.
type service struct {
	object *manifest.Object
	// secret gets the certificate, and journal records the CA.
	secret, journal manifest.ID
	consumers       []consumer
}

// work is one call of Complete.
type work struct {
	*Completer
	unit.Request
	// now is taken before anything is read, so that no certificate outlives the time that
	// was recorded for it.
	now  time.Time
	done unit.Completion
	// trust is the trust in Services and Secrets.
	trust map[manifest.ID]trust
	// live is the result of trusting; nil if it is not known yet.
	live map[manifest.ID][]manifest.ID
	// unlisted are the bundles that trusting could not look for.
	unlisted []rotation.Held
}

// trust is a CA bundle.
type trust struct {
	// bundle is in PEM; nil if it is not known yet.
	bundle []byte
	// why is why a person must act before there is one; empty if nobody must.
	why string
}

// Complete implements [unit.Completer]. For a unit without the annotations it sends
// nothing.
func (c *Completer) Complete(ctx context.Context, r unit.Request) (unit.Completion, error) {
	w := &work{Completer: c, Request: r, now: c.cfg.Now().UTC().Truncate(time.Second), trust: make(map[manifest.ID]trust)}
	w.done.Refused, w.done.Relied = make(map[manifest.ID]string), make(map[manifest.ID]string)
	kept, err := w.kept(ctx)
	if err != nil {
		return unit.Completion{}, err
	}
	services, consumers, err := w.read(ctx, slices.Concat(w.Objects.All(), kept))
	if err != nil {
		return unit.Completion{}, err
	}
	if len(w.done.Refused) > 0 { // a Service with an error in its annotation keeps its Secrets
		w.done.Keeps = isSecret
	}
	for _, s := range services {
		t, err := w.serve(ctx, s)
		if err != nil {
			if t.why, err = local(ctx, err); err != nil {
				return unit.Completion{}, err
			}
			w.again(w.now.Add(othersPause))
			w.done.Keeps = isSecret
		}
		if t.why != "" {
			w.done.Refused[s.object.ID()] = t.why
		}
		w.trust[s.object.ID()] = t
	}
	for _, consumer := range consumers {
		if err := w.inject(ctx, consumer); err != nil {
			return unit.Completion{}, err
		}
	}
	return w.done, nil
}

// isSecret reports whether an object is a Secret, and so may be one of a Service with an error.
func isSecret(id manifest.ID) bool { return id.Is(manifest.Secret) }

// local returns the text of an error that concerns only one object. Any other error is returned
// as such.
func local(ctx context.Context, err error) (string, error) {
	if kube.IsClusterWide(err) || ctx.Err() != nil {
		return "", err
	}
	return err.Error(), nil
}

func (w *work) again(at time.Time) {
	if !at.IsZero() && (w.done.Again.IsZero() || at.Before(w.done.Again)) {
		w.done.Again = at
	}
}

// kept returns the live Services of packages that stay as they are, since they cannot be
// rendered: their controllers go on, and so do their certificates. Each has only the metadata
// that matters here. Nobody fills in the bundles of such a package, so that a new CA waits.
func (w *work) kept(ctx context.Context) ([]*manifest.Object, error) {
	if w.Unit.Keeps == nil || len(w.Unit.Incomplete) == 0 {
		return nil, nil
	}
	var kept []*manifest.Object
	var broken error
	opts := kube.ListOptions{Selector: manifest.PackageLabel, Again: func() { kept = nil }}
	_, err := w.Client.List(ctx, serviceType, opts, func(meta *metav1.PartialObjectMetadata) bool {
		id := manifest.Service.ID(meta.Namespace, meta.Name)
		pkg := meta.Labels[manifest.PackageLabel]
		if meta.Annotations[manifest.ServingCertAnnotation] == "" || w.Objects.Get(id) != nil || !w.Unit.Keeps(id, pkg) || !w.Owns(id, &meta.ObjectMeta) {
			return true
		}
		annotations := make(map[string]any)
		for _, key := range []string{manifest.ServingCertAnnotation, manifest.AuthorityAnnotation} {
			if value := meta.Annotations[key]; value != "" {
				annotations[key] = value
			}
		}
		o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": id.Kind, "metadata": map[string]any{
			"name": id.Name, "namespace": id.Namespace, "labels": map[string]any{manifest.PackageLabel: pkg}, "annotations": annotations,
		}}, manifest.Origin{})
		broken = errors.Join(broken, err)
		kept = append(kept, o)
		w.done.Relied[id] = meta.ResourceVersion
		return true
	})
	if err != nil {
		why, err := local(ctx, err)
		w.again(w.now.Add(othersPause))
		w.note("the certificates of packages with errors are not renewed: %s", why)
		return nil, err
	}
	return kept, broken
}

// read finds the annotated objects. It refuses those with errors in their annotations.
// The error is about the whole cluster.
func (w *work) read(ctx context.Context, objects []*manifest.Object) (services []*service, consumers []consumer, err error) {
	var claims []*service
	for _, o := range objects {
		name := o.Annotation(manifest.ServingCertAnnotation)
		if name == "" {
			continue
		}
		id := o.ID()
		switch {
		case !id.Is(manifest.Service):
			w.done.Refused[id] = fmt.Sprintf("%s: only Services have serving certificates; remove the annotation", manifest.ServingCertAnnotation)
		case !dnsName.MatchString(name):
			w.done.Refused[id] = fmt.Sprintf("%s: %q is no name of a Secret", manifest.ServingCertAnnotation, name)
		case id.Namespace == apply.Namespace && strings.HasPrefix(name, manifest.ServingCAPrefix):
			w.done.Refused[id] = fmt.Sprintf("%s: names that begin with %s are those of gitopsd's own CAs; name another", manifest.ServingCertAnnotation, manifest.ServingCAPrefix)
		case id.Namespace == "": // which the plan reports
		default:
			claims = append(claims, &service{object: o, secret: manifest.Secret.ID(id.Namespace, name), journal: journalOf(id)})
		}
	}
	if services, err = w.settle(ctx, claims); err != nil {
		return nil, nil, err
	}
	byID, secretOf := make(map[manifest.ID]*service), make(map[manifest.ID]manifest.ID)
	for _, s := range services {
		byID[s.object.ID()], secretOf[s.secret] = s, s.object.ID()
	}
	for _, o := range objects {
		if o.Annotation(manifest.InjectCAAnnotation) == "" {
			continue
		}
		c, err := readConsumer(o)
		if service, serves := secretOf[c.from]; serves && err == nil {
			c.from = service // the Secret is that Service's
		}
		if err == nil && c.from.Is(manifest.Service) && byID[c.from] == nil {
			err = w.notServing(c.from)
		}
		if err != nil {
			w.done.Refused[o.ID()] = err.Error()
			continue
		}
		if s := byID[c.from]; s != nil {
			s.consumers = append(s.consumers, c)
		}
		consumers = append(consumers, c)
	}
	return services, consumers, nil
}

// settle gives each Secret to one of the Services that name it, and refuses the others. The
// error is about the whole cluster.
func (w *work) settle(ctx context.Context, claims []*service) (services []*service, err error) {
	rivals := make(map[manifest.ID][]*service)
	for _, s := range claims {
		rivals[s.secret] = append(rivals[s.secret], s)
	}
	for _, s := range claims {
		all := rivals[s.secret]
		if all[0] != s { // settled with the first
			continue
		}
		holder, err := w.holder(ctx, all)
		if err != nil {
			why, err := local(ctx, err)
			if err != nil {
				return nil, err
			}
			w.again(w.now.Add(othersPause))
			for _, s := range all {
				w.done.Refused[s.object.ID()] = why
			}
			continue
		}
		services = append(services, holder)
		for _, s := range all {
			if s != holder {
				w.done.Refused[s.object.ID()] = fmt.Sprintf("%s: Secret %s is for %s already; name another", manifest.ServingCertAnnotation, s.secret.Name, holder.object.ID())
			}
		}
	}
	return services, nil
}

// holder returns the Service whose certificate is in a Secret that several name, so that one
// that names it by mistake breaks no other; else the one whose CA is recorded, or the first.
func (w *work) holder(ctx context.Context, rivals []*service) (*service, error) {
	if len(rivals) == 1 {
		return rivals[0], nil
	}
	live, _, err := w.get(ctx, rivals[0].secret)
	if err != nil {
		return nil, err
	}
	if chain, err := rotation.Parse(contents(live)[keyCert]); err == nil {
		for _, s := range rivals {
			if profileOf(s.object.ID()).Fits(chain[0]) == nil {
				return s, nil
			}
		}
	}
	for _, s := range rivals {
		record, _, err := w.get(ctx, s.journal)
		if err != nil {
			return nil, err
		}
		if record != nil {
			return s, nil
		}
	}
	return rivals[0], nil
}

// notServing returns why a Service has no CA.
func (w *work) notServing(id manifest.ID) error {
	o := w.Objects.Get(id)
	switch {
	case o == nil:
		return fmt.Errorf("%s: the repository has no %s for this cluster; correct the name, or name a Secret (Secret/<namespace>/<name>)", manifest.InjectCAAnnotation, id)
	case o.Annotation(manifest.ServingCertAnnotation) == "":
		return fmt.Errorf("%s: %s has no certificate of gitopsd's; annotate it with %s: <name of a Secret>", manifest.InjectCAAnnotation, id, manifest.ServingCertAnnotation)
	}
	return fmt.Errorf("%s: %s", manifest.InjectCAAnnotation, cmp.Or(w.done.Refused[id], fmt.Sprintf("%s has no namespace", id)))
}

// inject fills a consumer's bundles.
func (w *work) inject(ctx context.Context, c consumer) error {
	t := w.trust[c.from]
	if c.from.Is(manifest.Secret) {
		var err error
		if t, err = w.trustOf(ctx, c.from); err != nil {
			return err
		}
	}
	if t.why != "" && t.bundle == nil {
		w.done.Refused[c.object.ID()] = fmt.Sprintf("%s: %s: %s", manifest.InjectCAAnnotation, c.from, t.why)
	}
	filled, err := fill(c.object, t.bundle)
	if err != nil {
		return err
	}
	w.done.Objects = append(w.done.Objects, filled)
	return nil
}

// serve keeps a Service's certificate, and returns the trust of its consumers.
func (w *work) serve(ctx context.Context, s *service) (trust, error) {
	if o := w.Objects.Get(s.secret); o != nil {
		return w.useBrought(s, o.Tree()), nil
	}
	live, meta, err := w.get(ctx, s.secret)
	if err != nil {
		return trust{}, err
	}
	if live != nil && !w.Owns(s.secret, meta) {
		w.again(w.now.Add(othersPause))
		return w.useBrought(s, live), nil
	}
	brought, why, err := w.authority(ctx, s)
	if err != nil {
		return trust{}, err
	}
	return w.keep(ctx, s, live, brought, why)
}

// get reads a Secret; nil if there is none.
func (w *work) get(ctx context.Context, id manifest.ID) (map[string]any, *metav1.ObjectMeta, error) {
	tree, meta, err := w.Client.Get(ctx, secrets, id)
	if kube.IsMissing(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return tree, &meta.ObjectMeta, nil
}

// rely notes that the result depends on a member of the inventory as it was read.
func (w *work) rely(id manifest.ID, live map[string]any) {
	w.done.Relied[id] = manifest.Text(live, "metadata", "resourceVersion")
}

// contents returns the values of a Secret.
func contents(tree map[string]any) map[string][]byte {
	data := make(map[string][]byte)
	for key, v := range manifest.Mapping(tree, "data") {
		text, _ := v.(string)
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			data[key] = decoded
		}
	}
	for key, v := range manifest.Mapping(tree, "stringData") {
		text, _ := v.(string)
		data[key] = []byte(text)
	}
	return data
}
