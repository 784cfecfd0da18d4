package lockfile

import (
	"fmt"
	"strings"
	"testing"
)

// A node may report the index or a platform of the image that runs, but nothing of the
// package if the image is another.
func TestImages(t *testing.T) {
	d := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	f, err := Parse("clusters.lock", []byte(strings.Join([]string{
		"reg.io/apart v1 " + d("a"),
		"reg.io/apart v1/linux/amd64 " + d("b"),
		"reg.io/apart v1/runtime " + d("c"),
		"reg.io/apart v1/runtime/linux/amd64 " + d("d"),
		"reg.io/bundled v1 " + d("1"),
		"reg.io/bundled v1/linux/amd64 " + d("2"),
		"reg.io/bundled v1/linux/arm64 " + d("3"),
		"reg.io/bundled v1/package.yaml " + d("4"),
		"reg.io/bundled v1/runtime " + d("1"),
		"reg.io/function v1 " + d("5"),
		"reg.io/function v1/linux/amd64 " + d("6"),
		"reg.io/lost v1/linux/amd64 " + d("7"),
	}, "\n")+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, i := range f.Images() {
		line := fmt.Sprintf("%s %s %.8s", i.Repository, i.Version, i.Digest)
		for _, p := range i.Platforms {
			line += fmt.Sprintf(" %.8s", p)
		}
		have = append(have, line)
	}
	want := "reg.io/apart v1 sha256:c sha256:d\n" +
		"reg.io/bundled v1 sha256:1 sha256:2 sha256:3\n" +
		"reg.io/function v1 sha256:5 sha256:6"
	if text := strings.Join(have, "\n"); text != want {
		t.Errorf("images\n%s\nwant\n%s", text, want)
	}
}
