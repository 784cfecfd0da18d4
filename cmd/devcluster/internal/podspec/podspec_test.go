package podspec

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// objects has data by name. The object "unread" is not known yet.
type objects map[string]map[string]string

var errUnread = errors.New("not read yet")

func (o objects) get(resource, name string) (map[string]string, error) {
	if name == "unread" {
		return nil, errUnread
	}
	data, ok := o[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return data, nil
}

func (o objects) Secret(_, name string) (*corev1.Secret, error) {
	data, err := o.get("secrets", name)
	s := &corev1.Secret{Data: map[string][]byte{}}
	for key, text := range data {
		s.Data[key] = []byte(text)
	}
	return s, err
}

func (o objects) ConfigMap(_, name string) (*corev1.ConfigMap, error) {
	data, err := o.get("configmaps", name)
	return &corev1.ConfigMap{Data: data}, err
}

var (
	all   = objects{"settings": {"level": "debug", "path": "/etc/tls/ca.crt"}, "keys": {"user": "ann", "password": "s3cret"}}
	facts = Facts{PodIP: "127.3.4.5", HostIP: "192.0.2.1"}
	pod   = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-0", UID: "u1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"a/b": "c"}},
		Spec:       corev1.PodSpec{NodeName: "node", ServiceAccountName: "web"},
	}
)

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func fromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func fromSecret(name, secret, key string, optional *bool) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named(secret), Key: key, Optional: optional}}}
}

func TestContainer(t *testing.T) {
	t.Parallel()
	mounts := []Mount{{"/etc/tls", "/d/tls"}}
	for _, tt := range []struct {
		name string
		c    corev1.Container
		args []string
		env  []string
		err  string
	}{
		{name: "nothing", args: []string{"/bin/web", "-x"}, env: []string{"HOME=/h"}},
		{
			name: "arguments",
			c: corev1.Container{
				Command: []string{"/manager", "serve"}, Args: []string{"--cert=/etc/tls/tls.crt", "$(LEVEL)", "$$(LEVEL)", "$(NOBODY)", "100$"},
				Env: []corev1.EnvVar{{Name: "LEVEL", Value: "2"}},
			},
			args: []string{"/bin/web", "-x", "serve", "--cert=/d/tls/tls.crt", "2", "$(LEVEL)", "$(NOBODY)", "100$"},
			env:  []string{"HOME=/h", "LEVEL=2"},
		},
		{
			name: "later variables see earlier ones, paths are rewritten, the base can be overridden",
			c:    corev1.Container{Env: []corev1.EnvVar{{Name: "DIR", Value: "/etc/tls"}, {Name: "FILE", Value: "$(DIR)/x"}, {Name: "HOME", Value: "/"}}},
			args: []string{"/bin/web", "-x"}, env: []string{"HOME=/", "DIR=/d/tls", "FILE=/d/tls/x"},
		},
		{
			name: "fields",
			c: corev1.Container{Env: []corev1.EnvVar{
				fromField("A", "metadata.name"), fromField("B", "metadata.namespace"), fromField("C", "metadata.uid"), fromField("D", "spec.nodeName"),
				fromField("E", "spec.serviceAccountName"), fromField("F", "status.podIP"), fromField("G", "status.hostIP"),
				fromField("H", "metadata.labels['app']"), fromField("I", "metadata.annotations['a/b']"),
			}},
			args: []string{"/bin/web", "-x"},
			env:  []string{"HOME=/h", "A=web-0", "B=team", "C=u1", "D=node", "E=web", "F=127.3.4.5", "G=192.0.2.1", "H=web", "I=c"},
		},
		{name: "unknown field", c: corev1.Container{Env: []corev1.EnvVar{fromField("A", "status.phase")}}, err: "environment variable A: devcluster knows no field status.phase"},
		{
			name: "resources",
			c: corev1.Container{
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("64Mi")}},
				Env: []corev1.EnvVar{
					{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
					{Name: "MEMORY", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
				},
			},
			args: []string{"/bin/web", "-x"}, env: []string{"HOME=/h", "CPU=2", "MEMORY=64"},
		},
		{
			name: "all of a Secret and of a ConfigMap",
			c: corev1.Container{EnvFrom: []corev1.EnvFromSource{
				{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("keys")}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("settings")}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("none"), Optional: ptr.To(true)}},
			}},
			args: []string{"/bin/web", "-x"},
			env:  []string{"HOME=/h", "S_password=s3cret", "S_user=ann", "level=debug", "path=/d/tls/ca.crt"},
		},
		{name: "key of a Secret", c: corev1.Container{Env: []corev1.EnvVar{fromSecret("U", "keys", "user", nil)}}, args: []string{"/bin/web", "-x"}, env: []string{"HOME=/h", "U=ann"}},
		{name: "missing Secret", c: corev1.Container{Env: []corev1.EnvVar{fromSecret("U", "none", "user", nil)}}, err: `environment variable U: secret "none" not found`},
		{name: "Secret that is not read yet", c: corev1.Container{Env: []corev1.EnvVar{fromSecret("U", "unread", "user", ptr.To(true))}}, err: "not read yet"},
		{name: "missing key", c: corev1.Container{Env: []corev1.EnvVar{fromSecret("U", "keys", "name", nil)}}, err: `secret keys has no key "name"`},
		{name: "optional", c: corev1.Container{Env: []corev1.EnvVar{fromSecret("U", "none", "user", ptr.To(true)), fromSecret("V", "keys", "name", ptr.To(true))}}, args: []string{"/bin/web", "-x"}, env: []string{"HOME=/h"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Container(pod, &tt.c, []string{"/bin/web", "-x"}, []string{"HOME=/h"}, facts, mounts, all)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || !slices.Equal(got.Args, tt.args) || !slices.Equal(got.Env, tt.env) {
				t.Errorf("args %q\nenv %q\n%v", got.Args, got.Env, err)
			}
		})
	}
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	mounts := []Mount{{"/tls", "/d/tls"}, {"/tls/server/", "/d/server"}, {"/", "/d/root"}}
	for text, want := range map[string]string{
		"/tls":                  "/d/tls",
		"/tls/":                 "/d/tls/",
		"/tls/a":                "/d/tls/a",
		"/tls/server/tls.crt":   "/d/server/tls.crt",
		"/tls/servers":          "/d/tls/servers",
		"/tlsx":                 "/tlsx",
		"a/tls":                 "a/tls",
		"--dir=/tls":            "--dir=/d/tls",
		"/tls:/tls/server,/tls": "/d/tls:/d/server,/d/tls",
		`cat "/tls/a b" /tls`:   `cat "/d/tls/a b" /d/tls`,
		"https://host/tls":      "https://host/tls",
		"/usr/tls":              "/usr/tls",
		"":                      "",
		"/other":                "/other",
	} {
		if got := Rewrite(text, mounts); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	token := func(audience string, _ int64) (string, error) {
		if audience == "forbidden" {
			return "", errors.New("no")
		}
		return "token for " + audience, nil
	}
	projected := func(sources ...corev1.VolumeProjection) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}
	}
	tokenFor := func(audience string) corev1.VolumeProjection {
		return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience, Path: "token"}}
	}
	for _, tt := range []struct {
		name   string
		source corev1.VolumeSource
		want   map[string]string
		err    string
	}{
		{"emptyDir", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil, ""},
		{"Secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}, map[string]string{"user": "ann", "password": "s3cret"}, ""},
		{"items", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys", Items: []corev1.KeyToPath{{Key: "user", Path: "a/b"}}}}, map[string]string{"a/b": "ann"}, ""},
		{"item that is missing", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys", Items: []corev1.KeyToPath{{Key: "x", Path: "x"}}}}, nil, `volume "v": secret keys has no key "x"`},
		{"path that leaves", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys", Items: []corev1.KeyToPath{{Key: "user", Path: "../x"}}}}, nil, "leaves it"},
		{"missing Secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none"}}, nil, `volume "v": secret "none" not found`},
		{"optional Secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none", Optional: ptr.To(true)}}, map[string]string{}, ""},
		{"optional Secret that is not read yet", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "unread", Optional: ptr.To(true)}}, nil, "not read yet"},
		{"ConfigMap", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("settings")}}, map[string]string{"level": "debug", "path": "/etc/tls/ca.crt"}, ""},
		{"projected", projected(tokenFor("x"), corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("settings"), Items: []corev1.KeyToPath{{Key: "level", Path: "l"}}}},
			corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}),
			map[string]string{"token": "token for x", "l": "debug", "labels": `app="web"`}, ""},
		{"token that is refused", projected(tokenFor("forbidden")), nil, `token of service account "web": no`},
		{"hostPath", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, nil, `volume "v": devcluster has only`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Files(pod, &corev1.Volume{Name: "v", VolumeSource: tt.source}, facts, all, token)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			var text map[string]string
			if got != nil {
				text = map[string]string{}
			}
			for path, content := range got {
				text[path] = string(content)
			}
			if err != nil || !reflect.DeepEqual(text, tt.want) {
				t.Errorf("got %q, %v; want %q", text, err, tt.want)
			}
		})
	}
}

