package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"gitopsd.dev/reconcile"
	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/etcd/connect"
	"gitopsd.dev/reconcile/etcd/namespaces"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/hub"
	"gitopsd.dev/reconcile/hub/events"
	"gitopsd.dev/reconcile/hub/leader"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/receiver"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

type runOptions struct {
	git            gitOptions
	registry       registryOptions
	kubeconfigDir  string
	hub, namespace string
	inCluster      bool
	interval       time.Duration
	clusterTimeout time.Duration
	once           bool
	wait           waitOptions
	lock           string
	takeOver       []string
	certificates   certificateOptions
	migrations     migrate.KeeperConfig
	conversions    conversionOptions
	targets        targetOptions
	etcd           etcdOptions
	lease          leaseOptions
	listen         string
	pushSecret     string // a file
	access         status.Access
}

func newRun(g *global) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Follow a fleet repository and keep its clusters as it declares",
		Long: `Run polls a branch of the fleet repository: the one in the current directory, or
the one that --repo names. For each new commit it resolves and verifies the packages,
renders every registered cluster and applies what differs. If clusters.lock
changed, it commits that file back, on the newest head and never by force.
Between commits it corrects drift in the clusters.

A cluster that is down, or a package or manifest with errors, is reported and
delays nothing else. All state is in the repository and in the clusters: the
daemon may be killed at any time. --cache-dir makes the next start faster: if the
commit is the same and the clusters are as they were left, no package is read.

With --trusted-openpgp-keys or --trusted-ssh-signers it acts only on commits that are
signed by one of these keys, and signs its own with --signing-key. The fleet stays at the
last such commit; ` + "`gitopsd status`" + ` says what is wrong with a newer one. The files may
be replaced at any time.

With --conversion-listen it converts objects by conversion rules for the clusters that
reach it by URL (spec.conversion.url). It serves old rules for ten minutes more, and as
long as a cluster uses them. Clusters with spec.conversion.service run their own server.

With --etcd-servers or --etcd-embedded it provisions the EtcdNamespaces of clusters in
that etcd. With --etcd-proxy-listen it serves the namespaces of clusters that reach it by
URL (spec.etcd.proxy.url); proxies in the clusters serve the others.

With --lease several daemons can run, of which one works. The others wait, and one of
them takes over when that ends, or does not renew the Lease any more. One that cannot renew it
writes nothing.

With --once it makes one pass and ends; with --wait it goes on until everything is
Ready, or until only a change in the repository or a cluster can make it so.

On --listen it serves /healthz, /readyz, /metrics (Prometheus) and /status, which
` + "`gitopsd status`" + ` shows. Requests for the last two from other machines or pods need the
token in --status-token-file; kubectl port-forward does not.`,
		Example: `  gitopsd run --repo https://git.example.org/platform/fleet.git --git-password-file /etc/gitopsd/token
  gitopsd run --repo git@git.example.org:platform/fleet.git --ssh-key id_ed25519 --ssh-known-hosts known_hosts
  gitopsd run --kubeconfig-dir ~/.kube/fleet --once --wait`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd, g) },
	}
	f := cmd.Flags()
	o.git.register(cmd)
	o.registry.register(cmd)
	f.StringVar(&o.kubeconfigDir, "kubeconfig-dir", "", "directory that spec.kubeconfig.file of clusters is relative to")
	f.StringVar(&o.hub, "kubeconfig", "", "kubeconfig file of the hub, where kubeconfigs, pull secrets and public keys are Secrets (default: the cluster that the daemon runs in)")
	annotate(f, "kubeconfig", mustExist)
	f.StringVar(&o.namespace, "namespace", "", "namespace of the Secrets in the hub (default: the daemon's own, else gitopsd-system)")
	f.BoolVar(&o.inCluster, "allow-in-cluster", false, "allow clusters registered with spec.kubeconfig.inCluster")
	f.DurationVar(&o.interval, "interval", 30*time.Second, "time between polls")
	f.DurationVar(&o.clusterTimeout, "cluster-timeout", reconcile.DefaultClusterTimeout, "longest time for one attempt to apply to a cluster, waits included")
	registerTakeOver(cmd, &o.takeOver)
	o.certificates.register(f)
	f.Float64Var(&o.migrations.Rate, "migrate-rate", migrate.DefaultRate, "objects to store again in a second, in each cluster, for definitions annotated with "+manifest.MigrateStorageAnnotation+"; not for Kubernetes' own migration")
	f.DurationVar(&o.migrations.Settle, "migrate-settle", migrate.DefaultSettle, "how long that waits after a change of the definition: longer than a request, and longer than an API server is behind")
	o.conversions.register(f)
	o.targets.register(f)
	o.etcd.registerDaemon(f)
	o.lease.register(f)
	f.BoolVar(&o.once, "once", false, "make one pass and exit, with status 1 if anything failed")
	o.wait.register(f, "with --once: wait after the pass until everything is Ready, and exit with status 1 if it is not")
	annotate(f, "wait", needs, "once")
	f.StringVar(&o.lock, "lock", "update", "what to do about missing records: update (add and commit them) or readonly (refuse such packages)")
	f.StringVar(&o.listen, "listen", defaultListen, "address to serve on, for instance :8080 for a kubelet's probes; empty for none")
	annotate(f, "listen", emptyCounts)
	f.StringVar(&o.access.TokenFile, "status-token-file", "", "file with the bearer token that /, /status and /metrics need from outside this machine or pod. With several, in a line each, any will do; read for each request")
	f.BoolVar(&o.access.Open, "status-open", false, "serve /, /status and /metrics to everybody who reaches --listen; they name clusters, packages and their problems")
	f.StringVar(&o.pushSecret, "push-secret-file", "", "file with the secret of a push webhook, which then is served at /push on --listen: the forge tells of a push, and the daemon polls at once. With several secrets, in a line each, any will do; read for each request")
	annotate(f, "push-secret-file", yields, "once")
	annotate(f, "lease", yields, "once")
	return cmd
}

