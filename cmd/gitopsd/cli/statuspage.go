package cli

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"gitopsd.dev/cmd/gitopsd/glance"
	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/status"
)

// showStatus answers with what `gitopsd status --all` shows: to a browser as a page, to others as text.
func showStatus(w http.ResponseWriter, r *http.Request, s status.Snapshot) {
	page := strings.Contains(r.Header.Get("Accept"), "text/html")
	var text bytes.Buffer
	_ = glance.WriteText(&text, &s, show.Options{Colour: page, All: true}) // a Buffer takes everything
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !page {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(text.Bytes()) // fails only if the client is gone
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", show.PagePolicy)
	_, _ = io.WriteString(w, show.Page("gitopsd: "+s.Repository, text.String()))
}
