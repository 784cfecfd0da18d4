package certs

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
)

// gitopsd reads certificates and CAs that an operator brings, reports in time that they
// expire, and never writes them.

// authority reads the operator's CA for a Service; zero if gitopsd makes its own. why is why it
// cannot be used, with advice.
func (w *work) authority(ctx context.Context, s *service) (a rotation.Authority, why string, err error) {
	where, id := manifest.AuthorityAnnotation, manifest.Secret.ID(s.object.ID().Namespace, s.object.Annotation(manifest.AuthorityAnnotation))
	if id.Name == "" {
		where, id = "spec.certificates.authority", manifest.Secret.ID(apply.Namespace, cmp.Or(w.Unit.Spec.Certificates.Authority, w.cfg.Authority))
		if w.Unit.Spec.Certificates.Authority == "" {
			where = "--certificate-authority"
		}
	}
	if id.Name == "" {
		return rotation.Authority{}, "", nil
	}
	fail := func(format string, args ...any) (rotation.Authority, string, error) {
		return rotation.Authority{}, fmt.Sprintf("%s: Secret %s/%s ", where, id.Namespace, id.Name) + fmt.Sprintf(format, args...), nil
	}
	w.again(w.now.Add(othersPause))
	if !dnsName.MatchString(id.Name) {
		return fail("is no name of a Secret; correct it")
	}
	live, _, err := w.get(ctx, id)
	switch {
	case err != nil:
		return rotation.Authority{}, "", err
	case live == nil && w.Objects.Get(id) != nil:
		return fail("is in the repository and is read once it is applied")
	case live == nil:
		return fail("does not exist; create it with the CA's tls.crt and tls.key, or remove the setting")
	}
	data := contents(live)
	chain, key, err := rotation.ParsePair(data[keyCert], data[keyKey])
	if err != nil {
		return fail("cannot sign: %s; put the CA's certificate and its key there", err)
	}
	cert := chain[0]
	switch {
	case !rotation.IsCA(cert):
		return fail("holds no CA: the first certificate in tls.crt must not sign others; put a CA there, or name this Secret with %s if it is the serving certificate itself", manifest.ServingCertAnnotation)
	case !w.now.Before(cert.NotAfter):
		w.expires(id, status.Authority, cert.NotAfter, true)
		return fail("holds a CA that expired on %s; replace it", date(cert.NotAfter))
	case w.now.Before(cert.NotBefore):
		return fail("holds a CA that is valid only from %s; put one there that is valid now", date(cert.NotBefore))
	}
	w.expires(id, status.Authority, cert.NotAfter, true)
	w.tell(id, cert)
	if err := profileOf(s.object.ID()).Try(rotation.Authority{Cert: cert, Key: key}, w.now); err != nil {
		return fail("holds a CA that cannot sign for %s: %s; put one there that can", s.object.ID(), err)
	}
	return rotation.Authority{Cert: cert, Key: key}, "", nil
}

// useBrought returns the trust of consumers in a Service with a Secret that others wrote.
func (w *work) useBrought(s *service, tree map[string]any) trust {
	data := contents(tree)
	fail := func(format string, args ...any) trust {
		return trust{why: fmt.Sprintf("Secret %s/%s is not gitopsd's and ", s.secret.Namespace, s.secret.Name) + fmt.Sprintf(format, args...) +
			"; correct it, or delete it and gitopsd makes a certificate"}
	}
	chain, _, err := rotation.ParsePair(data[keyCert], data[keyKey])
	if err != nil {
		return fail("cannot serve: %s", err)
	}
	w.expires(s.secret, status.Serving, chain[0].NotAfter, true)
	if err := profileOf(s.object.ID()).Fits(chain[0]); err != nil {
		return fail("cannot serve: its certificate %s", err)
	}
	if !w.now.Before(chain[0].NotAfter) {
		return fail("holds a certificate that expired on %s", date(chain[0].NotAfter))
	}
	w.tell(s.secret, chain[0])
	bundle, err := bundleOf(data)
	if err != nil {
		return fail("%s", err)
	}
	if err := profileOf(s.object.ID()).Accepted(chain, bundle, w.now); err != nil {
		return fail("cannot serve: its CA would not be trusted for its certificate: %s", err)
	}
	return trust{bundle: bundle}
}

