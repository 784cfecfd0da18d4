package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/hub"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/sources/githubapp"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/sources/signature"
	"gitopsd.dev/sources/xpkg"
)

// registryOptions are the flags of every command that reads packages.
type registryOptions struct {
	// hub has the Secrets that packages name; may be nil.
	hub *hub.Hub
	// vendor is the directory of the fleet repository to read packages from; empty for
	// registries.
	vendor string
	// offline reads packages from the cache only.
	offline bool
	// approve is set by commands that write a lock for a person to commit.
	approve bool

	cacheDir   string
	caFile     string
	mirrors    []string
	secretsDir string
	trustRoot  string
	// remoteBases are the prefixes of allowed repositories, gitCAFile is for fetching
	// from them.
	remoteBases []string
	gitCAFile   string
	// local are unpublished packages on this machine, for a plan.
	local []desired.Local
	// packageTimeout bounds the time for one package.
	packageTimeout time.Duration
}

// register adds the flags of commands that resolve what clusters declare.
func (o *registryOptions) register(cmd *cobra.Command) {
	o.registerOnline(cmd)
	cmd.Flags().StringVar(&o.vendor, "vendor", "", "directory of the fleet repository to read packages from, as gitopsd lock vendor writes it; no registry is asked then")
	refuseEmpty(cmd.Flags(), "vendor")
}

// registerOnline adds the flags of commands that resolve what clusters declare, and that
// need registries.
func (o *registryOptions) registerOnline(cmd *cobra.Command) {
	o.registerClient(cmd)
	f := cmd.Flags()
	f.StringVar(&o.secretsDir, "secrets-dir", "", "directory with the pull secrets and public keys that packages name: a directory for each Secret with a file for each key, as Kubernetes mounts them")
	f.StringVar(&o.trustRoot, "trust-root", "", "trusted_root.json of the Sigstore instance that keyless signatures are verified with")
	f.DurationVar(&o.packageTimeout, "package-timeout", resolve.DefaultTimeout, "longest time to resolve, verify and fetch one package; after that the package has an error, and is tried again")
	f.StringSliceVar(&o.remoteBases, "allow-remote-bases", nil, "URL prefix of repositories whose remote bases are allowed, by the full hash of a commit, as in https://github.com/kubernetes-sigs/; they are fetched without credentials. May be given more than once")
	_ = cmd.MarkFlagDirname("secrets-dir") // an error means that the flag does not exist
	annotate(f, "secrets-dir", mustExist)
	annotate(f, "trust-root", mustExist)
}

// registerClient adds the flags of commands that talk to registries.
func (o *registryOptions) registerClient(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.cacheDir, "cache-dir", "", "directory of the cache; it may be deleted at any time (default $XDG_CACHE_HOME/gitopsd)")
	f.StringVar(&o.caFile, "registry-ca-file", "", "PEM file of authorities to trust beside the system's, for registries; read for each request")
	f.StringSliceVar(&o.mirrors, "registry-mirror", nil, "registry=host[:port]: mirror to fetch a registry's packages from; they are checked by digest")
}

// cache returns the directory of one part of the cache.
func (o *registryOptions) cache(part string) (string, error) {
	dir := o.cacheDir
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no directory for the cache: %w; name one with --cache-dir", err)
		}
		dir = filepath.Join(base, "gitopsd")
	}
	return filepath.Join(dir, part), nil
}

// client returns the client of registries.
func (o *registryOptions) client(log *slog.Logger) (*oci.Client, error) {
	dir, err := o.cache("oci")
	if err != nil {
		return nil, err
	}
	mirrors := make(map[string]string)
	for _, m := range o.mirrors {
		registry, host, ok := strings.Cut(m, "=")
		if !ok || registry == "" || host == "" || strings.Contains(m, "/") {
			return nil, fmt.Errorf("--registry-mirror %q: want registry=host[:port]", git.Shown(m))
		}
		registry = strings.ToLower(registry)
		if other, twice := mirrors[registry]; twice && other != host {
			return nil, fmt.Errorf("--registry-mirror: registry %s has two mirrors, %s and %s", registry, other, host)
		}
		mirrors[registry] = host
	}
	return oci.New(oci.Config{CacheDir: dir, CAFile: o.caFile, Mirrors: mirrors, UserAgent: userAgent(), Log: log})
}

