// Package podspec computes the environment and arguments of a container's process
// ([Container]), and the files of its volumes ([Files]), as a kubelet does.
//
// It does no I/O. Secrets and ConfigMaps come from an [Objects], and package pods
// writes the files and runs the process.
package podspec

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// Objects returns the objects that pods refer to. If an object does not exist,
// [apierrors.IsNotFound] reports true for the error. Any other error means that the object
// is not known yet.
type Objects interface {
	Secret(namespace, name string) (*corev1.Secret, error)
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
}

// Facts are values of fields in a pod's status, as its processes see them.
type Facts struct {
	// PodIP is the address of this machine that the pod's processes listen on.
	PodIP string
	// HostIP is the node's address.
	HostIP string
}

// Mount is a directory of this machine at a path in a container.
type Mount struct {
	// Path is the mountPath.
	Path string
	// Dir is the directory on this machine.
	Dir string
}

// Process is the process of a container.
type Process struct {
	// Args are the program and its arguments.
	Args []string
	// Env has a NAME=value for each variable.
	Env []string
}

// Repository returns an image's name without tag and digest.
func Repository(image string) string {
	repository, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	return repository
}

// Container returns the process of a container. entrypoint stands for the entry point of
// the image: it replaces the first word of the container's command, which is a file in
// the image, and the other words follow before args. The container's environment is
// added to base.
//
// A reference to a missing object or key is an error unless it is optional.
func Container(pod *corev1.Pod, c *corev1.Container, entrypoint, base []string, facts Facts, mounts []Mount, objects Objects) (Process, error) {
	e := environment{values: map[string]string{}}
	for _, pair := range base {
		name, value, _ := strings.Cut(pair, "=")
		e.set(name, value)
	}
	for _, from := range c.EnvFrom {
		if err := e.from(pod, from, objects); err != nil {
			return Process{}, err
		}
	}
	for _, v := range c.Env {
		value := expand(v.Value, e.values)
		if v.ValueFrom != nil {
			var ok bool
			var err error
			if value, ok, err = valueFrom(pod, c, v.ValueFrom, facts, objects); err != nil {
				return Process{}, fmt.Errorf("environment variable %s: %w", v.Name, err)
			} else if !ok {
				continue
			}
		}
		e.set(v.Name, value)
	}
	p := Process{Args: slices.Clone(entrypoint)}
	words := c.Args
	if len(c.Command) > 1 {
		words = append(slices.Clone(c.Command[1:]), c.Args...)
	}
	for _, word := range words {
		p.Args = append(p.Args, Rewrite(expand(word, e.values), mounts))
	}
	for _, name := range e.names {
		p.Env = append(p.Env, name+"="+Rewrite(e.values[name], mounts))
	}
	return p, nil
}

// environment has variables in order.
type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func (e *environment) from(pod *corev1.Pod, from corev1.EnvFromSource, objects Objects) error {
	var files map[string][]byte
	var err error
	switch {
	case from.SecretRef != nil:
		files, err = secretFiles(pod, from.SecretRef.Name, from.SecretRef.Optional, objects)
	case from.ConfigMapRef != nil:
		files, err = configMapFiles(pod, from.ConfigMapRef.Name, from.ConfigMapRef.Optional, objects)
	}
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(files)) {
		e.set(from.Prefix+key, string(files[key]))
	}
	return nil
}

// valueFrom returns the value of a variable. ok is false if an optional value is missing.
func valueFrom(pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource, facts Facts, objects Objects) (value string, ok bool, err error) {
	pick := func(files map[string][]byte, err error, object, key string, optional *bool) (string, bool, error) {
		if err != nil {
			return "", false, err
		}
		text, ok := files[key]
		if !ok && !ptr.Deref(optional, false) {
			return "", false, fmt.Errorf("%s has no key %q", object, key)
		}
		return string(text), ok, nil
	}
	switch {
	case from.FieldRef != nil:
		value, err = field(pod, from.FieldRef.FieldPath, facts)
		return value, err == nil, err
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		files, err := secretFiles(pod, r.Name, r.Optional, objects)
		return pick(files, err, "secret "+r.Name, r.Key, r.Optional)
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		files, err := configMapFiles(pod, r.Name, r.Optional, objects)
		return pick(files, err, "configmap "+r.Name, r.Key, r.Optional)
	case from.ResourceFieldRef != nil:
		value, err = resourceField(c, from.ResourceFieldRef)
		return value, err == nil, err
	}
	return "", false, errors.New("devcluster does not support this source of values")
}

