package clusters

import (
	"net/url"
	"path"
	"strconv"
	"strings"

	"gitopsd.dev/sources"
)

// defaultReplicas is the default number of pods of gitopsd's workloads in a cluster. With
// one, objects are unreadable in other versions, or API servers have no storage, whenever
// the pod moves.
const defaultReplicas = 2

// mostReplicas bounds the number of pods. It is more than API servers keep busy;
// Kubernetes itself accepts any number of 31 bits.
const mostReplicas = 100

// conversion checks spec.conversion and sets its defaults.
func (p *parser) conversion(c *Conversion, at finder) {
	if c == nil {
		return
	}
	fail := p.failBelow(at, "spec", "conversion")
	if (c.Service == nil) == (c.URL == "") {
		fail("", "want either service: {image: <image of gitopsd>}, for a server in the cluster, or url: https://<where the cluster reaches the daemon>")
		return
	}
	if s := c.Service; s != nil {
		checkWorkload(fail, "service", s.Image, &s.Replicas, "since API servers cannot convert objects without the server")
		return
	}
	c.URL = strings.TrimRight(c.URL, "/")
	switch u, err := url.Parse(c.URL); {
	case err != nil || u.Scheme != "https" || u.Hostname() == "":
		fail("url", "%q; want https://<host>, with a port and a path if need be", c.URL)
	case u.Path != "" && path.Clean(u.Path) != u.Path:
		fail("url", "%q; its path has . or .. or an empty part, which is lost on the way: write %s", c.URL, path.Clean(u.Path))
	case u.Port() != "" && !validPort(u.Port()):
		fail("url", "%q; %s is no port", c.URL, u.Port())
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		fail("url", "has a user, a query or a fragment, which API servers accept in no webhook's address; leave it out")
	}
}

// checkWorkload checks the image and the number of pods of a workload of gitopsd's, and
// sets the default number. Why says why at least one pod is needed.
func checkWorkload(fail failFunc, field, image string, replicas **int, why string) {
	if image == "" {
		fail(field+".image", "is missing: name an image of gitopsd, with a tag or a digest")
	} else if _, err := sources.ParseRef(image); err != nil {
		fail(field+".image", "%q is no image with a tag or a digest", image)
	}
	if *replicas == nil {
		*replicas = new(defaultReplicas)
	}
	switch n := **replicas; {
	case n < 1:
		fail(field+".replicas", "%d; want 1 at least, %s", n, why)
	case n > mostReplicas:
		fail(field+".replicas", "%d; want %d at most", n, mostReplicas)
	}
}

func validPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