// packages returns the configuration for resolving, verifying and fetching packages
// from registries, or with --offline from the cache.
func (o *registryOptions) packages(log *slog.Logger) (resolve.Config, error) {
	client, err := o.client(log)
	if err != nil {
		return resolve.Config{}, err
	}
	if o.offline {
		client = client.Offline()
	}
	kept, err := o.cache("signatures")
	if err != nil {
		return resolve.Config{}, err
	}
	secrets := o.secrets()
	return o.packagesAt(log, secrets, kept, func(from sources.Origin) oci.Reader { return clientAt(client, secrets, from) }), nil
}

// packagesIn returns the configuration for packages of a commit: as packages does, or
// with --vendor from a directory of the commit.
func (o *registryOptions) packagesIn(files fs.FS, log *slog.Logger) (resolve.Config, error) {
	if o.vendor == "" {
		return o.packages(log)
	}
	layout, err := o.layout(files)
	if err != nil {
		return resolve.Config{}, err
	}
	kept, err := o.cache("signatures")
	if err != nil {
		return resolve.Config{}, err
	}
	return o.packagesAt(log, o.secrets(), kept, func(sources.Origin) oci.Reader { return layout }), nil
}

// layout opens the directory of a commit that --vendor names.
func (o *registryOptions) layout(files fs.FS) (oci.Reader, error) {
	dir, err := vendorDir(o.vendor)
	if err != nil {
		return nil, fmt.Errorf("--vendor %w", err)
	}
	return oci.OpenLayout(files, dir), nil
}

// clientAt returns a client with the credentials for an origin.
func clientAt(client *oci.Client, secrets *hub.Secrets, from sources.Origin) *oci.Client {
	names := from.Secrets()
	if len(names) == 0 {
		return client
	}
	return client.With(func(ctx context.Context) ([]*oci.Credentials, error) { return secrets.Pull(ctx, names) })
}

func (o *registryOptions) secrets() *hub.Secrets {
	return &hub.Secrets{Dir: o.secretsDir, Hub: o.hub}
}

// packagesAt returns the configuration for packages; at returns the reader for an origin. kept
// is the directory for the evidence of signatures; if empty, no evidence is kept.
func (o *registryOptions) packagesAt(log *slog.Logger, secrets *hub.Secrets, kept string, at func(sources.Origin) oci.Reader) resolve.Config {
	verifier := signature.New(signature.Config{Key: secrets.Key, TrustRootFile: o.trustRoot, Dir: kept, Log: log})
	return resolve.Config{
		Digest: func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error) {
			return at(from).Resolve(ctx, sources.Ref{Repository: from.Repository, Tag: tag})
		},
		Verify: func(ctx context.Context, from sources.Origin, d sources.Digest, policy *sources.Verification) (string, error) {
			return verifier.Verify(ctx, at(from), from.Repository, d, policy)
		},
		Fetch: func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			if from.RewrittenBy != "" {
				log.Info("fetching a package by the name that an ImageConfig gives it", "from", from.Repository, "imageConfig", from.RewrittenBy, "digest", d)
			}
			return xpkg.Read(ctx, at(from), from.Repository, d)
		},
		Tags: func(ctx context.Context, from sources.Origin) ([]string, error) {
			return at(from).Tags(ctx, from.Repository)
		},
		Platforms: func(ctx context.Context, from sources.Origin, d sources.Digest) ([]sources.Child, error) {
			return xpkg.Platforms(ctx, at(from), from.Repository, d)
		},
		Timeout: o.packageTimeout,
		Types:   func(pkg *sources.Package) (string, error) { return types.Package(pkg.Documents) },
	}
}

// computer returns the computer of desired states, for the named clusters or else for all.
func (o *registryOptions) computer(log *slog.Logger, mode resolve.Mode, update func(cluster, repository string) bool, only []string) (*desired.Computer, error) {
	all := desired.Config{Only: only, Local: o.local}
	decide := func(cfg resolve.Config, err error) (resolve.Config, error) {
		cfg.Mode, cfg.Update, cfg.Approve = mode, update, o.approve
		return cfg, err
	}
	var err error
	if o.vendor != "" {
		all.FromTree = func(files fs.FS) (resolve.Config, error) { return decide(o.packagesIn(files, log)) }
	} else if all.Resolve, err = decide(o.packages(log)); err != nil {
		return nil, err
	}
	if err := o.allowRemote(&all); err != nil {
		return nil, err
	}
	return desired.New(all), nil
}

