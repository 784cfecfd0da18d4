package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// lookAround prints commands to look around with while everything keeps running. It runs
// them first, to be sure that they work.
func (s *stage) lookAround(ctx context.Context) error {
	config, err := s.oneKubeconfig()
	if err != nil {
		return err
	}
	setup := s.setup(config, s.registry.Host())
	commands := []struct{ text, shows string }{
		{"gitopsd status", "the fleet, as the daemon sees it"},
		{"gitopsd plan", "what a change of the files here would do"},
		{"gitopsd why crd/" + machines + " --cluster dev", "where a type comes from"},
		{"gitopsd outdated", "newer versions, with what they change"},
		{"kubectl --context prod get crds", "any cluster: " + strings.Join(slices.Concat(clusterNames, teams), ", ")},
		{"kubectl --context " + teams[0] + " get configmap paint -o yaml", "on a namespace of the daemon's etcd"},
		{"git log --oneline", "what was declared, and what the daemon has locked"},
	}
	var tried strings.Builder
	for _, line := range setup {
		tried.WriteString(line + "\n")
	}
	for _, c := range commands {
		tried.WriteString(c.text + " >/dev/null\n")
	}
	if _, err := s.command(ctx, s.dir, "sh", "-euc", tried.String()); err != nil {
		return fmt.Errorf("the commands to look around with: %w", err)
	}
	s.step("Look around in another terminal; Ctrl-C here ends it all")
	for _, line := range setup {
		s.say("   %s", line)
	}
	s.say("")
	for _, c := range commands {
		s.say("   %-66s # %s", c.text, c.shows)
	}
	s.say("\n   What you commit there and push (git push origin HEAD:main) is in the clusters a moment later.")
	s.say("   The daemon's log is %s", s.log(daemon))
	return nil
}

// setup returns the shell commands that set up the environment to look around.
func (s *stage) setup(config, registry string) []string {
	return []string{
		"export KUBECONFIG=" + quoted(config) + " PATH=" + quoted(filepath.Join(s.source, "bin")) + ":$PATH",
		"export GITOPSD_KUBECONFIG_DIR=" + quoted(s.kubeconfigs()) + " GITOPSD_CACHE_DIR=" + quoted(filepath.Join(s.dir, "cache")),
		"export GITOPSD_REGISTRY_MIRROR=" + quoted(canonical+"="+registry) + " GITOPSD_ADDRESS=" + quoted(strings.TrimPrefix(s.api, "http://")),
		"cd " + quoted(s.clone) + " && git pull -q --ff-only",
	}
}

// plainWord matches words that need no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]+$`)

// quoted returns words as they are typed into a shell.
func quoted(words ...string) string {
	all := slices.Clone(words)
	for i, w := range all {
		if !plainWord.MatchString(w) {
			all[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(all, " ")
}

// oneKubeconfig writes one kubeconfig with a context for every cluster, and returns its
// path.
func (s *stage) oneKubeconfig() (string, error) {
	files := make(map[string]string)
	for _, name := range clusterNames {
		files[name] = s.kubeconfig(name)
	}
	for _, team := range teams {
		files[team] = s.teamConfig(team)
	}
	all := clientcmdapi.NewConfig()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		one, err := clientcmd.LoadFromFile(files[name])
		if err != nil {
			return "", err
		}
		way := one.Contexts[one.CurrentContext]
		if way == nil {
			return "", fmt.Errorf("%s has no current context", files[name])
		}
		all.Clusters[name], all.AuthInfos[name] = one.Clusters[way.Cluster], one.AuthInfos[way.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	all.CurrentContext = clusterNames[0]
	file := filepath.Join(s.dir, "kubeconfig")
	return file, clientcmd.WriteToFile(*all, file)
}

// keep waits until the demo is interrupted, and reports programs that end before.
func (s *stage) keep(ctx context.Context) {
	ended := make(chan *process)
	for _, p := range s.procs {
		go func() {
			<-p.done
			select {
			case ended <- p:
			case <-ctx.Done():
			}
		}()
	}
	for {
		select {
		case p := <-ended:
			s.say("\n%s", s.gone(p))
		case <-ctx.Done():
			s.say("\nEnding everything …")
			return
		}
	}
}

// gone says that a program has ended, with the end of its log.
func (s *stage) gone(p *process) string {
	what, so := p.name+" has ended", "What it ran does not answer any more"
	if p.name == daemon {
		what, so = "The daemon has ended", "The clusters stay as they are, and nothing follows the repository any more"
	}
	return fmt.Sprintf("%s (%s). %s. The end of %s:\n%s\nCtrl-C ends the rest.", what, p.cmd.ProcessState, so, s.log(p.name), s.tail(p.name))
}

// introduce sets the name and address of commits in the clone.
func (s *stage) introduce(ctx context.Context) error {
	for _, setting := range [][2]string{{"user.name", "Dev Eloper"}, {"user.email", "dev@example.com"}} {
		if _, err := s.command(ctx, s.clone, "git", "config", setting[0], setting[1]); err != nil {
			return err
		}
	}
	return nil
}
