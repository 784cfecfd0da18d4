package podspec

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Token returns a token of the pod's service account for an audience; "" is the API
// server. A new token is valid for at least the given number of seconds.
type Token func(audience string, seconds int64) (string, error)

// Files returns the files of a volume by relative path, or nil for an emptyDir. A missing
// Secret or ConfigMap is an error unless it is optional, and so is a volume of an
// unsupported kind.
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
	if v.EmptyDir != nil {
		return nil, nil
	}
	sources, ok := projections(v)
	if !ok {
		return nil, errors.New("devcluster has only emptyDir, secret, configMap, downwardAPI and projected volumes")
	}
	all := map[string][]byte{} // not nil, which stands for an emptyDir
	for i := range sources {
		files, err := projected(pod, &sources[i], facts, objects, token)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, files)
	}
	return all, nil
}

// projections returns the sources of a volume's files. It reports false for volumes of
// other kinds.
func projections(v *corev1.VolumeSource) ([]corev1.VolumeProjection, bool) {
	switch {
	case v.Secret != nil:
		return []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: v.Secret.SecretName}, Items: v.Secret.Items, Optional: v.Secret.Optional,
		}}}, true
	case v.ConfigMap != nil:
		return []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: v.ConfigMap.LocalObjectReference, Items: v.ConfigMap.Items, Optional: v.ConfigMap.Optional,
		}}}, true
	case v.DownwardAPI != nil:
		return []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: v.DownwardAPI.Items}}}, true
	case v.Projected != nil:
		return v.Projected.Sources, true
	}
	return nil, false
}

func projected(pod *corev1.Pod, s *corev1.VolumeProjection, facts Facts, objects Objects, token Token) (map[string][]byte, error) {
	switch {
	case s.Secret != nil:
		files, err := secretFiles(pod, s.Secret.Name, s.Secret.Optional, objects)
		if err != nil {
			return nil, err
		}
		return selectItems(files, "secret "+s.Secret.Name, s.Secret.Items, s.Secret.Optional)
	case s.ConfigMap != nil:
		files, err := configMapFiles(pod, s.ConfigMap.Name, s.ConfigMap.Optional, objects)
		if err != nil {
			return nil, err
		}
		return selectItems(files, "configmap "+s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
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

// selectItems selects and renames files of an object. Without items it returns all.
func selectItems(all map[string][]byte, object string, items []corev1.KeyToPath, optional *bool) (map[string][]byte, error) {
	if len(items) == 0 {
		return all, nil
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

// References returns the Secrets and ConfigMaps that the pod's volumes and the
// environments of its containers refer to, once each.
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
		sources, _ := projections(&v.VolumeSource)
		for _, s := range sources {
			if s.Secret != nil {
				add("secrets", s.Secret.Name)
			}
			if s.ConfigMap != nil {
				add("configmaps", s.ConfigMap.Name)
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