// allowRemote sets up remote bases, if any are allowed.
func (o *registryOptions) allowRemote(cfg *desired.Config) error {
	if len(o.remoteBases) == 0 {
		return nil
	}
	var err error
	if cfg.Remote, err = remote.ParsePrefixes(o.remoteBases); err != nil {
		return fmt.Errorf("--allow-remote-bases %w", err)
	}
	dir, err := o.cache("trees")
	if err != nil {
		return err
	}
	trees, err := git.NewTrees(git.TreesConfig{Dir: dir, CAFile: o.gitCAFile, Allowed: cfg.Remote.Check})
	if err != nil {
		return err
	}
	cfg.FetchTree = trees.Fetch
	return nil
}

// gitOptions are the flags for a repository that is polled.
type gitOptions struct {
	url, branch             string
	username, passwordFile  string
	caFile, key, knownHosts string
	app, appKey             string
	openPGPKeys, sshSigners string // files with trusted keys
	signingKey              string
	name, mail              string
	pendingBranch           bool
}

func (o *gitOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.url, "repo", ".", "the fleet repository: https://…, ssh://…, user@host:path, file://… or a directory, by the git installed here")
	f.StringVar(&o.branch, "branch", "main", "branch to follow, and to commit clusters.lock to")
	f.StringVar(&o.username, "git-username", "", "user for HTTPS; with a token most forges need none")
	f.StringVar(&o.passwordFile, "git-password-file", "", "file with the password or token for HTTPS; read for each request (or GITOPSD_GIT_PASSWORD)")
	f.StringVar(&o.app, "github-app-id", "", "client ID or number of a GitHub App that is installed for the repository; it reads and pushes over HTTPS with tokens of its own")
	f.StringVar(&o.appKey, "github-app-key-file", "", "PEM file with that app's private key; read for each token")
	f.StringVar(&o.caFile, "git-ca-file", "", "PEM file of authorities to trust beside the system's, for Git over HTTPS; read for each request")
	f.StringVar(&o.key, "ssh-key", "", "private key file for Git over SSH")
	f.StringVar(&o.knownHosts, "ssh-known-hosts", "", "known_hosts file for Git over SSH")
	f.StringVar(&o.openPGPKeys, "trusted-openpgp-keys", "", "file of armored public keys, as gpg --armor --export prints them: act only on commits that are signed by one of them, or by a --trusted-ssh-signers")
	f.StringVar(&o.sshSigners, "trusted-ssh-signers", "", "file in the format of git's gpg.ssh.allowedSignersFile: act only on commits that are signed by one of its keys, or by one of --trusted-openpgp-keys")
	f.StringVar(&o.signingKey, "signing-key", "", "SSH private key file to sign the commits of clusters.lock with")
	// So that an empty variable, of a script or a manifest, does not trust everybody.
	refuseEmpty(f, "trusted-openpgp-keys", "trusted-ssh-signers", "signing-key")
	annotate(f, "trusted-openpgp-keys", emptyCounts)
	annotate(f, "trusted-ssh-signers", emptyCounts)
	f.StringVar(&o.name, "commit-name", "gitopsd", "name in the commits of clusters.lock")
	f.StringVar(&o.mail, "commit-mail", "gitopsd@localhost", "mail address in the commits of clusters.lock")
	f.BoolVar(&o.pendingBranch, "pending-branch", false, "keep uncommitted records on the branch gitopsd/pending instead of refs/gitopsd/pending")
}

// trusts reports whether the daemon acts only on commits that are signed by trusted keys.
func (o *gitOptions) trusts() bool { return o.openPGPKeys != "" || o.sshSigners != "" }

// checkSigning returns an error if the daemon would commit locks that it does not accept itself.
func (o *gitOptions) checkSigning(readonly bool) error {
	if !o.trusts() || o.signingKey != "" || readonly {
		return nil
	}
	return errors.New("--trusted-openpgp-keys and --trusted-ssh-signers need --signing-key, since the daemon's own commits of clusters.lock must be signed, too; make a key with ssh-keygen -t ed25519 -N \"\" -f FILE, or use --lock readonly")
}