// field returns a field of the pod for the downward API.
func field(pod *corev1.Pod, path string, facts Facts) (string, error) {
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return pairs(pod.Labels), nil
	case "metadata.annotations":
		return pairs(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP", "status.podIPs":
		return facts.PodIP, nil
	case "status.hostIP", "status.hostIPs":
		return facts.HostIP, nil
	}
	for prefix, of := range map[string]map[string]string{"metadata.labels['": pod.Labels, "metadata.annotations['": pod.Annotations} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			if key, ok := strings.CutSuffix(rest, "']"); ok {
				return of[key], nil
			}
		}
	}
	return "", fmt.Errorf("devcluster knows no field %s of a pod", path)
}

// pairs formats labels or annotations as in a downward API volume.
func pairs(of map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, of[key]))
	}
	return strings.Join(lines, "\n")
}

// resourceField returns a limit or request of the container, divided and rounded up, or 0
// if it has none.
func resourceField(c *corev1.Container, ref *corev1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		return "", fmt.Errorf("devcluster knows the resources of container %s only there", ref.ContainerName)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	list, ok := map[string]corev1.ResourceList{"limits": c.Resources.Limits, "requests": c.Resources.Requests}[kind]
	if !ok {
		return "", fmt.Errorf("%s: want limits.NAME or requests.NAME", ref.Resource)
	}
	quantity := list[corev1.ResourceName(name)]
	milli, divisor := quantity.MilliValue(), ref.Divisor.MilliValue()
	if divisor == 0 {
		divisor = 1000
	}
	return fmt.Sprint((milli + divisor - 1) / divisor), nil
}

// expand replaces $(NAME) by the value of a known variable, and $$ by $. Other dollar
// signs stay.
func expand(text string, values map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			return b.String() + text
		}
		b.WriteString(text[:i])
		text = text[i:]
		if text[1] == '$' {
			b.WriteByte('$')
			text = text[2:]
			continue
		}
		if end := strings.IndexByte(text, ')'); text[1] == '(' && end > 0 {
			if value, ok := values[text[2:end]]; ok {
				b.WriteString(value)
			} else {
				b.WriteString(text[:end+1])
			}
			text = text[end+1:]
			continue
		}
		b.WriteByte('$')
		text = text[1:]
	}
}

// Rewrite replaces paths at or below a mount by paths on this machine. A path begins at
// the start of text, or after a space, a quotation mark or one of = : , and the mount's
// part of it ends before one of these or a slash.
func Rewrite(text string, mounts []Mount) string {
	const around = "=:, \"'\n\t"
	mounts = slices.Clone(mounts)
	for i := range mounts {
		mounts[i].Path = path.Clean(mounts[i].Path)
	}
	slices.SortStableFunc(mounts, func(a, b Mount) int { return len(b.Path) - len(a.Path) })
	var b strings.Builder
	begins := true
next:
	for text != "" {
		if begins && text[0] == '/' {
			for _, m := range mounts {
				rest, ok := strings.CutPrefix(text, m.Path)
				if ok && m.Path != "/" && (rest == "" || rest[0] == '/' || strings.IndexByte(around, rest[0]) >= 0) {
					b.WriteString(m.Dir)
					text, begins = rest, false
					continue next
				}
			}
		}
		begins = strings.IndexByte(around, text[0]) >= 0
		b.WriteByte(text[0])
		text = text[1:]
	}
	return b.String()
}

func secretFiles(pod *corev1.Pod, name string, optional *bool, objects Objects) (map[string][]byte, error) {
	s, err := objects.Secret(pod.Namespace, name)
	if err != nil {
		return nil, missing(err, "secret", name, optional)
	}
	return s.Data, nil
}

func configMapFiles(pod *corev1.Pod, name string, optional *bool, objects Objects) (map[string][]byte, error) {
	m, err := objects.ConfigMap(pod.Namespace, name)
	if err != nil {
		return nil, missing(err, "configmap", name, optional)
	}
	files := make(map[string][]byte, len(m.Data)+len(m.BinaryData))
	for key, text := range m.Data {
		files[key] = []byte(text)
	}
	for key, text := range m.BinaryData {
		files[key] = text
	}
	return files, nil
}

// missing turns an error of [Objects] into a kubelet's error. It returns nil if the object
// does not exist and is optional.
func missing(err error, kind, name string, optional *bool) error {
	switch {
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("%s %q: %w", kind, name, err)
	case ptr.Deref(optional, false):
		return nil
	}
	return fmt.Errorf("%s %q not found", kind, name)
}
