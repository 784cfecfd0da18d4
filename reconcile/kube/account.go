package kube

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// accountLimit is how long an error waits to learn whether the account exists.
	accountLimit = 5 * time.Second
	// accountFor is how long the answer is reused: a missing right may be reported for
	// each kind that the cluster has.
	accountFor = 10 * time.Second
)

// account finds out whether the ServiceAccount that a client impersonates exists. API
// servers allow the impersonation of one that does not, and then report missing rights.
type account struct {
	ServiceAccount
	base      *url.URL
	own       *rest.Config // with the registration's own rights
	userAgent string

	mu     sync.Mutex
	client *http.Client
	asked  time.Time
	status int // of the answer; 0 without one
}

// exists reports whether the account exists, and whether the registration's credentials
// may find that out.
func (a *account) exists(ctx context.Context) (exists, known bool) {
	if a == nil {
		return false, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked.IsZero() || time.Since(a.asked) > accountFor {
		if a.status = a.ask(ctx); ctx.Err() == nil {
			a.asked = time.Now()
		}
	}
	return a.status == http.StatusOK, a.status == http.StatusOK || a.status == http.StatusNotFound
}

func (a *account) ask(ctx context.Context) (status int) {
	if a.client == nil {
		client, err := rest.HTTPClientFor(a.own)
		if err != nil {
			return 0
		}
		client.CheckRedirect = noRedirects
		a.client = client
	}
	ctx, cancel := context.WithTimeout(ctx, accountLimit)
	defer cancel()
	u := a.base.JoinPath("api", "v1", "namespaces", a.Namespace, "serviceaccounts", a.Name).String()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return 0
	}
	req.Header.Set("Accept", mimeMetadata)
	req.Header.Set("User-Agent", a.userAgent)
	resp, err := a.client.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}