// locate replaces a directory by the root of its repository, so that a repository has one
// cache wherever gitopsd is started.
func (o *gitOptions) locate() error {
	if o.url == "" {
		return errors.New("--repo is empty: name the fleet repository, for instance https://git.example.org/platform/fleet.git")
	}
	if info, err := os.Stat(o.url); strings.Contains(o.url, "://") || err != nil || !info.IsDir() {
		return nil
	}
	dir, err := git.OpenDir(o.url)
	if errors.Is(err, git.ErrRepositoryNotFound) {
		return fmt.Errorf("--repo %s: %w; go to a fleet repository, or name one, for instance https://git.example.org/platform/fleet.git", o.url, err)
	} else if err != nil {
		return fmt.Errorf("--repo: %w", err)
	}
	o.url = dir.Root
	return dir.Close()
}

// tellWorkTree logs what a work tree has that is not followed: another branch, and changes that
// are not committed.
func (o *gitOptions) tellWorkTree(ctx context.Context, log *slog.Logger) {
	dir, err := git.OpenDir(o.url)
	if err != nil {
		return // a URL, or what git says more about
	}
	defer dir.Close()
	changed, err := dir.Uncommitted(ctx)
	if err != nil {
		return // a bare repository
	}
	head, err := dir.Head()
	switch {
	case err != nil:
	case head == "":
		log.Warn("HEAD is no branch; following " + o.branch)
	case head != o.branch:
		log.Warn("HEAD is " + head + "; following " + o.branch)
	}
	if changed {
		log.Warn("the work tree has uncommitted changes, which are not followed")
	}
}

// open opens the repository; write reports whether gitopsd is to push to it.
func (o *gitOptions) open(env *Env, cacheDir string, write bool, mayPush func(context.Context) error, log *slog.Logger) (*git.Repository, error) {
	cfg := git.Config{
		URL: o.url, Branch: o.branch, Dir: cacheDir,
		Username: o.username, Password: env.getenv(passwordVariable), PasswordFile: o.passwordFile,
		CAFile: o.caFile, SSHKeyFile: o.key, KnownHostsFile: o.knownHosts,
		TrustedOpenPGPKeys: o.openPGPKeys, TrustedSSHSigners: o.sshSigners, SigningKeyFile: o.signingKey,
		Name: o.name, Mail: o.mail, PendingBranch: o.pendingBranch, MayPush: mayPush, Log: log,
	}
	switch {
	case (o.app == "") != (o.appKey == ""):
		return nil, errors.New("--github-app-id and --github-app-key-file go together: set both")
	case o.app != "" && (cfg.Username != "" || cfg.Password != "" || cfg.PasswordFile != ""):
		return nil, errors.New("--github-app-id makes its own tokens: leave out --git-username, --git-password-file and " + passwordVariable)
	case o.app != "":
		app, err := githubapp.New(githubapp.Config{ID: o.app, KeyFile: o.appKey, Repository: o.url, Write: write, CAFile: o.caFile, Log: log})
		if err != nil {
			return nil, fmt.Errorf("--github-app-id: %w", err)
		}
		cfg.Username, cfg.Token = githubapp.Username, app.Token
	}
	return git.Open(cfg)
}

// outputFlag is the flag for the format of a command's result.
type outputFlag struct {
	format  string
	formats []string
}

// register adds the flag; the first of the formats is the default.
func (o *outputFlag) register(cmd *cobra.Command, formats ...string) {
	o.formats = formats
	cmd.Flags().StringVarP(&o.format, "output", "o", formats[0], o.choice())
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // an error means that the flag does not exist
}

func (o *outputFlag) check() error {
	if slices.Contains(o.formats, o.format) {
		return nil
	}
	return fmt.Errorf("--output %q: use %s", o.format, o.choice())
}

// document reports whether the result is a document, which has the errors too: programs and
// comments on pull requests show nothing else.
func (o *outputFlag) document() bool { return o.format != "text" }

// problemTexts returns the problems in an error, for a document.
func problemTexts(err error) []string {
	var all []string
	for _, p := range problem.Of(err) {
		all = append(all, p.String())
	}
	return all
}

// choice returns the formats in words: "text, json or markdown".
func (o *outputFlag) choice() string {
	last := len(o.formats) - 1
	return strings.Join(o.formats[:last], ", ") + " or " + o.formats[last]
}