// bundleOf returns the CAs in a Secret: those in ca.crt, otherwise the last CA in tls.crt, or
// its only certificate if that is self-signed.
func bundleOf(data map[string][]byte) ([]byte, error) {
	if text := data[keyBundle]; len(text) > 0 {
		certs, err := rotation.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s %w", keyBundle, err)
		}
		return rotation.Encode(certs...), nil
	}
	if len(data[keyCert]) == 0 {
		return nil, fmt.Errorf("has neither %s nor %s", keyBundle, keyCert)
	}
	chain, err := rotation.Parse(data[keyCert])
	if err != nil {
		return nil, fmt.Errorf("%s %w", keyCert, err)
	}
	var cas []*x509.Certificate
	for _, cert := range chain {
		if rotation.IsCA(cert) {
			cas = append(cas, cert)
		}
	}
	if last := chain[len(chain)-1]; len(cas) == 0 && len(chain) == 1 && last.CheckSignature(last.SignatureAlgorithm, last.RawTBSCertificate, last.Signature) == nil {
		cas = chain
	}
	if len(cas) == 0 {
		return nil, errors.New("has no ca.crt, and no CA in tls.crt")
	}
	return rotation.Encode(cas[len(cas)-1]), nil
}

// trustOf returns the trust in a Secret that a consumer names.
func (w *work) trustOf(ctx context.Context, id manifest.ID) (trust, error) {
	if t, known := w.trust[id]; known {
		return t, nil
	}
	w.again(w.now.Add(othersPause))
	var t trust
	var tree map[string]any
	if o := w.Objects.Get(id); o != nil {
		tree = o.Tree()
	} else {
		var err error
		if tree, _, err = w.get(ctx, id); err != nil {
			if t.why, err = local(ctx, err); err != nil {
				return t, err
			}
		}
	}
	switch {
	case t.why != "":
	case tree == nil:
		t.why = "there is no such Secret; create it, or correct the name"
	default:
		var err error
		if t.bundle, err = bundleOf(contents(tree)); err != nil {
			t.why = "it " + err.Error() + "; put the CA's certificate there as ca.crt"
		}
	}
	w.trust[id] = t
	return t, nil
}

// tell notes that a brought certificate will expire soon.
func (w *work) tell(id manifest.ID, cert *x509.Certificate) {
	from := rotation.Notice(cert)
	if w.now.Before(from) {
		w.again(from)
		return
	}
	w.again(cert.NotAfter)
	w.note("the certificate in Secret %s/%s expires on %s; gitopsd does not renew it, since somebody brought it", id.Namespace, id.Name, date(cert.NotAfter))
}

// expires adds a certificate to the status.
func (w *work) expires(secret manifest.ID, use string, at time.Time, brought bool) {
	c := status.Certificate{Secret: secret.Namespace + "/" + secret.Name, Use: use, Expires: at.UTC(), Brought: brought}
	if !slices.ContainsFunc(w.done.Certificates, func(known status.Certificate) bool { return known.Secret == c.Secret && known.Use == c.Use }) {
		w.done.Certificates = append(w.done.Certificates, c)
	}
}

func (w *work) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(w.done.Notes, text) {
		w.done.Notes = append(w.done.Notes, text)
	}
}

func date(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// FilesPause is the pause before a unit is told again of a certificate that expires soon: its
// files may be replaced at any time.
const FilesPause = time.Minute

// Tell tells a unit when a certificate in a file or directory expires, which flag names and
// somebody brought.
func Tell(done *unit.Completion, flag, use string, cert *x509.Certificate) {
	done.Certificates = append(done.Certificates, status.Certificate{Secret: flag, Use: use, Expires: cert.NotAfter.UTC(), Brought: true})
	now, again := time.Now(), rotation.Notice(cert)
	if !now.Before(again) {
		again = now.Add(FilesPause)
		if now.Before(cert.NotAfter) { // later what needs it fails, and says so
			done.Notes = append(done.Notes, fmt.Sprintf("the certificate in %s expires on %s; gitopsd does not renew it, since somebody brought it", flag, cert.NotAfter.UTC().Format(time.RFC3339)))
		}
	}
	if done.Again.IsZero() || again.Before(done.Again) {
		done.Again = again
	}
}