func (o *runOptions) run(cmd *cobra.Command, g *global) error {
	ctx := cmd.Context()
	log := g.log(true)
	mode := resolve.Add
	switch o.lock {
	case "update":
	case "readonly":
		mode = resolve.Readonly
	default:
		return fmt.Errorf("--lock %q: use update or readonly", o.lock)
	}
	if !(o.migrations.Rate > 0) { // NaN is not
		return errors.New("--migrate-rate must be more than 0")
	}
	patience, err := o.wait.patience(cmd.Flags())
	if err != nil {
		return err
	}
	if o.wait.wait && !o.once {
		return errors.New("--wait is for --once; `gitopsd status --wait` waits for a daemon that runs")
	}
	if o.once && o.lease.name != "" {
		return errors.New("--lease is for a daemon; --once makes its pass whatever others do")
	}
	if o.lease.name != "" && o.etcd.embedded != "" {
		return errors.New("--lease and --etcd-embedded: the etcd in one daemon's directory has the only copy of the keys, and another daemon would serve an empty one; run one daemon, or an etcd of its own (--etcd-servers)")
	}
	switch {
	case o.pushSecret != "" && o.once:
		return errors.New("--push-secret-file is for a daemon; --once polls once")
	case o.pushSecret != "" && o.listen == "":
		return errors.New("--push-secret-file has the daemon listen for pushes, and --listen is empty: set it")
	}
	if o.interval < 100*time.Millisecond {
		return fmt.Errorf("--interval %s: at least 100ms", o.interval)
	}
	if err := o.etcd.checkDaemon(); err != nil {
		return err
	}
	if err := o.git.checkSigning(mode == resolve.Readonly); err != nil {
		return err
	}
	if err := o.git.locate(); err != nil {
		return err
	}
	o.git.tellWorkTree(ctx, log)
	// One process at a time may use a Git cache; each repository has its own.
	dir, err := o.registry.cache(filepath.Join("git", sources.DigestOf([]byte(o.git.url)).Short()))
	if err != nil {
		return err
	}
	own := hub.New(hub.Config{Kubeconfig: o.hub, Namespace: o.namespace, UserAgent: userAgent()})
	defer own.Close()
	var elected *leader.Leader
	var mayWrite func(context.Context) error // nil: always
	if o.lease.name != "" {
		mayWrite = func(ctx context.Context) error { return elected.MayWrite(ctx) }
	}
	repository, err := o.git.open(g.env, dir, o.lock != "readonly", mayWrite, log)
	if err != nil {
		return err
	}
	defer repository.Close()
	board := status.NewBoard(version(), repository.Describe(), o.git.branch)
	board.Page = showStatus
	if elected, err = o.lease.election(own, repository.Fleet(), log); err != nil {
		return err
	}
	if elected != nil {
		board.Election = elected
		o.etcd.intercept = []grpc.UnaryClientInterceptor{connect.Guard(mayWrite)}
	}
	if o.hub != "" || g.env.getenv("KUBERNETES_SERVICE_HOST") != "" {
		o.registry.hub = own // it runs in a cluster, or --kubeconfig names one
	}
	o.registry.gitCAFile = o.git.caFile
	computer, err := o.registry.computer(log, mode, nil, nil)
	if err != nil {
		return err
	}
	// By repository and branch: clusters of two fleets may have the same name.
	rest, err := o.registry.cache(filepath.Join("checkpoints", sources.DigestOf([]byte(o.git.url+"\x00"+o.git.branch)).Short()))
	if err != nil {
		return err
	}
	reach, err := kubeconfig.ParseReach(o.targets.addresses)
	if err != nil {
		return fmt.Errorf("--allow-addresses: %w", err)
	}
	// One that waits is ready only if it could work.
	if _, err := o.conversions.load(log); err != nil {
		return err
	}
	if o.etcd.proxyListen != "" && o.etcd.embedded == "" {
		if _, err := o.etcd.loadProxy(log); err != nil {
			return err
		}
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	fail := func(err error) { end(failed{err}) }
	pushes, err := o.pushes(elected, log)
	if err != nil {
		return err
	}
	show := func() {} // shows what is added to the board later
	if !o.once {
		var stop func()
		if show, stop, err = o.serve(board, pushes, log, fail); err != nil {
			return err
		}
		defer stop()
	}
	if elected != nil {
		leading, release, err := lead(ctx, elected, board, log)
		if err != nil {
			log.Info("gitopsd ends")
			return whyEnded(ctx) // otherwise it was told to
		}
		defer release()
		ctx = leading
	}
	converter, err := o.conversions.start(ctx, log, fail)
	if err != nil {
		return err
	}
	defer converter.stop()
	completers, err := o.certificates.completers(o.clusterTimeout, converter.daemon)
	if err != nil {
		return err
	}
	connector := &hub.Connector{Hub: own, Dir: o.kubeconfigDir, AllowInCluster: o.inCluster, MayWrite: mayWrite}
	fleet := apply.Fleet{Name: repository.Fleet(), Accepts: func(name string) bool {
		return repository.Accepts(name) || slices.Contains(o.takeOver, name)
	}}
	var daemon *reconcile.Daemon
	fleet.Supersedes = func(ctx context.Context, commit, applied string) error {
		return daemon.Supersedes(ctx, commit, applied)
	}
	turns := turn.New(16)
	spaces := new(etcdService)
	if !o.once { // one pass provisions nothing
		if spaces, err = o.etcd.start(ctx, fleet.Name, log, fail); err != nil {
			return err
		}
	}
	defer spaces.stop()
	completers = append(completers, spaces)
	controllers, err := o.targets.controllers(connector, reach, applicationsConfig(o.targets.accept(), reach, fleet, turns, o.clusterTimeout, mayWrite), namespaces.Config{Etcd: spaces.config})
	if err != nil {
		return err
	}
	var homes func(context.Context, *desired.Unit, bool, func([]problem.Problem)) (reconcile.Home, error)
	if !o.once { // one pass keeps no connections
		homes = func(ctx context.Context, want *desired.Unit, only bool, tell func([]problem.Problem)) (reconcile.Home, error) {
			client, err := connector.Connect(ctx, want.Cluster)
			if err != nil {
				return nil, err
			}
			running := controllers()
			if only { // while it is not known what is declared, this one changes nothing
				running = []home.Controller{namespaces.New(namespaces.Config{Etcd: spaces.config})}
			}
			return home.New(home.Config{Client: client, Controllers: running, Reserved: own.Namespace(), Tell: tell, Log: log.With("cluster", want.Name)})
		}
	}
	board.Conversions = converter.counts
	board.Spaces(spaces.problems)
	if spaces.proxy != nil {
		board.EtcdNamespaces = spaces.proxy.Counts
	}
	checkpoints := &checkpoint.Store{Dir: rest}
	registries := []reconcile.Registry{checkpoints}
	if elected != nil { // the process before may have run in another pod
		registries = []reconcile.Registry{&hub.Registry{Hub: own, Name: o.lease.name + "-registry", Fleet: fleet.Name, Accepts: fleet.Accepts, MayWrite: mayWrite}, checkpoints}
	}
	daemon, err = reconcile.New(reconcile.Config{
		Repository: repository, Computer: computer, Board: board, Log: log,
		Interval: o.interval, Pushed: pushes.C(), ClusterTimeout: o.clusterTimeout, ReadonlyLock: o.lock == "readonly",
		Checkpoints: checkpoints, Registries: registries, Settings: o.settings(cmd.Flags()),
		Connect: func(ctx context.Context, want *desired.Unit) (reconcile.Connection, error) {
			client, err := connector.Connect(ctx, want.Cluster)
			if err != nil {
				return nil, err
			}
			cfg := unit.Config{Unit: want.ID, Client: client, Fleet: fleet, Completers: completers, Alone: connector.Alone, Log: log}
			if converter.daemon != nil {
				cfg.Beside, cfg.Serve = converter.daemon.Follow(want.ID.String()), converter.daemon.Serve
			}
			if !o.once { // which ends before a migration does
				migrations, name := o.migrations, want.ID.String()
				migrations.Report = func(all []status.Migration) {
					board.Update(name, func(u *status.Unit) { u.Migrations = all })
				}
				cfg.Migrations = &migrations
			}
			return unit.New(cfg)
		},
		Credentials: connector.Version, Home: homes, Turns: turns, Attempted: spaces.attempted,
		Computed: func(s *desired.State) {
			converter.computed(s)
			spaces.computed(s)
		},
		Left: func(id desired.ID) {
			converter.left(id)
			spaces.left(id)
		},
	})
	if err != nil {
		return err
	}
	if o.once {
		err := daemon.Once(ctx, patience)
		return cmp.Or(whyEnded(ctx), err)
	}
	show()
	following, cancel := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { own.Follow(following, log) })
	if elected != nil {
		follower.Go(func() { events.Follow(following, o.lease.events(own, board, log)) })
	}
	defer follower.Wait()
	defer cancel()
	log.Info("gitopsd starts", "version", version(), "repository", repository.Describe(), "branch", o.git.branch, "interval", o.interval, "signatures-required", o.git.trusts())
	if err := daemon.Run(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); errors.Is(err, leader.ErrLost) {
		return fmt.Errorf("%w (Lease %s)", err, elected)
	}
	log.Info("gitopsd ends")
	return whyEnded(ctx)
}

