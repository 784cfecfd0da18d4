package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/glance"
	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources/git"
)

// defaultListen is where `gitopsd run` serves, and `gitopsd status` asks.
const defaultListen = "127.0.0.1:8080"

type statusOptions struct {
	address   string
	tokenFile string
	daemons   bool // tokenFile is the value of the variable, which the daemon shares
	clusters  []string
	output    outputFlag
	exitcode  bool
	all       bool
	wait      waitOptions
	// tree is only for completion.
	tree treeOptions
}

func newStatus(g *global) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the fleet, as a running daemon has it",
		Long: `Status shows the /status of a daemon: the commit, which clusters are Ready with it, what
is wrong with the others, and which packages run in another version than the wanted
one. In a fleet of more than 20 clusters those that agree share a line. It reads no
repository and no cluster.

The daemon is asked at --address, by default where ` + "`gitopsd run`" + ` serves on the same
machine. To reach a daemon in a cluster, run

    kubectl -n gitopsd-system port-forward service/gitopsd-status 8080

or name its URL, with the token of its --status-token-file.

With --wait it waits until the daemon has polled the repository since the command
began, every cluster is Ready with the commit that it found, and its lock is committed. So
everything that was pushed before is applied. It ends early, with an error, if what is held or refused needs a
change in the repository or a cluster. Suspended clusters do not count. With --cluster
only the named clusters count, with the lock, even if they are suspended.

The exit status is 0 if the daemon answered, or 1 for an error; with --wait it is 1
if not everything is Ready in time, and with --detailed-exitcode 2 if not everything
is Ready.`,
		Example: `  gitopsd status
  gitopsd status --wait --timeout 10m
  gitopsd status --address https://gitopsd.example.org --status-token-file token -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd, g) },
	}
	f := cmd.Flags()
	f.StringVar(&o.address, "address", defaultListen, "host:port or URL of the daemon, as its --listen has it")
	f.StringVar(&o.tokenFile, "status-token-file", "", "file with the bearer token of the daemon's --status-token-file, for a daemon on another machine")
	o.tree.registerClusters(cmd, &o.clusters, "all")
	o.output.register(cmd, "text", "json")
	o.wait.register(f, "wait until everything is Ready, and exit with status 1 if it is not")
	f.BoolVar(&o.exitcode, "detailed-exitcode", false, "exit with status 2 if not everything is Ready")
	f.BoolVar(&o.all, "all", false, "show every cluster, problem and note instead of folding long lists (text)")
	return cmd
}

func (o *statusOptions) run(cmd *cobra.Command, g *global) error {
	if err := o.output.check(); err != nil {
		return err
	}
	patience, err := o.wait.patience(cmd.Flags())
	if err != nil {
		return err
	}
	address, err := statusURL(o.address)
	if err != nil {
		return err
	}
	o.daemons = annotated(cmd.Flags().Lookup("status-token-file"), fromVariable)
	if _, err := o.token(); err != nil {
		return err // waiting does not help
	}
	var s *status.Snapshot
	var unready []string
	if patience > 0 {
		s, unready, err = o.await(cmd, address, patience)
	} else if s, err = o.fetch(cmd.Context(), address); err == nil {
		unready = s.Unready(o.clusters...)
	}
	if err != nil {
		return err
	}
	if patience == 0 {
		if err := o.known(s); err != nil {
			return err
		}
	}
	if err := o.print(cmd.OutOrStdout(), g, s); err != nil {
		return err
	}
	switch {
	case len(unready) > 0 && patience > 0 && s.Stuck(o.clusters...):
		return fmt.Errorf("not everything is Ready, and waiting does not help: what is held or refused needs a change in the repository or the cluster: %s", some(unready))
	case len(unready) > 0 && patience > 0:
		return fmt.Errorf("not everything is Ready after %s: %s", patience, some(unready))
	case len(unready) > 0 && o.exitcode:
		return exitError(2)
	}
	return nil
}

// known returns an error if a named cluster is not in the snapshot.
func (o *statusOptions) known(s *status.Snapshot) error {
	for _, name := range o.clusters {
		if !slices.ContainsFunc(s.Clusters, func(u status.Unit) bool { return u.Name == name }) {
			return fmt.Errorf("--cluster %s: the daemon knows no such cluster", name)
		}
	}
	return nil
}

// some returns the first of several reasons.
func some(reasons []string) string {
	if more := len(reasons) - 1; more > 0 {
		return fmt.Sprintf("%s; and %d more", reasons[0], more)
	}
	return reasons[0]
}

// print writes the snapshot, without the clusters that were not asked for.
func (o *statusOptions) print(w io.Writer, g *global, s *status.Snapshot) error {
	if len(o.clusters) > 0 {
		asked := *s
		asked.Clusters = slices.DeleteFunc(slices.Clone(s.Clusters), func(u status.Unit) bool { return !slices.Contains(o.clusters, u.Name) })
		asked.Problems = slices.DeleteFunc(slices.Clone(s.Problems), func(p problem.Shared) bool { return !p.Concerns(o.clusters) })
		s = &asked
	}
	if o.output.format == "json" {
		return show.JSON(w, s)
	}
	return glance.WriteText(w, s, show.Options{Colour: g.colour(w), Width: columns(w), All: o.all})
}

// askPause is how long --wait waits before it asks again.
const askPause = 500 * time.Millisecond

// stuckPatience is how long --wait waits for a fleet that waiting does not make Ready: a daemon
// needs a moment to see that somebody has undone what it reports.
const stuckPatience = 5 * time.Second

// await asks until everything is Ready or the time is over. It returns the last answer, and
// what is not Ready. A daemon that does not answer may be about to start.
func (o *statusOptions) await(cmd *cobra.Command, address string, patience time.Duration) (last *status.Snapshot, unready []string, err error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	p := startProgress(cmd.ErrOrStderr())
	defer p.stop()
	p.step("waiting until everything is Ready")
	var since time.Time
	stuckSince := time.Now()
	for {
		s, failed := o.fetch(ctx, address)
		polled := false // since the command began
		switch {
		case errors.Is(failed, errNotAllowed):
			return nil, nil, failed
		case failed == nil:
			if since.IsZero() {
				since = s.Time
			}
			last, unready = s, s.Unready(o.clusters...)
			polled = s.Polled.After(since) || s.PollLasting && s.PollFailed.After(since)
			if s.PollError == "" && !polled {
				unready = append(unready, "the daemon has not polled the repository since")
			}
		}
		if failed != nil || !polled || !last.Stuck(o.clusters...) {
			stuckSince = time.Now()
		}
		if failed == nil && (len(unready) == 0 || time.Since(stuckSince) > stuckPatience) {
			return last, unready, nil
		}
		select {
		case <-time.After(askPause):
			continue
		case <-ctx.Done():
		}
		switch {
		case cmd.Context().Err() != nil:
			return nil, nil, cmd.Context().Err()
		case last == nil:
			return nil, nil, fmt.Errorf("no daemon answered in %s: %w", patience, failed)
		case failed != nil && !errors.Is(failed, context.DeadlineExceeded):
			unready = []string{failed.Error()}
		}
		return last, unready, nil
	}
}

// statusURL returns the URL of /status at an address.
func statusURL(address string) (string, error) {
	text := address
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", fmt.Errorf("--address %q: want host:port, or a URL such as https://gitopsd.example.org", git.Shown(address))
	}
	if host, port, err := net.SplitHostPort(u.Host); err == nil && host == "" {
		u.Host = net.JoinHostPort("127.0.0.1", port) // as --listen :8080 is reached from here
	}
	if u.Path = strings.TrimSuffix(u.Path, "/"); strings.HasSuffix(u.Path, "/status") {
		return u.String(), nil
	}
	return u.JoinPath("status").String(), nil
}

// here reports whether a daemon's address is this machine or pod.
func here(address string) bool {
	text, err := statusURL(address)
	if err != nil {
		return false
	}
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// errNotAllowed is the error if the daemon wants a different token.
var errNotAllowed = errors.New("the daemon refuses access")

// mostStatus bounds a daemon's answer, in bytes.
const mostStatus = 256 << 20

// token reads the token, which may be renewed at any time. It is empty without a file.
func (o *statusOptions) token() (string, error) {
	if o.tokenFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(o.tokenFile)
	if errors.Is(err, fs.ErrNotExist) && o.daemons && here(o.address) {
		return "", nil // its Secret is optional, and nobody needs a token in its pod
	}
	if err != nil {
		return "", fmt.Errorf("--status-token-file: %w", err)
	}
	// While it is replaced, the daemon's file has both.
	token, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if token = strings.TrimSpace(token); token == "" || strings.ContainsFunc(token, unicode.IsSpace) {
		return "", fmt.Errorf("--status-token-file %s: want a token in one line", o.tokenFile)
	}
	return token, nil
}

// fetch asks once.
func (o *statusOptions) fetch(ctx context.Context, address string) (*status.Snapshot, error) {
	const timeout = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("--address: %w", err)
	}
	request.Header.Set("User-Agent", userAgent())
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// A redirect must not take the token to another server.
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("no daemon answers at %s: %w; name its address with --address, or forward a port to it: kubectl -n gitopsd-system port-forward service/gitopsd-status 8080", address, failed.Err)
	} else if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("%s: %w: give the file with its token (--status-token-file), or forward a port to it", address, errNotAllowed)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s, but is not gitopsd; name the daemon's address with --address", address, response.Status)
	}
	s := new(status.Snapshot)
	if err := json.NewDecoder(io.LimitReader(response.Body, mostStatus)).Decode(s); err != nil {
		return nil, fmt.Errorf("%s: the answer is not a daemon's status: %w", address, err)
	}
	if s.Started.IsZero() || s.Repository == "" {
		return nil, fmt.Errorf("%s answers, but is not gitopsd; name the daemon's address with --address", address)
	}
	return s, nil
}
