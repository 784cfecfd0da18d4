package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// gitopsd runs a command line with the given environment.
func gitopsd(t *testing.T, environment map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = Run(t.Context(), Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err,
		LookupEnv: variables(environment)})
	return code, out.String(), err.String()
}

// variables returns a function that looks up variables.
func variables(environment map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	}
}

var noVariables = variables(nil)

// writeFile writes a file below a directory, and returns its path.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Each command has a help text that a person can follow, and the README lists it with
// the same summary.
func TestCommandsAreDocumented(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(&Env{LookupEnv: noVariables})
	listed := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `gitopsd ([a-z-]+)` \\| (.*) \\|$").FindAllStringSubmatch(string(readme), -1) {
		listed[m[1]] = m[2]
	}
	for _, c := range root.Commands() {
		want := strings.ToLower(c.Short[:1]) + c.Short[1:]
		if have := listed[c.Name()]; have != want && (have == "" || c.Name() != "completion") {
			t.Errorf("%s: the README says %q, the program %q", c.Name(), have, want)
		}
		delete(listed, c.Name())
	}
	if len(listed) > 0 {
		t.Errorf("the README has commands that the program has not: %v", listed)
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "completion" {
			return // cobra's own
		}
		if c.Short == "" || c.Name() != "version" && len(c.Long) < 80 {
			t.Errorf("%s: no help text to speak of", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// Help shows only flags that the command uses.
func TestHelpShowsFlagsThatAreUsed(t *testing.T) {
	for command, unused := range map[string][]string{
		"version": {"--log-format", "--verbose"}, "health": {"--log-format"}, "completion bash": {"--log-format"}, "lock merge": {"--log-format"},
		"bump": {"--vendor"}, "outdated": {"--vendor"}, "lock vendor": {"--vendor"}, "package build": {"--vendor", "--secrets-dir", "--trust-root", "--allow-remote-bases"},
		"types pin": {"--output"},
	} {
		code, stdout, stderr := gitopsd(t, nil, append(strings.Fields(command), "--help")...)
		if code != 0 || !strings.Contains(stdout, "--help") {
			t.Fatalf("%s: %d %s", command, code, stderr)
		}
		for _, flag := range unused {
			if regexp.MustCompile("(?m)^ +(-., )?" + flag + "\\b").MatchString(stdout) {
				t.Errorf("%s does not use %s, and its help lists it", command, flag)
			}
		}
	}
	if _, stdout, _ := gitopsd(t, nil, "plan", "--help"); !strings.Contains(stdout, "--log-format") || !strings.Contains(stdout, "--vendor") {
		t.Errorf("plan --help:\n%s", stdout)
	}
}

// In the help of a flag, pflag takes the first text between backquotes for the kind of value.
func TestHelpOfFlagsHasNoBackquotes(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Usage, "`") {
				t.Errorf("%s --%s: %s", c.CommandPath(), f.Name, f.Usage)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&Env{LookupEnv: noVariables}))
}

func TestFaults(t *testing.T) {
	empty := t.TempDir()
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want string
	}{
		{name: "unknown command", args: []string{"aply"}, want: `gitopsd has no command "aply"`},
		{name: "misspelt command", args: []string{"paln"}, want: "gitopsd has no command \"paln\"; did you mean plan?\nSee `gitopsd --help`"},
		{name: "argument of a command that has commands", args: []string{"lock", "dev"}, want: "gitopsd lock takes no argument \"dev\"; for a cluster write --cluster dev\nSee `gitopsd lock --help`"},
		{name: "a value beside its flag", args: []string{"lock", "--update", "reg.io/a"}, want: "gitopsd lock takes no argument \"reg.io/a\"; for the value of the flag write --update=reg.io/a\nSee"},
		{name: "another value beside its flag", args: []string{"lock", "--graph", "dot"}, want: "gitopsd lock takes no argument \"dot\"; for the value of the flag write --graph=dot"},
		{name: "a revision", args: []string{"plan", "main"}, want: "gitopsd plan takes no argument \"main\"; for a revision write --against main"},
		{name: "a directory", args: []string{"plan", "."}, want: "gitopsd plan takes no argument \".\"; for a directory write --repo ."},
		{name: "a misspelt cluster", args: []string{"plan", "prdo"}, want: "gitopsd plan takes no argument \"prdo\"; for a cluster write --cluster; did you mean prod?"},
		{name: "neither a cluster nor anything else", args: []string{"render", "whatever"}, want: "gitopsd render takes no argument \"whatever\"\nSee"},
		{name: "misspelt command before sources", args: []string{"types", "dif", "prod", "prod"}, want: "\"dif\" is neither a file, nor a registered cluster, nor a package: "},
		{name: "misspelt command before sources, meant", args: []string{"types", "dif", "prod", "prod"}, want: "; did you mean diff?"},
		{name: "a version behind a colon", args: []string{"bump", "reg.io:5000/a:v1.1.0"}, want: "reg.io:5000/a:v1.1.0: a version comes after an @: write gitopsd bump reg.io:5000/a@v1.1.0"},
		{name: "misspelt command of a command that does something itself", args: []string{"lock", "mrege"}, want: "gitopsd lock has no command \"mrege\"; did you mean merge?"},
		{name: "flag that is like none", args: []string{"why", "--field", "x"}, want: "unknown flag: --field\nSee"},
		{name: "misspelt command of a command", args: []string{"package", "biuld", "x"}, want: "gitopsd package has no command \"biuld\"; did you mean build?\nSee `gitopsd package --help`"},
		{name: "a cluster in the place of the flag", args: []string{"render", "dev"}, want: "gitopsd render takes no argument \"dev\"; for a cluster write --cluster dev"},
		{name: "an argument too many", args: []string{"version", "a", "b"}, want: `gitopsd version takes no arguments, have "a" "b"`},
		{name: "no argument", args: []string{"why"}, want: "an argument is missing: want gitopsd why OBJECT[:FIELD] | PACKAGE"},
		{name: "arguments too many", args: []string{"types", "diff", "a", "b", "c"}, want: `want gitopsd types diff OLD NEW, have "a" "b" "c"`},
		{name: "help for a misspelt command", args: []string{"help", "paln"}, want: "gitopsd has no command \"paln\"; did you mean plan?\nSee `gitopsd --help`"},
		{name: "help for a misspelt command of a command", args: []string{"help", "lock", "mrege"}, want: "gitopsd lock has no command \"mrege\"; did you mean merge?\nSee `gitopsd lock --help`"},
		{name: "a shell without completion", args: []string{"completion", "tcsh"}, want: `gitopsd completion has no command "tcsh"`},
		{name: "a package of no directory", args: []string{"package", "build", empty + "/none", "-o", "x"}, want: "stat " + empty + "/none: no such file or directory"},
		{name: "a package of a file", args: []string{"package", "build", "cli_test.go", "-o", "x"}, want: "cli_test.go is not a directory"},
		{name: "a package over its files", args: []string{"package", "build", "../../../examples/deploy", "-o", "../../../examples/deploy/rbac.yaml"}, want: "-o ../../../examples/deploy/rbac.yaml: the package is made of that file; name a new one, for instance deploy.xpkg"},
		{name: "unknown flag", args: []string{"plan", "--clutser", "a"}, want: "unknown flag: --clutser; did you mean --cluster?\nSee `gitopsd plan --help`"},
		{name: "no repository", args: []string{"run", "--repo", empty}, want: "nor a directory above it is one; go to a fleet repository, or name one"},
		{name: "an empty name of a repository", args: []string{"run", "--repo", ""}, want: "--repo is empty"},
		{name: "a flag that needs another", args: []string{"outdated", "--vendor", "packages"}, want: "unknown flag: --vendor"},
		{name: "no registry", args: []string{"plan", "--repo", empty}, want: empty + " is not in a fleet repository"},
		{name: "no directory", args: []string{"plan", "--repo", empty + "/none"}, want: "no such file or directory"},
		{name: "a URL for a directory", args: []string{"lock", "--repo", "https://git.example.org/x"}, want: "clone the repository first"},
		{name: "output", args: []string{"plan", "-o", "yaml"}, want: `--output "yaml": use text, json or markdown`},
		{name: "context", args: []string{"plan", "--context", "prod"}, want: `--context "prod": want cluster=context`},
		{name: "two mirrors", args: []string{"lock", "--repo", "../../..", "--registry-mirror", "reg.example.org=a,Reg.example.org=b"}, want: "--registry-mirror: registry reg.example.org has two mirrors, a and b"},
		{name: "mirror", args: []string{"lock", "--repo", "../../..", "--registry-mirror", "x"}, want: `--registry-mirror "x": want registry=host[:port]`},
		{name: "check and update", args: []string{"lock", "--check", "--update"}, want: "--check writes nothing"},
		{name: "graph", args: []string{"lock", "--graph=svg"}, want: "--graph=svg: use text or dot"},
		{name: "graph and check", args: []string{"lock", "--graph", "--check"}, want: "cannot be combined with --check, --update or --tidy"},
		{name: "bump without a package", args: []string{"bump"}, want: "name one package: gitopsd bump PACKAGE[@VERSION]"},
		{name: "bump two packages", args: []string{"bump", "a", "b"}, want: "name one package"},
		{name: "bump all and one", args: []string{"bump", "--all", "a"}, want: "--all moves every package"},
		{name: "bump without a version", args: []string{"bump", "a@"}, want: "no version after the @"},
		{name: "outdated output", args: []string{"outdated", "-o", "yaml"}, want: `--output "yaml": use text, json or markdown`},
		{name: "render without a cluster", args: []string{"render"}, want: "--cluster is required"},
		{name: "log format", args: []string{"version", "--log-format", "xml"}, want: `--log-format "xml": use text or json`},
		{name: "environment", env: map[string]string{"GITOPSD_INTERVAL": "soon"}, args: []string{"run"}, want: "environment variable GITOPSD_INTERVAL: "},
		{name: "interval", args: []string{"run", "--repo", empty, "--interval", "1ms"}, want: "--interval 1ms: at least 100ms"},
		{name: "negative time for a package", args: []string{"plan", "--package-timeout", "-1s"}, want: `invalid argument "-1s" for "--package-timeout" flag: must be more than 0`},
		{name: "negative time for a cluster", args: []string{"run", "--cluster-timeout=-1s"}, want: `for "--cluster-timeout" flag: must be more than 0`},
		{name: "no time for a cluster", args: []string{"run", "--cluster-timeout", "0"}, want: `for "--cluster-timeout" flag: must be more than 0`},
		{name: "no time to wait", args: []string{"status", "--wait", "--timeout", "0s"}, want: `for "--timeout" flag: must be more than 0`},
		{name: "negative time for authorities", args: []string{"run", "--certificate-settle=-1s"}, want: `for "--certificate-settle" flag: must not be less than 0`},
		{name: "no duration", args: []string{"run", "--interval", "30"}, want: `for "--interval" flag: "30" is not a duration, such as 90s or 1h30m`},
		{name: "time from the environment", env: map[string]string{"GITOPSD_PACKAGE_TIMEOUT": "-1s"}, args: []string{"plan"}, want: "environment variable GITOPSD_PACKAGE_TIMEOUT: "},
		{name: "no kubeconfig", args: []string{"plan", "--kubeconfig", empty + "/none"}, want: "--kubeconfig: stat " + empty + "/none: no such file or directory"},
		{name: "no pull secrets", args: []string{"lock", "--secrets-dir", empty + "/none"}, want: "--secrets-dir: stat " + empty + "/none: no such file or directory"},
		{name: "no trust root", args: []string{"run", "--once", "--trust-root", empty + "/none"}, want: "--trust-root: stat " + empty + "/none: no such file or directory"},
		{name: "a file that a daemon waits for", args: []string{"run", "--trust-root", empty + "/none", "--log-format", "text", "--interval", "1ms"}, want: "--interval 1ms: at least 100ms"},
		{name: "lock mode", args: []string{"run", "--repo", empty, "--lock", "maybe"}, want: `--lock "maybe": use update or readonly`},
		{name: "convert without rules", args: []string{"convert", "--to", "v2", "a.yaml"}, want: "-f is required: the file with the conversion rules"},
		{name: "convert to nothing", args: []string{"convert", "-f", "rules.yaml", "a.yaml"}, want: "--to is required: the version to convert to"},
		{name: "convert nothing", args: []string{"convert", "-f", "rules.yaml", "--to", "v2"}, want: "name the objects to convert"},
		{name: "convert and test", args: []string{"convert", "-f", "rules.yaml", "--test", "a", "--check"}, want: "--test runs the examples"},
		{name: "convert and check", args: []string{"convert", "-f", "rules.yaml", "--to", "v2", "--check"}, want: "--to is for converting"},
		{name: "rules that do not exist", args: []string{"convert", "-f", empty + "/none", "--check"}, want: "no such file or directory"},
		{name: "no rules", args: []string{"convert", "-f", "../../../examples/deploy", "--check"}, want: "there are no conversion rules"},
		{name: "two etcds", args: []string{"run", "--repo", empty, "--etcd-servers", "https://a:2379", "--etcd-embedded", empty}, want: "name an etcd, or a directory for one in gitopsd, and not both"},
		{name: "etcd without certificates", args: []string{"run", "--repo", empty, "--etcd-servers", "https://a:2379"}, want: "--etcd-cafile is required with --etcd-servers"},
		{name: "etcd without a CA for clients", args: []string{"run", "--repo", empty, "--etcd-servers", "https://a:2379", "--etcd-cafile", "a", "--etcd-certfile", "a", "--etcd-keyfile", "a"}, want: "--etcd-client-ca-cert is required with --etcd-servers"},
		{name: "certificates without an etcd", args: []string{"run", "--repo", empty, "--etcd-embedded", empty, "--etcd-keyfile", "a"}, want: "--etcd-keyfile is for --etcd-servers, which is not set"},
		{name: "etcd without TLS", args: []string{"etcd", "snapshot", "a", "--etcd-servers", "http://a:2379", "--etcd-cafile", "a", "--etcd-certfile", "a", "--etcd-keyfile", "a"}, want: `--etcd-servers "http://a:2379": want https://<host>:<port>`},
		{name: "etcd that listens nowhere", args: []string{"run", "--repo", empty, "--etcd-listen", "127.0.0.1:2379"}, want: "--etcd-listen is for --etcd-embedded"},
		{name: "prefixes of no etcd", args: []string{"run", "--repo", empty, "--etcd-allow-prefixes", "/a/"}, want: "need an etcd: set --etcd-servers or --etcd-embedded"},
		{name: "gitopsd's own prefix", args: []string{"run", "--repo", empty, "--etcd-embedded", empty, "--etcd-allow-prefixes", "/gitopsd.dev/ns/"}, want: `--etcd-allow-prefixes "/gitopsd.dev/ns/": want the beginning of keys`},
		{name: "all prefixes", args: []string{"run", "--repo", empty, "--etcd-embedded", empty, "--etcd-allow-prefixes", "/"}, want: `--etcd-allow-prefixes "/": want the beginning of keys`},
		{name: "snapshot of nothing", args: []string{"etcd", "snapshot", "a"}, want: "name the etcd: --etcd-embedded DIR, or --etcd-servers"},
		{name: "restore to nowhere", args: []string{"etcd", "restore", "a"}, want: "--etcd-embedded is required"},
		{name: "proxy of nothing", args: []string{"etcd-proxy"}, want: "--dir is required"},
		{name: "transport of a proxy without an address", args: []string{"run", "--repo", empty, "--etcd-proxy-grpc-go"}, want: "--etcd-proxy-listen, which is not set"},
		{name: "proxy of an empty directory", args: []string{"etcd-proxy", "--dir", empty}, want: "namespace.json: no such file or directory"},
		{name: "package without output", args: []string{"package", "build", empty}, want: "-o is required"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{"GITOPSD_CACHE_DIR": t.TempDir()}
			for k, v := range tt.env {
				env[k] = v
			}
			code, stdout, stderr := gitopsd(t, env, tt.args...)
			if warned := strings.Contains(stderr, `flag=--trust-root error="stat `); warned != strings.HasPrefix(tt.name, "a file that a daemon") {
				t.Errorf("stderr %q", stderr)
			} else if _, rest, ok := strings.Cut(stderr, "\n"); warned && ok {
				stderr = rest
			}
			if code != 1 || !strings.HasPrefix(stderr, "gitopsd: ") || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit status %d, stderr %q; want 1 and %q", code, stderr, tt.want)
			}
			if stdout != "" {
				t.Errorf("stdout %q", stdout)
			}
		})
	}
}

