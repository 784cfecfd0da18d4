package testscripts

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that a script has started in the background.
type process struct {
	name string
	log  string // file with all its output
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended, with err
	err  error
}

var processName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// exits runs a program that must exit with a status.
func exits(ctx context.Context, _ *scenario, c *call) error {
	want, err := strconv.Atoi(c.args[0])
	if err != nil {
		return errUsage
	}
	err = c.program(ctx, c.args[1], c.args[2:]...)
	status := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else if err != nil {
		return err
	}
	if status != want {
		return fmt.Errorf("exit status %d, want %d", status, want)
	}
	return nil
}

func startProcess(_ context.Context, s *scenario, c *call) error {
	if !processName.MatchString(c.args[0]) {
		return errUsage
	}
	name := c.args[0]
	if s.running[name] != nil {
		return fmt.Errorf("%s runs already", name)
	}
	// The process ends with the script, not with the context, so that a script that
	// runs out of time still logs the output.
	cmd, err := c.prepare(context.Background(), c.args[1], c.args[2:]...)
	if err != nil {
		return err
	}
	p := &process{name: name, log: filepath.Join(s.work, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	s.running[name] = p
	return nil
}

func endProcess(ctx context.Context, s *scenario, c *call) error {
	var kill bool
	if err := c.flags(func(f *flag.FlagSet) { f.BoolVar(&kill, "kill", false, "") }, 1, 1); err != nil {
		return err
	}
	name := c.args[0]
	p := s.running[name]
	if p == nil {
		return fmt.Errorf("%s was not started", name)
	}
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended by itself: %v\n%s", name, p.err, lastLines(p.log, 20))
	default:
	}
	delete(s.running, name)
	if kill {
		p.kill()
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w\n%s", name, p.err, lastLines(p.log, 20))
		}
		return nil
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("%s had not ended %s after SIGTERM: %w", name, patience, ctx.Err())
	}
}

// kill kills the process (SIGKILL), and waits for its end.
func (p *process) kill() {
	p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// serving matches the address that a daemon logs when it listens.
var serving = regexp.MustCompile(`msg=serving address=(\S+)`)

// address returns the address at which a daemon serves.
func (s *scenario) address(name string) (string, error) {
	p := s.running[name]
	if p == nil {
		return "", fmt.Errorf("%s was not started", name)
	}
	log, err := os.ReadFile(p.log)
	if err != nil {
		return "", err
	}
	address := serving.FindSubmatch(log)
	if address == nil {
		return "", fmt.Errorf("%s has not logged an address yet", p.name)
	}
	return string(address[1]), nil
}

func serves(_ context.Context, s *scenario, c *call) error {
	address, err := s.address(c.args[0])
	if err != nil {
		return err
	}
	c.ts.Setenv("GITOPSD_ADDRESS", address)
	return nil
}

func fetch(ctx context.Context, s *scenario, c *call) error {
	var secret string
	if err := c.flags(func(f *flag.FlagSet) { f.StringVar(&secret, "push", "", "") }, 2, 2); err != nil {
		return err
	}
	address, err := s.address(c.args[0])
	if err != nil {
		return err
	}
	method, body := http.MethodGet, ""
	if secret != "" {
		method, body = http.MethodPost, `{"ref":"refs/heads/main"}`
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+c.args[1], strings.NewReader(body))
	if err != nil {
		return err
	}
	if secret != "" {
		sum := hmac.New(sha256.New, []byte(strings.TrimSpace(c.ts.ReadFile(secret))))
		sum.Write([]byte(body))
		req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum.Sum(nil)))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(c.out, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s", method, c.args[1], resp.Status)
	}
	return nil
}
