package podspec

import (
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Token returns a token of the pod's service account for an audience; "" is the
// API server. It is valid for at least so many seconds when it is new.
type Token func(audience string, seconds int64) (string, error)

// Files returns the files of a volume by relative path, nil for an emptyDir, which
// belongs to the pod. A missing Secret or ConfigMap is an error, unless it is
// optional, and so is a volume of a kind that has no files here.
func Files(pod *corev1.Pod, v *corev1.Volume, facts Facts, objects Objects, token Token) (map[string][]byte, error) {
	files, err := volumeFiles(pod, &v.VolumeSource, facts, objects, token)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", v.Name, err)
	}
	for path := range files {
		if !filepath.IsLocal(path) {
			return nil, fmt.Errorf("volume %q: path %q leaves it", v.Name, path)
		}
	}
	return files, nil
}

func volumeFiles(pod *corev1.Pod, v *corev1.VolumeSource, facts Facts, objects Objects, token Token) (map[string][]byte, error) {
	switch {
	case v.EmptyDir != nil:
		return nil, nil
	case v.Secret != nil:
		return items("secret "+v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)(
			secretFiles(pod, v.Secret.SecretName, v.Secret.Optional, objects))
	case v.ConfigMap != nil:
		return items("configmap "+v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)(
			configMapFiles(pod, v.ConfigMap.Name, v.ConfigMap.Optional, objects))
	case v.DownwardAPI != nil:
		return downward(pod, v.DownwardAPI.Items, facts)
	case v.Projected != nil:
		all := map[string][]byte{}
		for i := range v.Projected.Sources {
			files, err := projected(pod, &v.Projected.Sources[i], facts, objects, token)
			if err != nil {
				return nil, err
			}
			for path, text := range files {
				all[path] = text
			}
		}
		return all, nil
	}
	return nil, errors.New("devcluster has only emptyDir, secret, configMap, downwardAPI and projected volumes")
}

func projected(pod *corev1.Pod, s *corev1.VolumeProjection, facts Facts, objects Objects, token Token) (map[string][]byte, error) {
	switch {
	case s.Secret != nil:
		return items("secret "+s.Secret.Name, s.Secret.Items, s.Secret.Optional)(
			secretFiles(pod, s.Secret.Name, s.Secret.Optional, objects))
	case s.ConfigMap != nil:
		return items("configmap "+s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)(
			configMapFiles(pod, s.ConfigMap.Name, s.ConfigMap.Optional, objects))
	case s.DownwardAPI != nil:
		return downward(pod, s.DownwardAPI.Items, facts)
	case s.ServiceAccountToken != nil:
		text, err := token(s.ServiceAccountToken.Audience, ptr.Deref(s.ServiceAccountToken.ExpirationSeconds, 3600))
		if err != nil {
			return nil, fmt.Errorf("token of service account %q: %w", pod.Spec.ServiceAccountName, err)
		}
		return map[string][]byte{s.ServiceAccountToken.Path: []byte(text)}, nil
	}
	return nil, errors.New("devcluster projects only secret, configMap, downwardAPI and serviceAccountToken")
}

// items selects and renames files; without any it keeps all.
func items(object string, items []corev1.KeyToPath, optional *bool) func(map[string][]byte, error) (map[string][]byte, error) {
	return func(all map[string][]byte, err error) (map[string][]byte, error) {
		if err != nil || len(items) == 0 {
			// Not nil, which stands for an emptyDir.
			if all == nil {
				all = map[string][]byte{}
			}
			return all, err
		}
		some := map[string][]byte{}
		for _, item := range items {
			text, ok := all[item.Key]
			if ok {
				some[item.Path] = text
			} else if !ptr.Deref(optional, false) {
				return nil, fmt.Errorf("%s has no key %q", object, item.Key)
			}
		}
		return some, nil
	}
}

func downward(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, facts Facts) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, item := range items {
		switch {
		case item.FieldRef != nil:
			text, err := field(pod, item.FieldRef.FieldPath, facts)
			if err != nil {
				return nil, err
			}
			files[item.Path] = []byte(text)
		case item.ResourceFieldRef != nil:
			for i := range pod.Spec.Containers {
				if c := &pod.Spec.Containers[i]; c.Name == item.ResourceFieldRef.ContainerName {
					text, err := resourceField(c, item.ResourceFieldRef)
					if err != nil {
						return nil, err
					}
					files[item.Path] = []byte(text)
				}
			}
		}
	}
	return files, nil
}

// Reference is a Secret or ConfigMap that a pod needs.
type Reference struct {
	// Resource is "secrets" or "configmaps".
	Resource        string
	Namespace, Name string
}

// References lists the Secrets and ConfigMaps that the pod's volumes and the
// environments of its containers name, once each.
func References(pod *corev1.Pod) []Reference {
	var all []Reference
	seen := map[Reference]bool{}
	add := func(resource, name string) {
		r := Reference{Resource: resource, Namespace: pod.Namespace, Name: name}
		if !seen[r] {
			seen[r] = true
			all = append(all, r)
		}
	}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Secret != nil:
			add("secrets", v.Secret.SecretName)
		case v.ConfigMap != nil:
			add("configmaps", v.ConfigMap.Name)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					add("secrets", s.Secret.Name)
				}
				if s.ConfigMap != nil {
					add("configmaps", s.ConfigMap.Name)
				}
			}
		}
	}
	for _, c := range pod.Spec.Containers {
		for _, from := range c.EnvFrom {
			if from.SecretRef != nil {
				add("secrets", from.SecretRef.Name)
			}
			if from.ConfigMapRef != nil {
				add("configmaps", from.ConfigMapRef.Name)
			}
		}
		for _, v := range c.Env {
			if v.ValueFrom == nil {
				continue
			}
			if r := v.ValueFrom.SecretKeyRef; r != nil {
				add("secrets", r.Name)
			}
			if r := v.ValueFrom.ConfigMapKeyRef; r != nil {
				add("configmaps", r.Name)
			}
		}
	}
	return all
}
