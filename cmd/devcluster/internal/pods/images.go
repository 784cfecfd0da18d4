package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Images maps an image's repository to the command that stands for the entry point
// of its images: a program, absolute, and its first arguments.
type Images map[string][]string

// LoadImages reads a file of images; there are none where there is no file.
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
