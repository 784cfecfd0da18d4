package testscripts

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/testscripts/registry"
)

// registryName is the registry's name in scripts, which so need not know its port.
// GITOPSD_REGISTRY_MIRROR makes the script's registry a mirror of it.
const registryName = "registry.example.org"

// defaultAccount is the account that a registry requires. The script is logged in with
// it unless it says otherwise.
const defaultAccount = "robot:an-account-of-the-script"

// scriptRegistry is a script's registry, with functions that remove its faults.
type scriptRegistry struct {
	*registry.Registry
	heal []func()
}

func serveRegistry(_ context.Context, s *scenario, c *call) error {
	var auth string
	var plain bool
	err := c.flags(func(f *flag.FlagSet) {
		f.StringVar(&auth, "auth", "", "")
		f.BoolVar(&plain, "plain", false, "")
	}, 0, 0)
	if err != nil {
		return err
	}
	if s.registry != nil {
		return errors.New("a registry is there already")
	}
	var cfg registry.Config
	account := cmp.Or(auth, defaultAccount)
	if !plain {
		cfg.TLS, cfg.Auth = true, registry.TokenAuth
		cfg.Username, cfg.Password, _ = strings.Cut(account, ":")
	}
	r, err := registry.New(cfg)
	if err != nil {
		return err
	}
	s.registry = &scriptRegistry{Registry: r}
	c.ts.Setenv("REGISTRY", r.Host())
	c.ts.Setenv("GITOPSD_REGISTRY_MIRROR", registryName+"="+r.Host())
	if !plain && auth == "" {
		if err := s.login(c, account); err != nil {
			return err
		}
	}
	return s.trust(r.CA())
}

// needRegistry returns an error unless a registry is served.
func (s *scenario) needRegistry() error {
	if s.registry == nil {
		return errors.New("no registry is there yet")
	}
	return nil
}

// loginRegistry writes what `docker login` writes.
func loginRegistry(_ context.Context, s *scenario, c *call) error {
	if err := s.needRegistry(); err != nil {
		return err
	}
	if !strings.Contains(c.args[0], ":") {
		return errUsage
	}
	return s.login(c, c.args[0])
}

func (s *scenario) login(c *call, account string) error {
	type entry struct {
		Auth string `json:"auth"`
	}
	text, err := json.Marshal(map[string]map[string]entry{"auths": {
		s.registry.Host(): {base64.StdEncoding.EncodeToString([]byte(account))},
	}})
	if err != nil {
		return err
	}
	dir := c.ts.Getenv("DOCKER_CONFIG")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)
}

func breakRegistry(_ context.Context, s *scenario, c *call) error {
	if err := s.needRegistry(); err != nil {
		return err
	}
	var fault registry.Fault
	err := c.flags(func(f *flag.FlagSet) {
		f.StringVar(&fault.Method, "method", "", "")
		f.IntVar(&fault.Times, "times", 0, "")
	}, 2, 2)
	if err != nil {
		return err
	}
	fault.Path = c.args[0]
	kind, value, _ := strings.Cut(c.args[1], "=")
	switch kind {
	case "status":
		fault.Status, err = number(value)
	case "hang":
		fault.Hang = true
	case "cut":
		fault.DropAfter, err = number(value)
	case "drip":
		fault.Drip, err = time.ParseDuration(value)
	case "corrupt":
		fault.Corrupt = true
	case "digest":
		fault.Digest = value
	default:
		return fmt.Errorf("fault %q: want status=CODE, hang, cut=BYTES, drip=DURATION, corrupt or digest=DIGEST", c.args[1])
	}
	if err != nil {
		return err
	}
	s.registry.heal = append(s.registry.heal, s.registry.Break(fault))
	return nil
}

func healRegistry(_ context.Context, s *scenario, c *call) error {
	if err := s.needRegistry(); err != nil {
		return err
	}
	for _, heal := range s.registry.heal {
		heal()
	}
	s.registry.heal = nil
	return nil
}

func registryRequests(_ context.Context, s *scenario, c *call) error {
	if err := s.needRegistry(); err != nil {
		return err
	}
	requests := s.registry.Requests()
	s.registry.ResetCounts()
	delete(requests, "GET /token") // tokens follow from the other requests, once or twice
	printRequests(c, requests)
	return nil
}

// printRequests prints each request with its count.
func printRequests(c *call, requests map[string]int) {
	for _, r := range slices.Sorted(maps.Keys(requests)) {
		fmt.Fprintf(c.out, "%d %s\n", requests[r], r)
	}
}