// With --log-format json the error that ends a command is a record, too.
func TestLastErrorIsLogged(t *testing.T) {
	code, _, stderr := gitopsd(t, nil, "run", "--log-format", "json", "--interval", "1ms")
	var record struct{ Level, Msg, Error string }
	if err := json.Unmarshal([]byte(stderr), &record); code != 1 || err != nil || record.Level != "ERROR" || record.Msg != "gitopsd failed" || record.Error != "--interval 1ms: at least 100ms" {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestVersion(t *testing.T) {
	_, want, _ := gitopsd(t, nil, "version")
	code, stdout, stderr := gitopsd(t, map[string]string{"GITOPSD_VERSION": "v1"}, "--version")
	if code != 0 || stdout != want || !strings.HasPrefix(stdout, "gitopsd ") || stderr != "" {
		t.Errorf("%d %q %q, want %q", code, stdout, stderr, want)
	}
	if code, stdout, stderr := gitopsd(t, map[string]string{"GITOPSD_VERSION": "v1"}); code != 0 || !strings.Contains(stdout, "Available Commands") {
		t.Errorf("%d %q", code, stderr)
	}
	for _, args := range [][]string{{"help"}, {"help", "lock", "merge"}, {"completion"}} {
		if code, stdout, stderr := gitopsd(t, nil, args...); code != 0 || !strings.Contains(stdout, "Usage:") {
			t.Errorf("%q: %d %q", args, code, stderr)
		}
	}
}

// fullDisk is a file on a disk with so many bytes left.
type fullDisk int

func (f *fullDisk) Write(p []byte) (int, error) {
	if len(p) > int(*f) {
		n := int(*f)
		*f = 0
		return n, errors.New("no space left on device")
	}
	*f -= fullDisk(len(p))
	return len(p), nil
}

// A result that could not be written is an error, whatever the command prints it with.
func TestResultsAreWritten(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "clusters.yaml", "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec: {path: dev, kubeconfig: {file: dev.yaml}}\n")
	writeFile(t, dir, "dev/kustomization.yaml", "resources: [cm.yaml]\n")
	writeFile(t, dir, "dev/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n")
	pod := writeFile(t, dir, "pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {phase: Pending}\n")
	for _, args := range []string{"--help", "help plan", "version", "completion bash", "lock --graph=dot", "render --cluster dev", "health " + pod} {
		for _, left := range []fullDisk{0, 3} {
			var stderr bytes.Buffer
			code := Run(t.Context(), Env{Args: strings.Fields(args), Stdin: strings.NewReader(""), Stdout: &left, Stderr: &stderr,
				LookupEnv: variables(map[string]string{"GITOPSD_REPO": dir, "GITOPSD_CACHE_DIR": t.TempDir()})})
			if code != 1 || stderr.String() != "gitopsd: no space left on device\n" {
				t.Errorf("%s: %d %q", args, code, stderr.String())
			}
		}
	}
}

// Flags can come from the environment; the command line wins.
func TestEnvironment(t *testing.T) {
	env := map[string]string{"GITOPSD_LOG_FORMAT": "xml"}
	if code, _, stderr := gitopsd(t, env, "version"); code != 1 || !strings.Contains(stderr, `"xml"`) {
		t.Errorf("the environment is not read: %d %s", code, stderr)
	}
	if code, stdout, stderr := gitopsd(t, env, "version", "--log-format", "json"); code != 0 || !strings.HasPrefix(stdout, "gitopsd ") {
		t.Errorf("the command line does not win: %d %s", code, stderr)
	}
}

// An empty name of a cluster does not mean all clusters.
func TestEmptyClusters(t *testing.T) {
	const want = "the name of a cluster is empty; name a registered cluster, or leave the flag out"
	for _, command := range []string{"bump --all", "migrate --yes", "health deployment/x", "plan", "verify", "status", "outdated", "why cm/x", "lock --update", "types pin x.yaml", "render"} {
		for _, value := range []string{"", " ", "dev,", ",dev"} {
			for _, dev := range []string{"", " --cluster dev"} {
				args := append(strings.Fields(command+dev), "--cluster", value)
				if code, _, stderr := gitopsd(t, nil, args...); code != 1 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "--cluster") {
					t.Errorf("%q: %d %s", args, code, stderr)
				}
			}
			code, _, stderr := gitopsd(t, map[string]string{"GITOPSD_CLUSTER": value}, strings.Fields(command)...)
			if code != 1 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "environment variable GITOPSD_CLUSTER") {
				t.Errorf("%s with GITOPSD_CLUSTER=%q: %d %s", command, value, code, stderr)
			}
		}
	}
}

