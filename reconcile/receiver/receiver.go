// Package receiver receives the push webhooks of forges, so that a commit is looked at when it is
// pushed, and not at the next poll.
//
// A request is nothing but a reason to poll: what is in it is not read, beyond what proves that its
// sender knows the secret. So one that is repeated, late or about another branch does no harm, and
// the webhooks of all forges will do, whatever they send.
package receiver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
)

// maxBody bounds the body of a request. GitHub sends 25 MB at most.
const maxBody = 32 << 20

// minSecret is the least length of a secret in bytes. Whoever sees one request can try secrets.
const minSecret = 16

// Receiver is an [http.Handler] for a path of its own. It is safe for concurrent use.
type Receiver struct {
	file  string
	ready func() bool
	log   *slog.Logger
	c     chan struct{}
	told  atomic.Value // the last error in the log, a string
}

// New makes a Receiver. file has the secret that forges sign with, or several in a line each,
// while one takes the place of another; it is read for each request. ready reports whether this
// process polls: otherwise another one does, and is to get the request. The error is about file.
func New(file string, ready func() bool, log *slog.Logger) (*Receiver, error) {
	if _, err := secrets(file); err != nil {
		return nil, err
	}
	return &Receiver{file: file, ready: ready, log: log, c: make(chan struct{}, 1)}, nil
}

// C returns a channel that receives after pushes: once for all since it was received from last. It is
// nil for a nil Receiver.
func (r *Receiver) C() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.c
}

// secrets reads the secrets in a file.
func secrets(file string) ([][]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, []byte(line))
		}
		if line != "" && len(line) < minSecret {
			return nil, fmt.Errorf("%s: a secret is shorter than %d characters; make a random one, as with `openssl rand -hex 32`", file, minSecret)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: there is no secret in it", file)
	}
	return all, nil
}

// ServeHTTP answers 202 to a POST that is signed, or has the secret.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "this is for the push webhook of a forge: send a POST", http.StatusMethodNotAllowed)
		return
	}
	all, err := secrets(r.file)
	if err != nil {
		if r.told.Swap(err.Error()) != err.Error() {
			r.log.Warn("push webhooks are refused, since their secret cannot be read", "error", err)
		}
		http.Error(w, "the secret cannot be read; the daemon's log says why", http.StatusInternalServerError)
		return
	}
	r.told.Store("")
	switch err := check(req, http.MaxBytesReader(w, req.Body, maxBody), all); {
	case errors.As(err, new(*http.MaxBytesError)):
		http.Error(w, fmt.Sprintf("the body has more than %d bytes", maxBody), http.StatusRequestEntityTooLarge)
	case err != nil:
		http.Error(w, err.Error(), http.StatusUnauthorized)
	case !r.ready():
		http.Error(w, "another daemon is the leader, and is to get this", http.StatusServiceUnavailable)
	default:
		select {
		case r.c <- struct{}{}:
		default: // the next poll is still to come
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

// The headers in which forges prove that they know the secret.
const (
	signature256   = "X-Hub-Signature-256" // GitHub, Gitea, Forgejo
	signature      = "X-Hub-Signature"     // Bitbucket
	giteaSignature = "X-Gitea-Signature"   // earlier versions of Gitea and Forgejo
	gitlabToken    = "X-Gitlab-Token"
)

// check returns an error unless a request proves that its sender knows one of the secrets.
func check(req *http.Request, body io.Reader, secrets [][]byte) error {
	if token := req.Header.Get(gitlabToken); token != "" {
		// Of equal length, so that the time says nothing of the secret's.
		given := sha256.Sum256([]byte(token))
		for _, s := range secrets {
			if want := sha256.Sum256(s); hmac.Equal(given[:], want[:]) {
				return nil
			}
		}
		return fmt.Errorf("%s is not the secret", gitlabToken)
	}
	name, value := "", ""
	for _, h := range []string{signature256, signature, giteaSignature} {
		if value = req.Header.Get(h); value != "" {
			name = h
			break
		}
	}
	if name == "" {
		return fmt.Errorf("the request is not signed: it has neither %s, %s nor %s; give the webhook the secret", signature256, signature, gitlabToken)
	}
	text, named := strings.CutPrefix(value, "sha256=")
	given, err := hex.DecodeString(text)
	if err != nil || len(given) != sha256.Size || !named && name != giteaSignature {
		return fmt.Errorf("%s is no HMAC-SHA256 in hexadecimal digits", name)
	}
	// The body is not kept: each secret has its own sum.
	sums := make([]hash.Hash, len(secrets))
	writers := make([]io.Writer, len(secrets))
	for i, s := range secrets {
		sums[i] = hmac.New(sha256.New, s)
		writers[i] = sums[i]
	}
	if _, err := io.Copy(io.MultiWriter(writers...), body); err != nil {
		return err
	}
	for _, sum := range sums {
		if hmac.Equal(given, sum.Sum(nil)) {
			return nil
		}
	}
	return fmt.Errorf("%s does not go with the body and the secret", name)
}
