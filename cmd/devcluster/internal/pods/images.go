package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"

	"gitopsd.dev/cmd/devcluster/internal/podspec"
)

// Images maps an image's repository to the command that stands for the entry point of
// its images: the absolute path of a program, and its first arguments.
type Images map[string][]string

// Commands returns, by name, the commands of the pod's containers with a mapped image.
func (images Images) Commands(pod *corev1.Pod) map[string][]string {
	commands := map[string][]string{}
	for _, c := range pod.Spec.Containers {
		if command, ok := images[podspec.Repository(c.Image)]; ok {
			commands[c.Name] = command
		}
	}
	return commands
}

// LoadImages reads a file of images. Without a file it returns none.
func LoadImages(path string) (Images, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Images{}, nil
	}
	if err != nil {
		return nil, err
	}
	images := Images{}
	if err := json.Unmarshal(text, &images); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it and map the images again", path, err)
	}
	for repository, command := range images {
		if len(command) == 0 {
			return nil, fmt.Errorf("%s: %s has no command; remove the file and map the images again", path, repository)
		}
	}
	return images, nil
}
