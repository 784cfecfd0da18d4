// Package githubapp gets the tokens by which a GitHub App reads and pushes to a repository.
//
// The app signs a JSON Web Token with its private key, asks GitHub where it is installed, and
// gets an installation token, which GitHub takes as a password for an hour.
package githubapp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"gitopsd.dev/sources/roots"
)

// Username is the user name that goes with a token.
const Username = "x-access-token"

// Config describes an app and a repository.
type Config struct {
	// ID is the app's client ID, or its number.
	ID string
	// KeyFile is a PEM file with the app's private key. It is read for each new token.
	KeyFile string
	// Repository is the URL of the repository, as in https://github.com/owner/name.
	Repository string
	// Write asks for tokens that may push.
	Write bool
	// CAFile has PEM certificates of authorities to trust beside the system's; may be empty.
	CAFile string
	// Log gets warnings while no new token can be had, or CAFile cannot be used any more. It may
	// be nil.
	Log *slog.Logger
}

// App gets tokens. It is safe for concurrent use.
type App struct {
	cfg         Config
	api         *url.URL
	owner, name string
	client      *http.Client

	busy chan struct{} // held by who reads or writes the fields below
	// token is good until expires. After renew another one is asked for, since the app may have
	// got other rights.
	token          string
	renew, expires time.Time
}

// renewAfter is the age at which a token is replaced. Rights that the app got since count then.
const renewAfter = 10 * time.Minute

// again is how long the token before is used after GitHub gave no other.
const again = time.Minute

// New checks the configuration. It asks nobody.
func New(cfg Config) (*App, error) {
	u, err := url.Parse(cfg.Repository)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("an app needs a repository by https, as in https://github.com/owner/name")
	}
	owner, name, ok := strings.Cut(strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git"), "/")
	if !ok || owner == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%s is no repository of GitHub: want https://%s/owner/name", u.Redacted(), u.Host)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	a := &App{cfg: cfg, api: api(u), owner: owner, name: name, busy: make(chan struct{}, 1)}
	if _, err := a.sign(time.Now()); err != nil {
		return nil, err
	}
	transport, err := roots.New(cfg.CAFile, http.DefaultTransport.(*http.Transport), cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	a.client = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	return a, nil
}

// api returns the URL of the API of a repository's GitHub.
func api(repository *url.URL) *url.URL {
	switch host := strings.ToLower(repository.Host); {
	case host == "github.com" || host == "www.github.com":
		return &url.URL{Scheme: "https", Host: "api.github.com"}
	case strings.HasSuffix(host, ".ghe.com"): // Enterprise Cloud with data residency
		return &url.URL{Scheme: "https", Host: "api." + host}
	}
	return &url.URL{Scheme: "https", Host: repository.Host, Path: "/api/v3"} // Enterprise Server
}

// sign returns the token by which the app itself is known.
func (a *App) sign(now time.Time) (string, error) {
	text, err := os.ReadFile(a.cfg.KeyFile)
	if err != nil {
		return "", err
	}
	key, err := jwt.ParseRSAPrivateKeyFromPEM(text)
	if err != nil {
		return "", fmt.Errorf("%s holds no RSA private key in PEM, as GitHub makes one for an app", a.cfg.KeyFile)
	}
	// GitHub takes ten minutes at most. Its clock may be behind.
	return jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Issuer: a.cfg.ID, IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), ExpiresAt: jwt.NewNumericDate(now.Add(8 * time.Minute)),
	}).SignedString(key)
}

// Token returns a token for the repository. One that GitHub has given is used again.
func (a *App) Token(ctx context.Context) (string, error) {
	select {
	case a.busy <- struct{}{}:
		defer func() { <-a.busy }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	now := time.Now()
	if a.token != "" && now.Before(a.renew) {
		return a.token, nil
	}
	token, life, err := a.ask(ctx, now)
	switch {
	case err == nil:
		a.token, a.renew, a.expires = token, now.Add(min(renewAfter, life/2)), now.Add(life)
	case a.token == "" || !now.Before(a.expires.Add(-time.Minute)) || ctx.Err() != nil:
		return "", fmt.Errorf("GitHub App %s: %w", a.cfg.ID, err)
	default:
		a.cfg.Log.Warn("GitHub gives no new token; the one before is used until it expires", "app", a.cfg.ID, "expires", a.expires, "error", err)
		a.renew = now.Add(again)
	}
	return a.token, nil
}

// ask asks for a new token, and returns how long it will be good.
func (a *App) ask(ctx context.Context, now time.Time) (token string, life time.Duration, err error) {
	signed, err := a.sign(now)
	if err != nil {
		return "", 0, err
	}
	var installation struct{ ID int64 }
	_, err = a.do(ctx, signed, http.MethodGet, a.api.JoinPath("repos", a.owner, a.name, "installation"), nil, &installation)
	if err != nil {
		return "", 0, err
	}
	may := "read"
	if a.cfg.Write {
		may = "write"
	}
	var made struct {
		Token   string
		Expires time.Time `json:"expires_at"`
	}
	answered, err := a.do(ctx, signed, http.MethodPost, a.api.JoinPath("app", "installations", fmt.Sprint(installation.ID), "access_tokens"), map[string]any{
		"repositories": []string{a.name}, "permissions": map[string]string{"contents": may},
	}, &made)
	switch {
	case err != nil:
		return "", 0, err
	case made.Token == "" || !made.Expires.After(answered):
		return "", 0, fmt.Errorf("%s gave no token that is good", a.api.Host)
	}
	return made.Token, made.Expires.Sub(answered), nil
}

// maxAnswer bounds an answer in bytes.
const maxAnswer = 1 << 20

// do sends a request and decodes the answer. It returns GitHub's time, which the dates in it go by.
func (a *App) do(ctx context.Context, signed, method string, to *url.URL, body, into any) (time.Time, error) {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return time.Time{}, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(content))
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Authorization", "Bearer "+signed)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	res, err := a.client.Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s %s: %w", method, to, err)
	}
	if res.StatusCode/100 != 2 {
		return time.Time{}, a.refused(res, to, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return time.Time{}, fmt.Errorf("%s %s: the answer is not that of GitHub's API", method, to)
	}
	now, err := http.ParseTime(res.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return now, nil
}

// refused returns the error for an answer that is no success.
func (a *App) refused(res *http.Response, to *url.URL, text []byte) error {
	var answer struct{ Message string }
	_ = json.Unmarshal(text, &answer) // then the status has to do
	said := res.Status
	if answer.Message != "" {
		said = fmt.Sprintf("%s: %.200q", said, answer.Message)
	}
	advice := ""
	switch res.StatusCode {
	case http.StatusUnauthorized:
		advice = "check the app's ID, that the key is one of this app's, and the clock of this machine"
	case http.StatusNotFound:
		advice = fmt.Sprintf("install the app for %s/%s", a.owner, a.name)
	case http.StatusUnprocessableEntity:
		right := "read"
		if a.cfg.Write {
			right = "read and write"
		}
		advice = fmt.Sprintf("give the app the right to %s the contents of repositories, and have the installation accept that; if the repository was renamed, use its new name in --repo", right)
	}
	return fmt.Errorf("%s answers %s; %s", to.Host, said, cmp.Or(advice, "it is asked again"))
}