// An empty value does not mean that a flag is left out.
func TestEmptyValues(t *testing.T) {
	const want = "the value is empty; write one, or leave the flag out"
	for command, flag := range map[string]string{
		"plan": "against", "lock": "update", "lock --check": "graph", "render --cluster dev": "vendor", "migrate --yes as.example.org": "forget",
		"types pin x.yaml": "context", "types diff a b": "objects", "package build x -o y": "runtime-image",
	} {
		args := append(strings.Fields(command), "--"+flag+"=")
		if code, _, stderr := gitopsd(t, nil, args...); code != 1 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "--"+flag) {
			t.Errorf("%q: %d %s", args, code, stderr)
		}
	}
}

// An empty variable does not trust everybody, and what is for a daemon does not end one pass.
func TestVariablesOfRun(t *testing.T) {
	for variable, want := range map[string]string{
		"GITOPSD_TRUSTED_OPENPGP_KEYS=": "GITOPSD_TRUSTED_OPENPGP_KEYS: invalid argument",
		"GITOPSD_TRUSTED_SSH_SIGNERS=":  "the value is empty; write one, or leave the flag out",
		"GITOPSD_SIGNING_KEY=":          "--repo ftp://",
		"GITOPSD_LEASE=gitopsd":         "--repo ftp://",
		"GITOPSD_PUSH_SECRET_FILE=file": "--repo ftp://",
	} {
		name, value, _ := strings.Cut(variable, "=")
		env := map[string]string{name: value, "GITOPSD_CACHE_DIR": t.TempDir()}
		if code, _, stderr := gitopsd(t, env, "run", "--once", "--repo", "ftp://host/x.git"); code != 1 || !strings.Contains(stderr, strings.TrimPrefix(want, "--repo ")) {
			t.Errorf("%s: %d %s", variable, code, stderr)
		}
	}
}