// failed is the error of a server in this process that has ended by itself. Its clients have no
// other, and the daemon should be restarted.
type failed struct{ error }

// whyEnded returns the error of a server if ctx ended for it.
func whyEnded(ctx context.Context) error {
	if f, ok := errors.AsType[failed](context.Cause(ctx)); ok {
		return f.error
	}
	return nil
}

// pushes returns what receives push webhooks; nil without a secret.
func (o *runOptions) pushes(elected *leader.Leader, log *slog.Logger) (*receiver.Receiver, error) {
	if o.pushSecret == "" {
		return nil, nil
	}
	polls := func() bool { return true }
	if elected != nil {
		polls = func() bool {
			why, _ := elected.Waiting()
			return why == ""
		}
	}
	r, err := receiver.New(o.pushSecret, polls, log)
	if err != nil {
		return nil, fmt.Errorf("--push-secret-file: %w", err)
	}
	return r, nil
}

// serve serves the board, and pushes unless it is nil, until stop is called; fail is told if serving
// ends by itself. show makes what was added to the board since visible.
func (o *runOptions) serve(board *status.Board, pushes *receiver.Receiver, log *slog.Logger, fail func(error)) (show, stop func(), err error) {
	if o.listen == "" {
		return func() {}, func() {}, nil
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	// A pass waits for the slowest cluster only as long as the lock may be delayed. A loop
	// that takes much longer hangs.
	stall := 3*o.interval + 5*time.Minute
	var shown atomic.Value // http.Handler
	show = func() { shown.Store(board.Handler(stall, o.access)) }
	show()
	log.Info("serving", "address", listener.Addr().String())
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { shown.Load().(http.Handler).ServeHTTP(w, r) })
	if pushes != nil {
		mux.Handle("/push", pushes)
	}
	server := status.Serve(listener, mux, log, func(err error) { fail(fmt.Errorf("serving on %s: %w", listener.Addr(), err)) })
	return show, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // the process ends anyway
	}, nil
}