// References returns every object that Container and Files ask for.
func TestReferences(t *testing.T) {
	t.Parallel()
	p := pod.DeepCopy()
	p.Spec.Volumes = []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a"}}},
		{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("a")}}},
		{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: named("b")}}, {ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("b")}},
		}}}},
	}
	p.Spec.Containers = []corev1.Container{{
		EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("a")}}, {ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("c")}}},
		Env: []corev1.EnvVar{{Name: "X"}, fromSecret("Y", "d", "k", nil),
			{Name: "Z", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("d"), Key: "k"}}}},
	}}
	var got []string
	for _, r := range References(p) {
		if r.Namespace != "team" {
			t.Errorf("%v", r)
		}
		got = append(got, r.Resource+"/"+r.Name)
	}
	want := []string{"secrets/a", "configmaps/a", "secrets/b", "configmaps/b", "configmaps/c", "secrets/d", "configmaps/d"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzExpandAndRewrite(f *testing.F) {
	f.Add("$(A)$$$(", "/tls")
	f.Add("--a=/tls/b:$(B)", "/")
	f.Fuzz(func(t *testing.T, text, mount string) {
		if strings.Contains(text, "$") {
			expand(text, map[string]string{"A": "$(A)"})
		} else if got := expand(text, nil); got != text {
			t.Errorf("%q without a dollar sign became %q", text, got)
		}
		if got := Rewrite(text, []Mount{{mount, mount}}); strings.Trim(mount, "/") == mount && got != text {
			t.Errorf("%q with a mount at %q became %q", text, mount, got)
		}
	})
}