// The next pod of a Deployment uses what the one before left in a volume.
func TestSettingsOfPods(t *testing.T) {
	of := func(args ...string) string {
		var o runOptions
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.lease.register(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		return o.settings(f)
	}
	if of("--lease=gitopsd", "--pod-name=one") != of("--lease=gitopsd", "--pod-name=two") {
		t.Error("a pod does not use the checkpoints of the one before")
	}
}

// Passwords and tokens in addresses are not shown.
func TestPasswordsAreNotShown(t *testing.T) {
	for _, tt := range []struct {
		args, value, want string
	}{
		{args: "plan --repo", value: "https://user:s3cret@host/x.git", want: "--repo https://…@host/x.git: this command works on a directory"},
		{args: "plan --repo", value: "user:s3cret@host:x.git", want: "--repo …@host:x.git: this command works on a directory"},
		{args: "run --lock readonly --repo", value: "user:s3cret@host:x.git", want: "git repository …@host:x.git: "},
		{args: "run --repo", value: "ftp://s3cret@host/x.git", want: "git repository ftp://…@host/x.git: "},
		{args: "status --address", value: "http://u:s3cret@host:8080", want: `--address "http://…@host:8080": want host:port`},
		{args: "status --address", value: "u:s3cret@host:8080", want: `--address "…@host:8080": want host:port`},
		{args: "etcd snapshot x --etcd-cafile a --etcd-certfile a --etcd-keyfile a --etcd-servers", value: "https://u:s3cret@host:2379", want: `--etcd-servers "https://…@host:2379"`},
		{args: "lock --repo ../../.. --registry-mirror", value: "a=https://u:s3cret@host/", want: `--registry-mirror "a=https://…@host/"`},
	} {
		args := append(strings.Fields(tt.args), tt.value)
		code, stdout, stderr := gitopsd(t, map[string]string{"GITOPSD_CACHE_DIR": t.TempDir()}, args...)
		if code != 1 || !strings.Contains(stderr, tt.want) || strings.Contains(stdout+stderr, "s3cret") {
			t.Errorf("%q: %d %s", args, code, stderr)
		}
	}
}

// An empty variable sets the flags whose help says what empty means, and no others.
func TestEmptyVariables(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		all := make(map[string]string)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { all[variable(f.Name)] = "" })
		for _, name := range []string{"GITOPSD_CLUSTER", "GITOPSD_TRUSTED_OPENPGP_KEYS", "GITOPSD_TRUSTED_SSH_SIGNERS"} {
			delete(all, name) // which is an error
		}
		if err := flagsFromEnvironment(c.Flags(), variables(all)); err != nil {
			t.Errorf("%s: %v", c.CommandPath(), err)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if means := strings.Contains(f.Usage, "empty for none"); f.Changed != means {
				t.Errorf("%s: an empty %s sets its flag: %t, and the help says so: %t", c.CommandPath(), variable(f.Name), f.Changed, means)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRoot(&Env{LookupEnv: noVariables})
	walk(root)
	run, _, err := root.Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"listen", "claims"} {
		if f := run.Flags().Lookup(name); !f.Changed || strings.Trim(f.Value.String(), "[]") != "" {
			t.Errorf("--%s is %q by an empty variable", name, f.Value)
		}
	}
}

// A variable for another command is no error, and an error about a value from a variable names
// the variable.
func TestSharedVariables(t *testing.T) {
	fleet := t.TempDir()
	writeFile(t, fleet, "clusters.yaml", "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec: {path: dev, kubeconfig: {file: dev.yaml}}\n")
	writeFile(t, fleet, "dev/kustomization.yaml", "resources: [cm.yaml]\n")
	writeFile(t, fleet, "dev/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n")
	pkg := t.TempDir()
	writeFile(t, pkg, "crossplane.yaml", "apiVersion: meta.pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: a}\n")
	pod := writeFile(t, t.TempDir(), "pod.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
	t.Chdir(fleet)
	for _, tt := range []struct {
		variables, args string
		code            int
		want            string
	}{
		{variables: "TIMEOUT=10m", args: "status --address 127.0.0.1:1", code: 1, want: "no daemon answers"},
		{variables: "TIMEOUT=10m", args: "run --repo x --interval 1ms", code: 1, want: "--interval 1ms: at least 100ms\n"},
		{variables: "TIMEOUT=10m WAIT=true", args: "run --repo x --interval 1ms", code: 1, want: "--interval 1ms: at least 100ms\n"},
		{args: "status --timeout 10m", code: 1, want: "--timeout is for --wait\n"},
		{variables: "TIMEOUT=300ms", args: "status --wait --address 127.0.0.1:1", code: 1, want: "no daemon answered in 300ms"},
		{variables: "CLUSTER=prod", args: "lock"},
		{variables: "CLUSTER=", args: "lock"},
		{variables: "CLUSTER=dve UPDATE=all", args: "lock", code: 1, want: "--cluster dve: no such cluster is registered in clusters.yaml; did you mean dev?\n--cluster is set by the environment variable GITOPSD_CLUSTER\n"},
		{args: "lock --cluster prod", code: 1, want: "is used with it\n"},
		{variables: "OFFLINE=true", args: "lock"},
		{args: "lock --offline", code: 1, want: "--offline is for --check"},
		{variables: "UPDATE=all TIDY=true GRAPH=dot", args: "lock --check"},
		{variables: "UPDATE=all TIDY=true", args: "lock --graph"},
		{variables: "UPDATE=all CHECK=true", args: "lock", code: 1, want: "cannot be combined with --update or --tidy\n--check is set by the environment variable GITOPSD_CHECK\n--update is set by the environment variable GITOPSD_UPDATE\n"},
		{variables: "CHECK=true", args: "lock --update", code: 1, want: "\n--check is set by the environment variable GITOPSD_CHECK\n"},
		{variables: "LIVE=true", args: "plan --against nothing", code: 1, want: "--against: "},
		{variables: "AGAINST=main", args: "plan --live --context x", code: 1, want: "--context \"x\": want cluster=context"},
		{variables: "CONTEXT=x", args: "plan", code: 1, want: "--context \"x\": want cluster=context, the context of your own kubeconfig for a registered cluster\n--context is set by the environment variable GITOPSD_CONTEXT\n"},
		{variables: "CONTEXT=dev=x UPDATE=all CLUSTER=dev", args: "types pin " + pod},
		{variables: "CLUSTER=dev BEHAVIOUR=true", args: "types pin --context none " + pod, code: 1, want: "none"},
		{variables: "OUTPUT=json ALL=true", args: "package build " + pkg, code: 1, want: "-o is required"},
		{variables: "ALL=true", args: "bump x", code: 1, want: "x"},
		{variables: "OUTPUT=xml", args: "plan", code: 1, want: "--output \"xml\": use text, json or markdown\n--output is set by the environment variable GITOPSD_OUTPUT\n"},
		{variables: "SECRETS_DIR=/none TRUST_ROOT=/none PACKAGE_TIMEOUT=0", args: "render --cluster dev"},
		{args: "render --cluster dev --secrets-dir /none", code: 1, want: "--secrets-dir: "},
		{variables: "REPO=https://git.example.org/fleet.git", args: "render --cluster dev"},
		{variables: "REPO=git@git.example.org:fleet.git", args: "render --cluster dev"},
		{variables: "REPO=/none", args: "render --cluster dev", code: 1, want: "\n--repo is set by the environment variable GITOPSD_REPO\n"},
		{variables: "CRDS=/none CLUSTER=dev", args: "health cm/a", code: 1, want: "dev"},
		{args: "health --crds /none cm/a", code: 1, want: "leave the flag out"},
		{variables: "CHECK=true", args: "convert -f none --to v2 x", code: 1, want: "none: no such file"},
		{variables: "TO=v2", args: "convert -f none --check", code: 1, want: "none: no such file"},
		{variables: "ETCD_SERVERS=https://a:1 ETCD_CAFILE=a ETCD_CERTFILE=a ETCD_KEYFILE=a", args: "etcd snapshot --etcd-embedded none x", code: 1, want: "none"},
		{variables: "PORT=tcp://10.0.0.1:80 HEALTH_PORT=tcp://10.0.0.1:80", args: "etcd-proxy --dir none", code: 1, want: "none/namespace.json"},
	} {
		env := map[string]string{"GITOPSD_CACHE_DIR": t.TempDir(), "GITOPSD_COMMIT_NAME": "gitopsd"}
		for _, v := range strings.Fields(tt.variables) {
			name, value, _ := strings.Cut(v, "=")
			env["GITOPSD_"+name] = value
		}
		code, _, stderr := gitopsd(t, env, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) || tt.code == 0 && stderr != "" || strings.Contains(tt.args, "etcd snapshot") && strings.Contains(stderr, "--etcd-") {
			t.Errorf("%s with %s: %d %s; want %d and %s", tt.args, tt.variables, code, stderr, tt.code, tt.want)
		}
	}
}

// Flags of the same name have the same kind of value in all commands, since they share a
// variable.
func TestVariablesHaveOneType(t *testing.T) {
	kinds := make(map[string]string)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if annotated(f, noVariable) || f.Name == "cluster" { // some commands take one, others a list
				return
			}
			if kind := kinds[f.Name]; kind != "" && kind != f.Value.Type() {
				t.Errorf("%s: --%s is of type %s, and of %s in another command", c.CommandPath(), f.Name, f.Value.Type(), kind)
			}
			kinds[f.Name] = f.Value.Type()
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&Env{LookupEnv: noVariables}))
}

