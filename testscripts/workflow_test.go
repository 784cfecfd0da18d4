package testscripts

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// runWorkflow runs the shell steps of a job of a workflow in examples/ci, as the runners
// do: one shell per step, which ends at the first command that fails.
func runWorkflow(ctx context.Context, s *scenario, c *call) error {
	var without []string
	err := c.flags(func(f *flag.FlagSet) {
		f.Func("without", "", func(step string) error {
			without = append(without, step)
			return nil
		})
	}, 2, -1)
	if err != nil {
		return err
	}
	values := make(map[string]string)
	for _, pair := range c.args[2:] {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return errUsage
		}
		values[name] = value
	}
	steps, err := workflowSteps(c.args[0], c.args[1])
	if err != nil {
		return err
	}
	for _, name := range without {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			return fmt.Errorf("%s: job %s has no step %s", c.args[0], c.args[1], name)
		}
	}
	for _, step := range steps {
		if slices.Contains(without, step.name) {
			continue
		}
		fmt.Fprintf(c.errOut, "--- %s\n", step.name)
		var env []string
		for _, pair := range step.env {
			pair, err := evaluate(pair, values)
			if err != nil {
				return fmt.Errorf("step %s: %w", step.name, err)
			}
			env = append(env, pair)
		}
		if step.gitlab {
			for name, value := range values {
				env = append(env, name+"="+value)
			}
		}
		cmd, err := c.prepare(ctx, "bash", "-e", "-c", step.script)
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, env...)
		cmd.Stdout, cmd.Stderr = c.out, c.errOut
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("step %s: %w", step.name, err)
		}
	}
	return nil
}

type step struct {
	name, script string
	env          []string // NAME=VALUE, the value with expressions
	gitlab       bool     // the script gets the values as variables
}

var expression = regexp.MustCompile(`\$\{\{ *([a-zA-Z0-9_.]+) *\}\}`)

// evaluate replaces the expressions of a workflow with the given values.
func evaluate(text string, values map[string]string) (string, error) {
	var errs []error
	text = expression.ReplaceAllStringFunc(text, func(e string) string {
		name := expression.FindStringSubmatch(e)[1]
		value, ok := values[name]
		if !ok {
			errs = append(errs, fmt.Errorf("no value for %s", e))
		}
		return value
	})
	return text, errors.Join(errs...)
}

func readWorkflow(name string) (map[string]any, error) {
	f, err := os.Open(filepath.Join("..", "examples", "ci", name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	docs, err := sources.DecodeYAML(f, sources.Limits{})
	if err == nil && len(docs) != 1 {
		err = fmt.Errorf("%d documents", len(docs))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return docs[0].Tree, nil
}

// workflowSteps returns the shell steps of a job: the steps with a `run` for GitHub, the
// script as one step for GitLab.
func workflowSteps(file, job string) ([]step, error) {
	tree, err := readWorkflow(file)
	if err != nil {
		return nil, err
	}
	if j, ok := tree[job].(map[string]any); ok {
		var lines []string
		list, _ := j["script"].([]any)
		for _, line := range list {
			lines = append(lines, fmt.Sprint(line))
		}
		return []step{{name: "script", script: strings.Join(lines, "\n"), gitlab: true}}, nil
	}
	jobs, _ := tree["jobs"].(map[string]any)
	j, ok := jobs[job].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s has no job %s", file, job)
	}
	var steps []step
	list, _ := j["steps"].([]any)
	for _, item := range list {
		m, _ := item.(map[string]any)
		script, ok := m["run"].(string)
		if !ok {
			continue
		}
		s := step{name: fmt.Sprint(m["name"]), script: script}
		env, _ := m["env"].(map[string]any)
		for name, value := range env {
			s.env = append(s.env, fmt.Sprintf("%s=%v", name, value))
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// The workflows have the structure that their forges require. No expression, which the
// author of a pull request may control, is part of a script.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	tree, err := readWorkflow("github.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// sources reads YAML as Kubernetes does, where the key `on` is a boolean.
	if tree["name"] == nil || tree["true"] == nil {
		t.Errorf("github.yaml has no name, or does not say when to run: %v", tree)
	}
	if p, ok := tree["permissions"].(map[string]any); !ok || len(p) > 0 {
		t.Error("github.yaml: want no permissions at the top, only in jobs")
	}
	jobs, _ := tree["jobs"].(map[string]any)
	for name, job := range jobs {
		j, _ := job.(map[string]any)
		for _, key := range []string{"runs-on", "permissions", "steps"} {
			if j[key] == nil {
				t.Errorf("github.yaml: job %s has no %s", name, key)
			}
		}
		steps, err := workflowSteps("github.yaml", name)
		if err != nil || len(steps) < 2 {
			t.Errorf("job %s: %d steps, %v", name, len(steps), err)
		}
		for _, s := range steps {
			if s.name == "<nil>" || strings.Contains(s.script, "${{") {
				t.Errorf("job %s: step %s has no name, or an expression in its script", name, s.name)
			}
		}
	}
	tree, err = readWorkflow("gitlab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j, _ := tree["gitopsd"].(map[string]any)
	for _, key := range []string{"image", "rules", "before_script", "script", "artifacts"} {
		if j[key] == nil {
			t.Errorf("gitlab.yaml: the job has no %s", key)
		}
	}
}