// A variable that sets no flag is reported. If it looks like a misspelt one of the command, it is
// an error. Kubernetes' own variables for Services are neither.
func TestUnknownVariables(t *testing.T) {
	for _, tt := range []struct {
		entry, note, want string
	}{
		{entry: "GITOPSD_KUBECONFIG_DIR=/x"},
		{entry: "GITOPSD_GIT_PASSWORD=secret"},
		{entry: "GITOPSD_BIND=10.0.0.1"}, // for another command
		{entry: "GITOPSD_LSITEN="},
		{entry: "OTHER_LSITEN=x"},
		{entry: "GITOPSD_LSITEN=:80", want: "environment variable GITOPSD_LSITEN: no flag has that name; did you mean GITOPSD_LISTEN?"},
		{entry: "GITOPSD_GIT_PASWORD=secret", want: "environment variable GITOPSD_GIT_PASWORD: no flag has that name; did you mean GITOPSD_GIT_PASSWORD?"},
		{entry: "GITOPSD_COLOUR_SCHEME=blue", note: "environment variable GITOPSD_COLOUR_SCHEME is ignored: no flag has that name"},
		{entry: "GITOPSD_VERBSE=true", want: "environment variable GITOPSD_VERBSE: no flag has that name; did you mean GITOPSD_VERBOSE?"},
		{entry: "GITOPSD_DETALS=true", note: "environment variable GITOPSD_DETALS is ignored: no flag has that name; did you mean GITOPSD_DETAILS?"}, // for another command
		{entry: "GITOPSD_INTREVL=1m", note: "environment variable GITOPSD_INTREVL is ignored: no flag has that name"},
		{entry: "GITOPSD_NAME=a", note: "environment variable GITOPSD_NAME is ignored: no flag has that name"},
		{entry: "GITOPSD_PATH=a", note: "environment variable GITOPSD_PATH is ignored: no flag has that name"},
		{entry: "GITOPSD_DATA=a", note: "environment variable GITOPSD_DATA is ignored: no flag has that name"},
		{entry: "GITOPSD_BIN=a", note: "environment variable GITOPSD_BIN is ignored: no flag has that name"},
		{entry: "GITOPSD_HOST=a", note: "environment variable GITOPSD_HOST is ignored: no flag has that name"},
		{entry: "GITOPSD_ROOT=a", note: "environment variable GITOPSD_ROOT is ignored: no flag has that name"},
		{entry: "GITOPSD_SERVICE_HOST=10.0.0.1"},
		{entry: "GITOPSD_SERVICE_PORT=80"},
		{entry: "GITOPSD_SERVICE_PORT_HTTP=80"},
		{entry: "GITOPSD_PORT=tcp://10.0.0.1:80"},
		{entry: "GITOPSD_PORT_80_TCP_ADDR=10.0.0.1"},
		{entry: "GITOPSD_STATUS_PORT_8080_TCP=tcp://10.0.0.1:8080"},
	} {
		run, _, err := newRoot(&Env{LookupEnv: noVariables}).Find([]string{"run"})
		if err != nil {
			t.Fatal(err)
		}
		run.InheritedFlags() // merges the flags of the root, as parsing does
		notes, err := unknownVariables(run, []string{"HOME=/root", tt.entry})
		have := ""
		if err != nil {
			have = err.Error()
		}
		if have != tt.want || strings.Join(notes, "\n") != tt.note {
			t.Errorf("%s: error %q, notes %q; want %q and %q", tt.entry, have, notes, tt.want, tt.note)
		}
	}
}

func TestCompletion(t *testing.T) {
	_, stdout, _ := gitopsd(t, nil, "__complete", "render", "--repo", "../../..", "--cluster", "")
	for _, want := range []string{"dev\n", "hub\n", "prod\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("clusters of the registry are not completed: %q", stdout)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, _ := gitopsd(t, nil, "completion", shell); code != 0 || !strings.Contains(stdout, "gitopsd") {
			t.Errorf("completion %s: %d", shell, code)
		}
	}
}
